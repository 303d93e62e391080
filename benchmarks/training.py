"""A training step with hyper-parameters by lane, beside what one would do instead.

    python benchmarks/training.py                       on a CPU: writes results/training_cpu.json
    python benchmarks/training.py --device cuda         on a GPU: writes results/training_cuda.json
    python benchmarks/training.py --only mlp --dry      one workload, writes nothing

A step is forward, backward and AdamW in all lanes, each with a learning rate and a weight decay of its own.
All candidates of a row are timed in turns, so only their ratios count:

    loop                 one model after another, each with its own torch.optim.AdamW
    vmap                 torch.func over stacked weights with one torch.optim.AdamW: one setting for all lanes
    vmap compiled        the same through torch.compile
    wide, one setting    a wide model with one torch.optim.AdamW: one setting for all lanes
    wide                 a wide model with wide_compiler.training.AdamW: learning rate, weight decay by lane
    wide, all by lane    betas and eps by lane too
    wide, TrainStep      WideConfig.fast() in a TrainStep: compiled, on CUDA recorded

The vmap rows and 'one setting' do less than the others: they cannot have settings by lane. Of the others the
lanes' losses after three steps are held against the loop's.
"""

import argparse
import copy
import json
import warnings
from pathlib import Path

import torch

import wide_compiler
from wide_compiler import WideConfig
from wide_compiler.benchmark.document import provenance
from wide_compiler.benchmark.functional import Functional
from wide_compiler.benchmark.problem import Problem
from wide_compiler.benchmark.training import lane_losses, member_loss
from wide_compiler.benchmark.workloads import MODELS
from wide_compiler.measure import interleaved
from wide_compiler.training import AdamW, TrainStep

ROWS = [("mlp", 10), ("mlp", 100), ("deep_mlp", 20), ("resblock", 8), ("lstm", 32)]
CUDA_ROWS = [("mlp", 100), ("deep_mlp", 20), ("lstm", 32), ("resblock", 20)]
STEPS = 3


def rates(n):
    """Small: the first steps of Adam turn rounding into whole steps."""
    return [1e-5 * (1 + lane / n) for lane in range(n)]


def decays(n):
    return [0.01 * (lane + 1) / n for lane in range(n)]


def loop(problem):
    members = copy.deepcopy(problem.members)
    settings = zip(members, rates(problem.n), decays(problem.n), strict=True)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=lr, weight_decay=wd) for m, lr, wd in settings]

    def step():
        for member, optimizer, x in zip(members, optimizers, problem.x.unbind(0), strict=True):
            optimizer.zero_grad()
            member_loss(problem.workload.call(member, x)).backward()
            optimizer.step()

    calls = list(zip(members, problem.x.unbind(0), strict=True))
    return step, lambda: torch.stack([member_loss(problem.workload.call(m, x)) for m, x in calls])


def vmapped(problem, compiled):
    functional = Functional(copy.deepcopy(problem.called()), problem.x, member_loss)
    parameters, _ = functional.stacked
    losses_of = functional.together(compiled)
    return stepping(lambda: losses_of().sum(), stock(parameters.values(), problem)), None


def stock(parameters, problem):
    return torch.optim.AdamW(parameters, 1e-5, fused=True, capturable=problem.cuda)


def stepping(loss, optimizer):
    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def wide(problem, optimizer_of):
    model = wide_compiler.compile(problem.members, problem.x[0])
    optimizer = optimizer_of(model.parameters(), problem)
    losses = lambda: lane_losses(model.stacked(problem.x))  # noqa: E731
    return stepping(lambda: losses().sum(), optimizer), losses


def by_lane(parameters, problem):
    return AdamW(parameters, lr=rates(problem.n), weight_decay=decays(problem.n))


def all_by_lane(parameters, problem):
    n = problem.n
    return AdamW(parameters, rates(n), ([0.9] * n, [0.999] * n), [1e-8] * n, decays(n))


def train_step(problem):
    model = wide_compiler.compile(problem.members, problem.x[0], config=WideConfig.fast())
    step = TrainStep(model, by_lane(model.parameters(), problem), lane_losses)
    return lambda: step(problem.x), lambda: lane_losses(model.stacked(problem.x))


CANDIDATES = {
    "loop": loop,
    "vmap": lambda problem: vmapped(problem, compiled=False),
    "vmap compiled": lambda problem: vmapped(problem, compiled=True),
    "wide, one setting": lambda problem: wide(problem, stock),
    "wide": lambda problem: wide(problem, by_lane),
    "wide, all by lane": lambda problem: wide(problem, all_by_lane),
    "wide, TrainStep": train_step,
}


def measure(name, n, device, seconds, leave_out):
    torch._dynamo.reset()
    workload = MODELS[name]
    problem = Problem.of(workload, n, workload.batch, device, train=True)
    calls, errors, failures = {}, {}, {}
    expected = None
    for candidate, build in CANDIDATES.items():
        if candidate in leave_out:
            continue
        try:
            step, losses_of = build(problem)
            for _ in range(STEPS):
                step()
        except Exception as error:  # a peer that cannot run this model
            failures[candidate] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:90]}"
            continue
        calls[candidate] = step
        if losses_of is not None and "one setting" not in candidate:
            losses = losses_of().detach()
            expected = losses if expected is None else expected
            errors[candidate] = float(((losses - expected) / expected).abs().max())
    for step in calls.values():
        step()
    times = interleaved(calls, seconds, cuda=problem.cuda)
    return {
        "workload": name,
        "n": n,
        "batch": workload.batch,
        "ms": {candidate: 1e3 * time for candidate, time in times.items()},
        "x_loop": {candidate: times["loop"] / time for candidate, time in times.items()},
        "losses_off_by": errors,
        "failures": failures,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=8.0, help="time for each row")
    parser.add_argument("--only", default="", help="workloads whose name begins so")
    parser.add_argument("--without", nargs="*", default=[], help="candidates to leave out")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    device = torch.device(options.device)
    rows = []
    for name, n in CUDA_ROWS if device.type == "cuda" else ROWS:
        if not name.startswith(options.only):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row = measure(name, n, device, options.seconds, options.without)
        rows.append(row)
        print(f"{name}, {n} lanes, batch {row['batch']}")
        for candidate, ms in row["ms"].items():
            off = row["losses_off_by"].get(candidate)
            note = "" if off is None else f"   losses off by {off:.0e}"
            print(f"    {candidate:20s} {ms:9.3f} ms  {row['x_loop'][candidate]:6.2f}x{note}", flush=True)
        for candidate, failure in row["failures"].items():
            print(f"    {candidate:20s} {failure}")
        if not options.dry:
            write(device, rows)


def write(device, rows):
    """After every row: what was measured stays if a later one fails."""
    document = {
        **provenance(device),
        "rows": rows,
    }
    path = Path(__file__).parent / "results" / f"training_{device.type}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
