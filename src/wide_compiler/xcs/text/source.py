"""Find the syntax tree of a function object, and compile trees to code objects.

A tree is used only if compiling it reproduces the function's bytecode. This detects edited files and
decorators that rewrote the function, which then runs unchanged.
"""

import ast
import contextlib
import functools
import inspect
import linecache
import operator
import re
import types
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from .names import SCOPES
from .trees import function_of, walk

FUTURES = 0
for _name in __import__("__future__").all_feature_names:
    FUTURES |= getattr(__import__("__future__"), _name).compiler_flag

FunctionNode = ast.FunctionDef | ast.Lambda
_trees: "weakref.WeakKeyDictionary[types.CodeType, FunctionNode | str]" = weakref.WeakKeyDictionary()


class NoSource(Exception):
    """The source of a function is not available, or does not match its code; the message says why."""


def written(function: types.FunctionType) -> types.FunctionType:
    """Return the original of a jitted function, with its current defaults; any other function itself.

    `functools.wraps` copies `__xcs__` to wrappers, so it counts only if it belongs to this function and the
    code is unchanged.
    """
    jitted = vars(function).get("__xcs__")
    if jitted is None or jitted.function is not function or jitted.code is not function.__code__:
        return function
    original, defaults, by_name = jitted.original, function.__defaults__, function.__kwdefaults__
    if original.__defaults__ is defaults and original.__kwdefaults__ is by_name:
        return original
    code, space, cells = original.__code__, original.__globals__, original.__closure__
    made = types.FunctionType(code, space, original.__name__, defaults, cells)
    made.__kwdefaults__ = by_name
    for name in functools.WRAPPER_ASSIGNMENTS:
        setattr(made, name, getattr(original, name))
    vars(made).update(vars(original))
    return made


def tree_of(fn: types.FunctionType) -> FunctionNode:
    """Return the syntax tree of a Python function, with line numbers of its file. Raises `NoSource`."""
    code = fn.__code__
    found = _trees.get(code)
    if found is None:
        try:
            found = _find(code)
        except NoSource as reason:
            found = str(reason)
        _trees[code] = found
    if isinstance(found, str):
        raise NoSource(found)
    return found


def _find(code: types.CodeType) -> FunctionNode:
    special = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    if code.co_flags & special:
        kind = "a generator function" if code.co_flags & inspect.CO_GENERATOR else "a coroutine function"
        raise NoSource(f"{kind} is not analysed")
    try:
        lines, start = inspect.getsourcelines(code)
    except (OSError, TypeError, IndexError, SyntaxError):
        raise NoSource("its source code is not available") from None
    for node in _candidates("".join(lines), max(start, 1), code):
        found = private_names(node, code.co_qualname)
        with contextlib.suppress(SyntaxError):  # a fragment alone may not compile
            if matches(found, code):
                return found
    raise NoSource("its source code is not what it was compiled from: the file or the function was changed")


def _candidates(text: str, start: int, code: types.CodeType) -> list[FunctionNode]:
    """Return functions of that name in the text; for a lambda, all lambdas of the file on its line."""
    if code.co_name == "<lambda>":
        whole = "".join(linecache.getlines(code.co_filename))
        lambdas = [n for n in walk(_parsed(whole)) if isinstance(n, ast.Lambda)]
        return [n for n in lambdas if n.lineno <= code.co_firstlineno <= (n.end_lineno or n.lineno)]
    before = ["\n"] * (start - 1)  # for the line numbers
    if text[:1].isspace():  # dedenting would change multi-line strings
        before[-1:] = ["if True:\n"]
    tree = _parsed("".join([*before, text]))
    return [n for n in walk(tree) if isinstance(n, ast.FunctionDef) and n.name == code.co_name]


@contextlib.contextmanager
def unwarned(file: str) -> Iterator[None]:
    """Suppress warnings about this file, since they were shown when it was imported.

    Inserts into `warnings.filters` directly. The functions of `warnings` would also invalidate the registries
    of warnings already shown, and these would be shown again.
    """
    place = re.compile(re.escape(file.removesuffix(".py")) + r"\Z")
    ignored = ("ignore", None, Warning, place, 0)
    filters: Any = warnings.filters
    filters.insert(0, ignored)
    try:
        yield
    finally:
        filters.remove(ignored)


def _parsed(text: str) -> ast.Module:
    try:
        with unwarned("<unknown>"):
            return ast.parse(text)
    except SyntaxError:
        raise NoSource("its source code cannot be parsed on its own") from None


def matches(node: FunctionNode, code: types.CodeType) -> bool:
    """Return whether the node compiles to this code. `a.b()` compiles differently if the file imports `a`."""
    if _same_code(compiled(node, code, code.co_freevars), code):
        return True
    imports = _imports(code.co_filename, tuple(linecache.getlines(code.co_filename)))
    return bool(imports) and _same_code(compiled(node, code, code.co_freevars, imports), code)


@functools.lru_cache(maxsize=64)
def _imports(filename: str, lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that a file imports at its top level."""
    try:
        tops = [top for top in _parsed("".join(lines)).body if not isinstance(top, SCOPES)]
    except NoSource:
        return ()
    found = [part for top in tops for part in walk(top) if isinstance(part, ast.alias)]
    return tuple((a.asname or a.name).split(".")[0] for a in found if a.name != "*")


def compiled(
    node: FunctionNode, like: types.CodeType, free: Sequence[str], imports: Sequence[str] = ()
) -> types.CodeType:
    """Compile a function node inside a function with variables `free`, which become free variables."""
    body: list[ast.stmt] = [ast.copy_location(ast.Expr(node), node)]  # type: ignore[arg-type]
    name = "<lambda>"
    if isinstance(node, ast.FunctionDef):
        name = node.name
        bare = ast.FunctionDef(**{**dict(ast.iter_fields(node)), "decorator_list": []})
        body = [ast.copy_location(bare, node)]
        if name not in free:
            body.insert(0, ast.Global([name]))  # for recursive calls
    outer = function_of("outer", list(free), body, node)
    above: list[ast.stmt] = [ast.Import([ast.alias(name)]) for name in imports]
    module = ast.fix_missing_locations(ast.Module([*above, outer], []))
    with unwarned(like.co_filename):
        built = compile(module, like.co_filename, "exec", like.co_flags & FUTURES, dont_inherit=True)
    return _nested(_nested(built, "outer"), name)


def _nested(code: types.CodeType, name: str) -> types.CodeType:
    """Return the last nested function of that name (defaults may contain lambdas before it)."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name]
    return inner[-1]


_COMPARED = operator.attrgetter("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars",
                                "co_argcount", "co_kwonlyargcount")  # fmt: skip


def _same_code(a: types.CodeType, b: types.CodeType) -> bool:
    """Return whether two code objects are equal except for locations.

    Constants are compared by type and value.
    """
    alike = _COMPARED(a) == _COMPARED(b) and not (a.co_flags ^ b.co_flags) & ~inspect.CO_NESTED
    return (
        alike and len(a.co_consts) == len(b.co_consts) and all(map(_same_constant, a.co_consts, b.co_consts))
    )


def _same_constant(x: Any, y: Any) -> bool:
    if isinstance(x, types.CodeType) and isinstance(y, types.CodeType):
        return _same_code(x, y)
    if isinstance(x, str) and isinstance(y, str) and ".<locals>" in y:
        return True  # a qualified name
    return type(x) is type(y) and repr(x) == repr(y)


# Nodes with strings that are not variable or attribute names.
_NO_NAMES = (ast.Constant, ast.keyword, ast.ImportFrom)


def private_names(node: Any, qualified: str) -> Any:
    """Apply Python's mangling of private names to a method.

    Nested classes are not handled; the result then does not match the code and is rejected.
    """
    parts = qualified.split(".")[:-1]
    while parts and parts[-1] == "<locals>":  # a function inside a method
        parts = parts[:-2]
    owner = parts[-1].lstrip("_") if parts else ""

    def written(name: Any) -> Any:
        private = isinstance(name, str) and name.startswith("__") and not name.endswith("__")
        return f"_{owner}{name}" if private else name

    for part in walk(node) if owner else ():
        for name, value in ast.iter_fields(part):
            if isinstance(value, list):
                setattr(part, name, list(map(written, value)))
            elif not isinstance(part, _NO_NAMES) and part is not node:
                setattr(part, name, written(value))
    return node
