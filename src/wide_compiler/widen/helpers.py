"""Small functions that lane graphs call."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..lanes import own_gradient


def expand_lanes(x: Tensor, n: int) -> Tensor:
    """`[...]` -> `[N, ...]`, without a copy."""
    return x.unsqueeze(0).expand(n, *x.shape)


def own_lanes(x: Tensor, n: int) -> Tensor:
    """`[...]` -> `[N, ...]`, with separate memory per lane, so that lanes may write."""
    if x.dtype == torch.complex32:  # no sum on a CPU, which the gradient of `expand` needs
        return torch.stack([x] * n)
    return expand_lanes(x, n).contiguous() if n > 1 else x.unsqueeze(0).clone()


def lead(t: Tensor, count: int, beside: Tensor | None = None) -> Tensor:
    """Insert `count` axes of size 1 after the lane axis of t `[N, ...]`.

    `beside` is the tensor with which it is combined, if known: where that is larger, the gradient is a sum
    and thereby t's own.
    """
    if beside is None or beside.numel() <= t.numel():
        t = own_gradient(t)
    return t.reshape(t.shape[0], *(1,) * count, *t.shape[1:])


@contextlib.contextmanager
def autocast_restored() -> Iterator[None]:
    """Restore autocast if the block raises after a graph has entered it."""
    kinds = ("cpu", "cuda")
    before = [(torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds]
    try:
        yield
    except BaseException:
        for kind, (enabled, dtype) in zip(kinds, before, strict=True):
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.clear_autocast_cache()
        raise


def refuse_seeds(rng: Tensor | None, op: str) -> None:
    """Raise if lanes have seeds: this op can only use PyTorch's generator."""
    if rng is not None:
        raise UnsupportedError(f"{op} cannot draw from a seed per lane; remove seeds by wide.seed(None)")


def fold(op: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Run a batched op on `[N, B, ...]` as one batch of N*B.

    >>> import torch
    >>> fold(torch.nn.functional.max_pool2d, torch.zeros(3, 2, 4, 8, 8), 2).shape
    torch.Size([3, 2, 4, 4, 4])
    """
    n, b = x.shape[:2]
    out = op(x.flatten(0, 1), *args, **kwargs)
    if isinstance(out, Tensor):
        return out.unflatten(0, (n, b))
    return type(out)(o.unflatten(0, (n, b)) for o in out)


def fold_pair(op: Callable[..., Any], x: Tensor, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Like `fold`, for an op whose first two tensors are both batched."""
    return op(x.flatten(0, 1), y.flatten(0, 1), *args, **kwargs).unflatten(0, x.shape[:2])
