import sys, time, torch, os
sys.path.insert(0,"src")
import warnings; warnings.simplefilter("ignore")
import wide_compiler
from wide_compiler import WideConfig
from wide_compiler.benchmark import workloads
from wide_compiler.benchmark.problem import Problem
from wide_compiler.training import TrainStep
what=sys.argv[1]
dev=torch.device("cuda")
if what=="resnet":
    w=workloads.MODELS["resnet18"]; p=Problem.of(w,10,8,dev,True)
    wide=wide_compiler.compile(p.members,p.x[0],config=WideConfig.default())
    print("resnet", type(wide.programs.latest).__name__, wide.programs.latest.why)
if what=="convnet":
    w=workloads.MODELS["convnet"]; p=Problem.of(w,64,32,dev,True)
    for strat in ({"WideConv2d":"implicit_gemm"},{"WideConv2d":"channels_last"},{"WideConv2d":"streams"},{"WideLinear":"tensor_core"},{"WideLinear":"transposed"}):
        try:
            wide=wide_compiler.compile(p.members,p.x[0],config=WideConfig(strategy=strat))
            for _ in range(3):
                y=wide.stacked(p.x); y.square().mean((1,2)).sum().backward()
            torch.cuda.synchronize(); print("eager ok",strat,flush=True)
            wide=wide_compiler.compile(p.members,p.x[0],config=WideConfig(strategy=strat,compile=True))
            for _ in range(3):
                y=wide.stacked(p.x); y.square().mean((1,2)).sum().backward()
            torch.cuda.synchronize(); print("compiled ok",strat,flush=True)
            o=torch.optim.Adam(wide.parameters(),1e-4,fused=True,capturable=True)
            step=TrainStep(wide,o,lambda y:y.square().flatten(1).mean(1))
            for _ in range(8): step(p.x)
            torch.cuda.synchronize(); print("step ok",strat,step.why,len(step.recordings),flush=True)
        except Exception as e:
            import traceback; traceback.print_exc(); print("FAILED",strat,flush=True)
            if "illegal" in str(e): break
