"""Output of commands: JSON, and files that are checked before the work begins."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

AsJson = typer.Option("--json", help="Print JSON for programs instead of tables.")
PICTURES = (".png", ".pdf", ".svg")


def print_json(content: Any) -> None:
    """Print JSON to standard output."""
    typer.echo(json.dumps(content, indent=1))


def one_of(choices: Sequence[str], what: str, option: str, *given: str | None) -> list[str]:
    """Return the given names without duplicates; raise a usage error (exit code 2) if not in `choices`."""
    for name in given:
        if name is not None and name not in choices:
            raise typer.BadParameter(
                f"unknown {what}{name!r}; choose one of {', '.join(choices)}", param_hint=option
            )
    return list(dict.fromkeys(name for name in given if name is not None))


def check_picture(path: Path, option: str) -> None:
    if path.suffix.lower() not in PICTURES:
        raise typer.BadParameter(f"{path} should end in {', '.join(PICTURES)}", param_hint=option)


def make_folder(path: Path, option: str) -> None:
    """Create the parent folder of `path`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"no folder for {path}: {error.strerror}", param_hint=option) from None
