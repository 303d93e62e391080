"""explain() of routers: which towers or modules ran together, which did not, and why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from torch import nn

from ..explain import Explanation, Row
from ..widen import NodeRow


@dataclass
class GroupRow(Row):
    """Towers, or modules of one structure, that run in the same way.

    Attributes:
        how: 'together' as lanes of one graph, 'loop', 'alone' (no other of its structure), or 'not run'.
        towers: their names or paths, one per call.
        rows: how each node of a tower's graph runs; empty without a graph.
        plan: how the lane graph runs.
        stage: position in the order of execution; 0 if unknown.
        parameters: total number of parameter elements.
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

    @classmethod
    def of_modules(
        cls,
        paths: Sequence[str],
        modules: Sequence[nn.Module],
        how: str = "not run",
        why: str = "",
        **more: Any,
    ) -> Self:
        """Return the row of modules of one structure, with the number of their parameters."""
        count = sum(p.numel() for module in modules for p in module.parameters())
        return cls.of(tuple(paths), how, why, op=type(modules[0]).__name__, parameters=count, **more)

    @property
    def paths(self) -> tuple[str, ...]:
        return self.towers

    @property
    def size(self) -> int:
        return len(self.towers)

    def below(self, path: str) -> Self:
        """Return the row with paths relative to a parent model that holds this model at `path`."""
        towers = tuple(f"{path}.{tower}" if tower else path for tower in self.towers)
        return replace(self, path=_shortened(towers), towers=towers)

    @property
    def coverage(self) -> float:
        """Share of the graph's nodes that run by a wide rule, or once for all towers."""
        return Explanation(self.rows).coverage if self.rows else 0.0

    def more(self) -> dict[str, str]:
        return {
            "stage": str(self.stage or ""),
            "parameters": f"{self.parameters:,}" if self.parameters else "",
            "nodes wide": f"{self.coverage:.0%} of {len(self.rows)}" if self.rows else "",
        }


@dataclass
class RouterExplanation(Explanation):
    """How the towers ran in the last forward; one row per group."""

    @property
    def together(self) -> int:
        """Number of towers or calls that ran as lanes."""
        return self.counts.get("together", 0)


@dataclass
class RouterPlan(RouterExplanation):
    """The plan of `CompileRouter` for a model: which modules run together, which do not, and why.

    Attributes:
        rows: the groups in order of execution, then modules of one structure that are not joined.
        settled: False before the first input; the groups are then a guess from structure.
        ms: measured times of the whole model.
    """

    settled: bool = True
    ms: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.settled:
            self.note = "from structure alone; an input settles it"

    @property
    def groups(self) -> list[GroupRow]:
        """The rows of joined modules."""
        return [row for row in self.rows if not isinstance(row, Declined)]

    @property
    def declined(self) -> list["Declined"]:
        """The rows of modules of one structure that are not joined."""
        return [row for row in self.rows if isinstance(row, Declined)]

    @property
    def stages(self) -> list[list[GroupRow]]:
        """The groups by stage."""
        numbers = sorted({group.stage for group in self.groups})
        return [[group for group in self.groups if group.stage == number] for number in numbers]

    @property
    def parameters(self) -> int:
        """Number of parameter elements in groups."""
        return sum(group.parameters for group in self.groups)


class Declined(GroupRow):
    """Modules of one structure that are not joined."""

    @classmethod
    def by_key(
        cls, model: nn.Module, calls: Sequence[tuple[Any, str, Any]], why: Callable[[Any, list[Any]], str]
    ) -> list[Self]:
        """Return one row per key of (key, path, call); `why(key, calls)` gives the reason."""
        by_key: dict[Any, list[tuple[str, Any]]] = {}
        for key, path, call in calls:
            by_key.setdefault(key, []).append((path, call))
        rows = []
        for key, alike in by_key.items():
            paths, own = zip(*alike, strict=True)
            op = type(model.get_submodule(paths[0])).__name__
            rows.append(cls.of(paths, "loop", why(key, list(own)), op=op))
        return rows


def _shortened(names: tuple[str, ...], most: int = 4) -> str:
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])}, ... {names[-1]} ({len(names)})"
