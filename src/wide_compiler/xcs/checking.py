"""Is what a site gave what it shall give? Asked with `check`, and of strategies that are somebody's own."""

from typing import Any

from ..errors import ArgumentError, ValidationError
from .independent import marked_in
from .oracle import same
from .work import Miss, Work


class Mismatch(ValidationError):
    """With `check`: a site gave something other than plain Python."""


def check(work: Work, values: list[Any]) -> None:
    """Run all items plainly too, and compare; not if they call what may write, which is done once."""
    if marked_in(work.plan):
        return
    plain = [v for i in range(work.items.n) for v in work.one(i)]
    if not same(plain, values, rtol=work.plan.rtol):
        site = work.site
        raise Mismatch(
            f"{site.file}:{site.text.line}: {site.text.text}: plain Python gives {plain!r:.200}, "
            f"{work.plan.last} gives {values!r:.200}"
        )


def took_own(work: Work, values: Any) -> None:
    """A strategy that is none of ours has run: it has not said so, and may have forgotten items."""
    if isinstance(values, Miss):
        return
    name, n = work.plan.strategy.name, work.items.n
    for_each = work.cond is None and not work.events
    if not isinstance(values, list) or (for_each and len(values) != n):
        raise ArgumentError(f"the strategy {name!r} must give a list of {n} values, got {values!r:.80}")
    work.plan.last = name
    work.site.took(name)
