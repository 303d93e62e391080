"""Running a member's own Python for one lane, on that lane's slices of the stacked state."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..capture.state import home_of, slots


@contextlib.contextmanager
def lent(module: nn.Module, tensor_of: Callable[[str], Tensor]) -> Iterator[None]:
    """While active, every parameter and buffer of `module` is `tensor_of(path)`.

    Plain tensor attributes are the module's own and stay with it, as its other Python state does. A buffer
    the module assigns anew meanwhile is copied back, so that the lane's state follows.
    """
    homes: list[tuple[dict[str, Any], str, Any, Tensor]] = []
    for slot in [slot for slot in slots(module) if slot.kind != "constant"]:
        owner = module.get_submodule(slot.owner)
        home = home_of(owner, slot.kind)
        homes.append((home, slot.name, home[slot.name], tensor_of(slot.path)))
    for home, name, _, borrowed in homes:
        home[name] = borrowed
    try:
        yield
        for home, name, _, borrowed in homes:
            if home[name] is not borrowed and isinstance(home[name], Tensor):
                borrowed.detach().copy_(home[name].detach())
    finally:
        for home, name, own, _ in homes:
            home[name] = own


@contextlib.contextmanager
def lane_generator(rng: Tensor | None, lane: int) -> Iterator[None]:
    """Draw from the lane's own seed, if seeds are given, and leave the global generator as it was."""
    if rng is None:
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(int(rng[lane]) & 0x7FFFFFFFFFFFFFFF)
        yield
