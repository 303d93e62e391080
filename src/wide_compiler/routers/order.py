"""The order in which towers run: that of their registration, wherever others can see what one does."""

from bisect import bisect
from collections.abc import Callable, Sequence

import torch
from torch import nn

from ..capture import observe_member
from ..guards.modes import no_inference_mode

Names = tuple[str, ...]


def in_order(names: Sequence[str], together: Sequence[Names], seen: Callable[[str], bool]) -> list[Names]:
    """Arrange towers in the order of `names`: those that run together, and single ones.

    Towers that run together do so at the place of the first. If others can see what a tower between them does
    (`seen`), those before it and those after it run apart.

    >>> in_order("abcd", [("a", "c", "d")], lambda name: False)
    [('a', 'c', 'd'), ('b',)]
    >>> in_order("abcd", [("a", "c", "d")], lambda name: True)
    [('a',), ('b',), ('c', 'd')]
    """
    place = {name: i for i, name in enumerate(names)}
    alone = [name for name in names if not any(name in group for group in together)]
    fences = [
        place[name]
        for name in alone
        if any(place[group[0]] < place[name] < place[group[-1]] for group in together) and seen(name)
    ]
    parts: list[Names] = [(name,) for name in alone]
    for group in together:
        between: dict[int, Names] = {}
        for name in group:
            at = bisect(fences, place[name])
            between[at] = (*between.get(at, ()), name)
        parts += between.values()
    return sorted(parts, key=lambda part: place[part[0]])


@no_inference_mode()
def others_can_see(tower: nn.Module, args: tuple, kwargs: dict) -> bool:
    """Return whether a call of a copy of the tower writes into its inputs or changes something in Python."""
    try:
        observed = observe_member(tower, args, kwargs, torch.is_grad_enabled())
    except Exception:  # the call itself will raise it, or it cannot be observed
        return True
    return observed.writes_inputs or bool(observed.effects)
