"""Submodules for which the user registered a wide class: built from their N instances, kept whole."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, WrongTypeError
from ..registry import REGISTRY


class Registered:
    """The wide modules built by users' classes, by path of the submodule they stand for."""

    def __init__(self, models: Sequence[nn.Module]):
        self.builders: dict[str, Any] = REGISTRY.custom_builders(models[0])
        # Two instances of each are kept: capture and the probe need some, and a user's wide module need not
        # be able to give its members back.
        self.examples = {p: [copy.deepcopy(m.get_submodule(p)) for m in models[:2]] for p in self.builders}

    def build(self, models: Sequence[nn.Module]) -> dict[str, nn.Module]:
        built = {}
        for path, builder in self.builders.items():
            module = builder.from_modules([m.get_submodule(path) for m in models])
            if not isinstance(module, nn.Module):
                name = getattr(builder, "__name__", builder)
                raise WrongTypeError(
                    f"{name}.from_modules gave {type(module).__name__}, expected an nn.Module"
                )
            built[path] = module
        return built

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
        for name in names:
            lane_tensor(module, path, f"{path}.{name}", 0, n)  # says what is wrong where it is not there
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return [tensors[name] for name in names]

    def probe(self, path: str, count: int, device: torch.device, training: bool) -> nn.Module:
        """A wide module of the first few instances, for widening to try."""
        return self.builders[path].from_modules(self.examples[path][:count]).to(device).train(training)


def lane_tensor(module: nn.Module, outer: str, path: str, lane: int, n: int) -> Tensor:
    """One lane's tensor inside a registered wide module, where it stacks tensors under the members' names."""
    name = path.removeprefix(f"{outer}.")
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    if name in tensors and tensors[name].dim() and tensors[name].shape[0] == n:
        return tensors[name].detach()[lane]
    raise InputError(
        f"{outer}: {type(module).__name__} does not hold {name!r} stacked over {n} lanes, so a single lane "
        f"cannot be taken from it; name its parameters like the member's and stack them on axis 0"
    )
