"""Repeated calls of a router: run its towers as in an earlier call that looks the same."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..guards.tensors import TableGuard
from .calls import KnownCalls, tensors_in
from .formation import Formation, TowerPlan
from .router_explanation import GroupRow
from .tower_holder import TowerHolder

Towers = dict[str, nn.Module]


class RepeatedCall:
    """How the towers run one call, and others that look like it.

    Towers that run as a loop need no guard, because each runs its own Python.

    Args:
        towers: all towers of the router.
        names: the towers that run.
        formation: the formation that they are in.
        plan: how they run.
    """

    def __init__(self, towers: Towers, names: tuple[str, ...], formation: Formation, plan: TowerPlan):
        self.towers, self.names, self.plan = towers, names, plan
        self.running = [(name, towers[name]) for name in names]
        self.formation = formation if any(step.route for step in plan.steps) else None

    def run(
        self, towers: Towers, args: tuple, kwargs: dict[str, Any], tensors: Sequence[Tensor] | None = None
    ) -> dict[str, Any] | None:
        """Return the outputs by name; None if the towers have changed.

        `tensors` are those in the arguments, if these are not tensors and constants only.
        """
        if self.towers is not towers and self.towers != towers:
            return None
        if self.formation is None:
            if not kwargs:
                return {name: tower(*args) for name, tower in self.running}
            return {name: tower(*args, **kwargs) for name, tower in self.running}
        if not self.formation.guard.holds():
            return None
        outputs: dict[str, Any] = dict.fromkeys(self.names)
        if tensors is None:
            tensors = tensors_in((*args, *kwargs.values()) if kwargs else args)
        guarded = True  # False once Python has run that may have changed what a graph rests on
        for names, route, captured in self.plan.steps:
            if route is not None and (guarded or self.formation.guard.holds()):
                outputs.update(zip(names, route.fused(tensors), strict=True))  # type: ignore[misc]
            else:
                guarded = guarded and captured
                for name in names:
                    outputs[name] = towers[name](*args, **kwargs)
        return outputs

    def explain(self) -> list[GroupRow]:
        """Return how the towers ran."""
        return self.plan.explain()


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
