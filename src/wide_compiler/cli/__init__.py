"""The command line: parse, call, print. The commands themselves: check, trace, info, demo, benchmark, xcs,
signals."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .benchmark import benchmark_command
from .files import check_picture, make_folder
from .signals import signals_app
from .xcs import xcs_app

app = typer.Typer(
    help="""Write it for one; run it for N: fuse N PyTorch models of one architecture into one wide model.

    Start with **wide_compiler demo**: 64 networks trained at once, the same 64 one after another,
    and a picture of what the ensemble knows and does not know.""",
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

# Written out, because the models themselves would have to be imported to be listed.
MODEL_NAMES = ("mlp", "deep_mlp", "resblock", "convnet", "unet", "transformer", "gpt", "lstm")

ModelName = Annotated[
    str, typer.Option("--model", "-m", metavar="NAME", help=f"One of {', '.join(MODEL_NAMES)}.")
]
ModelNames = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help=f"Only this one of {', '.join(MODEL_NAMES)}; may be repeated.",
    ),
]
Lanes = Annotated[int, typer.Option("--lanes", "-n", min=1, help="How many models to fuse.")]


@app.callback(invoke_without_command=True)
def no_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        # Asking for nothing is a question, not a mistake: the help, and exit code 0.
        typer.echo(context.get_help(), nl=False)


@app.command("test")
def test_command(model: ModelNames = None, lanes: Lanes = 4) -> None:
    """Check that wide equals the loop, on the built-in models.

    Every model runs in evaluation and in training mode, in float64. Outputs, gradients and buffers of every
    lane are compared with those of the model run alone. Exit code 1 if any differs.

    **Examples**

    ```
    wide_compiler test
    wide_compiler test -n 16 -m resblock -m gpt
    ```
    """
    names = _known(model or MODEL_NAMES)
    from .check import run

    if not run(Console(), names, lanes):
        raise typer.Exit(1)


@app.command("trace")
def trace_command(model: ModelName = "mlp", lanes: Lanes = 4) -> None:
    """Show the graph of one member, the graph of all lanes, and what became of every node.

    A node runs by its own rule, once for all lanes (shared), under vmap, or in a loop over lanes; the
    last two say why.

    **Examples**

    ```
    wide_compiler trace -m mlp
    wide_compiler trace -m resblock -n 8
    ```
    """
    (name,) = _known([model])
    from .trace import run

    run(Console(), name, lanes)


@app.command("info")
def info_command() -> None:
    """List versions, devices, presets, and the layers that have a wide form.

    **Example**

    ```
    wide_compiler info
    ```
    """
    from .info import run

    run(Console())


@app.command("demo")
def demo_command(
    lanes: Annotated[int, typer.Option("--lanes", "-n", min=2, help="How many networks to train.")] = 64,
    steps: Annotated[int, typer.Option(min=1, help="Steps of Adam, for each network.")] = 400,
    out: Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="The picture.")] = Path(
        "wide_demo.png"
    ),
    seed: Annotated[int, typer.Option(help="Data, bootstrap and initial weights follow from it.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads, the same for both sides.")] = 1,
) -> None:
    """Train an ensemble of 64 networks at once, then one after another, and compare.

    Both sides start from the same weights, see the same data and take the same steps. Shown are the time of
    each, how far their predictions are apart, and, as a picture, what the ensemble knows and does not know.
    It takes less than a minute on two CPU cores.

    **Examples**

    ```
    wide_compiler demo
    wide_compiler demo -n 16 --steps 800 --out ensemble.png
    ```
    """
    check_picture(out, "--out")
    make_folder(out, "--out")
    from .demo import run

    run(Console(), lanes, steps, out, seed, threads)


app.command("benchmark")(benchmark_command)
app.add_typer(xcs_app, name="xcs")
app.add_typer(signals_app, name="signals")


def _known(names: Iterable[str]) -> list[str]:
    """The names, if all are built-in models; else a usage error (exit code 2) that lists the choices."""
    for name in names:
        if name not in MODEL_NAMES:
            choices = ", ".join(MODEL_NAMES)
            raise typer.BadParameter(f"unknown model {name!r}; choose one of {choices}", param_hint="--model")
    return list(dict.fromkeys(names))


def main() -> None:
    """The entry point of the `wide_compiler` command."""
    app(prog_name="wide_compiler")
