"""The arguments of a lane graph, gathered anew at every call but without a search."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..widen import LaneGraph
from .scope import Place


class Binding:
    """Where each placeholder of one lane graph gets its value from, for one wide model.

    Parameters and buffers are read from their modules each time: an optimiser, `load_state_dict` or the user
    may have put another tensor there.
    """

    def __init__(self, graph: LaneGraph, model: Any):
        self.model = model
        homes = {place.path: place for place in model.places}
        self.template: list[Any] = [None] * len(graph.feeds)
        self.states: list[tuple[int, dict[str, Any], str, Place]] = []
        self.modules: list[tuple[int, str]] = []  # members and registered wide modules
        self.inputs: list[tuple[int, int]] = []
        self.rng: list[int] = []
        for position, (kind, key) in enumerate(graph.feeds):
            if kind == "state" and key in homes:
                place = homes[key]
                self.states.append((position, place.home, place.name, place))
            elif kind == "state":
                self.modules.append((position, key))
            elif kind == "input":
                self.inputs.append((position, int(key)))
            elif kind == "n":
                self.template[position] = model.n
            elif kind == "rng":
                self.rng.append(position)
            else:
                self.template[position] = graph.lane_data[f"{kind}:{key}"]

    def __call__(self, tensors: Sequence[Tensor], rng: Tensor | None) -> list[Any]:
        arguments = self.template.copy()
        for position, home, name, place in self.states:
            tensor = home.get(name)
            arguments[position] = tensor if tensor is not None else place.computed()
        for position, index in self.inputs:
            arguments[position] = tensors[index]
        for position in self.rng:
            arguments[position] = rng
        if self.modules:
            states = self.model.states()
            for position, key in self.modules:
                arguments[position] = states[key]
        return arguments
