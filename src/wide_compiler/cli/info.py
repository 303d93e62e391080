"""`wide_compiler info`: versions, devices, cache, workers, settings, presets and primitives."""

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import wide_compiler
from wide_compiler import REGISTRY, WideConfig
from wide_compiler.config import SETTINGS, variable
from wide_compiler.measure.store import Store
from wide_compiler.observe.attach import running
from wide_compiler.primitives import PRIMITIVES, WideModule
from wide_compiler.registry import strategies_of
from wide_compiler.widen import RULES

from .output_files import print_json

PRESETS = ("default", "fast", "safe", "debug")
# Packages that the extras install, or that matter in a bug report.
PACKAGES = (
    *("numpy", "triton", "ray", "peft", "transformers", "optuna", "lightning", "matplotlib"),
    *("onnx", "onnxscript", "onnxruntime"),
)


def facts() -> dict[str, Any]:
    """Everything that `info` prints, as JSON types."""
    return {
        "versions": versions(),
        "devices": list(_devices()),
        "cache": _cache(),
        "workers": [{"pid": pid, "socket": str(path)} for pid, path in running().items()],
        "settings": {
            variable(name): os.environ[variable(name)] for name in SETTINGS if os.environ.get(variable(name))
        },
        "rules": len(RULES),
        "presets": {name: _changes(name) for name in PRESETS},
        "primitives": [
            {"name": name, "members": members, "strategies": strategies}
            for name, members, strategies in _primitives()
        ],
    }


def versions() -> dict[str, str | None]:
    """Versions of the library, PyTorch, Python and optional packages; None if not installed."""
    found: dict[str, str | None] = {
        "wide_compiler": wide_compiler.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def run(console: Console, as_json: bool = False) -> None:
    """Print the facts, as tables or as JSON."""
    told = facts()
    if as_json:
        print_json(told)
        return
    console.print(_facts_table(told))
    console.print()
    console.print(_settings_table(told["settings"]))
    console.print()
    console.print(_presets_table(told["presets"]))
    console.print()
    console.print(_primitives_table(told["primitives"]))


def _devices() -> Iterator[str]:
    threads = torch.get_num_threads()
    yield f"cpu: {os.cpu_count()} cores, PyTorch uses {threads} thread{'s' * (threads != 1)}"
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield f"cuda:{index}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    if torch.backends.mps.is_available():
        yield "mps"


def _cache() -> dict[str, Any]:
    """Folder and size of the stored measurements; they may be deleted at any time."""
    folder = Store().folder
    files = list(folder.glob("*.json")) if folder.is_dir() else []
    return {"folder": str(folder), "answers": len(files), "bytes": sum(file.stat().st_size for file in files)}


def _changes(preset: str) -> dict[str, Any]:
    plain, options = vars(WideConfig.default()), vars(WideConfig.preset(preset))
    return {key: value for key, value in options.items() if value != plain[key]}


def _primitives() -> Iterator[tuple[str, list[str], list[str]]]:
    """(name, member classes, strategies) of the primitives and of registered classes."""
    for primitive in PRIMITIVES:
        yield primitive.__name__, _members(primitive), list(primitive.STRATEGIES)
    for name, wide in REGISTRY.listing().items():
        if wide not in PRIMITIVES:
            yield getattr(wide, "__name__", str(wide)), [name], list(strategies_of(wide))


def _members(primitive: type[WideModule]) -> list[str]:
    kinds = primitive.MEMBER if isinstance(primitive.MEMBER, tuple) else (primitive.MEMBER,)
    return [kind.__name__ for kind in kinds]


def _facts_table(told: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    installed = {name: version for name, version in told["versions"].items() if version}
    for name in ("wide_compiler", "torch", "python", "platform"):
        grid.add_row(name, installed.pop(name))
    grid.add_row("packages", ", ".join(f"{name} {version}" for name, version in installed.items()))
    for device in told["devices"]:
        grid.add_row("device", device)
    cache = told["cache"]
    grid.add_row("cache", f"{cache['folder']}: {cache['answers']} answers, {cache['bytes'] / 1024:.0f} KiB")
    pids = ", ".join(str(script["pid"]) for script in told["workers"])
    grid.add_row(
        "workers", f"scripts with workers: process {pids}" if pids else "no script with workers is running"
    )
    grid.add_row("rules", f"{told['rules']} ops by name, and every elementwise op of PyTorch")
    return grid


def _settings_table(in_force: dict[str, str]) -> Table:
    table = Table(title="Environment variables", title_justify="left")
    table.add_column("name", no_wrap=True)
    for column in ("value", "what it does"):
        table.add_column(column, overflow="fold")
    for name, (_, meaning) in SETTINGS.items():
        table.add_row(variable(name), in_force.get(variable(name), ""), meaning)
    return table


def _presets_table(presets: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="Presets of WideConfig: what they change", title_justify="left")
    table.add_column("preset", no_wrap=True)
    table.add_column("options", overflow="fold")
    for name, changes in presets.items():
        table.add_row(name, ", ".join(f"{key}={value}" for key, value in changes.items()) or "nothing")
    return table


def _primitives_table(primitives: list[dict[str, Any]]) -> Table:
    table = Table(title=f"{len(primitives)} primitives and what they run", title_justify="left")
    for column in ("name", "members", "strategies"):
        table.add_column("primitive" if column == "name" else column, overflow="fold")
    for row in primitives:
        table.add_row(row["name"], ", ".join(row["members"]), ", ".join(row["strategies"]))
    return table
