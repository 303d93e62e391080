"""Find the places of a function that may be sites, from the source alone.

A site is a comprehension, a generator consumed whole by a builtin, a loop that fills new lists, dicts, sets
or accumulators, or a run of statements that do not read each other's results. `comprehension` and `loop`
return the reason why a place cannot be a site, or None.
"""

import ast
import builtins
import itertools
from dataclasses import dataclass, field
from typing import Any

from ..ir import graph_of
from .liveness import TRIES, Block, Body, live_after, read_first
from .names import COMPREHENSIONS, kept_generators, mentioned, reads, stored
from .trees import children, walk

SHORT_CIRCUIT = ("any", "all")
SOURCES = ("zip", "enumerate")
FRAME_READERS = ("locals", "eval", "exec", "vars", "dir")
METHODS = {"append": "list", "add": "set"}
TOTALS = ("accumulate", "carried")


@dataclass
class Sink:
    """What a loop fills: a container, an accumulator, or a name carried to the next iteration.

    Attributes:
        kind: 'append', 'add', 'setitem' (`[...] =`), 'update' (`[...] +=`), 'accumulate' or 'carried'.
        operator: the AST operator of an augmented assignment.
        maker: the function that made the container, such as `set`; checked at run time, as the name may be
            rebound.
    """

    name: str
    kind: str
    operator: type[ast.operator] | None = None
    maker: str = field(default="", compare=False)


def flat_target(target: ast.expr) -> list[str] | None:
    """Return the names in a target such as `x`, `(a, b)` or `(i, (a, b))`; None for other targets."""
    parts = walk(target)
    if not all(isinstance(part, (ast.Name, ast.Tuple, ast.List, ast.expr_context)) for part in parts):
        return None
    found = [part for part in parts if isinstance(part, ast.Name)]
    names = [part.id for part in sorted(found, key=lambda part: (part.lineno, part.col_offset))]
    return names if len(set(names)) == len(names) else None


# AST nodes that may not occur in the body of a site (`EXITS`: of a loop), with the reason.
UNSUITABLE: dict[Any, str] = {
    ast.NamedExpr: "it assigns with :=",
    (ast.Await, ast.Yield, ast.YieldFrom): "it awaits or yields",
    (ast.Lambda, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef):
        "it makes a function, which would capture the loop's variables",
    (ast.Global, ast.Nonlocal): "it declares a global or nonlocal name",
}  # fmt: skip
EXITS: dict[Any, str] = {
    ast.Return: "it has a return statement",
    ast.Delete: "it has a del statement",
    (ast.Import, ast.ImportFrom): "it has an import statement",
}


def unsuitable(node: ast.AST, more: dict[Any, str] | None = None) -> str | None:
    """Return why a body cannot be part of a site, or None."""
    parts = walk(node)
    for kinds, why in {**UNSUITABLE, **(more or {})}.items():
        if any(isinstance(part, kinds) for part in parts):
            return why
    if any(isinstance(part, ast.comprehension) and part.is_async for part in parts):
        return "it has an async comprehension"
    later = "it makes a generator, which would read the loop's variables later"
    return later if kept_generators(node) else None


def comprehension(node: Any) -> str | None:
    targets = [flat_target(generator.target) for generator in node.generators]
    if None in targets:
        return "its loop variable is not a plain name or tuple of names"
    names = [name for target in targets for name in target or ()]
    return unsuitable(node) if len(set(names)) == len(names) else "two of its loops use the same variable"


def loop(node: ast.For, block: Block, function: ast.AST, held: set[str]) -> tuple[list[Sink], str | None]:
    """Return the sinks of a loop that may be a site, or the reason why it cannot.

    `held` are the names of the function that other scopes may read or store.
    """
    names, body = flat_target(node.target), ast.Module(node.body, [])
    if names is None:
        return [], "its loop variable is not a plain name or tuple of names"
    reason = unsuitable(body, EXITS) or ("it has a break statement" if _breaks(body) else None)
    if reason:
        return [], reason
    carried = carrying(node, block)
    sinks = _sinks(node.body) if carried is None else [Sink(name, "carried") for name in carried.names]
    by_name = {sink.name: sink for sink in sinks}
    if not sinks:
        return [], "it fills no list, set, dict or accumulator"
    if any(by_name[s.name] != s for s in sinks):
        return [], "it fills one container in two ways"
    own = stored(node.body)
    for name in dict.fromkeys([*by_name, *names, *own]):
        if name in held:
            return [], f"{name!r} is global, nonlocal or used by a nested function"
        if name in by_name:
            reason = _sink_trouble(by_name[name], node, block, function)
            if reason:
                return [], reason
        elif name in names and name in own:
            return [], f"it assigns to its own loop variable {name!r}"
        elif name not in names and read_first(node.body, name, swallowing=False):
            return [], f"{name!r} is carried from one iteration to the next"
        elif live_after(node, block, name):
            return [], f"{name!r} is used after the loop"
    return list(by_name.values()), None


def sink_of(statement: ast.AST) -> Sink | None:
    """Return the sink of `out.append(v)`, `seen.add(v)`, `table[k] = v`, `total += v` or `table[k] += v`;
    else None."""
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


def sinks_in(*nodes: ast.AST) -> list[Sink]:
    """Return all sinks in the nodes, in order."""
    found = [sink_of(part) for node in nodes for part in walk(node)]
    return [sink for sink in found if sink is not None]


@dataclass
class Carrying:
    """The last statements of an iteration, which carry names to the next: `if score > best: best = score`.

    Attributes:
        names: the carried names.
        start: index of the first of these statements.
        reads: names they read that earlier statements or the loop itself have stored.
        calls: builtins they call.
    """

    names: list[str]
    start: int
    reads: list[str]
    calls: list[str]


CALLED = ("min", "max", "abs", "len", "float", "int")
_CARRYING = (
    ast.If, ast.Assign, ast.AugAssign, ast.Pass, ast.Name, ast.Constant, ast.Compare, ast.BoolOp, ast.BinOp,
    ast.UnaryOp, ast.IfExp, ast.Tuple, ast.Call, ast.expr_context, ast.operator, ast.unaryop, ast.cmpop,
    ast.boolop,
)  # fmt: skip


def carrying(node: ast.For, block: Block) -> Carrying | None:
    """Return the carrying statements of a loop; None unless they only compute with plain names."""
    own = stored(node.body)
    carried = {name for name in own if read_first(node.body, name, swallowing=False)}
    start = next((i for i, s in enumerate(node.body) if mentioned(s) & carried), 0)
    first, last = node.body[:start], node.body[start:]
    parts = [part for statement in last for part in walk(statement)]
    calls = [p for p in parts if isinstance(p, ast.Call)]
    called = {p.func.id if isinstance(p.func, ast.Name) else "" for p in calls}
    if (
        not start
        or node.orelse
        or not all(isinstance(p, _CARRYING) for p in parts)
        or not called <= set(CALLED) - own
        or any(p.keywords for p in calls)
        or all(sink_of(s) is not None for s in last)
        or stored(last) & stored(first)
    ):
        return None
    carried |= {name for name in stored(last) if live_after(node, block, name)}
    before = [*(flat_target(node.target) or []), *sorted(stored(first))]
    return Carrying(sorted(carried), start, [n for n in before if n in mentioned(*last)], sorted(called))


def _sinks(body: Body) -> list[Sink]:
    """Return the sinks in a body, except those of containers that the body makes itself."""
    own = {name for name in stored(body) if not read_first(body, name, swallowing=False)}
    return [sink for sink in sinks_in(*body) if sink.name not in own]


def _sink_trouble(sink: Sink, node: ast.For, block: Block, function: ast.AST) -> str | None:
    names = [n for top in node.body for n in walk(top) if isinstance(n, ast.Name) and n.id == sink.name]
    read = sink.kind != "carried" and len(names) != sinks_in(*node.body).count(sink)
    if read or reads(node.iter, sink.name):
        return f"{sink.name!r} is read while it is filled"
    if sink.kind not in TOTALS and not _fresh_before(sink, block):
        return f"{sink.name!r} is not a new container, made right before the loop"
    if sink.kind in TOTALS and not _bound_before(sink.name, block, function):
        return f"{sink.name!r} may be unbound before the loop"
    return None


def _bound_before(name: str, block: Block, function: ast.AST) -> bool:
    """Return whether the name is a parameter or assigned above, and never deleted."""
    for node in walk(function):
        deleted = isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Del)
        if deleted or (isinstance(node, ast.ExceptHandler) and node.name == name):
            return False
    above = [s for b in block.around() for s in b.statements[: b.index]]
    arguments = {a.arg for a in walk(getattr(function, "args", function)) if isinstance(a, ast.arg)}
    return name in arguments or any(isinstance(s, ast.Assign) and name in stored(s.targets) for s in above)


def _fresh_before(sink: Sink, block: Block) -> bool:
    """Return whether the name is bound to a new container above and not mentioned since."""
    for here in block.around():
        for statement in reversed(here.statements[: here.index]):
            if sink.name not in mentioned(statement) | stored([statement]):
                continue
            match statement:
                case ast.Assign([ast.Name()], value) | ast.AnnAssign(ast.Name(), _, value):
                    return value is not None and _makes(value, sink)
            return False
        owner = here.owner
        if not isinstance(owner, (ast.Try, ast.With, ast.If)) or here.statements is not owner.body:
            return False
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
    """Return whether the node has a `break` that does not belong to an inner loop."""
    loop = isinstance(node, (ast.For, ast.While))
    inner = node.orelse if loop else children(node)  # type: ignore[attr-defined]
    return isinstance(node, ast.Break) or any(map(_breaks, inner))


def caught(body: Body, sinks: list[Sink]) -> bool:
    """Return whether a container is filled inside a `try` that could catch an exception from filling it.

    Appending to a list never fails, and filling other containers never raises OSError.
    """
    tries = [part for top in body for part in walk(top) if isinstance(part, TRIES)]
    seen: list[ast.stmt] = [t for t in tries if t.finalbody]
    seen += [s for t in tries if not all(_of_reading(h.type) for h in t.handlers) for s in t.body]
    return any(sink in sinks and sink.kind != "append" for sink in sinks_in(*seen))


def _of_reading(kind: ast.expr | None) -> bool:
    named = getattr(builtins, kind.id, None) if isinstance(kind, ast.Name) else None
    return isinstance(named, type) and issubclass(named, OSError)


def independent_run(block: Block, held: set[str]) -> int:
    """Return how many statements `name = <call>` from here on do not read each other's names.

    Names that are captured or not local end the run, since any call may read them.
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
    """Return whether an expression contains a call and nothing that is a site itself."""
    parts = walk(value)
    inside = any(isinstance(part, COMPREHENSIONS) for part in parts) or unsuitable(value)
    return not inside and any(isinstance(part, ast.Call) for part in parts)
