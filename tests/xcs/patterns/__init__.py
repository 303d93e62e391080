"""Patterns of plain Python that loops are written in: used by the tests, the docs page and the benchmark."""

from . import arrays, effects, loops, numbers, tensors, waiting
from ._table import PATTERNS, Pattern

__all__ = ["PATTERNS", "Pattern", "arrays", "effects", "loops", "numbers", "tensors", "waiting"]
