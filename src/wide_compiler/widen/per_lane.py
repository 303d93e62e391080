"""Running a member's own Python for one lane, on that lane's slices of the stacked state."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..capture.state import home_of, slots
from ..errors import UnsupportedError


@contextlib.contextmanager
def lent(
    module: nn.Module, tensor_of: Callable[[str], Tensor], returns: list[tuple[Tensor, Tensor]]
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """While active, every parameter and buffer of `module` is `tensor_of(path)`; gives (that, what is lent).

    Buffers are lent as copies; what they have become goes into `returns`, to be given back when all lanes
    have run: autograd would take a write into one lane's slice for a change of what it saved for the others.
    Plain tensor attributes are the module's own and stay with it, as its other Python state does.
    """
    homes: list[tuple[dict[str, Any], str, Any, Tensor, Tensor]] = []
    for slot in [slot for slot in slots(module) if slot.kind != "constant"]:
        home = home_of(module.get_submodule(slot.owner), slot.kind)
        source = tensor_of(slot.path)
        lent_one = source.clone() if slot.kind == "buffer" else source
        homes.append((home, slot.name, home[slot.name], source, lent_one))
    for home, name, _, _, lent_one in homes:
        home[name] = lent_one
    try:
        yield [(source, lent_one) for *_, source, lent_one in homes]
        returns += [(source, home[name]) for home, name, _, source, one in homes if one is not source]
    finally:
        for home, name, own, _, _ in homes:
            home[name] = own


def give_back(returns: list[tuple[Tensor, Tensor]]) -> None:
    """Write buffers back where they were lent from."""
    if any(isinstance(value, Tensor) and value.requires_grad for _, value in returns):
        raise UnsupportedError(
            "a buffer carries gradients from one call to the next, which stacked buffers cannot; "
            "detach it in the forward"
        )
    with torch.no_grad():
        for source, value in returns:
            if isinstance(value, Tensor):
                source.copy_(value)


@contextlib.contextmanager
def lane_generator(rng: Tensor | None, lane: int) -> Iterator[None]:
    """Draw from the lane's own seed, if seeds are given, and leave the global generator as it was."""
    if rng is None:
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(int(rng[lane]) & 0x7FFFFFFFFFFFFFFF)
        yield
