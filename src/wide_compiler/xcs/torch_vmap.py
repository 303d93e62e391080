"""One PyTorch function or module over tensors of one shape: stacked, and mapped by `torch.func.vmap`."""

import ast
import operator
import warnings
from typing import Any, cast

import torch
from torch import Tensor

from .work import Bail, Work


def able(work: Work) -> bool:
    """Tensors among the loop variables, no test, no loop, nothing that could swallow an error."""
    if work.cond is not None or work.events or work.site.config.exact:
        return False
    columns = work.items.columns
    if not any(type(c) is Tensor or type(c[0]) is Tensor for c in columns):
        return False
    trees = [work.site.text.bodies["body"], *work.plan.analyzer.functions.values()]
    return not any(isinstance(n, ast.Try) for tree in trees for n in ast.walk(tree))


def mapped(work: Work) -> list[Any]:
    """The values of all items, in order, each with memory of its own. Raises `Bail`."""
    gathered = [_gathered(c) for c in work.items.columns]
    dims = tuple(0 if type(g) is Tensor else None for g in gathered)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            out = torch.func.vmap(work.body, in_dims=dims, randomness="error")(*gathered)
    except Exception as error:
        raise Bail(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from None
    return apart(out, work.items.n)


def _gathered(column: Any) -> Any:
    if type(column) is Tensor:
        return column
    first = column[0]
    if type(first) is not Tensor:
        if all(c is first for c in column):
            return first
        raise Bail(f"items of type {type(first).__name__} beside tensors")
    if len(set(map(_look, column))) != 1:
        raise Bail("tensors of different types")
    try:
        return torch.stack(list(column))  # finds itself which shapes and devices differ
    except RuntimeError:
        raise Bail("tensors of different shapes or devices") from None


_data = cast(Any, Tensor.data).__get__
_look = operator.attrgetter("dtype", "requires_grad", "layout")


def apart(out: Any, n: int) -> list[Any]:
    """Rows of stacked results, each with a version counter of its own, so that autograd sees no common
    writes.

    Rows that carry gradients are copied; the others are disjoint parts of one block of memory.
    """
    if type(out) is Tensor:
        out = out.contiguous()  # as results of one item mostly are; where not, the comparison tells
        if out.requires_grad:
            copies: Any = torch.unbind_copy  # annotated as if it gave nothing
            return list(copies(out))
        if out.dim() > 1 and out.numel():  # this one gives version counters, and no views
            lanes, rows, *rest = out.shape
            return list(torch.unsafe_split_with_sizes(out.view(-1, *rest), [rows] * lanes))
        return list(map(_data, out.unbind(0)))
    if type(out) is tuple:
        return list(zip(*[apart(o, n) for o in out], strict=True))
    raise Bail(f"a result of type {type(out).__name__}")
