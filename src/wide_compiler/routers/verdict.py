"""Verdict: whether towers run together or as a loop, measured on the call itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..capture.state import has_gradient_hooks
from ..config import WideConfig
from ..measure.contest import Candidate, Contest, Decision
from ..model.chooser import SET, Chooser
from .calls import Calls
from .fused_lanes import Fused

TOGETHER, LOOP = "together", "loop"
# Seconds that a call of a group costs beside what is timed: the lookup, and outputs by name.
TOLL = 25e-6
HOOKED = "not measured: a parameter has a gradient hook, which measuring would call"


@dataclass
class Verdict:
    """Whether to run `together`, and why; `ms` are the measured times."""

    together: bool
    why: str
    ms: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, decision: Decision) -> "Verdict":
        return cls(decision.name == TOGETHER, decision.why, decision.ms)


def judge(
    fused: Fused,
    in_sequence: Callable[[], Sequence[Any]],
    calls: Calls,
    config: WideConfig,
) -> Verdict:
    """Let `fused` choose its fastest way, and compare and time it against running the towers as a loop."""
    if config.strategies.get("*") == "loop":
        return Verdict(False, SET)
    tensors = calls.call.tensors
    leaves = [t for t in (*fused.states(), *calls.sources) if t.requires_grad]
    leaves = list({id(t): t for t in leaves}.values())
    gradients = torch.is_grad_enabled() and bool(leaves)
    chooser = Chooser(fused.program, fused.n, config, fused.arguments(tensors), gradients)
    if not config.tune_seconds or config.strategies:
        fused.take(chooser.choose())
        return Verdict(True, SET if config.strategies else "tuning is off")
    if gradients and any(has_gradient_hooks(leaf) for leaf in leaves):
        return Verdict(False, HOOKED)
    chosen = chooser.choose()
    if chosen.plan.way == "loop":
        return Verdict(False, chosen.why, chosen.ms)
    fused.take(chosen)
    written = fused.written()
    fused.lends_leaves = False  # gradients are compared for each parameter
    sequence = Candidate(in_sequence, leaves, written)
    together = Candidate(lambda: fused.watched(calls.gather()), leaves, written)
    draws, tolls = fused.program.draws, {TOGETHER: TOLL}
    with Contest(sequence, gradients, chooser.cuda, reordered=draws, tolls=tolls) as contest:
        key = ("towers", *chooser.key)
        verdict = Verdict.of(contest.settle(key, TOGETHER, together, LOOP, config.tune_seconds))
    fused.lends_leaves = True
    return verdict
