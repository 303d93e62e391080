import sys, time, torch

sys.path.insert(0, "src")
import warnings

warnings.simplefilter("ignore")
from wide_compiler.benchmark import workloads
from wide_compiler.benchmark.runner import Options, Point, measure
import wide_compiler.benchmark.ours as O

names = sys.argv[1].split(",")
train = "--train" in sys.argv
peers = "--peers" in sys.argv
kept = {}
orig = O.strategies_of


def spy(wide):
    kept["wide"] = wide
    return orig(wide)


O.strategies_of = spy
for name in names:
    name, _, n = name.partition(":")
    w = workloads.MODELS[name]
    o = Options(train=train, compile=True, peers=peers, device=torch.device("cuda"), seconds=0.2)
    t = time.time()
    try:
        for r in measure(Point(w, int(n or w.n), w.batch), o):
            print(
                name,
                r.n,
                "train" if train else "infer",
                {k: round(v, 4) for k, v in r.ms.items()},
                "err",
                r.error,
                "ok",
                r.ok,
                r.why,
                r.strategy,
                r.failures,
                f"{time.time() - t:.0f}s",
                flush=True,
            )
        for tuned in kept["wide"].programs.latest.tuned.values():
            print(tuned, flush=True)
        if "--profile" in sys.argv:
            pass
    except Exception as e:
        import traceback

        traceback.print_exc()
