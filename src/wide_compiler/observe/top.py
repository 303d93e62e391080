"""A live table of the workers, in the terminal."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from .attach import ObserverFrame, Span, choose, frames
from .blocks import busy

_SECONDS = 3.0  # window of rates and shares


class Rates:
    """Rates over the last seconds, computed from frames."""

    def __init__(self) -> None:
        self.about: dict[str, Any] = {}
        self._spans: deque[Span] = deque()
        self._counts: deque[tuple[float, dict[int, dict[str, Any]]]] = deque()

    def add(self, frame: ObserverFrame) -> None:
        self.about = frame.about
        now = frame.about["time"]
        self._spans.extend(frame.spans)
        stats = {int(worker): s for worker, s in frame.about["stats"].items()}
        self._counts.append((now, stats))
        while self._spans and self._spans[0].end < now - _SECONDS:
            self._spans.popleft()
        while len(self._counts) > 2 and self._counts[0][0] < now - _SECONDS:
            self._counts.popleft()

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per worker: busy, ops_per_s, bytes_per_s, live_tensors, memory, signal, device."""
        if not self._counts or not self._counts[-1][1]:
            return []
        (before, old), (now, new) = self._counts[0], self._counts[-1]
        seconds = max(now - before, 1e-3)
        end = max((s.end for s in self._spans), default=now)
        shares = busy(self._spans, end - min(_SECONDS, seconds), end)
        rows = []
        for worker, stats in sorted(new.items()):
            was = old.get(worker, stats)
            names = Counter(f"{s.signal or 'no signal'}, {s.way}" for s in self._spans if s.worker == worker)
            rows.append(
                {
                    "worker": worker,
                    "busy": min(shares.get(worker, 0.0), 1.0),
                    "ops_per_s": (stats["ops"] - was["ops"]) / seconds,
                    "bytes_per_s": (stats["bytes_sent"] - was["bytes_sent"]) / seconds,
                    "live_tensors": stats["live_tensors"],
                    "memory": stats["memory"],
                    "signal": names.most_common(1)[0][0] if names else "idle",
                    "device": stats["device"],
                }
            )
        return rows


def show(pid: int | None, seconds: float | None = None, console: Console | None = None) -> None:
    """Show the table until the script ends, `seconds` have passed or Ctrl-C is pressed."""
    pid, socket = choose(pid)
    rates, begin = Rates(), time.monotonic()
    with Live(console=console, refresh_per_second=4) as live:
        try:
            for frame in frames(socket):
                rates.add(frame)
                live.update(table(pid, rates))
                if seconds is not None and time.monotonic() - begin > seconds:
                    return
        except KeyboardInterrupt:
            return


def table(pid: int, rates: Rates) -> Table:
    rows = rates.rows()
    meshes = ", ".join("{" + ", ".join(map(str, m)) + "}" for m in rates.about.get("meshes", []))
    made = Table(
        title=f"process {pid}, {rates.about.get('workers', 0)} workers, meshes {meshes}",
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for name in ("worker", "busy", "ops/s", "sent/s", "tensors", "memory", "mostly", "device"):
        words = name in ("busy", "mostly", "device")
        made.add_column(name, justify="left" if words else "right", no_wrap=name != "mostly")
    for row in rows:
        bar = "█" * round(5 * row["busy"])
        made.add_row(
            str(row["worker"]),
            f"[green]{bar:<5}[/] {row['busy']:>4.0%}",
            f"{row['ops_per_s']:,.0f}",
            _bytes(row["bytes_per_s"]),
            str(row["live_tensors"]),
            _bytes(row["memory"]),
            row["signal"],
            row["device"],
        )
    return made


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
