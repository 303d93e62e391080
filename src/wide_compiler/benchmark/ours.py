"""Candidates of wide_compiler: a wide model, or a wide layer with each of its strategies."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import wide_compiler

from ..config import WideConfig
from ..model import WideModel
from ..primitives import WideModule
from ..training import Adam, TrainStep
from .benchmark_row import OURS
from .primitive_cases import strategies_on
from .problem import BenchmarkCandidate, Build, Problem, inference
from .training import (
    LEARNING_RATE,
    WARM_UP,
    Trainee,
    first_results,
    fused_adam,
    lane_losses,
    stepping,
    tensors_of,
)


def our_candidates(problem: Problem, compiled: bool, mode: str | None) -> dict[str, Build]:
    """Candidates by name: one per model, one per strategy of a layer; `mode` is that of `torch.compile`."""
    primitive = problem.workload.primitive
    if primitive is None:
        config = WideConfig.fast() if compiled else WideConfig.default()
        config = config.replace(compile_mode=mode) if compiled and mode else config
        return {OURS: lambda: _model(problem, config)}
    return {
        f"{OURS}: {strategy}": lambda s=strategy: _layer(problem, primitive, s, compiled, mode)  # type: ignore[misc]
        for strategy in strategies_on(primitive, problem.device)
    }


def _model(problem: Problem, config: WideConfig) -> BenchmarkCandidate:
    wide = wide_compiler.compile(problem.members, problem.x[0], config=config)
    x = problem.x
    if not problem.train:
        return inference(lambda: wide.stacked(x), lambda: strategies_of(wide), WARM_UP)
    optimizer = Adam(wide.parameters(), LEARNING_RATE)
    step = TrainStep(wide, optimizer, lane_losses, door="stacked")
    candidate = _trained(problem, wide, wide.stacked, optimizer, lambda: step(x))
    refused = problem.cuda and config.compile
    candidate.strategy = lambda: strategies_of(wide) + (f", {step.why}" if step.why and refused else "")
    return candidate


def _layer(
    problem: Problem, primitive: type[WideModule], strategy: str, compiled: bool, mode: str | None
) -> BenchmarkCandidate:
    layer = primitive.from_modules(problem.members, strategy=strategy)
    net: Callable[[Tensor], Any] = lambda x: problem.workload.call(layer, x)  # noqa: E731
    if compiled:
        net = torch.compile(net, mode=mode)
    if not problem.train:
        return inference(lambda: net(problem.x), lambda: strategy)
    optimizer = fused_adam(layer.parameters(), problem.cuda)
    step = stepping(optimizer, lambda: lane_losses(net(problem.x)))
    candidate = _trained(problem, layer, net, optimizer, step)
    candidate.strategy = lambda: strategy
    return candidate


def _trained(
    problem: Problem,
    module: nn.Module,
    net: Callable[[Tensor], Any],
    optimizer: torch.optim.Optimizer,
    step: Callable[[], Tensor],
) -> BenchmarkCandidate:
    """Return a training candidate; compared are losses, and buffers and gradients of the first step."""
    trainee = Trainee(step, tensors_of(module), [optimizer])
    member = problem.members[0]

    def buffers() -> dict[str, Tensor]:
        """Buffers with a lane axis; a buffer that no lane writes is shared and has none."""
        own = dict(module.named_buffers())
        return {name: own[name] for name, b in member.named_buffers() if own[name].dim() == b.dim() + 1}

    def gradients() -> Sequence[Tensor]:
        trainee.reset()
        parameters = [module.get_parameter(name) for name, _ in member.named_parameters()]
        losses = lane_losses(net(problem.x)).sum()
        return torch.autograd.grad(losses, parameters, allow_unused=True, materialize_grads=True)

    return BenchmarkCandidate(step, lambda: first_results(trainee, buffers, gradients))


def strategies_of(wide: WideModel) -> str:
    """Return how a wide model ran: loop or chunks, the distinct strategies of its nodes, compiled or not."""
    explanation = wide.explain(measure=False)
    compiled = explanation.tuned.plan.compiled if explanation.tuned else wide.config.compile
    parts = [] if explanation.way == "wide" else [explanation.way]
    if explanation.way != "loop":
        found = dict.fromkeys(row.strategy for row in explanation.rows if row.strategy)
        parts += [name for name in found if name != "wide"] or list(found)
    return ", ".join([*parts, *["compiled"] * compiled])
