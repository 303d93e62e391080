"""Children that a tower's forward never uses: towers that differ in nothing else are alike."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..capture import clone_member, structure


def without_children(tower: nn.Module, names: Collection[str]) -> nn.Module:
    """The same module, its attributes, tensors and other children the tower's own, without these children."""
    new = object.__new__(type(tower))
    new.__dict__.update(tower.__dict__)
    new.__dict__["_modules"] = {name: m for name, m in tower._modules.items() if name not in names}
    return new


def unlike_children(towers: Collection[nn.Module]) -> list[str]:
    """The names of direct children of which the towers have different kinds, or only some have one."""
    names = dict.fromkeys(name for tower in towers for name in tower._modules)
    kinds = {name: {_kind(tower._modules.get(name)) for tower in towers} for name in names}
    return [name for name, found in kinds.items() if len(found) > 1]


def _kind(child: nn.Module | None) -> Any:
    return None if child is None else structure(child)


def idle_children(tower: nn.Module, names: Collection[str], args: tuple, kwargs: dict) -> frozenset[str]:
    """Those of the children whose absence changes nothing in a run of the tower. Copies are run."""
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
    """The leaves of its output; None if it raises, as it does where a child is missing."""
    own = _tree.tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, (args, kwargs))
    try:
        copy = clone_member(tower)
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            return _tree.flatten(copy(*own[0], **own[1]))[0]
    except Exception:  # whatever a forward raises that misses a child
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
    """Towers by the structure of what they use: their names, and the children that they do not."""
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
