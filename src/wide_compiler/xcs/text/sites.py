"""Which places of a function may be sites: what can be told from the text alone.

A site is a comprehension, a generator handed to a builtin that eats it whole, a loop that fills fresh lists,
dicts, sets or accumulators, or a run of statements of which none reads what another stores. Each finder gives
the reason why not, or None.
"""

import ast
import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..ir import graph_of
from .liveness import Block, Body, live_after, read_before_stored
from .names import COMPREHENSIONS, captured, eaten, handled, kept_generators, reads, stored

SHORT_CIRCUIT = ("any", "all")
SOURCES = ("zip", "enumerate")
FRAME_READERS = ("locals", "eval", "exec", "vars", "dir")
METHODS = {"append": "list", "add": "set"}
TOTALS = ("accumulate", "carried")


@dataclass
class Sink:
    """What a loop fills: a fresh list, set or dict (by `append`, `add`, `[...] =`, `[...] +=`), an
    accumulator, or a name that the last statements of a round carry on to the next."""

    name: str
    kind: str
    operator: type[ast.operator] | None = None
    maker: str = field(
        default="", compare=False
    )  # `set` if it is made by `set()`, a name that could be anything


def flat_target(target: ast.expr) -> list[str] | None:
    """Names of `x`, `(a, b)` or `(i, (a, b))` in order, if that is all there is."""
    parts = list(ast.walk(target))
    if not all(isinstance(part, (ast.Name, ast.Tuple, ast.List, ast.expr_context)) for part in parts):
        return None
    found = [part for part in parts if isinstance(part, ast.Name)]
    names = [part.id for part in sorted(found, key=lambda part: (part.lineno, part.col_offset))]
    return names if len(set(names)) == len(names) else None


# What may not be in the body of a site, nor in that of a loop.
UNSUITABLE: dict[Any, str] = {
    ast.NamedExpr: "it assigns with :=",
    (ast.Await, ast.Yield, ast.YieldFrom): "it awaits or yields",
    (ast.Lambda, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef):
        "it makes a function, which would capture the loop's variables",
    (ast.Global, ast.Nonlocal): "it declares a global or nonlocal name",
}  # fmt: skip
EXITS: dict[Any, str] = {
    ast.Return: "it returns from the middle",
    ast.Delete: "it deletes something",
    (ast.Import, ast.ImportFrom): "it imports",
}


def _first(table: dict[Any, str], node: ast.AST) -> str | None:
    """The reason of the first part that is in a table."""
    return next(
        (why for part in ast.walk(node) for kinds, why in table.items() if isinstance(part, kinds)), None
    )


def unsuitable(node: ast.AST) -> str | None:
    """Things that may not be in the body of a site."""
    if any(isinstance(part, ast.comprehension) and part.is_async for part in ast.walk(node)):
        return "it is asynchronous"
    if kept_generators(node) and not _first(UNSUITABLE, node):
        return "it makes a generator, which would read the loop's variables later"
    return _first(UNSUITABLE, node)


def comprehension(node: Any) -> str | None:
    targets = [flat_target(generator.target) for generator in node.generators]
    if None in targets:
        return "its loop variable is not a plain name or tuple of names"
    names = [name for target in targets for name in target or ()]
    if len(set(names)) != len(names):
        return "two of its loops use one name"
    return unsuitable(node)


def within_loop(node: Any) -> str | None:
    """Why a comprehension that runs in each round of a loop is not worth being asked about each time."""
    names = [name for generator in node.generators for name in flat_target(generator.target) or ()]
    if isinstance(node, (ast.ListComp, ast.SetComp)) and _of_text(node.elt, names):
        return "its items are texts, which no rung is faster with"
    return None


# Methods that texts have, and neither arrays nor tensors.
_OF_TEXT = frozenset(vars(str)) - frozenset(dir(np.ndarray)) - frozenset(dir(torch.Tensor))


def _of_text(value: ast.expr, names: list[str]) -> bool:
    """Is it `word.strip().lower()` of a loop variable?"""
    match value:
        case ast.Call(ast.Attribute(inner, method), args, []) if method in _OF_TEXT:
            plain = all(isinstance(argument, ast.Constant) for argument in args)
            return plain and ((isinstance(inner, ast.Name) and inner.id in names) or _of_text(inner, names))
    return False


def loop(node: ast.For, block: Block, function: ast.AST) -> tuple[list[Sink], str | None]:
    """The sinks of a loop that may be a site, or why it may not."""
    names = flat_target(node.target)
    if names is None:
        return [], "its loop variable is not a plain name or tuple of names"
    body = ast.Module(node.body, [])
    reason = unsuitable(body) or _first(EXITS, body) or ("it breaks off early" if _breaks(body) else None)
    if reason:
        return [], reason
    carried = carrying(node, block)
    sinks = _sinks(node.body) if carried is None else [Sink(name, "carried") for name in carried.names]
    if not sinks:
        return [], "it fills no list, set, dict or accumulator"
    return _checked(sinks, names, node, block, function)


def _checked(
    sinks: list[Sink], names: list[str], node: ast.For, block: Block, function: ast.AST
) -> tuple[list[Sink], str | None]:
    by_name = {sink.name: sink for sink in sinks}
    if any(by_name[s.name] != s for s in sinks):
        return [], "it fills one name in two ways"
    held = captured(function)
    for sink in by_name.values():
        if sink.name in held:
            return [], f"{sink.name!r} is captured by a function or not local"
        reason = _sink_trouble(sink, node, block, function)
        if reason:
            return [], reason
    for name in [*names, *stored(node.body)]:
        if name in by_name:
            continue
        if name in held:
            return [], f"{name!r} is captured by a function or not local"
        if name not in names and read_before_stored(node.body, name):
            return [], f"{name!r} is carried from one round to the next"
        if name in names and name in stored(node.body):
            return [], f"it assigns its own loop variable {name!r}"
        if live_after(node, block, name):
            return [], f"{name!r} is used after the loop"
    return list(by_name.values()), None


def sink_of(statement: ast.stmt) -> Sink | None:
    """`out.append(v)`, `seen.add(v)`, `table[k] = v` or `total += v`."""
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), method), [value], [])) if method in METHODS:
            return None if isinstance(value, ast.Starred) else Sink(name, method)
        case ast.Assign([ast.Subscript(ast.Name(name), _)], _):
            return Sink(name, "setitem")
        case ast.AugAssign(ast.Name(name), operator, _):
            return Sink(name, "accumulate", type(operator))
        case ast.AugAssign(ast.Subscript(ast.Name(name), _), operator, _):
            return Sink(name, "update", type(operator))
    return None


@dataclass
class Carrying:
    """The last statements of a round, which carry names on to the next: `if score > best: best = score`."""

    names: list[str]  # that are carried
    start: int  # of these statements
    reads: list[str]  # of what the statements before them, or the loop itself, have stored
    calls: list[str]  # builtins


CALLED = ("min", "max", "abs", "len", "float", "int")
_CARRYING = (
    ast.If, ast.Assign, ast.AugAssign, ast.Pass, ast.Name, ast.Constant, ast.Compare, ast.BoolOp, ast.BinOp,
    ast.UnaryOp, ast.IfExp, ast.Tuple, ast.Call, ast.expr_context, ast.operator, ast.unaryop, ast.cmpop,
    ast.boolop,
)  # fmt: skip


def carrying(node: ast.For, block: Block) -> Carrying | None:
    """Those of a loop, if they do nothing but compare, compute with and store plain names."""
    own = [*stored(node.body)]
    carried = sorted(name for name in own if read_before_stored(node.body, name))
    mentions = [{n.id for n in ast.walk(s) if isinstance(n, ast.Name)} for s in node.body]
    start = next((i for i, names in enumerate(mentions) if names & set(carried)), 0)
    last = node.body[start:]
    parts = [part for statement in last for part in ast.walk(statement)]
    calls = [p.func.id if isinstance(p.func, ast.Name) else "" for p in parts if isinstance(p, ast.Call)]
    if (
        not start
        or node.orelse
        or not all(isinstance(p, _CARRYING) for p in parts)
        or not set(calls) <= set(CALLED)
    ):
        return None
    if all(sink_of(s) is not None for s in last) or any(
        isinstance(p, ast.Call) and p.keywords for p in parts
    ):
        return None
    if stored(last) & stored(node.body[:start]) or set(calls) & set(own):
        return None
    carried = sorted({*carried, *(n for n in stored(last) if live_after(node, block, n))})
    before = [*(flat_target(node.target) or []), *sorted(stored(node.body[:start]))]
    reads_ = [name for name in before if any(name in names for names in mentions[start:])]
    return Carrying(carried, start, reads_, sorted(set(calls)))


def _sinks(body: Body) -> list[Sink]:
    """Every statement that fills something which the body does not make itself."""
    own = {name for name in stored(body) if not read_before_stored(body, name)}
    found = [sink_of(part) for top in body for part in ast.walk(top) if isinstance(part, ast.stmt)]
    return [sink for sink in found if sink is not None and sink.name not in own]


def _sink_trouble(sink: Sink, node: ast.For, block: Block, function: ast.AST) -> str | None:
    mentions = [
        n for top in node.body for n in ast.walk(top) if isinstance(n, ast.Name) and n.id == sink.name
    ]
    fills = [p for top in node.body for p in ast.walk(top) if isinstance(p, ast.stmt) and sink_of(p) == sink]
    carried = sink.kind == "carried"
    if (not carried and len(mentions) != len(fills)) or reads(node.iter, sink.name):
        return f"{sink.name!r} is read while it is filled"
    if sink.kind not in TOTALS and not _fresh_before(sink, block):
        return f"{sink.name!r} is not made fresh right before the loop"
    if sink.kind in TOTALS and not _bound_before(sink.name, block, function):
        return f"{sink.name!r} may not be set before the loop"
    return None


def _bound_before(name: str, block: Block | None, function: ast.AST) -> bool:
    """Is the name a parameter, or plainly assigned above, and never unset?"""
    for node in ast.walk(function):
        deleted = isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Del)
        if deleted or (isinstance(node, ast.ExceptHandler) and node.name == name):
            return False
    while block is not None:
        for statement in block.statements[: block.index]:
            if isinstance(statement, ast.Assign) and name in stored(statement.targets):
                return True
        if isinstance(block.owner, ast.FunctionDef):
            return name in {a.arg for a in ast.walk(block.owner.args) if isinstance(a, ast.arg)}
        block = block.outer
    return False


def _fresh_before(sink: Sink, block: Block | None) -> bool:
    """Is the name bound to a new, empty or literal, container above, and not mentioned since?"""
    while block is not None:
        for statement in reversed(block.statements[: block.index]):
            mentioned = any(isinstance(n, ast.Name) and n.id == sink.name for n in ast.walk(statement))
            if not mentioned and sink.name not in stored([statement]):
                continue
            match statement:
                case ast.Assign([ast.Name()], value) | ast.AnnAssign(ast.Name(), _, value):
                    return value is not None and _makes(value, sink)
            return False
        around = isinstance(block.owner, (ast.Try, ast.With, ast.If)) and block.statements is block.owner.body
        block = block.outer if around else None
    return False


MAKES: dict[str, tuple[str, type[ast.expr]]] = {
    "append": ("list", ast.List), "add": ("set", ast.Set), "setitem": ("dict", ast.Dict),
    "update": ("dict", ast.Dict),
}  # fmt: skip


def _makes(value: ast.expr, sink: Sink) -> bool:
    name, display = MAKES[sink.kind]
    match value:
        case ast.Call(ast.Name(called)) if called == name:
            sink.maker = name
            return True
        case ast.Call(
            (ast.Name("defaultdict") | ast.Attribute(ast.Name("collections"), "defaultdict")) as maker,
            [ast.Name()],
            [],
        ) if sink.kind == "update":
            sink.maker = ast.unparse(maker)
            return True
    return isinstance(value, display) and not reads(value, sink.name)


def _breaks(node: ast.AST) -> bool:
    """Is there a `break` that belongs to no loop inside?"""
    loop = isinstance(node, (ast.For, ast.While))
    inner = node.orelse if loop else ast.iter_child_nodes(node)  # type: ignore[attr-defined]
    return isinstance(node, ast.Break) or any(map(_breaks, inner))


def independent_run(block: Block, held: set[str]) -> int:
    """How many statements from here on are `name = something with a call`, none reading another's name.

    A name that is held by a function or is not local may be read by any call.
    """
    made: dict[str, ast.stmt] = {}
    for statement in block.statements[block.index :]:
        match statement:
            case ast.Assign([ast.Name(name)], value):
                if name in made or name in held or not _worth_overlapping(value):
                    break
                made[name] = statement
            case _:
                break
    if len(made) < 2:
        return len(made)
    nodes = graph_of(made.values()).nodes.values()
    return len(list(itertools.takewhile(lambda node: not node.inputs, nodes)))


def _worth_overlapping(value: ast.expr) -> bool:
    """A call of something, and nothing that is a site by itself."""
    if unsuitable(value) or any(isinstance(n, COMPREHENSIONS) for n in ast.walk(value)):
        return False
    return any(isinstance(n, ast.Call) for n in ast.walk(value))


# Sinks within a `try`: they are filled after the bodies have run, yet the `try` must see any error.

FILLING: dict[str, tuple[type[Exception], ...]] = {
    "add": (TypeError,),
    "setitem": (TypeError,),
    "accumulate": (TypeError, ArithmeticError, ValueError, MemoryError),
    "update": (TypeError, LookupError, ArithmeticError, ValueError, MemoryError),
    "carried": (Exception,),
}  # what filling a sink may raise


def caught(body: Body, sinks: list[Sink]) -> bool:
    """Does a body fill something within a `try` where that could raise, and somebody there notice?"""
    tries = [t for top in body for t in ast.walk(top) if isinstance(t, (ast.Try, ast.TryStar))]
    return any(_catches(t, sink) for t in tries for sink in _raising(t, sinks))


def _raising(node: ast.AST, sinks: list[Sink]) -> list[Sink]:
    """What is filled inside that may refuse a value: a list takes anything."""
    found = [sink_of(part) for part in ast.walk(node) if isinstance(part, ast.stmt)]
    return [sink for sink in found if sink in sinks and sink is not None and sink.kind != "append"]


def _catches(node: "ast.Try | ast.TryStar", sink: Sink) -> bool:
    """Would a handler or `finally` of this `try` see the error of filling this sink?"""
    if node.finalbody:
        return True
    if not any(sink in _raising(part, [sink]) for part in node.body):
        return False
    return any(_related(kind, FILLING[sink.kind]) for h in node.handlers for kind in handled(h))


def _related(kind: type | None, errors: tuple[type[Exception], ...]) -> bool:
    """May an `except` of this catch one of these errors? Only builtin classes say no."""
    return kind is None or any(issubclass(kind, e) or issubclass(e, kind) for e in errors)


def eaten_map(node: ast.Call) -> ast.Call | None:
    """The `map` in `list(map(f, xs))` and the like. Only of a function and a list that have names: then
    nothing happens between asking for one and the other, so it does not matter that `map` asks for its
    function once."""
    match node.args[:1]:
        case [ast.Call(ast.Name("map"), [function, ast.Name()], []) as mapped] if _named(function):
            generator = ast.GeneratorExp(function, [])
            return mapped if eaten(ast.Call(node.func, [generator, *node.args[1:]], node.keywords)) else None
    return None


def _named(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)
