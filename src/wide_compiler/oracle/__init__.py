"""The oracle: wide equals the loop. What tests, `validate=True` and `wide_compiler test` run."""

from ..capture import clone_members
from .life import Life, Phase, life
from .one_call import compare, validate
from .pair import backward_mean, in_dtype
from .report import Difference, Report

__all__ = [
    "Difference",
    "Life",
    "Phase",
    "Report",
    "backward_mean",
    "clone_members",
    "compare",
    "in_dtype",
    "life",
    "validate",
]
