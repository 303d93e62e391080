"""Check the output files of commands before the work begins."""

from pathlib import Path

import typer

PICTURES = (".png", ".pdf", ".svg")


def check_picture(path: Path, option: str) -> None:
    if path.suffix.lower() not in PICTURES:
        raise typer.BadParameter(f"{path} should end in {', '.join(PICTURES)}", param_hint=option)


def make_folder(path: Path, option: str) -> None:
    """Create the parent folder of `path`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"no folder for {path}: {error.strerror}", param_hint=option) from None
