"""What commands print for programs."""

import json
from typing import Any

import typer

AsJson = typer.Option("--json", help="Print JSON for programs instead of tables.")


def print_json(content: Any) -> None:
    """To standard output, and nothing else there."""
    typer.echo(json.dumps(content, indent=1))
