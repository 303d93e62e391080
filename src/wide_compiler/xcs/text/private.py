"""Private names of a class: in its methods, Python reads `self.__cache` as `self._Class__cache`."""

import ast
from typing import Any

# Where names stand in a syntax tree.
FIELDS: dict[type, str] = {
    ast.Name: "id",
    ast.Attribute: "attr",
    ast.arg: "arg",
    ast.FunctionDef: "name",
    ast.keyword: "arg",
}


def private_names(node: Any, qualified: str) -> Any:
    """The function of that qualified name with its private names written out; itself if there are none."""
    owner = _class_around(qualified)
    if not owner.strip("_"):
        return node
    prefix = f"_{owner.lstrip('_')}"
    for part in ast.walk(node):
        field = FIELDS.get(type(part))
        name = getattr(part, field) if field else None
        if name and part is not node and name.startswith("__") and not name.endswith("__"):
            setattr(part, field, f"{prefix}{name}")  # type: ignore[arg-type]
    return node


def _class_around(qualified: str) -> str:
    """`C` of `C.method`, `f.<locals>.C.method` and `C.method.<locals>.inner`; empty if there is none."""
    parts = qualified.split(".")[:-1]
    while parts and parts[-1] == "<locals>":
        parts = parts[:-2]
    return parts[-1] if parts else ""
