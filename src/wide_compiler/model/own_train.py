"""Members changed by methods of their own: `train` and `eval` that compute with tensors, `set_extra_state`.

A skeleton has no numbers, so they are called on every lane as an ordinary model, and the wide model takes
over what has become of it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..capture import canonical_names, slots
from ..capture.state import home_of
from ..errors import UnsupportedError
from .members import Skeletons, hooks_lost
from .submodules import Place, Scope, find_ties


def change_lanes(store: Any, change: Callable[[nn.Module, int], Any]) -> None:
    """Call `change(member, lane)` on every lane as an ordinary model, and take over its tensors and Python
    state."""
    if store.registered.builders:
        path = next(iter(store.registered.builders))
        raise UnsupportedError(_refusal(f"computes with tensors, and {path} is a registered wide module"))
    members = [store.lane(lane) for lane in range(store.n)]
    for place in store.places:
        if place.kind == "parameter" and place.home.get(place.name) is not None:
            for member in members:
                member.get_parameter(place.path).requires_grad_(place.tensor.requires_grad)
    for lane, member in enumerate(members):
        change(member, lane)
    _take(store, members)


def _take(store: Any, members: Sequence[nn.Module]) -> None:
    names = canonical_names(members[0])
    found = {names[slot.path]: slot for slot in reversed(list(slots(members[0])))}
    places = {place.path: place for place in store.places}
    _check_structure(store, members, names, places)
    values = {
        path: [home_of(m.get_submodule(slot.owner), slot.kind)[slot.name] for m in members]
        for path, slot in found.items()
    }
    for path, tensors in values.items():
        _check_kinds(path, tensors, places.get(path))
    with torch.inference_mode(False), torch.no_grad():
        for path in places.keys() - found.keys():
            del places[path].home[places[path].name]
            store.places.remove(places[path])
            store.wide_states.discard(path)
        for path, tensors in values.items():
            if path in places:
                _write(store, places[path], tensors)
            else:
                slot = found[path]
                scope = store.get_submodule(slot.owner)
                scope._buffers[slot.name] = torch.stack([t.detach() for t in tensors])
                if not slot.persistent:
                    scope._non_persistent_buffers_set.add(slot.name)
                store.places.append(Place(path, scope, slot.name, "buffer"))
                store.wide_states.add(path)
    store.ragged.clear()
    store.skeletons.replace(Skeletons.of(members))
    for path, scope in store.named_modules():
        if isinstance(scope, Scope):
            scope.belongs_to(store.skeletons, path)
    find_ties(store.scopes)
    store.uncapturable = hooks_lost(members, forward=False)
    store.views.relink(store.places, store.wide_states)
    store._forget_programs()


def _check_structure(
    store: Any, members: Sequence[nn.Module], names: dict[str, str], places: dict[str, Place]
) -> None:
    for lane, member in enumerate(members):
        modules = {path for path, _ in member.named_modules()}
        for path in sorted(modules ^ store.own_paths):
            raise UnsupportedError(_refusal(f"{_verb(path in modules)} the module {path}"))
        if canonical_names(member) != names:
            raise UnsupportedError(_refusal(f"leaves other tensors in lane {lane} than in lane 0"))
    parameters = {names[s.path] for s in slots(members[0]) if s.kind == "parameter"}
    stored = {path for path, place in places.items() if place.kind == "parameter"}
    for path in sorted(parameters ^ stored):
        raise UnsupportedError(_refusal(f"{_verb(path in parameters)} the parameter {path}"))


def _check_kinds(path: str, tensors: Sequence[Tensor], place: Place | None) -> None:
    kinds = {(tuple(t.shape), t.dtype) for t in tensors}
    if len(kinds) > 1:
        raise UnsupportedError(
            _refusal(f"gives {path} different shapes or dtypes in different lanes, {kinds}")
        )
    if place is None or place.kind != "parameter":
        return
    if len({t.requires_grad for t in tensors}) > 1:
        raise UnsupportedError(_refusal(f"freezes {path} in some lanes only"))


def _write(store: Any, place: Place, tensors: Sequence[Tensor]) -> None:
    wide, parameter = place.path in store.wide_states, place.kind == "parameter"
    current = place.home.get(place.name)
    if current is None:  # computed from other tensors, by a parametrization of the wide model
        return
    if not wide and any(not torch.equal(t, tensors[0]) for t in tensors[1:]):
        store.promote(place.path)  # raises for a parameter
        current, wide = place.tensor, True
    value = torch.stack([t.detach() for t in tensors]) if wide else tensors[0].detach()
    if (value.shape, value.dtype) != (current.shape, current.dtype):
        if parameter:
            raise UnsupportedError(_refusal(f"gives the parameter {place.path} another shape or dtype"))
        place.home[place.name] = value.clone()
    elif not torch.equal(value, current):
        if parameter:
            store.give_own_memory(place)
        current.copy_(value)
    if parameter and current.requires_grad != tensors[0].requires_grad:
        current.requires_grad_(tensors[0].requires_grad)


def _verb(made: bool) -> str:
    return "makes" if made else "removes"


def _refusal(what: str) -> str:
    return (
        f"the members' train(), eval() or set_extra_state() {what}, which stacked lanes cannot follow; call "
        f"it on the members, and compile these"
    )
