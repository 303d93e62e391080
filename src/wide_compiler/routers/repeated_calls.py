"""Repeated calls of a router: run its towers as in an earlier call with the same cache key."""

from typing import Any

from torch import nn

from ..guards.tensors import TableGuard
from ..model.routes import Routes
from .calls import SameLook
from .formation import Formation
from .tower_holder import TowerHolder

Towers = dict[str, nn.Module]


class RepeatedCall:
    """How the towers ran in one call, for calls with the same cache key.

    Towers that run as a loop need no guard, because each runs its own Python.

    Args:
        circumstances: further parts of the cache key.
        names: the towers that ran.
        formation: the formation that has just run them.
    """

    def __init__(
        self,
        circumstances: tuple[Any, ...],
        towers: Towers,
        names: tuple[str, ...],
        args: tuple,
        kwargs: dict[str, Any],
        formation: Formation,
    ):
        self.circumstances, self.towers, self.names = circumstances, towers, names
        self.running = [(name, towers[name]) for name in names]
        self.look = SameLook(args, kwargs)
        self.rows = formation.explain()
        self.together = any(row.how == "together" for row in self.rows)
        self.formation = formation if self.together else None
        self.steps = formation.steps(names) if self.together else []

    def run(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """The outputs by name; None if the towers have changed."""
        if self.formation is None:
            if not kwargs:
                return {name: tower(*args) for name, tower in self.running}
            return {name: tower(*args, **kwargs) for name, tower in self.running}
        if not self.formation.guard.holds():
            return None
        self.formation.latest = self.names
        outputs: dict[str, Any] = dict.fromkeys(self.names)
        tensors = (*args, *kwargs.values())
        for group, route, names in self.steps:
            if group is None:
                outputs[names[0]] = self.towers[names[0]](*args, **kwargs)
            else:
                group.latest = route
                outputs.update(zip(names, route(tensors, args, kwargs), strict=True))
        return outputs


class Found:
    """A router's towers, valid until a module table on the path to a tower is written."""

    def __init__(self, router: TowerHolder):
        self.towers = router._towers()
        self.tables = TableGuard(router.tables_of_towers())


class RepeatedCalls:
    """Cache of a router's calls, with the latest one for a fast check.

    It does not affect the results, so all instances are equal, and a copied router starts with an empty one.
    """

    __slots__ = ("found", "known", "latest")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.found: Found | None = None
        self.latest: RepeatedCall | None = None
        self.known = Routes()  # a `RepeatedCall` by circumstances and look

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RepeatedCalls)

    def __reduce__(self) -> Any:
        return RepeatedCalls, ()

    def towers(self, router: TowerHolder) -> Towers:
        """The router's towers by name, searched again only if they may have changed."""
        found = self.found
        if found is None or not found.tables.holds():
            found = self.found = Found(router)
        return found.towers

    def run(
        self, circumstances: tuple[Any, ...], towers: Towers, args: tuple, kwargs: dict[str, Any]
    ) -> dict[str, Any] | None:
        """The outputs, if this call has the cache key of the latest and its towers have not changed."""
        latest = self.latest
        if (
            latest is not None
            and latest.circumstances == circumstances
            and (latest.towers is towers or latest.towers == towers)
            and latest.look.holds(args, kwargs)
        ):
            return latest.run(args, kwargs)
        return None

    def find(self, key: Any, towers: Towers) -> bool:
        """Make the known call with this key the latest; return whether there is one."""
        known = self.known.get(key)
        self.latest = known if known is not None and known.towers == towers else None
        return self.latest is not None

    def keep(self, key: Any, again: RepeatedCall) -> None:
        self.latest = self.known[key] = again

    def drop_together(self) -> None:
        """Remove all calls that depend on the towers' state."""
        self.latest = None
        for key in [key for key, again in self.known.items() if again.together]:
            del self.known[key]
