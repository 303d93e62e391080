"""The rungs of the ladder: ways to run all items of a site, from one wide call down to threads and processes."""

from typing import Any

from .effects import Effect
from .work import Miss, Work


class Bail(BaseException):
    """A fast path cannot go on; the plain loop decides. No `except Exception` of a user's function hides it."""


class Rung:
    """One way. `applies` asks for what is proven, `worth_a_try` for what may be gained."""

    name = "rung"
    replayable = True
    few_items = False  # may pay for two items already

    def applies(self, work: Work) -> bool:
        raise NotImplementedError

    def worth_a_try(self, work: Work, plain_seconds: float) -> bool:
        raise NotImplementedError

    def run(self, work: Work) -> list[Any] | Miss:
        """The values of all items in order. Raises `Bail`."""
        raise NotImplementedError


class NumpyLanes(Rung):
    """One NumPy operator over arrays or numbers of one shape: a leading lane axis."""

    name = "numpy lanes"

    def applies(self, work: Work) -> bool:
        from .vectorize import able

        return work.plan.effect is Effect.PURE and able(work)

    def worth_a_try(self, work: Work, plain_seconds: float) -> bool:
        ledger = work.plan.ledger
        if ledger.of(self.name).verified:
            return plain_seconds > 3e-5
        gained = plain_seconds > 5e-3 or (plain_seconds > 5e-5 and ledger.spent > 5e-3)
        return gained and (ledger.plain_item or 0) < 3e-4

    def run(self, work: Work) -> list[Any]:
        from .vectorize import vectorized

        return vectorized(work)


class TorchVmap(Rung):
    """One PyTorch function or module over tensors of one shape: `torch.func.vmap`."""

    name = "torch vmap"

    def applies(self, work: Work) -> bool:
        from .torch_vmap import able

        return work.plan.effect is Effect.PURE and able(work)

    def worth_a_try(self, work: Work, plain_seconds: float) -> bool:
        ledger = work.plan.ledger
        if ledger.of(self.name).verified:
            return plain_seconds > 2e-4
        return plain_seconds > 5e-3 or (plain_seconds > 4e-4 and ledger.spent > 1e-2)

    def run(self, work: Work) -> list[Any]:
        from .torch_vmap import mapped

        return mapped(work)


class WideModels(Rung):
    """Distinct modules of one architecture: the wide model of this library."""

    name = "wide model"
    few_items = True

    def applies(self, work: Work) -> bool:
        from .wide import able

        return work.plan.effect is Effect.PURE and able(work)

    def worth_a_try(self, work: Work, plain_seconds: float) -> bool:
        from .wide import paid_for

        return paid_for(work, plain_seconds)

    def run(self, work: Work) -> list[Any]:
        from .wide import widened

        return widened(work)


class Threads(Rung):
    """What waits: threads."""

    name = "threads"
    replayable = False
    few_items = True

    def applies(self, work: Work) -> bool:
        from .threads import in_worker

        return work.plan.effect is Effect.IO and not in_worker()

    def worth_a_try(self, work: Work, plain_seconds: float) -> bool:
        return True

    def run(self, work: Work) -> list[Any] | Miss:
        from .overlap import overlapped

        return overlapped(work)


class Processes(Rung):
    """What computes, and can be sent elsewhere: processes, or Ray where one is connected."""

    name = "processes"
    few_items = True

    def applies(self, work: Work) -> bool:
        from .processes import able

        return work.plan.effect is Effect.PURE and work.site.config.measure and able(work)

    def worth_a_try(self, work: Work, plain_seconds: float) -> bool:
        from .processes import pays

        return pays(work, plain_seconds)

    def run(self, work: Work) -> list[Any]:
        from .processes import distributed

        return distributed(work)


VECTORIZED: tuple[Rung, ...] = (WideModels(), TorchVmap(), NumpyLanes())
PARALLEL: tuple[Rung, ...] = (Threads(), Processes())
