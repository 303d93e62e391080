"""The oracle: wide equals the loop. What tests, `validate=True` and `wide_compiler test` run."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from . import _tree, lanes
from .capture import clone_member
from .errors import ValidationError
from .measure.compare import error_of, one_op

Arguments = tuple[tuple, dict]


@dataclass
class Difference:
    """One tensor compared: `error` is absolute, `scale` the largest number the loop gives.

    Where that number is tiny beside the lane's other tensors of its kind (the gradient of a bias in front of
    a norm is rounding noise around zero), `scale` is a ten-thousandth of the largest of those instead.
    """

    what: str  # 'output', 'gradient', 'buffer', 'parameter after a step'
    path: str
    lane: int
    error: float
    scale: float
    dtype: torch.dtype | None = None

    def within(self, rtol: float, atol: float) -> bool:
        """Is the error within the tolerance, or what the bits of a half-precision dtype cannot tell?"""
        if self.dtype is not None and self.dtype.is_floating_point and self.dtype.itemsize < 4:
            rtol = max(rtol, one_op(self.dtype).single)
        return self.error <= atol + rtol * self.scale

    @property
    def relative(self) -> float:
        return self.error / self.scale if self.scale > 0 else self.error

    def __str__(self) -> str:
        size = f"{self.error:.3g} (of {self.scale:.3g})"
        return f"lane {self.lane}: {self.what} {self.path} differs from the loop by {size}"


@dataclass
class Report:
    """Every comparison made. `worst` is the largest relative difference."""

    differences: list[Difference] = field(default_factory=list)
    note: str = ""

    @property
    def worst(self) -> float:
        return max((d.relative for d in self.differences), default=0.0)

    def worst_of(self, what: str) -> float:
        return max((d.relative for d in self.differences if d.what == what), default=0.0)

    def check(self, rtol: float, atol: float = 0.0) -> "Report":
        """Raise `ValidationError` naming the worst tensor unless all agree within the tolerance."""
        bad = [d for d in self.differences if not d.within(rtol, atol)]
        if bad:
            worst = max(bad, key=lambda d: d.relative)
            raise ValidationError(
                f"{worst}; {len(bad)} of {len(self.differences)} comparisons exceed rtol={rtol}, atol={atol}"
            )
        return self

    def compare(self, what: str, path: str, lane: int, wide: Any, loop: Any) -> None:
        if not isinstance(loop, Tensor):
            if wide != loop:
                raise ValidationError(f"lane {lane}: {what} {path} is {wide!r}, the loop gives {loop!r}")
            return
        if wide is None or wide.shape != loop.shape or wide.dtype != loop.dtype:
            got = None if wide is None else (tuple(wide.shape), wide.dtype)
            raise ValidationError(
                f"lane {lane}: {what} {path} is {got}, the loop gives {(tuple(loop.shape), loop.dtype)}"
            )
        error, scale = _distance(wide.detach(), loop.detach())
        self.differences.append(Difference(what, path, lane, error, scale, loop.dtype))


def _distance(wide: Tensor, loop: Tensor) -> tuple[float, float]:
    """The largest error, and the largest number of the loop."""
    found = error_of(wide, loop)
    if isinstance(found, str):
        return float("inf"), 1.0
    error, want = found
    if not want.numel() or not (want.is_floating_point() or want.is_complex()):
        return 0.0, 1.0
    return error.abs().max().item(), want.abs().max().item()


def compare(
    models: Sequence[nn.Module],
    wide: Any,
    inputs: Sequence[Arguments] | None = None,
    *,
    shared_input: Arguments | None = None,
    gradients: bool = False,
    learning_rate: float = 0.0,
) -> Report:
    """Run every model alone and the wide model once, on copies; compare what comes out.

    Args:
        models: the N members, or copies of them.
        wide: the wide model made of them.
        inputs: one (args, kwargs) per lane; or `shared_input`, one for all lanes.
        gradients: compare the gradients of a sum over all float outputs, and buffers, as well.
        learning_rate: if positive, compare the parameters after one step of SGD too.
    """
    report = Report()
    wide = copy.deepcopy(wide)
    n = len(models)
    per_lane = [shared_input] * n if shared_input is not None else list(inputs or ())
    with torch.set_grad_enabled(gradients):
        if shared_input is not None:
            wide_outputs = lanes.unstack(wide.shared(*shared_input[0], **shared_input[1]), n)
        else:
            wide_outputs = _each(wide, per_lane)
        if gradients:
            _backward(wide_outputs)
    if learning_rate:
        torch.optim.SGD(wide.parameters(), lr=learning_rate).step()
    for lane, model in enumerate(models):
        member = clone_member(model)
        member.zero_grad()
        with torch.set_grad_enabled(gradients):
            args, kwargs = copy.deepcopy(per_lane[lane])  # type: ignore[misc]
            output = member(*args, **kwargs)
            if gradients:
                _backward([output])
        _compare_outputs(report, lane, wide_outputs[lane], output)
        if gradients:
            if learning_rate:
                torch.optim.SGD(member.parameters(), lr=learning_rate).step()
            _compare_members(report, lane, wide, member, learning_rate)
    _raise_tiny_scales(report.differences)
    return report


def _raise_tiny_scales(differences: list[Difference]) -> None:
    largest: dict[tuple[str, int], float] = {}
    for d in differences:
        largest[d.what, d.lane] = max(d.scale, largest.get((d.what, d.lane), 0.0))
    for d in differences:
        d.scale = max(d.scale, 1e-4 * largest[d.what, d.lane])


def validate(models: Sequence[nn.Module], wide: Any) -> Report:
    """Compare on the wide model's own sample. A model that draws random numbers is compared in eval mode."""
    call = wide.sample_call()
    inputs = [call.for_lane(i) for i in range(wide.n)]
    if not wide.programs.latest.draws:
        return compare(models, wide, inputs)
    wide = copy.deepcopy(wide).eval()
    report = compare([clone_member(m).eval() for m in models], wide, inputs)
    report.note = "compared in eval mode, because the members draw random numbers in training"
    return report


def _each(wide: Any, per_lane: Sequence[Any]) -> list[Any]:
    args = tuple(zip(*(a for a, _ in per_lane), strict=True))
    kwargs = {key: [k[key] for _, k in per_lane] for key in per_lane[0][1]}
    return wide.each(*map(list, args), **kwargs)


def _backward(outputs: list[Any]) -> None:
    """Gradients of a sum in which no element weighs like its neighbour, so that mixed-up ones show."""
    floats = [
        o for tree in outputs for o in _tree.flatten(tree)[0] if isinstance(o, Tensor) and o.requires_grad
    ]
    loss: Any = sum(
        (o * torch.linspace(0.5, 1.5, o.numel(), dtype=o.dtype, device=o.device).view_as(o)).sum()
        for o in floats
    )
    if floats:
        loss.backward()


def _compare_outputs(report: Report, lane: int, wide: Any, loop: Any) -> None:
    (got, spec), (want, expected) = _tree.flatten(wide), _tree.flatten(loop)
    if spec != expected:
        raise ValidationError(f"lane {lane}: the output has structure {spec}, the loop gives {expected}")
    for path, a, b in zip(_tree.leaf_paths(loop), got, want, strict=True):
        report.compare("output", path, lane, a, b)


def _compare_members(report: Report, lane: int, wide: Any, member: nn.Module, learning_rate: float) -> None:
    held = wide.tensors()
    for name, parameter in member.named_parameters():
        if name not in held:
            continue
        in_lanes = name in wide.wide_states
        if in_lanes and parameter.grad is not None:
            gradient = held[name].grad
            report.compare(
                "gradient", name, lane, None if gradient is None else gradient[lane], parameter.grad
            )
        elif in_lanes and held[name].grad is not None:
            report.compare("gradient", name, lane, held[name].grad[lane], torch.zeros_like(parameter))
        if learning_rate and in_lanes:
            report.compare("parameter after a step", name, lane, held[name][lane], parameter)
    for name, buffer in member.named_buffers():
        if name in held:
            report.compare(
                "buffer", name, lane, held[name][lane] if name in wide.wide_states else held[name], buffer
            )
