"""WideRegistry: wide classes by module type. Users extend it with `register`."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from .errors import ArgumentError, UnknownNameError, WrongTypeError
from .primitives import PRIMITIVES, WideModule


class WideRegistry:
    """Maps a module type's name to the class whose `from_modules(modules)` makes one wide module of N.

    Built-in primitives are listed too, but run by the rules of their ops, which allows fusion across layers.
    An entry added by `register` keeps the module as one node of the graph, run by the registered class.
    """

    def __init__(self) -> None:
        self._builtin: dict[str, Any] = {}
        self._custom: dict[str, Any] = {}
        self.add_primitives()

    def add_primitives(self) -> Mapping[str, Any]:
        """Add the built-in primitives under the types they run; return all entries."""
        for primitive in PRIMITIVES:
            members = primitive.MEMBER if isinstance(primitive.MEMBER, tuple) else (primitive.MEMBER,)
            for member in members:
                self._builtin.setdefault(member.__name__, primitive)
        return self.listing()

    def register(self, name: str, wide: Any = None) -> Any:
        """Register `wide` for modules of type `name`; with the name alone, return a decorator."""
        if not isinstance(name, str):
            raise WrongTypeError(
                f"register takes the type's name first, got {name!r}; write @register('MyOp')"
            )
        if wide is None:
            return lambda cls: self.register(name, cls)
        if not callable(getattr(wide, "from_modules", None)):
            raise WrongTypeError(
                f"{wide!r} needs a classmethod from_modules(modules) to be registered for {name!r}"
            )
        self._custom[name] = wide
        return wide

    def unregister(self, name: str) -> None:
        """Remove a registration; a built-in entry becomes visible again."""
        if name not in self._custom:
            raise UnknownNameError(
                f"{name!r} is not registered; registered: {', '.join(self._custom) or 'nothing'}"
            )
        del self._custom[name]

    def get(self, name: str) -> Any:
        """Return the class for a type name, or None."""
        return self._custom.get(name, self._builtin.get(name))

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter({**self._builtin, **self._custom})

    def listing(self) -> Mapping[str, Any]:
        """Return every type name with its wide class."""
        return {**self._builtin, **self._custom}

    list = listing

    def custom_builders(self, model: nn.Module) -> dict[str, Any]:
        """Return path -> wide class for submodules of `model` with registered types; outermost ones only."""
        found: dict[str, Any] = {}
        if type(model).__name__ in self._custom:
            wide = self._custom[type(model).__name__]
            raise ArgumentError(
                f"{type(model).__name__} is registered itself: {wide.__name__}.from_modules(models) is its "
                f"wide module; compile is for models that contain it"
            )
        for path, module in model.named_modules():
            if any(path.startswith(f"{outer}.") for outer in found):
                continue
            if type(module).__name__ in self._custom:
                found[path] = self._custom[type(module).__name__]
        return found


REGISTRY = WideRegistry()


def register(name: str, wide: Any = None) -> Callable[..., Any] | Any:
    """Register a class that runs N modules of type `name`, which are kept as one node of the graph.

    The class has a classmethod `from_modules(modules)`, whose result takes and returns `[N, B, ...]`, or
    `[B, N*C, ...]` as `pack` makes it. `compile` finds out which by comparing it with the modules.
    """
    return REGISTRY.register(name, wide)


def auto_register_primitives() -> Mapping[str, Any]:
    """Add the built-in primitives, which happens on import; return every type name with its wide class."""
    return REGISTRY.add_primitives()


def strategies_of(wide: Any) -> tuple[str, ...]:
    return (
        tuple(getattr(wide, "STRATEGIES", ()))
        if isinstance(wide, type) and issubclass(wide, WideModule)
        else ()
    )
