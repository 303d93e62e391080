"""What a piece of code does with a name: who reads it first, who writes it, who captures it."""

import ast
import types
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

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
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class First(Enum):
    """What happens to a name first, on some path."""

    NEITHER = 0
    STORED = 1
    READ = 2


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
    """Names that functions or lambdas inside mention (whoever's they are), and declared global or
    nonlocal."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            found.update(node.names)
        if isinstance(node, SCOPES) and node is not function:
            found.update(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
    return found


def reads(node: ast.AST, name: str) -> bool:
    """Is the name read anywhere in an expression? A comprehension's own variable of that name is another."""
    if isinstance(node, COMPREHENSIONS):
        own = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        if name in own:
            return reads(node.generators[0].iter, name)
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Store)
    return any(reads(child, name) for child in ast.iter_child_nodes(node))


def first(statements: Sequence[ast.stmt], name: str) -> First:
    """Is the name read before it is certainly stored, when these statements run?"""
    for statement in statements:
        found = _first(statement, name)
        if found is not First.NEITHER:
            return found
    return First.NEITHER


def _first(node: ast.stmt, name: str) -> First:
    match node:
        case ast.Assign(targets=targets, value=value):
            if reads(value, name) or any(reads(t, name) for t in targets):
                return First.READ
            return First.STORED if name in stored(targets) else First.NEITHER
        case ast.If(test=test, body=body, orelse=orelse):
            return First.READ if reads(test, name) else _branches([body, orelse], name)
        case ast.For(target=target, iter=source, body=body, orelse=orelse):
            if reads(source, name):
                return First.READ
            inside = First.STORED if name in stored([target]) else first(body, name)
            worst = First.READ if First.READ in (inside, first(orelse, name)) else First.NEITHER
            return worst
        case ast.While(test=test, body=body, orelse=orelse):
            if reads(test, name) or First.READ in (first(body, name), first(orelse, name)):
                return First.READ
            return First.NEITHER
        case ast.Return(value=value) | ast.Raise(exc=value):
            return First.READ if reads(node, name) else First.STORED
        case ast.With(items=items, body=body):
            if any(reads(item, name) for item in items):
                return First.READ
            return first(body, name)
        case ast.Expr() | ast.AugAssign() | ast.AnnAssign():
            if reads(node, name) or (isinstance(node, ast.AugAssign) and name in stored([node.target])):
                return First.READ
            return First.STORED if name in stored([node]) else First.NEITHER
    mentioned = any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node))
    return First.READ if mentioned else First.NEITHER


def _branches(branches: Sequence[Sequence[ast.stmt]], name: str) -> First:
    ends = [first(branch, name) for branch in branches]
    if First.READ in ends:
        return First.READ
    return First.STORED if all(end is First.STORED for end in ends) else First.NEITHER


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)


def names_of(code: types.CodeType) -> set[str]:
    """Global names that a function may read, those of functions inside it too."""
    return {name for inner in codes_of(code) for name in inner.co_names}
