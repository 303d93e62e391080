"""What became of each site, line by line: what was done, and why not more."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..explain import Explanation, Row
from .independent import marked_in
from .proof.effects import Effect

if TYPE_CHECKING:
    from .jit import Runtime
    from .plan import Plan
    from .site import Site


@dataclass
class SiteRow(Row):
    """One site, or one place that could not be one. `how`: 'loop', or the rungs that ran it, how often."""

    line: int = 0
    text: str = ""
    effect: str = ""
    strategy: str = ""
    site: bool = True  # False: the text says that it cannot be one

    def more(self) -> dict[str, str]:
        return {"text": self.text, "effect": self.effect.lower(), "strategy": self.strategy}


def explained(runtime: "Runtime") -> Explanation:
    """What became of each site of a function."""
    sites = {site.text.index: site for site in runtime.sites}
    rows = [_row(text, sites.get(text.index)) for text in runtime.texts]
    note = "" if rows or runtime.why else "has no loops, comprehensions or independent statements"
    return Explanation(rows, runtime.why, runtime.original.__qualname__, note)


def by_site(sites: Iterable["Site"]) -> dict[str, dict[str, int]]:
    """The calls of each rung, by line and text of the site; a second one that reads the same has a number."""
    found: dict[str, dict[str, int]] = {}
    for site in sites:
        if site.text.reason:
            continue
        name = text = f"line {site.text.line}: {site.text.text}"
        for number in itertools.count(2):
            if name not in found:
                break
            name = f"{text} ({number})"
        found[name] = site.calls
    return found


def _row(text: Any, site: "Site | None") -> SiteRow:
    row = SiteRow(f"line {text.line}", text.kind, "loop", text.reason, line=text.line, text=text.text)
    if site is None or text.reason:
        row.site = False
        return row
    plan = site.plans[0] if site.plans else None
    calls = site.calls
    ran = {name: count for name, count in calls.items() if name != "plain"}
    if ran:
        row.how = ", ".join(f"{name} ({count} call{'s' * (count > 1)})" for name, count in ran.items())
    elif not calls and not plan:
        row.how = "not run"
    row.effect = plan.effect.name if plan else ""
    row.strategy = plan.strategy.name if plan and not plan.declined else ""
    row.why = _why(site, plan)
    marked = marked_in(plan) if plan is not None and not plan.declined else []
    if marked:
        mark = f"{', '.join(marked)} marked as independent by the user"
        row.why = f"{mark}; {row.why}" if row.why else mark
    return row


def _why(site: "Site", plan: "Plan | None") -> str:
    if plan is None:
        return site.why
    if plan.declined:
        where = f" (line {plan.line})" if plan.line else ""
        return f"{plan.reason}{where}"
    reasons = [f"{name}: {r.why_not}" for name, r in plan.ledger.records.items() if r.why_not]
    if site.why or reasons or plan.last != "plain":
        return site.why or "; ".join(reasons)
    config, tried = site.config, any(record.looks for record in plan.ledger.records.values())
    if plan.effect is Effect.IO and config.max_workers == 1:
        return "max_workers=1 lets one call wait at a time"
    if config.exact and plan.info.can_vmap:
        return "exact=True keeps floating point numbers in the loop"
    if not config.measure:
        return "no rung takes it"
    return "the loop is as fast" if tried else "there is too little to gain so far"
