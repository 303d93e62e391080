"""Check which modules may be captured.

Capturing copies and inspects modules, and so would run overridden special methods that a plain call does not
run. Modules with such overrides stay in the plain loop.
"""

import abc
import copyreg
import enum
import itertools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as pytorch

from ..proof.kinds import IMMUTABLE, is_numpy_scalar
from ..work import ABSENT, Bail, closure_values

INTERNAL = frozenset(vars(nn.Module()))
# Names that classes may define: `forward` is analysed, and capturing does not use the others.
_ALLOWED = {"forward", "extra_repr", "_get_name", "__init__", "__repr__", "__str__", "__doc__", "__module__"}
_ALLOWED |= {"__init_subclass__", "__subclasshook__", "__annotations__", "__annotate__", "__annotate_func__"}
_ALLOWED |= {"__annotations_cache__", "__static_attributes__"}  # written by Python 3.14 and 3.13
_COPYING = {"__copy__", "__deepcopy__", "__del__", "__getnewargs__", "__getnewargs_ex__", "__bool__"}
OVERRIDES = ({*dir(nn.Module)} | INTERNAL | _COPYING) - _ALLOWED
PLAIN = (*IMMUTABLE, types.BuiltinFunctionType, type, types.ModuleType)
TENSORS = {Tensor, nn.Parameter, type(None)}  # other types may override operators


def walk(module: nn.Module, seen: set[int]) -> Iterator[nn.Module]:
    """Yield a module and its descendants, each once, from the `_modules` tables."""
    if id(module) not in seen:
        seen.add(id(module))
        yield module
        for child in vars(module)["_modules"].values():
            if child is not None:
                yield from walk(child, seen)


def check(modules: list[nn.Module]) -> None:
    """Raise `Bail` if capturing one of the modules would run user code, or keep a module alive."""
    if (
        pytorch._global_module_registration_hooks
        or pytorch._global_parameter_registration_hooks
        or pytorch._global_buffer_registration_hooks
    ):
        raise Bail("a global registration hook of nn.Module is set")
    for kind in {*map(type, modules)}:
        _check_class(kind)
    for module in modules:
        _check_instance(module)


def _check_class(kind: type) -> None:
    """Raise `Bail` if copying or inspecting instances of the class may run code of the class."""
    if type(kind) not in (type, abc.ABCMeta):
        raise Bail(f"{kind.__name__} has a custom metaclass")
    if kind in copyreg.dispatch_table:
        raise Bail(f"{kind.__name__} has a custom copy function in copyreg")
    for base in kind.__mro__:
        if not base.__module__.startswith("torch.") and base is not object:
            _check_names(vars(base), base.__name__)


def _check_instance(module: nn.Module) -> None:
    """Raise `Bail` if an attribute of the module overrides a method, or may refer to the module."""
    name = type(module).__name__
    attributes = {key: value for key, value in vars(module).items() if key not in INTERNAL}
    _check_names(attributes, f"an instance of {name}")
    for key, value in attributes.items():
        if not isinstance(value, Tensor) and not _is_plain(value):
            raise Bail(f"{name}.{key} is a {type(value).__name__} that may refer to the member itself")
    tensors = [*vars(module)["_parameters"].values(), *vars(module)["_buffers"].values()]
    for kind in {*map(type, tensors)} - TENSORS:
        raise Bail(f"a parameter of type {kind.__name__}, which may override operators")


def _check_names(attributes: Mapping[str, Any], owner: str) -> None:
    for name, value in attributes.items():
        if name in OVERRIDES and not isinstance(value, (*IMMUTABLE, types.GetSetDescriptorType)):
            raise Bail(f"{owner} overrides {name}, which a capture might run")


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Return whether a value is of a plain Python or NumPy type and contains no modules."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset, dict, types.FunctionType):
        return depth < 8 and all(_is_plain(part, depth + 1) for part in _parts(value))
    return kind in PLAIN or isinstance(value, (type, enum.Enum)) or is_numpy_scalar(kind)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, types.FunctionType):
        cells = [held for held in closure_values(value) if held is not ABSENT]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), vars(value)]
    return list(itertools.chain(value, value.values())) if isinstance(value, dict) else list(value)
