"""Run the members one by one and the wide model through the same steps, and compare them."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree, lanes
from ..capture import clone_members
from ..errors import InputError, ValidationError
from .report import Report

Arguments = tuple[tuple, dict]
Batch = Sequence[Arguments]  # one (args, kwargs) per lane


class Pair:
    """N members and the wide model built from them; applies the same calls, steps and changes to both."""

    def __init__(self, members: Sequence[nn.Module], wide: Any, learning_rate: float):
        self.members, self.wide = list(members), wide
        self.learning_rate = learning_rate
        self._new_optimisers()

    def _new_optimisers(self) -> None:
        alone = list(dict.fromkeys(p for member in self.members for p in member.parameters()))
        groups = [alone, list(self.wide.parameters())]
        # Not Adam: where a gradient is zero it would divide rounding noise by rounding noise.
        self.optimisers = [torch.optim.SGD(g, lr=self.learning_rate, momentum=0.9) for g in groups if g]

    def copied(self) -> "Pair":
        return Pair(clone_members(self.members), copy.deepcopy(self.wide), self.learning_rate)

    def train(self, mode: bool) -> None:
        for member in self.members:
            member.train(mode)
        self.wide.train(mode)

    def move(self, how: Callable[[nn.Module], Any]) -> None:
        """Convert all models to another dtype or device, and make new optimisers."""
        for member in self.members:
            how(member)
        how(self.wide)
        self._new_optimisers()

    def fails_alone(self, batch: Batch) -> str:
        """Return why a member fails on this input, '' if it does not."""
        args, kwargs = own(batch)[0]
        try:
            with torch.no_grad():
                clone_members(self.members[:1])[0](*args, **kwargs)
        except Exception as error:  # a member may fail in any way
            return f"{type(error).__name__}: {error}"
        return ""

    def call(self, report: Report, batch: Batch, shared: bool = False) -> None:
        """Run one call without gradients; compare outputs and state."""
        with torch.no_grad():
            self._outputs(report, batch, shared, lambda outputs: None)
        self.compare_state(report)

    def step(self, report: Report, batch: Batch, shared: bool = False) -> None:
        """Run one training step; compare outputs, gradients and state."""
        for optimiser in self.optimisers:
            optimiser.zero_grad()
        with torch.enable_grad():
            self._outputs(report, batch, shared, backward_mean)
        self.compare_gradients(report)
        for optimiser in self.optimisers:
            optimiser.step()
        self.compare_state(report)

    def _outputs(self, report: Report, batch: Batch, shared: bool, then: Callable[[list[Any]], None]) -> None:
        """Run both sides, apply `then` to the outputs of each, and compare the outputs."""
        # The wide model first, so that its own error is raised if it rejects the input.
        if not torch.is_grad_enabled():
            wide = self._wide_outputs(batch, shared)
        alone = [m(*a, **k) for m, (a, k) in zip(self.members, own(batch), strict=True)]
        then(alone)
        if torch.is_grad_enabled():
            wide = self._wide_outputs(batch, shared)
        then(wide)
        for lane, (got, want) in enumerate(zip(wide, alone, strict=True)):
            compare_outputs(report, lane, got, want)

    def _wide_outputs(self, batch: Batch, shared: bool) -> list[Any]:
        given = own(batch)
        args, kwargs = given[0]
        if shared:
            return lanes.unstack(self.wide.shared(*args, **kwargs), len(self.members))
        columns = zip(*(a for a, _ in given), strict=True)
        return self.wide.each(*map(list, columns), **{key: [k[key] for _, k in given] for key in kwargs})

    def _compared(self, name: str) -> bool:
        """Return whether a parameter can be compared: one that only the wide model shares trains
        differently."""
        one = len({id(member.get_parameter(name)) for member in self.members}) == 1
        return one or name in self.wide.wide_states or self.wide.registered.outer(name) is not None

    def compare_gradients(self, report: Report) -> None:
        held = self.wide.tensors()
        for lane, member in enumerate(self.members):
            for name, parameter in member.named_parameters():
                if name not in held or not self._compared(name):
                    continue
                gradient = held[name].grad
                if gradient is not None and name in self.wide.wide_states:
                    gradient = gradient[lane]
                if parameter.grad is not None:
                    report.compare("gradient", name, lane, gradient, parameter.grad)
                elif gradient is not None:  # no gradient: other lanes must not have written one
                    report.compare("gradient", name, lane, gradient, torch.zeros_like(parameter))

    def compare_state(self, report: Report) -> None:
        for lane, member in enumerate(self.members):
            mine = [("parameter", *item) for item in member.named_parameters() if self._compared(item[0])]
            for what, name, tensor in (*mine, *(("buffer", *item) for item in member.named_buffers())):
                try:
                    held = self.wide.lane_state(lane, name)
                except InputError:  # a registered class stores it in another form
                    continue
                report.compare(what, name, lane, held, tensor)

    def compare_lanes(self, report: Report, batch: Batch) -> None:
        """Compare `wide.lane(i)` with member i: names and values of the state, training flags, outputs."""
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


def compare_outputs(report: Report, lane: int, wide: Any, loop: Any) -> None:
    (got, spec), (want, expected) = _tree.flatten(wide), _tree.flatten(loop)
    if spec != expected:
        raise ValidationError(f"lane {lane}: the output has structure {spec}, the loop gives {expected}")
    for path, a, b in zip(_tree.leaf_paths(loop), got, want, strict=True):
        report.compare("output", path, lane, a, b)


def own(batch: Batch) -> list[Arguments]:
    """Copy the inputs, because a forward may write into them."""
    return copy.deepcopy(list(batch))


def in_dtype(batch: Batch, dtype: torch.dtype) -> list[Arguments]:
    """Convert the floating-point tensors of a batch to `dtype`."""

    def cast(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return [_tree.tree_map(cast, arguments) for arguments in batch]


def backward_mean(outputs: Sequence[Any]) -> None:
    """Backpropagate a weighted mean of every float output, summed over lanes as in training."""
    floats = [o for o in _tree.flatten(list(outputs))[0] if isinstance(o, Tensor) and o.requires_grad]
    real = [torch.view_as_real(o) if o.is_complex() else o for o in floats]
    loss: Any = sum(
        (o * torch.linspace(0.5, 1.5, o.numel(), dtype=o.dtype, device=o.device).view_as(o)).mean()
        for o in real
        if o.numel()
    )
    if floats:
        loss.backward()
