"""BaseRouter: named components, plain objects, and a cache that lives as long as one forward."""

from typing import Any

from torch import Tensor, nn

from ..errors import WideError
from .label import Label

# Has any router been left a tensor? Asked after every forward, where looking at all routers is too much.
_CACHES_FILLED = [False]


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
        self.objects: dict[str, Any] = {}
        self._cache: dict[str, Tensor] = {}
        self._inside_another = False

    @property
    def name(self) -> str:
        return self._label.read()

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
        set_inside(module, False)
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
        super().__setattr__(name, value)
        if isinstance(value, nn.Module):
            set_inside(value, True)

    # The cache.

    def cache_set(self, key: str, value: Tensor) -> None:
        """Leave a tensor for the rest of this forward."""
        self._cache[key] = value
        _CACHES_FILLED[0] = True

    def cache_get(self, key: str, default: Any = None) -> Any:
        """What was left under `key` in this forward."""
        return self._cache.get(key, default)

    def cache_clear(self, recursive: bool = True) -> None:
        """Empty the cache, and those of all routers inside."""
        for part in _routers_in(self) if recursive else (self,):
            if part._cache:
                part._cache.clear()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Only the outermost router empties the caches: a collective reads what its towers have left.
        if self._inside_another:
            return super().__call__(*args, **kwargs)
        try:
            return super().__call__(*args, **kwargs)
        finally:
            if _CACHES_FILLED[0]:
                self.cache_clear()
                _CACHES_FILLED[0] = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not say what its forward does")


class UnknownComponent(RouterError, KeyError):
    """No component has this name."""

    __str__ = Exception.__str__  # KeyError would show the message in quotes


def set_inside(module: nn.Module, inside: bool) -> None:
    """Tell the routers in `module` whether another router calls them."""
    for part in _routers_in(module):
        part.__dict__["_inside_another"] = inside


def _routers_in(module: nn.Module) -> list[BaseRouter]:
    return [part for part in module.modules() if isinstance(part, BaseRouter)]
