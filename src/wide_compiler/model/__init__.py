"""The wide model a user holds, and what it is made of."""

from .explain import Explanation
from .wide_model import WideModel

__all__ = ["Explanation", "WideModel"]
