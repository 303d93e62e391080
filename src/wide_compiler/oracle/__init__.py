"""Compare a wide model with the loop over its members; used by tests, `validate=True` and the CLI."""

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
