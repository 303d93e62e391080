"""The call of a wide model once more: its route is known, and need not be asked for while nothing differs
that decides about it. For a small model, asking takes as long as a layer does."""

import contextlib
from typing import Any

import torch
from torch import Tensor

from ...model.routes import Route, looks

_autocast: Any = torch._C._is_any_autocast_enabled
# Operators go straight to their kernels, past what notes gradients (nobody wants them), views and writes.
_below_autograd: Any = getattr(torch._C, "_AutoDispatchBelowADInplaceOrView", contextlib.nullcontext)


class Straight:
    """Calls of one wide model that nobody else has: its modes, seeds and lanes stay as they are.

    A rung takes no calls with a transform, mode or trace around them."""

    def __init__(self, wide: Any):
        self.wide = wide
        self.known: tuple[Any, Route] | None = None

    def __call__(self, inputs: list[Any], shared: bool) -> Any:
        """Of tensors for all lanes together, or of a list or stack of tensors for each."""
        args = tuple(inputs) if shared else tuple([torch.stack(list(x)) for x in inputs])
        key = (shared, torch.is_grad_enabled(), *looks(args))
        known = self.known
        if known is not None and known[0] == key and not _autocast():
            with _below_autograd():
                return known[1](args, None)
        out = self.wide.shared(*args) if shared else self.wide.stacked(*args)
        self.known = self._route(key, args, shared)
        return out

    def _route(self, key: Any, args: tuple[Tensor, ...], shared: bool) -> tuple[Any, Route] | None:
        route = self.wide.routes.get(self.wide.route_key(args, wide=not shared))
        plain = route is not None and not route.program.runs_members and not route.binding.modules
        here = all(x.is_cpu for x in args)  # on a GPU the wide model has a shorter way: its recording
        return (key, route) if plain and here and not _autocast() else None
