"""Plans: the results of an op, inferred once on fake tensors and cached.

The cache key is the op, its plain arguments and the `TensorMeta` of its operands. A plan holds the
number of the template on the workers and the `TensorMeta` of the results.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._prims_common import make_contiguous_strides_for
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._pytree import tree_map_only

from ..errors import UnsupportedError, UsageError
from ..workers import templates
from ..workers.engine import Engine
from ..workers.script_state import settings
from ..workers.sharded import is_view
from ..workers.writes import written_operands

Op = torch._ops.OpOverload
aten = torch.ops.aten
_KEPT = 4096


class TensorMeta(NamedTuple):
    """Shape, stride and dtype of a tensor: what the controller knows of it."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class OpCall:
    """An op's arguments, split up.

    Attributes:
        tensors, floats: in order of appearance.
        key: the cache key: all other arguments, and the meta of each tensor.
        constants: put floats into the key too, because they may decide a shape (`arange(0, 1, 0.1)`).
    """

    __slots__ = ("constants", "floats", "key", "tensors")

    def __init__(self, constants: bool = False) -> None:
        self.constants = constants
        self.tensors: list[Any] = []
        self.floats: list[float] = []
        self.key: list[Any] = []


class OpPlan(NamedTuple):
    """The cached plan of an op.

    Attributes:
        op, name: the op and its name.
        template: number of its template on the workers.
        results: for each result its meta (None if it is not a tensor) and the position of the operand that it
            is (in-place ops), or None.
        returns: `one`, `tuple`, `list`, or `none`.
        written: positions in the tensor list of the written operands.
        view: whether the results are views of operand 0.
        random: whether the op draws random numbers.
        asks: whether only the workers know the result.
        fresh: the meta of the result if the op only makes one new tensor, else None.
    """

    op: Op
    template: int
    name: str
    results: tuple[tuple[TensorMeta | None, int | None], ...]
    returns: str
    written: tuple[int, ...]
    view: bool
    random: bool
    asks: bool
    fresh: TensorMeta | None


_plans: dict[tuple, OpPlan] = {}
_fake = FakeTensorMode(allow_non_fake_inputs=False)
_one_at_a_time = threading.RLock()  # the mode tracks one op at a time


def read(args: Sequence, kwargs: dict, call: OpCall) -> None:
    """Split the arguments into `call`; `spell` must number tensors and floats in the same order."""
    key = call.key
    for value in args:
        _read(value, call, key)
    for name, value in kwargs.items():
        key.append(name)
        _read(value, call, key)


def _read(value: Any, call: OpCall, key: list[Any]) -> None:
    kind = type(value)
    if issubclass(kind, Tensor):
        call.tensors.append(value)
        key.append(getattr(value, "_tensor_meta", None) or meta_of(value))
    elif kind is int or kind is bool or value is None:
        key.append(kind)  # 1, 1.0 and True are equal but different arguments
        key.append(value)
    elif kind is float and not call.constants:
        call.floats.append(value)
        key.append(float)
    elif kind is list or kind is tuple:
        key.append((list, len(value)))
        for v in value:
            _read(v, call, key)
    else:
        key.append(kind)
        key.append(value)


def spell(args: Sequence, kwargs: dict, constants: bool) -> tuple[tuple, dict]:
    """Return the arguments in the form of a template."""
    tensors, floats = itertools.count(), itertools.count()

    def one(value: Any) -> tuple[int, Any]:
        if isinstance(value, Tensor):
            return templates.TENSOR, next(tensors)
        if type(value) is float and not constants:
            return templates.FLOAT, next(floats)
        if isinstance(value, list | tuple):
            return templates.LIST, [one(v) for v in value]
        return templates.constant(value)

    return tuple([one(a) for a in args]), {name: one(a) for name, a in kwargs.items()}


def find_plan(engine: Engine, func: Op, args: Sequence, kwargs: dict, call: OpCall) -> OpPlan:
    """Return the plan of this call; `call` must have been filled from `args` and `kwargs`."""
    state = settings()
    if state != engine.settings:
        engine.settings = state
        engine.record("settings", (state,), engine.everyone)
    key = (engine.serial, id(func), state[0], *call.key)  # results depend on the default dtype
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = _make_plan(engine, func, args, kwargs, call)
        if len(_plans) > _KEPT:
            for old in list(_plans)[: _KEPT // 4]:
                forgotten = _plans.pop(old)
                if old[0] == engine.serial:
                    engine.forget_template(forgotten.template)
    return plan


def _make_plan(engine: Engine, func: Op, args: Sequence, kwargs: dict, call: OpCall) -> OpPlan:
    metas = tuple(getattr(t, "_tensor_meta", None) or meta_of(t) for t in call.tensors)
    asks = False
    result: Any = None
    try:
        result = infer(func, args, kwargs, call.tensors, metas)
    except (DynamicOutputShapeException, DataDependentOutputException):
        asks = True
    except RuntimeError as error:
        if not func._schema.is_mutable:
            raise
        raise UsageError(
            f"{func}: {error} (a tensor on workers keeps its shape when it is written to)"
        ) from error
    if func is aten.multilabel_margin_loss_forward.default and len(metas[0].shape) < 2:
        asks = True  # PyTorch infers [1] instead of [] for one sample
    spelled, named = spell(args, kwargs, call.constants)
    number = engine.new_template(templates.op_name(func), spelled, named)
    schema = func._schema
    places = written_operands(func, args, kwargs)
    written = tuple([i for i, t in enumerate(call.tensors) if any(t is o for o in places)])
    results = list(result) if isinstance(result, tuple | list) else [result] if schema.returns else []
    asks = asks or (bool(schema.returns) and not any(isinstance(r, Tensor) for r in results))
    if any(isinstance(r, Tensor) and r.layout != torch.strided for r in results):
        raise UnsupportedError(
            f"{func} gives a sparse tensor, and workers hold dense ones; fetch the operands first "
            "with x.cpu()"
        )
    described = [
        (meta_of(r) if isinstance(r, Tensor) else None, _same(func, i, written))
        for i, r in enumerate(results)
    ]
    kind = "list" if isinstance(result, list) else "tuple" if isinstance(result, tuple) else "one"
    returns = kind if schema.returns else "none"
    view, random = is_view(func), torch.Tag.nondeterministic_seeded in func.tags
    more = written or view or random or asks or returns != "one"
    fresh = None if more else described[0][0]
    name = templates.op_name(func)
    return OpPlan(func, number, name, tuple(described), returns, written, view, random, asks, fresh)


def infer(func: Op, args: Sequence, kwargs: dict, tensors: list, metas: tuple[TensorMeta, ...]) -> Any:
    """Run the op on fake tensors made from `metas`; raises the op's own error for bad operands."""
    position = {id(t): i for i, t in enumerate(tensors)}
    with _one_at_a_time, _fake, _quiet():
        fakes = [torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype) for meta in metas]
        args, kwargs = tree_map_only(Tensor, lambda t: fakes[position[id(t)]], (tuple(args), kwargs))
        return func(*args, **kwargs)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the fake-tensor log: bad operands are reported as an exception."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def meta_of(x: Tensor) -> TensorMeta:
    return TensorMeta(tuple(x.shape), tuple(x.stride()), x.dtype)


def contiguous(shape: Sequence[int], dtype: torch.dtype) -> TensorMeta:
    return TensorMeta(tuple(shape), make_contiguous_strides_for(shape), dtype)  # type: ignore[arg-type]


def _same(func: Op, result: int, written: tuple[int, ...]) -> int | None:
    returns = func._schema.returns
    info = returns[min(result, len(returns) - 1)].alias_info
    if info is None or not info.is_write:
        return None
    return written[result] if result < len(written) else None


def plan_count() -> int:
    return len(_plans)
