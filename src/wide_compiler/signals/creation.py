"""New tensors on the workers: `randn`, `zeros`, ..., `tensor`, `from_numpy`.

Inside a context, torch's own creation functions create tensors on the workers too.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..observe import instruction_log
from ..workers.callsite import OURS
from ..workers.script_state import draw_seed
from . import runtime, scope
from .dispatch import dispatch
from .op_plans import Op, OpCall, find_plan, read
from .sending import put
from .tensor import SignalTensor, new_handle

aten = torch.ops.aten


class CreationMode(TorchDispatchMode):
    """Inside a signal's context, makes torch's creation functions create tensors on its workers.

    plain: number of ops that ran in this process, on plain tensors only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.plain = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(t, SignalTensor) for t in types):
            return dispatch(func, args, kwargs)
        if not is_creation(func):
            self.plain += 1
        elif (
            scope.creating() is not None
            and torch.device(kwargs.get("device") or "cpu").type == "cpu"
            and not _read_in()
        ):
            return create(func, args, kwargs)
        return func(*args, **kwargs)


class OutsideMode(TorchDispatchMode):
    """Makes torch's creation functions create tensors on worker 0, for `gt.randn` outside any context."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        return create(func, args, kwargs or {}) if is_creation(func) else func(*args, **(kwargs or {}))


@functools.cache
def is_creation(func: Op) -> bool:
    """Return whether the op creates a tensor from no tensor, as `aten.randn.default` does."""
    schema = func._schema
    return (
        func.namespace == "aten"
        and len(schema.returns) == 1
        and str(schema.returns[0].type) == "Tensor"
        and not any("Tensor" in str(a.type) for a in schema.arguments)
        and "out" not in func._overloadname
    )


def _read_in() -> bool:
    """Return whether the caller loads, unpickles or copies data, which stays in the script's process."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        if frame.f_code.co_filename.startswith(_READERS):
            return True
        frame = frame.f_back
    return False


_TORCH = Path(torch.__file__).parent
_READERS = tuple(
    str(_TORCH / name)
    for name in ("utils/data", "_utils.py", "serialization.py", "storage.py", "multiprocessing")
)


def create(func: Op, args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """Create a tensor, sharded as the active signal says unless a shard would be empty."""
    if kwargs.get("generator") is not None:  # the script's generator draws here, as in one process
        with torch._C._DisableTorchDispatch():
            return put(func(*args, **kwargs))
    kwargs = {k: v for k, v in kwargs.items() if k != "generator"}
    kwargs["device"] = torch.device("cpu")
    engine = runtime.engine()
    placement = scope.current()
    mesh, axes = (placement.mesh, placement.axes) if placement else (engine.mesh((0,)), ())
    call = OpCall(constants=True)
    read(args, kwargs, call)
    plan = find_plan(engine, func, args, kwargs, call)
    draw = draw_seed() if plan.random else None
    meta = plan.results[0][0]
    assert meta is not None
    made = new_handle(engine, mesh, meta)
    number = made._ref.number
    if placement is not None:
        made._ref.home.adopted = True
    engine.record(
        "make", (number, plan.template, mesh.number, axes, draw), mesh.workers, plan.name, (), (number,)
    )
    if instruction_log.active:
        instruction_log.create(plan.name, number, mesh, axes, meta)
    return made


def tensor(data: Any, *, dtype: torch.dtype | None = None, requires_grad: bool = False) -> Tensor:
    """Send data to the workers: sharded by the active signal, else on worker 0.

    Args:
        data: as for `torch.tensor`.
        dtype: of the result; default: that of the data.
        requires_grad: of the result.
    """
    if isinstance(data, SignalTensor):
        made: Tensor = data.detach().clone()
    else:
        plain = data.detach() if isinstance(data, Tensor) else torch.tensor(data)
        made = put(plain if dtype is None else plain.to(dtype))
    return made.requires_grad_(requires_grad)


def from_numpy(array: np.ndarray) -> Tensor:
    """Send an array to the workers: sharded by the active signal, else on worker 0."""
    return put(torch.from_numpy(np.ascontiguousarray(array)))


def _through_the_door(name: str) -> Any:
    function = getattr(torch, name)

    def create_on_workers(*args: Any, **kwargs: Any) -> Tensor:
        if scope.current() is not None:
            return function(*args, **kwargs)
        with OutsideMode():
            return function(*args, **kwargs)

    create_on_workers.__name__ = create_on_workers.__qualname__ = name
    create_on_workers.__doc__ = (
        f"`torch.{name}` on the active signal's workers; outside any context on worker 0."
    )
    return create_on_workers


randn = _through_the_door("randn")
rand = _through_the_door("rand")
randint = _through_the_door("randint")
randperm = _through_the_door("randperm")
zeros = _through_the_door("zeros")
ones = _through_the_door("ones")
empty = _through_the_door("empty")
full = _through_the_door("full")
arange = _through_the_door("arange")
linspace = _through_the_door("linspace")
eye = _through_the_door("eye")
