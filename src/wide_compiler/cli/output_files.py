"""Files that commands write, refused before the work begins rather than after it."""

from pathlib import Path

import typer

PICTURES = (".png", ".pdf", ".svg")


def check_picture(path: Path, option: str) -> None:
    if path.suffix.lower() not in PICTURES:
        raise typer.BadParameter(f"{path} should end in {', '.join(PICTURES)}", param_hint=option)


def make_folder(path: Path, option: str) -> None:
    """The folder that `path` is to stand in."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"no folder for {path}: {error.strerror}", param_hint=option) from None
