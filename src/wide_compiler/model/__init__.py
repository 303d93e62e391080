"""The wide model a user holds, and what it is made of."""

from .explain import ModelExplanation
from .wide_model import WideModel

# The name of the first WideCompiler for the same class.
TracedWideModel = WideModel

__all__ = ["ModelExplanation", "TracedWideModel", "WideModel"]
