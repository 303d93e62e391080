"""Parameters that know whose they are: an optimiser is given tensors, not the wide model."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

_ATTRIBUTE = "_wide_lanes"


@dataclass(frozen=True)
class LaneMark:
    """What a wide model says of one of its parameters."""

    path: str
    n: int  # the lanes of the model
    stacked: bool  # `[N, ...]`; False for one tensor that serves all lanes (a shared trunk)


def lane_mark(tensor: Tensor) -> LaneMark | None:
    """The mark of a wide model's parameter; None for any other tensor."""
    return getattr(tensor, _ATTRIBUTE, None)


def has_lanes(tensor: Tensor) -> bool:
    """Whether it is a wide model's parameter `[N, ...]`."""
    mark = lane_mark(tensor)
    return mark is not None and mark.stacked


def mark_parameters(model: Any) -> None:
    """Mark all parameters of a wide model, anew after it was copied, moved or got other lanes."""
    stacked = {id(place.tensor) for place in model.places if place.path in model.wide_states}
    for path, parameter in model.named_parameters():
        wide = id(parameter) in stacked or _in_registered(model, path, parameter)
        setattr(parameter, _ATTRIBUTE, LaneMark(path, model.n, wide))


def _in_registered(model: Any, path: str, parameter: Tensor) -> bool:
    """Inside a user's wide module names and shapes tell what has lanes, as they do for `lane(i)`."""
    outer = model.registered.outer(path)
    if outer is None:
        return False
    example = dict(model.registered.examples[outer][0].named_parameters())
    member = example.get(path.removeprefix(f"{outer}."))
    return member is not None and parameter.shape == (model.n, *member.shape)
