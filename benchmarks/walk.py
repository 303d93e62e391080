"""How far a call walks through this library: Python functions entered, and the files they stand in.

    python benchmarks/walk.py

Counts `compile`, the first and a warm `each`, and a warm `TrainStep` of a small model.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import wide_compiler
from wide_compiler import WideConfig
from wide_compiler.training import SGD, TrainStep

HOME = str(Path(wide_compiler.__file__).parent)


def walk(call: Callable[[], Any]) -> tuple[int, int]:
    """(files, functions entered) of this library during `call`."""
    files: set[str] = set()
    hops = 0

    def entered(frame: Any, event: str, argument: Any) -> None:
        nonlocal hops
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            files.add(frame.f_code.co_filename)
            hops += 1

    # An observer of a capture has a profile function of its own: those runs are not counted.
    sys.setprofile(entered)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(files), hops


def main() -> None:
    torch.set_num_threads(1)
    config = WideConfig(tune_seconds=0)
    members = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(3)]
    sample, xs = torch.randn(2, 4), [torch.randn(5, 4) for _ in range(3)]
    wide_compiler.compile(members, sample, config=config).each(xs)  # imports
    made: list[Any] = []
    rows = {"compile": walk(lambda: made.append(wide_compiler.compile(members, sample, config=config)))}
    wide = made[0]
    rows["first each"] = walk(lambda: wide.each(xs))
    for _ in range(3):
        wide.each(xs)
    rows["warm each"] = walk(lambda: wide.each(xs))
    step = TrainStep(wide, SGD(wide.parameters(), lr=0.1), lambda y: y.square().mean((1, 2)))
    x = torch.stack(xs)
    for _ in range(3):
        step(x)
    rows["warm TrainStep"] = walk(lambda: step(x))
    for name, (files, hops) in rows.items():
        print(f"{name:15} {files:3} files {hops:5} functions entered")


if __name__ == "__main__":
    main()
