"""Independent statements: begun together, taken in order."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..pace import LONGEST
from ..proof.effects import Effect
from ..raising import raise_here
from .threads import Overlap, crowded, usable

if TYPE_CHECKING:
    from ..plan import Plan
    from ..site import Site

CHEAP_CALLS = 64


class Started:
    """Statements under way. `take(i)` waits for statement i and gives its value, or raises what it raised."""

    plain = False

    def __init__(self, overlap: Overlap, thunks: tuple[Any, ...]):
        self.overlap = overlap
        self.thunks = thunks

    def take(self, i: int) -> Any:
        run = self.overlap
        if not run.wait_for(i):
            return self.thunks[i]()  # never begun: it runs here and now
        if i in run.errors:
            run.finish()
            if crowded(run.errors[i]):
                return self.thunks[i]()
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
    """All of them, if at least two wait."""
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
    if config.measure and not memory.get("waits"):
        if not run.first_waits():
            run.wait_for(0)
            memory["cheap"] = memory.get("cheap", 0) + 1
            site.pace.pause(CHEAP_CALLS * memory["cheap"], LONGEST)
            site.went_plain("its first statement does not wait long")
            return Started(run, thunks)
        memory["waits"] = True
        run.limit = len(thunks)
        run.start(min(len(thunks) - 1, config.max_workers) - 1)
    else:
        run.start(min(len(thunks), config.max_workers) - 1)
    site.took("threads")
    plan.last = "threads"
    return Started(run, thunks)
