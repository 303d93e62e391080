"""`python -m wide_compiler.signals.scripts.visualize`: the same as `wide_compiler signals visualize`."""

import typer

from ...cli.signals import visualize_command

if __name__ == "__main__":
    typer.run(visualize_command)
