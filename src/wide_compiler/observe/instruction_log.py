"""Text log of the instructions sent to workers.

`WIDE_COMPILER_INSTRUCTION_LOG=file` writes one line per worker and instruction,
`WIDE_COMPILER_DEBUG_DISPATCHER=1` writes one line to stderr per placement decision.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

import torch

from ..config import variable
from ..workers.callsite import user_place
from ..workers.layout import Axes, fitting, part_of, places

if TYPE_CHECKING:
    from ..signals.op_plans import OpPlan, TensorMeta
    from ..workers.stream import Mesh

active = False  # whether any log is on; checked before a line is formatted
_debugging = False
_file: TextIO | None = None
_written: set[str | None] = set()  # files that this process has opened


def configure() -> None:
    """Read the environment variables; called when workers start, so that ops need not read them."""
    global active, _debugging, _file
    _debugging = os.environ.get(variable("DEBUG_DISPATCHER"), "0") not in ("", "0")
    if _file is not None:
        _file.close()
    path = os.environ.get(variable("INSTRUCTION_LOG"))
    # Line buffered, so that the log is complete even if the script is killed.
    mode = "a" if path in _written else "w"  # a new run of the script overwrites the file
    _file = open(path, mode, buffering=1) if path else None  # type: ignore[assignment]  # noqa: SIM115
    _written.add(path)
    active = _debugging or _file is not None


def _write(line: str) -> None:
    if _file is not None:
        _file.write(line + "\n")


def _debug(line: str) -> None:
    if _debugging:
        sys.stderr.write(f"[dispatcher] {line}\n")


def create(name: str, number: int, mesh: Mesh, axes: Axes, meta: TensorMeta) -> None:
    """Log a new tensor: the part that each worker gets."""
    where = user_place()
    axes = fitting(meta.shape, axes, mesh.shape)
    cuts = ["Replicate" if axis is None else f"Shard({axis})" for axis in axes]
    placement = ",".join(cuts) if len(mesh.workers) > 1 else "whole"
    whole = torch.empty(meta.shape, device="meta")
    for place, worker in zip(places(mesh.shape), mesh.workers, strict=True):
        shape = tuple(part_of(whole, axes, mesh.shape, place).shape)
        _write(
            f"WorkerCreateTensor worker={worker} id={number} op={name} shape={shape} of={meta.shape} "
            f"dtype={str(meta.dtype)[6:]} placement={placement} at={where}"
        )
    _debug(f"{name} {meta.shape} -> {placement} on workers {list(mesh.workers)} at {where}")


def op(plan: OpPlan, mesh: Mesh, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    where = user_place()
    for worker in mesh.workers:
        _write(f"WorkerOp worker={worker} op={plan.name} inputs={inputs} outputs={outputs} at={where}")
    _debug(f"{plan.name} {inputs} -> {outputs} on workers {list(mesh.workers)} at {where}")


def move(number: int, out: int, source: Mesh, target: Mesh, axes: Axes, meta: TensorMeta) -> None:
    where = user_place()
    for worker in sorted({*source.workers, *target.workers}):
        _write(
            f"WorkerMove worker={worker} id={number} to={out} shape={meta.shape} from={list(source.workers)} "
            f"onto={list(target.workers)} axes={axes} at={where}"
        )
    _debug(f"move {number} from workers {list(source.workers)} to {list(target.workers)} at {where}")
