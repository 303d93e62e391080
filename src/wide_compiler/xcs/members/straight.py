"""The call of a wide model once more: its route is known, and need not be asked for while nothing differs
that decides about it. For a small model, asking takes as long as a layer does."""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...model.routes import Route, looks
from ...replay import Replay
from .copies import Copies

_autocast: Any = torch._C._is_any_autocast_enabled
# Operators go straight to their kernels, past what notes gradients (nobody wants them), views and writes.
_below_autograd: Any = getattr(torch._C, "_AutoDispatchBelowADInplaceOrView", contextlib.nullcontext)


class Straight:
    """Calls of one wide model that nobody else has: its modes, seeds and lanes stay as they are.

    A rung takes no calls with a transform, mode or trace around them."""

    def __init__(self, wide: Any, copies: Copies):
        self.wide = wide
        self.copies = copies
        self.known: tuple[Any, Route] | None = None
        self.recorded: Recorded | None = None

    def __call__(self, inputs: list[Any], shared: bool) -> Any:
        """Of tensors for all lanes together, or of a list or stack of tensors for each."""
        args = tuple(inputs) if shared else tuple([torch.stack(list(x)) for x in inputs])
        key = (shared, torch.is_grad_enabled(), *looks(args))
        if self.copies.unread:
            return self._with_copies(args, shared, key)
        known = self.known
        if known is not None and known[0] == key and not _autocast():
            with _below_autograd():
                return known[1](args, None)
        out = self._asked(args, shared)
        self.known = self._route(key, args, shared)
        return out

    def _asked(self, args: tuple[Tensor, ...], shared: bool) -> Any:
        return self.wide.shared(*args) if shared else self.wide.stacked(*args)

    def _route(self, key: Any, args: tuple[Tensor, ...], shared: bool) -> tuple[Any, Route] | None:
        route = self.wide.routes.get(self.wide.route_key(args, "shared" if shared else "stacked"))
        plain = route is not None and not route.program.runs_members and not route.binding.modules
        plain = plain and not route.writes.inputs  # then inputs may share memory
        return (key, route) if plain and not _autocast() else None

    def _with_copies(self, args: tuple[Tensor, ...], shared: bool, key: Any) -> Any:
        """Members whose numbers are not looked at: copied, then called. On a GPU both are one recording."""
        copies = self.copies
        if _autocast() or not all(x.is_cuda for x in args):
            copies.copy(copies.unread)
            return self._asked(args, shared)
        if self.recorded is None or self.recorded.made_for != (key, copies.homes):
            self.recorded = Recorded(self, args, shared, (key, list(copies.homes)))
        return self.recorded(args)


class Recorded:
    """A wide call with the copies before it, recorded for as long as the copies go to the same places."""

    def __init__(self, call: Straight, args: tuple[Tensor, ...], shared: bool, made_for: Any):
        self.call, self.shared, self.made_for = call, shared, made_for
        self.count, self.one = len(args), True
        self.replay = Replay(self._run, [*args, *call.copies.unread], range(len(args)))

    def __call__(self, args: tuple[Tensor, ...]) -> Any:
        out = self.replay([*args, *self.call.copies.unread])
        return out[0] if self.one else tuple(out)

    def _run(self, arguments: list[Any]) -> Sequence[Any]:
        self.call.copies.copy(arguments[self.count :])
        out = self.call._asked(tuple(arguments[: self.count]), self.shared)
        self.one = type(out) is not tuple
        return [out] if self.one else out
