"""BaseRouter: named components, plain objects, and a tensor cache that lasts for one forward."""

import threading
import types
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor, nn

from ..errors import WideError
from .label import Label


class _Running(threading.local):
    """State of the current thread."""

    def __init__(self) -> None:
        self.forward = False  # whether it is inside a router's forward
        self.filled: list[BaseRouter] = []  # routers whose caches were filled in it


RUNNING = _Running()
# Whether a cache was filled outside any forward; the next forward clears it.
_LEFT = [False]


def overridable(ours: Callable[[Any], Any]) -> Any:
    """A property that a subclass may replace by assigning any attribute or submodule of that name.

    Such an attribute is the subclass's own; no code here reads it.
    """
    name = ours.__name__

    def read(self: nn.Module) -> Any:
        for table in (self.__dict__, self._modules, self._parameters, self._buffers):
            if name in table:
                return table[name]
        return ours(self)

    def write(self: nn.Module, value: Any) -> None:
        self.__dict__[name] = value

    return property(read, write, doc=ours.__doc__)


class RouterError(WideError, ValueError):
    """A name or component that a router cannot accept; the message lists what it has."""


class BaseRouter(nn.Module):
    """A module with named components.

    Components are ordinary submodules: `state_dict`, `to`, `train` and `torch.compile` work as usual.
    `objects` holds everything that is not a module. The cache passes tensors between parts of one forward; it
    is cleared when the outermost router's forward ends.

    >>> router = BaseRouter("pair")
    >>> router.attach("a", nn.Linear(2, 3))["a"]
    Linear(in_features=2, out_features=3, bias=True)
    >>> "a" in router, "b" in router
    (True, False)
    """

    def __init__(
        self,
        name: str,
        uuid: str | None = None,
        strict: bool = False,
        strict_dtype: torch.dtype | None = None,
        strict_device: torch.device | str | None = None,
    ):
        """
        Args:
            name: name for display.
            uuid: unique identifier; a new one by default.
            strict: accepted for compatibility with geofractal's routers, and ignored.
            strict_dtype: reject components with parameters of another dtype.
            strict_device: reject components on another device.
        """
        super().__init__()
        if not isinstance(name, str):
            raise RouterError(f"name: expected a string, got {name!r}")
        self._label = Label(name)
        self._identity = Label(uuid or str(uuid4()))
        self._required = (strict_dtype, torch.device(strict_device) if strict_device is not None else None)
        self._kept_objects: dict[str, Any] = {}
        self._router_cache: dict[str, Tensor] = {}

    @overridable
    def name(self) -> Any:
        """The router's name; assigning a string renames it."""
        return self._label.read()

    @name.setter  # type: ignore[no-redef]
    def name(self, value: Any) -> None:
        if isinstance(value, str):
            self.__dict__.pop("name", None)
            self._label = Label(value)
        else:
            self.__dict__["name"] = value

    @overridable
    def objects(self) -> Any:
        """Attached objects that are not modules, by name."""
        return self._kept_objects

    @overridable
    def uuid(self) -> Any:
        """The router's unique identifier."""
        return self._identity.read()

    @overridable
    def components(self) -> Any:
        """The components by name; assigning an item adds a component."""
        return Components(self)

    # Components.

    def attach(self, name: str, module: Any) -> "BaseRouter":
        """Add a component under a new name; anything but a module is stored in `objects`."""
        self._check_name(name)
        if not isinstance(module, nn.Module):
            self._kept_objects[name] = module
            return self
        self._check_component(name, module)
        if name in self._modules:
            raise RouterError(
                f"{name!r} is already attached; use replace({name!r}, module), or detach({name!r}) first"
            )
        if hasattr(self, name) and not isinstance(getattr(type(self), name, None), property):
            raise RouterError(f"{name!r} is an attribute of {type(self).__name__}; choose another name")
        setattr(self, name, module)
        return self

    def replace(self, name: str, module: nn.Module) -> nn.Module:
        """Replace the component of this name; return the old one."""
        self._check_component(name, module)
        old = self.detach(name)
        setattr(self, name, module)
        return old

    def detach(self, name: str) -> nn.Module:
        """Remove and return a component."""
        module = self[name]
        if self._modules.get(name) is module:
            del self._modules[name]
        else:
            del self._kept_objects[name]
        return module

    def has(self, name: str) -> bool:
        """Return whether a component or object has this name."""
        return self._modules.get(name) is not None or name in self._kept_objects

    def get(self, name: str) -> Any:
        """Return the component or object of this name, or None."""
        return self[name] if self.has(name) else None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.has(name)

    def __getitem__(self, name: Any) -> Any:
        module = self._modules.get(name) if isinstance(name, str) else None
        if module is not None:
            return module
        if isinstance(name, str) and name in self._kept_objects:
            return self._kept_objects[name]
        known = ", ".join([*self._modules, *self._kept_objects])
        raise UnknownComponent(f"no component {name!r}; attached: {known or 'none'}")

    def _check_name(self, name: str) -> None:
        if not isinstance(name, str) or not name or "." in name:
            raise RouterError(f"component name: expected a non-empty string without dots, got {name!r}")

    def _check_component(self, name: str, module: nn.Module) -> None:
        self._check_name(name)
        if not isinstance(module, nn.Module):
            raise RouterError(f"{name!r}: expected a torch.nn.Module, got {type(module).__name__}")
        for path, parameter in module.named_parameters():
            for kind, wanted in zip(("dtype", "device"), self._required, strict=True):
                got = getattr(parameter, kind)
                if wanted is not None and got != wanted:
                    raise RouterError(
                        f"{name!r}: {path} has {kind} {got}, but {self._label.text!r} takes only {wanted}"
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
        """Store a tensor for the rest of this forward."""
        self._router_cache[key] = value
        if RUNNING.forward:
            RUNNING.filled.append(self)
        else:
            _LEFT[0] = True

    def cache_get(self, key: str, default: Any = None) -> Any:
        """Return the tensor stored under `key` in this forward, or `default`."""
        return self._router_cache.get(key, default)

    def cache_clear(self, recursive: bool = True) -> None:
        """Clear the cache, with `recursive` also those of all routers inside."""
        for part in self.modules() if recursive else (self,):
            if isinstance(part, BaseRouter) and part._router_cache:
                part._router_cache.clear()

    def cache_clear_recursive(self) -> None:
        """Same as `cache_clear()`."""
        self.cache_clear()

    def cache_keys(self) -> list[str]:
        """Keys stored in this forward."""
        return list(self._router_cache)

    def reset(self) -> None:
        """Clear the caches of this router and of all routers inside."""
        self.cache_clear()

    def network_to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None, **_: Any
    ) -> "BaseRouter":
        """Clear the caches, then `to(device, dtype)`."""
        self.cache_clear()
        self.to(device=device, dtype=dtype)
        old_dtype, old_device = self._required
        now = old_device if old_device is None or device is None else torch.device(device)
        self._required = (old_dtype and (dtype or old_dtype), now)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Only the outermost router clears the caches, because a collective reads those of its towers.
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
        raise NotImplementedError(f"{type(self).__name__} defines no forward")


class Components(MutableMapping[str, nn.Module]):
    """A router's submodules by name, without `stages`; assigning an item adds a submodule."""

    def __init__(self, router: nn.Module):
        self.router = router

    def __getitem__(self, name: str) -> nn.Module:
        return self._parts()[name]

    def __setitem__(self, name: str, module: nn.Module) -> None:
        setattr(self.router, name, module)

    def __delitem__(self, name: str) -> None:
        delattr(self.router, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts())

    def __len__(self) -> int:
        return len(self._parts())

    def _parts(self) -> dict[str, nn.Module]:
        own = self.router._modules.items()
        return {name: part for name, part in own if part is not None and name != "stages"}


class UnknownComponent(RouterError, KeyError):
    """No component has this name."""

    __str__ = Exception.__str__  # KeyError would show the message in quotes


def forget_filled() -> None:
    """Keep the filled caches readable until the next forward ends."""
    if RUNNING.filled:
        RUNNING.filled = []
        _LEFT[0] = True


def _taken_for(found: Any, value: Any) -> str:
    """Return what of a router class has this name, 'property' or 'method'; '' if `value` may be assigned."""
    function = found.fget if isinstance(found, property) else found
    if not isinstance(function, types.FunctionType):
        return ""
    if not str(function.__module__).startswith("wide_compiler.routers."):
        return ""
    if found is not function:  # PyTorch rejects parameters under the name of a property
        return "property" if isinstance(value, nn.Parameter) else ""
    return "method" if isinstance(value, nn.Module) or not callable(value) else ""
