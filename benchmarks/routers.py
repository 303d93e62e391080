"""Towers wide beside towers in sequence, vmap over stacked parameters, and torch.compile of the sequence.

    python benchmarks/routers.py                     4 to 64 towers, inference and training, on the CPU
    python benchmarks/routers.py --device cuda       the same on the GPU
    python benchmarks/routers.py --stacked           routers with `stacked=True`, in training
    python benchmarks/routers.py --compiled          beside torch.compile: two cases (or --only ...), which
                                                     takes a while to compile

All are timed in turns, in one run, in samples of many calls (the best of three medians or more); ratios
count. Nothing is remembered from earlier runs.
`router` is a prepared WideRouter as a user would call it, on the towers' own parameters; it is never slower
where it reaches 0.97 of the speed of `sequence`, the towers called in a plain loop. `router, compiled` is the
same through torch.compile. vmap has parameters stacked beforehand, not the towers' own.
Writes benchmarks/results/routers_<device>.json, or routers_<device>_compiled.json, or _stacked.json.
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from wide_compiler.benchmark.document import provenance
from wide_compiler.measure import interleaved
from wide_compiler.measure.clock import best_medians
from wide_compiler.measure.store import nothing_remembered
from wide_compiler.routers import AttentionTower, BaseTower, PreNormTower, SequentialTower, WideRouter

# What a clock on a machine with other work can tell apart.
BAR = 0.97
# A sample is many calls of tiny towers: the clock's own noise is then far below the bar.
SAMPLE_SECONDS = 5e-3
# Guesses, to say beforehand how long all will take: building and settling a row, and compiling per tower.
BUILD_SECONDS, COMPILE_SECONDS = 3.0, 1.0


def no_slower(times):
    return times["sequence"] / times["router"] >= BAR


class ConvTower(BaseTower):
    def __init__(self, name):
        super().__init__(name)
        self.extend([nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3)])

    def forward(self, x):
        return super().forward(x).mean((2, 3))


class SignedTower(BaseTower):
    def __init__(self, name):
        super().__init__(name)
        self.sign, self.fc = 1.0 - 2.0 * (int(name) % 2), nn.Linear(64, 64)

    def forward(self, x):
        return torch.tanh(self.fc(x)) * self.sign


# name: (tower, shape of the input)
CASES = {
    "mlp 32": (lambda name: SequentialTower(name, 32), (8, 32)),
    "mlp 64-128-64": (lambda name: SequentialTower(name, 64), (32, 64)),
    "mlp 256-512-256": (lambda name: SequentialTower(name, 256), (32, 256)),
    "signed linear 64": (SignedTower, (16, 64)),
    "pre-norm 2 x 64": (lambda name: PreNormTower(name, 64, depth=2), (32, 64)),
    "conv 3-16-16": (ConvTower, (4, 3, 12, 12)),
    "attention 64": (lambda name: AttentionTower(name, 64, heads=4), (2, 16, 64)),
}
COUNTS = (4, 8, 16, 32, 64)
COMPILED = ("mlp 64-128-64", "conv 3-16-16")


class Collective(WideRouter):
    def forward(self, x):
        return list(self.wide_forward(x).values())


def stepping(train, call, parameters):
    """The call, with a backward pass if training; gradients are dropped as an optimiser's zero_grad would."""
    if not train:
        return call

    def step():
        out = call()
        outs = out if isinstance(out, list) else [out]
        torch.autograd.backward([o.square().sum() for o in outs])
        for parameter in parameters:
            parameter.grad = None

    return step


def candidates(make, n, train, device, compiled, stacked):
    router = Collective("collective", stacked=stacked)
    for i in range(n):
        router.attach(f"tower_{i}", make(str(i)))
    router.to(device).train(train)
    router.prepare_for_compile()
    towers = list(router.towers.values())
    own = list(router.parameters())
    found = {"sequence": lambda x: [tower(x) for tower in towers], "router": router}
    if compiled:
        found["sequence, compiled"] = torch.compile(lambda x: [tower(x) for tower in towers], dynamic=False)
        found["router, compiled"] = torch.compile(router, dynamic=False)
    if len({getattr(tower, "sign", 1.0) for tower in towers}) == 1:
        template = make("0").to("meta").train(train)
        parameters, buffers = stack_module_state(towers)
        one = vmap(
            lambda p, b, x: functional_call(template, (p, b), (x,)),
            in_dims=(0, 0, None),
            randomness="different",
        )
        found["vmap"] = lambda x: list(one(parameters, buffers, x).unbind(0))
        own = own + list(parameters.values())
    return router, found, own


def measure(name, n, train, device, seconds, compiled, stacked):
    make, shape = CASES[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    cuda = device == "cuda"
    x = torch.randn(*shape, device=device)
    failures, calls = {}, {}
    with torch.set_grad_enabled(train), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        router, found, own = candidates(make, n, train, device, compiled, stacked)
        expected = torch.stack([tower(x) for tower in router.towers.values()])
        error = float((torch.stack(router(x)) - expected).abs().max() / expected.abs().max())
        for peer, call in found.items():
            step = stepping(train, lambda call=call: call(x), own)
            started = time.perf_counter()
            try:
                for _ in range(3):
                    step()
            except Exception as problem:
                if peer == "router":
                    raise
                failures[peer] = f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0][:80]}"
                continue
            if peer == "router":
                first = time.perf_counter() - started
                row = router.explain().rows[0]
            calls[peer] = step

        def clock():
            return interleaved(calls, seconds / 3, cuda, sample_seconds=SAMPLE_SECONDS)

        times, tries = best_medians(clock, no_slower)
    return {
        "case": name,
        "towers": n,
        "train": train,
        "ms": {peer: 1e3 * taken for peer, taken in times.items()},
        "ratios": {peer: taken / times["router"] for peer, taken in times.items()},
        "ok": no_slower(times),
        "tries": tries,
        "error": error,
        "how": row.how,
        "why": row.why,
        "coverage": row.coverage,
        "first_calls_s": first,
        "failures": failures,
    }


def show(row, left):
    ratios = {peer: f"{ratio:7.2f}x" for peer, ratio in row["ratios"].items()}
    peers = ("sequence", "sequence, compiled", "router, compiled", "vmap")
    cells = " ".join(ratios.get(peer, "       -") for peer in peers)
    mark = " " if row["ok"] else "*"
    kind = "train" if row["train"] else "infer"
    print(
        f"{row['case']:18s} {row['towers']:3d} {kind} {row['ms']['router']:9.3f} {cells} "
        f"{mark}{row['how']:12s} {left:3.0f} min left",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--towers", default=",".join(map(str, COUNTS)), help="how many, separated by commas")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each row, if it is in front")
    parser.add_argument("--stacked", action="store_true", help="with stacked parameters, in training alone")
    parser.add_argument("--compiled", action="store_true", help="beside torch.compile as well")
    parser.add_argument("--out", default="", help="where to write; nowhere if only some cases run")
    options = parser.parse_args()
    names = [case for case in CASES if case.startswith(options.only)]
    if options.compiled and not options.only:
        names = list(COMPILED)
    counts = [int(n) for n in options.towers.split(",")]
    modes = (True,) if options.stacked else (False, True)
    left = [(name, n, train) for name in names for n in counts for train in modes]
    print(f"{len(left)} rows, about {minutes(guess(left, options)):.0f} minutes")
    print("case               towers   router ms    against sequence, that compiled, router compiled, vmap")
    name = f"routers_{options.device}{'_compiled' * options.compiled}{'_stacked' * options.stacked}.json"
    path = options.out or ("" if options.only else f"{Path(__file__).parent}/results/{name}")
    rows, started, guessed = [], time.perf_counter(), 0.0
    while left:
        guessed += guess(left[:1], options)
        how = (options.device, options.seconds, options.compiled, options.stacked)
        rows.append(measure(*left.pop(0), *how))
        spent = time.perf_counter() - started
        show(rows[-1], minutes(guess(left, options) * spent / guessed))
        if path:  # after every row: what was measured stays if a later one fails
            Path(path).write_text(json.dumps(document(options.device, rows), indent=1) + "\n")
    slower = [row for row in rows if not row["ok"]]
    together = sum(row["how"] == "together" for row in rows)
    print(f"{len(rows)} rows, {together} together, {len(slower)} behind the towers in sequence")
    for row in slower:
        kind = "train" if row["train"] else "infer"
        print(f"behind: {row['case']}, {row['towers']} towers, {kind}: {row['ratios']['sequence']:.3f}x")


def guess(rows, options):
    """About how many seconds rows take."""
    compiling = sum(COMPILE_SECONDS * n for _, n, _ in rows) if options.compiled else 0.0
    return len(rows) * (BUILD_SECONDS + options.seconds) + compiling


def minutes(seconds):
    return seconds / 60


def document(device, rows):
    return {**provenance(torch.device(device)), "load_average": os.getloadavg()[2], "rows": rows}


if __name__ == "__main__":
    with nothing_remembered():
        main()
