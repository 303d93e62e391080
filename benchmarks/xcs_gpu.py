"""Loops over tensors and modules on a GPU: jitted, as plain Python, and by `torch.func.vmap` by hand.

    python benchmarks/xcs_gpu.py

All are timed in turns, in one run, in rows of calls after which the GPU is waited for; ratios count. `vmap`
has the members' parameters stacked beforehand: it does not see them change. A loop that gains nothing runs as
written, and `x plain` is about 1. Writes benchmarks/results/xcs_cuda.json.
"""

import json
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from wide_compiler.benchmark.document import provenance
from wide_compiler.measure import interleaved
from wide_compiler.xcs import jit
from xcs import oracle

WARM_SECONDS = 2.0
RESULTS = Path(__file__).with_name("results") / "xcs_cuda.json"


def mlp(width=64):
    return nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def members_shared(models, x):
    return [m(x) for m in models]


def members_zipped(models, xs):
    return [m(x) for m, x in zip(models, xs, strict=True)]


def one_module(model, xs):
    return [model(x) for x in xs]


def softmaxes(xs):
    return [torch.softmax(x, dim=0) for x in xs]


def standardised(xs):
    return [(x - x.mean()) / x.std() for x in xs]


def large(xs):
    return [torch.relu(x) for x in xs]


def stacked(models):
    params, buffers = stack_module_state(models)
    base = models[0]

    def one(p, b, x):
        return functional_call(base, (p, b), (x,))

    return lambda x, dim: vmap(one, in_dims=(0, 0, dim))(params, buffers, x)


def cases():
    torch.manual_seed(0)
    draw = partial(torch.randn, device="cuda")
    for count in (8, 32, 128):
        models = [mlp().cuda().eval() for _ in range(count)]
        x, by_hand = draw(16, 64), stacked(models)
        yield f"{count} MLPs", members_shared, (models, x), lambda f=by_hand, x=x: f(x, None).unbind(0)
    models, xs = [mlp().cuda().eval() for _ in range(32)], [draw(16, 64) for _ in range(32)]
    by_hand = stacked(models)
    yield "32 MLPs, own inputs", members_zipped, (models, xs), lambda: by_hand(torch.stack(xs), 0).unbind(0)
    wide = [mlp(1024).cuda().eval() for _ in range(16)]
    x, wide_by_hand = draw(64, 1024), stacked(wide)
    yield "16 MLPs of width 1024", members_shared, (wide, x), lambda: wide_by_hand(x, None).unbind(0)
    model, many = mlp().cuda().eval(), [draw(64) for _ in range(512)]
    yield (
        "one module over 512 tensors",
        one_module,
        (model, many),
        lambda: vmap(model)(torch.stack(many)).unbind(0),
    )
    rows = [draw(1000) for _ in range(2000)]
    soft = vmap(lambda x: torch.softmax(x, dim=0))
    yield "softmax of 2000 rows", softmaxes, (rows,), lambda: soft(torch.stack(rows)).unbind(0)
    standard = vmap(lambda x: (x - x.mean()) / x.std())
    yield "standardise 2000 rows", standardised, (rows,), lambda: standard(torch.stack(rows)).unbind(0)
    big = [draw(2048, 2048) for _ in range(64)]
    yield "relu of 64 large tensors", large, (big,), lambda: vmap(torch.relu)(torch.stack(big)).unbind(0)


def warmed(fast, arguments):
    """A user's first seconds: until the run time has made up its mind."""
    began = perf_counter()
    while perf_counter() - began < WARM_SECONDS:
        fast(*arguments)
    torch.cuda.synchronize()


def main():
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/xcs_gpu.py needs a CUDA device; benchmarks/xcs.py is for the CPU")
    rows = []
    for name, plain, arguments, by_hand in cases():
        fast = jit(plain)
        with torch.no_grad():
            warmed(fast, arguments)
            equal = oracle.same(plain(*arguments), fast(*arguments), rtol=1e-5)
            by_hand()
            ways = {"plain": partial(plain, *arguments), "jit": partial(fast, *arguments), "vmap": by_hand}
            times = interleaved(ways, seconds=2.0, cuda=True, sample_seconds=2e-2)
        counts = next(iter(fast.stats().values()))
        row = {
            "case": name,
            "equal": equal,
            "rungs": counts,
            "ms": {k: round(1e3 * t, 4) for k, t in times.items()},
            "x plain": round(times["plain"] / times["jit"], 2),
            "x vmap": round(times["vmap"] / times["jit"], 2),
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
        print(fast.explain(), flush=True)
    RESULTS.write_text(json.dumps({**provenance(torch.device("cuda")), "rows": rows}, indent=1) + "\n")
    print(f"wrote {RESULTS}")


if __name__ == "__main__":
    main()
