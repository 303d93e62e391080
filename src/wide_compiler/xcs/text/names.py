"""How AST nodes use names: read, store, capture."""

import ast
from collections.abc import Iterable, Iterator

from .trees import children, walk

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BINDERS = (ast.ExceptHandler, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.MatchAs, ast.MatchStar,
           ast.MatchMapping)  # fmt: skip
CONSUMERS = {
    "sum": ("start",), "max": ("key", "default"), "min": ("key", "default"), "sorted": ("key", "reverse"),
    "any": (), "all": (), "list": (), "tuple": (), "set": (), "frozenset": (), "dict": (),
}  # name of the consumer: its options  # fmt: skip
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def mentioned(*nodes: ast.AST) -> set[str]:
    """Return all names in the nodes, in any scope, read or stored."""
    return {part.id for part in walk(*nodes) if isinstance(part, ast.Name)}


def stored(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that the nodes bind in this scope.

    Variables of comprehensions have their own scope.
    """
    found: set[str] = set()
    for part in (part for node in nodes for part in within_scope(node)):
        if isinstance(part, ast.Name) and isinstance(part.ctx, (ast.Store, ast.Del)):
            found.add(part.id)
        elif isinstance(part, ast.alias):
            found.add((part.asname or part.name).split(".")[0])
        elif isinstance(part, BINDERS):
            found.add(getattr(part, "rest", None) or getattr(part, "name", None) or "")
    return found - {""}


def within_scope(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and its descendants in this scope; of comprehensions, only walrus targets."""
    yield node
    if isinstance(node, COMPREHENSIONS):
        yield from (part.target for part in walk(node) if isinstance(part, ast.NamedExpr))
    elif not isinstance(node, SCOPES):
        for child in children(node):
            yield from within_scope(child)


def captured(function: ast.AST) -> set[str]:
    """Return names that other code may read or store: those used in nested functions, lambdas and stored
    generators, and those declared global or nonlocal."""
    found: set[str] = set()
    body = getattr(function, "body", function)  # excludes decorators, defaults and annotations
    for top in body if isinstance(body, list) else [body]:
        nodes = walk(top)
        found.update(*(n.names for n in nodes if isinstance(n, (ast.Global, ast.Nonlocal))))
        found |= mentioned(*(n for n in nodes if isinstance(n, SCOPES)), *kept_generators(top))
    return found


def kept_generators(function: ast.AST) -> list[ast.GeneratorExp]:
    """Return generator expressions that are not consumed immediately, and so read names later."""
    parts = walk(function)
    nodes = [n for n in parts if isinstance(n, ast.GeneratorExp) and n is not function]
    gone = {id(n.args[0]) for n in parts if isinstance(n, ast.Call) and is_consumed(n)} if nodes else ()
    return [n for n in nodes if id(n) not in gone]


def is_consumed(node: ast.Call) -> bool:
    """Return whether a call consumes a generator at once: `sum(... for ...)`, `''.join(... for ...)`."""
    match node:
        case ast.Call(ast.Attribute(ast.Constant(), "join"), [ast.GeneratorExp()], []):
            return True
        case ast.Call(ast.Name(consumer), [ast.GeneratorExp(), *rest], keywords) if consumer in CONSUMERS:
            simple = all(
                isinstance(a, (ast.Constant, ast.Name)) for a in [*rest, *(k.value for k in keywords)]
            )
            started = not rest or (consumer == "sum" and len(rest) == 1 and not keywords)
            return simple and started and all(k.arg in CONSUMERS[consumer] for k in keywords)
    return False


def reads(node: ast.AST, name: str) -> bool:
    """Return whether the name is read in the node. A comprehension's own variable is a different name."""
    if isinstance(node, COMPREHENSIONS) and name in mentioned(*(g.target for g in node.generators)):
        return reads(node.generators[0].iter, name)
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Store)
    return any(reads(child, name) for child in children(node))
