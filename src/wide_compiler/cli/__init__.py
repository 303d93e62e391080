"""The command line. Each command parses its options here and runs in the file of its name.

Nothing here imports PyTorch, so `--help`, completion and usage errors take a tenth of a second.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from .benchmark import benchmark_command
from .output_files import AsJson, check_picture, make_folder, one_of
from .signals import signals_app
from .xcs import xcs_app

app = typer.Typer(
    help="""Write it for one; run it for N: fuse N PyTorch models of one architecture into one wide model.

    Start with **wide_compiler demo**: 64 networks trained at once, the same 64 one after another,
    and a picture of what the ensemble knows and does not know. **wide_compiler doctor** tries every part
    of the library on this machine.

    **Examples**

    ```
    wide_compiler demo                   # the idea, in less than a minute
    wide_compiler doctor                 # what works on this machine
    wide_compiler benchmark mlp -n 4,64  # wide against the loop, measured here
    wide_compiler trace -m resblock      # what becomes of a model's graph
    wide_compiler --install-completion   # Tab completes commands and names
    ```""",
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)

# Copied here, because importing the models to list them would import PyTorch.
MODEL_NAMES = ("mlp", "deep_mlp", "resblock", "convnet", "unet", "transformer", "gpt", "lstm")
DOORS = (
    *("cache", "compile", "training", "router", "jit", "signals", "torch.compile"),
    *("export to ONNX", "PEFT", "Ray", "CUDA", "Triton"),
)
START, CHECK, OTHER = "Start here", "Inspect and measure", "Loops and workers"


def _completing(*flags: str, names: Iterable[str], **options: Any) -> Any:
    """Return an option whose value the shell completes with one of the names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return typer.Option(*flags, autocompletion=complete, **options)


_model = partial(_completing, "--model", "-m", names=MODEL_NAMES, metavar="NAME")
ModelName = Annotated[str, _model(help=f"One of {', '.join(MODEL_NAMES)}.")]
ModelNames = Annotated[
    list[str] | None, _model(help=f"Only this one of {', '.join(MODEL_NAMES)}; may be repeated.")
]
Lanes = Annotated[int, typer.Option("--lanes", "-n", min=1, help="How many models to fuse.")]


@app.callback(invoke_without_command=True)
def no_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        # Without a command: print the help and exit with code 0.
        typer.echo(context.get_help(), nl=False)


@app.command("demo", rich_help_panel=START)
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

    Both sides start from the same weights, data and steps. The output is the time of each, the largest
    difference of their predictions, and a picture of where the ensemble is certain and where it is not.
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


@app.command("doctor", rich_help_panel=START)
def doctor_command(
    only: Annotated[
        list[str] | None,
        _completing(
            "--only",
            names=DOORS,
            metavar="CHECK",
            help=f"Only this one of {', '.join(DOORS)}; may be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, AsJson] = False,
) -> None:
    """Run a small example of every part of the library; say what works here and how to fix the rest.

    Each example is compared with the plain loop. It takes less than a minute. What is not installed, or has
    no device here, is `absent`; the exit code is 1 only if something is `broken`.

    **Examples**

    ```
    wide_compiler doctor
    wide_compiler doctor --only signals --only Ray
    wide_compiler doctor --json
    ```
    """
    names = one_of(DOORS, "check ", "--only", *(only or DOORS))
    from .doctor import run

    if not run(Console(), names, as_json):
        raise typer.Exit(1)


@app.command("info", rich_help_panel=START)
def info_command(as_json: Annotated[bool, AsJson] = False) -> None:
    """List versions, devices, caches, running workers, settings, presets, and the wide layers.

    Attach the output of `--json` to a bug report. It contains paths of this machine, nothing of your models.

    **Examples**

    ```
    wide_compiler info
    wide_compiler info --json
    ```
    """
    from .info import run

    run(Console(), as_json)


@app.command("test", rich_help_panel=CHECK)
def test_command(
    model: ModelNames = None, lanes: Lanes = 4, as_json: Annotated[bool, AsJson] = False
) -> None:
    """Check that wide equals the loop, on the built-in models.

    Every model runs in evaluation and in training mode, in float64. Outputs, gradients and buffers of every
    lane are compared with those of the model alone. The exit code is 1 if any differs.

    **Examples**

    ```
    wide_compiler test
    wide_compiler test -n 16 -m resblock -m gpt
    wide_compiler test -m lstm --json
    ```
    """
    names = one_of(MODEL_NAMES, "model ", "--model", *(model or MODEL_NAMES))
    from .compare_models import run

    if not run(Console(stderr=as_json), names, lanes, as_json):
        raise typer.Exit(1)


@app.command("trace", rich_help_panel=CHECK)
def trace_command(
    model: ModelName = "mlp", lanes: Lanes = 4, as_json: Annotated[bool, AsJson] = False
) -> None:
    """Show the graph of one member, the graph of all lanes, and how every node runs.

    A node runs by a wide rule, once for all lanes (shared), under vmap, or in a loop over lanes; the last two
    come with the reason.

    **Examples**

    ```
    wide_compiler trace -m mlp
    wide_compiler trace -m resblock -n 8
    wide_compiler trace -m gpt --json
    ```
    """
    (name,) = one_of(MODEL_NAMES, "model ", "--model", model)
    from .trace_model import run

    run(Console(), name, lanes, as_json)


app.command("benchmark", rich_help_panel=CHECK)(benchmark_command)
app.add_typer(xcs_app, name="xcs", rich_help_panel=OTHER)
app.add_typer(signals_app, name="signals", rich_help_panel=OTHER)


def main() -> None:
    """Entry point of the `wide_compiler` command."""
    app(prog_name="wide_compiler")
