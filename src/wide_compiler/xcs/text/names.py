"""What a piece of code does with a name: who reads it, who writes it, who captures it."""

import ast
from collections.abc import Iterable, Iterator

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BINDERS = (ast.ExceptHandler, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.MatchAs, ast.MatchStar,
           ast.MatchMapping)  # fmt: skip
EATERS = {
    "sum": ("start",), "max": ("key", "default"), "min": ("key", "default"), "sorted": ("key", "reverse"),
    "any": (), "all": (), "list": (), "tuple": (), "set": (), "frozenset": (), "dict": (),
}  # and the options they take  # fmt: skip
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def mentioned(*nodes: ast.AST) -> set[str]:
    """All names in there, read or stored, whoever's they are."""
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}


def stored(nodes: Iterable[ast.AST]) -> set[str]:
    """Names bound in this scope by the nodes; those of comprehensions are their own."""
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
    """The node and all below it, but not into functions; of comprehensions only what leaks (walrus)."""
    yield node
    if isinstance(node, COMPREHENSIONS):
        yield from (part.target for part in ast.walk(node) if isinstance(part, ast.NamedExpr))
    elif not isinstance(node, SCOPES):
        for child in ast.iter_child_nodes(node):
            yield from within_scope(child)


def captured(function: ast.AST) -> set[str]:
    """Names that may be read or stored from elsewhere: those that functions, lambdas and kept generators
    inside mention (whoever's they are), and those declared global or nonlocal."""
    found: set[str] = set()
    body = getattr(function, "body", function)  # decorators, defaults and annotations are not inside
    for top in body if isinstance(body, list) else [body]:
        nodes = list(ast.walk(top))
        found.update(*(n.names for n in nodes if isinstance(n, (ast.Global, ast.Nonlocal))))
        found |= mentioned(*(n for n in nodes if isinstance(n, SCOPES)), *kept_generators(top))
    return found


def kept_generators(function: ast.AST) -> list[ast.GeneratorExp]:
    """Generators inside that are not eaten on the spot: they run later, and read names as they are then."""
    gone = {id(n.args[0]) for n in ast.walk(function) if isinstance(n, ast.Call) and eaten(n)}
    nodes = [n for n in ast.walk(function) if isinstance(n, ast.GeneratorExp) and n is not function]
    return [n for n in nodes if id(n) not in gone]


def eaten(node: ast.Call) -> bool:
    """Is this `sum(... for ...)`, `"".join(... for ...)` or the like, with arguments that it takes?"""
    match node:
        case ast.Call(ast.Attribute(ast.Constant(), "join"), [ast.GeneratorExp()], []):
            return True
        case ast.Call(ast.Name(eater), [ast.GeneratorExp(), *rest], keywords) if eater in EATERS:
            simple = all(
                isinstance(a, (ast.Constant, ast.Name)) for a in [*rest, *(k.value for k in keywords)]
            )
            started = not rest or (eater == "sum" and len(rest) == 1 and not keywords)
            return simple and started and all(k.arg in EATERS[eater] for k in keywords)
    return False


def reads(node: ast.AST, name: str) -> bool:
    """Is the name read anywhere in there? A comprehension's own variable of that name is another."""
    if isinstance(node, COMPREHENSIONS) and name in mentioned(*(g.target for g in node.generators)):
        return reads(node.generators[0].iter, name)
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Store)
    return any(reads(child, name) for child in ast.iter_child_nodes(node))
