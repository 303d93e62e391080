"""Repeated calls of a router: run its towers as in an earlier call that looks the same."""

from typing import Any

from torch import nn

from ..guards.tensors import TableGuard
from .calls import KnownCalls, tensors_in
from .explain import GroupRow
from .formation import Formation, explain_steps
from .tower_holder import TowerHolder

Towers = dict[str, nn.Module]


class RepeatedCall:
    """How the towers ran in one call.

    Towers that run as a loop need no guard, because each runs its own Python.

    Args:
        towers: all towers of the router.
        names: the towers that ran.
        formation: the formation that has just run them.
    """

    def __init__(self, towers: Towers, names: tuple[str, ...], formation: Formation):
        self.towers, self.names = towers, names
        self.running = [(name, towers[name]) for name in names]
        self.steps = formation.steps(names)
        self.formation = formation if any(r and r.needs_guard for _, r, _ in self.steps) else None

    def run(self, towers: Towers, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Return the outputs by name; None if the towers have changed."""
        if self.towers is not towers and self.towers != towers:
            return None
        if self.formation is None:
            if not kwargs:
                return {name: tower(*args) for name, tower in self.running}
            return {name: tower(*args, **kwargs) for name, tower in self.running}
        if not self.formation.guard.holds():
            return None
        outputs: dict[str, Any] = dict.fromkeys(self.names)
        tensors = tensors_in((*args, *kwargs.values()) if kwargs else args)
        for _, route, names in self.steps:
            if route is None:
                outputs[names[0]] = towers[names[0]](*args, **kwargs)
            else:
                outputs.update(zip(names, route(tensors, args, kwargs), strict=True))
        return outputs

    def explain(self) -> list[GroupRow]:
        """How the towers ran."""
        return explain_steps(self.steps)


class RouterCalls(KnownCalls):
    """A router's earlier calls, and its towers.

    Attributes:
        found: the towers by name, and a guard of the tables on the paths to them.
    """

    __slots__ = ("found",)

    def __init__(self) -> None:
        super().__init__()
        self.found: tuple[Towers, TableGuard] | None = None

    def towers(self, router: TowerHolder) -> Towers:
        """Return the router's towers by name, searched again only if they may have changed."""
        if self.found is None or not self.found[1].holds():
            self.found = router._towers(), TableGuard(router.tables_of_towers())
        return self.found[0]
