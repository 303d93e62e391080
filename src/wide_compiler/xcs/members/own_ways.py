"""Making a wide model copies its members and walks through them, which PyTorch lets a class or a module do in
its own way. Plain calls run none of that code, so members with ways of their own stay plain."""

import abc
import copyreg
import operator
import types
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.modules import module as pytorch

from ...guards.tensors import TableGuard
from ..proof.behaviour import bases, table_of
from ..proof.kinds import IMMUTABLE
from ..work import Bail

STATE_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
# What classes may well have: the analysis looks at `forward`, and nobody asks for the others.
_EXPECTED = {"forward", "extra_repr", "_get_name", "__init__", "__repr__", "__str__", "__doc__"}
_EXPECTED |= {"__module__", "__init_subclass__", "__subclasshook__"}
_EXPECTED |= {"__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"}
_NOT_OF_MODULES = {"__copy__", "__deepcopy__", "__del__", "__getnewargs__", "__getnewargs_ex__", "__bool__"}
_INTERNAL = frozenset(vars(nn.Module()))
WAYS = ({*dir(nn.Module)} | _INTERNAL | _NOT_OF_MODULES) - _EXPECTED
_registration_hooks = operator.attrgetter(
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
    "_global_buffer_registration_hooks",
)
_NO_CODE = (
    *IMMUTABLE,
    types.GetSetDescriptorType,
)  # a version, a flag, the `__dict__` that Python puts there
_METACLASSES = (type, abc.ABCMeta)


class OwnWays:
    """No class of these modules has ways of its own, and nobody watches what modules are given."""

    def __init__(self, modules: Sequence[nn.Module]):
        self.kinds = set(map(type, modules))
        for module in modules:
            _check_module(module)
        mine = [kind for kind in bases(self.kinds) if not _of_pytorch(kind)]
        copying: Any = copyreg.dispatch_table
        self.guard = TableGuard([copying, *map(table_of, mine)])
        self._check()

    def holds(self) -> bool:
        """Is that still so?"""
        if _watched():
            return False
        if self.guard.holds():
            return True
        guard = TableGuard(self.guard.tables)  # before they are read: a write meanwhile must be seen
        try:
            self._check()
        except Bail:
            return False
        self.guard = guard
        return True

    def _check(self) -> None:
        if _watched():
            raise Bail("a hook sees every parameter, buffer or submodule that a module is given")
        for kind in self.kinds:
            if type(kind) not in _METACLASSES:
                raise Bail(f"{kind.__name__} has a metaclass of its own")
            if kind in copyreg.dispatch_table:
                raise Bail(f"{kind.__name__} is copied in its own way, by copyreg")
            for base in kind.__mro__:
                if not _of_pytorch(base) and base is not object:
                    _check_names(vars(base), base.__name__)


def _check_module(module: nn.Module) -> None:
    own = vars(module)
    name = type(module).__name__
    hooks = next((hooks for hooks in STATE_HOOKS if own[hooks]), None)
    if hooks is not None:
        raise Bail(f"{name} has {hooks}, which making a wide model would run or leave out")
    _check_names({key: value for key, value in own.items() if key not in _INTERNAL}, f"a {name} itself")


def _check_names(table: Any, owner: str) -> None:
    for name, value in table.items():
        if name in WAYS and not isinstance(value, _NO_CODE):
            raise Bail(f"{owner} has its own {name}, which making a wide model might run")


def _of_pytorch(kind: type) -> bool:
    return kind.__module__.startswith("torch.")


def _watched() -> bool:
    return any(_registration_hooks(pytorch))
