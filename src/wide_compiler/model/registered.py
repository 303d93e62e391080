"""Submodules for which the user registered a wide class: built from their N instances, kept whole."""

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ..capture import OpaqueCall
from ..errors import InputError, WrongTypeError
from ..registry import REGISTRY
from .registered_check import agreeing_layout


class Registered:
    """The wide modules built by users' classes, by path of the submodule they stand for."""

    def __init__(self, models: Sequence[nn.Module]):
        self.builders: dict[str, Any] = REGISTRY.custom_builders(models[0])
        # Two instances of each are kept: capture and the probe need some, and a user's wide module need not
        # be able to give its members back.
        self.examples = {p: [copy.deepcopy(m.get_submodule(p)) for m in models[:2]] for p in self.builders}
        # All N, while compiling: what the classes are compared with.
        self.instances = {p: [m.get_submodule(p) for m in models] for p in self.builders}

    def build(self, models: Sequence[nn.Module]) -> dict[str, nn.Module]:
        return {
            path: build_wide(builder, [m.get_submodule(path) for m in models])
            for path, builder in self.builders.items()
        }

    def forget_instances(self) -> None:
        """The models are compiled: they belong to the user alone again."""
        self.instances = {}

    def outer(self, path: str) -> str | None:
        """The registered submodule that `path` is or lies in."""
        return next((p for p in self.builders if path == p or path.startswith(f"{p}.")), None)

    def example_tensor(self, path: str) -> Tensor:
        """A tensor of an example instance: to capture with, where its numbers do not matter."""
        outer = self.outer(path)
        assert outer is not None
        example = self.examples[outer][0]
        tensors = {**dict(example.named_parameters()), **dict(example.named_buffers())}
        return tensors[path.removeprefix(f"{outer}.")]

    def stacked_tensors(self, module: nn.Module, path: str, n: int) -> list[Tensor]:
        """The tensors of a registered wide module that hold its members', `[N, ...]`."""
        example = self.examples[path][0]
        names = [name for name, _ in (*example.named_parameters(), *example.named_buffers())]
        return [stacked_tensor(module, path, f"{path}.{name}", n) for name in names]

    def apply(self, function: Any) -> None:
        """The examples follow the model to another device or precision."""
        for example in itertools.chain(*self.examples.values()):
            example._apply(function)

    def probe(self, path: str, count: int, training: bool) -> nn.Module:
        """A wide module of the first few instances, for widening to try."""
        return build_wide(self.builders[path], self.examples[path][:count]).train(training)

    def layout(
        self, model: Any, call: OpaqueCall, tensors: list[Tensor], sizes: list[int]
    ) -> tuple[str, str]:
        """The layout in which the class called gives what its members give, and a remark for `explain()`;
        `ValidationError` if there is none.

        `tensors`: the call's arguments with a lane axis, of one lane or more.
        """
        path = call.path
        instances = self.instances.get(path)
        if instances is None:  # compiled already: the examples over and over still show mixed-up lanes
            some = itertools.islice(itertools.cycle(self.examples[path]), model.n)
            instances = [copy.deepcopy(example) for example in some]
        training = model.get_submodule(path).training
        return agreeing_layout(
            path, self.builders[path], build_wide, instances, training, call, tensors, sizes
        )


def build_wide(builder: Any, members: Sequence[nn.Module]) -> nn.Module:
    """The wide module of `members`, where they are, in their mode, and frozen where they are."""
    module = builder.from_modules(members)
    if not isinstance(module, nn.Module):
        name = getattr(builder, "__name__", builder)
        raise WrongTypeError(f"{name}.from_modules gave {type(module).__name__}, expected an nn.Module")
    devices = {t.device for member in members for t in (*member.parameters(), *member.buffers())}
    if len(devices) == 1:  # a class may well make its tensors on the CPU and copy the members' into them
        module.to(devices.pop())
    module.train(members[0].training)
    own = dict(module.named_parameters())
    for name, parameter in members[0].named_parameters():
        if name in own and own[name].shape == (len(members), *parameter.shape):
            own[name].requires_grad_(parameter.requires_grad)
    return module


def stacked_tensor(module: nn.Module, outer: str, path: str, n: int) -> Tensor:
    """All lanes' tensor of a member's path inside a registered wide module, `[N, ...]`."""
    name = path.removeprefix(f"{outer}.")
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    if name in tensors and tensors[name].dim() and tensors[name].shape[0] == n:
        return tensors[name]
    raise InputError(
        f"{outer}: {type(module).__name__} does not hold {name!r} stacked over {n} lanes, so a single lane "
        f"cannot be taken from it; name its parameters like the member's and stack them on axis 0"
    )


def registered_tensor(states: Mapping[str, Any], path: str, n: int) -> Tensor:
    """The same, among `states` in which the wide module stands under its own path."""
    parts = path.split(".")
    outer = next(o for i in range(len(parts)) if (o := ".".join(parts[:i])) in states)
    return stacked_tensor(states[outer], outer, path, n)
