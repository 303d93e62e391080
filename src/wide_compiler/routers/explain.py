"""explain(): which towers ran together, which did not, and why."""

import io
from dataclasses import dataclass, field

from ..widen import Row


@dataclass
class GroupRow:
    """Towers that ran in one way.

    Attributes:
        towers: their names.
        how: 'together' as lanes of one graph, 'in sequence', 'alone' (no other is like it), or 'not run'.
        why: what that was decided by: 'measured', or what stands against running together.
        ms: the times measured to decide, in milliseconds.
        rows: what became of each node of a tower's graph; empty if there is none.
        plan: how the lane graph runs.
    """

    towers: tuple[str, ...]
    how: str
    why: str = ""
    ms: dict[str, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    plan: str = ""

    @property
    def coverage(self) -> float:
        """The share of the graph's nodes that run by a rule of their own, or once for all towers."""
        own = sum(row.how in ("rule", "shared") for row in self.rows)
        return own / len(self.rows) if self.rows else 0.0


@dataclass
class RouterExplanation:
    """What a router's last forward did. `rows`: one for each group of towers."""

    rows: list[GroupRow]

    @property
    def together(self) -> int:
        """How many towers ran as lanes."""
        return sum(len(row.towers) for row in self.rows if row.how == "together")

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        total = sum(len(row.towers) for row in self.rows)
        table = Table(title=f"{self.together} of {total} towers ran together", title_justify="left")
        for column in ("towers", "how", "by own rules", "ms", "why"):
            table.add_column(column, overflow="fold")
        for row in self.rows:
            share = f"{row.coverage:.0%} of {len(row.rows)} nodes" if row.rows else ""
            ms = ", ".join(f"{name} {taken:.3f}" for name, taken in row.ms.items())
            table.add_row(_shortened(row.towers), row.how, share, ms, row.why)
        buffer = io.StringIO()
        Console(file=buffer, width=130).print(table)
        return buffer.getvalue()


def _shortened(names: tuple[str, ...], most: int = 4) -> str:
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])}, ... {names[-1]} ({len(names)})"
