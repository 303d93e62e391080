"""Comparison of a registered wide module with its members: outputs, gradients, buffers."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..measure.compare import COARSE, one_op
from ..oracle import Report

Read = Callable[[Tensor], Tensor]
# Gradients accumulate more rounding.
_GRADIENT_FACTOR = 10.0


class RegisteredMismatch(Exception):
    """How a wide module differs from its members."""


@dataclass
class Outcome:
    """Result of one call: tensors `[N, ...]`, except gradients and buffers in a wide module's own form."""

    outputs: list[Tensor]
    input_gradients: list[Tensor | None]
    gradients: dict[str, Tensor | None]  # of parameters, by name
    buffers: dict[str, Tensor]  # after the call
    drew: bool = False  # whether random numbers were drawn


def compare(expected: Outcome, got: Outcome, twins: "Twins", wide: nn.Module, member: nn.Module) -> None:
    report = Report()
    for k, (have, want) in enumerate(zip(got.outputs, expected.outputs, strict=True)):
        _compare_lanes(report, "output", str(k), have, want)
    for k, (one, other) in enumerate(zip(got.input_gradients, expected.input_gradients, strict=True)):
        _compare_gradients(report, f"to input {k}", one, other)
    missing = _compare_parameters(report, expected, got, twins, wide, member)
    for name, after in expected.buffers.items():
        twin = twins.find(name)
        if twin is not None:
            _compare_lanes(report, "buffer", name, twin.read(got.buffers[twin.name]), after)
        elif not torch.equal(after, twins.members[name]):
            missing.append(f"it has no buffer for {name!r}, which the members write")
    wrong = _too_large(report, [*expected.outputs, *expected.buffers.values()])
    if wrong or missing:
        raise RegisteredMismatch(", and ".join([*wrong, *missing]))


def _too_large(report: Report, tensors: Sequence[Tensor]) -> list[str]:
    """Return the largest difference, if it exceeds rounding."""
    gradients = [d for d in report.differences if d.what == "gradient"]
    for d in gradients:
        # The gradient of a bias before a norm is only rounding error, so it is judged by the others' scale.
        d.scale = max(d.scale, 1e-2 * max(other.scale for other in gradients))
    dtypes = {t.dtype for t in tensors if t.is_floating_point() or t.is_complex()}
    coarse = torch._C._is_any_autocast_enabled()
    limit = COARSE[0] if coarse else max((one_op(dtype).single for dtype in dtypes), default=0.0)
    limits = {"gradient": _GRADIENT_FACTOR * limit}
    wrong = [d for d in report.differences if not d.error <= limits.get(d.what, limit) * d.scale]
    outputs = [d for d in wrong if d.what == "output"]  # wrong outputs imply wrong gradients
    return [str(max(outputs or wrong, key=lambda d: d.error))] if wrong else []


def _compare_lanes(report: Report, what: str, path: str, have: Tensor, want: Tensor) -> None:
    for lane in range(len(want)):
        report.compare(what, path, lane, have[lane], want[lane])


def _compare_gradients(report: Report, path: str, have: Tensor | None, want: Tensor | None) -> None:
    """Compare gradients; None counts as zeros."""
    if have is None and want is None:
        return
    some = have if want is None else want
    assert some is not None
    zeros = torch.zeros_like(some)
    _compare_lanes(report, "gradient", path, zeros if have is None else have, zeros if want is None else want)


def _compare_parameters(
    report: Report, expected: Outcome, got: Outcome, twins: "Twins", wide: nn.Module, member: nn.Module
) -> list[str]:
    """Compare gradients of parameters found in both; return messages for parameters trained differently."""
    own, missing = dict(wide.named_parameters()), []
    apart = []  # stored in another form by the class, such as merged
    seen = set()
    for name, parameter in member.named_parameters():
        twin, want = twins.find(name), expected.gradients[name]
        if twin is None or twin.name not in own:
            apart += [name] if want is not None else []
            continue
        seen.add(twin.name)
        have = got.gradients[twin.name]
        if parameter.requires_grad:
            _compare_gradients(report, f"to {name}", None if have is None else twin.read(have), want)
        elif own[twin.name].requires_grad:
            missing.append(f"it trains {twin.name}, which is frozen in the members")
    others = {name: g for name, g in got.gradients.items() if name not in seen and g is not None}
    if apart and not others:
        missing.append(f"it has no parameter with a gradient for {apart[0]!r}, which the members train")
    theirs = [(twins.members[name], expected.gradients[name]) for name in apart]
    ours = [(twins.held[name], gradient) for name, gradient in others.items()]
    if sum(p.numel() for p, _ in theirs) == sum(p.numel() for p, _ in ours) > 0:
        # The same elements in another order: these sums are invariant to it.
        report.compare("gradient", f"to {', '.join(apart)} (sums)", 0, _sums(ours), _sums(theirs))
    return missing


def _sums(pairs: Sequence[tuple[Tensor, Any]]) -> Tensor:
    products = [(p.double() * g.double()).sum() for p, g in pairs]
    squares = [(g.double() ** 2).sum() for _, g in pairs]
    return torch.stack([torch.stack(products).sum(), torch.stack(squares).sum()])


@dataclass
class _Twin:
    """A wide module's tensor, and how to read it (or its gradient) as `[N, ...]`."""

    name: str
    read: Read


class Twins:
    """Finds the wide module's tensor for each of the members', by name, else by values.

    `members` are the members' tensors `[N, ...]`, `held` the wide module's; both before the call.
    """

    def __init__(self, members: Mapping[str, Tensor], held: Mapping[str, Tensor]):
        self.members, self.held = members, held
        self.taken: set[str] = set()

    def find(self, name: str) -> _Twin | None:
        values = self.members[name]
        if self._same_name(name):
            return _Twin(name, lambda x: x)
        last = name.rpartition(".")[2]
        names = [n for n in self.held if n not in self.taken and not self._same_name(n)]
        for candidate in sorted(names, key=lambda n: n.rpartition(".")[2] != last):
            read = _reading(self.held[candidate], values)
            if read is not None:
                self.taken.add(candidate)
                return _Twin(candidate, read)
        return None

    def _same_name(self, name: str) -> bool:
        mine = self.members.get(name)
        return mine is not None and name in self.held and self.held[name].shape == mine.shape


def _reading(held: Tensor, values: Tensor) -> Read | None:
    """Return how to read `held` as `values`, `[N, ...]`: packed along a dimension, or shared; or None."""
    if held.numel() == values.numel():
        if torch.equal(held.flatten(), values.flatten()):
            return lambda x: x.reshape(values.shape)
        if not torch.equal(held.flatten().sort()[0], values.flatten().sort()[0]):
            return None
        for order in itertools.permutations(range(values.dim())):
            turned = values.permute(order)
            if torch.equal(held.flatten(), turned.flatten()):
                back = [order.index(d) for d in range(values.dim())]
                return lambda x, shape=turned.shape, back=back: x.reshape(shape).permute(back)  # type: ignore[misc]
    if held.shape == values.shape[1:] and torch.equal(held.expand(values.shape), values):
        return lambda x: x.expand(values.shape)
    return None
