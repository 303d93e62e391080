"""Timing of strategies op by op.

Timing a strategy by whole calls needs one call per strategy and kind of op. For a large model that takes too
long, and the gain of one op is lost in noise. Instead the call runs once, node by node, and at the first op
of each kind (`site`) all strategies run on that op's inputs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, fx

from ..measure.compare import Incomparable
from ..measure.contest import Candidate, Contest
from ..measure.policy import beats
from ..widen import LaneGraph
from ..widen.builder import StrategyChoice


class SiteTimes(fx.Interpreter):
    """Interpreter that fills `fastest` with the best strategy of each site that gains from a change.

    The graph's nodes have a kind in `meta["site"]` and a `StrategyChoice` as an argument; strategies in
    `skip` are not tried; `options` are keyword arguments of each `Contest`.
    """

    def __init__(self, graph: LaneGraph, seconds: float, skip: Sequence[str], **options: Any):
        super().__init__(graph.module)
        sites = {node.meta["site"] for node in graph.module.graph.nodes if "site" in node.meta}
        self.seconds, self.skip, self.options = seconds / max(1, len(sites)), skip, options
        self.fastest: dict[str, str] = {}
        self.seen: set[str] = set()

    def run_node(self, n: fx.Node) -> Any:
        site = n.meta.get("site")
        if site is not None and site not in self.seen:
            self.seen.add(site)
            self._time(site, n.target, *self.fetch_args_kwargs_from_env(n))
        return super().run_node(n)

    def _time(self, site: str, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        own = next(a for a in args if isinstance(a, StrategyChoice))
        strategies = [own, *(s for s in own.choices if s != own and s not in self.skip)]
        if len(strategies) < 2:
            return
        leaves = [a.detach().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in args]
        candidates = {str(s): _candidate(op, leaves, kwargs, own, s) for s in strategies}
        with Contest(candidates[own], **self.options) as contest:
            try:
                right = {s: c for s, c in candidates.items() if s == own or not contest.problem(c)}
            except Incomparable:
                return
            contest.time(right, self.seconds)
        best = min(contest.seconds, key=contest.seconds.__getitem__)
        if beats(contest.seconds[best], contest.seconds[own]):
            self.fastest[site] = best


def _candidate(
    op: Callable, args: Sequence[Any], kwargs: dict[str, Any], own: StrategyChoice, strategy: str
) -> Candidate:
    forced = StrategyChoice.of(strategy, own.primitive, own.choices)
    taken = [forced if isinstance(a, StrategyChoice) else a for a in args]
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    return Candidate(partial(op, *taken, **kwargs), leaves)
