"""`python -m wide_compiler.signals.scripts.trace`: the same as `wide_compiler signals trace`."""

import typer

from ...cli.signals import trace_command

if __name__ == "__main__":
    typer.run(trace_command)
