"""Check that N models have one architecture; report the first difference by path."""

import itertools
from collections.abc import Sequence
from typing import Any

from torch import nn

from ..errors import AlignmentError
from .state import canonical_names, has_gradient_hooks, is_uninitialized, slots
from .strides import extent_of, is_ragged_or_sparse, kind_of

REMEDY = "group lanes by signature with WideRouter"


def class_name(obj: object) -> str:
    """Return the name of the class; parametrization makes a class per instance, so names are compared."""
    return f"{type(obj).__module__}.{type(obj).__qualname__}"


def check_models(models: Sequence[nn.Module]) -> None:
    """Raise an `AlignmentError` for the first difference between lane 0 and another lane."""
    for lane, model in enumerate(models):
        if not isinstance(model, nn.Module):
            raise AlignmentError(
                f"lane {lane} is {type(model).__name__}, expected a torch.nn.Module; "
                f"compile takes a list of models, or one model and n="
            )
    for lane, model in enumerate(models):
        _check_tensors(model, lane)
    reference = _Signature(models[0])
    for lane, model in enumerate(models[1:], start=1):
        reference.compare(_Signature(model), lane)


def _check_tensors(model: nn.Module, lane: int) -> None:
    """Reject what stacking would lose: gradient hooks on tensors, and tensors that overlap in memory."""
    spans: list[tuple[int, int, str, int]] = []
    for slot in slots(model):
        tensor = slot.tensor
        if is_uninitialized(tensor):
            raise AlignmentError(
                f"lane {lane}: {slot.path} of {type(model.get_submodule(slot.owner)).__name__} is not "
                f"initialised yet (a lazy module); run each model once first"
            )
        if is_ragged_or_sparse(tensor):
            raise AlignmentError(
                f"lane {lane}: {slot.path} is a {kind_of(tensor)} tensor, expected a dense one, because "
                f"lanes are stacked on a new axis; keep its to_dense(), or its indices and values"
            )
        if has_gradient_hooks(tensor):
            raise AlignmentError(
                f"lane {lane}: {slot.path} has a gradient hook, which a stacked tensor would lose; "
                f"remove it, and register one on the wide model's parameter"
            )
        if tensor.numel() and tensor.device.type != "meta":
            start, size = tensor.data_ptr(), extent_of(tensor) * tensor.element_size()
            spans.append((start, start + size, slot.path, id(tensor)))
    spans.sort()
    for (_, end, path, this), (start, _, other, that) in itertools.pairwise(spans):
        if start < end and this != that:
            raise AlignmentError(
                f"lane {lane}: {other} shares memory with {path}, which stacking would undo; "
                f"make one of them a clone, or the same object"
            )


def structure(model: nn.Module) -> tuple[Any, ...] | None:
    """Everything that `check_models` compares, as a hashable key; None if a module is lazy."""
    signature = _Signature(model)
    if any(is_uninitialized(slot.tensor) for slot in signature.state.values()):
        return None
    pairs = [(slot, slot.tensor) for slot in signature.state.values()]
    kinds = tuple((s.path, s.kind, t.shape, t.dtype, t.device, t.requires_grad) for s, t in pairs)
    tables = (signature.modules, signature.ties, signature.training)
    return (kinds, *(tuple(table.items()) for table in tables))


class _Signature:
    def __init__(self, model: nn.Module):
        self.modules = {path: class_name(m) for path, m in model.named_modules(remove_duplicate=False)}
        self.state = {slot.path: slot for slot in slots(model)}
        self.ties = canonical_names(model)
        self.training = {path: m.training for path, m in model.named_modules(remove_duplicate=False)}

    def compare(self, other: "_Signature", lane: int) -> None:
        for path in {**self.modules, **other.modules}:
            mine, theirs = self.modules.get(path, "nothing"), other.modules.get(path, "nothing")
            if mine != theirs:
                where = path or "the model"
                raise AlignmentError(f"lane {lane}: {where} is {theirs}, lane 0 has {mine}; {REMEDY}")
        for path in {**self.state, **other.state}:
            self._compare_slot(path, other, lane)
        for path, training in self.training.items():
            if other.training[path] != training:
                words = {True: "in training", False: "in eval mode"}
                raise AlignmentError(
                    f"lane {lane}: {path or 'the model'} is {words[not training]}, lane 0 is "
                    f"{words[training]}; call train() or eval() alike on all models before compiling"
                )
        for path, canonical in self.ties.items():
            if other.ties[path] != canonical:
                raise AlignmentError(
                    f"lane {lane}: {path} {_tie(path, other.ties[path])}, "
                    f"lane 0: {path} {_tie(path, canonical)}; ties must agree"
                )

    def _compare_slot(self, path: str, other: "_Signature", lane: int) -> None:
        mine, theirs = self.state.get(path), other.state.get(path)
        if mine is None or theirs is None:
            got, want = _describe(theirs), _describe(mine)
            raise AlignmentError(f"lane {lane}: {path} is {got}, lane 0 has {want}; {REMEDY}")
        if mine.kind != theirs.kind:
            got, want = theirs.kind, mine.kind
            raise AlignmentError(f"lane {lane}: {path} is a {got}, lane 0 has a {want}; {REMEDY}")
        a, b = mine.tensor.shape, theirs.tensor.shape
        if a != b:
            raise AlignmentError(f"lane {lane}: {path} is {tuple(b)}, lane 0 has {tuple(a)}; {REMEDY}")
        for attribute in ("dtype", "device", "requires_grad"):
            a, b = getattr(mine.tensor, attribute), getattr(theirs.tensor, attribute)
            if a != b:
                raise AlignmentError(
                    f"lane {lane}: {path} has {attribute}={b}, lane 0 has {attribute}={a}; "
                    f"make the lanes agree before compiling"
                )


def _describe(slot) -> str:
    return "missing" if slot is None else f"a {slot.kind} {tuple(slot.tensor.shape)}"


def _tie(path: str, canonical: str) -> str:
    return "is a tensor of its own" if path == canonical else f"is tied to {canonical}"
