"""Which names a code object reads: globals and attributes, taken from its bytecode."""

import dis
import functools
import sys
from dataclasses import dataclass
from types import CodeType

_GLOBAL_READS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_ATTRIBUTE_READS = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"}
_DYNAMIC = {"getattr", "hasattr", "vars", "__dict__", "__getattribute__", "attrgetter"}


@dataclass(frozen=True)
class Names:
    """`dynamic`: the code may read attributes whose names do not stand in it (`getattr`, `vars`, ...)."""

    globals: frozenset[str]
    attributes: frozenset[str]
    dynamic: bool


@functools.cache
def names_of(code: CodeType) -> Names:
    """The names that `code` and the functions written inside it read.

    >>> names_of((lambda x: scale * x.size).__code__)
    Names(globals=frozenset({'scale'}), attributes=frozenset({'size'}), dynamic=False)
    """
    found_globals, attributes = set(), set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBAL_READS:
            found_globals.add(instruction.argval)
        elif instruction.opname in _ATTRIBUTE_READS:
            attributes.add(instruction.argval)
    inner = [names_of(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    for names in inner:
        found_globals |= names.globals
        attributes |= names.attributes
    dynamic = bool(_DYNAMIC & (found_globals | attributes)) or any(names.dynamic for names in inner)
    return Names(frozenset(found_globals), frozenset(attributes), dynamic)


@functools.cache
def owner_of(module_name: str) -> str:
    """Whose Python a module is: 'torch', 'layers' (torch.nn's own layers), 'library', or 'user'."""
    root = module_name.partition(".")[0]
    if module_name.startswith(("torch.nn.modules.", "torch.nn.utils.")) and module_name != _MODULE:
        return "layers"
    if root == "torch":
        return "torch"
    if root in ("numpy", "wide_compiler", "builtins") or (
        root in sys.stdlib_module_names and root != "__main__"
    ):
        return "library"
    return "user"


_MODULE = "torch.nn.modules.module"  # its calls and hooks are followed by themselves
