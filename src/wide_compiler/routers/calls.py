"""The arguments of several towers at once."""

from collections.abc import Callable
from dataclasses import dataclass, replace

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
