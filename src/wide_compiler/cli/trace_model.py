"""`wide_compiler trace`: print the captured graph, the lane graph, and how every node runs."""

import re
from typing import Any

import torch
from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from torch import fx

import wide_compiler
from wide_compiler.explain import Explanation
from wide_compiler.model.program import WideProgram

from .models import MODELS
from .output_files import print_json

BATCH = 3
HOW_STYLE = {"rule": "green", "shared": "cyan", "vmap": "yellow", "loop": "red"}


def run(console: Console, name: str, lanes: int, as_json: bool = False) -> None:
    """Compile a built-in model; print both graphs and the table of `explain()`, or all of it as JSON."""
    built_in = MODELS[name]
    torch.manual_seed(0)
    models = [built_in.make().eval() for _ in range(lanes)]
    wide = wide_compiler.compile(models, built_in.sample(BATCH))
    program = wide.programs.latest
    if as_json:
        _print_json(name, wide.explain(), program)
        return
    console.print(Text(f"{name}: {built_in.about}, {lanes} lanes", style="bold"))
    if isinstance(program, WideProgram):
        _print_code(console, "one member, as captured", member_code(program.captured.graph))
        _print_code(console, f"all {lanes} lanes at once", without_releases(program.graph.code))
    explanation = wide.explain()
    if explanation.why:
        console.print(Text(f"no graph: runs as a loop, because {explanation.why}", "yellow"))
    console.print(_table(explanation))


def _print_json(name: str, explanation: Explanation, program: Any) -> None:
    graphs = {}
    if isinstance(program, WideProgram):
        graphs["member"] = member_code(program.captured.graph)
        graphs["lanes"] = without_releases(program.graph.code)
    print_json({"model": name, "coverage": explanation.coverage, **explanation.as_dict(), "graphs": graphs})


def member_code(graph: fx.Graph) -> str:
    """Return a captured graph as Python code."""
    return without_releases(graph.python_code("self").src)


def without_releases(code: str) -> str:
    """Remove the `x = None` with which generated code frees values, because it is hard to read."""
    return re.sub(r";  (\w+ = )+None$", "", code, flags=re.MULTILINE).strip()


def _print_code(console: Console, title: str, code: str) -> None:
    syntax = Syntax(code, "python", theme="ansi_dark", word_wrap=True, background_color="default")
    console.print(Panel(syntax, title=title, title_align="left", border_style="dim"))


def _table(explanation: Explanation) -> Table:
    title = f"{explanation.coverage:.0%} of {len(explanation.rows)} nodes by own rules"
    table = Table(title=title, title_justify="left")
    for column in ("path", "op", "how", "strategy"):
        table.add_column(column, overflow="fold")
    table.add_column("ms", justify="right", no_wrap=True)
    has_reasons = any(row.why for row in explanation.rows)
    if has_reasons:
        table.add_column("why", overflow="fold")
    for row in explanation.rows:
        milliseconds = "" if row.ms is None else f"{row.ms:.3f}"
        cells = [Text(row.path), Text(row.op), Text(row.how, style=HOW_STYLE.get(row.how, ""))]
        cells += [Text(row.strategy), Text(milliseconds)]
        table.add_row(*cells, *([Text(row.why)] if has_reasons else []))
    return table
