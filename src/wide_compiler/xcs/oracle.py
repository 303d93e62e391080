"""The differential oracle: is what a jitted function did what plain Python does?

Compared are the result, the exception (type and message), what was printed, the arguments afterwards, any log
the function wrote to, and aliasing: which mutable objects of all these are one and the same, or share memory.
"""

import contextlib
import io
import itertools
import math
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..measure.compare import one_op

FLAGS: tuple[Any, ...] = ("WRITEABLE", "C_CONTIGUOUS", "F_CONTIGUOUS")
_ATOMS = (type(None), bool, int, str, bytes, complex, range, slice, type, type(Ellipsis))


Extent = tuple[int, int]  # from the first byte of an array to behind the last


class Difference(Exception):
    """Where two results part, by path."""


@dataclass
class Observed:
    """All that one call showed."""

    result: Any = None
    error: BaseException | None = None
    printed: str = ""
    warned: list[tuple[type, str]] = field(default_factory=list)
    arguments: Any = None
    world: Any = None


@dataclass
class _Pairing:
    """Objects met on both sides, in step: what is one object here must be one object there."""

    left: dict[int, int] = field(default_factory=dict)
    right: dict[int, int] = field(default_factory=dict)
    extents: list[tuple[str, Extent, Extent]] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)

    def meet(self, a: Any, b: Any, path: str) -> bool:
        """Note a pair of mutable objects; True if it was met before."""
        first, second = self.left.get(id(a)), self.right.get(id(b))
        if first != second:
            raise Difference(f"{path}: aliasing differs, one object here and two there")
        if first is not None:
            return True
        self.left[id(a)] = self.right[id(b)] = len(self.left)
        self.kept += [a, b]
        return False


def observe(fn: Callable[..., Any], args: tuple, kwargs: dict | None = None, world: Any = None) -> Observed:
    """Call `fn`, and note all that can be seen of it."""
    seen = Observed(arguments=(args, kwargs or {}), world=world)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            seen.result = fn(*args, **(kwargs or {}))
        except Exception as error:
            seen.error = error
    seen.printed = out.getvalue()
    seen.warned = [(w.category, str(w.message)) for w in caught if w.category.__name__ != "XcsWarning"]
    return seen


def compare(plain: Observed, fast: Observed, rtol: float | None = None) -> None:
    """Raise `Difference` unless both calls showed the same."""
    pairing = _Pairing()
    _same_error(plain.error, fast.error)
    if plain.printed != fast.printed:
        raise Difference(f"printed {plain.printed!r}, then {fast.printed!r}")
    if plain.warned != fast.warned:
        raise Difference(f"warned {plain.warned!r}, then {fast.warned!r}")
    for name in ("result", "arguments", "world"):
        _same(getattr(plain, name), getattr(fast, name), name, pairing, rtol)
    _same_overlaps(pairing.extents)


def same(a: Any, b: Any, rtol: float | None = None) -> bool:
    """Equal in type, dtype, shape, aliasing and value; floats within `rtol` if given, else exactly."""
    try:
        pairing = _Pairing()
        _same(a, b, "", pairing, rtol)
        _same_overlaps(pairing.extents)
    except Difference:
        return False
    return True


def _same_error(a: BaseException | None, b: BaseException | None) -> None:
    if type(a) is not type(b):
        raise Difference(f"raised {a!r}, then {b!r}")
    if a is not None and str(a) != str(b):
        raise Difference(f"message {str(a)!r}, then {str(b)!r}")


def _same(a: Any, b: Any, path: str, pairing: _Pairing, rtol: float | None) -> None:
    if type(a) is not type(b):
        raise Difference(f"{path}: {type(a).__name__} {a!r:.60}, then {type(b).__name__} {b!r:.60}")
    if isinstance(a, float):
        _close(np.asarray(a), np.asarray(b), path, rtol, scalar=True)
    elif isinstance(a, _ATOMS):
        if a != b:
            raise Difference(f"{path}: {a!r:.80}, then {b!r:.80}")
    elif isinstance(a, np.generic):
        _close(np.asarray(a), np.asarray(b), path, rtol, scalar=True)
    elif isinstance(a, (tuple, frozenset)) and type(a) in (tuple, frozenset):
        _items(a, b, path, pairing, rtol)
    elif not pairing.meet(a, b, path):
        _same_mutable(a, b, path, pairing, rtol)


def _same_mutable(a: Any, b: Any, path: str, pairing: _Pairing, rtol: float | None) -> None:
    if isinstance(a, np.ndarray):
        if a.shape != b.shape or any(a.flags[flag] != b.flags[flag] for flag in FLAGS):
            raise Difference(f"{path}: {a.shape} {a.flags!r}, then {b.shape} {b.flags!r}")
        pairing.extents.append((path, _extent(a), _extent(b)))
        if a.dtype == object:
            _items(a.ravel().tolist(), b.ravel().tolist(), path, pairing, rtol)
        else:
            _close(a, b, path, rtol)
    elif isinstance(a, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype or a.requires_grad != b.requires_grad:
            raise Difference(f"{path}: {a.dtype} {tuple(a.shape)}, then {b.dtype} {tuple(b.shape)}")
        if _steps(a) != _steps(b) or a.is_inference() != b.is_inference():
            raise Difference(f"{path}: strides {a.stride()}, then {b.stride()}, or inference on one side")
        if a.device != b.device or a.layout is not b.layout or a.is_conj() != b.is_conj():
            raise Difference(f"{path}: a tensor of another kind")
        if a.is_meta:
            return
        one, two = (_as_array(t.detach().cpu(), path) for t in (a, b))
        pairing.extents.append((path, _tensor_extent(a), _tensor_extent(b)))
        if a.dtype is torch.bfloat16:  # of which NumPy knows only the bits
            one, two = a.detach().float().cpu().numpy(), b.detach().float().cpu().numpy()
            rtol = rtol and max(rtol, one_op(a.dtype).single)
        _close(one, two, path, rtol)
    elif isinstance(a, dict):
        if list(map(repr, a)) != list(map(repr, b)):
            raise Difference(f"{path}: keys {list(a)!r:.80}, then {list(b)!r:.80}")
        _items(list(a), list(b), f"{path}.keys", pairing, rtol)
        for key, one, two in zip(a, a.values(), b.values(), strict=True):
            _same(one, two, f"{path}[{key!r}]", pairing, rtol)
    elif isinstance(a, (list, tuple, set)):
        _items(a, b, path, pairing, rtol)
    elif hasattr(a, "__dict__") and not callable(a):
        _same(vars(a), vars(b), path, pairing, rtol)
    elif not callable(a) and type(a).__eq__ is not object.__eq__ and a != b:
        raise Difference(f"{path}: {a!r:.80}, then {b!r:.80}")


def _as_array(tensor: torch.Tensor, path: str) -> np.ndarray:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise Difference(f"{path}: a tensor that is not compared, of layout {tensor.layout}")
    if tensor.dtype.is_floating_point and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.view(torch.uint8 if tensor.element_size() == 1 else torch.int16)  # NumPy lacks them
    return tensor.resolve_conj().resolve_neg().numpy()


def _steps(tensor: torch.Tensor) -> list[int]:
    """Strides, where there is more than one step to take."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _items(a: Any, b: Any, path: str, pairing: _Pairing, rtol: float | None) -> None:
    if len(a) != len(b):
        raise Difference(f"{path}: {len(a)} items, then {len(b)}")
    for i, (one, two) in enumerate(zip(a, b, strict=True)):
        _same(one, two, f"{path}[{i}]", pairing, rtol)


def _close(a: np.ndarray, b: np.ndarray, path: str, rtol: float | None, scalar: bool = False) -> None:
    if a.dtype != b.dtype:
        raise Difference(f"{path}: dtype {a.dtype}, then {b.dtype}")
    if a.dtype.kind not in "fc" or rtol is None:
        if a.tobytes() != b.tobytes() and not np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"):
            raise Difference(f"{path}: {a!r:.80}, then {b!r:.80}")
        return
    # Python's own floats are float64, which the caller's limit is meant for; fewer bits need more room.
    limit = max(rtol, one_op(getattr(torch, a.dtype.name)).single) if a.dtype.itemsize < 8 else rtol
    if a.size and not np.allclose(a, b, rtol=limit, atol=limit * _scale(a), equal_nan=True):
        raise Difference(f"{path}: {a!r:.80}, then {b!r:.80}, beyond rtol {limit:g}")


def _scale(a: np.ndarray) -> float:
    """Sums cancel: what is left is held against the largest number beside it, or against 1 when alone."""
    finite = np.abs(a[np.isfinite(a)])
    largest = float(finite.max()) if finite.size else 0.0
    return max(largest, 1.0) if math.isfinite(largest) else 1.0


def _extent(array: np.ndarray) -> Extent:
    start = array.ctypes.data
    steps = [(size - 1) * step for size, step in zip(array.shape, array.strides, strict=True)]
    if not array.size:
        return start, start
    return start + sum(s for s in steps if s < 0), start + sum(s for s in steps if s > 0) + array.itemsize


def _tensor_extent(tensor: torch.Tensor) -> Extent:
    start = tensor.data_ptr()
    steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (steps + 1) * tensor.element_size() if tensor.numel() else start


def _same_overlaps(extents: list[tuple[str, Extent, Extent]]) -> None:
    """Which arrays share memory. Neighbours are compared in order of address, so that many stay cheap."""
    for side in (1, 2):
        ordered: list[Any] = sorted(extents, key=operator.itemgetter(side))
        for one, two in itertools.pairwise(ordered):
            if _overlap(one[1], two[1]) != _overlap(one[2], two[2]):
                raise Difference(f"{one[0]} and {two[0]}: share memory on one side only")


def _overlap(a: Extent, b: Extent) -> bool:
    return max(a[0], b[0]) < min(a[1], b[1])
