"""Compare the results of sites with plain Python: for `check=True`, and for user-defined strategies."""

from typing import Any

from ..errors import ArgumentError, ValidationError
from .comparison import same
from .independent import marked_in
from .work import Failed, Miss, Work


class Mismatch(ValidationError):
    """Raised with `check=True` if a site's result differs from plain Python."""


def check(work: Work, values: list[Any]) -> None:
    """Run all items in plain Python and compare.

    Skipped if the items call functions marked independent, since those may write and must run once.

    Raises:
        Mismatch: the results differ.
    """
    if marked_in(work.plan):
        return
    plain = [v for i in range(work.items.n) for v in work.one(i)]
    if not same(plain, values, rtol=work.plan.rtol):
        site = work.site
        raise Mismatch(
            f"{site.file}:{site.text.line}: {site.text.text}: plain Python gives {plain!r:.200}, "
            f"{work.plan.last} gives {values!r:.200}"
        )


def run_own(work: Work) -> Any:
    """Run the items with a user-defined strategy.

    Returns:
        The list of values, or the strategy's `Miss`.

    Raises:
        Failed: the strategy raised an exception.
        ArgumentError: the result is not a list with a value per item.
    """
    name, n = work.plan.strategy.name, work.items.n
    try:
        values = work.plan.strategy.run(work)
    except Exception as error:
        raise Failed([], error) from None
    if isinstance(values, Miss):
        return values
    for_each = work.cond is None and not work.events
    if not isinstance(values, list) or (for_each and len(values) != n):
        raise ArgumentError(f"the strategy {name!r} must return a list of {n} values, got {values!r:.80}")
    work.plan.last = name
    work.site.took(name)
    return values
