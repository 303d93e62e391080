"""What became of each site, line by line: what was done, and why not more."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .proof.effects import Effect

if TYPE_CHECKING:
    from .jit import Runtime
    from .plan import Plan
    from .site import Site


@dataclass
class Row:
    """One site, or one place that could not be one."""

    line: int
    kind: str
    text: str
    done: str  # 'not called yet', 'plain', or the rungs that ran it with how often
    effect: str
    strategy: str
    why: str

    @property
    def fast(self) -> bool:
        return self.done not in ("plain", "not called yet", "as written")


@dataclass
class Explanation:
    """Rows by line; `why` where the whole function runs as it is."""

    name: str
    rows: list[Row]
    why: str = ""

    @classmethod
    def of(cls, runtime: "Runtime") -> "Explanation":
        sites = {site.text.index: site for site in runtime.sites}
        rows = [_row(text, sites.get(text.index)) for text in runtime.texts]
        return cls(runtime.original.__qualname__, rows, runtime.why)

    def __str__(self) -> str:
        if self.why:
            return f"{self.name} runs as it is: {self.why}"
        if not self.rows:
            return f"{self.name} has no loops, comprehensions or independent statements"
        lines = [self.name]
        for row in self.rows:
            lines.append(f"  line {row.line}: {row.text}")
            facts = [row.done, row.effect.lower(), row.strategy]
            lines.append("    " + ", ".join(f for f in facts if f) + (f": {row.why}" if row.why else ""))
        return "\n".join(lines)


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


def _row(text: Any, site: "Site | None") -> Row:
    if site is None or text.reason:
        return Row(text.line, text.kind, text.text, "as written", "", "", text.reason)
    plan = site.plans[0] if site.plans else None
    calls = site.calls
    ran = {name: count for name, count in calls.items() if name != "plain"}
    if ran:
        done = ", ".join(f"{name} ({count} call{'s' * (count > 1)})" for name, count in ran.items())
    else:
        done = "plain" if calls or plan else "not called yet"
    effect = plan.effect.name if plan else ""
    strategy = plan.strategy.name if plan and not plan.declined else ""
    return Row(text.line, text.kind, text.text, done, effect, strategy, _why(site, plan))


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
        return "exact=True keeps floating point numbers in the plain loop"
    if not config.measure:
        return "no rung takes it"
    if plan.ledger.plain_item is None and plan.effect is Effect.PURE:
        return ""
    return "the plain loop is as fast" if tried else "there is too little to gain so far"
