"""Independent statements: started together, their values taken in order."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..proof.effects import Effect
from ..reraise import raise_here
from ..schedule import LONGEST
from .overlap import may_repeat
from .threads import Overlap, usable

if TYPE_CHECKING:
    from ..plan import Plan
    from ..site import Site

CHEAP_CALLS = 64


class Started:
    """Statements in progress. `take(i)` waits for statement i and gives its value, or raises its error."""

    plain = False

    def __init__(self, overlap: Overlap, statements: "Statements"):
        self.overlap = overlap
        self.statements = statements

    def take(self, i: int) -> Any:
        run, thunk = self.overlap, self.statements.thunks[i]
        if not run.wait_for(i):
            return thunk()  # it was not started
        if i in run.errors:
            run.finish()
            if may_repeat(run.errors[i], self.statements.plan):
                return thunk()
            raise_here(run.errors[i])
        return run.results.pop(i)

    def over(self) -> None:
        """All of them were taken."""


@dataclass
class Statements:
    """Independent statements of a site, as functions without arguments, and what is proven about them."""

    site: "Site"
    plan: "Plan"
    thunks: tuple[Any, ...]


def begun(statements: Statements) -> Started | None:
    """Start all of them, if the first one waits."""
    site, plan, thunks = statements.site, statements.plan, statements.thunks
    if plan.effect is Effect.PURE:
        plan.reason = "nothing in it waits"
        site.decline(plan)
        return None
    memory, config = plan.memory, site.config
    if not usable(config.max_workers):
        site.went_plain("max_workers=1 lets one call wait at a time" if config.max_workers == 1 else "")
        return None
    run = Overlap(lambda i: thunks[i](), len(thunks), config.max_workers)
    threads = min(len(thunks), config.max_workers) - 1
    if config.measure and not memory.get("waits"):
        if not run.first_waits():
            run.wait_for(0)
            memory["cheap"] = memory.get("cheap", 0) + 1
            site.schedule.pause(CHEAP_CALLS * memory["cheap"], LONGEST)
            site.went_plain("its first statement does not wait long")
            return Started(run, statements)
        memory["waits"], run.limit = True, len(thunks)
        threads -= 1  # one of them runs the first statement
    run.start(threads)
    site.took("threads")
    plan.last = "threads"
    return Started(run, statements)
