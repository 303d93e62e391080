"""SignalTensor: the controller's handle of a tensor on workers; it holds an id and no data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map_only

from ..errors import UnsupportedError, UsageError
from ..workers.engine import Engine
from ..workers.shared_memory import read_payload
from ..workers.stream import Mesh
from . import scope
from .op_plans import TensorMeta

_NO_KWARGS: dict[str, Any] = {}
_WithoutSubclass = torch._C.DisableTorchFunctionSubclass


@contextmanager
def _without_onednn() -> Iterator[None]:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def _all_in_parts() -> Iterator[None]:
    with _without_onednn(), sdpa_kernel(SDPBackend.MATH):
        yield


# Functions with one fused kernel that cannot be sharded; run as their component ops instead.
_IN_PARTS: dict[Any, Callable[[], AbstractContextManager]] = {
    F.scaled_dot_product_attention: partial(sdpa_kernel, SDPBackend.MATH),
    F.multi_head_attention_forward: partial(sdpa_kernel, SDPBackend.MATH),
    torch.lstm: _without_onednn,
    # A checkpointed region is recomputed in the backward pass, where functions are not intercepted one by
    # one.
    **dict.fromkeys((Tensor.backward, torch.autograd.backward, torch.autograd.grad), _all_in_parts),
}
_NO_DATA = "its data is not allocated yet"
_run: Any = None  # set by signals.dispatch, which builds on this file


class Home:
    """Where a tensor and all its views are stored.

    Attributes:
        mesh: the workers.
        refs: number of ids that share it.
        parameter: whether it is a parameter or buffer.
        adopted: whether its mesh is final.
        hooked: whether the parameter's gradients are laid out like it.
    """

    __slots__ = ("adopted", "hooked", "mesh", "parameter", "refs")

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.refs = 0
        self.parameter = False
        self.adopted = False
        self.hooked = False


class Ref:
    """An id on the workers, freed there when nothing here refers to it any more."""

    __slots__ = ("engine", "home", "number", "view")

    def __init__(self, engine: Engine, number: int, home: Home, view: bool = False) -> None:
        self.engine = engine
        self.number = number
        self.home = home
        self.view = view
        home.refs += 1

    def __del__(self) -> None:
        home = self.home
        home.refs -= 1
        self.engine.freed.append((home.mesh.workers, self.number))


def _no_memory(what: str) -> Callable[..., Any]:
    def refuse(self: SignalTensor, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(
            f"{what}: the values of this tensor lie on workers; fetch them first with x.detach().cpu()"
        )

    return refuse


class SignalTensor(Tensor):
    """A tensor whose values are on workers. Made by ops and creation functions, not by users."""

    _ref: Ref
    _tensor_meta: TensorMeta

    @staticmethod
    def __new__(cls, ref: Ref, meta: TensorMeta) -> SignalTensor:
        return handle(ref, meta)

    def __init__(self, ref: Ref, meta: TensorMeta) -> None:
        """Do nothing: `__new__` sets everything."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or _NO_KWARGS)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        in_parts = _IN_PARTS.get(func)
        if in_parts is not None:
            with _WithoutSubclass(), in_parts():
                return func(*args, **(kwargs or _NO_KWARGS))
        try:
            with _WithoutSubclass():
                return func(*args, **kwargs) if kwargs else func(*args)
        except RuntimeError as error:
            if _NO_DATA not in str(error):
                raise
        # C++ code has read the memory of an operand, or of a tensor it made: lengths, split points.
        args, kwargs = tree_map_only(
            SignalTensor,
            lambda x: x if x.is_floating_point() or x.is_complex() else x.fetch(),
            (args, kwargs or {}),
        )
        with _WithoutSubclass(), scope.nothing_new():
            return func(*args, **kwargs)

    # ---- fetching values

    def fetch(self) -> Tensor:
        """Return the values as a plain tensor, outside autograd. Waits for the workers."""
        ref = self._ref
        dtype, payload = ref.engine.ask("fetch", (ref.number,), ref.home.mesh, "fetch", inputs=(ref.number,))
        with torch._C._DisableTorchDispatch():
            answer = read_payload(payload, getattr(torch, dtype))
            return answer.as_strided(*self._tensor_meta[:2]) if _dense(self) else answer

    def cpu(self, *args: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        """Return the values as a plain tensor; differentiable."""
        return _Fetch.apply(self)

    def numpy(self, *, force: bool = False) -> np.ndarray:  # type: ignore[override]
        """Return the values as an array."""
        if self.requires_grad and not force:
            raise UsageError("Can't call numpy() on a tensor that requires grad; use x.detach().numpy()")
        return self.fetch().numpy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:  # type: ignore[override]
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def tolist(self) -> Any:
        return self.fetch().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        workers = list(self._ref.home.mesh.workers)
        return f"{torch._tensor_str._str(self.fetch())[:-1]}, workers={workers})"

    def __format__(self, spec: str) -> str:
        return self.item().__format__(spec) if self.dim() == 0 else object.__format__(self, spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the values; they are loaded as an ordinary tensor or parameter."""
        plain: Tensor = self.fetch().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            plain = torch.nn.Parameter(plain, self.requires_grad)
        return plain.__reduce_ex__(protocol)  # the file does not refer to workers

    def __deepcopy__(self, memo: dict) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise UsageError("Only tensors created explicitly by the user support deepcopy; use x.detach()")
        with torch.no_grad():
            copy: Tensor = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, self.requires_grad)
        else:
            copy.requires_grad_(self.requires_grad)
        memo[id(self)] = copy
        return copy

    # ---- memory is not in this process

    @property
    def memory_id(self) -> int:
        """A number that tensors with shared memory on the workers have in common; see `remote_tensors.py`."""
        return id(self._ref.home)

    data_ptr: Any = _no_memory("data_ptr()")
    untyped_storage: Any = _no_memory("untyped_storage()")
    storage: Any = _no_memory("storage()")
    share_memory_: Any = _no_memory("share_memory_()")
    pin_memory: Any = _no_memory("pin_memory()")
    __dlpack__: Any = _no_memory("__dlpack__()")

    # ---- x.data = y replaces the tensor, so the id must follow

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        from .sending import put

        if not isinstance(value, SignalTensor):
            value = put(value.detach())
        value = value.detach()
        assert isinstance(value, SignalTensor)
        torch._C.TensorBase.__dict__["data"].__set__(self, value)  # sets shape and dtype
        self._ref, self._tensor_meta = value._ref, value._tensor_meta


def handle(ref: Ref, meta: TensorMeta) -> SignalTensor:
    """Return the handle of an id; a faster `SignalTensor(ref, meta)`."""
    shape, stride, dtype = meta
    made = _wrapper(SignalTensor, shape, strides=stride, dtype=dtype)
    made._ref = ref
    made._tensor_meta = meta
    return made


def new_handle(engine: Engine, mesh: Mesh, meta: TensorMeta) -> SignalTensor:
    """Return the handle of a new id."""
    return handle(Ref(engine, next(engine.ids), Home(mesh)), meta)


_wrapper = Tensor._make_wrapper_subclass


class _Fetch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: SignalTensor) -> Tensor:
        ctx.mesh = x._ref.home.mesh
        return x.fetch()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        from .sending import put_on

        return put_on(grads[0], ctx.mesh, ())


def _dense(x: Tensor) -> bool:
    return not any(s == 0 for s in x.stride()) and x.numel() > 0 and x.is_contiguous()


def respread(x: Tensor, placement: scope.Placement | None) -> Tensor:
    """Return a differentiable copy of `x`, placed by a signal."""
    return _Respread.apply(x, placement)


class _Respread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, placement: scope.Placement | None) -> Tensor:
        from .moving import spread
        from .sending import put

        handle = x if isinstance(x, SignalTensor) else put(x)
        return handle.clone() if placement is None else spread(handle, placement.mesh, placement.axes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None
