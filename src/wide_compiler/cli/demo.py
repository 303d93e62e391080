"""`wide_compiler demo`: train an ensemble at once and one network after another; draw the result."""

from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from ..errors import MissingExtraError, needs
from ..measure.progress import progress_bar
from .demo_train import (
    RANGE,
    Data,
    LoopRun,
    WideRun,
    largest_difference,
    make_data,
    make_nets,
    train_loop,
    train_wide,
    warm_up,
)

LOOP_BUDGET = 35.0  # seconds; a slow machine trains fewer networks in the loop, and the table reports it


def run(console: Console, lanes: int, steps: int, out: Path, seed: int, threads: int) -> None:
    """Train both ways, print the table, write the picture."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        _run(console, lanes, steps, out, seed)
    finally:
        torch.set_num_threads(threads_before)


def _run(console: Console, lanes: int, steps: int, out: Path, seed: int) -> None:
    data, nets = make_data(lanes, seed), make_nets(lanes, seed)
    numbers = sum(p.numel() for p in nets[0].parameters())
    console.print(
        f"[bold]{lanes} networks[/] of {numbers:,} parameters learn a curve from {len(data.x)} noisy points "
        f"with a gap in the middle, {steps} steps of Adam each. Losses: best / median / worst network."
    )
    warm_up(nets, data)
    with progress_bar(console, news=True) as progress:
        wide = train_wide(nets, data, steps, _told(progress, "all at once", steps))
        loop = train_loop(nets, data, steps, LOOP_BUDGET, _told(progress, "one after another", len(nets)))
    grid = torch.linspace(RANGE[0] - 0.3, RANGE[1] + 0.3, 241, dtype=torch.float64).unsqueeze(-1)
    console.print(_table(wide, loop, lanes, steps, largest_difference(wide.model, loop.nets, grid)))
    _draw(console, wide, loop, data, grid, out)


def _told(progress: Progress, name: str, total: int) -> Callable[[int, Tensor], None]:
    """Return a function that shows progress: steps done, and the best, median and worst loss, or the one."""
    task = progress.add_task(name, total=total, news="")

    def tell(done: int, losses: Tensor) -> None:
        shown = [losses.min(), losses.median(), losses.max()] if losses.dim() else [losses]
        news = " [dim]/[/] ".join(f"{float(x):.2f}" for x in shown)
        progress.update(task, completed=done, news=f"[dim]loss[/] {news}")

    return tell


def _table(wide: WideRun, loop: LoopRun, lanes: int, steps: int, difference: float) -> Table:
    measured = len(loop.nets) == lanes
    loop_seconds = loop.seconds_for(lanes)
    note = "" if measured else f"  (extrapolated: {len(loop.nets)} of {lanes} took {loop.seconds:.1f} s)"
    threads = torch.get_num_threads()
    title = f"{lanes} networks, {steps} steps, float64, {threads} thread{'s' * (threads != 1)}"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("all at once", f"{wide.seconds:.2f} s  (of it {wide.compile_seconds:.2f} s to compile)")
    table.add_row("one after another", f"{loop_seconds:.2f} s{note}")
    table.add_row("ratio", f"[bold green]{loop_seconds / wide.seconds:.1f}x[/]")
    compared = "all networks" if measured else f"the {len(loop.nets)} networks trained both ways"
    table.add_row("largest difference", f"{difference:.1e} of the largest prediction, over {compared}")
    return table


def _draw(console: Console, wide: WideRun, loop: LoopRun, data: Data, grid: Tensor, out: Path) -> None:
    try:
        needs("matplotlib", "plots")
    except MissingExtraError as missing:
        console.print(f"No picture, because {missing}", markup=False)
        return
    from .demo_picture import Story, draw

    lanes = wide.model.n
    with torch.no_grad():
        predictions = wide.model.shared(grid)
    measured = len(loop.nets) == lanes
    draw(
        Story(data, grid, predictions, wide.losses, wide.seconds, loop.seconds_for(lanes), measured),
        out,
    )
    console.print(f"picture: [bold]{out}[/]", soft_wrap=True)
