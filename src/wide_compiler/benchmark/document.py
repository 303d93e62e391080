"""Benchmark results as a JSON document, with device, versions, date and command."""

import json
import math
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import wide_compiler

from .benchmark_row import BenchmarkRow, crossover, lines


def device_name(device: torch.device) -> str:
    """Return the GPU's name, or the CPU's with the number of PyTorch threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'s' * (threads != 1)}"


def _processor() -> str:
    try:
        described = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        described = []
    names = [line.partition(":")[2].strip() for line in described if line.startswith("model name")]
    return (names or [platform.processor() or platform.machine()])[0]


def provenance(device: torch.device, command: str | None = None) -> dict[str, Any]:
    """Command, date, device and versions: the head of every result file."""
    return {
        "command": command or " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(device),
        "cores": os.cpu_count(),
        "wide_compiler": wide_compiler.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def document(
    rows: Sequence[BenchmarkRow], device: torch.device, command: str, preset: str, complete: bool = True
) -> dict[str, Any]:
    """Return the measured rows with their provenance and crossovers."""
    return {
        **provenance(device, command),
        "preset": preset,
        "complete": complete,
        "crossover": [
            {"kind": kind, "name": name, "strategy": strategy, "n": crossover(line)}
            for (kind, name, strategy), line in lines(rows).items()
        ],
        "rows": [row.as_dict() for row in rows],
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Write strict JSON: infinite and NaN values become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_finite(content), indent=1, allow_nan=False) + "\n")


def timestamped(name: str) -> Path:
    """`wide_benchmark_<name>_<timestamp>.json`."""
    moment = datetime.now().strftime("%Y%m%d_%H%M%S")
    return Path(f"wide_benchmark_{name.replace(':', '_')}_{moment}.json")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
