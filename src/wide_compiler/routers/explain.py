"""explain(): which towers or alike modules ran together, which did not, and why."""

from dataclasses import dataclass, field, replace
from typing import Any, Self

from ..explain import Explanation, Row
from ..widen import NodeRow


@dataclass
class GroupRow(Row):
    """Towers, or alike modules of a model, that run in one way.

    Attributes:
        how: 'together' as lanes of one graph, 'loop', 'alone' (no other is like it), or 'not run'.
        towers: their names or paths, one for each call.
        rows: what became of each node of a tower's graph; empty if there is none.
        plan: how the lane graph runs.
        stage: calls of an earlier stage come first; 0 while that is not known.
        parameters: how many numbers they hold, all together.
    """

    towers: tuple[str, ...] = ()
    rows: list[NodeRow] = field(default_factory=list)
    plan: str = ""
    stage: int = 0
    parameters: int = 0

    @classmethod
    def of(
        cls, towers: tuple[str, ...], how: str = "not run", why: str = "", ms: Any = None, **more: Any
    ) -> Self:
        return cls(_shortened(towers), more.pop("op", ""), how, why, ms or {}, towers, **more)

    @property
    def paths(self) -> tuple[str, ...]:
        return self.towers

    @property
    def size(self) -> int:
        return len(self.towers)

    def below(self, path: str) -> Self:
        """The same row for the model in which this one stands at `path`."""
        towers = tuple(f"{path}.{tower}" if tower else path for tower in self.towers)
        return replace(self, path=_shortened(towers), towers=towers)

    @property
    def coverage(self) -> float:
        """The share of the graph's nodes that run by a rule of their own, or once for all towers."""
        return Explanation(self.rows).coverage if self.rows else 0.0

    def more(self) -> dict[str, str]:
        return {
            "stage": str(self.stage or ""),
            "parameters": f"{self.parameters:,}" if self.parameters else "",
            "nodes wide": f"{self.coverage:.0%} of {len(self.rows)}" if self.rows else "",
        }


@dataclass
class RouterExplanation(Explanation):
    """What a router's last forward did. `rows`: one for each group of towers."""

    @property
    def together(self) -> int:
        """How many towers or calls ran as lanes."""
        return self.counts.get("together", 0)


@dataclass
class Plan(RouterExplanation):
    """What `CompileRouter` found in a model: which modules go together, which do not, and why.

    Attributes:
        rows: the groups in the order in which they run, then alike modules that do not go together.
        settled: False while no input has been seen: the groups are then guesses from structure alone.
        ms: what was measured of the whole model.
    """

    settled: bool = True
    ms: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.settled:
            self.note = "from structure alone; an input settles it"

    @property
    def groups(self) -> list[GroupRow]:
        """What goes together."""
        return [row for row in self.rows if not isinstance(row, Declined)]

    @property
    def declined(self) -> list["Declined"]:
        """Alike modules that do not."""
        return [row for row in self.rows if isinstance(row, Declined)]

    @property
    def stages(self) -> list[list[GroupRow]]:
        """The groups by stage."""
        numbers = sorted({group.stage for group in self.groups})
        return [[group for group in self.groups if group.stage == number] for number in numbers]

    @property
    def parameters(self) -> int:
        """How many numbers are in groups."""
        return sum(group.parameters for group in self.groups)


class Declined(GroupRow):
    """Modules of one structure that do not go together."""


def _shortened(names: tuple[str, ...], most: int = 4) -> str:
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])}, ... {names[-1]} ({len(names)})"
