"""The base as an ordinary model in which rows of a batch use the adapters of different lanes."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from .. import _tree
from ..errors import InputError
from .trunk import adapter_tensors, copy_flags


class Arrangement:
    """Rows sorted by lane, with equally many rows per lane; lanes with fewer are padded with copies.

    >>> Arrangement([2, 0, 2]).order
    [1, 1, 0, 2]
    """

    def __init__(self, lanes: Sequence[int]):
        self.given = len(lanes)
        self.lanes = sorted(set(lanes))
        own = [[row for row, lane in enumerate(lanes) if lane == present] for present in self.lanes]
        self.counts = [len(rows) for rows in own]
        self.each = max(self.counts)
        padded = [rows + rows[:1] * (self.each - len(rows)) for rows in own]
        self.order = [row for rows in padded for row in rows]
        self.back = [self.order.index(row) for row in range(self.given)]

    def enter(self, tree: Any, what: str) -> Any:
        """Reorder the rows of every tensor by lane, with padding."""

        def move(path: str, leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or leaf.dim() == 0:
                return leaf
            if len(leaf) != self.given:
                raise InputError(f"{what}{path} has {len(leaf)} rows, lanes= names {self.given}")
            return leaf[torch.tensor(self.order, device=leaf.device)]

        leaves, spec = _tree.flatten(tree)
        return _tree.unflatten([*map(move, _tree.leaf_paths(tree), leaves)], spec)

    def leave(self, tensor: Tensor) -> Tensor:
        """Undo order and padding of an output; several outputs per row (returned sequences) stay together."""
        times = len(tensor) // len(self.order)
        rows = [row * times + i for row in self.back for i in range(times)]
        return tensor[torch.tensor(rows, device=tensor.device)]


class LaneLayer(nn.Module):
    """An adapted module for rows of several lanes, `[L * B, ...]` in and out, by `vmap` over lanes.

    Args:
        layer: the adapted module, with the base's tensors.
        tensors: name in `layer` -> the adapters' tensors `[L, ...]`.
    """

    def __init__(self, layer: nn.Module, tensors: dict[str, Tensor], lanes: int, path: str):
        super().__init__()
        self.layer, self.path, self.lanes = layer, path, lanes
        self.tensors = tensors

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if len(x) % self.lanes:
            raise InputError(
                f"{self.path} gets {tuple(x.shape)}, whose first axis is not the batch's rows: its adapter "
                f"cannot differ by row; leave the module out of target_modules"
            )

        def one(tensors: dict[str, Tensor], rows: Tensor) -> Tensor:
            return functional_call(self.layer, tensors, (rows, *args), kwargs)

        out = vmap(one, randomness="different")(self.tensors, x.unflatten(0, (self.lanes, -1)))
        return out.flatten(0, 1)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # models read attributes such as a weight's dtype
            return getattr(super().__getattr__("layer"), name)


def row_model(wide: Any, lanes: Sequence[int]) -> nn.Module:
    """Return the base with adapters of `lanes`, for rows sorted by lane, sharing the wide model's tensors."""
    room = wide.room.model
    model = copy.deepcopy(room, {id(p): p for p in room.parameters() if wide.trunk.holds(p)})
    copy_flags(model, wide)
    stacked, index = wide.tensors(), torch.tensor(list(lanes), device=wide._device())
    own = list(adapter_tensors(room, wide.trunk))
    for path, layer in wide.library.layers(model).items():
        tensors = {}
        for name in [name for name in own if name.startswith(f"{path}.")]:
            tensor = stacked[name]
            wanted = tensor[index] if name in wide.wide_states else tensor.expand(len(lanes), *tensor.shape)
            tensors[name.removeprefix(f"{path}.")] = wanted
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, LaneLayer(layer, tensors, len(lanes), path))
    return model.get_base_model()  # type: ignore[operator]
