"""What became of each site, line by line: what was done, and why not more."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .jit import Runtime


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


def _row(text: Any, site: Any) -> Row:
    if site is None or text.reason:
        return Row(text.line, text.kind, text.text, "as written", "", "", text.reason)
    plan = site.plans[0] if site.plans else None
    ran = {name: count for name, count in site.counts.items() if name != "plain"}
    if ran:
        done = ", ".join(f"{name} ({count} call{'s' * (count > 1)})" for name, count in ran.items())
    else:
        done = "plain" if site.counts or plan else "not called yet"
    effect = plan.effect.name if plan else ""
    strategy = plan.strategy.name if plan and not plan.declined else ""
    return Row(text.line, text.kind, text.text, done, effect, strategy, _why(site, plan))


def _why(site: Any, plan: Any) -> str:
    if plan is None:
        return site.why
    if plan.declined:
        where = f" (line {plan.line})" if plan.line else ""
        return f"{plan.reason}{where}"
    reasons = [f"{name}: {r.why_not}" for name, r in plan.ledger.records.items() if r.why_not]
    if reasons:
        return "; ".join(reasons)
    if plan.last != "plain" or plan.ledger.plain_item is None:
        return site.why
    tried = any(record.looks for record in plan.ledger.records.values())
    return "the plain loop is as fast" if tried else "there is too little to gain so far"
