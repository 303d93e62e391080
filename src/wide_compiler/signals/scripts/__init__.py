"""`python -m wide_compiler.signals.scripts.trace` and `.visualize`: two commands under the names of GT."""
