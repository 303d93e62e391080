"""NumPy lanes at a map site: gather the items, run the body once, hand out the results."""

from itertools import repeat
from typing import Any

import numpy as np

from ..interrupts import raise_interrupt
from ..items import Blocks
from ..noticing import noticing
from ..proof.kinds import is_numpy_scalar
from ..work import Bail, Work
from .extremes import EXTREMES, settle
from .gather import NUMBERS, Room, chunks, gathered
from .lane import Diverge
from .parts import Parts


def able(work: Work) -> bool:
    """Is any loop variable an array or a number?"""
    for column in work.items.columns:
        kind = type(column[0])
        lanes = kind is np.ndarray or kind in NUMBERS or is_numpy_scalar(kind)
        if lanes and not (work.site.config.exact and _floating(column[0])):
            return True
    return False


def _floating(value: Any) -> bool:
    return type(value) is float or getattr(getattr(value, "dtype", None), "kind", "i") in "fc"


def vectorized(work: Work) -> list[Any]:
    """The values of all items, in order. Raises `Bail`."""
    noticed: list[str] = []
    values: list[Any] = []
    rooms: list[Room] = [{} for _ in work.items.columns]
    parts = Parts(work)
    why: str | None = None
    try:
        with noticing(noticed):
            for start, stop in chunks(work):
                columns = list(map(gathered, work.items.columns, repeat(start), repeat(stop), rooms))
                part = parts.values(columns, stop - start)
                if noticed:
                    raise Bail(f"{noticed[0]} in an item")
                if values:
                    values += part
                else:
                    values = part
    except Bail as bail:
        why = str(bail)
    except Diverge:
        why = "items take too many different ways"
    except Exception as error:
        raise_interrupt(error)
        why = f"{type(error).__name__}: {error}"
    if why is not None:  # out here, so that it keeps nothing of what was raised
        raise Bail(why)
    if work.site.text.eater in EXTREMES:
        settle(work, values)
    parts.done()
    if work.after is not None and parts.handout.blocks:
        work.after.append(Blocks(values, parts.handout.blocks))
    return values
