"""Options of `wide_compiler benchmark`; benchmark_run does the work."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..config import COMPILE_MODES
from .output_files import check_picture, one_of

# Copied here, because importing the presets would import PyTorch.
PRESET_NAMES = ("quick", "full", "ci")


def parse_lanes(given: list[str] | None) -> list[int] | None:
    """Parse numbers of lanes; `-n 4 -n 16` and `-n 4,16` are the same."""
    if not given:
        return None
    lanes = []
    for part in ",".join(given).split(","):
        if not part.strip().isdecimal() or int(part) < 1:
            raise typer.BadParameter(
                f"{part!r} is not a number of lanes; write -n 16 or -n 4,16,64", param_hint="-n"
            )
        lanes.append(int(part))
    return list(dict.fromkeys(lanes))


def benchmark_command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A primitive (linear, conv2d, attention ...), a model (mlp, resblock, gpt ...), "
            "'all' for all primitives, 'models' for all models. Without a name: what there is.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            "-p",
            metavar="|".join(PRESET_NAMES),
            help="How much: a few numbers of lanes, the whole sweep, or the least that shows it runs.",
        ),
    ] = "full",
    top: Annotated[
        int | None, typer.Option("--top", "-t", min=1, help="Show the N largest speed-ups.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
    save: Annotated[
        bool, typer.Option("--save", "-s", help="Write wide_benchmark_NAME_TIMESTAMP.json into this folder.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", dir_okay=False, help="Write the results to this file, as JSON."),
    ] = None,
    lanes: Annotated[
        list[str] | None,
        typer.Option(
            "--n", "-n", metavar="N", help="Lanes, instead of the preset's: -n 4 -n 16, or -n 4,16."
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", "-b", min=1, help="Batch size of each lane.")
    ] = None,
    compile: Annotated[
        bool, typer.Option("--compile", "-c", help="Ours with WideConfig.fast(), layers with torch.compile.")
    ] = False,
    compile_mode: Annotated[
        str | None,
        typer.Option(
            "--compile-mode", metavar="MODE", help=f"The same in one mode: {', '.join(COMPILE_MODES)}."
        ),
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="A training step: forward, backward, Adam.")] = False,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="DEVICE", help="cpu, cuda or cuda:1; by default the GPU, if any."),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option("--peers", help="Also a compiled loop, torch.func.vmap, CUDA graphs, and JAX."),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", dir_okay=False, help="Draw speed-up against N: .png, .pdf, .svg."
        ),
    ] = None,
) -> None:
    """Measure wide against the loop, for one layer with all its strategies or for a whole model.

    Every result is compared with the loop's before it is timed, and all candidates of a row are timed
    interleaved. The exit code is 1 if any result differs. Ctrl-C shows the results so far.

    **Examples**

    ```
    wide_compiler benchmark
    wide_compiler benchmark attention -p quick
    wide_compiler benchmark mlp -n 4,100,1000 --peers --plot mlp.png
    wide_compiler benchmark all -q -s
    wide_compiler benchmark -n 100 -c
    ```
    """
    one_of(PRESET_NAMES, "", "--preset", preset)
    one_of(COMPILE_MODES, "", "--compile-mode", compile_mode)
    counts = parse_lanes(lanes)
    if plot is not None:
        check_picture(plot, "--plot")
    from . import benchmark_run as bench

    if name is None and not (counts or batch or compile or compile_mode or train or peers):
        bench.listing(Console())
        return
    name = name or "mlp"
    chosen, compiled = bench.benchmark.PRESETS[preset], compile or compile_mode is not None
    options = bench.benchmark.Options(
        chosen, counts, batch, train, compiled, compile_mode, peers, device=bench.known_device(device)
    )
    files = bench.Files(name, save, output, plot)
    code = bench.run(Console(), bench.known(name, train), options, files, top, quiet)
    if code:
        raise typer.Exit(code)
