"""Over many models, numbers of lanes and batches: is wide ever slower than the loop it replaces?

    python benchmarks/never_slower.py                 default() beside the eager loop and vmap
    python benchmarks/never_slower.py --fast          fast() beside the compiled loop and compiled vmap
    python benchmarks/never_slower.py --train         a step of forward and backward instead of a forward

Every case is timed interleaved, and everybody's best of several medians counts: three, and more where ours
seems to be behind. A case is behind if it is below 0.95 of the loop's speed and takes 15 microseconds longer:
so much a call costs however small the models are. Writes benchmarks/results/never_slower_*.json.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import wide_compiler
from wide_compiler import WideConfig
from wide_compiler.benchmark.document import provenance
from wide_compiler.benchmark.nets import (
    ConvNet,
    DeepMlp,
    Gpt,
    Mlp,
    Recurrent,
    ResBlock,
    ResNet18,
    TransformerBlock,
)
from wide_compiler.measure import interleaved
from wide_compiler.measure.clock import best_medians
from wide_compiler.measure.store import nothing_remembered

SLACK = 15e-6
BAR = 0.95
# A sample is a row of calls, as a user's loop is: a single call would find the caches full of another's work.
SAMPLE_SECONDS = 3e-3


class Wide1d(nn.Module):
    """A convolution over signals."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv1d(8, 32, 5, padding=2), nn.Conv1d(32, 8, 5, padding=2)

    def forward(self, x):
        return self.b(F.relu(self.a(x)))


class Tokens(nn.Module):
    """An embedding, averaged and classified."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(500, 32), nn.Linear(32, 8)

    def forward(self, tokens):
        return self.head(self.table(tokens).mean(1))


def floats(*shape):
    return lambda *lead: torch.randn(*lead, *shape)


def tokens(most, length):
    return lambda *lead: torch.randint(0, most, (*lead, length))


# name: (member, input of one sample, [(lanes, batch)])
CASES = {
    "linear 4-4": (lambda: nn.Linear(4, 4), floats(4), [(2, 1), (8, 8), (64, 32)]),
    "mlp 8-16-8": (lambda: Mlp(8, 16, 8), floats(8), [(2, 1), (4, 8), (32, 8), (200, 16)]),
    "mlp 64-128-64": (Mlp, floats(64), [(2, 32), (10, 32), (100, 32)]),
    "mlp 256-512-256": (lambda: Mlp(256, 512, 256), floats(256), [(2, 64), (16, 64)]),
    "mlp 1024-2048-1024": (lambda: Mlp(1024, 2048, 1024), floats(1024), [(2, 64), (8, 16)]),
    "deep mlp 8x64": (DeepMlp, floats(64), [(2, 8), (20, 32)]),
    "conv1d 8-32-8": (Wide1d, floats(8, 64), [(4, 8), (16, 16)]),
    "cnn 3-32-64-64": (ConvNet, floats(3, 32, 32), [(2, 4), (8, 8)]),
    "resblock 16": (lambda: ResBlock(16), floats(16, 8, 8), [(4, 4), (20, 8)]),
    "resblock 64": (ResBlock, floats(64, 16, 16), [(2, 4), (8, 8)]),
    "resnet18": (ResNet18, floats(3, 64, 64), [(2, 2)]),
    "block 64": (lambda: TransformerBlock(64, 4), floats(32, 64), [(4, 4), (16, 4)]),
    "block 256": (TransformerBlock, floats(64, 256), [(4, 2)]),
    "gpt 2x64": (lambda: Gpt(64, 4, 2, 32), tokens(1024, 32), [(4, 4)]),
    "tokens 500x32": (Tokens, tokens(500, 20), [(4, 8), (32, 16)]),
    "lstm 16-32": (lambda: Recurrent(nn.LSTM, 16, 32), floats(10, 16), [(4, 4), (32, 8)]),
    "gru 64-128": (lambda: Recurrent(nn.GRU, 64, 128), floats(16, 64), [(4, 4)]),
}


def stepping(train, call):
    """The call, with a backward pass to the parameters if training."""
    if not train:
        return call

    def step():
        out = call()
        outs = out if isinstance(out, list) else [out]
        torch.autograd.backward([o.square().sum() for o in outs])

    return step


def candidates(make, inputs, n, batch, fast, train):
    models = [make().train(train) for _ in range(n)]
    x = inputs(n, batch)
    lanes = list(zip(models, x.unbind(0), strict=True))
    config = WideConfig.fast() if fast else WideConfig.default()
    wide = wide_compiler.compile(models, x[0], config=config)
    found = {"ours": lambda: wide.stacked(x)}

    template = make().to("meta").train(train)
    parameters, buffers = stack_module_state(models)
    together = vmap(lambda p, b, x: functional_call(template, (p, b), (x,)), randomness="different")
    if fast:
        one = torch.compile(lambda p, b, x: functional_call(template, (p, b), (x,)), dynamic=False)
        states = [(dict(m.named_parameters()), dict(m.named_buffers())) for m in models]
        found["loop"] = lambda: [one(*state, a) for state, a in zip(states, x.unbind(0), strict=True)]
        together = torch.compile(together, dynamic=False)
    else:
        found["loop"] = lambda: [m(a) for m, a in lanes]
    found["vmap"] = lambda: together(parameters, buffers, x)
    expected = torch.stack([m(a) for m, a in lanes]).detach()
    return wide, {name: stepping(train, call) for name, call in found.items()}, expected, x


def keeps_up(times, peer):
    return peer not in times or times[peer] / max(times["ours"] - SLACK, 1e-9) >= BAR


def not_behind(times):
    return keeps_up(times, "loop") and keeps_up(times, "vmap")


def measure(name, n, batch, fast, train, seconds):
    make, inputs, _ = CASES[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.set_grad_enabled(train), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wide, calls, expected, x = candidates(make, inputs, n, batch, fast, train)
        failures = {}
        started = time.perf_counter()
        for peer in list(calls):
            try:
                calls[peer]()
                calls[peer]()
            except Exception as error:
                if peer == "ours":
                    raise
                failures[peer] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:80]}"
                del calls[peer]
            if peer == "ours":
                first = time.perf_counter() - started
        times, tries = best_medians(
            lambda: interleaved(calls, seconds / 3, sample_seconds=SAMPLE_SECONDS), not_behind
        )
        got = wide.stacked(x).detach() if not train else expected
    error = float((got - expected).abs().max() / expected.abs().max())
    tuned = wide.programs.latest.latest
    return {
        "case": name,
        "n": n,
        "batch": batch,
        "ms": {k: 1e3 * v for k, v in times.items()},
        "x_loop": times["loop"] / times["ours"],
        "tries": tries,
        "ok": keeps_up(times, "loop"),
        "ahead_of_vmap": keeps_up(times, "vmap"),
        "error": error,
        "way": str(tuned.plan),
        "first_call_s": first,
        "failures": failures,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each case")
    parser.add_argument("--only", default="", help="cases whose name begins so")
    options = parser.parse_args()
    rows = []
    print(f"{'case':22s} {'N':>4s} {'B':>3s} {'ours ms':>9s} {'loop':>7s} {'vmap':>7s}  error   runs as")
    for name in [c for c in CASES if c.startswith(options.only)]:
        for n, batch in CASES[name][2]:
            row = measure(name, n, batch, options.fast, options.train, options.seconds)
            rows.append(row)
            vmap_x = f"{row['ms']['vmap'] / row['ms']['ours']:6.2f}x" if "vmap" in row["ms"] else "  fails"
            mark = " " if row["ok"] and row["ahead_of_vmap"] else "*"
            print(
                f"{name:22s} {n:4d} {batch:3d} {row['ms']['ours']:9.3f} {row['x_loop']:6.2f}x {vmap_x} {mark}"
                f"{row['error']:.0e}  {row['way'][:60]}",
                flush=True,
            )
    behind = [r for r in rows if not r["ok"]]
    behind_vmap = [r for r in rows if not r["ahead_of_vmap"]]
    print(f"{len(rows)} cases, {len(behind)} behind the loop, {len(behind_vmap)} behind vmap")
    kind = f"{'fast' if options.fast else 'default'}{'_train' if options.train else ''}"
    document = {
        **provenance(torch.device("cpu")),
        "rows": rows,
    }
    if not options.only:
        path = Path(__file__).parent / "results" / f"never_slower_{kind}.json"
        path.write_text(json.dumps(document, indent=1) + "\n")
        print(f"written to {path}")


if __name__ == "__main__":
    with nothing_remembered():
        main()
