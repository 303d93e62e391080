"""What people read, what programs read, and the picture."""

import io
import json
import math
import sys

import pytest
import torch
from rich.console import Console

from wide_compiler.benchmark import BenchmarkRow, document, plot, tables, timestamped, write

CPU = torch.device("cpu")


def row(n: int, loop: float, strategy: str = "einsum", **changes) -> BenchmarkRow:
    fields = {"ms": {"loop": loop, "ours": 1.0}, "error": 2e-7, "ok": True, "tolerance": 1e-4}
    return BenchmarkRow("linear", "primitive", n, 8, "infer", "cpu", strategy, **{**fields, **changes})


ROWS = [
    row(2, 0.5),
    row(2, 0.5, "sequential", ok=False, error=0.25, why="differs from the loop: 2.5e-01"),
    row(8, 3.0),
    row(8, 3.0, "sequential", ok=False, error=None, ms={"loop": 3.0}, why="RuntimeError: not here"),
]
PEERS = {
    "ms": {"loop": 3.0, "ours": 1.0, "vmap": 2.0},
    "errors": {"vmap": 1e-7},
    "failures": {"jax": "ValueError: [x] is no list"},
}


def text(*things) -> str:
    console = Console(file=io.StringIO(), width=200)
    for thing in things:
        console.print(thing)
    return console.file.getvalue()


def test_the_table_says_who_is_faster_and_who_is_wrong():
    shown = text(tables.table(ROWS, "some machine"))
    assert "some machine" in shown and "best peer" not in shown
    lines = [line for line in shown.splitlines() if "linear" in line]
    assert "0.50x" in lines[0] and "einsum" in lines[0] and "ok" in lines[0]
    assert "WRONG" in lines[1] and "2e-01" in lines[1]
    assert "3.00x" in lines[2]
    assert "cannot run" in lines[3] and "–" in lines[3]


def test_peers_have_columns_and_a_table_of_their_own():
    rows = [row(8, 3.0, **PEERS)]
    assert "x best peer" in text(tables.table(rows, "")) and "2.00x" in text(tables.table(rows, ""))
    peers = text(tables.peer_table(rows))
    assert "vmap" in peers and "fails" in peers and "2.000" in peers
    assert tables.peer_table(ROWS) is None
    wrong = row(8, 3.0, **{**PEERS, "errors": {"vmap": 0.5}})
    assert "5e-01 off" in text(tables.peer_table([wrong]))


def test_notes_say_everything_once():
    rows = [*ROWS, row(8, 3.0, **PEERS), row(16, 3.0, **PEERS)]
    said = text(*tables.notes(rows)).splitlines()
    assert said == [
        "linear, sequential, N=2: differs from the loop: 2.5e-01",
        "linear, sequential, N=8: RuntimeError: not here",
        "linear, jax, N=8, 16: ValueError: [x] is no list",
    ]


def test_crossovers_in_words():
    always = [row(2, 2.0, "a"), row(8, 2.0, "a")]
    never = [row(2, 2.0, "b"), row(8, 0.5, "b")]
    once = [row(2, 2.0, "c")]
    assert list(tables.crossovers([*ROWS, *always, *never, *once])) == [
        "linear, faster than the loop: einsum from N=8 on, a from N=2 on, b not at N=8",
    ]


def test_a_layer_and_a_model_of_one_name_are_told_apart():
    rows = [row(2, 2.0), row(8, 2.0), row(2, 2.0), row(8, 0.5)]
    rows[2].kind = rows[3].kind = "model"
    assert list(tables.crossovers(rows)) == [
        "linear (primitive), faster than the loop: einsum from N=2 on",
        "linear (model), faster than the loop: not at N=8",
    ]
    shown = text(tables.table(rows, ""))
    assert "model / primitive" in shown and shown.count("linear (model)") == 2


def test_top_rows_are_the_fastest():
    assert [r.n for r in tables.best_first([row(1, 1.0), row(2, 9.0), row(3, 4.0)], 2)] == [2, 3]
    assert tables.best_first(ROWS, None) == ROWS


def test_the_document_says_on_what_with_what_when_and_how(tmp_path):
    rows = [*ROWS, row(9, 1.0, error=math.inf, ok=False, why="another shape")]
    path = tmp_path / "folder" / "results.json"
    write(path, document(rows, CPU, "wide_compiler benchmark linear", "quick"))
    found = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert {"device", "torch", "python", "wide_compiler", "date", "command", "rows"} <= set(found)
    assert found["torch"] == torch.__version__ and found["complete"]
    assert found["rows"][0]["speedup"] == 0.5 and found["rows"][0]["ms"] == {"loop": 0.5, "ours": 1.0}
    assert found["rows"][-1]["error"] is None
    assert {"kind": "primitive", "name": "linear", "strategy": "sequential", "n": None} in found["crossover"]


def test_names_of_saved_files():
    assert timestamped("model:lstm").name.startswith("wide_benchmark_model_lstm_20")


@pytest.mark.parametrize("rows", [ROWS, [row(8, 3.0, **PEERS)], []])
def test_the_plot_is_written(tmp_path, rows):
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "picture.png"
    plot.draw(rows, path, "title")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"wide_compiler\[plots\]"):
        plot.require_matplotlib()
