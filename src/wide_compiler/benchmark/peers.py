"""Alternatives: the eager loop, compiled loops, vmap, CUDA streams and graphs, JAX.

In training, a step is forward, backward and Adam in all lanes.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam

from ..replay.cuda_graph import capture, on_stream
from . import jax_peer
from .benchmark_row import Results
from .functional import Functional
from .problem import BenchmarkCandidate, Build, Problem, inference
from .training import LEARNING_RATE, Trainee, first_results, fused_adam, member_loss, stepping, tensors_of


def loop(problem: Problem) -> BenchmarkCandidate:
    """Return the eager loop over the members, each with its own Adam: the baseline of all speed-ups."""
    call = problem.workload.call
    if not problem.train:
        lanes = list(zip(problem.members, problem.x.unbind(0), strict=True))
        return inference(lambda: [call(member, x) for member, x in lanes])
    members = copy.deepcopy(problem.members)
    losses = [lambda x, member=member: member_loss(call(member, x)) for member in members]
    trainee = _own_adams(members, losses, problem.x)
    return BenchmarkCandidate(trainee.step, lambda: _loop_results(trainee, members))


def peers_of(problem: Problem) -> dict[str, Build]:
    """Functions that build the peers, by name; a build may raise."""
    peers: dict[str, Build] = {
        "compiled loop": lambda: _compiled_loop(problem),
        "vmap": lambda: _vmap(problem, compiled=False),
        "vmap compiled": lambda: _vmap(problem, compiled=True),
    }
    if problem.train:
        peers["loop, one fused Adam" + ", graph" * problem.cuda] = lambda: _fused_loop(problem)
    elif problem.cuda:
        peers["loop, 16 streams, graph"] = lambda: _streams(problem)
    if problem.cuda:
        peers["vmap compiled, graph"] = lambda: _vmap(problem, compiled=True, graph=True)
    if jax_peer.knows(problem):
        peers["jax jit(vmap)"] = lambda: jax_peer.build(problem)
    return peers


def graphed(function: Callable[[], Any], warm_up: int = 3) -> Callable[[], Any]:
    """Capture `function` into a CUDA graph; every replay returns the same output tensors."""
    stream = torch.cuda.Stream()
    for _ in range(warm_up):
        on_stream(stream, function)
    graph, outputs = capture(function, stream=stream)

    def replay() -> Any:
        graph.replay()
        return outputs

    return replay


def _compiled_loop(problem: Problem) -> BenchmarkCandidate:
    functional = _functional(problem)
    if not problem.train:
        return inference(functional.each(compiled=True))
    losses = [partial(functional.compiled_member, *state) for state in functional.states]
    return _own_adams(functional.modules, losses, problem.x).candidate()


def _vmap(problem: Problem, compiled: bool, graph: bool = False) -> BenchmarkCandidate:
    functional = _functional(problem)
    together = functional.together(compiled)
    if not problem.train:
        return inference(graphed(together) if graph else together)
    parameters, buffers = functional.stacked
    optimizer = fused_adam(parameters.values(), problem.cuda)
    step, tensors = stepping(optimizer, together), [*parameters.values(), *buffers.values()]
    return _trained(step, tensors, optimizer, graph)


def _functional(problem: Problem) -> Functional:
    """Return the members as functions; in training, copies of them, as functions that return the loss."""
    if not problem.train:
        return Functional(problem.called(), problem.x)
    return Functional(copy.deepcopy(problem.called()), problem.x, member_loss)


def _streams(problem: Problem, count: int = 16) -> BenchmarkCandidate:
    """Return the loop in a CUDA graph, its members distributed over `count` streams."""
    streams = [torch.cuda.Stream() for _ in range(count)]
    lanes = list(zip(problem.members, problem.x.unbind(0), strict=True))

    def run() -> list[Any]:
        main = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(main)
        outputs = []
        for i, (member, x) in enumerate(lanes):
            with torch.cuda.stream(streams[i % count]):
                outputs.append(problem.workload.call(member, x))
        for stream in streams:
            main.wait_stream(stream)
        return outputs

    return inference(graphed(run))


def _fused_loop(problem: Problem) -> BenchmarkCandidate:
    members = copy.deepcopy(problem.called())
    optimizer = fused_adam([p for member in members for p in member.parameters()], problem.cuda)
    lanes = list(zip(members, problem.x.unbind(0), strict=True))
    step = stepping(optimizer, lambda: torch.stack([member_loss(member(x)) for member, x in lanes]))
    return _trained(step, [t for member in members for t in tensors_of(member)], optimizer, problem.cuda)


def _trained(
    step: Callable[[], Any], tensors: list[Tensor], optimizer: torch.optim.Optimizer, graph: bool
) -> BenchmarkCandidate:
    trainee = Trainee(step, tensors, [optimizer])
    trainee.step = graphed(step) if graph else step
    return trainee.candidate()


def _own_adams(
    members: Sequence[nn.Module], losses: Sequence[Callable[[Tensor], Tensor]], x_NB: Tensor
) -> Trainee:
    optimizers = [Adam(member.parameters(), LEARNING_RATE, foreach=True) for member in members]
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
        columns = zip(*(member.parameters() for member in members), strict=True)
        zeros = torch.zeros_like
        return [torch.stack([zeros(p) if p.grad is None else p.grad for p in lanes]) for lanes in columns]

    return first_results(trainee, buffers, gradients)
