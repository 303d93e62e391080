"""Saving and loading of lanes, as files and state dicts."""

import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..capture import slots
from ..errors import InputError, UnsupportedError
from ..remote_tensors import address, to_local
from .own_train import change_lanes


def save(model: Any, path: Any, lane: int | None) -> None:
    state = model.state_dict() if lane is None else model.lane(lane).state_dict()
    extra = next((key for key, value in state.items() if not isinstance(value, Tensor)), None)
    if extra is not None:
        raise UnsupportedError(
            f"{extra} (of get_extra_state) is no tensor, and safetensors files hold nothing else; use "
            f"torch.save(wide.state_dict(), path) and wide.load_state_dict(torch.load(path))"
        )
    seen: dict[int, str] = {}
    # safetensors rejects shared memory: tied names are dropped here and restored on loading.
    unique = {
        k: to_local(t).detach().contiguous()
        for k, t in state.items()
        if seen.setdefault(address(t) if t.numel() else id(t), k) == k
    }
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        lanes = str(model.n if lane is None else 1)
        save_file(unique, temporary, metadata={"format": "wide_compiler", "lanes": lanes})
        os.replace(temporary, target)  # atomic: a reader never sees a partial file
    finally:
        temporary.unlink(missing_ok=True)


def load(model: Any, path: Any, lane: int | None) -> None:
    with safe_open(str(path), framework="pt") as file:
        state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
    if lane is not None:
        model.load_lane(lane, state)
        return
    expected = model.state_dict()
    _compare_keys(state, expected, f"{path}")
    may_gain_lanes = {p.path for p in model.places if p.kind == "buffer"}
    for key in [key for key in expected if key in state and key not in may_gain_lanes]:
        if state[key].shape != expected[key].shape:
            raise InputError(
                f"{path}: {key} is {tuple(state[key].shape)}, "
                f"this wide model of {model.n} lanes has {tuple(expected[key].shape)}"
            )
    _fill_ties(state, expected)
    model.load_state_dict(state)


def load_lane(model: Any, lane: int, state: Mapping[str, Tensor]) -> None:
    """Copy a member's state into one lane. Raise `InputError` before any change if it does not fit."""
    lane %= model.n
    for place in model.places:
        place.check_stored("load_lane")
    member = model.lane(lane)
    expected = member.state_dict()
    _compare_keys(state, expected, "this state")
    extra = {key: value for key, value in state.items() if key in _extra_keys(model)}
    for key, tensor in state.items():
        if key in extra:
            continue
        if not isinstance(tensor, Tensor):
            raise InputError(f"lane {lane}: {key} is {type(tensor).__name__}, expected a tensor")
        if tensor.shape != expected[key].shape:
            raise InputError(
                f"lane {lane}: {key} is {tuple(tensor.shape)}, the members have {tuple(expected[key].shape)}"
            )
    full = OrderedDict(state)
    full._metadata = getattr(state, "_metadata", None)  # type: ignore[attr-defined]  # versions of modules
    _fill_ties(full, expected)
    member.load_state_dict(full)
    _copy_in(model, lane, member)
    if extra:
        set_in = {_extra_keys(model)[key]: value for key, value in extra.items()}
        change_lanes(model, lambda other, i: _set_extra_states(other, set_in if i == lane else {}))


def _copy_in(model: Any, lane: int, member: nn.Module) -> None:
    trunk = [p for p in model.places if p.kind == "parameter" and p.path not in model.wide_states]
    for place in trunk:
        if not torch.equal(place.tensor, member.get_parameter(place.path)):
            raise InputError(
                f"{place.path} is one parameter for all lanes (a shared trunk), "
                "and this state has other values for it; load_state_dict changes it for all lanes, "
                "or give each model a copy of its own before compiling"
            )
    with torch.no_grad():
        for slot in [slot for slot in slots(member) if slot.kind != "constant"]:  # not in a state_dict
            if model.registered.outer(slot.path) is not None:
                model.lane_state(lane, slot.path).copy_(slot.tensor)
                continue
            place = next((p for p in model.places if p.path == slot.path), None)
            if place is None:
                continue  # a tied name; the canonical one is copied
            if slot.path not in model.wide_states:
                if torch.equal(place.tensor, slot.tensor):
                    continue
                model.promote(slot.path)
            place.tensor[lane].copy_(slot.tensor)


def _compare_keys(state: Mapping[str, Any], expected: Mapping[str, Tensor], what: str) -> None:
    unexpected = [key for key in state if key not in expected]
    if unexpected:
        raise InputError(
            f"{what} has {unexpected[0]!r}, which the members do not have; they have {_listed(expected)}"
        )
    pointers = {_address(expected[key]) for key in state}
    missing = [key for key in expected if key not in state and _address(expected[key]) not in pointers]
    if missing:
        raise InputError(f"{what} lacks {missing[0]!r}, which the members have; it has {_listed(state)}")


def _listed(names: Mapping[str, Any], most: int = 8) -> str:
    return ", ".join([*list(names)[:most], *(["..."] if len(names) > most else [])]) or "nothing"


def _fill_ties(state: dict[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    by_pointer = {_address(expected[key]): state[key] for key in state}
    for key, tensor in expected.items():
        state.setdefault(key, by_pointer.get(_address(tensor), tensor))


def _address(value: Any) -> int:
    return address(value) if isinstance(value, Tensor) else id(value)


def _extra_keys(model: Any) -> dict[str, str]:
    """Return key in a member's state_dict -> path of a module with its own `get_extra_state`."""
    modules = model.skeletons.lane(0).named_modules(remove_duplicate=False)
    own = [path for path, m in modules if type(m).get_extra_state is not nn.Module.get_extra_state]
    return {f"{path}._extra_state".lstrip("."): path for path in own}


def _set_extra_states(member: nn.Module, values: Mapping[str, Any]) -> None:
    for path, value in values.items():
        member.get_submodule(path).set_extra_state(value)


def save_extra_states(model: Any, destination: dict[str, Any], prefix: str) -> None:
    """Add the members' extra states, each as a list of N, one per lane."""
    keys = _extra_keys(model)
    members = list(model.lanes()) if keys else []
    for key, path in keys.items():
        destination[prefix + key] = [member.get_submodule(path).get_extra_state() for member in members]


def load_extra_states(
    model: Any, state: dict[str, Any], prefix: str, metadata: Any, strict: bool, missing: Any, *others: Any
) -> None:
    """Take what `save_extra_states` has added out of `state`, and set it in every lane."""
    keys = _extra_keys(model)
    found = {path: state.pop(prefix + key) for key, path in keys.items() if prefix + key in state}
    if strict:
        missing += [prefix + key for key, path in keys.items() if path not in found]
    for path, values in found.items():
        if not isinstance(values, list) or len(values) != model.n:
            raise InputError(
                f"the extra state of {path or 'the members'} must be a list of {model.n}, one per lane"
            )
    if found:
        change_lanes(
            model,
            lambda member, lane: _set_extra_states(member, {p: values[lane] for p, values in found.items()}),
        )


def fit_lane_axes(model: Any, state: dict[str, Tensor], prefix: str) -> None:
    """Adapt a state in which other buffers had a lane axis to this model."""
    for place in model.places:
        key = prefix + place.path
        incoming = state.get(key)
        if incoming is None or place.kind == "parameter":
            continue
        if place.path not in model.wide_states and incoming.shape == (model.n, *place.tensor.shape):
            model.promote(place.path)
        elif place.path in model.wide_states and incoming.shape == place.tensor.shape[1:]:
            state[key] = incoming.unsqueeze(0).expand_as(place.tensor)
