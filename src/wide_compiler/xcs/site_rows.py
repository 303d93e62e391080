"""Explanations: how each site ran, line by line, and why not faster."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..explain import Explanation, Row
from .costs import TOO_LITTLE
from .independent import marked_in
from .proof.effects import Effect
from .site import TRACED, Site
from .text.site_text import INTRODUCED

if TYPE_CHECKING:
    from .jit import Runtime
    from .plan import Plan


@dataclass
class SiteRow(Row):
    """One site, or one place in the source that cannot be a site."""

    line: int = 0
    text: str = ""
    over: str = ""  # the loop variables that are read
    effect: str = ""
    strategy: str = ""
    site: bool = True  # False if the source text rules out a site here

    def more(self) -> dict[str, str]:
        shown = {"text": self.text, "over": self.over}
        return {**shown, "effect": self.effect.lower(), "strategy": self.strategy}


def explained(runtime: "Runtime") -> Explanation:
    """Return the explanation of all sites of a function."""
    sites = {site.text.index: site for site in runtime.sites}
    rows = [_row(text, sites.get(text.index)) for text in runtime.texts]
    name, note = runtime.original.__name__, ""
    if not rows:
        note = f"has no loops or independent statements; vmap({name}) maps it over a batch"
    return Explanation(rows, "", runtime.original.__qualname__, note)


def by_site(sites: Iterable[Site]) -> dict[str, dict[str, int]]:
    """Return the number of calls of each rung, by line and text of the site. Duplicate keys get a number."""
    found: dict[str, dict[str, int]] = {}
    for site in sites:
        if not site.text.reason:
            text = f"line {site.text.line}: {site.text.text}"
            names = [text, *(f"{text} ({number})" for number in range(2, len(found) + 2))]
            found[next(name for name in names if name not in found)] = site.calls
    return found


def _row(text: Any, site: Site | None) -> SiteRow:
    row = SiteRow(f"line {text.line}", text.kind, "loop", text.reason, line=text.line, text=text.text)
    if site is None or text.reason:
        row.site = False
        return row
    plan = site.plans[0] if site.plans else None
    ran = [f"{name} ({n} call{'s' * (n > 1)})" for name, n in site.calls.items() if name != "plain"]
    row.how = ", ".join(ran) or ("loop" if site.calls or plan else "not run")
    row.why = TRACED if text.index in site.runtime.traced else _why(site, plan)
    if plan is not None:
        row.effect = plan.effect.name
        if not plan.declined:
            row.strategy = plan.strategy.name
            axes = (axis.removeprefix(INTRODUCED) for axis in plan.info.data_parallel_axes)
            row.over = ", ".join(sorted(axes))
            marked = ", ".join(marked_in(plan))
            marked = f"{marked} marked as independent by the user" if marked else ""
            row.why = "; ".join(filter(None, [marked, row.why]))
    return row


def _why(site: Site, plan: "Plan | None") -> str:
    if plan is None:
        return site.why
    if plan.declined:
        return plan.reason + (f" (line {plan.line})" if plan.line else "")
    records = plan.costs.records
    reasons = [f"{name}: {record.why_not}" for name, record in records.items() if record.why_not]
    if site.why or reasons or plan.last != "plain":
        return site.why or "; ".join(reasons)
    config, waits, can_vmap = site.config, plan.effect is Effect.IO, plan.info.can_vmap
    user_defined = bool(config.analyzer or config.selector)
    left = waits or plan.strategy.name == "sequential" or not can_vmap
    causes = (
        (waits and config.max_workers == 1, "max_workers=1 allows no overlapping calls"),
        (config.exact and can_vmap, "exact=True excludes operators that round differently in a batch"),
        (any(record.signatures for record in records.values()), "the loop is as fast"),
        (user_defined and left, "Config.analyzer or Config.selector chose the loop"),
        (waits, ""),
        (not plan.info.data_parallel_axes, "the body does not read the loop variable"),
        (not can_vmap, "nothing to vectorise: the items are not arrays, tensors, numbers or modules"),
        (not config.measure, "the items cannot be stacked"),
    )
    return next((why for holds, why in causes if holds), TOO_LITTLE)
