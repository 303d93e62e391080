"""What a piece of code does with a name: who reads it, who writes it, who captures it."""

import ast
import builtins
import types
from collections.abc import Iterable, Iterator

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BINDERS = (
    ast.ExceptHandler,
    ast.FunctionDef,
    ast.ClassDef,
    ast.AsyncFunctionDef,
    ast.MatchAs,
    ast.MatchStar,
    ast.MatchMapping,
)
EATERS = {
    "sum": ("start",), "max": ("key", "default"), "min": ("key", "default"), "sorted": ("key", "reverse"),
    "any": (), "all": (), "list": (), "tuple": (), "set": (), "frozenset": (), "dict": (),
}  # and the options they take  # fmt: skip
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def stored(nodes: Iterable[ast.AST]) -> set[str]:
    """Names bound in this scope by the nodes; those of comprehensions are their own."""
    found: set[str] = set()
    for node in nodes:
        for part in within_scope(node):
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
    if isinstance(node, SCOPES):
        return
    if isinstance(node, COMPREHENSIONS):
        for part in ast.walk(node):
            if isinstance(part, ast.NamedExpr):
                yield part.target
        return
    for child in ast.iter_child_nodes(node):
        yield from within_scope(child)


def captured(function: ast.AST) -> set[str]:
    """Names that may be read or stored from elsewhere: those that functions, lambdas and kept generators
    inside mention (whoever's they are), and those declared global or nonlocal."""
    found: set[str] = set()
    body = getattr(function, "body", function)  # decorators, defaults and annotations are not inside
    for top in body if isinstance(body, list) else [body]:
        for node in ast.walk(top):
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                found.update(node.names)
            if isinstance(node, SCOPES):
                found.update(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
        for generator in kept_generators(top):
            found.update(n.id for n in ast.walk(generator) if isinstance(n, ast.Name))
    return found


def kept_generators(function: ast.AST) -> list[ast.GeneratorExp]:
    """Generators inside that are not eaten on the spot: they run later, and read names as they are then."""
    gone = {id(n.args[0]) for n in ast.walk(function) if isinstance(n, ast.Call) and eaten(n)}
    return [
        n
        for n in ast.walk(function)
        if isinstance(n, ast.GeneratorExp) and id(n) not in gone and n is not function
    ]


def eaten(node: ast.Call) -> bool:
    """Is this `sum(... for ...)`, `"".join(... for ...)` or the like, with arguments that it takes?"""
    if not node.args or not isinstance(node.args[0], ast.GeneratorExp):
        return False
    if isinstance(node.func, ast.Attribute):
        joins = node.func.attr == "join" and isinstance(node.func.value, ast.Constant)
        return joins and len(node.args) == 1 and not node.keywords
    if not isinstance(node.func, ast.Name) or node.func.id not in EATERS:
        return False
    rest, options = node.args[1:], EATERS[node.func.id]
    simple = all(isinstance(a, (ast.Constant, ast.Name)) for a in [*rest, *(k.value for k in node.keywords)])
    started = not rest or (node.func.id == "sum" and len(rest) == 1 and not node.keywords)
    return simple and started and all(k.arg in options for k in node.keywords)


def reads(node: ast.AST, name: str) -> bool:
    """Is the name read anywhere in an expression? A comprehension's own variable of that name is another."""
    if isinstance(node, COMPREHENSIONS):
        own = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        if name in own:
            return reads(node.generators[0].iter, name)
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Store)
    return any(reads(child, name) for child in ast.iter_child_nodes(node))


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)


def names_of(code: types.CodeType) -> set[str]:
    """Global names that a function may read, those of functions inside it too."""
    return {name for inner in codes_of(code) for name in inner.co_names}


def handled(handler: ast.ExceptHandler) -> list[type | None]:
    """The builtin classes that an `except` names; None for whatever else it may catch."""
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    found = [getattr(builtins, n.id, None) if isinstance(n, ast.Name) else None for n in named]
    return [kind if isinstance(kind, type) else None for kind in found]
