"""Lanes over workers: a wide model compiled inside a signal's context is sharded along its lanes.

Every worker holds some lanes of each stacked tensor, and a replica of each shared one. Ops on lanes then need
no communication, forward or backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.utils._python_dispatch import _disable_current_modes

from .. import api
from ..errors import ArgumentError
from ..model import WideModel
from ..model.marks import mark_parameters
from ..workers.callsite import warn_user
from ..workers.layout import fitting
from ..workers.stream import Mesh
from . import lane_runner, runtime, scope
from .modules import swap


def build_placed(build: Callable[[], WideModel]) -> WideModel:
    """Build a wide model outside of all signals, then place it by the active signal."""
    placement = scope.current()
    if placement is None:
        return build()
    if 0 not in placement.axes:
        raise ArgumentError(
            f"the signal {placement.name!r} cuts axis {placement.axes[0]}; the lanes of a wide model are "
            "axis 0: shard.axis must be 0"
        )
    with scope.suspended(), _disable_current_modes():
        wide = build()
    place(wide, placement)
    return wide


def place(wide: WideModel, placement: scope.Placement) -> None:
    """Shard the stacked tensors over the signal's workers, and replicate the shared ones."""
    mesh = _with_lanes(wide.n, placement)
    axes = tuple([0 if axis == 0 else None for axis in placement.axes])
    if fitting((wide.n,), axes, mesh.shape) != axes:
        warn_user(
            f"{wide.n} lanes cannot be cut over the mesh {'x'.join(map(str, mesh.shape))} of "
            f"{placement.name!r} so that each worker has some (as torch.chunk cuts); "
            "each of them runs all lanes"
        )
    lane_runner.signal_of[mesh.workers] = placement.name
    stacked = {id(t) for t in wide.stacked_tensors()}
    for name, x in (*wide.named_parameters(), *wide.named_buffers()):
        swap(x, mesh, axes if id(x) in stacked else (), name, adopted=True)
    mark_parameters(wide)  # the old marks referred to the plain tensors


def _with_lanes(n: int, placement: scope.Placement) -> Mesh:
    """Return the mesh of the workers that get lanes: with 9 lanes on 4 workers, 3 each on the first 3."""
    mesh = placement.mesh
    if len(mesh.shape) > 1:
        return mesh
    used = math.ceil(n / math.ceil(n / len(mesh.workers)))
    if used == len(mesh.workers):
        return mesh
    warn_user(
        f"{n} lanes over the {len(mesh.workers)} workers of {placement.name!r}: "
        f"{math.ceil(n / used)} each on {used} of them, the others get none"
    )
    return runtime.mesh_of(mesh.workers[:used], (used,))


api.build_model = build_placed
