"""Submodules with a wide class registered by the user: built from their N instances, opaque to capture."""

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ..capture import OpaqueCall
from ..errors import InputError
from ..registry import REGISTRY
from .registered_check import Trial, build_wide, tensors_of


class Registered:
    """Wide modules built by registered classes, by path of the submodule they replace."""

    def __init__(self, models: Sequence[nn.Module]):
        self.builders: dict[str, Any] = REGISTRY.custom_builders(models[0])
        # Two instances of each are kept for capture and probing, because a registered wide module need not
        # support extracting its members.
        self.examples = {p: [copy.deepcopy(m.get_submodule(p)) for m in models[:2]] for p in self.builders}
        # All N instances, kept while compiling to compare the class with them.
        self.instances = {p: [m.get_submodule(p) for m in models] for p in self.builders}

    def build(self, models: Sequence[nn.Module]) -> dict[str, nn.Module]:
        builders = self.builders.items()
        return {p: build_wide(builder, [m.get_submodule(p) for m in models]) for p, builder in builders}

    def forget_instances(self) -> None:
        """Drop references to the original modules after compiling."""
        self.instances = {}

    def outer(self, path: str) -> str | None:
        """Return the registered submodule that is or contains `path`, or None."""
        return next((p for p in self.builders if path == p or path.startswith(f"{p}.")), None)

    def example_tensor(self, path: str) -> Tensor:
        """Return a tensor of an example instance, for captures where values do not matter."""
        outer = self.outer(path)
        assert outer is not None
        return tensors_of(self.examples[outer][0])[path.removeprefix(f"{outer}.")]

    def stacked_tensors(self, module: nn.Module, path: str, n: int) -> list[Tensor]:
        """Return the tensors of a registered wide module that correspond to its members', `[N, ...]`."""
        names = tensors_of(self.examples[path][0])
        return [stacked_tensor(module, path, f"{path}.{name}", n) for name in names]

    def apply(self, function: Any) -> None:
        """Apply a device or dtype conversion to the examples, as `nn.Module._apply`."""
        for example in itertools.chain(*self.examples.values()):
            example._apply(function)

    def probe(self, path: str, count: int, training: bool) -> nn.Module:
        """Build a wide module of the first `count` example instances."""
        return build_wide(self.builders[path], self.examples[path][:count]).train(training)

    def layout(
        self, model: Any, call: OpaqueCall, tensors: list[Tensor], sizes: list[int]
    ) -> tuple[str, str]:
        """Return the layout in which the registered class equals its members, and a note for `explain()`.

        Raises `ValidationError` if there is none. `tensors` are the call's arguments with a lane axis, for
        one or more lanes.
        """
        path = call.path
        instances = self.instances.get(path)
        if instances is None:  # after compiling: repeated examples still detect mixed-up lanes
            some = itertools.islice(itertools.cycle(self.examples[path]), model.n)
            instances = [copy.deepcopy(example) for example in some]
        training = model.get_submodule(path).training
        return Trial(self.builders[path], instances, training, call, sizes).agreeing_layout(tensors)


def stacked_tensor(module: nn.Module, outer: str, path: str, n: int) -> Tensor:
    """Return the stacked tensor `[N, ...]` of a member's path inside a registered wide module."""
    name, tensors = path.removeprefix(f"{outer}."), tensors_of(module)
    if name in tensors and tensors[name].dim() and tensors[name].shape[0] == n:
        return tensors[name]
    raise InputError(
        f"{outer}: {type(module).__name__} does not hold {name!r} stacked over {n} lanes, so a single lane "
        f"cannot be taken from it; name its parameters like the member's and stack them on axis 0"
    )


def registered_tensor(states: Mapping[str, Any], path: str, n: int) -> Tensor:
    """Like `stacked_tensor`, for `states` that hold the wide module under its path."""
    parts = path.split(".")
    outer = next(o for i in range(len(parts)) if (o := ".".join(parts[:i])) in states)
    return stacked_tensor(states[outer], outer, path, n)
