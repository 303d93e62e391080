"""WideModel, and the parts it is made of."""

from .model_explanation import ModelExplanation
from .wide_model import WideModel

# Alias kept for users of the first WideCompiler.
TracedWideModel = WideModel

__all__ = ["ModelExplanation", "TracedWideModel", "WideModel"]
