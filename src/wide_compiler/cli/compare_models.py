"""`wide_compiler test`: compare the built-in models with the loop."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

import wide_compiler
from wide_compiler import oracle

from ..measure.progress import progress_bar
from .models import MODELS
from .output_files import print_json

# In float64 only the order of sums differs, which changes the last few of 16 digits.
TOLERANCE = 1e-9
BATCH = 3
COMPARED = ("output", "gradient", "buffer")


@dataclass
class ModelVerdict:
    """One model in one mode: the largest error of each kind of tensor, or the failure."""

    model: str
    mode: str
    lanes: int
    coverage: float = 0.0
    nodes: int = 0
    worst: dict[str, float | None] | None = None  # None for a kind that the model does not have
    failure: str = ""
    looped: str = ""  # why the whole model runs as a loop: correct, but not faster

    @property
    def ok(self) -> bool:
        return self.worst is not None and all(w is None or w <= TOLERANCE for w in self.worst.values())


def check_model(name: str, lanes: int, train: bool) -> ModelVerdict:
    """Compare outputs, gradients and buffers of one built-in model with the loop, in float64."""
    verdict = ModelVerdict(name, "train" if train else "eval", lanes)
    torch.manual_seed(0)
    models = [MODELS[name].make().double().train(train) for _ in range(lanes)]
    samples = [MODELS[name].sample(BATCH) for _ in range(lanes)]
    inputs = [x.double() if x.is_floating_point() else x for x in samples]
    try:
        wide = wide_compiler.compile(models, inputs[0])
        report = oracle.compare(models, wide, [((x,), {}) for x in inputs], gradients=True)
        explanation = wide.explain(measure=False)
    except Exception as error:  # a failure of one model must not stop the others
        verdict.failure = f"{type(error).__name__}: {error}"
        return verdict
    verdict.coverage, verdict.nodes = explanation.coverage, len(explanation.rows)
    verdict.looped = explanation.why
    verdict.worst = {what: _worst(report, what) for what in COMPARED}
    return verdict


def _worst(report: oracle.Report, what: str) -> float | None:
    """Return the largest error, relative to the tensor's largest value, absolute where that is below 1.

    A gradient that is zero up to rounding (of a bias before a norm) would fail any relative tolerance.
    """
    return max((d.error / max(d.scale, 1.0) for d in report.differences if d.what == what), default=None)


def run(console: Console, names: Sequence[str], lanes: int, as_json: bool = False) -> bool:
    """Check every named model in eval and training mode; print a table or JSON; return whether all agree."""
    verdicts = []
    with progress_bar(console, transient=True) as progress:
        task = progress.add_task("", total=2 * len(names))
        for name in names:
            for train in (False, True):
                progress.update(task, description=f"{name} ({'train' if train else 'eval'})")
                verdicts.append(check_model(name, lanes, train))
                progress.advance(task)
    failed = sum(not v.ok for v in verdicts)
    if as_json:
        runs = [{**asdict(v), "ok": v.ok} for v in verdicts]
        print_json({"ok": not failed, "tolerance": TOLERANCE, "runs": runs})
        return not failed
    console.print(_table(verdicts))
    for verdict in verdicts:
        if verdict.failure:
            _note(console, verdict, "red", verdict.failure)
        elif verdict.looped:
            _note(console, verdict, "yellow", f"runs as a loop over lanes, because {verdict.looped}")
    if failed:
        console.print(f"[bold red]{failed} of {len(verdicts)} runs differ from the loop.[/]")
    else:
        console.print(f"[green]All {len(verdicts)} runs agree with the loop within {TOLERANCE:g}.[/]")
    return not failed


def _note(console: Console, verdict: ModelVerdict, colour: str, text: str) -> None:
    console.print(Text(f"{verdict.model} ({verdict.mode}): ", colour) + Text(text))


def _table(verdicts: Sequence[ModelVerdict]) -> Table:
    table = Table(
        title="Wide against the loop, float64: worst difference in any lane",
        title_justify="left",
        caption="relative, or absolute where a tensor holds no number above 1",
        caption_justify="left",
    )
    for column in ("model", "mode"):
        table.add_column(column, no_wrap=True)
    for column in ("lanes", "own rules", "outputs", "gradients", "buffers"):
        table.add_column(column, justify="right")
    table.add_column("")
    for v in verdicts:
        worst = v.worst or {}
        numbers = ["–" if worst.get(what) is None else f"{worst[what]:.1e}" for what in COMPARED]
        own = f"{round(v.coverage * v.nodes)}/{v.nodes}" if v.worst else "–"
        verdict = "[green]ok[/]" if v.ok else "[bold red]FAIL[/]"
        table.add_row(v.model, v.mode, str(v.lanes), own, *numbers, verdict)
    return table
