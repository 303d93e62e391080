"""Samples of PyTorch's own operator and module databases, N lanes of each. Knows nothing of how they are run.

A sample is one call with the same structure, shapes and plain arguments in every lane, and other numbers:
the database's generator is asked again under another seed, so that each lane stays in the op's domain.
"""

import functools
import importlib.util
import random
import sys
import types
import unittest
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

# PyTorch's test tools import it; nothing here uses it.
if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase

from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

# These tools forbid everybody to set PyTorch's flags; other tests do.
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True

# The database seeds the generator inside each random op; here a call draws, as it does in a model.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)

# float64 where the op has it: differences are then mistakes, not rounding.
_DTYPES = (torch.float64, torch.float32, torch.complex128, torch.int64, torch.bool)

Arguments = tuple[tuple, dict]


@dataclass
class Sample:
    """One call of `name` for each lane.

    Exactly one of `function` (a plain call) and `members` (one module for each lane) is set.
    """

    name: str  # 'linalg.inv', 'add_' (in place), 'nn.Linear train'
    index: int  # which of the database's samples
    lanes: list[Arguments]  # (args, kwargs) of each lane
    function: Callable[..., Any] | None = None
    members: list[nn.Module] | None = None
    for_gradient: Callable[[Any], Any] = field(default=lambda out: out)  # what of a result has a gradient

    def __str__(self) -> str:
        return f"{self.name} #{self.index}"


@dataclass(frozen=True)
class Entry:
    """One entry of a database; `make(lanes, most)` gives its samples."""

    name: str
    make: Callable[[int, int], list[Sample]]

    def in_shard(self, shard: int, shards: int) -> bool:
        """By a hash of the name, so that new entries do not move the others."""
        return zlib.crc32(self.name.encode()) % shards == shard


def entries(dtype: torch.dtype | None = None) -> Iterator[Entry]:
    """Every op, its in-place variant where it has one, and every module in both modes.

    In float64 where there is that, else in another dtype; with `dtype` only what has that one.
    """
    for op in op_db:
        if dtype is not None and not op.supports_dtype(dtype, "cpu"):
            continue
        name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        yield Entry(name, functools.partial(_op_samples, op, name, op.op, dtype))
        if op.inplace_variant is not None:
            in_place = _InPlace(op.inplace_variant)
            yield Entry(f"{name}_", functools.partial(_op_samples, op, f"{name}_", in_place, dtype))
    for info in module_db:
        if dtype is not None and dtype not in info.dtypes:
            continue
        for training in (True, False):
            name = f"{info.name} {'train' if training else 'eval'}"
            yield Entry(name, functools.partial(_module_samples, info, name, training, dtype))


@dataclass(frozen=True)
class _InPlace:
    """The in-place variant on a copy of its first argument."""

    op: Callable[..., Any]

    def __call__(self, first: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.op(first.clone(), *args, **kwargs)


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)


def _op_samples(
    op: Any, name: str, function: Callable[..., Any], dtype: torch.dtype | None, lanes: int, most: int
) -> list[Sample]:
    supported = [d for d in _DTYPES if op.supports_dtype(d, "cpu")] + sorted(op.dtypes, key=str)
    by_lane = []
    dtype = dtype or supported[0]
    gradient = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    for lane in range(lanes):
        seed(lane)
        by_lane.append(list(op.sample_inputs_func(op, "cpu", dtype, gradient)))
    samples = []
    for index in _spread(len(by_lane[0]), most):
        own = [
            _arguments((generated[index].input, *generated[index].args), generated[index].kwargs)
            for generated in by_lane
            if index < len(generated)
        ]
        process = by_lane[0][index].output_process_fn_grad
        if isinstance(own[0][0][0], Tensor) or not isinstance(function, _InPlace):
            samples.append(Sample(name, index, _alike(own, lanes), function, for_gradient=process))
    return samples


def _module_samples(
    info: Any, name: str, training: bool, dtype: torch.dtype | None, lanes: int, most: int
) -> list[Sample]:
    dtype = dtype or next((d for d in _DTYPES if d in info.dtypes), torch.float32)
    members: list[list[nn.Module]] = []
    arguments: list[list[Arguments]] = []
    for lane in range(lanes):
        seed(lane)
        generated = info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
        generated = [g for g in generated if g.forward_input is not None]
        chosen = [generated[i] for i in _spread(len(generated), most)]
        members.append([_module(info, g, dtype, training) for g in chosen])
        arguments.append([_arguments(g.forward_input.args, g.forward_input.kwargs) for g in chosen])
    columns = zip(zip(*members, strict=True), zip(*arguments, strict=True), strict=True)
    return [
        Sample(name, index, _alike(list(own), lanes), members=list(modules))
        for index, (modules, own) in enumerate(columns)
    ]


def _module(info: Any, given: Any, dtype: torch.dtype, training: bool) -> nn.Module:
    made, called = given.constructor_input, given.forward_input
    module = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
    if any(map(nn.parameter.is_lazy, module.parameters())):
        module(*called.args, **called.kwargs)
    with torch.no_grad():  # a norm starts with ones and zeros in every lane, which would hide mixed-up lanes
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.rand_like(parameter) * 0.1)
    return module


def _spread(count: int, most: int) -> list[int]:
    """At most `most` positions in `count`, the first among them, evenly apart."""
    step = max(count / most, 1.0)
    return sorted({int(i * step) for i in range(most) if int(i * step) < count})


def _arguments(args: Any, kwargs: dict[str, Any]) -> Arguments:
    """The call with leaves of its own; `requires_grad` says which tensors the op has a gradient for."""

    def leaf(x: Any) -> Any:
        return x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x

    return pytree.tree_map(leaf, (tuple(args), dict(kwargs)))


def _alike(own: list[Arguments], lanes: int) -> list[Arguments]:
    """Every lane with lane 0's plain arguments; lanes of other shapes take lane 0's numbers, rolled."""
    first, spec = pytree.tree_flatten(own[0])
    result = []
    for lane in range(lanes):
        leaves, structure = pytree.tree_flatten(own[lane]) if lane < len(own) else ([], None)
        fits = structure == spec and all(map(_same_kind, leaves, first))
        mixed = [
            (mine if fits else _rolled(x, lane)) if isinstance(x, Tensor) else x
            for x, mine in zip(first, leaves if fits else first, strict=True)
        ]
        result.append(pytree.tree_unflatten(mixed, spec))
    return result


def _same_kind(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return isinstance(a, Tensor) == isinstance(b, Tensor)
    strides = a.layout != torch.strided or a.stride() == b.stride()
    return strides and (a.shape, a.dtype, a.layout) == (b.shape, b.dtype, b.layout)


def _rolled(x: Tensor, by: int) -> Tensor:
    if x.layout != torch.strided or not x.dim() or not x.is_contiguous() or not x.is_floating_point():
        return x
    return x.detach().roll(by, 0).requires_grad_(x.requires_grad)
