import sys, time, torch
sys.path.insert(0,"src")
import wide_compiler
from wide_compiler import WideConfig
from wide_compiler.benchmark import workloads
from wide_compiler.benchmark.problem import Problem
from wide_compiler.tuning import interleaved
names=sys.argv[1].split(",")
torch.set_grad_enabled(False)
for name in names:
    name, _, n = name.partition(":")
    w=workloads.MODELS[name]
    t=time.time()
    p=Problem.of(w,int(n or w.n),w.batch,torch.device("cuda"),False)
    for m in p.members: m.eval()
    wide=wide_compiler.compile(p.members,p.x[0],config=WideConfig.fast())
    try:
        for _ in range(4): wide.stacked(p.x)
        run=wide.programs.latest.latest.run
        ms=interleaved({"ours":lambda: wide.stacked(p.x)},0.3,True)["ours"]*1e3
        print(name, "ms",round(ms,4), "why:",run.why, "in_place",len(run.in_place),"copying",len(run.copying),[ (r.is_free(),r.lendable) for r in run.in_place.values()], f"{time.time()-t:.0f}s")
        print(wide.programs.latest.latest)
        g=next(iter(run.in_place.values()),None) or next(iter(run.copying.values()))
        ms=interleaved({"replay":g.graph.replay},0.2,True)["replay"]*1e3
        print("pure replay", round(ms,4))
        from torch.profiler import profile, ProfilerActivity
        with profile(activities=[ProfilerActivity.CUDA]) as prof:
            for _ in range(3): wide.stacked(p.x)
            torch.cuda.synchronize()
        print(prof.key_averages().table(sort_by="cuda_time_total", row_limit=14, max_name_column_width=70).split("Self CPU time")[0][:6000])
    except Exception as e:
        import traceback; traceback.print_exc()
    sys.stdout.flush()
