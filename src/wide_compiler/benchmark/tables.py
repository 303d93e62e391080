"""Benchmark results as text: the table, the peers, crossovers, and failures."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from .benchmark_row import LOOP, OURS, BenchmarkRow, crossover, lines

MODES = {"infer": "forward pass", "train": "training step (forward, backward, Adam)"}


def best_first(rows: Sequence[BenchmarkRow], top: int | None) -> list[BenchmarkRow]:
    """Return the `top` rows with the largest speed-up, or all rows in their order if `top` is None."""
    if top is None:
        return list(rows)
    return sorted(rows, key=lambda row: row.speedup or 0.0, reverse=True)[:top]


def label(kind: str, name: str, rows: Sequence[BenchmarkRow]) -> str:
    """Return the name, with the kind if a layer and a model share the name."""
    shared = len({row.kind for row in rows if row.name == name}) > 1
    return f"{name} ({kind})" if shared else name


def table(rows: Sequence[BenchmarkRow], device: str) -> Table:
    """Return one line per row: times of the loop and ours, ratios, strategy, error."""
    mode = MODES[rows[0].mode] if rows else ""
    result = Table(title=f"Milliseconds per {mode} of all N lanes, {device}", title_justify="left")
    result.add_column(" / ".join(sorted({row.kind for row in rows})), no_wrap=True)
    for column in ("N", "batch", "loop ms", "ours ms", "x loop"):
        result.add_column(column, justify="right", no_wrap=True)
    result.add_column("strategy", min_width=6, overflow="fold")  # stays readable in a narrow terminal
    with_peers = any(has_peers(row) for row in rows)
    if with_peers:
        result.add_column("x best peer", justify="right")  # the table of peers shows which one
    result.add_column("error", justify="right", no_wrap=True)
    result.add_column("", no_wrap=True)
    for row in rows:
        cells = [label(row.kind, row.name, rows), str(row.n), str(row.batch)]
        cells += [number(row.ms.get(LOOP)), number(row.ms.get(OURS)), _ratio(row.speedup), row.strategy]
        if with_peers:
            cells.append(_ratio(row.peer_ratio))
        cells += ["–" if row.error is None else f"{row.error:.0e}", verdict(row)]
        result.add_row(*cells)
    return result


def has_peers(row: BenchmarkRow) -> bool:
    return bool(row.failures or row.errors)


def peer_table(rows: Sequence[BenchmarkRow]) -> Table | None:
    """Return the time of every peer, once per point; None if no peers were measured."""
    points = {(row.kind, row.name, row.n, row.batch): row for row in rows if has_peers(row)}
    if not points:
        return None
    names = list(dict.fromkeys(name for row in points.values() for name in (*row.errors, *row.failures)))
    result = Table(title="Peers, milliseconds", title_justify="left")
    result.add_column("", no_wrap=True)
    for column in ("N", LOOP, *names):
        result.add_column(column, justify="right")
    for row in points.values():
        times = [number(row.ms.get(LOOP)), *(_peer(row, name) for name in names)]
        result.add_row(label(row.kind, row.name, rows), str(row.n), *times)
    return result


def _peer(row: BenchmarkRow, name: str) -> str:
    if name in row.failures:
        return "[yellow]fails[/]"
    if name not in row.errors:
        return "–"
    wrong = "" if row.errors[name] <= row.tolerance else f" [red]({row.errors[name]:.0e} off)[/]"
    return number(row.ms.get(name)) + wrong


def notes(rows: Sequence[BenchmarkRow]) -> Iterator[Text]:
    """Messages about rows and peers that are wrong, cannot run or failed, without duplicates."""
    said: dict[tuple[str, str, str, str], list[int]] = {}
    for row in rows:
        if not row.ok:
            colour = "red" if row.wrong else "yellow"
            said.setdefault((colour, row.name, row.strategy or OURS, row.why), []).append(row.n)
        for peer, why in row.failures.items():
            said.setdefault(("yellow", row.name, peer, why), []).append(row.n)
    for (colour, name, who, why), lanes in said.items():
        where = ", ".join(map(str, dict.fromkeys(lanes)))
        yield Text(f"{name}, {who}, N={where}: ", colour) + Text(why)


def crossovers(rows: Sequence[BenchmarkRow]) -> Iterator[str]:
    """From which N on wide is faster than the loop, for everything measured at more than one N."""
    said: dict[tuple[str, str], list[str]] = {}
    for (kind, name, strategy), line in lines(rows).items():
        timed = sorted(row.n for row in line if row.speedup is not None)
        if len(timed) < 2:
            continue
        first = crossover(line)
        when = f"from N={first} on" if first else f"not at N={timed[-1]}"
        said.setdefault((kind, name), []).append(when if strategy == OURS else f"{strategy} {when}")
    for (kind, name), each in said.items():
        yield f"{label(kind, name, rows)}, faster than the loop: {', '.join(each)}"


def number(ms: float | None) -> str:
    """Format milliseconds with about three significant digits."""
    if ms is None:
        return "–"
    return f"{ms:.4f}" if ms < 0.1 else f"{ms:.3f}" if ms < 10 else f"{ms:.1f}"


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return "–"
    colour = "green" if ratio > 1 else "red"
    return f"[{colour}]{ratio:.2f}x[/]" if ratio < 100 else f"[{colour}]{ratio:.0f}x[/]"


def verdict(row: BenchmarkRow) -> str:
    if row.ok:
        return "[green]ok[/]"
    return "[bold red]WRONG[/]" if row.wrong else "[yellow]cannot run[/]"
