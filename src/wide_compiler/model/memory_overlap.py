"""Inputs that share memory with each other or with the model, where a forward writes in place.

A lane graph writes to copies of its inputs, so a write would not be visible in the others. Such calls run
member by member, on copies that share memory as the originals do.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..capture import Captured
from ..capture.aliases import written_roots
from ..capture.strides import extent_of, strided_copy
from ..errors import InputError
from ..remote_tensors import address, memory_id

_DENSE = torch.contiguous_format


def written_inputs(captured: Captured) -> tuple[int, ...]:
    """Return the positions of the inputs that the members' graph writes."""
    roots = {root.name for root in written_roots(captured.graph) if root.op == "placeholder"}
    return tuple(i for i, name in enumerate(captured.inputs) if name in roots)


def one_base_written(written: Sequence[int], tensors: Sequence[Tensor]) -> str:
    """Return which written input may share memory with another; '' if none.

    For tensors in a trace or transform: they have no addresses, so only base tensors are compared.
    """
    for i in written:
        for j, other in enumerate(tensors):
            if i != j and _root(_unwrapped(tensors[i])) is _root(_unwrapped(other)):
                return f"inputs {i} and {j} are one tensor or views of one, and the forward writes one"
    return ""


def _unwrapped(tensor: Tensor) -> Tensor:
    """Remove the wrappers of torch.func's transforms, which hide the base tensor."""
    functorch: Any = torch._C._functorch
    while not torch.compiler.is_dynamo_compiling() and functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


class Writes:
    """What a program's graph writes: positions of inputs, and places of the model's tensors."""

    def __init__(self, program: Any, places: Sequence[Any]):
        self.inputs = program.written_inputs
        self.states = [place for place in places if place.path in program.captured.writes]
        self.places = places

    def __bool__(self) -> bool:
        return bool(self.inputs or self.states)

    def may_show_in(self, tensors: Sequence[Tensor]) -> bool:
        """Quick check of the inputs of all members; False is certain."""
        if self.inputs and len(tensors) > 1:
            return True
        memory = [_storage(tensor) for tensor in tensors]
        for place in self.places if self.inputs else self.states:
            start, end = _storage(place.tensor)
            if any(start < other_end and other_start < end for other_start, other_end in memory):
                return True
        return False

    def shown_in_others(self, tensors: Sequence[Tensor]) -> str:
        """Return which write to one member's inputs is visible elsewhere; '' if none."""
        for i in self.inputs:
            for j, other in enumerate(tensors):
                if i != j and overlap(tensors[i], other):
                    return f"inputs {i} and {j} share memory, and the forward writes input {i}"
        for place in self.places if self.inputs else self.states:
            for i, tensor in enumerate(tensors):
                if (i in self.inputs or place in self.states) and overlap(tensor, place.tensor):
                    return f"input {i} shares memory with {place.path}, and the forward writes one of them"
        return ""


def overlap(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have an element in common."""
    (start, end), (other_start, other_end) = _bytes(a), _bytes(b)
    if start >= other_end or other_start >= end:
        return False
    if a.element_size() != b.element_size() or (start - other_start) % a.element_size():
        return True
    if a.is_contiguous() and b.is_contiguous():
        return True
    first = min(start, other_start)
    seen = torch.zeros((max(end, other_end) - first) // a.element_size(), dtype=torch.bool)
    seen.as_strided(a.size(), a.stride(), (start - first) // a.element_size()).fill_(True)
    return bool(seen.as_strided(b.size(), b.stride(), (other_start - first) // b.element_size()).any())


def _storage(tensor: Tensor) -> tuple[int, int]:
    number = memory_id(tensor)
    if number is not None:
        return number, number + 1
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    return start, start + storage.nbytes()


def _bytes(tensor: Tensor) -> tuple[int, int]:
    """Return the address of the tensor's first byte, and of the byte after the last."""
    if memory_id(tensor) is not None:
        return _storage(tensor)
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    return start, start + extent_of(tensor) * tensor.element_size()


def own_copies(
    tensors: Sequence[Tensor], lent: Iterable[tuple[Tensor, Tensor]], contiguous: bool
) -> list[Tensor]:
    """Return copies of one member's inputs, with the strides and shared memory of the originals.

    Args:
        tensors: the member's inputs.
        lent: pairs of a state tensor and its replacement for this call.
        contiguous: make all copies contiguous.
    """
    copies: dict[int, Tensor] = {}
    memory = {_storage(tensor)[0] for tensor in tensors}
    for source, own in lent:
        if _storage(source)[0] not in memory:
            continue
        for i, tensor in enumerate(tensors):
            if overlap(tensor, source):
                copies[i] = tensor if own is source else _same_part(tensor, source, own)
    for i, tensor in enumerate(tensors):
        if i in copies:
            continue
        group = _group(i, tensors, copies)
        if all(_same_view(tensor, tensors[j]) for j in group):
            copy = tensor.clone(memory_format=_DENSE) if contiguous else strided_copy(tensor)
            copies |= dict.fromkeys(group, copy)
        else:
            copies |= dict(zip(group, _copied_together([tensors[j] for j in group]), strict=True))
    return [copies[i] for i in range(len(tensors))]


def _group(i: int, tensors: Sequence[Tensor], done: dict[int, Tensor]) -> list[int]:
    """Return the indices of the tensors that share memory with tensor i, directly or transitively."""
    group, grown = [i], True
    while grown:
        grown = False
        for j, tensor in enumerate(tensors):
            if j not in group and j not in done and any(overlap(tensor, tensors[k]) for k in group):
                group.append(j)
                grown = True
    return group


def _same_view(a: Tensor, b: Tensor) -> bool:
    same = address(a) == address(b) and a.dtype == b.dtype and a.size() == b.size()
    return same and a.stride() == b.stride() and (a is b or _root(a) is _root(b))


def _root(tensor: Tensor) -> Tensor:
    return tensor if tensor._base is None else tensor._base


def _same_part(tensor: Tensor, source: Tensor, own: Tensor) -> Tensor:
    """Return the view of `own`, a copy of `source`, that corresponds to `tensor` as a view of `source`."""
    (start, end), (first, last) = _bytes(tensor), _bytes(source)
    if start < first or end > last or own.stride() != source.stride() or tensor.dtype != own.dtype:
        raise InputError(
            "an input shares memory with a tensor of the model that the forward writes, and is not a part of "
            "one lane of it; give a copy (x.clone())"
        )
    offset = own.storage_offset() + (start - first) // own.element_size()
    return own.as_strided(tensor.size(), tensor.stride(), offset)


def _copied_together(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return views of one copy of the memory that the tensors share."""
    root = _root(tensors[0])
    if any(_root(tensor) is not root or tensor.dtype != root.dtype for tensor in tensors):
        raise InputError(
            "inputs share memory in a way that cannot be copied (one is detached from the other, or has "
            "another dtype), and the forward writes; give copies (x.clone())"
        )
    copy = torch.empty_strided(root.size(), root.stride(), dtype=root.dtype, device=root.device).copy_(root)
    start = root.storage_offset()
    return [copy.as_strided(t.size(), t.stride(), t.storage_offset() - start) for t in tensors]
