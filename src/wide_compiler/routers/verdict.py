"""Together or in sequence? The two are run on the call itself, compared and timed; the answer is kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .. import _tree
from ..capture.state import has_gradient_hooks
from ..config import WideConfig
from ..model.choice import CALLS, RUN_OFF, Chooser
from ..model.identity import identity
from ..tuning import Store, interleaved
from ..tuning.clock import SAMPLE_SECONDS
from ..tuning.same import difference, rounding
from ..widen.attempt import one_line
from .calls import Calls
from .route import Fused

# Together must be so much faster than in sequence to be taken: a smaller difference may be noise.
MARGIN = 0.95
# What a call of a group costs beside that, in milliseconds: finding it, and handing out the outputs by name.
TOLL = 0.025
# Waiting for the GPU after every call would hide what is being measured: the launches of small towers.
GPU_SAMPLE = 2e-3


@dataclass
class Verdict:
    """`together` or not, and why; `ms` is what was measured."""

    together: bool
    why: str
    ms: dict[str, float] = field(default_factory=dict)


def judge(
    fused: Fused,
    in_sequence: Callable[[], Sequence[Any]],
    calls: Calls,
    config: WideConfig,
) -> Verdict:
    """Let `fused` take its fastest way, and find out whether that beats running the towers in sequence.

    Gradients, buffers and random numbers are afterwards what they were.
    """
    if config.strategies.get("*") == "loop":
        return Verdict(False, "as asked for")
    tensors = calls.call.tensors
    leaves = [t for t in (*fused.states(), *calls.sources) if t.requires_grad]
    leaves = list({id(t): t for t in leaves}.values())
    gradients = torch.is_grad_enabled() and bool(leaves)
    chooser = Chooser(fused.program, fused.n, config, fused.arguments(tensors), gradients)
    if not config.tune_seconds or config.strategies:
        fused.take(chooser.choose())
        return Verdict(True, "as asked for" if config.strategies else "tuning is off")
    if fused.program.draws:
        fused.take(chooser.choose())
        return Verdict(True, "not measured: random numbers must not depend on what is faster today")
    if gradients and any(has_gradient_hooks(leaf) for leaf in leaves):
        return Verdict(False, "not measured: a parameter has a gradient hook, which measuring would call")
    store, key = Store(), ("towers", *identity(chooser))
    chosen = chooser.choose()
    if chosen.plan.way == "loop":
        return Verdict(False, chosen.why, chosen.ms)
    fused.take(chosen)
    bench = Bench(
        lambda: fused.watched(calls.gather()), in_sequence, leaves if gradients else [], fused.buffers()
    )
    cuda = chooser.cuda
    with torch.random.fork_rng(None if cuda else []):
        problem = bench.difference()
        if problem:
            return Verdict(False, f"together it {problem}")
        answer = _kept(store.read(key))
        if answer is not None:
            return answer
        ms = bench.measure(config.tune_seconds, cuda)
    store.write(key, {"ms": ms})
    return Verdict(is_worth_it(ms), "measured", ms)


def is_worth_it(ms: dict[str, float]) -> bool:
    """Is together fast enough to be taken?"""
    return ms["together"] + TOLL < MARGIN * ms["loop"]


def _kept(answer: dict[str, Any] | None) -> Verdict | None:
    try:
        return None if answer is None else Verdict(is_worth_it(answer["ms"]), "remembered", answer["ms"])
    except (KeyError, TypeError):
        return None


class Bench:
    """Both ways on the same call, forward and backward, without a trace."""

    def __init__(self, together: Any, in_sequence: Any, leaves: list[Tensor], buffers: list[Tensor]):
        self.ways = {"together": together, "loop": in_sequence}
        self.leaves, self.buffers = leaves, buffers
        self.before = [b.detach().clone() for b in buffers]
        self.seeds: list[Tensor] = []

    def run(self, name: str) -> tuple[list[Tensor], list[Tensor | None]]:
        outputs = [o for o in _tree.flatten(self.ways[name]())[0] if isinstance(o, Tensor)]
        ends = [o for o in outputs if o.requires_grad] if self.leaves else []
        if not ends:
            return outputs, []
        if len(self.seeds) != len(ends):
            self.seeds = [torch.linspace(0.5, 1.5, o.numel()).to(o).view(o.shape) for o in ends]
        return outputs, list(torch.autograd.grad(ends, self.leaves, self.seeds, allow_unused=True))

    def difference(self) -> str | None:
        """In what respect the two ways differ, buffers included; None if they do not."""
        wanted = self._results("loop")
        try:
            got = self._results("together")
        except Exception as error:  # whatever it raises, the call itself must not suffer
            return f"raises {one_line(error)}"
        compared = zip(got, wanted, self._rounding(wanted), strict=True)
        return next(filter(None, (difference(*these) for these in compared)), None)

    def _rounding(self, wanted: list[Sequence[Tensor | None]]) -> list[list[float] | None]:
        """How far products rounded to ten bits, as a GPU may, move each result."""
        if not any(t is not None and t.is_cuda for results in wanted for t in results):
            return [None] * len(wanted)
        return rounding(wanted, lambda: self._results("loop"))

    def _results(self, name: str) -> list[Sequence[Tensor | None]]:
        try:
            outputs, gradients = self.run(name)
            return [outputs, gradients, [b.detach().clone() for b in self.buffers]]
        finally:
            self.restore()

    def measure(self, seconds: float, cuda: bool) -> dict[str, float]:
        calls = {name: (lambda n=name: self.run(n)) for name in self.ways}  # type: ignore[misc]
        slowest = max(interleaved(calls, 0.0, cuda, rounds_at_least=2).values())
        sample = GPU_SAMPLE if cuda else SAMPLE_SECONDS
        spent = min(seconds, CALLS * slowest)
        times = interleaved(calls, spent, cuda, rounds_at_least=RUN_OFF, sample_seconds=sample)
        self.restore()
        return {name: 1e3 * taken for name, taken in times.items()}

    def restore(self) -> None:
        """Buffers as they were at first."""
        with torch.no_grad():
            for buffer, old in zip(self.buffers, self.before, strict=True):
                buffer.copy_(old)
