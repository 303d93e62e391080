"""`wide_compiler xcs explain`: where a function could run in parallel, and where not."""

import importlib.util
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

xcs_app = typer.Typer(
    help="Parallelism discovered in plain Python: what `@jit` would do with a function.",
    rich_markup_mode="markdown",
    no_args_is_help=True,
)

Target = Annotated[
    str, typer.Argument(metavar="FILE:FUNC", help="A file and a function or Class.method in it.")
]


@xcs_app.callback()
def xcs_command() -> None:
    """Parallelism discovered in plain Python."""


@xcs_app.command("explain")
def explain_command(target: Target) -> None:
    """Show, line by line, the sites of a function and why other loops are none.

    The file is imported, the function is not called. What happens at a site is decided when it runs, with the
    real objects: call `fn.explain()` afterwards to see that.

    **Examples**

    ```
    wide_compiler xcs explain model.py:classify_texts
    wide_compiler xcs explain model.py:Encoder.encode_all
    ```
    """
    file, _, name = target.rpartition(":")
    if not file or not name:
        raise typer.BadParameter(f"{target!r} should be FILE:FUNC, for example model.py:classify_texts")
    function = _found(Path(file), name)
    from wide_compiler.xcs import jit

    explanation = (function if hasattr(function, "explain") else jit(function)).explain()
    _print(Console(), explanation)


def _found(path: Path, name: str) -> Any:
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise typer.BadParameter(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    held: Any = module
    for part in name.split("."):
        if not hasattr(held, part):
            raise typer.BadParameter(f"{path} has no {name!r}")
        held = getattr(held, part)
    if not callable(held):
        raise typer.BadParameter(f"{name!r} in {path} is not a function")
    return held


def _print(console: Console, explanation: Any) -> None:
    if explanation.why or not explanation.rows:
        console.print(Text(str(explanation)))
        return
    table = Table(title=explanation.name, title_justify="left")
    table.add_column("line", justify="right", no_wrap=True)
    for column in ("text", "kind"):
        table.add_column(column, overflow="fold")
    table.add_column("site?", overflow="fold")
    for row in explanation.rows:
        verdict = Text("yes", "green") if row.done != "as written" else Text(f"no: {row.why}", "yellow")
        table.add_row(str(row.line), Text(row.text), row.kind, verdict)
    console.print(table)
