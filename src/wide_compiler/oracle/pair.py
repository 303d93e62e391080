"""The members, each alone, and the wide model made of them, doing the same things side by side."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree, lanes
from ..capture import slots
from ..errors import ValidationError
from .one_call import Arguments, compare_outputs, each_lane
from .report import Report

Batch = Sequence[Arguments]  # one (args, kwargs) per lane


def clone_members(models: Sequence[nn.Module]) -> list[nn.Module]:
    """Copies with tensors of their own; what several models share, their copies share too."""
    memo: dict[int, Any] = {}
    for model in models:
        for slot in slots(model):
            if id(slot.tensor) not in memo:
                data = slot.tensor.detach().clone()
                learned = slot.tensor.requires_grad
                memo[id(slot.tensor)] = (
                    nn.Parameter(data, learned) if isinstance(slot.tensor, nn.Parameter) else data
                )
    return copy.deepcopy(list(models), memo)


class Pair:
    """`members[i]` and lane i of `wide` are given the same calls, steps and changes, then compared."""

    def __init__(self, members: Sequence[nn.Module], wide: Any, learning_rate: float):
        self.members, self.wide = list(members), wide
        self.learning_rate = learning_rate
        self._new_optimisers()

    def _new_optimisers(self) -> None:
        alone = list(dict.fromkeys(p for member in self.members for p in member.parameters()))
        groups = [alone, list(self.wide.parameters())]
        # Not Adam: it divides rounding noise by rounding noise where a gradient is zero.
        self.optimisers = [torch.optim.SGD(g, lr=self.learning_rate, momentum=0.9) for g in groups]

    def copied(self) -> "Pair":
        return Pair(clone_members(self.members), copy.deepcopy(self.wide), self.learning_rate)

    def train(self, mode: bool) -> None:
        for member in self.members:
            member.train(mode)
        self.wide.train(mode)

    def move(self, how: Callable[[nn.Module], Any]) -> None:
        """Move all to another precision or device."""
        for member in self.members:
            how(member)
        how(self.wide)
        self._new_optimisers()

    def fails_alone(self, batch: Batch) -> str:
        """Why a member by itself cannot take this input, '' if it can."""
        args, kwargs = own(batch)[0]
        try:
            with torch.no_grad():
                clone_members(self.members[:1])[0](*args, **kwargs)
        except Exception as error:  # a member may fail in any way
            return f"{type(error).__name__}: {error}"
        return ""

    def call(self, report: Report, batch: Batch, shared: bool = False) -> None:
        """One call without gradients; compares outputs and the state it leaves behind."""
        with torch.no_grad():
            alone = [m(*a, **k) for m, (a, k) in zip(self.members, own(batch), strict=True)]
            if shared:
                args, kwargs = own(batch)[0]
                wide = lanes.unstack(self.wide.shared(*args, **kwargs), len(alone))
            else:
                wide = each_lane(self.wide, own(batch))
        for lane, (got, want) in enumerate(zip(wide, alone, strict=True)):
            compare_outputs(report, lane, got, want)
        self.compare_state(report)

    def step(self, report: Report, batch: Batch) -> None:
        """One training step; compares outputs, gradients and the state afterwards."""
        for optimiser in self.optimisers:
            optimiser.zero_grad()
        alone = [m(*a, **k) for m, (a, k) in zip(self.members, own(batch), strict=True)]
        backward_mean(alone)
        wide = each_lane(self.wide, own(batch))
        backward_mean(wide)
        for lane, (got, want) in enumerate(zip(wide, alone, strict=True)):
            compare_outputs(report, lane, got, want)
        self.compare_gradients(report)
        for optimiser in self.optimisers:
            optimiser.step()
        self.compare_state(report)

    def compare_gradients(self, report: Report) -> None:
        held = self.wide.tensors()
        for lane, member in enumerate(self.members):
            for name, parameter in member.named_parameters():
                if name not in held:
                    continue
                gradient = held[name].grad
                if gradient is not None and name in self.wide.wide_states:
                    gradient = gradient[lane]
                if parameter.grad is not None:
                    report.compare("gradient", name, lane, gradient, parameter.grad)
                elif gradient is not None:  # None for the member: no other lane may leave a number here
                    report.compare("gradient", name, lane, gradient, torch.zeros_like(parameter))

    def compare_state(self, report: Report) -> None:
        for lane, member in enumerate(self.members):
            for name, parameter in member.named_parameters():
                report.compare("parameter", name, lane, self.wide.lane_state(lane, name), parameter)
            for name, buffer in member.named_buffers():
                report.compare("buffer", name, lane, self.wide.lane_state(lane, name), buffer)

    def compare_lanes(self, report: Report, batch: Batch) -> None:
        """`wide.lane(i)` is member i: the names and numbers of its state, its flags, what it computes."""
        for lane, (member, arguments) in enumerate(zip(clone_members(self.members), batch, strict=True)):
            taken = self.wide.lane(lane)
            flags = {path: module.training for path, module in member.named_modules()}
            for path, module in taken.named_modules():
                if module.training != flags[path]:
                    raise ValidationError(
                        f"lane({lane}).{path}.training is {module.training}, the member has {flags[path]}"
                    )
            mine, theirs = taken.state_dict(), member.state_dict()
            if list(mine) != list(theirs):
                raise ValidationError(f"lane({lane}) has the names {list(mine)}, the member {list(theirs)}")
            for name, tensor in theirs.items():
                report.compare("state of lane(i)", name, lane, mine[name], tensor)
            with torch.no_grad():
                (args, kwargs), (args2, kwargs2) = own([arguments, arguments])
                compare_outputs(report, lane, taken(*args, **kwargs), member(*args2, **kwargs2))


def own(batch: Batch) -> list[Arguments]:
    """Copies of the inputs: a forward may write into them."""
    return copy.deepcopy(list(batch))


def in_dtype(batch: Batch, dtype: torch.dtype) -> list[Arguments]:
    """The inputs with their real numbers in `dtype`."""

    def cast(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return [_tree.tree_map(cast, arguments) for arguments in batch]


def backward_mean(outputs: Sequence[Any]) -> None:
    """Gradients of a weighted mean over every float output; lanes are summed, as they are in training."""
    floats = [o for o in _tree.flatten(list(outputs))[0] if isinstance(o, Tensor) and o.requires_grad]
    real = [torch.view_as_real(o) if o.is_complex() else o for o in floats]
    loss: Any = sum(
        (o * torch.linspace(0.5, 1.5, o.numel(), dtype=o.dtype, device=o.device).view_as(o)).mean()
        for o in real
        if o.numel()
    )
    if floats:
        loss.backward()
