"""Architectures of timm, torchvision, Hugging Face and the tests' zoo as lanes, against the loop and vmap.

    python benchmarks/sweep.py                              # all that the results file does not have yet
    python benchmarks/sweep.py --only timm:levit hf:rwkv    # those whose name contains one of these
    python benchmarks/sweep.py --again short                # rows that fall short, once more
    python benchmarks/sweep.py --quick                      # the first phases of the life, and no times
    python benchmarks/sweep.py --jobs 8 --seconds 420 --out new.json  # many at once, for so long, elsewhere
    python benchmarks/sweep.py --merge new.json             # those rows into the results file
    python benchmarks/sweep_page.py                         # docs/sweep.md from the results file

Random weights, small configurations, dropout off, each lane with inputs of its own; each model in a process
of its own with a limit on its CPU time. A row has:

- life: equal to the members, each alone, over a life in double precision (`oracle.life`: eval, training
  steps, lanes, save and load, deepcopy, changed weights, freezing, other batches);
- fused: '' if the whole lane graph runs by rules of the library in eval and in training, else why not;
- compile: CPU seconds of `compile` in eval, and what the first training step takes longer than the next one,
  with N lanes (3, or 2 of models with more than a million parameters) and with 2N;
- times: how many times faster one call or training step of 2N lanes in single precision is than the loop and
  than vmap, in CPU time of one thread, in turns. The lane graph itself is timed, not what tuning chooses;
- vmap: whether `torch.func.vmap` gives the loop's numbers.

Models that a library does not offer, or that fail alone, are skipped with the reason.
"""

import argparse
import copy
import json
import math
import multiprocessing
import resource
import statistics
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from sweep_models import CASES, installed, make, names
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

import wide_compiler
from wide_compiler import oracle
from wide_compiler.benchmark.document import provenance
from wide_compiler.oracle.pair import compare_outputs

RESULTS = Path(__file__).parent / "results" / "sweep_cpu.json"
LANES = 3
# Models with more parameters than LARGE have 2 lanes; those above MEDIUM live these phases of the life.
LARGE, MEDIUM = 1_000_000, 50_000
SHORT_LIFE = {"eval", "train", "train again", "eval after training", "lane(i)", "saved and loaded"}
QUICK_LIFE = {"eval", "train", "train again", "eval after training"}
BATCHES = (4, 4, 3)  # two pictures make a norm over them ill-conditioned
# Models that compute a part (variances, scores of experts) in single precision, or turn a parameter to it.
SINGLE_INSIDE = {
    "timm:test_efficientnet_evos": 1e-4,
    "timm:efficientvit_b0": 1e-4,
    "hf:deepseek_v3": 1e-4,
    "timm:deepseek_vit_412m": 1e-4,
}
SINGLE_ONLY = {"hf:switch_transformers", "hf:xglm", "torchvision:raft_small"}
RTOL = 1e-7  # or ten times `rounding`
LEARNING_RATE = 0.01
ROUNDS, TURN_SECONDS = 3, 0.03
FEW_CALLS = 8
COMPILE_BAR, GROWTH_BAR = 10.0, 1.5  # CPU seconds; times as long with twice the lanes
RUN = ("device", "wide_compiler", "torch", "python", "date")  # what a row keeps of the run that made it
Row = dict[str, Any]
Lanes = list[tuple[tuple, dict[str, Any]]]


def members(name: str, lanes: int, dtype: torch.dtype) -> tuple[list[nn.Module], list[Lanes]]:
    """N models with their own weights in eval mode, and batches of inputs."""
    torch.manual_seed(sum(map(ord, name)))
    maker, inputs = make(name)
    models = [spread(without_dropout(maker())).to(dtype) for _ in range(lanes)]
    for each in models:
        each.eval()
    sizes = BATCHES if "no_batch" not in tags(name) else (BATCHES[0],) * 3
    return models, [oracle.in_dtype([inputs(size) for _ in models], dtype) for size in sizes]


def lanes_of(name: str) -> int:
    return 2 if size_of(make(name)[0]()) > LARGE else LANES


def size_of(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def tags(name: str) -> frozenset[str]:
    """What the zoo says of an architecture: 'random' draws in training, 'float32_only', 'no_batch'."""
    library, _, model = name.partition(":")
    if library == "zoo":
        return CASES[model].tags
    return frozenset({"float32_only"} if name in SINGLE_ONLY else ())


def without_dropout(model: nn.Module) -> nn.Module:
    """Random draws cannot be compared: every rate that is an attribute of a module becomes 0."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in name or name == "p"):
                setattr(module, name, 0.0)
    return model


def spread(model: nn.Module) -> nn.Module:
    """Away from what initialisers give: branches that begin at zero would hide what goes wrong in them."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def fails_alone(model: nn.Module, arguments: tuple[tuple, dict[str, Any]], modes: tuple[bool, ...]) -> str:
    """Why a member cannot live this life by itself, '' if it can."""
    member = oracle.clone_members([model])[0]
    try:
        for training in modes:
            args, kwargs = copy.deepcopy(arguments)
            member.train(training)
            oracle.backward_mean([member(*args, **kwargs)])
    except Exception as error:
        return first_line(error)
    return ""


def swept(name: str, quick: bool) -> Row:
    """The row of one model."""
    row: Row = {"model": name, "verdict": "equal", "what": "", "life": [], "fused": {}, "compile": {}}
    single, random = "float32_only" in tags(name), "random" in tags(name)
    try:
        lanes = lanes_of(name)
        models, batches = members(name, lanes, torch.float32 if single else torch.float64)
        why = fails_alone(models[0], batches[0][0], (False,) if random or single else (False, True))
    except Exception as error:
        why = first_line(error)
    if why:
        return row | {"verdict": "skipped", "what": why}
    row |= {"parameters": size_of(models[0]), "lanes": lanes, "quick": quick}
    row["vmap"] = {
        mode: vmap_verdict(models, batches[0], mode == "train")
        for mode in ("eval", "train")
        if not quick and (mode == "eval" or not (random or single))
    }
    try:
        if random or single:  # nothing but a call in eval can be compared
            one_call(row, models, batches)
        else:
            live(row, models, batches, SINGLE_INSIDE.get(name, RTOL))
    except Exception as error:
        notes = getattr(error, "__notes__", ["phase 'compile'"])
        if row["verdict"] == "equal":
            row.update(verdict="raises", phase=notes[-1].split("'")[1], what=first_line(error))
    del models, batches
    try:
        row["times"] = {} if random or quick else measured(name, row)
    except Exception as error:
        row["times"] = {"not measured": first_line(error)}
    return row


def compiled(models: list[nn.Module], batch: Lanes, row: Row, lanes: str) -> wide_compiler.WideModel:
    config = wide_compiler.WideConfig(tune_seconds=0)  # the lane graph, whatever would be faster
    args, kwargs = copy.deepcopy(batch[0])
    start = time.process_time()
    wide = wide_compiler.compile(models, args, sample_kwargs=kwargs, config=config)
    row["compile"][f"eval {lanes}"] = round(time.process_time() - start, 2)
    return wide


def live(row: Row, models: list[nn.Module], batches: list[Lanes], rtol: float) -> None:
    """Fill in how the model compiles, and whether each phase of its life is equal."""
    wide = compiled(models, batches[0], row, "N")
    clock = time.process_time()

    def note(phase: oracle.Phase) -> None:
        nonlocal clock
        seconds, clock = time.process_time() - clock, time.process_time()
        row["life"].append({"phase": phase.name, "worst": phase.report.worst, "seconds": round(seconds, 2)})
        if phase.difference is not None and "rounding" not in row:
            each = ((model, [batch[lane] for batch in batches]) for lane, model in enumerate(models))
            row["rounding"] = max(rounding(model, inputs) for model, inputs in each)
        within = phase.report.worst <= 10 * row.get("rounding", 0.0)
        if phase.difference is not None and not within and row["verdict"] == "equal":
            row.update(verdict="differs", phase=phase.name, what=str(phase.difference))
        if phase.name in ("eval", "train"):
            row["fused"][phase.name] = fused(wide)

    only = QUICK_LIFE if row["quick"] else SHORT_LIFE if row["parameters"] > MEDIUM else None
    oracle.life(
        models, wide, batches, learning_rate=LEARNING_RATE, rtol=rtol, check=False, on_phase=note, only=only
    )
    first, second = (p["seconds"] for p in row["life"] if p["phase"] in ("train", "train again"))
    row["compile"]["train N"] = round(max(first - second, 0.0), 2)
    for mode in [mode for mode, why in row["fused"].items() if why]:
        row["fused"][mode] = in_the_long_run(wide, batches[0], mode)


def rounding(model: nn.Module, inputs: Lanes) -> float:
    """How far a member alone moves, relatively, in a few training steps and in evaluation after them, if its
    weights are off by their last digit: deep nets with norms over few numbers magnify that, and no two ways
    of computing agree better."""
    seen = []
    for last_digit in (0.0, torch.finfo(torch.float64).eps):
        member = oracle.clone_members([model])[0]
        member.train()
        with torch.no_grad():
            for parameter in member.parameters():
                parameter.mul_(1 + last_digit * torch.randn_like(parameter).sign())
        optimiser = torch.optim.SGD(member.parameters(), lr=LEARNING_RATE, momentum=0.9)
        for args, kwargs in copy.deepcopy(inputs):
            optimiser.zero_grad()
            output = member(*args, **kwargs)
            oracle.backward_mean([output])
            optimiser.step()
        with torch.no_grad():  # the life compares evaluation after training too
            evaluated = member.eval()(*args, **kwargs)
        gradients = {name: p.grad for name, p in member.named_parameters() if p.grad is not None}
        seen.append((output, evaluated, gradients))
    report = oracle.Report()
    for one, other in zip(seen[1][:2], seen[0][:2], strict=True):
        compare_outputs(report, 0, one, other)
    for name, gradient in seen[0][2].items():
        report.compare("gradient", name, 0, seen[1][2][name], gradient)
    oracle.report.raise_tiny_scales(report.differences)
    return report.worst


def in_the_long_run(wide: wide_compiler.WideModel, batch: Lanes, mode: str) -> str:
    """`fused` after a few more calls: members may have had to fill their caches first."""
    wide.train(mode == "train")
    for _ in range(FEW_CALLS):
        given = copy.deepcopy(batch)
        columns = map(list, zip(*(args for args, _ in given), strict=True))
        with torch.no_grad():
            wide.each(*columns, **{key: [kwargs[key] for _, kwargs in given] for key in given[0][1]})
        if not fused(wide):
            break
    return fused(wide)


def one_call(row: Row, models: list[nn.Module], batches: list[Lanes]) -> None:
    wide = compiled(models, batches[0], row, "N")
    report = oracle.compare(models, wide, batches[0])
    row["life"] = [{"phase": "eval", "worst": report.worst}]
    row["fused"]["eval"] = in_the_long_run(wide, batches[0], "eval")
    if report.worst > 1e-5:
        row.update(verdict="differs", phase="eval", what=f"relative error {report.worst:.2g}")


def fused(wide: wide_compiler.WideModel) -> str:
    """'' if every node of the last call ran by a rule of the library; else what did not, and why."""
    explanation = wide.explain(measure=False)
    if explanation.why:
        return f"loop: {explanation.why}"
    left = [r for r in explanation.rows if not r.wide]
    kinds = Counter(r.how for r in left)
    counts = ", ".join(f"{count} by {how}" for how, count in kinds.items())
    return f"{counts} of {len(explanation.rows)} nodes: {left[0].op}: {left[0].why}" if left else ""


# Times, in single precision with twice the lanes.


def measured(name: str, row: Row) -> dict[str, float]:
    models, batches = members(name, 2 * row["lanes"], torch.float32)
    batch = batches[0]
    wide = compiled(models, batch, row, "2N")
    flat = [tree_flatten(lane) for lane in batch]
    stacked = [
        torch.stack(leaves) if isinstance(leaves[0], Tensor) else leaves[0]
        for leaves in zip(*(leaves for leaves, _ in flat), strict=True)
    ]
    args, kwargs = tree_unflatten(stacked, flat[0][1])
    alone = oracle.clone_members(models)

    def loop() -> list[Any]:
        return [member(*a, **k) for member, (a, k) in zip(alone, batch, strict=True)]

    def lanes() -> Any:
        return wide.stacked(*args, **kwargs)

    times: dict[str, float] = {}
    for mode in ("eval", "train"):
        for each in (*alone, wide):
            each.train(mode == "train")
        runs: dict[str, Callable[[], Any]] = {"wide": lanes, "loop": loop}
        if row["vmap"].get(mode) == "equal":
            runs["vmap"] = Vmap(alone, batch)
        start = time.process_time()
        _call(lanes, mode)
        first = time.process_time() - start
        spent = in_turns(runs, mode)
        if mode == "train":
            row["compile"]["train 2N"] = round(max(first - spent["wide"], 0.0), 2)
        times |= {f"{mode}, {who}": round(spent[who] / spent["wide"], 2) for who in spent if who != "wide"}
    return times


def _call(run: Callable[[], Any], mode: str) -> None:
    with torch.set_grad_enabled(mode == "train"):
        out = run()
        if mode == "train":
            loss_of(out).backward()


def in_turns(runs: dict[str, Callable[[], Any]], mode: str) -> dict[str, float]:
    """Median CPU seconds of a call of each, taken in turns of about a tenth of a second or one call."""
    spent: dict[str, list[float]] = {who: [] for who in runs}
    calls = dict.fromkeys(runs, 1)
    for who, run in runs.items():
        _call(run, mode)
        while _seconds(run, mode, calls[who]) < TURN_SECONDS:
            calls[who] *= 2
    for _ in range(ROUNDS):
        for who, run in runs.items():
            spent[who].append(_seconds(run, mode, calls[who]) / calls[who])
    return {who: statistics.median(seconds) for who, seconds in spent.items()}


def _seconds(run: Callable[[], Any], mode: str, calls: int) -> float:
    """CPU seconds of so many calls: one of them may be shorter than a tick of that clock."""
    start = time.process_time()
    for _ in range(calls):
        _call(run, mode)
    return time.process_time() - start


def loss_of(outputs: Any) -> Tensor:
    learned = [t for t in tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]
    return sum(((torch.view_as_real(t) if t.is_complex() else t).sum() for t in learned), torch.zeros(()))


class Vmap:
    """The recipe for ensembles: stack_module_state, functional_call, vmap."""

    def __init__(self, models: list[nn.Module], batch: Lanes):
        self.parameters, self.buffers = stack_module_state(models)
        self.base = copy.deepcopy(models[0])
        flat = [tree_flatten(lane)[0] for lane in batch]
        self.plain, self.structure = flat[0], tree_flatten(batch[0])[1]
        self.varying = [i for i, leaf in enumerate(flat[0]) if isinstance(leaf, Tensor)]
        self.tensors = [torch.stack([leaves[i] for leaves in flat]) for i in self.varying]

    def __call__(self) -> Any:
        run = torch.vmap(self._one_lane, randomness="different")
        return run(self.parameters, self.buffers, self.tensors)

    def _one_lane(self, parameters: dict, buffers: dict, tensors: list[Tensor]) -> Any:
        given = dict(zip(self.varying, tensors, strict=True))
        leaves = [given.get(i, leaf) for i, leaf in enumerate(self.plain)]
        args, kwargs = tree_unflatten(leaves, self.structure)
        outputs = functional_call(self.base, {**parameters, **buffers}, args, kwargs)
        return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]


def vmap_verdict(models: list[nn.Module], batch: Lanes, training: bool) -> str:
    """'equal', 'differs', or the error: outputs, and in training gradients, against the members alone."""
    members, batch = oracle.clone_members(models), copy.deepcopy(batch)
    for member in members:
        member.train(training)
    try:
        vmap = Vmap(oracle.clone_members(members), copy.deepcopy(batch))
        with torch.set_grad_enabled(training):
            got = vmap()
            wanted = [
                [t for t in tree_leaves(m(*a, **k)) if isinstance(t, Tensor)]
                for m, (a, k) in zip(members, batch, strict=True)
            ]
            by_lane = [tree_map(lambda t, lane=lane: t[lane], got) for lane in range(len(members))]
            report = oracle.Report()
            for lane, want in enumerate(wanted):
                compare_outputs(report, lane, by_lane[lane], want)
            if training:
                oracle.backward_mean(wanted)
                oracle.backward_mean(by_lane)
                for lane, member in enumerate(members):
                    for path, parameter in member.named_parameters():
                        if parameter.grad is not None:
                            report.compare(
                                "gradient", path, lane, vmap.parameters[path].grad[lane], parameter.grad
                            )
    except Exception as error:
        return first_line(error)
    oracle.report.raise_tiny_scales(report.differences)
    tolerance = 1e-5 if any(d.dtype == torch.float32 for d in report.differences) else RTOL
    return "equal" if report.worst <= tolerance else "differs"


# The sweep


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:240]}" if lines else type(error).__name__


def _child(name: str, limit: int, quick: bool, pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    start = time.process_time()
    pipe.send(swept(name, quick) | {"seconds": round(time.process_time() - start, 1)})


def in_processes(
    models: list[str], limit: int, quick: bool, jobs: int = 1, seconds: float = math.inf
) -> Iterator[Row]:
    """Rows in the order they are ready, of `jobs` models at once; none is started after so many seconds.
    A process for each model: one that hangs or dies is one row, not the end of the sweep."""
    context = multiprocessing.get_context("fork")
    waiting, running = deque(models), {}
    begin = time.monotonic()
    while True:
        while waiting and len(running) < jobs and time.monotonic() - begin < seconds:
            name = waiting.popleft()
            mine, theirs = context.Pipe()
            process = context.Process(target=_child, args=(name, limit, quick, theirs))
            process.start()
            theirs.close()
            running[mine] = name, process, time.monotonic() + 20 * limit
        if not running:
            return
        ready = connection.wait(running, timeout=1.0)
        late = [pipe for pipe, (_, _, until) in running.items() if time.monotonic() > until]
        for pipe in {*ready, *late}:
            name, process, _ = running.pop(pipe)
            row = _received(pipe) if pipe in ready else None
            process.kill()
            process.join()
            yield row or {
                "model": name,
                "verdict": "dies",
                "what": f"its process ended, within {limit} s of CPU time or there",
                "life": [], "fused": {}, "compile": {}, "times": {}, "vmap": {},
            }  # fmt: skip


def _received(pipe: Connection) -> Row | None:
    try:
        return pipe.recv()
    except EOFError:  # the process died
        return None


def falls_short(row: Row) -> bool:
    """Is there something to mend in this row?"""
    seconds = row["compile"]
    slow = [seconds.get(f"{mode} N", 0.0) for mode in ("eval", "train")]
    grows = any(
        seconds.get(f"{mode} 2N", 0.0) > GROWTH_BAR * max(seconds.get(f"{mode} N", 0.0), 1.0)
        for mode in ("eval", "train")
    )
    return row["verdict"] != "equal" or any(row["fused"].values()) or max(slow) > COMPILE_BAR or grows


def warm_up() -> None:
    """Load what the first capture of a process loads: it is no model's own time."""
    wide_compiler.compile([nn.Linear(2, 2) for _ in range(2)], torch.ones(2, 2))


def read(path: Path) -> dict[str, Row]:
    """The rows of a results file by model, each with where and when it was made under 'run'."""
    if not path.exists():
        return {}
    document = json.loads(path.read_text())
    head = {key: document[key] for key in RUN}  # of rows written before each kept its own
    return {row["model"]: {**row, "run": row.get("run", head)} for row in document["rows"]}


def write(path: Path, rows: dict[str, Row], head: Row) -> None:
    """All at once: a reader, or a run that is ended here, finds the file as it was or as it will be."""
    ordered = [rows[name] for name in names() if name in rows]
    whole = path.with_name(f"{path.name}.new")
    whole.write_text(json.dumps({**head, "rows": ordered}, indent=1) + "\n")
    whole.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="models with one of these in their name")
    parser.add_argument("--again", choices=["short", "all"], help="run rows of the results file once more")
    parser.add_argument(
        "--quick", action="store_true", help="only what is equal and fused; a later run adds the rest"
    )
    parser.add_argument("--limit", type=int, default=240, help="seconds of CPU time that a model may take")
    parser.add_argument("--jobs", type=int, default=1, help="models at once, a thread each")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no model after so long")
    parser.add_argument(
        "--out", type=Path, default=RESULTS,
        help=f"the file for the rows; those that it or {RESULTS.name} has are not made again",
    )  # fmt: skip
    parser.add_argument("--merge", type=Path, metavar="FILE", help="run nothing: put FILE's rows into --out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    head = provenance(torch.device("cpu"), "python benchmarks/sweep.py")
    rows = read(options.out)
    if options.merge:
        write(options.out, rows | read(options.merge), head)
        return
    known = read(RESULTS) | rows
    again = {n for n, row in known.items() if options.again == "all" or (options.again and falls_short(row))}
    if not options.quick:
        again |= {name for name, row in known.items() if row.get("quick")}
    chosen = [n for n in names() if not options.only or any(part in n for part in options.only)]
    chosen = [n for n in chosen if installed(n) and (n not in known or n in again)]
    warm_up()
    run = {key: head[key] for key in RUN}
    for row in in_processes(chosen, options.limit, options.quick, options.jobs, options.seconds):
        rows[row["model"]] = {**row, "run": run}
        print(
            row["model"], row["verdict"], row.get("phase", ""), row["what"], row["fused"], row["compile"],
            row.get("times"), row.get("vmap"), row.get("seconds"), flush=True,
        )  # fmt: skip
        write(options.out, rows, head)
    left = sum(name not in rows for name in chosen)
    print(Counter(row["verdict"] for row in rows.values()), f"{left} not started" if left else "")


if __name__ == "__main__":
    sys.exit(main())
