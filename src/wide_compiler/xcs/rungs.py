"""The rungs of the ladder: ways to run all items of a site, from one wide call down to threads."""

from typing import Any

from .lanes import run as numpy_lanes
from .modules import group, torch_vmap
from .parallel import computing, overlap, threads
from .proof.effects import Effect
from .work import Miss, Work


class Rung:
    """One way. `applies` asks for what is proven, `worth_a_try` for what may be gained."""

    name = "rung"
    replayable = True
    few_items = False  # may pay for two items already
    splits = True  # can run some of the items alone

    def applies(self, work: Work) -> bool:
        raise NotImplementedError

    def worth_a_try(self, work: Work, plain_seconds: float) -> bool:
        raise NotImplementedError

    def at_best(self, plain_seconds: float) -> float:
        """What it could take if all goes well: a rung that was never tried must have a chance."""
        return 0.0

    def run(self, work: Work) -> list[Any] | Miss:
        """The values of all items in order. Raises `Bail`."""
        raise NotImplementedError


class Vectorized(Rung):
    """All items in one call. What cannot go on that way raises `Bail`, which the body must not swallow."""

    def applies(self, work: Work) -> bool:
        return work.plan.info.can_vmap and self.able(work) and not self._swallowed(work)

    def able(self, work: Work) -> bool:
        raise NotImplementedError

    @staticmethod
    def _swallowed(work: Work) -> bool:
        return work.plan.texts.may_try_for_ever


SHORT = 4e-7  # an item that takes less is as fast in the loop as on the way to NumPy and back
AT_ONCE = 2e-2  # a loop that takes longer is tried on its first call, at a price that is small beside that


class NumpyLanes(Vectorized):
    """One NumPy operator over arrays or numbers of one shape: a leading lane axis."""

    name = "numpy lanes"

    def able(self, work: Work) -> bool:
        return True  # what the items are is known: `can_vmap`

    def worth_a_try(self, work: Work, plain_seconds: float) -> bool:
        ledger = work.plan.ledger
        if ledger.plain_item < SHORT:
            return False
        if ledger.of(self.name).looks:
            return plain_seconds > 3e-5
        gained = plain_seconds > AT_ONCE or (plain_seconds > 5e-5 and ledger.spent > 5e-3)
        return gained and ledger.plain_item < 3e-4

    def run(self, work: Work) -> list[Any]:
        return numpy_lanes.vectorized(work)


class TorchVmap(Vectorized):
    """One PyTorch function or module over tensors of one shape: `torch.func.vmap`."""

    name = "torch vmap"

    def able(self, work: Work) -> bool:
        return torch_vmap.able(work)

    def worth_a_try(self, work: Work, plain_seconds: float) -> bool:
        ledger = work.plan.ledger
        if ledger.of(self.name).looks:
            return plain_seconds > 2e-4
        return plain_seconds > AT_ONCE or (plain_seconds > 4e-4 and ledger.spent > 1e-2)

    def run(self, work: Work) -> list[Any]:
        return torch_vmap.mapped(work)


class WideModels(Vectorized):
    """Distinct modules of one architecture: lanes of one graph, as the routers run them."""

    name = group.NAME
    few_items = True
    splits = False

    def able(self, work: Work) -> bool:
        return group.able(work)

    def worth_a_try(self, work: Work, plain_seconds: float) -> bool:
        return group.paid_for(work, plain_seconds)

    def run(self, work: Work) -> list[Any]:
        return group.widened(work)


class Threads(Rung):
    """Several items at a time: those that wait, and those that compute where another core is of use. They
    are the items as written, so there is nothing to compare with the plain loop."""

    name = computing.NAME
    replayable = False
    few_items = True

    def applies(self, work: Work) -> bool:
        plan = work.plan
        if plan.effect is Effect.PURE:
            return plan.info.can_pmap and computing.able(work)
        return plan.info.can_parallelize and threads.usable(work.site.config.max_workers)

    def worth_a_try(self, work: Work, plain_seconds: float) -> bool:
        if work.plan.effect is Effect.PURE:
            return computing.pays(work)
        ledger = work.plan.ledger
        return ledger.idle_item > max(threads.CHEAP / 4, 0.5 * ledger.plain_item)

    def run(self, work: Work) -> list[Any] | Miss:
        return computing.computed(work) if work.plan.effect is Effect.PURE else overlap.overlapped(work)


VECTORIZED: tuple[Rung, ...] = (WideModels(), TorchVmap(), NumpyLanes())
PARALLEL: tuple[Rung, ...] = (Threads(),)
