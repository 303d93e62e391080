"""Independent statements: begun together, taken in order."""

from typing import TYPE_CHECKING, Any

from ..pace import after
from ..proof.effects import Effect
from ..raising import raise_here
from .threads import Overlap, crowded, usable

if TYPE_CHECKING:
    from ..site import Site

CHEAP_CALLS = 64


class Started:
    """Statements under way. `take(i)` waits for statement i and gives its value, or raises what it raised."""

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


def start(site: "Site", thunks: tuple[Any, ...]) -> Started | None:
    """Begin all statements, if at least two of them wait and none does more than that."""
    functions = {f"thunk {i}": thunk for i, thunk in enumerate(thunks)}
    plan, _ = site._plan(functions, site.text.bodies, ())
    if plan.declined or plan.effect is Effect.PURE:
        if not plan.declined:
            plan.reason = "nothing in it waits"
        site._decline(plan)
        return None
    if not usable():
        site.went_plain()
        return None
    memory, config = plan.memory, site.config
    run = Overlap(lambda i: thunks[i](), len(thunks), config.max_workers)
    if config.measure and not memory.get("waits"):
        if not run.first_waits():
            run.wait_for(0)
            memory["cheap"] = memory.get("cheap", 0) + 1
            site.pace.ready = after(CHEAP_CALLS * memory["cheap"])
            site.went_plain()
            site.why = "its first statement does not wait long"
            return Started(run, thunks)
        memory["waits"] = True
        run.limit = len(thunks)
        run.start(min(len(thunks) - 1, config.max_workers) - 1)
    else:
        run.start(min(len(thunks), config.max_workers) - 1)
    site.took("threads")
    plan.last = "threads"
    return Started(run, thunks)
