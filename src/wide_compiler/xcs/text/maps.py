"""`map(f, xs)`, handed to something that eats it whole, as the generator `(f(x) for x in xs)`."""

import ast

from .names import eaten
from .site_text import ITEM, name
from .trees import clone


def eaten_map(node: ast.Call) -> tuple[ast.Call, ast.GeneratorExp] | None:
    """The `map` in `list(map(f, xs))` and the like, and the generator that it stands for.

    Only of a function and a list that have names: then nothing happens between asking for one and the other,
    so it does not matter that `map` asks for its function once.
    """
    match node.args[:1]:
        case [ast.Call(ast.Name("map"), [function, ast.Name()], []) as mapped] if _named(function):
            generator = as_generator(mapped)
            asked = ast.Call(node.func, [generator, *node.args[1:]], node.keywords)
            return (mapped, generator) if eaten(asked) else None
    return None


def _named(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def as_generator(mapped: ast.Call) -> ast.GeneratorExp:
    """Of a `map` of a function over one iterable."""
    function, source = map(clone, mapped.args)
    value = ast.Call(function, [name(ITEM)], [])
    made = ast.GeneratorExp(value, [ast.comprehension(name(ITEM, store=True), source, [], 0)])
    return ast.fix_missing_locations(ast.copy_location(made, mapped))
