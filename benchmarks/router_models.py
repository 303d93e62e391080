"""CompileRouter on models with branches: groups found, equal results, time to plan, ratio to the model given.

    python benchmarks/router_models.py                 all cases of router_zoo.py on the CPU, and the page
    python benchmarks/router_models.py --device cuda   the same on the GPU
    python benchmarks/router_models.py --only Switch   some, by the beginning of the name; other rows stay
    python benchmarks/router_models.py --page          docs/router_models.md from the result files alone

`planned` is what `CompileRouter.from_module(model, sample).compile()` gives; where nothing was faster
together that is the model, called as it is. Both are timed in turns (the best of three medians or more), with
a backward pass in training; on a CPU the time of one thread on a core counts. Equality is that of everything
joined (`tune_seconds=0`), outputs and gradients, in float64 where the model's ops know it; random numbers
then do not depend on the order of draws.
Nothing is remembered from earlier runs. Writes benchmarks/results/router_models_<device>.json.
"""

import argparse
import contextlib
import copy
import json
import os
import time
import warnings
from pathlib import Path

import torch
from router_zoo import CASES

from wide_compiler import WideConfig, _tree
from wide_compiler.benchmark.document import provenance
from wide_compiler.measure import interleaved
from wide_compiler.measure.clock import best_medians, cpu_time, now
from wide_compiler.measure.fixed_draws import FixedDraws
from wide_compiler.measure.store import nothing_remembered
from wide_compiler.routers import CompileRouter
from wide_compiler.routers.calls import call_of

BAR = 0.97
ROOT = Path(__file__).resolve().parent
SAMPLE_SECONDS = 5e-3


def tensors_of(output):
    return [x for x in _tree.flatten_output(output)[0] if isinstance(x, torch.Tensor)]


def loss_of(output):
    return sum(t.float().square().mean() for t in tensors_of(output) if t.requires_grad)


def moved(tree, device, dtype=None):
    def move(x):
        if not isinstance(x, torch.Tensor):
            return x
        return x.to(device, dtype if x.is_floating_point() else None)

    return _tree.tree_map(move, tree)


def difference(got, want):
    """The largest difference, relative to the largest number."""
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        if (a is None) != (b is None):
            return float("inf")
        if a is not None and a.is_floating_point() and b.numel():
            worst = max(worst, float((a - b).abs().max() / b.abs().max().clamp_min(1e-12)))
    return worst


def compare(model, args, kwargs, train, dtype, draws):
    """How far outputs and gradients of the model with all groups joined are from its own."""
    model = copy.deepcopy(model).to(dtype)
    args, kwargs = moved((args, kwargs), next(model.parameters()).device, dtype)
    joined = CompileRouter.from_module(model, args, kwargs, WideConfig(tune_seconds=0)).compile()
    fixed = train and draws

    def run(one):
        if one is not joined or one is model or not fixed:
            return one(*args, **kwargs)
        call = call_of(args, kwargs)  # under a mode the model would run as it is
        return ran.program.run_call(call.tensors, args, kwargs)

    def results(one):
        with FixedDraws() if fixed else contextlib.nullcontext():
            torch.manual_seed(0)
            output = run(one)
        gradients = []
        if train:
            parameters = [p for p in one.parameters() if p.requires_grad]
            gradients = torch.autograd.grad(loss_of(output), parameters, allow_unused=True)
        return tensors_of(output), gradients

    ran = joined.settle(call_of(args, kwargs)) if joined is not model else None
    worst = (0.0, 0.0)
    for _ in range(3):  # the second and third call on changed weights
        (want, want_gradients), (got, gradients) = results(copy.deepcopy(model)), results(joined)
        errors = difference(got, want), difference(gradients, want_gradients)
        worst = max(worst[0], errors[0]), max(worst[1], errors[1])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.01)
    return worst


def measure(name, train, device, seconds):
    case, cuda = CASES[name], device == "cuda"
    torch.manual_seed(0)
    model, args, kwargs = case.make()
    model.to(device).train(train)
    args, kwargs = moved((args, kwargs), device)
    listed = case.listed(model)
    with torch.set_grad_enabled(train), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started, cpu = time.perf_counter(), time.process_time()
        compiler = CompileRouter.from_module(model, args, kwargs)
        planned, seconds_to_plan = compiler.compile(), time.perf_counter() - started
        cpu_to_plan = time.process_time() - cpu
        plan = compiler.plan
        dtype = torch.float64
        try:
            errors = compare(model, args, kwargs, train, dtype, case.draws)
        except RuntimeError:
            dtype = torch.float32
            errors = compare(model, args, kwargs, train, dtype, case.draws)
        parameters = list(model.parameters())

        def step(run):
            output = run(*args, **kwargs)
            if train:
                loss_of(output).backward()
                for parameter in parameters:
                    parameter.grad = None

        calls = {"model": lambda: step(model), "planned": lambda: step(planned)}
        for call in calls.values():
            call(), call()

        def clock():
            timer = now if cuda else cpu_time
            return interleaved(calls, seconds / 3, cuda, sample_seconds=SAMPLE_SECONDS, timer=timer)

        times, tries = best_medians(clock, lambda t: t["model"] / t["planned"] >= BAR)
    found = [frozenset(group.paths) for group in plan.groups]
    return {
        "case": name,
        "train": train,
        "listed": len(listed),
        "found": sum(any(paths <= other for other in found) for paths in listed),
        "more": sum(not any(paths <= other for paths in listed) for other in found),
        "missing": [sorted(paths) for paths in listed if not any(paths <= other for other in found)],
        "together": sum(group.how == "together" for group in plan.groups),
        "runs": "the plan" if planned is not model and not plan.why else "the model",
        "why": plan.why,
        "in_pieces": next((row.why for row in plan.declined if row.paths == ("",)), ""),
        "plan_s": seconds_to_plan,
        "plan_cpu_s": cpu_to_plan,
        "output_error": errors[0],
        "gradient_error": errors[1],
        "compared_in": str(dtype).removeprefix("torch."),
        "ms": {run: 1e3 * taken for run, taken in times.items()},
        "ratio": times["model"] / times["planned"],
        "ok": times["model"] / times["planned"] >= BAR,
        "tries": tries,
        "note": case.note,
        "load_average": os.getloadavg()[0],
    }


HEAD = ["model", "mode", "listed", "of these found", "others", "joined", "runs", "x model", "s to plan"]
HEAD += ["outputs", "gradients", "note"]
PAGE = """# Models with branches

`CompileRouter` on models that it was not written for: how many groups a person reading the code would list,
how many of these are found, how many others (norms and layers that happen to be alike), how many are joined
because that was measured to be faster, and what then runs. "x model" is the speed beside the model given, in
turns. "s to plan" is the time of one core until the plan was settled, measuring included. The last columns
are the largest differences, relative to the largest number, with all groups joined, in float64 unless it says
otherwise.
"""


def page():
    """docs/router_models.md, from the result files."""
    parts = [PAGE]
    for file in sorted((ROOT / "results").glob("router_models_*.json")):
        content = json.loads(file.read_text())
        parts.append(f"## {content['device']}\n")
        parts.append(f"torch {content['torch']}; {content['date']}; `{content['command']}`\n")
        if len(content["rows"]) < 2 * len(CASES):
            parts.append("Not all rows have been measured.\n")
        cores = content.get("cores", os.cpu_count())
        loads = [row.get("load_average", content.get("load_average", 0.0)) / cores for row in content["rows"]]
        if max(loads) > 1:
            work = f"{min(loads):.1f} to {max(loads):.1f} times as much work as cores"
            parts.append(f"The machine had {work} meanwhile, which makes ratios uncertain.\n")
        lines = [HEAD, ["---"] * len(HEAD)]
        for row in content["rows"]:
            kind = "" if row["compared_in"] == "float64" else f" ({row['compared_in']})"
            gradients = f"{row['gradient_error']:.0e}{kind}" if row["train"] else ""
            cells = [
                row["case"],
                "train" if row["train"] else "eval",
                row["listed"],
                row["found"],
                row["more"],
            ]
            cells += [row["together"], row["runs"], f"{row['ratio']:.2f}", f"{row['plan_cpu_s']:.1f}"]
            lines.append([*map(str, cells), f"{row['output_error']:.0e}{kind}", gradients, row["note"]])
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n")
    (ROOT.parent / "docs/router_models.md").write_text("\n".join(parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", nargs="*", default=[""], help="cases whose name begins so")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each row")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    path = ROOT / f"results/router_models_{options.device}.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = {(row["case"], row["train"]): row for row in known}
    order = [(name, train) for name in CASES for train in (False, True)]
    for name, train in [] if options.page else order:
        if not name.startswith(tuple(options.only)):
            continue
        row = rows[name, train] = measure(name, train, options.device, options.seconds)
        mode = "train" if train else "eval"
        print(
            f"{name:18s} {mode:5s} listed {row['listed']:2d} found {row['found']:2d} "
            f"others {row['more']:2d} joined {row['together']:2d} runs {row['runs']:9s} "
            f"x{row['ratio']:5.2f} plan {row['plan_cpu_s']:5.1f} s, errors {row['output_error']:.0e} "
            f"{row['gradient_error']:.0e} {row['compared_in']} load {row['load_average']:.1f} "
            f"{row['why'] or row['in_pieces'][:80]}",
            flush=True,
        )
        command = (
            f"python benchmarks/router_models.py --device {options.device} --seconds {options.seconds:g}"
        )
        head = {**provenance(torch.device(options.device), command), "cores": os.cpu_count()}
        ordered = [rows[key] for key in order if key in rows]
        path.write_text(json.dumps({**head, "rows": ordered}, indent=1) + "\n")
    page()


if __name__ == "__main__":
    with nothing_remembered():
        main()
