"""`python -m wide_compiler.signals.scripts.trace` and `.visualize`: the command names of GT."""
