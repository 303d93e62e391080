"""What one would use instead, for inference: the eager loop, and whoever claims to be faster."""

from functools import partial
from typing import Any

from . import jax_peer
from .cuda_graph import graphed, on_streams
from .functional import Functional
from .problem import Build, Candidate, Problem, inference


def loop(problem: Problem) -> Candidate:
    """One member after the other: what all others are measured against."""
    call = problem.workload.call
    lanes = list(zip(problem.members, problem.x.unbind(0), strict=True))

    def run() -> list[Any]:
        return [call(member, x) for member, x in lanes]

    return inference(run)


def inference_peers(problem: Problem) -> dict[str, Build]:
    """By name; each is built when it is called, and may raise then."""
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


def _streams(problem: Problem) -> Candidate:
    call = problem.workload.call
    lanes = zip(problem.members, problem.x.unbind(0), strict=True)
    return inference(graphed(on_streams([partial(call, member, x) for member, x in lanes])))
