"""Rules of matrix products; each operand is wide or shared."""

from typing import Any

import torch
from torch import Tensor

from ..widen.builder import Builder, Val
from ..widen.classify import op_name
from ..widen.rules import generic_rule, lane_rule, ops, rule
from ._lanes import align

LANE_LETTERS = "ZYXWVUTSRQPONMLKJIHGFEDCBAzyxwvutsrqponmlkjihgfedcba"


@rule(*ops("matmul.default mm.default bmm.default mv.default dot.default vdot linalg_matmul"))
def matmul(b: Builder, x: Val, y: Val) -> Val:
    if x.wide and not y.wide and (x.rank >= 2 or y.rank <= 2) and y.rank <= 2:
        return b.call(torch.matmul, x, y)  # one product for all lanes
    x, y = b.wide(x), b.wide(y)
    row, column = x.rank == 1, y.rank == 1
    if row:
        x = b.call(torch.unsqueeze, x, 1)
    if column:
        y = b.call(torch.unsqueeze, y, -1)
    rank = max(x.rank, y.rank)
    out = b.call(torch.matmul, b.aligned(x, rank), b.aligned(y, rank))
    if row:
        out = b.call(torch.squeeze, out, -2)
    return b.call(torch.squeeze, out, -1) if column else out


@rule(*ops("addmm.default", "baddbmm.default", "addmv.default"))
def addmm(b: Builder, bias: Val, x: Val, y: Val, *, beta: Any = 1, alpha: Any = 1) -> Val:
    product = matmul(b, x, y)
    return b.call(add_scaled, b.aligned(bias, product.rank, product), product, beta, alpha)


def add_scaled(bias: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    return (bias if beta == 1 else bias * beta) + (product if alpha == 1 else product * alpha)


@rule(*ops("inner.default"))
def inner(b: Builder, x: Val, y: Val) -> Val | None:
    if x.rank == 0 or y.rank not in (1, 2):
        return None
    return matmul(b, x, y if y.rank == 1 else b.call(torch.transpose, y, -1, -2, wide=y.wide))


@rule(*ops("outer.default", "ger.default"))
def outer(b: Builder, x: Val, y: Val) -> Val:
    return b.call(torch.mul, b.call(torch.unsqueeze, b.wide(x), 2), b.call(torch.unsqueeze, b.wide(y), 1))


@rule(*ops("einsum.default"))
def einsum(b: Builder, equation: str, tensors: list[Val], **_: Any) -> Val:
    return b.call(torch.einsum, lane_equation(equation, [t.wide for t in tensors]), *tensors)


def lane_equation(equation: str, wide: list[bool]) -> str:
    """Return the einsum equation with a lane letter in front of the wide operands and the result.

    >>> lane_equation("bij,jk->bik", [True, False])
    'Zbij,jk->Zbik'
    """
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    operands = left.split(",")
    if not arrow:
        letters = sorted(c for c in set(left) - {",", "."} if left.count(c) == 1)
        right = ("..." if "..." in left else "") + "".join(letters)
    letter = next(c for c in LANE_LETTERS if c not in equation)
    lanes = [letter + o if w else o for o, w in zip(operands, wide, strict=True)]
    return f"{','.join(lanes)}->{letter}{right}"


@lane_rule("bilinear.default")
def wide_bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Bilinear layer of x `[N, ..., I]` and y `[N, ..., J]`, weight `[N, O, I, J]`, bias `[N, O]`."""
    x_NBI, y_NBJ = x.reshape(x.shape[0], -1, x.shape[-1]), y.reshape(y.shape[0], -1, y.shape[-1])
    out = torch.einsum("nbi,noij,nbj->nbo", x_NBI, weight, y_NBJ)
    out = out if bias is None else out + align(bias, 3, out)
    return out.reshape(*x.shape[:-1], weight.shape[1])


def _distance(op: Any) -> Any:
    def run(b: Builder, x: Val, y: Val, *args: Any, **kwargs: Any) -> Val:
        return b.call(op, *b.alike(x, y), *args, **kwargs)

    return run


for _op in ops("pairwise_distance.default cdist.default"):
    rule(_op)(_distance(_op))


@generic_rule(lambda op: op_name(op) in ("_grouped_mm", "grouped_mm_fallback"))
def grouped_mm(op: Any) -> Any:
    """Return a rule of grouped products, one matrix per group of rows (PyTorch's op or transformers')."""

    def run(b: Builder, x: Val, weight: Val, offs: Any = None, *args: Any, **kwargs: Any) -> Val | None:
        if x.rank != 2 or weight.rank != 3 or offs is None or kwargs.get("bias") is not None or any(args):
            return None
        return b.call(lane_grouped_mm, op, b.wide(x), b.wide(weight), b.wide(offs), **kwargs)

    return run


def lane_grouped_mm(op: Any, x: Tensor, weight: Tensor, offs: Tensor, **kwargs: Any) -> Tensor:
    """Run `op` on x `[N, S, I]`, weight `[N, E, I, O]` and group ends offs `[N, E]`; returns `[N, S, O]`.

    The groups of all lanes are concatenated, so each lane's last group is extended to the lane's end; rows
    after the member's last end are set to zero.
    """
    n, rows = x.shape[:2]
    lane = torch.arange(n, device=x.device)
    ends = offs.clone()
    ends[:, -1] = rows
    ends = (ends + (lane * rows).unsqueeze(1)).flatten().to(offs.dtype)
    out = op(x.flatten(0, 1), weight.flatten(0, 1), ends, **kwargs).unflatten(0, (n, rows))
    counted = torch.arange(rows, device=x.device) < offs[:, -1:]
    return torch.where(counted.unsqueeze(2), out, 0.0)
