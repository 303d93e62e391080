"""What `explain()` gives at every door: the parts of the work, how each runs, and why not faster."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Ways to run a part that are none of ours: in a loop, by PyTorch's vmap, alone for want of others, not yet.
NOT_WIDE = ("loop", "vmap", "alone", "not run")


@dataclass
class Row:
    """One part of the work and what became of it.

    Attributes:
        path: where it is: a module's path, names of towers, a line, a signal.
        op: what it is: an op, a class, a kind of statement.
        how: the way it runs; 'loop' is one item after another, 'not run' no way yet.
        why: what that was decided by, or what stands against a faster way.
        ms: its time, or the times that were measured to decide, by way.
    """

    path: str
    op: str
    how: str
    why: str = ""
    ms: Any = None

    @property
    def wide(self) -> bool:
        """Whether it runs as lanes, or by another fast way of the library."""
        return self.how not in NOT_WIDE

    @property
    def size(self) -> int:
        """How many parts this row stands for."""
        return 1

    def more(self) -> dict[str, str]:
        """Further columns of the table: name -> text."""
        return {}

    def cells(self) -> dict[str, str]:
        """The row as texts, by column."""
        return {
            "path": self.path,
            "op": self.op,
            "how": self.how,
            **self.more(),
            "ms": _milliseconds(self.ms),
            "why": self.why,
        }


@dataclass
class Explanation:
    """What became of the work, part by part.

    Attributes:
        rows: the parts.
        why: why all of it runs as a loop; empty if it does not.
        name: what is explained.
        note: a last line under the table.
        recaptures: how often a change (of an attribute, a weight's shape, a mode) made it capture anew.
    """

    rows: Sequence[Any]
    why: str = ""
    name: str = ""
    note: str = ""
    recaptures: int = 0

    @property
    def coverage(self) -> float:
        """The share of the parts that runs wide."""
        total = sum(row.size for row in self.rows)
        return sum(row.size for row in self.rows if row.wide) / total if total else float(not self.why)

    @property
    def counts(self) -> dict[str, int]:
        """How many parts run each way."""
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row.how] = counts.get(row.how, 0) + row.size
        return counts

    def __getitem__(self, path: str) -> Any:
        """The first row of a path."""
        return {row.path: row for row in reversed(self.rows)}[path]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: `name`, `why`, `note`, and each row's fields by name."""
        rows = [{key: _plain(value) for key, value in vars(row).items()} for row in self.rows]
        return {"name": self.name, "why": self.why, "note": self.note, "rows": rows}

    def __str__(self) -> str:
        lines = [self._headline(), *_table([row.cells() for row in self.rows]), self.note]
        return "\n".join(line for line in lines if line)

    def _headline(self) -> str:
        wide, total = (sum(row.size for row in rows) for rows in (filter(_wide, self.rows), self.rows))
        said = f"loop, because {self.why}" if self.why else f"{wide} of {total} wide" if total else ""
        anew = f"captured anew {self.recaptures} times" if self.recaptures else ""
        return ": ".join(filter(None, (self.name, ", ".join(filter(None, (said, anew))))))


def _wide(row: Row) -> bool:
    return row.wide


def _plain(value: Any) -> Any:
    """As JSON can say it: rows within rows by their fields, what else it does not know as text."""
    if isinstance(value, Row):
        return {key: _plain(inner) for key, inner in vars(value).items()}
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _milliseconds(ms: float | dict[str, float] | None) -> str:
    if isinstance(ms, dict):
        return ", ".join(f"{way} {taken:.3f}" for way, taken in ms.items())
    return "" if ms is None else f"{ms:.3f}"


def _table(rows: list[dict[str, str]]) -> list[str]:
    """Leaves out empty columns. Nothing is cut or folded: reasons are long, and stand last."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = [c for c in dict.fromkeys(c for row in rows for c in row) if any(row.get(c) for row in rows)]
    if not columns:
        return []
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row.get(column, "")) for column in columns))
    buffer = io.StringIO()
    Console(file=buffer, width=10_000, color_system=None, force_terminal=False).print(table)
    return [line.rstrip() for line in buffer.getvalue().splitlines()]
