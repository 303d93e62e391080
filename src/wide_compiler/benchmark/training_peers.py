"""Alternatives for training; a step is forward, backward and Adam in all lanes."""

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from .benchmark_row import Results
from .functional import Functional
from .peers import graphed
from .problem import BenchmarkCandidate, Build, Problem
from .training import Trainee, first_results, fused_adam, member_loss, own_adam, stepping, tensors_of
from .workload import Call


def loop(problem: Problem) -> BenchmarkCandidate:
    """The eager loop over the members, each with its own Adam: the baseline of all speed-ups."""
    members = copy.deepcopy(problem.members)
    call = problem.workload.call
    losses = [partial(_called_loss, call, member) for member in members]
    trainee = _own_adams(members, losses, problem.x)
    return BenchmarkCandidate(trainee.step, lambda: _loop_results(trainee, members))


def training_peers(problem: Problem) -> dict[str, Build]:
    """Functions that build the peers, by name; a build may raise."""
    graph = ", graph" if problem.cuda else ""
    peers: dict[str, Build] = {
        "compiled loop": lambda: _compiled_loop(problem),
        "loop, one fused Adam" + graph: lambda: _fused_loop(problem),
        "vmap": lambda: _vmap(problem, compiled=False),
        "vmap compiled": lambda: _vmap(problem, compiled=True),
    }
    if problem.cuda:
        peers["vmap compiled, graph"] = lambda: _vmap(problem, compiled=True, graph=True)
    return peers


def _called_loss(call: Call, member: nn.Module, x: Tensor) -> Tensor:
    return member_loss(call(member, x))


def _own_adams(
    members: Sequence[nn.Module], losses: Sequence[Callable[[Tensor], Tensor]], x_NB: Tensor
) -> Trainee:
    optimizers = [own_adam(member.parameters()) for member in members]
    lanes = list(zip(losses, optimizers, x_NB.unbind(0), strict=True))

    def step() -> list[Tensor]:
        taken = []
        for loss_of, optimizer, x in lanes:
            optimizer.zero_grad()
            loss = loss_of(x)
            loss.backward()
            optimizer.step()
            taken.append(loss)
        return taken

    return Trainee(step, [t for member in members for t in tensors_of(member)], optimizers)


def _loop_results(trainee: Trainee, members: Sequence[nn.Module]) -> Results:
    def buffers() -> dict[str, Tensor]:
        names = [name for name, _ in members[0].named_buffers()]
        return {name: torch.stack([m.get_buffer(name) for m in members]) for name in names}

    def gradients() -> list[Tensor]:
        names = [name for name, _ in members[0].named_parameters()]
        return [torch.stack([_gradient(m.get_parameter(name)) for m in members]) for name in names]

    return first_results(trainee, buffers, gradients)


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _fresh(problem: Problem) -> list[nn.Module]:
    return copy.deepcopy(problem.called())


def _compiled_loop(problem: Problem) -> BenchmarkCandidate:
    functional = Functional(_fresh(problem), problem.x, member_loss)
    one = functional.compiled_member
    losses = [partial(one, *state) for state in functional.states]
    return _own_adams(functional.modules, losses, problem.x).candidate()


def _fused_loop(problem: Problem) -> BenchmarkCandidate:
    members = _fresh(problem)
    optimizer = fused_adam([p for member in members for p in member.parameters()], problem.cuda)
    lanes = list(zip(members, problem.x.unbind(0), strict=True))

    step = stepping(optimizer, lambda: torch.stack([member_loss(member(x)) for member, x in lanes]))
    trainee = Trainee(step, [t for member in members for t in tensors_of(member)], [optimizer])
    return _in_a_graph(trainee) if problem.cuda else trainee.candidate()


def _vmap(problem: Problem, compiled: bool, graph: bool = False) -> BenchmarkCandidate:
    functional = Functional(_fresh(problem), problem.x, member_loss)
    parameters, buffers = functional.stacked
    optimizer = fused_adam(parameters.values(), problem.cuda)
    step = stepping(optimizer, functional.together(compiled))
    trainee = Trainee(step, [*parameters.values(), *buffers.values()], [optimizer])
    return _in_a_graph(trainee) if graph else trainee.candidate()


def _in_a_graph(trainee: Trainee) -> BenchmarkCandidate:
    trainee.step = graphed(trainee.step)
    return trainee.candidate()
