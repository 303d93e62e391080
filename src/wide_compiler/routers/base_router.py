"""BaseRouter: named components, plain objects, and a cache that lives as long as one forward."""

import threading
import types
from typing import Any

from torch import Tensor, nn

from ..errors import WideError
from .label import Label


class _Running(threading.local):
    """What runs in this thread."""

    def __init__(self) -> None:
        self.forward = False  # is it inside a router's forward?
        self.filled: list[BaseRouter] = []  # the routers that were left a tensor in it


RUNNING = _Running()
# Was a router left a tensor outside any forward? Its next one empties the cache all the same.
_LEFT = [False]


class RouterError(WideError, ValueError):
    """A router was given a name or a component that it cannot take; the message lists what it has."""


class BaseRouter(nn.Module):
    """A module whose parts have names.

    Components are ordinary submodules: `state_dict`, `to`, `train` and `torch.compile` see them as such.
    `objects` holds whatever is no module. The cache is for tensors that one part of a forward leaves for
    another; it is empty again when the outermost router's forward ends.

    >>> router = BaseRouter("pair")
    >>> router.attach("a", nn.Linear(2, 3))["a"]
    Linear(in_features=2, out_features=3, bias=True)
    >>> "a" in router, "b" in router
    (True, False)
    """

    def __init__(self, name: str):
        super().__init__()
        if not isinstance(name, str):
            raise RouterError(f"a router's name is a string, got {name!r}")
        self._label = Label(name)
        self._kept_objects: dict[str, Any] = {}
        self._router_cache: dict[str, Tensor] = {}

    # Public names that a subclass may well use for something of its own: what it sets hides ours, and
    # nothing here reads them.

    @property
    def name(self) -> Any:
        """The router's name; another string gives it another."""
        own = given(self, "name", None)
        return self._label.read() if own is None else own

    @name.setter
    def name(self, value: Any) -> None:
        if isinstance(value, str):
            self.__dict__.pop("name", None)
            self._label = Label(value)
        else:
            self.__dict__["name"] = value

    @property
    def objects(self) -> Any:
        """Whatever is no module, by name."""
        return given(self, "objects", self._kept_objects)

    @objects.setter
    def objects(self, value: Any) -> None:
        self.__dict__["objects"] = value

    # Components.

    def attach(self, name: str, module: nn.Module) -> "BaseRouter":
        """Add a component under a new name."""
        self._check_component(name, module)
        if name in self._modules:
            raise RouterError(
                f"{name!r} is attached already; replace({name!r}, module) exchanges it, detach removes it"
            )
        if hasattr(self, name):
            raise RouterError(f"{name!r} is an attribute of {type(self).__name__}; choose another name")
        setattr(self, name, module)
        return self

    def replace(self, name: str, module: nn.Module) -> nn.Module:
        """Put another module under a name that is taken; gives the old one back."""
        self._check_component(name, module)
        old = self.detach(name)
        setattr(self, name, module)
        return old

    def detach(self, name: str) -> nn.Module:
        """Remove a component and give it back."""
        module = self[name]
        delattr(self, name)
        return module

    def has(self, name: str) -> bool:
        """Is there a component of this name?"""
        return self._modules.get(name) is not None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.has(name)

    def __getitem__(self, name: Any) -> nn.Module:
        module = self._modules.get(name) if isinstance(name, str) else None
        if module is None:
            raise UnknownComponent(
                f"{name!r} is not attached; there are {', '.join(self._modules) or 'none'}"
            )
        return module

    def _check_component(self, name: str, module: nn.Module) -> None:
        if not isinstance(name, str) or not name or "." in name:
            raise RouterError(f"a component's name is a string without dots, got {name!r}")
        if not isinstance(module, nn.Module):
            raise RouterError(
                f"{name!r} is {type(module).__name__}, expected a torch.nn.Module; "
                f"keep other things in router.objects[{name!r}]"
            )

    def __setattr__(self, name: str, value: Any) -> None:
        what = _taken_for(getattr(type(self), name, None), value)
        if what:
            raise RouterError(
                f"self.{name} = {type(value).__name__}: {name} is a {what} of {type(self).__name__}; "
                f"choose another name, as in self.my_{name.lstrip('_')}"
            )
        super().__setattr__(name, value)

    # The cache.

    def cache_set(self, key: str, value: Tensor) -> None:
        """Leave a tensor for the rest of this forward."""
        self._router_cache[key] = value
        if RUNNING.forward:
            RUNNING.filled.append(self)
        else:
            _LEFT[0] = True

    def cache_get(self, key: str, default: Any = None) -> Any:
        """What was left under `key` in this forward."""
        return self._router_cache.get(key, default)

    def cache_clear(self, recursive: bool = True) -> None:
        """Empty the cache, and those of all routers inside."""
        for part in self.modules() if recursive else (self,):
            if isinstance(part, BaseRouter) and part._router_cache:
                part._router_cache.clear()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Only the outermost router empties the caches: a collective reads what its towers have left.
        if RUNNING.forward:
            return super().__call__(*args, **kwargs)
        RUNNING.forward = True
        try:
            return super().__call__(*args, **kwargs)
        finally:
            RUNNING.forward = False
            if RUNNING.filled:
                for router in RUNNING.filled:
                    router._router_cache.clear()
                RUNNING.filled = []
            if _LEFT[0]:
                self.cache_clear()
                _LEFT[0] = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not say what its forward does")


class UnknownComponent(RouterError, KeyError):
    """No component has this name."""

    __str__ = Exception.__str__  # KeyError would show the message in quotes


def given(module: nn.Module, name: str, ours: Any) -> Any:
    """What a subclass has set under a public name of ours, else `ours`."""
    for table in (module.__dict__, module._modules, module._parameters, module._buffers):
        if name in table:
            return table[name]
    return ours


def forget_filled() -> None:
    """What was left stays to be read, until the next forward ends."""
    if RUNNING.filled:
        RUNNING.filled = []
        _LEFT[0] = True


def _taken_for(found: Any, value: Any) -> str:
    """For what of ours a name is taken, so that `value` cannot have it; '' if it can."""
    function = found.fget if isinstance(found, property) else found
    if not isinstance(function, types.FunctionType):
        return ""
    if not str(function.__module__).startswith("wide_compiler.routers."):
        return ""
    if found is not function:  # PyTorch refuses parameters under the name of a property
        return "property" if isinstance(value, nn.Parameter) else ""
    return "method" if isinstance(value, nn.Module) or not callable(value) else ""
