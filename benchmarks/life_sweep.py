"""A whole life of many architectures of timm and Hugging Face, wide against the loop (see `oracle.life`).

    python benchmarks/life_sweep.py                               # all of them
    python benchmarks/life_sweep.py --only timm:levit hf:rwkv     # those whose name contains one of these
    python benchmarks/life_sweep.py --out benchmarks/results/life.json --page benchmarks/results/life.md

Random weights in double precision, small configurations, dropout off, 3 lanes with inputs of their own; each
model in a process of its own. Models that a library does not offer, or that fail alone, are listed as skipped
with the reason.
"""

import argparse
import json
import multiprocessing
import sys
import time
import warnings
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from life_models import HUGGING_FACE, TIMM, make_hugging_face, make_timm
from torch import nn

import wide_compiler
from wide_compiler import oracle
from wide_compiler.benchmark.document import provenance

LANES = 3
BATCHES = (4, 4, 3)  # two pictures make a norm over them ill-conditioned
SINGLE_INSIDE = {"timm:test_efficientnet_evos": 1e-4}  # models that take variances in single precision
RTOL = 1e-7  # deep nets with norms over three pictures magnify the last digits


def make(name: str) -> tuple[list[nn.Module], list[Any]]:
    """N models with their own weights, and batches of inputs."""
    torch.manual_seed(sum(map(ord, name)))
    library, _, model = name.partition(":")
    maker, inputs = (make_timm if library == "timm" else make_hugging_face)(model)
    models = [spread(without_dropout(maker())).double() for _ in range(LANES)]
    for each in models:
        each.eval()
    batches = [oracle.in_dtype([((), inputs(size)) for _ in models], torch.float64) for size in BATCHES]
    return models, batches


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


def fails_alone(model: nn.Module, arguments: dict[str, Any]) -> str:
    """Why a member cannot live this life by itself, '' if it can."""
    member = oracle.clone_members([model])[0]
    try:
        for training in (False, True):
            member.train(training)
            oracle.backward_mean([member(**arguments)])
    except Exception as error:
        return first_line(error)
    return ""


def lived(name: str) -> dict[str, Any]:
    """The row of one model."""
    start = time.perf_counter()
    row: dict[str, Any] = {"model": name, "verdict": "equal", "phase": "", "what": "", "phases": []}
    try:
        models, batches = make(name)
        why = fails_alone(models[0], batches[0][0][1])
    except Exception as error:
        why = first_line(error)
    if why:
        return row | {"verdict": "skipped", "what": why, "seconds": round(time.perf_counter() - start, 1)}
    rtol = SINGLE_INSIDE.get(name, RTOL)
    row["parameters"] = sum(p.numel() for p in models[0].parameters())

    def note(phase: oracle.Phase) -> None:
        worst = phase.report.worst
        row["phases"].append(
            {"phase": phase.name, "worst": worst, "coverage": phase.coverage, "loop": phase.why}
        )
        if phase.difference is not None and row["verdict"] == "equal":
            row.update(verdict="differs", phase=phase.name, what=str(phase.difference))

    try:
        config = wide_compiler.WideConfig(tune_seconds=0)  # the lane graph, whatever would be faster
        wide = wide_compiler.compile(models, (), sample_kwargs=batches[0][0][1], config=config)
        oracle.life(models, wide, batches, learning_rate=0.01, rtol=rtol, check=False, on_phase=note)
    except Exception as error:
        notes = getattr(error, "__notes__", ["phase 'compile'"])
        if row["verdict"] == "equal":
            row.update(verdict="raises", phase=notes[-1].split("'")[1], what=first_line(error))
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:240]}" if lines else type(error).__name__


def _child(name: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    pipe.send(lived(name))


def in_process(name: str, limit: float) -> dict[str, Any]:
    """A process for each model: one that hangs or dies is one row, not the end of the sweep."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=_child, args=(name, theirs))
    process.start()
    theirs.close()
    row: dict[str, Any] = {"model": name, "verdict": "too slow", "what": f"over {limit:.0f} s", "phases": []}
    if mine.poll(limit):
        try:
            row = mine.recv()
        except EOFError:
            row |= {"verdict": "raises", "phase": "", "what": "its process died"}
    process.kill()
    process.join()
    return row


def how(row: dict[str, Any]) -> str:
    """How the calls ran: as the lane graph with its coverage, or as a loop and why."""
    looped = [p for p in row["phases"] if p["loop"]]
    if looped:
        share = (
            "" if len(looped) == len(row["phases"]) else f" in {len(looped)} of {len(row['phases'])} phases"
        )
        return f"loop{share}: {looped[0]['loop'][:100]}"
    return f"wide, {min(p['coverage'] for p in row['phases']):.0%} by own rules" if row["phases"] else ""


def page(rows: list[dict[str, Any]], head: dict[str, Any]) -> str:
    counts = Counter(row["verdict"] for row in rows)
    lines = [
        "# A life of many architectures",
        "",
        f"{len(rows)} architectures of timm and Hugging Face with random weights, {LANES} lanes: "
        + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        + ". Compared in every phase: outputs, gradients, parameters, buffers, `lane(i)`; "
        f"float64 within {RTOL:g} ({', '.join(SINGLE_INSIDE)}: 1e-4, single precision inside).",
        "",
        "```",
        head["command"],
        f"torch {head['torch']}, {head['device']}, {head['date']}",
        "```",
        "",
        "| model | verdict | first wrong phase | what | how it ran | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = [row["model"], row["verdict"], row.get("phase", ""), row["what"], how(row)]
        cells = [cell.replace("|", "\\|") for cell in cells]
        lines.append("| " + " | ".join([*cells, str(row.get("seconds", ""))]) + " |")
    return "\n".join(lines) + "\n"


def write(rows: list[dict[str, Any]], head: dict[str, Any], options: argparse.Namespace) -> None:
    """After each model: a sweep that is stopped leaves what it has found."""
    rows = sorted(rows, key=lambda row: row["model"])
    if options.out:
        options.out.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
    if options.page:
        options.page.write_text(page(rows, head))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="models with one of these in their name")
    parser.add_argument("--limit", type=float, default=240, help="seconds a model may take")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    parser.add_argument("--page", type=Path, help="write a table in Markdown")
    parser.add_argument("--keep", action="store_true", help="keep the rows that --out has already")
    options = parser.parse_args()
    names = [f"timm:{name}" for name in TIMM] + [f"hf:{name}" for name in HUGGING_FACE]
    chosen = [n for n in names if not options.only or any(part in n for part in options.only)]
    rows: list[dict[str, Any]] = []
    if options.keep and options.out.exists():
        rows = json.loads(options.out.read_text())["rows"]
        chosen = [name for name in chosen if name not in {row["model"] for row in rows}]
    head = provenance(torch.device("cpu"))
    for name in chosen:
        row = in_process(name, options.limit)
        rows.append(row)
        print(
            f"{name}: {row['verdict']} {row.get('phase', '')} {row['what']} [{how(row)}] "
            f"{row.get('seconds', '')} s",
            flush=True,
        )
        write(rows, head, options)
    write(rows, head, options)
    print(Counter(row["verdict"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
