"""The result of `explain()`, for all entry points: how each part runs, and why."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Values of `Row.how` that are fallbacks: a loop, PyTorch's vmap, a single item, or not run yet.
NOT_WIDE = ("loop", "vmap", "alone", "not run")


@dataclass
class Row:
    """One part of the work and how it runs.

    Attributes:
        path: location: a module's path, names of towers, a source line, a signal.
        op: kind: an op, a class, a statement.
        how: the way it runs; 'loop' is one item after another, 'not run' means that it has not run yet.
        why: the reason for this way, or what prevents a faster one.
        ms: its time in milliseconds, or the measured times by candidate.
    """

    path: str
    op: str
    how: str
    why: str = ""
    ms: Any = None

    @property
    def wide(self) -> bool:
        """Whether it runs as lanes, or another fast way of the library."""
        return self.how not in NOT_WIDE

    @property
    def size(self) -> int:
        """Number of parts that this row covers."""
        return 1

    def more(self) -> dict[str, str]:
        """Additional columns of the table: name -> text."""
        return {}

    def cells(self) -> dict[str, str]:
        """Return the row's texts by column."""
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
    """How each part of the work runs.

    Attributes:
        rows: the parts.
        why: why everything runs as a loop; empty if it does not.
        name: name of what is explained.
        note: a last line under the table.
        recaptures: number of captures repeated after a change (of an attribute, a weight's shape, a mode).
    """

    rows: Sequence[Any]
    why: str = ""
    name: str = ""
    note: str = ""
    recaptures: int = 0

    @property
    def coverage(self) -> float:
        """Share of the parts that run wide."""
        total = sum(row.size for row in self.rows)
        return sum(row.size for row in self.rows if row.wide) / total if total else float(not self.why)

    @property
    def counts(self) -> dict[str, int]:
        """Number of parts by way to run."""
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row.how] = counts.get(row.how, 0) + row.size
        return counts

    def __getitem__(self, path: str) -> Any:
        """Return the first row with this path."""
        return {row.path: row for row in reversed(self.rows)}[path]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: `name`, `why`, `note`, and the fields of each row."""
        rows = [{key: _plain(value) for key, value in vars(row).items()} for row in self.rows]
        return {"name": self.name, "why": self.why, "note": self.note, "rows": rows}

    def __str__(self) -> str:
        lines = [self._headline(), *table([row.cells() for row in self.rows]), self.note]
        return "\n".join(line for line in lines if line)

    def _headline(self) -> str:
        wide, total = (sum(row.size for row in rows) for rows in (filter(_wide, self.rows), self.rows))
        said = f"loop, because {self.why}" if self.why else f"{wide} of {total} wide" if total else ""
        anew = f"captured anew {self.recaptures} times" if self.recaptures else ""
        return ": ".join(filter(None, (self.name, ", ".join(filter(None, (said, anew))))))


def _wide(row: Row) -> bool:
    return row.wide


def _plain(value: Any) -> Any:
    """Convert to JSON types: rows become dicts, unknown types become strings."""
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


def table(rows: list[dict[str, str]]) -> list[str]:
    """Return the lines of a table without empty columns, in full length; long reasons come last."""
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
