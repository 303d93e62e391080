"""How one call shall run: the plans there are, measured on the call itself, the best one taken."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..config import WideConfig
from ..guards.modes import capturing
from ..tuning import Replay, Store, Trial, interleaved
from ..tuning.progress import Patience
from ..tuning.replay import recorded
from ..widen import LaneGraph
from ..widen.attempt import one_line
from .identity import identity
from .plans import CHUNKS, Built, Plan, Workshop, channels_last
from .ways import MemberLoop

# Tuning may cost as much as this many calls, and no more than `config.tune_seconds`.
CALLS = 40
# Rounds of the last comparison, between the best few.
RUN_OFF = 9
# Another plan must be so much faster than one wide call to be taken, and that so much faster than the loop:
# a smaller difference may be the machine's noise.
MARGIN = 0.95
# Two plans closer than this are timed once more, for longer, before one of them is taken for good.
CLOSE = 0.85
# A strategy that takes so many times as long everywhere will hardly be the best one anywhere.
HOPELESS = 3.0
# What torch.compile is not expected to gain for the loop: with wide so far ahead the loop is not compiled.
FAR_AHEAD = 0.3


@dataclass
class Tuned:
    """The way a call runs, and why."""

    run: Callable[[list[Any]], Any]
    graph: LaneGraph
    plan: Plan
    why: str
    channels_last: list[int] = field(default_factory=list)
    ms: dict[str, float] = field(default_factory=dict)  # what was measured
    refused: dict[str, str] = field(default_factory=dict)  # plans that did not run, or ran wrong

    def __str__(self) -> str:
        lines = [f"{self.plan} ({self.why})"]
        if getattr(self.run, "why", ""):
            lines.append(self.run.why)  # type: ignore[attr-defined]
        lines += [f"{ms:10.4f} ms  {label}" for label, ms in sorted(self.ms.items(), key=lambda i: i[1])]
        lines += [f"         -     {label}: {why}" for label, why in self.refused.items()]
        return "\n".join(lines)


class Chooser:
    """Finds the way for one program, one number of lanes, with or without gradients."""

    def __init__(self, program: Any, n: int, config: WideConfig, arguments: list[Any], gradients: bool):
        self.graph, self.n, self.config = program.graph, n, config
        self.arguments, self.gradients = arguments, gradients
        self.cuda = any(isinstance(a, Tensor) and a.is_cuda for a in arguments)
        self.workshop = Workshop(program.captured, program.graph, n, config, self.cuda, gradients)
        # Lanes run apart draw other random numbers than lanes run together, so those stay together.
        self.can_split = n > 1 and MemberLoop.can_run(program.captured) and not program.draws
        feeds = list(enumerate(self.graph.feeds))
        self.inputs = [i for i, (kind, _) in feeds if kind in ("input", "rng") and arguments[i] is not None]
        self.written = [i for i, (kind, key) in feeds if kind == "state" and key in self.graph.writes]
        self.built: dict[str, Built] = {}
        self.runs_python = program.runs_members
        self.ms: dict[str, float] = {}
        self.refused: dict[str, str] = {}

    def choose(self) -> Tuned:
        plan = self._forced()
        if plan is not None:
            return self._tuned(self.workshop.build(plan), plan, "as asked for")
        why = self._why_not()
        if why:
            plan = Plan(compiled=self.config.compile)
            return self._tuned(self.workshop.build(plan), plan, why)
        store, key = Store(), identity(self)
        devices: list[int] | None = None if self.cuda else []
        with torch.random.fork_rng(devices), Patience("wide_compiler: tuning") as self.patience:
            trial = Trial(self.arguments, self.written, self.gradients)
            try:
                tuned = self._remembered(store.read(key), trial) or self._measured(trial)
            except Exception as error:  # the call itself must not suffer; if it is at fault, it will say so
                tuned = self._tuned(self.workshop.build(Plan()), Plan(), f"not measured: {one_line(error)}")
        if tuned.why == "measured":
            answer = {"way": tuned.plan.way, "taken": tuned.plan.taken, "compiled": tuned.plan.compiled}
            store.write(key, {**answer, "ms": tuned.ms})
        return tuned

    def _why_not(self) -> str:
        """Why nothing is measured."""
        if self.runs_python:
            return "not measured: modules that run as Python would be run too often"
        if not self.config.tune_seconds:
            return "tuning is off"
        return "not measured: a CUDA graph is being recorded" if capturing() else ""

    def _forced(self) -> Plan | None:
        if self.config.chunk_lanes and self.config.chunk_lanes < self.n:
            return Plan(f"{CHUNKS}{self.config.chunk_lanes}", compiled=self.config.compile)
        if self.config.strategies.get("*") == "loop" and self.can_split:
            return Plan("loop", compiled=self.config.compile)
        return Plan(compiled=self.config.compile) if self.config.strategies else None

    def _tuned(self, built: Built, plan: Plan, why: str) -> Tuned:
        run: Any = built.way
        if self.config.compile and self.cuda and not self.gradients and not self.runs_python:
            run = Replay(built.way, self.arguments, self.inputs)
        return Tuned(run, built.graph, plan, why, built.channels_last, self.ms, self.refused)

    def _remembered(self, answer: dict[str, Any] | None, trial: Trial) -> Tuned | None:
        """A kept answer, if it can still be built and gives the numbers of the plain lane graph."""
        if answer is None:
            return None
        try:
            plan = Plan.read(answer)
            ms = {str(label): float(ms) for label, ms in answer["ms"].items()}
            if plan.way != "wide" and not self.can_split:
                return None
            built = self.workshop.build(plan)
        except (KeyError, ValueError, TypeError, AttributeError):
            return None
        trial.expect(self.workshop.build(Plan()).way)
        if self._laid_out(trial, built).difference(built.way):
            return None
        self.ms = ms
        return self._tuned(built, plan, "remembered")

    def _measured(self, trial: Trial) -> Tuned:
        plain = self.workshop.build(Plan())
        try:
            trial.expect(plain.way)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            plan = Plan("loop") if self.can_split else Plan()
            return self._tuned(self.workshop.build(plan), plan, "all lanes at once do not fit in memory")
        self.call_seconds = _seconds(lambda: trial.run(plain.way), self.cuda)
        # Who waits for torch.compile waits for a few more measurements.
        few_calls = (
            max(0.25, 10 * CALLS * self.call_seconds) if self.config.compile else CALLS * self.call_seconds
        )
        self.seconds = min(self.config.tune_seconds, max(0.004, few_calls))
        best = self._search(trial)
        if self.config.compile:
            best = self._search_compiled(trial, best)
        return self._tuned(self.built[str(best)], best, "measured")

    def _search(self, trial: Trial) -> Plan:
        """A strategy everywhere, or at one site; then what is better at each site, together."""
        wide, loop = Plan(), Plan("loop")
        everywhere, alone = self.workshop.alternatives()
        chunkings = self.workshop.chunkings() if self.can_split else []
        self._time(trial, [wide, *([loop] if self.can_split else []), *everywhere, *chunkings], 0.5)
        hopeless = {s for plan in everywhere if self._is_hopeless(plan) for s in plan.taken.values()}
        alone = [plan for plan in alone if hopeless.isdisjoint(plan.taken.values())]
        if len(self.workshop.sites) > 1 and alone:
            self._time(trial, [wide, *alone], 0.3)
        taken: dict[str, str] = {}
        for plan in sorted(alone, key=self._took, reverse=True):
            if self._took(plan) < MARGIN * self._took(wide):
                taken |= plan.taken  # the fastest of a site comes last, and stays
        fastest = min(everywhere, key=self._took, default=wide)
        chunks = min(chunkings, key=self._took, default=wide)
        together = [Plan(taken=taken)]
        if self._took(chunks) < MARGIN * self._took(wide):
            together += [Plan(chunks.way, fastest.taken), Plan(chunks.way, taken)]
        new = [plan for plan in together if str(plan) not in self.ms and str(plan) not in self.refused]
        if new:
            self._time(trial, [wide, fastest, *new], 0.2)
        # The fastest of many by a few samples is often the luckiest: the best run once more, for longer.
        contenders = sorted([*everywhere, *alone, *together, *chunkings], key=self._took)[:2]
        contenders = [plan for plan in contenders if self._took(plan) < self._took(wide)]
        finalists = [wide, *contenders, *([loop] if self._took(loop) < 2 * self._took(wide) else [])]
        if len(finalists) > 1:
            self._time(trial, finalists, 0.5, rounds=RUN_OFF)
        best = min([wide, *contenders], key=self._took)
        if self._took(best) > MARGIN * self._took(wide):
            best = wide
        return loop if self._took(best) > MARGIN * self._took(loop) else best

    def _search_compiled(self, trial: Trial, best: Plan) -> Plan:
        """Through torch.compile: the best plan so far, and the loop unless wide is far ahead already."""
        wide = best if best.way != "loop" else Plan()
        plans = [best, Plan(wide.way, wide.taken, compiled=True)]
        if wide.taken and not self.cuda:
            # What wins op by op need not win where ops are fused. On CUDA compiling twice takes too long.
            plans.append(Plan(wide.way, compiled=True))
        if self._took(wide) > FAR_AHEAD * self._took(Plan("loop")):
            plans.append(Plan("loop", compiled=True))
        self._time(trial, plans, 0.3, rounds=RUN_OFF)
        first, second, *_ = sorted(plans, key=self._took)
        if self._took(first) > CLOSE * self._took(second):
            self._time(trial, [first, second], 0.3, rounds=3 * RUN_OFF)
        return min(first, second, key=self._took)

    def _is_hopeless(self, plan: Plan) -> bool:
        """Is a strategy so slow everywhere that no single site is worth trying it at?"""
        return self.ms.get(str(plan), 0.0) > HOPELESS * self._took(Plan())

    def _took(self, plan: Plan) -> float:
        return self.ms.get(str(plan), float("inf"))

    def _time(self, trial: Trial, plans: list[Plan], share: float, rounds: int = 3) -> None:
        """Note the milliseconds of those plans that run and are right, as far as the time goes."""
        seconds = share * self.seconds
        affordable = max(4 if rounds > 3 else 2, int(seconds / (3 * self.call_seconds)))
        calls: dict[str, Callable[[], Any]] = {}
        for label, plan in {str(plan): plan for plan in plans}.items():
            if len(calls) >= affordable and not plan.compiled:
                self.refused[label] = "no time left to try it"
                continue
            self.patience.tick(label)
            built = self.built.get(label) or self.workshop.build(plan)
            laid_out = self._laid_out(trial, built)
            problem = laid_out.difference(built.way)
            if problem:
                self.refused[label] = problem
                continue
            self.built[label] = built
            run = partial(laid_out.run, built.way)
            calls[label] = recorded(run) if self.config.compile and self.cuda else run
        times = interleaved(calls, seconds, self.cuda, 1.5, lambda _: self.patience.tick(), rounds)
        self.ms |= {label: 1e3 * taken for label, taken in times.items()}

    def _laid_out(self, trial: Trial, built: Built) -> Trial:
        if not built.channels_last:
            return trial
        return trial.changed(dict.fromkeys(built.channels_last, channels_last))


def _seconds(call: Callable[[], Any], cuda: bool) -> float:
    start = time.perf_counter()
    call()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start
