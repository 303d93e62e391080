"""Compare one call of the wide model with its members; used by `validate=True`."""

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from ..capture import clone_members
from .pair import Arguments, Pair
from .report import Report, raise_tiny_scales


def compare(
    models: Sequence[nn.Module],
    wide: Any,
    inputs: Sequence[Arguments] | None = None,
    *,
    shared_input: Arguments | None = None,
    gradients: bool = False,
    learning_rate: float = 0.0,
) -> Report:
    """Run every model and the wide model once, on copies, and compare the results.

    Args:
        models: the N members, or copies of them.
        wide: the wide model built from them.
        inputs: one (args, kwargs) per lane; or `shared_input`, one for all lanes.
        gradients: also compare the gradients of a weighted mean over all float outputs.
        learning_rate: if positive, compare the parameters after one SGD step.
    """
    report = Report()
    pair = Pair(clone_members(models), copy.deepcopy(wide), learning_rate)
    batch = [shared_input] * len(models) if shared_input is not None else list(inputs or ())
    (pair.step if gradients else pair.call)(report, batch, shared=shared_input is not None)
    raise_tiny_scales(report.differences)
    return report


def validate(models: Sequence[nn.Module], wide: Any) -> Report:
    """Compare on the wide model's sample; models that draw random numbers are compared in eval mode."""
    call = wide.sample_call()
    inputs = [call.for_lane(i) for i in range(wide.n)]
    if not wide.programs.latest.draws:
        return compare(models, wide, inputs)
    members, wide = clone_members(models), copy.deepcopy(wide)
    for each in (*members, wide):
        each.eval()  # not chained: a model may override `train` and return None
    report = compare(members, wide, inputs)
    report.note = "compared in eval mode, because the members draw random numbers in training"
    return report
