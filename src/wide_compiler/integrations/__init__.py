"""Integrations with other frameworks. Each module needs its own extra and is imported by name."""
