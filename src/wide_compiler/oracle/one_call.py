"""One call compared: the wide model against its members, each alone. What `validate=True` runs."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree, lanes
from ..capture import clone_member
from ..errors import ValidationError
from .report import Report, raise_tiny_scales

Arguments = tuple[tuple, dict]


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
            wide_outputs = each_lane(wide, per_lane)
        if gradients:
            backward(wide_outputs)
    if learning_rate:
        torch.optim.SGD(wide.parameters(), lr=learning_rate).step()
    for lane, model in enumerate(models):
        member = clone_member(model)
        member.zero_grad()
        with torch.set_grad_enabled(gradients):
            args, kwargs = copy.deepcopy(per_lane[lane])  # type: ignore[misc]
            output = member(*args, **kwargs)
            if gradients:
                backward([output])
        compare_outputs(report, lane, wide_outputs[lane], output)
        if gradients:
            if learning_rate:
                torch.optim.SGD(member.parameters(), lr=learning_rate).step()
            _compare_members(report, lane, wide, member, learning_rate)
    raise_tiny_scales(report.differences)
    return report


def validate(models: Sequence[nn.Module], wide: Any) -> Report:
    """Compare on the wide model's own sample. A model that draws random numbers is compared in eval mode."""
    call = wide.sample_call()
    inputs = [call.for_lane(i) for i in range(wide.n)]
    if not wide.programs.latest.draws:
        return compare(models, wide, inputs)
    members, wide = [clone_member(m) for m in models], copy.deepcopy(wide)
    for each in (*members, wide):
        each.eval()  # not chained: a model's own `train` may return nothing
    report = compare(members, wide, inputs)
    report.note = "compared in eval mode, because the members draw random numbers in training"
    return report


def each_lane(wide: Any, per_lane: Sequence[Any]) -> list[Any]:
    args = tuple(zip(*(a for a, _ in per_lane), strict=True))
    kwargs = {key: [k[key] for _, k in per_lane] for key in per_lane[0][1]}
    return wide.each(*map(list, args), **kwargs)


def backward(outputs: list[Any]) -> None:
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


def compare_outputs(report: Report, lane: int, wide: Any, loop: Any) -> None:
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
