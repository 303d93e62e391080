"""A function's text, made ready for lanes: every call and index goes through a dispatcher that knows them.

Operators and NumPy reach a lane through their own protocols. What does not (`float`, `len`, `math.sqrt`, a
call of another analysed function, an array that is indexed by a lane) is looked at here.
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
from .indexing import item_at
from .lane import Lane, Objects, lanes_in
from .python_functions import builtin_call

DISPATCH = "\U0010fffe_call"  # nobody's name, see rewrite
MOST_ROUNDS = 20_000
CodeCache = dict[Any, types.CodeType]


class _Calls(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        made = ast.Call(ast.Name(DISPATCH, ast.Load()), [node.func, *node.args], node.keywords)
        return ast.copy_location(made, node)

    def visit_While(self, node: ast.While) -> ast.AST:
        """An item that plain Python never comes to, as one before it raises, might loop for ever."""
        self.generic_visit(node)
        node.test = ast.copy_location(ast.BoolOp(ast.And(), [self._told("again"), node.test]), node.test)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """What is read may be indexed by lanes."""
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        indices = ast.Attribute(ast.Name(DISPATCH, ast.Load()), "indices", ast.Load())
        index = ast.Subscript(indices, node.slice, ast.Load())
        return ast.copy_location(self._told("item", node.value, index), node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """`a is b`: lanes are objects of their own, so identity is asked of the dispatcher. So is `in`."""
        self.generic_visit(node)
        if len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            node.left = ast.copy_location(self._told("sought", node.left), node.left)
            return node
        if not any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            return node
        right = node.comparators[0] if len(node.ops) == 1 else ast.Name(DISPATCH, ast.Load())
        asked = self._told("same", node.left, right)
        if isinstance(node.ops[0], ast.IsNot):
            asked = ast.UnaryOp(ast.Not(), asked)
        return ast.copy_location(asked, node)

    @staticmethod
    def _told(method: str, *given: ast.expr) -> ast.expr:
        return ast.Call(ast.Attribute(ast.Name(DISPATCH, ast.Load()), method, ast.Load()), list(given), [])


def lane_function(function: types.FunctionType, node: Any, dispatch: Any, cache: CodeCache) -> Any:
    """The function with its calls dispatched, in its own globals and cells. `node` is its text, which is not
    asked for where the cache has the code."""
    key = function.__code__
    code = cache.get(key)
    if code is None:
        tree = ast.fix_missing_locations(_Calls().visit(clone(node)))
        free = [name for name in key.co_freevars if not name.startswith("\U0010fffe")]
        code = cache[key] = compiled(tree, key, [*free, DISPATCH])
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[DISPATCH] = types.CellType(dispatch)
    closure = tuple(cells[name] for name in code.co_freevars)
    made = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_OURS = __name__.rpartition(".")[0]  # methods of lanes
_FILLED = (list, dict, set)


class Dispatcher:
    """Calls for one run over lanes."""

    indices = np.s_  # gives an index as it is written between brackets

    def __init__(self, cache: CodeCache):
        self.rounds = 0  # of `while` loops
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
        # A generator is made a list: what it gives may be lanes, and here it is read to its end in any case.
        args = tuple(list(a) if type(a) is types.GeneratorType else a for a in args)
        if not lanes_in(args) and not lanes_in(kwargs):
            return function(*args, **kwargs)
        if type(function) is np.ufunc and args:
            return function(*args, **kwargs)
        if type(function).__name__ == "_ArrayFunctionDispatcher":
            return apply_function(function, args, kwargs)
        if isinstance(function, types.BuiltinFunctionType) and isinstance(function.__self__, _FILLED):
            return function(*args, **kwargs)  # `append` and the like
        if isinstance(function, (type, types.BuiltinFunctionType)):
            return builtin_call(function, args, kwargs)
        method = on_class(type(function), "__call__")
        if isinstance(method, types.FunctionType) and not isinstance(function, nn.Module):
            return self._python(method, (function, *args), kwargs)
        raise Bail(f"a call of {getattr(function, '__name__', type(function).__name__)}")

    def item(self, value: Any, index: Any) -> Any:
        """`value[index]`."""
        return value[index] if type(value) is Objects else item_at(value, index)

    def again(self) -> bool:
        """One more round of a `while`: there may be so many in one run."""
        self.rounds += 1
        if self.rounds > MOST_ROUNDS:
            raise Bail("a loop of very many rounds")
        return True

    def sought(self, value: Any) -> Any:
        """In a container, where nan is found if it is the same object."""
        if type(value) is Objects or (
            type(value) is Lane and value.data.dtype.kind in "fc" and np.isnan(value.data).any()
        ):
            raise Bail("nan or objects that are looked for")
        return value

    def same(self, a: Any, b: Any) -> bool:
        """`a is b` for one item: None is told from lanes, anything else is not."""
        lanes = type(a) in (Lane, Objects) or type(b) in (Lane, Objects)
        if b is self or (lanes and a is not None and b is not None):
            raise Bail("the identity of numbers or arrays")
        return a is b

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
