"""Alternatives for inference: the eager loop, compiled loops, vmap, CUDA streams and graphs, JAX."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..replay.cuda_graph import capture, on_stream
from . import jax_peer
from .functional import Functional
from .problem import BenchmarkCandidate, Build, Problem, inference


def loop(problem: Problem) -> BenchmarkCandidate:
    """The eager loop over the members: the baseline of all speed-ups."""
    call = problem.workload.call
    lanes = list(zip(problem.members, problem.x.unbind(0), strict=True))

    def run() -> list[Any]:
        return [call(member, x) for member, x in lanes]

    return inference(run)


def inference_peers(problem: Problem) -> dict[str, Build]:
    """Functions that build the peers, by name; a build may raise."""
    functional = Functional(problem.called(), problem.x)
    peers: dict[str, Build] = {
        "compiled loop": lambda: inference(functional.each(compiled=True)),
        "vmap": lambda: inference(functional.together(compiled=False)),
        "vmap compiled": lambda: inference(functional.together(compiled=True)),
    }
    if problem.cuda:
        peers["loop, 16 streams, graph"] = lambda: _streams(problem)
        peers["vmap compiled, graph"] = lambda: inference(graphed(functional.together(compiled=True)))
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


def on_streams(functions: list[Callable[[], Any]], count: int = 16) -> Callable[[], list[Any]]:
    """A function that runs all `functions`, distributed over `count` CUDA streams."""
    streams = [torch.cuda.Stream() for _ in range(count)]

    def run() -> list[Any]:
        main = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(main)
        outputs = []
        for i, function in enumerate(functions):
            with torch.cuda.stream(streams[i % count]):
                outputs.append(function())
        for stream in streams:
            main.wait_stream(stream)
        return outputs

    return run


def _streams(problem: Problem) -> BenchmarkCandidate:
    call = problem.workload.call
    lanes = zip(problem.members, problem.x.unbind(0), strict=True)
    return inference(graphed(on_streams([partial(call, member, x) for member, x in lanes])))
