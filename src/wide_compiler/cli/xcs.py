"""`wide_compiler xcs explain`: which loops of a function can run in parallel, and why others cannot."""

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .output_files import AsJson, print_json

xcs_app = typer.Typer(
    help="Parallelism discovered in plain Python: what `@jit` would do with a function.",
    rich_markup_mode="markdown",
    no_args_is_help=True,
)

Target = Annotated[
    str, typer.Argument(metavar="FILE:FUNC", help="A file and a function or Class.method in it.")
]

WHAT_YES_MEANS = (
    "yes: decided from the actual objects when it runs; it may still run as a loop. Call the function, then "
    "its explain()."
)


@xcs_app.callback()
def xcs_command() -> None:
    """Parallelism discovered in plain Python."""


@xcs_app.command("explain")
def explain_command(target: Target, as_json: Annotated[bool, AsJson] = False) -> None:
    """List the sites of a function by line, with the reason why other loops are not sites.

    The file is imported, the function is not called. How a site runs is decided at run time from the actual
    objects: call the function, then `fn.explain()`, to see that.

    **Examples**

    ```
    wide_compiler xcs explain model.py:classify_texts
    wide_compiler xcs explain model.py:Encoder.encode_all
    wide_compiler xcs explain model.py:classify_texts --json
    ```
    """
    file, _, name = target.rpartition(":")
    if not file or not name:
        raise typer.BadParameter(f"{target!r} should be FILE:FUNC, for example model.py:classify_texts")
    path = Path(file)
    if not path.is_file():  # checked before the slow import of PyTorch
        raise typer.BadParameter(f"there is no file {path}")
    from wide_compiler.xcs import XcsWarning, jit

    from .xcs_file import imported
    from .xcs_target import found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", XcsWarning)  # the explanation contains them
        function, decorated = found(imported(path), path, name)
        explanation = (function if hasattr(function, "explain") else jit(function)).explain()
    if as_json:
        print_json({**explanation.as_dict(), "decorated": decorated})
        return
    console = Console()
    _print(console, explanation)
    if decorated:
        console.print(Text(f"{name} has a decorator; what its wrapper does is not analysed."))


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
        verdict = Text("yes", "green") if row.site else Text(f"no: {row.why}", "yellow")
        table.add_row(str(row.line), Text(row.text), row.op, verdict)
    console.print(table)
    if any(row.site for row in explanation.rows):
        console.print(Text(WHAT_YES_MEANS))
