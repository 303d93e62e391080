"""`wide_compiler benchmark`: measure with a progress bar; print, save and plot the results."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from .. import benchmark
from ..benchmark import plot as plots
from ..benchmark import tables
from ..benchmark.runner import trainable
from ..measure.progress import progress_bar
from .output_files import make_folder

INTERRUPTED = 130


@dataclass(frozen=True)
class Files:
    """Output files of a run."""

    name: str
    save: bool = False
    output: Path | None = None
    plot: Path | None = None

    def check(self) -> None:
        """Create the folders and check that matplotlib is installed, before anything is measured."""
        for path, option in ((self.output, "--output"), (self.plot, "--plot")):
            if path is not None:
                make_folder(path, option)
        if self.plot is not None:
            try:
                plots.require_matplotlib()
            except ImportError as error:
                raise typer.BadParameter(str(error), param_hint="--plot") from None

    def write(self, console: Console, rows: Sequence[Any], content: dict[str, Any]) -> None:
        written = [self.output] if self.output is not None else []
        written += [benchmark.timestamped(self.name)] if self.save else []
        for path in written:
            benchmark.write(path, content)
            console.print(f"results: [bold]{path}[/]", soft_wrap=True)
        if self.plot is not None:
            plots.draw(rows, self.plot, f"{content['device']}, torch {content['torch']}")
            console.print(f"picture: [bold]{self.plot}[/]", soft_wrap=True)


def listing(console: Console) -> None:
    """Print what can be measured, one line each."""
    for title, workloads in (("Primitives", benchmark.PRIMITIVE_CASES), ("Models", benchmark.MODELS)):
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for workload in workloads.values():
            table.add_row(workload.name, workload.about)
        console.print(table)
    for preset in benchmark.PRESETS.values():
        console.print(f"-p {preset.name}: {preset.about}")
    console.print("Measure one with: wide_compiler benchmark NAME; all primitives with: benchmark all")


def known(name: str, train: bool) -> list[benchmark.Workload]:
    """Return the workloads of a name; raises a usage error that lists the choices if there are none."""
    try:
        workloads = benchmark.find(name)
    except KeyError:
        choices = ", ".join(benchmark.choices())
        raise typer.BadParameter(
            f"unknown name {name!r}; choose one of {choices}", param_hint="NAME"
        ) from None
    if train and not any(trainable(workload) for workload in workloads):
        raise typer.BadParameter(f"{name} has no parameters to train", param_hint="--train")
    return workloads


def known_device(name: str | None) -> torch.device:
    """Return the device of this name, by default the GPU if any; raises a usage error if unavailable."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise typer.BadParameter(f"no device {name!r}: {first}", param_hint="--device") from None
    return device


def run(
    console: Console,
    workloads: Sequence[benchmark.Workload],
    options: benchmark.Options,
    files: Files,
    top: int | None,
    quiet: bool,
) -> int:
    """Measure and report; return the exit code."""
    files.check()
    points = benchmark.plan(workloads, options)
    rows: list[benchmark.BenchmarkRow] = []
    complete = True
    try:
        measure(console, points, options, rows, quiet)
    except KeyboardInterrupt:
        complete = False
        console.print(f"[yellow]Stopped; {len(rows)} rows had been measured.[/]")
    if rows:
        show(console, rows, benchmark.device_name(options.device), top)
        command = shlex.join(["wide_compiler", *sys.argv[1:]])
        content = benchmark.document(rows, options.device, command, options.preset.name, complete)
        files.write(console, rows, content)
    if not complete:
        return INTERRUPTED
    return int(any(row.wrong for row in rows) or _nothing_ran(rows))


def _nothing_ran(rows: Sequence[benchmark.BenchmarkRow]) -> bool:
    """Return whether a point has no strategy that ran; single strategies may need another device."""
    points = {(row.kind, row.name, row.n) for row in rows}
    return points != {(row.kind, row.name, row.n) for row in rows if row.ran}


def measure(
    console: Console,
    points: Sequence[benchmark.Point],
    options: benchmark.Options,
    rows: list[benchmark.BenchmarkRow],
    quiet: bool,
) -> None:
    """Measure the points and append their rows to `rows`."""
    progress = progress_bar(console, transient=True)
    with nullcontext() if quiet else progress:
        task = progress.add_task("", total=len(points))
        for point in points:
            rows.extend(benchmark.run([point], options, lambda what: progress.update(task, description=what)))
            progress.advance(task)


def show(console: Console, rows: Sequence[benchmark.BenchmarkRow], device: str, top: int | None) -> None:
    console.print(tables.table(tables.best_first(rows, top), device))
    if (peers := tables.peer_table(rows)) is not None:
        console.print(peers)
    for line in tables.crossovers(rows):
        console.print(line, highlight=False)
    for note in tables.notes(rows):
        console.print(note, soft_wrap=True)
