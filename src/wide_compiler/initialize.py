"""Making N lanes from one model: new weights, copies, or a user's initialisation."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .errors import AlignmentError

INITS = ("fresh", "copy")


def make_lanes(model: nn.Module, n: int, init: str | Callable[..., Any]) -> list[nn.Module]:
    """Return `n` models like `model`, which is not changed.

    `init` is 'fresh' (new weights), 'copy', or a function `(model, lane)` that initialises a copy in place or
    returns another model. Raises `AlignmentError` if it cannot.
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise AlignmentError(f"n must be a positive integer, got {n!r}")
    if callable(init):
        return [_by_caller(model, init, lane) for lane in range(n)]
    if init not in INITS:
        raise AlignmentError(
            f"unknown init {init!r}; choose one of {', '.join(map(repr, INITS))} or give a callable"
        )
    for path, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise AlignmentError(f"{path} is not initialised yet (a lazy module); run the model once first")
    copies = [copy.deepcopy(model) for _ in range(n)]
    if init == "fresh":
        for member in copies:
            reinitialize(member)
    return copies


def _by_caller(model: nn.Module, init: Callable[..., Any], lane: int) -> nn.Module:
    member = copy.deepcopy(model)
    result = init(member, lane)
    return result if isinstance(result, nn.Module) else member


@torch.no_grad()
def reinitialize(model: nn.Module) -> None:
    """Initialise every parameter by the modules' `reset_parameters` (or `_init_weights`).

    Parameters are filled with NaN first. If NaN remains, `AlignmentError` is raised, because keeping old
    values would make lanes equal.
    """
    floating = {path: p for path, p in model.named_parameters() if p.is_floating_point()}
    for parameter in floating.values():
        parameter.fill_(float("nan"))
    # Innermost first, like constructors: an outer module may override the initialisation of its parts.
    for path, module in reversed(list(model.named_modules())):
        for method in ("_reset_parameters", "reset_parameters"):
            if callable(getattr(module, method, None)):
                getattr(module, method)()
                break
        else:
            _by_ancestor(model, path, module)
    for path, parameter in floating.items():
        if parameter.isnan().any():
            raise AlignmentError(
                f"{path}: nothing can re-initialise this parameter (no reset_parameters in its module); "
                f"give init='copy' to keep its value in all lanes, or init=callable(model, lane)"
            )


def _by_ancestor(model: nn.Module, path: str, module: nn.Module) -> None:
    """Initialise by `_init_weights` of an outer model, which some libraries call with each inner module."""
    if not any(
        p.isnan().any() for p in module._parameters.values() if p is not None and p.is_floating_point()
    ):
        return
    names = path.split(".") if path else []
    for depth in range(len(names), -1, -1):
        ancestor = model.get_submodule(".".join(names[:depth]))
        if callable(getattr(ancestor, "_init_weights", None)):
            ancestor._init_weights(module)  # type: ignore[operator]
            return
