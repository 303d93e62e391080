"""`wide_compiler info`: what is installed, what it runs on, and what it knows."""

import os
import platform
from collections.abc import Iterator

import torch
from rich.console import Console
from rich.table import Table

import wide_compiler
from wide_compiler import REGISTRY, WideConfig
from wide_compiler.primitives import PRIMITIVES, WideModule
from wide_compiler.registry import strategies_of
from wide_compiler.widen import RULES

PRESETS = ("default", "fast", "safe", "debug")


def run(console: Console) -> None:
    """Print versions, devices, presets and primitives."""
    console.print(_facts())
    console.print()
    console.print(_presets())
    console.print()
    console.print(_primitives())


def _facts() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("wide_compiler", wide_compiler.__version__)
    grid.add_row("torch", torch.__version__)
    grid.add_row("python", platform.python_version())
    for device in _devices():
        grid.add_row("device", device)
    grid.add_row("rules", f"{len(RULES)} ops by name, and every elementwise op of PyTorch")
    return grid


def _devices() -> Iterator[str]:
    threads = torch.get_num_threads()
    yield f"cpu: {os.cpu_count()} cores, PyTorch uses {threads} thread{'s' * (threads != 1)}"
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield f"cuda:{index}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    if torch.backends.mps.is_available():
        yield "mps"


def _presets() -> Table:
    table = Table(title="Presets of WideConfig: what they change", title_justify="left")
    table.add_column("preset", no_wrap=True)
    table.add_column("options", overflow="fold")
    plain = vars(WideConfig.default())
    for name in PRESETS:
        options = vars(WideConfig.preset(name))
        changes = [f"{key}={value}" for key, value in options.items() if value != plain[key]]
        table.add_row(name, ", ".join(changes) or "nothing")
    return table


def _primitives() -> Table:
    listing = REGISTRY.listing()
    table = Table(title=f"{len(PRIMITIVES)} primitives and what they run", title_justify="left")
    for column in ("primitive", "members", "strategies"):
        table.add_column(column, overflow="fold")
    for primitive in PRIMITIVES:
        table.add_row(primitive.__name__, ", ".join(_members(primitive)), ", ".join(primitive.STRATEGIES))
    for name, wide in listing.items():
        if wide not in PRIMITIVES:  # registered by the user
            table.add_row(getattr(wide, "__name__", str(wide)), name, ", ".join(strategies_of(wide)))
    return table


def _members(primitive: type[WideModule]) -> list[str]:
    kinds = primitive.MEMBER if isinstance(primitive.MEMBER, tuple) else (primitive.MEMBER,)
    return [kind.__name__ for kind in kinds]
