"""Lanes over workers: a wide model that is compiled inside a signal's context is cut along its lanes.

Every worker holds some lanes of all that is stacked, and all of what lanes share. An op on lanes then needs
nothing of other workers, neither forward nor backward.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from .. import api
from ..errors import ArgumentError
from ..model import WideModel
from . import scope
from .modules import swap
from .tensor import SignalTensor


def build_placed(build: Callable[[], WideModel]) -> WideModel:
    """Build a wide model outside of all signals, then place it as the active one says."""
    placement = scope.current()
    if placement is None:
        return build()
    if placement.axis != 0:
        raise ArgumentError(
            f"{placement.name}.shard.axis is {placement.axis}; the lanes of a wide model are cut along axis 0"
        )
    with scope.suspended(), _disable_current_modes():
        wide = build()
    place(wide, placement)
    return wide


def place(wide: WideModel, placement: scope.Placement) -> None:
    """Cut what has lanes over the signal's workers; what lanes share is whole on each of them."""
    stacked = {id(t) for t in wide.stacked_tensors()}
    for x in _tensors(wide):
        swap(x, placement.mesh, 0 if id(x) in stacked else None, adopted=True)


def refuse_workers(models: list[nn.Module]) -> None:
    """Members must lie here: stacking what is on workers would bring all of it back."""
    for lane, model in enumerate(models):
        for name, x in (*model.named_parameters(), *model.named_buffers()):
            if isinstance(x, SignalTensor):
                raise ArgumentError(
                    f"lane {lane}: {name} lives on workers {list(x._ref.home.mesh.workers)}; make the models "
                    "outside of any signal's context, and compile them inside"
                )


def _tensors(wide: WideModel) -> list[Tensor]:
    found = {id(x): x for x in (*wide.parameters(), *wide.buffers())}
    return list(found.values())


api.build_hooks.append(build_placed)
