"""Fixed random draws, to compare candidates that draw in different orders."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .compare import Incomparable


class FixedDraws(TorchDispatchMode):
    """Makes every random draw constant.

    Dropout is the identity, a Bernoulli draw is its probability, uniform and normal draws are 0.5.

    Dropout then gives the same result whether a fused kernel (rate 0), an op, or a Bernoulli mask divided by
    its probability computes it. A dispatch mode affects only its thread.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "init_dropout_state" in func._schema.name:  # cuDNN's recurrent layers; rejects a rate of 0
            return func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        for rate in ("dropout_p", "dropout"):  # attention and recurrent kernels, forward and backward
            if rate in names:
                return _without(func, names, rate, args, kwargs)
        name = func._schema.name.removeprefix("aten::")
        if name == "native_dropout_backward":
            gradient, mask, _ = args
            return gradient * mask
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        with self:  # in inference mode a dropout comes as one op, which may return its input itself
            parts = func.decompose(*args, **kwargs)
        return _fixed(name, func, args, kwargs) if parts is NotImplemented else parts


def _without(func: Any, names: list[str], rate: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call the op with a dropout rate of 0."""
    given = dict(zip(names, args, strict=False)) | kwargs
    if rate in given:
        given[rate] = 0.0
    positional = [given.pop(a.name) for a in func._schema.arguments if not a.kwarg_only and a.name in given]
    return func(*positional, **given)


def _fixed(name: str, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    if name == "native_dropout":
        x, p, train = args
        mask = torch.full_like(x, not train or p < 1, dtype=torch.bool)
        return x * mask, mask
    if "rrelu" in name or "_fused_dropout" in name:
        raise Incomparable(f"{name} draws in a way that cannot be fixed")
    drawn = func(*args, **kwargs)
    if not isinstance(drawn, Tensor):
        raise Incomparable(f"{name} draws in a way that cannot be fixed")
    if not func._schema.is_mutable:
        drawn = drawn.clone()  # never write what an op was given
    if name == "randperm":
        return torch.arange(drawn.numel(), dtype=drawn.dtype, device=drawn.device)
    if "bernoulli" in name:
        return _expected_coin(func._schema, drawn, args, kwargs)
    return drawn.fill_(0.5) if drawn.is_floating_point() else drawn.zero_()


def _expected_coin(schema: Any, drawn: Tensor, args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """Fill with the probability: the argument `p` or its default, else the tensor given."""
    if not drawn.is_floating_point():
        return drawn.fill_(1)
    probability = next((a.default_value for a in schema.arguments if a.name == "p"), args[0])
    probability = kwargs.get("p", args[1] if len(args) > 1 else probability)
    return drawn.copy_(probability) if isinstance(probability, Tensor) else drawn.fill_(probability)
