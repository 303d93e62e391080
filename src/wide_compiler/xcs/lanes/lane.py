"""Lane: one value per item, computed on all at once. It stands for an array, a NumPy scalar or a Python
number.

`data` is `[n, ...]`, the lane axis first; `kind` says what the item's own value is: 'array', 'np' (a NumPy
scalar), 'float', 'int' or 'bool'. Whatever cannot be done exactly as Python or NumPy would do it for one item
raises `Bail`; a truth that differs between lanes raises `Diverge`, and the lanes are run in two groups.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..work import Bail
from .lane_errors import Bound, error_of
from .lane_tape import Tape, aligned

PYTHON = {"float": float, "int": int, "bool": bool}
SAFE_INT = 2**62
EXACT_FLOAT = 2**53
COMPUTING = "?bhilqBHILQefdFD"  # dtypes of plain numbers; units, texts and records have rules of their own
MARGIN = 4.0  # times as far as rounding may have moved them, numbers must be from each other


class Diverge(BaseException):
    """Lanes disagree about a truth; `mask` tells them apart."""

    def __init__(self, mask: np.ndarray):
        super().__init__()
        self.mask = mask


class Trace:
    """What happened while lanes were run: a bail-out that a user's `except:` may have swallowed, how many
    arrays were made, and every step that other parts can take as well."""

    def __init__(self, columns: int = 0) -> None:
        # Makes that bail-out. One that was raised would hold the frames it went through, and they this.
        self.stopped: Callable[[], BaseException] | None = None
        self.arrays = 0
        self.written = False  # into an array: bounds of rounding were for what it held before
        self.tainted = False  # with rounded numbers: any array may have become rounded by it
        self.tape = Tape(columns)
        self.rounds = 0  # of `while` loops

    def wrote(self, approx: bool = False) -> None:
        """Something was written into an array, rounded numbers perhaps."""
        self.tape.broken = self.written = True
        self.tainted = self.tainted or approx


def bail(reason: str, trace: Trace | None) -> BaseException:
    if trace is not None and trace.stopped is None:
        trace.stopped = functools.partial(Bail, reason)
    return Bail(reason)


class Lane:
    """See the module. `fresh` data shares no memory with an input; `approx` data may differ in the last
    digits."""

    __slots__ = ("data", "error", "fresh", "kind", "nonnegative", "place", "rounded", "trace")
    __array_priority__ = 1000

    def __init__(
        self,
        data: np.ndarray,
        kind: str,
        trace: Trace | None,
        fresh: bool = True,
        approx: bool = False,
        taped: bool = False,
    ):
        self.data = data
        self.kind = kind
        self.trace = trace
        self.fresh = fresh
        self.rounded = approx
        self.nonnegative = False  # never, and zero exactly where that of one item is: of rounded numbers
        self.place: int | None = None  # on the tape
        self.error: Bound | None = None  # of rounded numbers: by how much at most
        if trace is None:
            return
        if fresh and kind == "array":
            trace.arrays += 1
        if not taped:
            trace.tape.broken = True

    def stop(self, reason: str) -> BaseException:
        return bail(reason, self.trace)

    @property
    def approx(self) -> bool:
        """May these be other numbers than those of one item, by rounding?"""
        return self.rounded or (self.trace is not None and self.trace.tainted)

    @property
    def rank(self) -> int:
        return self.data.ndim - 1

    @property
    def stands_for(self) -> type:
        return PYTHON.get(self.kind) or (np.ndarray if self.kind == "array" else self.data.dtype.type)

    # Truth and identity.

    def __bool__(self) -> bool:
        if self.kind == "array":
            raise self.stop("the truth of an array")
        if self.trace is not None:
            self.trace.tape.broken = True  # other parts must ask their own numbers
        truth = self.data.astype(bool)
        if self.approx and self.data.dtype.kind in "fc":
            sure(self, 0.0, self.trace)
        if truth.all():
            return True
        if not truth.any():
            return False
        if self.trace is not None and self.trace.stopped is None:
            self.trace.stopped = functools.partial(Diverge, truth)
        raise Diverge(truth)

    def _no(self, *_: Any, **__: Any) -> Any:
        raise self.stop("something that has no meaning for all items at once")

    __float__ = __int__ = __index__ = __complex__ = __iter__ = __len__ = __contains__ = _no
    __str__ = __repr__ = __format__ = __array__ = __reduce_ex__ = __round__ = __trunc__ = _no
    __floor__ = __ceil__ = __next__ = __call__ = __enter__ = __exit__ = __copy__ = __deepcopy__ = _no
    __hash__ = _no  # type: ignore[assignment]


def sure(a: Any, b: Any, trace: Trace | None) -> None:
    """A yes or no from rounded numbers: only where no rounding could turn it."""
    if trace is not None:
        trace.tape.broken = True
    errors = [error_of(a), error_of(b)]
    if errors[0] is None or errors[1] is None or (trace is not None and trace.written):
        raise bail("a comparison of rounded numbers", trace)
    x, y = (v.data if type(v) is Lane else v for v in (a, b))
    ranks = [np.ndim(v) - (type(u) is Lane) for u, v in ((a, x), (b, y))]
    x, y, first, second = (aligned(v, r, max(ranks)) for v, r in zip((x, y, *errors), ranks * 2, strict=True))
    with np.errstate(all="ignore"):
        margin = MARGIN * (first + second) + 1e-13 * np.maximum(np.abs(x), np.abs(y))
        if not np.all((np.abs(x - y) > margin) | (np.isinf(x) & ~np.isnan(y) & (x != y))):
            raise bail("a comparison too close to tell after rounding", trace)


def computed(
    run: Any,
    inputs: tuple[Any, ...],
    kind: str | None,
    trace: Trace | None,
    fresh: bool = True,
    approx: bool = False,
    error: Bound | None = None,
    nonnegative: bool = False,
) -> Lane:
    """What `run` gives for the data of lanes and for what all share, by the numbers' types and shapes alone.

    `kind` may be left out for what is an array or a NumPy scalar; `error` bounds what rounding does.
    """
    data = run(*[x.data if type(x) is Lane else x for x in inputs])
    out = Lane(data, kind or ("array" if data.ndim > 1 else "np"), trace, fresh, approx, taped=True)
    out.error, out.nonnegative = error, nonnegative
    if trace is not None:
        out.place = trace.tape.note(run, inputs, [x.place if type(x) is Lane else -1 for x in inputs])
    return out
