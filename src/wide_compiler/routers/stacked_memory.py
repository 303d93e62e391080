"""Towers' tensors as slices of stacked ones: what lies together need not be stacked at every call.

`prepare_for_compile` moves them there. Parameters stay the objects they are; only their numbers have moved,
and whoever changes these changes the stack. A tensor put elsewhere later on is noticed by its address.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..capture.state import has_gradient_hooks
from .module_lanes import ModuleLanes
from .stacked_gradients import StackedLeaf

# In training a stack taken from memory costs a Python function for each tensor and spares a copy: worth it
# for stacks of this many bytes and more.
LARGE = {"cpu": 2**20, "cuda": 2**24}


class Memory:
    """The stacks made so far, and which slice is whose.

    Args:
        stacked: are stacks of parameters the leaves to which gradients go? See `stacked_gradients`.
    """

    def __init__(self, stacked: bool = False) -> None:
        self.slices: dict[int, tuple[Tensor, int]] = {}  # by id of the tensor: its stack and lane
        self.stacked = stacked
        self.leaves: list[StackedLeaf] = []

    def take_in(self, living: ModuleLanes) -> None:
        """Move the lanes' tensors next to each other, where nobody else holds on to their memory."""
        for path in sorted(living.wide_states):
            tensors = living.by_path[path].tensors
            if self.find(tensors) is None and all(map(_movable, tensors)) and _distinct(tensors):
                with torch.no_grad(), torch.inference_mode(False):
                    stack = torch.stack([tensor.detach() for tensor in tensors])
                    for lane, tensor in enumerate(tensors):
                        tensor.data = stack[lane]
                        self.slices[id(tensor)] = (stack, lane)
                if self.stacked and all(type(t) is nn.Parameter and _learns(t) for t in tensors):
                    self.leaves.append(StackedLeaf(stack, tensors))  # type: ignore[arg-type]

    def leaf_of(self, tensors: Sequence[Tensor]) -> StackedLeaf | None:
        """The leaf whose rows are these tensors, all of them."""
        home, lane = tensors[0].__dict__.get("stacked", (None, 0))
        if home is None or lane or len(home.parameters) != len(tensors):
            return None
        rows = all(map(operator.is_, home.parameters, tensors))
        return home if rows and home.leaf.data_ptr() == tensors[0].data_ptr() else None

    def dissolve(self) -> None:
        """Give every parameter of a stacked leaf memory and a gradient of its own again."""
        for leaf in self.leaves:
            leaf.dissolve()
            for parameter in leaf.parameters:
                self.slices.pop(id(parameter), None)
        self.leaves.clear()

    def find(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """The part of a stack in which these tensors lie one after the other, if there is one."""
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
    """Is its memory its own, all of it, and nobody else's?"""
    if tensor.layout != torch.strided or not tensor.numel() or not tensor.is_contiguous():
        return False
    storage = tensor.untyped_storage()
    whole = storage.nbytes() == tensor.numel() * tensor.element_size()
    other_processes = tensor.device.type == "cpu" and storage.is_shared()
    # Held by the tensor and by `storage`; a third holder may write there and expect the tower to see it.
    return whole and not other_processes and torch._C._storage_Use_Count(storage._cdata) <= 2


def _learns(tensor: Tensor) -> bool:
    return tensor.requires_grad and not has_gradient_hooks(tensor)


def _distinct(tensors: Sequence[Tensor]) -> bool:
    return len({id(tensor) for tensor in tensors}) == len(tensors)


class FromMemory(torch.autograd.Function):
    """The stack in which parameters lie, as a function of the parameters: gradients arrive at each."""

    @staticmethod
    def forward(ctx: Any, stack: Tensor, *parameters: Tensor) -> Tensor:
        return stack.data  # with a version counter of its own, see `Lent`

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return (None, *gradient.unbind(0))


class Lent:
    """Stacks lent to one recorded forward.

    A parameter changed in place between forward and backward would go unnoticed: its version counter is not
    the stack's. So the versions are compared when backward arrives, before anything is computed, and a stack
    whose parameters have changed counts as changed: autograd then complains if it needed the old numbers.
    """

    def __init__(self, leaves: bool = True) -> None:
        self.leaves = leaves  # may stacked leaves be lent?
        self.stacks: list[tuple[Tensor, list[Tensor], list[int]]] = []

    def lend(self, memory: Tensor, tensors: list[Tensor]) -> Tensor:
        learns = tensors[0].requires_grad
        stack = FromMemory.apply(memory, *tensors) if learns else memory.data
        self.stacks.append((stack, tensors, [tensor._version for tensor in tensors]))
        return stack

    def lend_leaf(self, home: StackedLeaf, tensors: list[Tensor]) -> Tensor:
        self.stacks.append((home.leaf, tensors, [tensor._version for tensor in tensors]))
        return home.leaf

    def watch(self, outputs: Sequence[Any]) -> None:
        for output in outputs:
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(self._compare)

    def _compare(self, gradient: Tensor) -> None:
        for stack, tensors, versions in self.stacks:
            if [tensor._version for tensor in tensors] != versions:
                torch.autograd.graph.increment_version(stack)


def is_large(memory: Tensor) -> bool:
    return memory.nbytes >= LARGE.get(memory.device.type, LARGE["cuda"])
