"""Choice of how a call runs: candidate plans are timed on the call itself, and the fastest is taken."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._dynamo_marks import outside_traces
from ..config import WideConfig
from ..errors import one_line
from ..guards.modes import capturing
from ..measure.clock import now
from ..measure.contest import Candidate, Contest, Written, leaf_like, private_copies
from ..measure.policy import FINAL_ROUNDS, beats, budget, margin, winner
from ..measure.progress import StatusLine
from ..measure.store import circumstances
from ..remote_tensors import lane_runner, memory_id
from ..replay import Replay
from ..replay.cuda_graph import recorded, uncached_autocast
from ..widen import LaneGraph
from .plan_builder import CHUNKS, UNTRIED, BuiltPlan, CallPlan, PlanBuilder, channels_last
from .site_times import SiteTimes
from .strategy_sites import CHAINS, JOINED
from .ways import MemberLoop, Whole, has_lanes

WIDE, LOOP = CallPlan(), CallPlan("loop")
# Ties go to the simplest plan: first the loop, then one wide call.
PLAINEST = [str(LOOP), str(WIDE)]
# Reason for a plan that nothing was measured against.
SET = "set by the configuration"
# A strategy this many times slower when used everywhere is not tried at single sites.
HOPELESS = 3.0
# If wide takes less than this share of the loop's time, the loop is not compiled.
FAR_AHEAD = 0.3
# If torch.compile takes longer than these seconds for one plan, no second plan is compiled.
COMPILES_SOON = 15.0
# Strategies with one op per lane: beyond this many lanes torch.compile takes minutes to trace them.
BY_LANE, MOST_TRACED = ("sequential", "streams"), 16
# Batched products that torch.compile fuses with neighbouring ops, and strategies that prevent the fusion.
FUSED, SINGLE_OPS = ("WideLinear", "WideAttention"), ("sequential", "transposed")


@dataclass
class Tuned:
    """The plan chosen for a call, ready to run, and why it was chosen."""

    run: Callable[[list[Any]], Any]
    graph: LaneGraph
    plan: CallPlan
    why: str
    channels_last: list[int] = field(default_factory=list)
    ms: dict[str, float] = field(default_factory=dict)  # measured times
    refused: dict[str, str] = field(default_factory=dict)  # plans that failed or gave wrong results

    def __str__(self) -> str:
        lines = [f"{self.plan} ({self.why})"]
        if getattr(self.run, "why", ""):
            lines.append(self.run.why)  # type: ignore[attr-defined]
        taken = sorted(self.ms.items(), key=lambda item: item[1])
        lines += [f"{ms:10.4f} ms  {label}{self._not_taken(ms)}" for label, ms in taken]
        lines += [f"         -     {label}: {why}" for label, why in self.refused.items()]
        return "\n".join(lines)

    def _not_taken(self, ms: float) -> str:
        """Return why a faster candidate was not chosen; '' if it was not faster."""
        own = self.ms.get(str(self.plan))
        if own is None or ms >= own:
            return ""
        if beats(1e-3 * ms, 1e-3 * own):
            return "  (in the first rounds; slower in the final ones)"
        return f"  (less than {1 - margin(1e-3 * own):.0%} faster, too little for a more complex plan)"


class Chooser:
    """Chooses the plan for one program and number of lanes, with or without gradients."""

    def __init__(self, program: Any, n: int, config: WideConfig, arguments: list[Any], gradients: bool):
        self.graph, self.n, self.config = program.graph, n, config
        self.arguments, self.gradients = arguments, gradients
        self.cuda = any(isinstance(a, Tensor) and a.is_cuda for a in arguments)
        self.plan_builder = PlanBuilder(program.captured, program.graph, n, config, self.cuda, gradients)
        # Lanes run one by one draw other random numbers than lanes run together.
        self.can_split = n > 1 and MemberLoop.can_run(program.captured) and not program.draws
        feeds = list(enumerate(self.graph.feeds))
        self.inputs = [i for i, (kind, _) in feeds if kind in ("input", "rng") and arguments[i] is not None]
        self.written = [i for i, (kind, key) in feeds if kind == "state" and key in self.graph.writes]
        self.plans: dict[str, CallPlan] = {}
        self.built: dict[str, BuiltPlan] = {}
        self.runs_python = program.runs_members
        # Plans may draw random numbers in another order, and compiled code uses another generator; results
        # are then compared with fixed draws. With a seed per lane the draws are reproducible, and compared
        # too.
        seeded = any(kind == "rng" and arguments[i] is not None for i, (kind, _) in feeds)
        self.reordered = program.draws and not seeded
        self.elsewhere = any(_is_tensor(a) and memory_id(a) is not None for a in arguments)
        self.refused: dict[str, str] = {}

    @property
    def key(self) -> tuple[Any, ...]:
        """Cache key of the decision: everything it depends on."""
        tensors = [(tuple(a.shape), str(a.dtype), a.requires_grad) for a in self.arguments if _is_tensor(a)]
        config = self.config
        compiled = (config.compile_mode, config.backend) if config.compile else ()
        forced = sorted(config.strategies.items())
        return (*circumstances(self.cuda), self.graph.code, tensors, self.n, self.gradients, compiled, forced)

    @outside_traces
    def choose(self) -> Tuned:
        if self.elsewhere:
            return self._there()
        plan = self._forced()
        if plan is not None:
            return self._tuned(plan, SET)
        why = self._why_not()
        if why:
            return self._tuned(CallPlan(compiled=self.config.compile), why)
        self.own_arguments = private_copies(self.arguments, self.written)
        reference = self._candidate(WIDE)
        records = self.config.compile and self.cuda
        wrap = recorded if records else None
        # Recordings run without autocast's cache, and torch.compile would compile anew for them.
        mode = uncached_autocast() if records else nullcontext()
        with StatusLine("wide_compiler: measuring") as self.status, mode:
            try:
                with Contest(reference, self.gradients, self.cuda, self.reordered, wrap=wrap) as self.contest:
                    return self._remembered() or self._measured()
            except torch.cuda.OutOfMemoryError:
                self.built.clear()
                torch.cuda.empty_cache()
                plan = CallPlan(compiled=True, taken=self._for_compiler({})) if self.config.compile else WIDE
                return self._tuned(plan, "not measured: the candidates do not fit in memory together")
            except Exception as error:  # fall back; a faulty call raises its own error when run
                return self._tuned(WIDE, f"not measured: {one_line(error)}")

    def _why_not(self) -> str:
        """Return why nothing is measured; '' if plans are measured."""
        if self.runs_python:
            return "not measured: modules that run as Python would be run too often"
        if not self.config.tune_seconds:
            return "tuning is off"
        return "not measured: a CUDA graph is being recorded" if capturing() else ""

    def _there(self) -> Tuned:
        """Choose for arguments outside this process: run the whole graph there as one call if possible."""
        tuned = self._tuned(WIDE, "not measured: the lanes are on workers and run op by op")
        if self.runs_python or self.reordered:
            return tuned  # one generator draws for all lanes
        lanes = [has_lanes(self.graph, kind, key) for kind, key in self.graph.feeds]
        runner = lane_runner(self.graph, lanes, self.arguments, self.n)
        if runner is not None:
            tuned.run, tuned.why = Whole(runner), "the lanes are on workers: one call for all of them"
        return tuned

    def _forced(self) -> CallPlan | None:
        if self.config.chunk_lanes and self.config.chunk_lanes < self.n:
            return CallPlan(f"{CHUNKS}{self.config.chunk_lanes}", compiled=self.config.compile)
        if self.config.strategies.get("*") == "loop" and self.can_split:
            return CallPlan("loop", compiled=self.config.compile)
        return CallPlan(compiled=self.config.compile) if self.config.strategies else None

    def _tuned(self, plan: CallPlan, why: str, ms: dict[str, float] | None = None) -> Tuned:
        built = self.built.get(str(plan)) or self.plan_builder.build(plan)
        run: Any = built.way
        if self.config.compile and self.cuda and not self.gradients and not self.runs_python:
            run = Replay(built.way, self.arguments, self.inputs)
        return Tuned(run, built.graph, plan, why, built.channels_last, ms or {}, self.refused)

    def _candidate(self, plan: CallPlan) -> Candidate:
        """Build a plan. Raise KeyError or ValueError if this graph cannot run it."""
        label = str(plan)
        built = self.built.get(label) or self.plan_builder.build(plan)
        self.built[label], self.plans[label] = built, plan
        arguments = list(self.own_arguments)
        for i in built.channels_last:
            arguments[i] = leaf_like(arguments[i], channels_last(arguments[i].detach()).detach())
        leaves = [a for a in arguments if _is_tensor(a) and a.requires_grad]
        written = [Written(arguments, i) for i in self.written]
        return Candidate(partial(built.way, arguments), leaves, written, private=True)

    def _remembered(self) -> Tuned | None:
        def build(label: str, recipe: Any) -> Candidate:
            plan = CallPlan.read(recipe)
            if plan.way != "wide" and not self.can_split:
                raise ValueError(f"{label} splits lanes that stay together")
            return self._candidate(plan)

        decision = self.contest.recall(self.key, build, self.config.tune_seconds)
        if decision is None:
            return None
        return self._tuned(self.plans[decision.name], decision.why, decision.ms)

    def _measured(self) -> Tuned:
        contest = self.contest
        try:
            contest.expect()
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            plan = LOOP if self.can_split else WIDE
            return self._tuned(plan, "all lanes at once do not fit in memory")
        if self.config.compile and self.cuda:
            start_compile_workers()
        self.call_seconds = contest.once(contest.reference)
        self.seconds = budget(self.call_seconds, self.config.tune_seconds)
        if self.config.compile:  # compile time dwarfs a few more measurements
            self.seconds = min(self.config.tune_seconds, max(0.25, 10 * self.seconds))
        plan = self._search()
        plain = PLAINEST
        if self.config.compile:
            plain = [str(plan)]
            plan = self._search_compiled(plan)
        recipes = {label: asdict(plan) for label, plan in self.plans.items()}
        decision = contest.conclude(self.key, str(plan), plain, recipes, self._fastest_of_each_kind())
        return self._tuned(plan, decision.why, decision.ms)

    def _search(self) -> CallPlan:
        """Time each strategy everywhere and at single sites, then combine the fastest of each site."""
        everywhere, alone = self.plan_builder.alternatives()
        chunkings = self.plan_builder.chunkings() if self.can_split else []
        if len(everywhere) + len(alone) > self._affordable(0.5):
            everywhere, alone = self._by_site(), []
        self._time([WIDE, *([LOOP] if self.can_split else []), *everywhere, *chunkings], 0.5)
        # So slow everywhere that they are not tried at single sites.
        seconds, limit = self.contest.seconds, HOPELESS * self._took(WIDE)
        slow = [plan for plan in everywhere if seconds.get(str(plan), 0.0) > limit]
        hopeless = {strategy for plan in slow for strategy in plan.taken.values()}
        alone = [plan for plan in alone if hopeless.isdisjoint(plan.taken.values())]
        if len(self.plan_builder.sites) > 1 and alone:
            self._time([WIDE, *alone], 0.3)
        taken: dict[str, str] = {}
        for plan in sorted(alone, key=self._took, reverse=True):
            if beats(self._took(plan), self._took(WIDE)):
                taken |= plan.taken  # sorted slowest first: the fastest plan of a site wins
        fastest = min(everywhere, key=self._took, default=WIDE)
        chunks = min(chunkings, key=self._took, default=WIDE)
        together = [CallPlan(taken=taken)]
        if beats(self._took(chunks), self._took(WIDE)):
            together += [CallPlan(chunks.way, fastest.taken), CallPlan(chunks.way, taken)]
        tried = {*self.contest.seconds, *self.refused}
        new = [plan for plan in together if str(plan) not in tried]
        if new:
            self._time([WIDE, fastest, *new], 0.2)
        # The fastest of many by a few samples may be noise, so the best plans are timed again for longer.
        contenders = sorted([*everywhere, *alone, *together, *chunkings], key=self._took)[:2]
        contenders = [plan for plan in contenders if self._took(plan) < self._took(WIDE)]
        finalists = [WIDE, *contenders, *([LOOP] if self._took(LOOP) < 2 * self._took(WIDE) else [])]
        if len(finalists) > 1:
            self._time(finalists, 0.5, rounds=FINAL_ROUNDS)
        return self._best([WIDE, *contenders, LOOP], PLAINEST)

    def _by_site(self) -> list[CallPlan]:
        """Time the strategies of each op alone, for calls too slow to time per plan.

        Returns plans that combine the fastest strategies, with and without those that span several ops.
        """
        skip = UNTRIED[self.gradients]
        options = {"gradients": self.gradients, "cuda": self.cuda, "wrap": self.contest.wrap}
        options["reordered"] = self.reordered
        self.status.tick("ops one by one")
        times = SiteTimes(self.graph, 0.3 * self.seconds, skip, **options)
        with torch.set_grad_enabled(self.gradients):
            times.run(*self.own_arguments)
        spans = {CHAINS: "fused", JOINED: "joined"}
        together = [{site: how} for site, how in spans.items() if site in self.plan_builder.sites]
        fastest = [times.fastest] if times.fastest else []
        every = (*fastest, *together, *(times.fastest | taken for taken in together))
        return [CallPlan(taken=taken) for taken in every]

    def _search_compiled(self, best: CallPlan) -> CallPlan:
        """Time compiled plans: the best plan so far, and the loop unless wide is far ahead."""
        wide = best if best.way != "loop" else WIDE
        plans = [best, CallPlan(wide.way, self._for_compiler(wide.taken), compiled=True)]
        began = now()
        self._time(plans, 0.5, rounds=2 * FINAL_ROUNDS)
        # The fastest strategy op by op may be slower once ops are fused.
        fused = CallPlan(wide.way, self._for_compiler({}), compiled=True)
        if str(fused) != str(plans[-1]) and now() - began < COMPILES_SOON:
            plans.append(fused)
        if min(map(self._took, plans)) > FAR_AHEAD * self._took(LOOP):
            plans.append(CallPlan("loop", compiled=True))
        if len(plans) > 2:
            self._time(plans, 0.5, rounds=2 * FINAL_ROUNDS)
        return self._best(plans, [str(best)])

    def _for_compiler(self, taken: dict[str, str]) -> dict[str, str]:
        """Return the strategies worth compiling.

        Drops those that prevent fusion, and joins products, since the compiler fuses their copies.
        """
        sites = self.plan_builder.sites
        kept = {site: s for site, s in taken.items() if s not in BY_LANE or self.n <= MOST_TRACED}
        if not self.cuda:
            return kept
        kept = {k: s for k, s in kept.items() if sites[k].primitive not in FUSED or s not in SINGLE_OPS}
        return kept | ({JOINED: "joined"} if JOINED in sites else {})

    def _fastest_of_each_kind(self) -> list[str]:
        """Return the fastest compiled plan and the fastest other one.

        They are timed seconds apart, so a change of load between them says nothing about which is faster.
        """
        kinds: dict[bool, str] = {}
        for label in sorted(self.contest.seconds, key=self.contest.seconds.__getitem__):
            kinds.setdefault(self.plans[label].compiled, label)
        return list(kinds.values())

    def _best(self, plans: list[CallPlan], plain: list[str]) -> CallPlan:
        timed = {label: s for label in map(str, plans) if (s := self.contest.seconds.get(label)) is not None}
        return self.plans[winner(timed, plain)]

    def _took(self, plan: CallPlan) -> float:
        return self.contest.seconds.get(str(plan), float("inf"))

    def _affordable(self, share: float) -> int:
        """Return the number of plans that can be timed in a share of the budget."""
        return int(share * self.seconds / (3 * self.call_seconds))

    def _time(self, plans: list[CallPlan], share: float, rounds: int = 3) -> None:
        """Time the plans that run and give correct results, within a share of the budget."""
        seconds = share * self.seconds
        affordable = max(4 if rounds > 3 else 3, self._affordable(share))
        candidates: dict[str, Candidate] = {}
        for label, plan in {str(plan): plan for plan in plans}.items():
            if len(candidates) >= affordable and not plan.compiled:
                self.refused[label] = "no time left to try it"
                continue
            self.status.tick(label)
            candidate = self._candidate(plan)
            problem = self.contest.problem(candidate)
            if problem:
                self.refused[label] = problem
                continue
            candidates[label] = candidate
        self.contest.time(candidates, seconds, rounds, lambda _: self.status.tick())


def start_compile_workers() -> None:
    """Start torch.compile's worker processes. They need seconds, in which plans are timed uncompiled."""
    with suppress(ImportError):  # PyTorch starts them itself at the first compilation
        from torch._inductor.async_compile import maybe_warm_pool

        maybe_warm_pool()


def _is_tensor(argument: Any) -> bool:
    return isinstance(argument, Tensor)
