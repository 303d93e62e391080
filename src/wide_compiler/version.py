"""The version, in one place that everything may import."""

__version__ = "0.5.0"
VERSION = __version__
