"""Marks on parameters that say whether they have lanes, since an optimiser gets tensors, not the model."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

_ATTRIBUTE = "_wide_lanes"


@dataclass(frozen=True)
class LaneMark:
    """Path and lane count of a wide model's parameter."""

    path: str
    n: int  # number of lanes
    stacked: bool  # `[N, ...]`; False for one tensor shared by all lanes


def lane_mark(tensor: Tensor) -> LaneMark | None:
    """Return the mark of a wide model's parameter; None for any other tensor."""
    return getattr(tensor, _ATTRIBUTE, None)


def has_lanes(tensor: Tensor) -> bool:
    """Return whether the tensor is a wide model's parameter of shape `[N, ...]`."""
    mark = lane_mark(tensor)
    return mark is not None and mark.stacked


def mark_parameters(model: Any) -> None:
    """Mark all parameters of a wide model; repeated after copying, moving or selecting lanes."""
    stacked = {id(place.tensor) for place in model.places if place.path in model.wide_states}
    for path, parameter in model.named_parameters():
        wide = id(parameter) in stacked or _in_registered(model, path, parameter)
        setattr(parameter, _ATTRIBUTE, LaneMark(path, model.n, wide))


def _in_registered(model: Any, path: str, parameter: Tensor) -> bool:
    """Return whether a parameter of a registered module has lanes, judged by name and shape."""
    outer = model.registered.outer(path)
    if outer is None:
        return False
    example = dict(model.registered.examples[outer][0].named_parameters())
    member = example.get(path.removeprefix(f"{outer}."))
    return member is not None and parameter.shape == (model.n, *member.shape)
