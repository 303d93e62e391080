import sys, time, torch
sys.path.insert(0,"src")
from wide_compiler.benchmark import runner, workloads
from wide_compiler.benchmark.presets import PRESETS
from wide_compiler.benchmark.runner import Options, Point, measure
import wide_compiler.benchmark.runner as R
names=sys.argv[1].split(","); train="--train" in sys.argv; peers="--peers" in sys.argv
w0={}
for name in names:
    name, _, n = name.partition(":")
    w=workloads.MODELS[name]
    o=Options(train=train, compile=True, peers=peers, device=torch.device("cuda"), seconds=0.3)
    t=time.time()
    try:
        from wide_compiler.benchmark import ours as O
        rows=measure(Point(w,int(n or w.n),w.batch),o)
        for r in rows: print(name,r.n,"train" if train else "infer",{k:round(v,4) for k,v in r.ms.items()},"err",r.error,"ok",r.ok,r.why,r.strategy,r.failures,f"{time.time()-t:.0f}s",flush=True)
    except Exception as e:
        import traceback; traceback.print_exc()
