"""The arguments of several towers at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import _tree
from ..model.program import Call


@dataclass
class Calls:
    """One call of some lanes.

    Attributes:
        call: the leaves of (args, kwargs), tensors `[n, ...]` where lanes have their own.
        for_lane: the arguments of the i-th lane that runs.
        sources: the tensors as they were given.
        gather: the call's tensors made of these again, to measure what that costs.
    """

    call: Call
    for_lane: Callable[[int], tuple[tuple, dict]]
    sources: list[Tensor]
    gather: Callable[[], list[Tensor]]

    @classmethod
    def shared(cls, args: tuple, kwargs: dict) -> "Calls":
        """The same arguments for every lane."""
        leaves, spec = _tree.flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        call = Call(leaves, spec, (False,) * len(tensors), _tree.signature((args, kwargs)))
        return cls(call, lambda lane: (args, kwargs), tensors, lambda: tensors)

    @classmethod
    def own(cls, leaves: Sequence[Sequence[Any]], spec: _tree.TreeSpec) -> "Calls":
        """Each lane its own leaves. A tensor that is one object in all lanes is shared, others are stacked."""
        columns = list(zip(*leaves, strict=True))
        joined = [_join(column) for column in columns]
        wide = tuple(joined[i] is not c[0] for i, c in enumerate(columns) if isinstance(c[0], Tensor))
        signature = _tree.signature(_tree.unflatten(list(leaves[0]), spec))
        sources = [leaf for column in columns for leaf in column if isinstance(leaf, Tensor)]
        return cls(
            Call(joined, spec, wide, signature),
            lambda lane: _tree.unflatten(list(leaves[lane]), spec),
            sources,
            lambda: [_join(column) for column in columns if isinstance(column[0], Tensor)],
        )

    def some(self, lanes: list[int]) -> "Calls":
        """The same for some of the lanes that run."""
        flags = iter(self.call.wide)
        leaves = [
            (torch.stack([x[lane] for lane in lanes]) if next(flags) else x) if isinstance(x, Tensor) else x
            for x in self.call.leaves
        ]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        call = replace(self.call, leaves=leaves)
        return Calls(call, lambda i: self.for_lane(lanes[i]), tensors, lambda: tensors)


def _join(column: tuple[Any, ...]) -> Any:
    first = column[0]
    if not isinstance(first, Tensor) or all(leaf is first for leaf in column):
        return first
    return torch.stack(column)
