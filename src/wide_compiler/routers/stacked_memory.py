"""Towers' tensors as slices of stacked tensors, so that they need not be stacked at every call.

`prepare_for_compile` moves them there. Parameters stay the same objects, only their storage changes; writing
a parameter writes the stack. A tensor that is moved later is detected by its address.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..capture.state import has_gradient_hooks
from ..lanes import copied_if_met
from .module_lanes import ModuleLanes
from .stacked_gradients import StackedLeaf

# In training, using stacked memory costs an autograd function per tensor and saves a copy: worth it for
# stacks of at least this many bytes.
LARGE = {"cpu": 2**20, "cuda": 2**24}
_version: Any = Tensor._version.__get__  # type: ignore[attr-defined]


class Memory:
    """The stacks, and the slice of each tensor.

    Args:
        stacked: whether stacks of parameters are autograd leaves, see `stacked_gradients`.
    """

    def __init__(self, stacked: bool = False) -> None:
        self.slices: dict[int, tuple[Tensor, int]] = {}  # by id of the tensor: its stack and lane
        self.stacked = stacked
        self.leaves: dict[int, StackedLeaf] = {}  # by id of their first parameter

    def take_in(self, living: ModuleLanes) -> None:
        """Move the lanes' tensors into stacks, except those whose memory is used elsewhere."""
        for path in sorted(living.wide_states):
            tensors = living.by_path[path].tensors
            distinct = len(set(map(id, tensors))) == len(tensors)
            if distinct and self.find(tensors) is None and all(map(_movable, tensors)):
                with torch.no_grad(), torch.inference_mode(False):
                    stack = torch.stack([tensor.detach() for tensor in tensors])
                    for lane, tensor in enumerate(tensors):
                        tensor.data = stack[lane]
                        self.slices[id(tensor)] = (stack, lane)
                if self.stacked and all(type(t) is nn.Parameter and _learns(t) for t in tensors):
                    self.leaves[id(tensors[0])] = StackedLeaf(stack, tensors)  # type: ignore[arg-type]

    def leaf_of(self, tensors: Sequence[Tensor]) -> StackedLeaf | None:
        """Return the leaf whose rows are exactly these tensors, all of which learn, or None."""
        leaf = self.leaves.get(id(tensors[0]))
        if leaf is None or [*map(id, tensors)] != [*map(id, leaf.parameters)]:
            return None
        if not all(t.requires_grad for t in tensors):  # the leaf would give frozen ones a gradient
            return None
        return leaf if leaf.leaf.data_ptr() == tensors[0].data_ptr() else None

    def dissolve(self) -> None:
        """Give every parameter of a stacked leaf its own memory again."""
        for leaf in self.leaves.values():
            leaf.dissolve()
            for parameter in leaf.parameters:
                self.slices.pop(id(parameter), None)
        self.leaves.clear()

    def find(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """Return the part of a stack in which these tensors are consecutive, or None."""
        if id(tensors[0]) not in self.slices:
            return None
        stack, first = self.slices[id(tensors[0])]
        part = stack[first : first + len(tensors)]
        if len(part) < len(tensors) or part.dtype != tensors[0].dtype:
            return None
        size = part[0].numel() * part.element_size()
        places = [part.data_ptr() + lane * size for lane in range(len(tensors))]
        shape, strides = part.shape[1:], part.stride()[1:]
        alike = all(t.shape == shape and t.stride() == strides for t in tensors)
        return part if alike and [t.data_ptr() for t in tensors] == places else None


def _movable(tensor: Tensor) -> bool:
    """Return whether the tensor owns its whole storage and shares it with nothing else."""
    if tensor.layout != torch.strided or not tensor.numel() or not tensor.is_contiguous():
        return False
    storage = tensor.untyped_storage()
    whole = storage.nbytes() == tensor.numel() * tensor.element_size()
    other_processes = tensor.device.type == "cpu" and storage.is_shared()
    # The tensor and `storage` hold it; a third holder may write there and expect the tower to see it.
    return whole and not other_processes and torch._C._storage_Use_Count(storage._cdata) <= 2


def _learns(tensor: Tensor) -> bool:
    return tensor.requires_grad and not has_gradient_hooks(tensor)


class FromMemory(torch.autograd.Function):
    """Returns the stack that holds parameters, differentiable with respect to the parameters."""

    @staticmethod
    def forward(ctx: Any, stack: Tensor, *parameters: Tensor) -> Tensor:
        return stack.data  # has its own version counter, see `Lent`

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return (None, *gradient.unbind(0))


class Lent:
    """Stacks passed to one recorded forward.

    A parameter changed in place between forward and backward would go unnoticed, because the stack has its
    own version counter. So backward first compares the parameters' versions and increments the version of
    the stack if one has changed; autograd then raises if it needs the old values.
    """

    def __init__(self, leaves: bool = True) -> None:
        self.leaves = leaves  # whether stacked leaves may be lent
        self.stacks: list[tuple[Tensor, Sequence[Tensor], list[int]]] = []
        self.places: set[int] = set()  # memory of gradients that large stacks have got

    def lend(self, stack: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """Note the versions of the tensors that `stack` holds, and return it."""
        self.stacks.append((stack, tensors, [*map(_version, tensors)]))
        return stack

    def own_gradient(self, stack: Tensor) -> Tensor:
        """As `lanes.own_gradient`, for large stacks: a copy is made only if two of them get one gradient."""
        if stack.requires_grad:
            stack.register_hook(lambda gradient: copied_if_met(gradient, self.places))
        return stack

    def watch(self, outputs: Sequence[Any]) -> None:
        for output in outputs:
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(self._compare)

    def _compare(self, gradient: Tensor) -> None:
        for stack, tensors, versions in self.stacks:
            if [*map(_version, tensors)] != versions:
                torch.autograd.graph.increment_version(stack)


def is_large(memory: Tensor) -> bool:
    return memory.nbytes >= LARGE.get(memory.device.type, LARGE["cuda"])
