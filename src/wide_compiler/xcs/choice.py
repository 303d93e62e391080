"""Choose how to run a site: the fastest measured rung, or the plain loop. `costs` describes the policy."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ArgumentError
from ..guards.modes import autocast_state, precision
from ..measure import clock
from ..measure.clock import current_clock
from ..measure.policy import beats, margin
from .comparison import same
from .costs import RungCosts
from .exceptions import raise_interrupt
from .independent import marked_in
from .items import Items
from .proof.guards import SMALL
from .proof.kinds import CONSTANTS, CONTAINERS
from .work import Bail, Failed, Mismatch, Miss, Work, closure_values

if TYPE_CHECKING:
    from .strategies import Rung

PART = 4  # a trial runs 1/PART of the items
FEW, RUNNERS = 16, 128  # number of items with which a trial begins; on a GPU, where these are timed
MOST_SIGNATURES = 64  # per rung; when reached, all are dropped


def run(work: Work) -> list[Any] | Miss:
    """Run the items with the strategy of the plan.

    Returns:
        The list of values, or a `Miss` if the plain loop should run.

    Raises:
        Failed: an item, or a user-defined strategy, raised an exception.
        Mismatch: with `check=True`, if the results differ from plain Python.
        ArgumentError: a user-defined strategy returns something else than a list with a value per item.
    """
    plan, site, n = work.plan, work.site, work.items.n
    if not plan.own_strategy:
        values = plan.strategy.run(work)
    elif site.text.kind == "statements":
        return Miss()
    else:
        name = plan.strategy.name
        try:
            values = plan.strategy.run(work)
        except Exception as error:
            raise Failed([], error) from None
        if not isinstance(values, Miss):
            if not isinstance(values, list) or (work.each and len(values) != n):
                raise ArgumentError(
                    f"the strategy {name!r} must return a list of {n} values, got {values!r:.80}"
                )
            work.ran(name)
    # Functions marked as independent may write, and must run once.
    if site.checking and not isinstance(values, Miss) and not marked_in(plan):
        plain = [v for i in range(n) for v in work.one(i)]
        if not same(plain, values, rtol=plan.rtol):
            raise Mismatch(
                f"{site.file}:{site.text.line}: {site.text.text}: plain Python gives {plain!r:.200}, "
                f"{plan.last} gives {values!r:.200}"
            )
    return values


def choose(work: Work, rungs: "Sequence[Rung]") -> list[Any] | Miss:
    """Run the items with the rung expected to be fastest, if it beats the plain loop."""
    able = [rung for rung in rungs if rung.applies(work)]
    costs, n = work.plan.costs, work.items.n
    if not work.site.config.measure:
        found = (_attempt(work, rung, costs.of(rung.name)) for rung in able)
        return next((values for values in found if not isinstance(values, Miss)), Miss())
    plain = costs.plain_item * n
    if not plain or costs.is_due(n):
        return Miss()  # the plain loop is timed first
    best, least = None, margin(costs.plain_item) * plain
    for rung in able:
        if plain < rung.least or costs.plain_item < rung.least_item(work) or n < rung.fewest:
            continue
        record = costs.of(rung.name)
        expected = record.predicted(n)
        if expected is None and record.signatures and not record.why_not:
            expected = 0.0  # compiled by now, so this call is the measurement
        if (expected is None or expected >= least) and _affords(work, rung, record):
            # If items run once, or the rung cannot run a part of them, the call itself is the trial.
            expected = _tried(work, rung, record, plain) if rung.replayable and rung.splits else 0.0
        if expected is not None and expected < least:
            best, least = rung, expected
    return Miss() if best is None else _attempt(work, best, costs.of(best.name))


def _affords(work: Work, rung: "Rung", record: RungCosts) -> bool:
    if not rung.replayable and not record.losses:
        return True  # each item runs once, so a trial repeats no work
    price = max(record.price, rung.price)
    if gpu_of(work) is not None:
        price += 2 * PART * work.plan.costs.plain_item * min(work.items.n, RUNNERS)
    return work.site.budget.affords(price * 2.0**record.losses)


def _tried(work: Work, rung: "Rung", record: RungCosts, plain: float) -> float | None:
    """Return the estimated seconds of a rung for all items; None if it fails.

    The rung runs a few items to build what it needs (compilation, caches). Then these and a part of the items
    are timed, which tells what a call costs and what an item costs.
    """
    n, gpu = work.items.n, gpu_of(work)
    part = n // PART if n >= 4 * PART else n
    expected, why, began = None, "", clock.now()
    try:
        few = _part(work, min(part, FEW if gpu is None else RUNNERS))
        few.new = True
        rung.run(few)
        few.new = False
        if gpu is not None:
            expected = 0.0 if _wins(few, rung, gpu) else plain
        else:
            small = _seconds(rung, few)
            record.recent = [(small, few.items.n)]
            expected = record.predicted(n)
            if part > FEW and small < plain:
                large = _seconds(rung, _part(work, part))
                expected = large + max(large - small, 0.0) * (n - part) / (part - FEW)
                record.recent = [(expected, n)]
    except (Bail, Exception) as error:
        why = _reason(error)
    seconds = clock.now() - began
    work.site.budget.used += seconds
    if expected is None or not beats(expected, plain):
        record.lost(seconds, why)
    return expected


def _seconds(rung: "Rung", work: Work) -> float:
    began = clock.now()
    rung.run(work)
    return clock.now() - began


def _part(work: Work, count: int) -> Work:
    items = Items([column[:count] for column in work.items.columns], count)
    return Work(work.site, work.plan, items, work.functions)


def _wins(part: Work, rung: "Rung", gpu: torch.device) -> bool:
    """Return whether the rung is faster than the plain loop on a GPU.

    Calls on a GPU return before the kernels finish, so both are timed in turns with synchronisation.
    """
    with torch.cuda.device(gpu):
        plain = lambda: [part.compared(i) for i in range(part.items.n)]  # noqa: E731
        ways = {"plain": plain, "rung": lambda: rung.run(part)}
        seconds = current_clock().turns(ways, seconds=0.0, cuda=True).seconds
    return beats(seconds["rung"], seconds["plain"])


def gpu_of(work: Work) -> torch.device | None:
    """Return the GPU that the items are computed on, from tensors in items or closure cells, or None."""
    if not torch.cuda.is_initialized():
        return None
    first = [column if type(column) is Tensor else column[0] for column in work.items.columns]
    tensors = [value for value in (*first, *closure_values(work.body)) if isinstance(value, Tensor)]
    return next((tensor.device for tensor in tensors if tensor.is_cuda), None)


def _attempt(work: Work, rung: "Rung", record: RungCosts) -> list[Any] | Miss:
    """Run a rung on all items and return the values, or a `Miss` if it fails.

    For items with a new signature, some results are compared with the plain loop.
    """
    began, prepares, why = clock.now(), not record.signatures and not rung.splits, ""
    values: list[Any] | Miss = Miss()
    try:
        signature = signature_of(work) if rung.replayable else None
        work.new = signature not in record.signatures
        values = rung.run(work)
        if work.new:
            if rung.replayable:
                _verify(work, values)
            if len(record.signatures) >= MOST_SIGNATURES:
                record.signatures.clear()
            record.signatures.add(signature)
    except Failed:  # an item raised
        work.ran(rung.name)
        raise
    except (Bail, Exception) as error:
        why = _reason(error)
        if not rung.replayable and not isinstance(error, Bail):
            raise
    if why or prepares:  # it failed, or included one-time preparation
        work.site.budget.used += clock.now() - began
    if why:
        record.lost(clock.now() - began, why)
        return Miss()
    record.why_not = ""
    work.record = None if prepares else record
    work.ran(rung.name)
    return values


def _reason(error: BaseException) -> str:
    """Return why a rung failed. Exceptions of signal handlers are raised again."""
    if isinstance(error, Bail):
        return str(error) or "no reason given"
    raise_interrupt(error)
    return f"{type(error).__name__}: {error}"


def _verify(work: Work, values: list[Any]) -> None:
    """Compare the first, middle and last item with plain Python: type, dtype, shape, value and aliasing.

    If items may add no value or several values, all values are compared; of more than 64 items, the values of
    the first and last three.

    Raises:
        Bail: a result differs.
    """
    n, rtol = work.items.n, work.plan.rtol
    if work.each:
        rows = {i: work.items.row(i) for i in (0, n // 2, n - 1)}
        right = all(same((work.compared(i), row), ([values[i]], row), rtol) for i, row in rows.items())
    else:
        many = n > 64
        front = [v for i in range(3 if many else n) for v in work.compared(i)]
        back = [v for i in range(n - 3, n) for v in work.compared(i)] if many else []
        tail = values[len(values) - len(back) :]
        right = same(front, values[: len(front) if many else None], rtol) and same(back, tail, rtol)
    if not right:
        raise Bail("results differ from the loop")


def signature_of(work: Work) -> tuple[Any, ...]:
    """Return the types and shapes of the first items and of shared values, and the modes of PyTorch.

    Results of a rung are compared with the plain loop once per signature. Shared tensors matter because type
    promotion depends on their dimensions. Shared constants matter if the body branches on them.
    """
    guards, columns = work.plan.guards, work.items.columns
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast_state()
    signature = [*map(_column, columns), modes]
    for function in filter(None, (work.body, work.cond)):
        signature += map(_look, closure_values(function))
    tensors, branches = any(isinstance(column[0], Tensor) for column in columns), work.plan.branches
    if tensors or branches:
        seen = work.seen or guards.hold(work.functions, columns) or ()
        shared = [value for value, many in zip(seen, guards.vector, strict=False) if not many]
        signature += [_look(value) for value in shared if tensors and isinstance(value, Tensor)]
        signature += [_value(value) for value in shared if branches]
        signature.append(precision() if tensors else None)
    return tuple(signature)


def _column(column: Any) -> Any:
    """Return the signature of one loop variable, from its first item."""
    if type(column) in (np.ndarray, Tensor):
        return _look(column, 1)
    return _look(column[0])


def _look(value: Any, axis: int = 0) -> Any:
    """Return type, dtype, and shape from `axis` on."""
    if type(value) is np.ndarray:
        return value.dtype, value.dtype.char, value.shape[axis:]  # equal dtypes may have different scalars
    if isinstance(value, Tensor):
        return type(value), value.dtype, value.shape[axis:], value.device, value.requires_grad
    return type(value)


def _value(value: Any) -> Any:
    """Return the part of a shared value that a body may branch on."""
    kind = type(value)
    if kind in CONSTANTS:
        return kind, value
    if kind in CONTAINERS and len(value) <= SMALL:
        parts = [*value, *value.values()] if kind is dict else value
        return kind, repr(value) if all(type(part) in CONSTANTS for part in parts) else None
    return None
