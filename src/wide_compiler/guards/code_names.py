"""The names of globals and attributes that a code object reads, found in its bytecode."""

import dis
import functools
import sys
from dataclasses import dataclass
from types import CodeType
from typing import Any

_GLOBAL_READS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_GLOBAL_STORES = {"STORE_GLOBAL", "DELETE_GLOBAL"}
_ATTRIBUTE_READS = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"}
_STORES = {"STORE_GLOBAL", "STORE_NAME", "STORE_ATTR", "DELETE_GLOBAL", "DELETE_NAME", "DELETE_ATTR"}
_STORES |= {"STORE_DEREF", "DELETE_DEREF"}
_DYNAMIC = {"getattr", "hasattr", "vars", "dir", "__dict__", "__getattribute__", "attrgetter"}
_CATCHES_ABSENCE = {"AttributeError", "Exception", "BaseException"}
_DYNAMIC_STORES = {"setattr", "delattr", "vars", "__dict__", "__setattr__", "__delattr__", "globals", "exec"}


@dataclass(frozen=True)
class Names:
    """The names that a code object reads and stores.

    Attributes:
        dynamic: True if attributes may be read by names that are not in the bytecode (`getattr`, `case
            Point(x)`, ...).
        stores: names that are assigned or deleted; None if any name may be (`setattr`, ...).
        optional: names of attributes that may be absent when they are read.
        imports: the modules imported, as (level, name).
        strings: the constants that are valid names.
    """

    globals: frozenset[str]
    attributes: frozenset[str]
    dynamic: bool
    stores: frozenset[str] | None
    optional: frozenset[str] = frozenset()
    imports: frozenset[tuple[int, str]] = frozenset()
    strings: frozenset[str] = frozenset()


@functools.cache
def names_of(code: CodeType) -> Names:
    """Return the names that `code` and the functions nested in it use.

    >>> names = names_of((lambda x: scale * x.size).__code__)
    >>> sorted(names.globals), sorted(names.attributes), names.dynamic
    (['scale'], ['size'], False)
    """
    found_globals, attributes, stores = set(), set(), set()
    imports, level, matches = set(), 0, False
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBAL_READS | _GLOBAL_STORES:
            found_globals.add(instruction.argval)
        elif instruction.opname in _ATTRIBUTE_READS:
            attributes.add(instruction.argval)
        if instruction.opname in _STORES:
            stores.add(instruction.argval)
        elif instruction.opname == "IMPORT_NAME":
            imports.add((level, instruction.argval))
        elif instruction.opname == "MATCH_CLASS":
            matches = True
        elif instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, int):
            level = instruction.argval  # the level of an import is the last integer loaded before it
    inner = [names_of(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    strings = {text for constant in code.co_consts for text in _names_in(constant)}
    for names in inner:
        found_globals |= names.globals
        attributes |= names.attributes
        stores |= names.stores or set()
        imports |= names.imports
        strings |= names.strings
    read = found_globals | attributes
    dynamic = matches or bool(_DYNAMIC & read) or any(names.dynamic for names in inner)
    anything = bool(_DYNAMIC_STORES & read) or any(names.stores is None for names in inner)
    optional = (strings if dynamic else set()) | (attributes if _CATCHES_ABSENCE & found_globals else set())
    written = None if anything else frozenset(stores)
    others: Any = frozenset(optional), frozenset(imports), frozenset(strings)
    return Names(frozenset(found_globals), frozenset(attributes), dynamic, written, *others)


def _names_in(constant: object) -> list[str]:
    if isinstance(constant, str):
        return [constant] if constant.isidentifier() else []
    return [name for part in constant for name in _names_in(part)] if isinstance(constant, tuple) else []


@functools.cache
def owner_of(module_name: Any) -> str:
    """Return the origin of a module: 'torch', 'layers' (torch.nn), 'library' or 'user'."""
    if not isinstance(module_name, str):  # some classes written in C have no module name
        return "library"
    root = module_name.partition(".")[0]
    if module_name.startswith(("torch.nn.modules.", "torch.nn.utils.")) and module_name != _MODULE:
        return "layers"
    if root == "torch":
        return "torch"
    if root in ("numpy", "sympy", "mpmath", "wide_compiler", "builtins") or (
        root in sys.stdlib_module_names and root != "__main__"
    ):
        return "library"
    return "user"


_MODULE = "torch.nn.modules.module"  # the observer handles module calls and hooks itself
