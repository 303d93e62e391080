"""Run a member's Python for one lane, on that lane's slices of the stacked state."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..capture.state import Slot, home_of, slots
from ..capture.strides import laid_out
from ..errors import UnsupportedError
from ..guards.modes import no_inference_mode
from ..guards.tensors import version_of

_CARRIES_GRADIENTS = (
    "a buffer carries gradients from one call to the next, which stacked buffers cannot; "
    "detach it in the forward"
)


class LaneParameter:
    """One stacked parameter `[N, ...]`, lent to N members that treat their part as a parameter of their own.

    A member's part has the memory of its lane, so that writes in place arrive, and its own version counter,
    so that autograd does not take one lane's write for a change of what it saved for another. It counts as an
    `nn.Parameter` and requires a gradient where the stacked one does, also while gradients are off.
    """

    def __init__(self, path: str, stacked: Tensor):
        self.path, self.stacked = path, stacked
        with torch.inference_mode(False), torch.enable_grad():
            self.lanes: tuple[Tensor, ...] = _Lanes.apply(stacked)
        for lane in self.lanes:
            lane._is_param = True  # type: ignore[attr-defined]  # what isinstance(_, nn.Parameter) asks
        self.memory = [_memory(lane) for lane in self.lanes]
        self.last: list[Tensor] = list(self.lanes)  # what each member holds in the end

    def settle(self) -> None:
        """After all lanes have run, update the stacked parameter from what the members hold."""
        replaced = self.memory != [_memory(one) for one in self.last]
        if replaced:
            self._replace()
        if replaced or any(lane._version for lane in self.lanes):
            torch.autograd.graph.increment_version(self.stacked)

    def _replace(self) -> None:
        """Members have put other memory into place (`weight.data = ...`), and so does the stacked parameter:
        the old one may be needed for the backward pass."""
        expected = (self.stacked.shape[1:], self.stacked.dtype)
        for lane, one in enumerate(self.last):
            if not isinstance(one, Tensor) or (one.shape, one.dtype) != expected:
                got = (tuple(one.shape), one.dtype) if isinstance(one, Tensor) else one
                raise UnsupportedError(
                    f"lane {lane}: the forward turns the parameter {self.path} into {got}, it was "
                    f"{(tuple(expected[0]), expected[1])}; a stacked parameter keeps its shape and dtype"
                )
        self.stacked.data = torch.stack([one.data for one in self.last])


class _Lanes(torch.autograd.Function):
    """`unbind(0)`, but the parts are separate tensors instead of views."""

    @staticmethod
    def forward(ctx: Any, stacked: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(stacked.data[lane].data for lane in range(len(stacked)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Tensor | None:
        first = next((g for g in gradients if g is not None), None)
        if first is None:
            return None
        return torch.stack([torch.zeros_like(first) if g is None else g for g in gradients])


def _memory(tensor: Any) -> Any:
    return (tensor.data_ptr(), tensor.shape, tensor.stride()) if isinstance(tensor, Tensor) else None


@contextlib.contextmanager
def lent(
    module: nn.Module,
    tensor_of: Callable[[str], Tensor],
    returns: list[tuple[Tensor, Tensor]],
    note: Callable[[str, Any], None] | None = None,
    own_memory: bool = False,
    made: Callable[[Slot], None] | None = None,
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """While active, every parameter and buffer of `module` is `tensor_of(path)`; gives (that, what is lent).

    Buffers are lent as copies; what they have become goes into `returns`, to be given back when all lanes
    have run: autograd would take a write into one lane's slice for a change of what it saved for the others.
    Plain tensor attributes are the module's own and stay with it, as its other Python state does.
    `note`, if given, is told what the module holds in the end for each parameter, for each plain tensor
    attribute that has become another tensor or has other numbers, and for each buffer that has got another
    shape or dtype.
    With `own_memory` parameters are lent as copies too, for a module that reads strides and offsets.
    `made`, if given, is told of each buffer that the module has made meanwhile, which does not stay with it.
    Raises `UnsupportedError` without it, and for any other change of the module's structure.
    """
    homes: list[tuple[dict[str, Any], Slot, Tensor, Tensor]] = []
    copies: dict[int, Tensor] = {}  # a tensor under two names stays one
    constants: dict[str, tuple[Tensor, int]] = {}
    owners = {path for path, _ in module.named_modules(remove_duplicate=False)}
    tables: list[dict[str, Any]] = [
        table for m in module.modules() for table in (m._parameters, m._buffers, m._modules)
    ]
    kept = [(table, dict(table)) for table in tables]
    for slot in list(slots(module)):
        home = home_of(module.get_submodule(slot.owner), slot.kind)
        if slot.kind == "constant":
            constants[slot.path] = (slot.tensor, version_of(slot.tensor))
            continue
        source = tensor_of(slot.path)
        if (own_memory or slot.kind == "buffer") and id(slot.tensor) not in copies:
            with no_inference_mode():  # only tensors made without it count their writes
                copies[id(slot.tensor)] = laid_out(source, home[slot.name])
        lent_one = copies.get(id(slot.tensor), source)
        if getattr(module.get_submodule(slot.owner), "sparse", False):
            lent_one = _DenseGradient.apply(lent_one)
        homes.append((home, slot, source, lent_one))
    for home, slot, _, lent_one in homes:
        home[slot.name] = lent_one
    versions = [lent_one._version for *_, lent_one in homes]
    try:
        yield [(source, lent_one) for *_, source, lent_one in homes]
        for slot in _made(module, homes, owners):
            if made is None:
                raise UnsupportedError(_restructures(f"makes the buffer {slot.path}"))
            made(slot)
        for (home, slot, source, lent_one), version in zip(homes, versions, strict=True):
            if slot.kind == "buffer" and note is not None and _is_another_kind(home[slot.name], source):
                note(slot.path, home[slot.name])
            elif slot.kind == "buffer":
                returns.append((source, home[slot.name]))
            elif own_memory and lent_one._version != version:
                returns.append((source, lent_one.detach()))
            elif note is not None and not own_memory:
                note(slot.path, home[slot.name])
        for slot in slots(module):
            before, version = constants.get(slot.path, (None, 0))
            new = slot.tensor is not before or version_of(slot.tensor) != version
            if slot.kind == "constant" and new and note is not None:
                note(slot.path, slot.tensor)
    finally:
        for table, entries in kept:
            # Modules without tensors may stay: they are Python state, which is the module's own.
            left = {k: m for k, m in table.items() if k not in entries and _without_tensors(m)}
            wanted = entries | left
            if len(table) != len(wanted) or any(table.get(key) is not it for key, it in wanted.items()):
                table.clear()
                table.update(wanted)


def _without_tensors(value: Any) -> bool:
    return isinstance(value, nn.Module) and not any(slot.kind != "constant" for slot in slots(value))


def _made(
    module: nn.Module, homes: list[tuple[dict[str, Any], Slot, Tensor, Tensor]], owners: set[str]
) -> list[Slot]:
    """Return the buffers that a forward has made. Raise `UnsupportedError` for other changes of structure."""
    for home, slot, *_ in homes:
        try:
            now = home_of(module.get_submodule(slot.owner), slot.kind)
        except AttributeError:
            raise UnsupportedError(_restructures(f"removes the module {slot.owner}")) from None
        if now is not home:
            raise UnsupportedError(_restructures(f"replaces the module {slot.owner}"))
        if not isinstance(home.get(slot.name), Tensor):
            raise UnsupportedError(_restructures(f"removes the {slot.kind} {slot.path}"))
    known = {(slot.kind, slot.path) for _, slot, *_ in homes}
    new = [s for s in slots(module) if s.kind != "constant" and (s.kind, s.path) not in known]
    for slot in new:
        if slot.owner not in owners:
            raise UnsupportedError(_restructures(f"makes the module {slot.owner}"))
        if slot.kind == "parameter":
            raise UnsupportedError(_restructures(f"makes the parameter {slot.path}"))
        if slot.tensor.requires_grad:
            raise UnsupportedError(_CARRIES_GRADIENTS)
        if any(_share_memory(slot.tensor, lent_one) for *_, lent_one in homes):
            raise UnsupportedError(_restructures(f"makes the buffer {slot.path} of another tensor's memory"))
    return new


def _share_memory(one: Tensor, other: Tensor) -> bool:
    tensors = [one, other]
    if any(t.layout != torch.strided or not t.numel() for t in tensors):
        return one is other
    return tensors[0].untyped_storage().data_ptr() == tensors[1].untyped_storage().data_ptr()


def _restructures(what: str) -> str:
    return (
        f"the forward {what}, and lanes are stacked by the structure that members have when they are "
        f"compiled; make the change in the constructor, or call every member once before compiling"
    )


def _is_another_kind(now: Any, before: Tensor) -> bool:
    return isinstance(now, Tensor) and (now.shape, now.dtype) != (before.shape, before.dtype)


class _DenseGradient(torch.autograd.Function):
    """The tensor itself; a sparse gradient goes on as a dense one, the only kind a lane's slice takes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.to_dense() if gradient.is_sparse else gradient


def give_back(returns: list[tuple[Tensor, Tensor]]) -> None:
    """Copy buffers back into the tensors they were copied from."""
    if any(isinstance(value, Tensor) and value.requires_grad for _, value in returns):
        raise UnsupportedError(_CARRIES_GRADIENTS)
    with torch.no_grad():
        for source, value in returns:
            if isinstance(value, Tensor):
                source.copy_(value)


@contextlib.contextmanager
def lane_generator(rng: Tensor | None, lane: int) -> Iterator[None]:
    """Seed the generator for the lane, if seeds are given, and restore the global state afterwards."""
    if rng is None:
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(int(rng[lane]) & 0x7FFFFFFFFFFFFFFF)
        yield
