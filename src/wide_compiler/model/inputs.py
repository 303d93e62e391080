"""Validation of samples and calls."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..capture import observe_member
from ..capture.strides import is_ragged_or_sparse, kind_of
from ..errors import InputError, SampleError
from .program import Call
from .submodules import Place


def normalize_sample(sample: Any, sample_kwargs: Mapping[str, Any] | None) -> tuple[tuple, dict]:
    """Convert a tensor, a tuple of positional arguments or a dict of keywords to (args, kwargs)."""
    kwargs = dict(sample_kwargs or {})
    if isinstance(sample, Tensor):
        return (sample,), kwargs
    if isinstance(sample, tuple):
        return sample, kwargs
    if isinstance(sample, Mapping):
        if kwargs:
            raise SampleError("give keywords either as the sample itself or as sample_kwargs=, not both")
        return (), dict(sample)
    if sample is None and kwargs:
        return (), kwargs
    raise SampleError(
        f"expected one member's input as the sample: a tensor, a tuple of positional arguments or a dict of "
        f"keywords, got {type(sample).__name__}"
    )


def accepted_sample(member: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Return the sample to capture with. Raise `SampleError` if the member rejects it.

    A batch of one is doubled if the member accepts that, because export would specialise on batch size one.
    """
    check_dense(args, kwargs, SampleError)
    doubled = _doubled(args, kwargs)
    if doubled is not None and member_error(member, *doubled) is None:
        return doubled
    error = member_error(member, args, kwargs)
    if error is not None:
        given_dict = kwargs and not args
        hint = "; to pass one dict as a positional argument, write sample=({...},)" if given_dict else ""
        raise SampleError(f"the model rejects the sample: {type(error).__name__}: {error}{hint}") from error
    return args, kwargs


def check_dense(args: tuple, kwargs: dict, kind: type[Exception]) -> None:
    """Raise `kind` for sparse or nested tensors, which cannot be stacked on a lane axis."""
    leaves = _tree.flatten((args, kwargs))[0]
    for path, leaf in zip(_tree.argument_paths(args, kwargs), leaves, strict=True):
        if isinstance(leaf, Tensor) and is_ragged_or_sparse(leaf):
            raise kind(
                f"{path} is a {kind_of(leaf)} tensor, expected a dense one, because lanes are stacked on a "
                f"new axis; give its to_dense(), or its indices and values"
            )


def member_error(member: nn.Module, args: tuple, kwargs: dict) -> Exception | None:
    """Run a copy of the member on a copy of the input. Return its error, or None."""
    try:
        observe_member(member, args, kwargs)
    except Exception as error:
        return error
    return None


def _doubled(args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
    def doubled(leaf: Any) -> Any:
        return torch.cat([leaf, leaf]) if isinstance(leaf, Tensor) and leaf.dim() else leaf

    leaves = _tree.flatten((args, kwargs))[0]
    sizes = {leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()}
    return _tree.tree_map(doubled, (args, kwargs)) if sizes == {1} else None


def check_lanes(call: Call, n: int) -> None:
    """Raise `InputError` unless every wide tensor has N lanes on axis 0, since one lane would broadcast."""
    if any(is_ragged_or_sparse(tensor) for tensor in call.tensors):
        args, kwargs = _tree.unflatten(call.leaves, call.spec)
        check_dense(args, kwargs, InputError)
    for position, tensor in enumerate(call.tensors):
        if call.wide[position] and (tensor.dim() == 0 or tensor.shape[0] != n):
            path = call_paths(call)[position]
            raise InputError(
                f"{path} is {tuple(tensor.shape)}, expected {n} lanes on axis 0; "
                f"for one input for all lanes use wide.shared(...)"
            )


def check_accepted(call: Call, member: nn.Module, sample: tuple[tuple, dict]) -> None:
    """Run a new kind of input through one member first, and raise `InputError` if the member rejects it."""
    error = member_error(member, *call.for_lane(0))
    if error is None:
        return
    leaves, spec = _tree.flatten(sample)
    hints = []
    if call.spec != spec:
        arguments = _tree.unflatten(call.leaves, call.spec)
        describe = _describe if _describe(arguments) != _describe(sample) else _types
        hints.append(f"the sample had {describe(sample)}, this call has {describe(arguments)}")
    else:
        expected = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        given = zip(call_paths(call), call.tensors, call.member_shapes, expected, strict=False)
        for path, got, shape, want in given:
            kinds = [f"{tensor.dtype} on {tensor.device}" for tensor in (got, want)]
            if kinds[0] != kinds[1]:
                hints.append(f"{path} is {kinds[0]}, the sample had {kinds[1]}")
            elif len(shape) != want.dim() or shape[1:] != tuple(want.shape[1:]):
                # A batch of one in the sample was doubled, so its size would say nothing.
                sizes = ", ".join(["B", *map(str, want.shape[1:])][: want.dim()])
                hints.append(f"{path} is {shape} per lane, expected ({sizes}) as in the sample")
    if call.packed:
        hints.append("wide(x) takes packed [B, N*C, ...]; for one input for all lanes use wide.shared(x)")
    detail = f" ({'; '.join(hints)})" if hints else ""
    raise InputError(f"the members reject this input: {type(error).__name__}: {error}{detail}") from error


def call_paths(call: Call) -> list[str]:
    """Return a printable path for each tensor of a call."""
    args, kwargs = _tree.unflatten(call.leaves, call.spec)
    paths = _tree.argument_paths(args, kwargs)
    return [path for path, leaf in zip(paths, call.leaves, strict=True) if isinstance(leaf, Tensor)]


def _describe(arguments: Any) -> str:
    args, kwargs = arguments
    names = [f"{len(args)} positional"] + [f"{k}=" for k in kwargs]
    return "(" + ", ".join(names) + ")"


def _types(arguments: Any) -> str:
    args, kwargs = arguments
    return ", ".join(
        [type(x).__name__ for x in args] + [f"{k}={type(x).__name__}" for k, x in kwargs.items()]
    )


def sample_leaves(sample: tuple[tuple, dict], wide: tuple[bool, ...], lanes: int) -> tuple[list[Any], Any]:
    """Return the sample's leaves, repeated over lanes where `wide`; odd lanes get the batch reversed."""
    leaves, spec = _tree.flatten(sample)
    flags = iter(wide)
    return [(_spread(x, lanes) if next(flags) else x) if isinstance(x, Tensor) else x for x in leaves], spec


def _spread(sample: Tensor, n: int) -> Tensor:
    if sample.dim() == 0:
        return sample.expand(n)
    if sample.is_floating_point() and sample.dtype.itemsize == 1:  # float8 supports neither flip nor repeat
        return _spread(sample.view(torch.uint8), n).view(sample.dtype)
    return torch.stack([sample, sample.flip(0)]).repeat((n + 1) // 2, *([1] * sample.dim()))[:n]


def grown_sample(
    tensors: list[Tensor], shapes: Any, kinds: Any, wide: tuple[bool, ...], lanes: int
) -> list[Tensor]:
    """Return tensors of the given shapes per member, filled by repeating the sample's values."""
    grown = []
    for tensor, shape, (dtype, device, _), spread in zip(tensors, shapes, kinds, wide, strict=True):
        times = [-(-size // max(have, 1)) for size, have in zip(shape, tensor.shape, strict=True)]
        big = tensor.repeat(times) if times else tensor
        big = big[tuple(slice(size) for size in shape)].to(device, dtype)
        grown.append(_spread(big, lanes) if spread else big)
    return grown


def moved_sample(sample: tuple[tuple, dict], places: list[Place]) -> tuple[tuple, dict]:
    """Move the sample to the model's device, and its floating tensors to the model's dtype."""
    reference = next((p.tensor for p in places if p.tensor.is_floating_point()), None)

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or reference is None:
            return leaf
        return leaf.to(reference) if leaf.is_floating_point() else leaf.to(reference.device)

    return _tree.tree_map(move, sample)
