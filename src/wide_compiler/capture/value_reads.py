"""Reads of tensor values that can be captured.

`torch.export` fails where Python reads a value. These reads can be expressed in a graph:

- a comparison with the same result for every draw (`torch.rand([]) < 0.0`, as in a disabled layer drop);
- a check (`if (x < 0).any(): raise ...`) whose error is not handled: an assertion in the graph (on a CPU
  only; a failed assertion makes a GPU unusable, while the member's own error can be caught);
- a 0-d tensor as an index (`x[i]`): advanced indexing, if the result is not written;
- PyTorch functions whose C++ code checks values (`torch.cov`): replaced, see `substitutes`.
"""

import ast
import functools
import inspect
import operator
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .._tree import is_fake
from .failure import CaptureFailed
from .handlers import handling_frame, source_of
from .strides import LayoutReads
from .substitutes import LOOKED_INTO, SUBSTITUTES

_COMPARISONS: dict[Any, Callable[[Any, Any], bool]] = {
    getattr(home, name): getattr(operator, plain)
    for plain in ("lt", "le", "gt", "ge")
    for home, name in ((Tensor, f"__{plain}__"), (Tensor, plain), (torch, plain))
}
_UNIT_DRAWS = {torch.rand, torch.rand_like}
_PASSED_OVER = {__name__, LayoutReads.__module__, "torch.overrides", "torch._tensor"}
_ASKING = {Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.is_nonzero, Tensor.equal, Tensor.allclose}
_ASKING |= {Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.__array__}
_ASKING |= {torch.equal, torch.allclose, torch.is_nonzero, Tensor.__contains__, Tensor.__iter__}
_INDICES = {torch.int8, torch.int16, torch.int32, torch.int64}


class ValueReads(TorchFunctionMode):
    """Answers the reads above while active. `check` raises if an answer was not valid."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: dict[int, Tensor] = {}  # results of rand in [0, 1) by id, kept alive
        self.decided: dict[int, tuple[Tensor, bool]] = {}  # by id: tensors with a known truth value
        self.asked = False  # whether values of a tensor held by Python were read
        # Indexed tensors and the results, with their versions.
        self.chosen: list[tuple[Tensor, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ASKING and not any(map(is_fake, args)):
            self.asked = True
        if func is Tensor.__bool__ and getattr(args[0], "constant", None) is None:
            answer = self._answer(args[0], inspect.currentframe())
            if answer is not None:
                return answer
        elif func is Tensor.__getitem__ and any(map(_is_number_index, _index_parts(args[1]))):
            return self._chosen(*args)
        elif func in SUBSTITUTES:
            return SUBSTITUTES[func](*args, **kwargs)
        elif func in LOOKED_INTO:
            with self:
                return LOOKED_INTO[func](*args, **kwargs)
        result = func(*args, **kwargs)
        if func in _UNIT_DRAWS:
            self.draws[id(result)] = result
        elif func in _COMPARISONS and id(args[0]) in self.draws and isinstance(args[1], (int, float)):
            self._decide(_COMPARISONS[func], args[1], result)
        return result

    def _decide(self, compare: Callable[[Any, Any], bool], bound: float, result: Tensor) -> None:
        """Record the result of comparing a draw from [0, 1) with a bound, if it is always the same."""
        if bound <= 0.0 or bound >= 1.0:
            low, inside = compare(0.0, bound), compare(0.5, bound)
            if low == inside:
                self.decided[id(result)] = (result, inside)

    def _answer(self, x: Tensor, frame: FrameType | None) -> bool | None:
        if id(x) in self.decided:
            return self.decided[id(x)][1]
        if x.device.type != "cpu":
            return None
        while frame is not None and frame.f_globals.get("__name__") in _PASSED_OVER:
            frame = frame.f_back
        raises_if = None if frame is None else _raises_if(frame.f_code, frame.f_lasti)
        if raises_if is None or handling_frame(frame) is not None:
            return None
        holds = x.logical_not() if raises_if else x.bool()
        place = "" if frame is None else f"{frame.f_code.co_name}, line {frame.f_lineno}"
        torch._assert_async(holds.reshape(()), f"a check of the member failed ({place})")
        return not raises_if

    def _chosen(self, x: Tensor, index: Any) -> Any:
        """`x[index]` with 0-d tensors in the index, each of which removes one dim."""
        parts, rest, dim = list(_index_parts(index)), [], 0
        consumed = sum(_dims(part) for part in parts)
        result = x
        for part in parts:
            if _is_number_index(part):
                result = torch.ops.aten.index.Tensor(result, [*[None] * dim, part])
                continue
            rest.append(part)
            dim += x.dim() - consumed if part is Ellipsis else _dims(part)
        for tensor in (x, result):
            self.chosen.append((tensor, tensor._version))
        return result[tuple(rest)] if any(part is not Ellipsis for part in rest) else result

    def check(self) -> None:
        if any(tensor._version != version for tensor, version in self.chosen):
            raise CaptureFailed("its forward writes into a tensor that it has indexed by a 0-d tensor")


def _index_parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _is_number_index(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dim() == 0 and part.dtype in _INDICES


def _dims(part: Any) -> int:
    """Return the number of dims of a tensor that one part of an index consumes."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    mask = isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8)
    return part.dim() if mask else 1


@functools.lru_cache(maxsize=256)
def _raises_if(code: CodeType, instruction: int) -> bool | None:
    """Return the value of the condition at this instruction for which the code raises; None if there is none.

    Recognises `if c: raise ...`, `if not c: raise ...`, `if a or c: raise ...`,
    `if a and c: raise ...` (the last operand) and `assert c`.
    """
    source = source_of(code)
    if source is None:
        return None
    tree, first, indent = source
    # The operand just computed: in Python 3.11 the jump has the position of the whole statement.
    units = list(code.co_positions())[: instruction // 2 + 1]
    asked = [
        (line - first, end_line - first, column - indent, end_column - indent)
        for line, end_line, column, end_column in (units[-1], units[-2])
        if line is not None and end_line is not None and column is not None and end_column is not None
    ]
    caught = {inner for node in ast.walk(tree) if isinstance(node, ast.Try) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if node in caught or not isinstance(node, (ast.Assert, ast.If)):
            continue
        if isinstance(node, ast.If) and not _only_raises(node.body):
            continue
        answers = _operands(node.test, isinstance(node, ast.If))
        for operand, raises in answers:
            where = (operand.lineno, operand.end_lineno, operand.col_offset, operand.end_col_offset)
            if where in asked:
                return raises
    return None


def _only_raises(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Raise) and all(isinstance(s, (ast.Assign, ast.Expr)) for s in body[:-1])


def _operands(test: ast.expr, raises: bool) -> list[tuple[ast.expr, bool]]:
    """(operand, its value) pairs that decide a condition to be `raises` on their own."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _operands(test.operand, not raises)
    if isinstance(test, ast.BoolOp):
        # `or` is true by any one operand, false by the last alone once the others are; `and` the reverse.
        decisive = test.values if isinstance(test.op, ast.Or) == raises else test.values[-1:]
        return [pair for value in decisive for pair in _operands(value, raises)]
    return [(test, raises)]
