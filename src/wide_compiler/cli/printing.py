"""JSON output of commands."""

import json
from typing import Any

import typer

AsJson = typer.Option("--json", help="Print JSON for programs instead of tables.")


def print_json(content: Any) -> None:
    """Print JSON to standard output."""
    typer.echo(json.dumps(content, indent=1))
