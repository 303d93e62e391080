"""Compare results with plain Python: values, and aliasing of mutable objects and memory."""

import gc
import itertools
import math
import operator
from typing import Any

import numpy as np
import torch

from ..measure.compare import one_op

FLAGS: tuple[Any, ...] = ("WRITEABLE", "C_CONTIGUOUS", "F_CONTIGUOUS")
_ATOMS = (type(None), bool, int, str, bytes, complex, range, slice, type, type(Ellipsis))
_SAME_OF_TENSORS = operator.attrgetter("shape", "dtype", "requires_grad", "device", "layout")
_NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)
Extent = tuple[int, int]  # address of the first byte, and of the byte after the last


class ResultsDiffer(Exception):
    """Two results differ; the message names the path."""


def same(a: Any, b: Any, rtol: float | None = None) -> bool:
    """Return whether type, dtype, shape, aliasing and value are equal; floats within `rtol` if given."""
    try:
        comparison = Comparison(rtol)
        comparison.same(a, b, "")
        comparison.same_overlaps()
    except ResultsDiffer:
        return False
    return True


class Comparison:
    """Compares two values recursively, including aliasing between their parts. Raises `ResultsDiffer`."""

    def __init__(self, rtol: float | None):
        self.rtol = rtol
        # For each side, mutable objects by id, with the number of their pair; `kept` keeps the ids in use.
        self.met: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.kept: list[Any] = []
        self.extents: list[tuple[str, Extent, Extent]] = []  # path and byte ranges of each pair of arrays

    def same_overlaps(self) -> None:
        """Compare which arrays share memory. Only neighbours by address are compared."""
        for side in (1, 2):
            ordered: list[Any] = sorted(self.extents, key=operator.itemgetter(side))
            for one, two in itertools.pairwise(ordered):
                if _overlap(one[1], two[1]) != _overlap(one[2], two[2]):
                    raise ResultsDiffer(f"{one[0]} and {two[0]}: share memory on one side only")

    def same(self, a: Any, b: Any, path: str) -> None:
        if type(a) is not type(b):
            raise ResultsDiffer(f"{path}: {type(a).__name__} {a!r:.60}, then {type(b).__name__} {b!r:.60}")
        if isinstance(a, (float, np.generic)):
            self._close(np.asarray(a), np.asarray(b), path)
        elif isinstance(a, _ATOMS):
            _equal(a, b, path)
        elif type(a) in (tuple, frozenset):
            self._items(a, b, path)
        elif not self._met_before(a, b, path):
            self._same_mutable(a, b, path)

    def _met_before(self, a: Any, b: Any, path: str) -> bool:
        first, second = self.met[0].get(id(a)), self.met[1].get(id(b))
        if first != second:
            raise ResultsDiffer(f"{path}: aliasing differs, one object here and two there")
        if first is None:
            self.met[0][id(a)] = self.met[1][id(b)] = len(self.met[0])
            self.kept += [a, b]
        return first is not None

    def _same_mutable(self, a: Any, b: Any, path: str) -> None:
        if isinstance(a, np.ndarray):
            kind, other = ((x.shape, *(x.flags[flag] for flag in FLAGS)) for x in (a, b))
            _equal(kind, other, path)
            self.extents.append((path, _extent(a), _extent(b)))
            if a.dtype == object:
                self._items(a.ravel().tolist(), b.ravel().tolist(), path)
            else:
                self._close(a, b, path)
        elif isinstance(a, torch.Tensor):
            self._same_tensor(a, b, path)
        elif isinstance(a, dict):
            _equal(list(map(repr, a)), list(map(repr, b)), f"{path}: keys")
            self._items(list(a), list(b), f"{path}.keys")
            for key, one, two in zip(a, a.values(), b.values(), strict=True):
                self.same(one, two, f"{path}[{key!r}]")
        elif isinstance(a, (list, tuple, set)):
            self._items(a, b, path)
        elif type(a).__dictoffset__ and not callable(a):
            if a is not b:
                self.same(vars(a), vars(b), path)
            # `vars` would create a dict and slow the object down.
            for part in gc.get_referents(a) if a is b else ():
                self.same(part, part, path)
        elif not callable(a) and type(a).__eq__ is not object.__eq__:
            _equal(a, b, path)

    def _same_tensor(self, a: Any, b: Any, path: str) -> None:
        kind, other = ((*_SAME_OF_TENSORS(t), t.is_inference(), t.is_conj(), _steps(t)) for t in (a, b))
        _equal(kind, other, path)
        if a.is_meta:
            return
        if a.layout is not torch.strided or a.is_quantized:
            raise ResultsDiffer(f"{path}: a tensor that is not compared, of layout {a.layout}")
        self.extents.append((path, _extent(a), _extent(b)))
        one, two = (t.detach().cpu().resolve_conj().resolve_neg() for t in (a, b))
        limit = None
        if a.dtype is torch.bfloat16:  # NumPy has no bfloat16
            one, two, limit = one.float(), two.float(), one_op(a.dtype).single
        elif a.dtype.is_floating_point and a.dtype not in _NUMPY_FLOATS:
            one, two = (t.view(torch.uint8 if t.element_size() == 1 else torch.int16) for t in (one, two))
        self._close(one.numpy(), two.numpy(), path, limit)

    def _items(self, a: Any, b: Any, path: str) -> None:
        _equal(len(a), len(b), f"{path}: length")
        for i, (one, two) in enumerate(zip(a, b, strict=True)):
            self.same(one, two, f"{path}[{i}]")

    def _close(self, a: np.ndarray, b: np.ndarray, path: str, coarse: float | None = None) -> None:
        """Compare two arrays, floats within a tolerance.

        Args:
            coarse: the tolerance of the original dtype, if it had fewer bits than that of the arrays.
        """
        _equal(a.dtype, b.dtype, f"{path}: dtype")
        floats, limit = a.dtype.kind in "fc", 0.0
        if not floats or self.rtol is None:
            right = a.tobytes() == b.tobytes() or np.array_equal(a, b, equal_nan=floats)
        else:
            # `rtol` is meant for float64; dtypes with fewer bits need a larger tolerance.
            own = one_op(getattr(torch, a.dtype.name)).single if a.dtype.itemsize < 8 else 0.0
            limit = max(self.rtol, own, coarse or 0.0)
            # Sums may cancel, so differences count relative to the largest magnitude, at least to 1.
            scale = float(np.abs(a[np.isfinite(a)]).max(initial=1.0))
            scale = scale if math.isfinite(scale) else 1.0
            right = np.allclose(a, b, rtol=limit, atol=limit * scale, equal_nan=True)
        if not right:
            raise ResultsDiffer(f"{path}: {a!r:.80}, then {b!r:.80}, beyond rtol {limit:g}")


def _equal(a: Any, b: Any, path: str) -> None:
    if a != b:
        raise ResultsDiffer(f"{path}: {a!r:.80}, then {b!r:.80}")


def _steps(tensor: torch.Tensor) -> list[int]:
    """Return the strides of dimensions larger than 1."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _extent(held: Any) -> Extent:
    """Return the byte range of an array or tensor."""
    if isinstance(held, torch.Tensor):
        start, size = held.data_ptr(), held.element_size()
        steps = [size * step for step in held.stride()]
    else:
        start, size, steps = held.ctypes.data, held.itemsize, list(held.strides)
    if 0 in held.shape:
        return start, start
    ends = [(length - 1) * step for length, step in zip(held.shape, steps, strict=True)]
    return start + sum(e for e in ends if e < 0), start + sum(e for e in ends if e > 0) + size


def _overlap(a: Extent, b: Extent) -> bool:
    return max(a[0], b[0]) < min(a[1], b[1])
