"""Private names of a class: in its methods, Python reads `self.__cache` as `self._Class__cache`."""

import ast
from collections.abc import Iterator
from typing import Any

# Where names stand in a syntax tree.
FIELDS = {
    ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg", ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name", ast.ClassDef: "name", ast.ExceptHandler: "name", ast.alias: "asname",
    ast.MatchAs: "name", ast.MatchStar: "name", ast.MatchMapping: "rest",
}  # fmt: skip


def private_names(node: Any, qualified: str) -> Any:
    """The function of that qualified name with its private names written out; itself if there are none."""
    owner = _class_around(qualified)
    if not owner.strip("_"):
        return node
    prefix = f"_{owner.lstrip('_')}"

    def written(name: Any) -> Any:
        private = isinstance(name, str) and name.startswith("__") and not name.endswith("__")
        return f"{prefix}{name}" if private and "." not in name else name

    for part in _parts(node):
        field = FIELDS.get(type(part))
        if field is not None and part is not node:
            setattr(part, field, written(getattr(part, field)))
        if isinstance(part, (ast.Global, ast.Nonlocal)):
            part.names = list(map(written, part.names))
        if isinstance(part, ast.alias) and part.asname is None and written(part.name) != part.name:
            part.asname = written(part.name)
    return node


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """All of a function but what is in a class inside it, whose private names are its own."""
    yield node
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.ClassDef):
            yield part
            for outside in (*part.bases, *part.keywords, *part.decorator_list):
                yield from _parts(outside)
        else:
            yield from _parts(part)


def _class_around(qualified: str) -> str:
    """`C` of `C.method`, `f.<locals>.C.method` and `C.method.<locals>.inner`; empty if there is none."""
    parts = qualified.split(".")[:-1]
    while parts and parts[-1] == "<locals>":
        parts = parts[:-2]
    return parts[-1] if parts else ""
