"""Children that a tower's forward never uses; towers that differ only in such children can be grouped."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..capture import clone_member, structure


def without_children(tower: nn.Module, names: Collection[str]) -> nn.Module:
    """Return a shallow copy of the module without these children; everything else is shared with it."""
    new = object.__new__(type(tower))
    new.__dict__.update(tower.__dict__)
    new.__dict__["_modules"] = {name: m for name, m in tower._modules.items() if name not in names}
    return new


def unlike_children(towers: Collection[nn.Module]) -> list[str]:
    """Return the names of direct children that differ in structure between towers, or that some lack."""
    names = dict.fromkeys(name for tower in towers for name in tower._modules)
    kinds = {name: {_kind(tower._modules.get(name)) for tower in towers} for name in names}
    return [name for name, found in kinds.items() if len(found) > 1]


def _kind(child: nn.Module | None) -> Any:
    return None if child is None else structure(child)


def idle_children(tower: nn.Module, names: Collection[str], args: tuple, kwargs: dict) -> frozenset[str]:
    """Return the children in `names` whose removal changes no output. Runs copies of the tower."""
    expected = _run(tower, args, kwargs)
    if expected is None:
        return frozenset()
    idle: set[str] = set()
    for name in names:
        if name in tower._modules and _same(
            _run(without_children(tower, {*idle, name}), args, kwargs), expected
        ):
            idle.add(name)
    return frozenset(idle)


def _run(tower: nn.Module, args: tuple, kwargs: dict) -> list[Any] | None:
    """Return the leaves of its output; None if it raises, as it does if a used child is missing."""
    own = _tree.tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, (args, kwargs))
    try:
        copy = clone_member(tower)
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            return _tree.flatten(copy(*own[0], **own[1]))[0]
    except Exception:  # a forward without one of its children may raise anything
        return None


def _same(one: list[Any] | None, other: list[Any]) -> bool:
    if one is None or len(one) != len(other):
        return False
    return all(
        isinstance(b, Tensor) and a.shape == b.shape and torch.equal(a, b)
        if isinstance(a, Tensor)
        else a == b
        for a, b in zip(one, other, strict=True)
    )


def sorted_by_use(
    towers: Mapping[str, nn.Module], args: tuple, kwargs: dict
) -> dict[Any, tuple[list[str], frozenset[str]]]:
    """Group towers by class and structure of the children they use: (names, children that are not used)."""
    by_class: dict[type, list[str]] = {}
    for name, tower in towers.items():
        by_class.setdefault(type(tower), []).append(name)
    found: dict[Any, tuple[list[str], frozenset[str]]] = {}
    for kind, names in by_class.items():
        unlike = unlike_children([towers[name] for name in names]) if len(names) > 1 else []
        for name in names:
            idle = idle_children(towers[name], unlike, args, kwargs) if unlike else frozenset()
            used = structure(without_children(towers[name], idle)) or name
            alike, of_all = found.get((kind, used), ([], frozenset()))
            found[kind, used] = ([*alike, name], of_all | idle)
    return found
