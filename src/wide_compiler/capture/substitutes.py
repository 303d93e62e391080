"""Replacements for PyTorch functions and layers that read values, in a form that can be captured."""

import itertools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def cov(
    x: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """`torch.cov`, with the checks of the weights as assertions in the graph."""
    rows = x.reshape(1, -1) if x.dim() < 2 else x
    given = [w for w in (fweights, aweights) if w is not None]
    for w in given:
        torch._assert_async((w >= 0).all(), "cov(): weights cannot be negative")
    if not given:
        count: Any = rows.shape[1]
        centred = rows - rows.sum(1, keepdim=True) / count
        return (centred @ centred.mT.conj() / max(count - correction, 0)).squeeze()
    weights = given[0] if len(given) == 1 else given[0] * given[1]
    total = weights.sum()
    torch._assert_async(total != 0, "cov(): weights sum to zero, can't be normalized")
    centred = rows - (rows * weights).sum(1, keepdim=True) / total
    spread = total - correction
    if aweights is not None and correction:
        spread = total - correction * (weights * aweights).sum() / total
    return (centred @ (centred * weights).mT.conj() / spread.clamp(min=0)).squeeze()


def corrcoef(x: Tensor) -> Tensor:
    """`torch.corrcoef`, based on `cov`."""
    c = cov(x)
    if c.dim() == 0:
        return c / c
    deviation = c.diagonal().real.sqrt()
    c = c / deviation.unsqueeze(1) / deviation
    return torch.complex(c.real.clip(-1, 1), c.imag.clip(-1, 1)) if c.is_complex() else c.clip(-1, 1)


def equal(a: Tensor, b: Tensor) -> Any:
    """`torch.equal` of two tensors."""
    if a is b or a.dtype != b.dtype:  # `a is b` is true even with NaN, other dtypes are an error
        return torch.equal(a, b)
    return a.shape == b.shape and (a == b).all().item()


def allclose(a: Tensor, b: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """`torch.allclose`."""
    return torch.isclose(a, b, rtol, atol, equal_nan).all().item()


def combinations(x: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """`torch.combinations` by index instead of by mask."""
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = torch.tensor(list(choose(range(len(x)), r)), dtype=torch.int64, device=x.device)
    return x[places.reshape(-1, r)]


SUBSTITUTES: dict[Any, Callable[..., Any]] = {
    getattr(home, function.__name__): function
    for function in (equal, allclose, cov, corrcoef)
    for home in (torch, Tensor)
} | {torch.combinations: combinations}


def _without_dispatch(function: Any) -> Callable[..., Any]:
    """Return a copy of a Python function of `torch.nn.functional` whose inner calls a mode can intercept."""
    asks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    world = {**function.__globals__, **dict.fromkeys(asks, lambda *_: False)}
    copy = types.FunctionType(function.__code__, world, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


LOOKED_INTO = {F.gaussian_nll_loss: _without_dispatch(F.gaussian_nll_loss)}


def average_of_all_batches(module: Any) -> Callable[[Tensor], Tensor] | None:
    """Return the forward of a batch norm without momentum, which reads its counter as a number; else None.

    Its running statistics are the mean over all batches: batch k has the weight 1 / k.
    """
    norm = torch.nn.modules.batchnorm._BatchNorm
    if not isinstance(module, norm) or type(module).forward is not norm.forward or not module.training:
        return None
    if module.momentum is not None or module.running_mean is None or module.num_batches_tracked is None:
        return None
    names = ("num_batches_tracked", "running_mean", "running_var")

    def forward(x: Tensor) -> Tensor:
        module._check_input_dim(x)
        # Read at each call, because a trace replaces them by its own tensors.
        count, mean, var = (getattr(module, name) for name in names)
        count.add_(1)
        out = F.batch_norm(x, None, None, module.weight, module.bias, True, 0.0, module.eps)
        with torch.no_grad():
            dims = [d for d in range(x.dim()) if d != 1]
            for running, now in ((mean, x.mean(dims)), (var, x.var(dims, unbiased=True))):
                share = 1.0 / count.to(running.dtype)
                running.copy_(running * (1.0 - share) + now.to(running.dtype) * share)
        return out

    return forward


def unless_unchanged(module: torch.nn.Module) -> Callable[..., torch.nn.Module]:
    """Return the `_apply` of a module, which does nothing where every tensor stays what it is.

    `self.head.to(x.dtype)` in a forward; the module's own would replace the memory of parameters.
    """
    own = module._apply

    def apply(fn: Callable[[Tensor], Tensor], recurse: bool = True) -> torch.nn.Module:
        tensors = [*module.parameters(recurse), *module.buffers(recurse)]
        return module if all(fn(t) is t for t in tensors) else own(fn, recurse)

    return apply
