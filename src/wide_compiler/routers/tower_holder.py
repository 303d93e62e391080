"""TowerHolder: which components of a router are towers, and which of them run."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from .base_router import BaseRouter, RouterError, overridable
from .base_tower import BaseTower


class TowerHolder(BaseRouter):
    """A router with named towers, in order of registration."""

    def __init__(self, name: str, auto_discover: bool = True, **options: Any):
        super().__init__(name, **options)
        self.auto_discover = auto_discover
        self._tower_names: list[str] = []

    @overridable
    def tower_names(self) -> Any:
        """Names of the registered towers, in order of registration."""
        return list(self._towers())

    @overridable
    def towers(self) -> Any:
        """The registered towers by name."""
        return self._towers()

    def attach(self, name: str, module: Any) -> "TowerHolder":
        """Add a component; a tower is registered as well if `auto_discover`."""
        super().attach(name, module)
        if self.auto_discover and isinstance(module, BaseTower):
            self._tower_names.append(name)
        self._changed()
        return self

    def detach(self, name: str) -> nn.Module:
        """Remove a component and unregister the towers in it."""
        module = super().detach(name)
        self._tower_names = [t for t in self._tower_names if t != name and not t.startswith(f"{name}.")]
        self._changed()
        return module

    def replace(self, name: str, module: nn.Module) -> nn.Module:
        """Replace a component; a tower of that name stays registered."""
        names = self._tower_names
        old = super().replace(name, module)
        self._tower_names = [t for t in names if t == name or _resolve(self, t) is not None]
        self._changed()
        return old

    def register_tower(self, name: str) -> None:
        """Run the component of this name (dotted inside containers) as a tower."""
        if name in self._tower_names:
            raise RouterError(f"{name!r} is already registered; registered towers: {self._listed()}")
        if _resolve(self, name) is None:
            attached = ", ".join(self._modules) or "none"
            raise RouterError(f"no component {name!r} to register; attached: {attached}")
        self._tower_names.append(name)
        self._changed()

    def unregister_tower(self, name: str) -> None:
        """Keep the component, but do not run it as a tower."""
        self._check_names([name])
        self._tower_names.remove(name)
        self._changed()

    def clear_tower_caches(self) -> None:
        """Clear the caches of all towers."""
        for tower in self._towers().values():
            if isinstance(tower, BaseRouter):
                tower.cache_clear()

    def discover_towers(self) -> list[str]:
        """Register every `BaseTower`, with dotted names inside containers; return the names of all towers.

        Towers inside other towers are not registered.
        """
        for name in _towers_in(self):
            if name not in self._tower_names:
                self.register_tower(name)
        return list(self._towers())

    def _towers(self) -> dict[str, nn.Module]:
        own = self._modules
        found = {name: own[name] if name in own else _resolve(self, name) for name in self._tower_names}
        return {name: tower for name, tower in found.items() if tower is not None}

    def tables_of_towers(self) -> list[dict[str, nn.Module | None]]:
        """Return the `_modules` dicts that hold the towers, and those on the path to them."""
        tables = {id(self._modules): self._modules}
        for name in self._tower_names:
            module: nn.Module | None = self
            for part in name.split("."):
                if module is not None:
                    tables[id(module._modules)] = module._modules
                    module = module._modules.get(part)
        return list(tables.values())

    def _changed(self) -> None:
        """Called whenever the towers change; for subclasses."""

    def _selected(self, towers: dict[str, nn.Module], tower_names: Sequence[str] | None) -> tuple[str, ...]:
        if tower_names is None:
            if not towers:
                raise RouterError(
                    f"{self._label.text!r} has no towers; attach some and call discover_towers() "
                    f"or register_tower(name)"
                )
            return tuple(towers)
        if isinstance(tower_names, str):
            raise RouterError(f"tower_names: expected a list of names, got the string {tower_names!r}")
        self._check_names(tower_names)
        wanted = set(tower_names)
        return tuple([name for name in towers if name in wanted])

    def _check_names(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in self._tower_names]
        if unknown:
            missing = ", ".join(map(repr, unknown))
            raise RouterError(f"no tower {missing}; registered towers: {self._listed()}")

    def _listed(self) -> str:
        return ", ".join(self._tower_names) or "none"


def _resolve(root: nn.Module, name: str) -> nn.Module | None:
    module: nn.Module | None = root
    for part in name.split("."):
        module = module._modules.get(part) if module is not None else None
    return module


def _towers_in(module: nn.Module, prefix: str = "") -> Iterator[str]:
    for name, child in module.named_children():
        if isinstance(child, BaseTower):
            yield f"{prefix}{name}"
        elif not isinstance(child, BaseRouter):  # another router runs its own towers
            yield from _towers_in(child, f"{prefix}{name}.")


def check_takes_mask(towers: list[tuple[str, nn.Module]]) -> None:
    for name, tower in towers:
        parameters = inspect.signature(tower.forward).parameters
        if "mask" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            raise RouterError(
                f"mask: the forward of {name!r} ({type(tower).__name__}) has no mask parameter; add "
                f"mask=None to it, or select other towers with tower_names="
            )
