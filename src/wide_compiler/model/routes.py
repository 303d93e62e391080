"""Routes: cache from a call's metadata to what runs it.

Finding a program flattens and inspects every argument, which can take longer than a small model. Calls with
plain tensors of equal metadata reuse the route of the first.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..widen import LaneGraph
from .chooser import Chooser
from .isolation import isolated_from_transforms
from .memory_overlap import Writes
from .program import Call, WideProgram


def split_feeds(
    graph: LaneGraph, n: int
) -> tuple[list[Any], list[tuple[int, str]], list[tuple[int, int]], list[int]]:
    """Return a lane graph's arguments that never change (None for the others), and where the others go.

    The latter are (position, path) of states, (position, index) of inputs, and positions of seeds.
    """
    template: list[Any] = [None] * len(graph.feeds)
    states, inputs, rng = [], [], []
    for position, (kind, key) in enumerate(graph.feeds):
        if kind == "state":
            states.append((position, key))
        elif kind == "input":
            inputs.append((position, int(key)))
        elif kind == "rng":
            rng.append(position)
        else:
            template[position] = n if kind == "n" else graph.lane_data[f"{kind}:{key}"]
    return template, states, inputs, rng


class Binding:
    """Source of each placeholder of a lane graph, for one wide model.

    Parameters and buffers are read from their modules at each call, since `load_state_dict` or the user may
    have replaced the tensors.
    """

    def __init__(self, graph: LaneGraph, model: Any):
        self.model = model
        places = {place.path: place for place in model.places}
        self.template, states, self.inputs, self.rng = split_feeds(graph, model.n)
        found = [(position, places[key]) for position, key in states if key in places]
        self.states = [(position, place.home, place.name, place) for position, place in found]
        # Skeletons and registered modules.
        self.modules = [(position, key) for position, key in states if key not in places]

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


# Beyond this many shapes the first ones are unlikely to be used again.
MAX_ROUTES = 512


class Route:
    """A program, the sources of its arguments, and the plan it runs by."""

    def __init__(self, model: Any, program: WideProgram, call: Call):
        self.model, self.program = model, program
        self.binding = Binding(program.graph, model)
        self.writes = Writes(program, model.places)
        tensors = (*call.tensors, *model.tensors().values())
        gradients = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        circumstances = (gradients, model.seeds.peek() is not None)
        if circumstances not in program.tuned:
            if program.runs_members:
                model.skeletons.set_training(model.own_training())
            arguments = self.binding(call.tensors, model.seeds.peek())
            with isolated_from_transforms():
                chooser = Chooser(program, model.n, model.config, arguments, gradients)
                program.tuned[circumstances] = chooser.choose()
        self.tuned = program.tuned[circumstances]
        for position in self.tuned.channels_last:
            model.put_channels_last(program.graph.feeds[position][1])
        self.way = self.tuned.run

    def __call__(self, tensors: Sequence[Tensor], rng: Tensor | None) -> Any:
        self.model.programs.latest, self.program.latest = self.program, self.tuned
        if not self.program.runs_members:
            return self.program.run_way(self.way, self.binding(tensors, rng))
        with self.model.skeletons.lock:
            self.model.skeletons.set_training(self.model.own_training())
            return self.program.run_way(self.way, self.binding(tensors, rng))


class Routes(dict[Any, Any]):
    """Cache from a call's metadata to its route; cleared when full."""

    def __setitem__(self, key: Any, route: Any) -> None:
        if len(self) >= MAX_ROUTES:
            self.clear()
        super().__setitem__(key, route)


def looks(args: tuple[Any, ...]) -> list[Any]:
    """Return the cache key of arguments; anything but a plain tensor never matches."""
    return [(x.shape, x.dtype, x.device, x.requires_grad) if type(x) is Tensor else object() for x in args]
