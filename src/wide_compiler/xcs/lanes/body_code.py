"""Compile a function for lanes: every call, index and identity test goes through a dispatcher.

Lanes implement the protocols of operators and of NumPy. The dispatcher handles the rest: `float`, `len`,
`math.sqrt`, calls of other analysed functions, shared arrays indexed by a lane.
"""

import ast
import types
from typing import Any

import numpy as np
from torch import nn

from ..proof.class_tables import on_class
from ..text.source import NoSource, compiled, tree_of, written
from ..text.trees import clone
from ..work import Bail
from .array_rules import apply_function
from .lane import Lane, Objects, lanes_in, no_rule
from .operators import item_at
from .python_functions import builtin_call

DISPATCH = "\U0010fffe_call"  # not a valid identifier, so no clash with user names
MOST_ROUNDS = 20_000
CodeCache = dict[Any, types.CodeType]


class _DispatchCalls(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        made = ast.Call(ast.Name(DISPATCH, ast.Load()), [node.func, *node.args], node.keywords)
        return ast.copy_location(made, node)

    def visit_While(self, node: ast.While) -> ast.AST:
        """Limit the iterations: an item that plain Python never reaches might loop for ever."""
        self.generic_visit(node)
        node.test = ast.copy_location(
            ast.BoolOp(ast.And(), [self._dispatched("again"), node.test]), node.test
        )
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Dispatch reads, since the index may be a lane."""
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        indices = ast.Attribute(ast.Name(DISPATCH, ast.Load()), "indices", ast.Load())
        index = ast.Subscript(indices, node.slice, ast.Load())
        return ast.copy_location(self._dispatched("item", node.value, index), node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Dispatch `is`, since lanes are new objects, and `in`."""
        self.generic_visit(node)
        if any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            right = node.comparators[0] if len(node.ops) == 1 else ast.Name(DISPATCH, ast.Load())
            node.left = ast.copy_location(self._dispatched("checked", node.left, right), node.left)
        elif any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops):
            node.left = ast.copy_location(self._dispatched("sought", node.left), node.left)
        return node

    @staticmethod
    def _dispatched(method: str, *given: ast.expr) -> ast.expr:
        return ast.Call(ast.Attribute(ast.Name(DISPATCH, ast.Load()), method, ast.Load()), list(given), [])


def lane_function(function: types.FunctionType, node: Any, dispatch: Any, cache: CodeCache) -> Any:
    """Return the function with dispatched calls, with its own globals and closure cells.

    `node` is its AST, which is not used if `cache` has the lane code of the original code.
    """
    key = function.__code__
    code = cache.get(key)
    if code is None:
        tree = _DispatchCalls().visit(clone(node))
        free = [name for name in key.co_freevars if not name.startswith("\U0010fffe")]
        code = cache[key] = compiled(tree, key, [*free, DISPATCH])
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[DISPATCH] = types.CellType(dispatch)
    closure = tuple(cells[name] for name in code.co_freevars)
    made = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_OURS = __name__.rpartition(".")[0]  # the package with the methods of lanes
_FILLED = (list, dict, set)


class Dispatcher:
    """Handles calls, indices and identity tests during one run over lanes."""

    indices = np.s_  # returns an index as written between brackets

    def __init__(self, cache: CodeCache):
        self.rounds = 0  # number of iterations of `while` loops so far
        self.cache = cache
        self.ready: dict[types.FunctionType, Any] = {}

    def __call__(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        if type(function) is types.MethodType and type(function.__self__) is not Lane:
            method: Any = function.__func__
            return self._python(method, (function.__self__, *args), kwargs)
        if type(function) is types.FunctionType:
            if (function.__module__ or "").startswith(_OURS):
                return function(*args, **kwargs)
            return self._python(function, args, kwargs)
        # Generators become lists, since they may yield lanes. Only calls that consume all of it are analysed
        # as pure.
        args = tuple(list(a) if type(a) is types.GeneratorType else a for a in args)
        if not lanes_in(args) and not lanes_in(kwargs):
            return function(*args, **kwargs)
        if type(function) is np.ufunc and args:
            return function(*args, **kwargs)
        if type(function).__name__ == "_ArrayFunctionDispatcher":
            return apply_function(function, args, kwargs)
        if isinstance(function, types.BuiltinFunctionType) and isinstance(function.__self__, _FILLED):
            return function(*args, **kwargs)  # `append` and similar methods
        if isinstance(function, (type, types.BuiltinFunctionType)):
            return builtin_call(function, args, kwargs)
        method = on_class(type(function), "__call__")
        if isinstance(method, types.FunctionType) and not isinstance(function, nn.Module):
            return self._python(method, (function, *args), kwargs)
        raise Bail(no_rule(function))

    def item(self, value: Any, index: Any) -> Any:
        """Return `value[index]`."""
        return value[index] if type(value) is Objects else item_at(value, index)

    def again(self) -> bool:
        """Count an iteration of a `while` loop. Raises `Bail` beyond the maximum."""
        self.rounds += 1
        if self.rounds > MOST_ROUNDS:
            raise Bail(f"while loops of more than {MOST_ROUNDS:,} iterations")
        return True

    def sought(self, value: Any) -> Any:
        """Return the left operand of `in`.

        Raises `Bail` for nan and objects, which `in` finds by identity.
        """
        if type(value) is Objects or (
            type(value) is Lane and value.data.dtype.kind in "fc" and np.isnan(value.data).any()
        ):
            raise Bail("a search (`in`) for nan or an object, which Python finds by identity")
        return value

    def checked(self, a: Any, b: Any) -> Any:
        """Return the left operand of `a is b`. Lanes can only be compared with None. Raises `Bail`."""
        lanes = type(a) in (Lane, Objects) or type(b) in (Lane, Objects)
        if b is self or (lanes and a is not None and b is not None):
            raise Bail("a comparison by `is` of numbers or arrays")
        return a

    def _python(self, function: types.FunctionType, args: tuple, kwargs: dict[str, Any]) -> Any:
        made = self.ready.get(function)
        if made is None:
            plain = written(function)
            try:
                node = None if plain.__code__ in self.cache else tree_of(plain)
            except NoSource as reason:
                raise Bail(str(reason)) from None
            made = self.ready[function] = lane_function(plain, node, self, self.cache)
        return made(*args, **kwargs)
