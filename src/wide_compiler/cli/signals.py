"""`wide_compiler signals ...`: inspect the workers of a running script."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..errors import WideError

signals_app = typer.Typer(
    help="Look at the workers of a running script: record, draw, watch.",
    rich_markup_mode="markdown",
    no_args_is_help=True,
)
Pid = Annotated[
    int | None, typer.Option("--pid", "-p", help="Which script, if several have workers: its process id.")
]
Files = Annotated[list[Path], typer.Argument(metavar="FILES", help="What `trace` wrote.")]


@signals_app.callback()
def signals_command() -> None:
    """Look at the workers of a running script."""


@signals_app.command("trace")
def trace_command(
    seconds: Annotated[float, typer.Option("--seconds", "-s", min=0.1, help="How long to record.")] = 5.0,
    folder: Annotated[Path, typer.Option("--dir", "-d", help="Where to write the trace.")] = Path("traces"),
    pid: Pid = None,
) -> None:
    """Record what every worker of a running script does, and when.

    **Examples**

    ```
    wide_compiler signals trace -s 5 --dir traces/
    wide_compiler signals visualize traces/*.log --output timeline.png
    ```
    """
    from ..observe.trace_file import record

    with _errors():
        path, count = record(seconds, folder, pid)
    typer.echo(f"{path}: {count} instructions in {seconds:g} s")


@signals_app.command("visualize")
def visualize_command(
    files: Files,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A picture (.png, .pdf, .svg), or .json for Perfetto.")
    ] = Path("timeline.png"),
    begin: Annotated[float | None, typer.Option("--from", help="Seconds into the trace.")] = None,
    end: Annotated[float | None, typer.Option("--to", help="Seconds into the trace.")] = None,
) -> None:
    """Draw a trace: one row for each worker, signals by colour, forward plain, backward hatched.

    Without `--from` and `--to` a few typical steps are drawn. A `.json` file has Chrome's trace format and
    contains the whole trace; open it at ui.perfetto.dev.

    **Examples**

    ```
    wide_compiler signals visualize traces/*.log --output timeline.png
    wide_compiler signals visualize traces/*.log --output timeline.json
    ```
    """
    import json

    from ..observe.picture import draw
    from ..observe.trace_file import chrome, read

    if output.suffix not in (".png", ".pdf", ".svg", ".json"):
        raise typer.BadParameter(f"{output} should end in .png, .pdf, .svg or .json", param_hint="--output")
    with _errors():
        trace = read(files)
        if output.suffix == ".json":
            output.write_text(json.dumps(chrome(trace.spans)))
        else:
            last = max(s.end for s in trace.spans) - trace.spans[0].start
            window = None if begin is None and end is None else (begin or 0.0, last if end is None else end)
            draw(trace, output, window)
    typer.echo(f"{output}: {len(trace.spans)} instructions")


@signals_app.command("top")
def top_command(
    pid: Pid = None,
    seconds: Annotated[float | None, typer.Option("--seconds", "-s", help="Stop after so long.")] = None,
) -> None:
    """A live table: how busy each worker is, its ops, bytes, tensors, memory, and what it mostly runs."""
    from ..observe.top import show

    with _errors():
        show(pid, seconds, Console())


@signals_app.command("web")
def web_command(
    pid: Pid = None,
    port: Annotated[int, typer.Option("--port", help="On 127.0.0.1; 0 for any that is free.")] = 8790,
) -> None:
    """A page on this machine: the live timeline, signals and meshes, and every lane's loss during `fit`."""
    from ..observe.web import serve

    with _errors():
        server = serve(pid, port)
    typer.echo(f"http://127.0.0.1:{server.server_port}/  (Ctrl-C ends it)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


class _errors:
    """Print a user error as one line and exit with code 1, without a traceback."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, WideError | OSError):
            typer.echo(f"wide_compiler signals: {error}", err=True)
            raise typer.Exit(1) from None
