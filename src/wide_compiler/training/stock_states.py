"""StockStates: conversion of optimiser state to and from `torch.optim`, and loading of checkpoints."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..model.marks import has_lanes
from .groups import MASKED, RATIO, name_of
from .lane_numbers import lane_indices
from .lane_states import LaneStates

# Group options that affect how a step runs but not its result; not exchanged with `torch.optim`.
_HOW = ("foreach", "fused", "capturable", "params", "param_names", RATIO, MASKED)


class StockStates(LaneStates):
    """Optimiser whose state per lane converts to and from a `torch.optim` state_dict."""

    # Whether the `torch.optim` class expects a state for parameters that have not been updated yet.
    state_from_start = False

    def lane_state(self, lane: int) -> dict[str, Any]:
        """Return a state_dict for the `torch.optim` class over `wide.lane(lane).parameters()`."""
        lane = int(lane_indices(lane, self.n))
        states: dict[int, dict[str, Any]] = {}
        groups: list[dict[str, Any]] = []
        count = 0
        for index, group in enumerate(self.param_groups):
            of_lane = {key: value for key, value in group.items() if key not in _HOW}
            of_lane |= self.lane_numbers(index, lane)
            if "initial_lr" in group:
                ratio = 1.0 if group[RATIO] is None else float(group[RATIO][lane])
                of_lane["initial_lr"] = float(group["initial_lr"]) * ratio
            of_lane |= {"foreach": None, "fused": None, "capturable": False}
            of_lane["params"] = list(range(count, count + len(group["params"])))
            groups.append(of_lane)
            for position, p in enumerate(group["params"], count):
                state = self.state.get(p, {})
                if not state and self.state_from_start:
                    self._begin(p, state, group, {})
                if state:
                    states[position] = self.stock_state(self._lane_of(p, state, lane), group)
            count += len(group["params"])
        return {"state": states, "param_groups": groups}

    def stock_state(self, state: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
        """Convert one parameter's state of one lane to the form of `torch.optim`."""
        return state

    def own_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Convert one parameter's state from the form of `torch.optim`."""
        return state

    def _lane_of(self, p: Tensor, state: dict[str, Any], lane: int) -> dict[str, Any]:
        found = {}
        for name, tensor in state.items():
            own = tensor[lane] if has_lanes(p) and tensor.dim() else tensor
            found[name] = own.cpu().clone() if name == "step" else own.clone()
        return found

    @torch.no_grad()
    def load_lane_state(self, lane: int, state_dict: Mapping[str, Any]) -> None:
        """Load the state_dict of a `torch.optim` optimiser, or of `lane_state`, into one lane."""
        lane = int(lane_indices(lane, self.n))
        groups = state_dict["param_groups"]
        sizes, expected = [len(g["params"]) for g in groups], [len(g["params"]) for g in self.param_groups]
        if sizes != expected:
            raise ArgumentError(
                f"lane {lane}: this state has groups of {sizes} parameters, expected {expected}"
            )
        homes = list(self._incoming(lane, state_dict))
        self._load_numbers(lane, groups)
        self.reset_lanes([lane])
        for p, group, _ in homes:
            if not self.state[p]:
                self._begin(p, self.state[p], group, {})
        self._part_steps()
        for p, _, state in homes:
            if "step" in self.state[p]:  # others may share it, and have another count
                self.state[p]["step"] = self.state[p]["step"].clone()
            for name, tensor in self.state[p].items():
                if state.get(name) is not None:
                    tensor[lane].copy_(torch.as_tensor(state[name]))
        self._join_steps()

    def _incoming(self, lane: int, state_dict: Mapping[str, Any]) -> Iterator[Any]:
        """Yield (parameter, group, state) of a lane's state_dict for parameters with a lane axis."""
        for saved, group in zip(state_dict["param_groups"], self.param_groups, strict=True):
            for index, p in zip(saved["params"], group["params"], strict=True):
                state = state_dict["state"].get(index)
                if not state or not has_lanes(p):
                    continue
                for name in self.fresh_state(group):
                    given = state.get(name)
                    if given is not None and given.shape != p.shape[1:]:
                        raise ArgumentError(
                            f"lane {lane}: {name} of {name_of(p)} is {tuple(given.shape)}, "
                            f"the members have {tuple(p.shape[1:])}"
                        )
                yield p, group, self.own_state(dict(state))

    def _load_numbers(self, lane: int, groups: list[dict[str, Any]]) -> None:
        for index, (saved, group) in enumerate(zip(groups, self.param_groups, strict=True)):
            for name, value in group.items():
                if isinstance(value, bool) and name not in _HOW and saved.get(name, value) != value:
                    raise ArgumentError(
                        f"lane {lane}: this state is of {name}={saved[name]}, the lanes here are of {value}"
                    )
            for name, now in self._flat(self.lane_numbers(index, lane)).items():
                given = self._flat(saved).get(name, now)
                if float(given) != now:
                    self.set_lane_values(name, float(given), [lane], index)

    def _flat(self, numbers: dict[str, Any]) -> dict[str, Any]:
        found = {name: numbers[name] for name in self.limits if name in numbers}
        if "betas" in numbers:
            found["beta1"], found["beta2"] = numbers["betas"]
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state_dict of this class, or of the `torch.optim` class of this kind."""
        self._check_shapes(state_dict)
        way = ("fused", "capturable")
        how: list[dict[str, Any]] = [{k: g[k] for k in way if k in g} for g in self.param_groups]
        super().load_state_dict(copy.deepcopy(dict(state_dict)))
        for group, own in zip(self.param_groups, how, strict=True):
            device = group["params"][0].device
            group.update(own)  # keep the current options of how steps run
            for key, value in self.defaults.items():
                group.setdefault(key, value)
            for key in (RATIO, MASKED):
                group.setdefault(key, None)
            for key, value in group.items():
                if isinstance(value, Tensor):
                    group[key] = value.to(device)
            self.put_rate_on_device(group)
            if "betas" in group:
                group["betas"] = [b.to(device) if isinstance(b, Tensor) else b for b in group["betas"]]
            for p in group["params"]:
                if "step" in self.state.get(p, {}):
                    self.state[p]["step"] = self.state[p]["step"].to(device, torch.float32)
        self._join_steps()

    def _check_shapes(self, state_dict: Mapping[str, Any]) -> None:
        for saved, group in zip(state_dict["param_groups"], self.param_groups, strict=False):
            numbers = [saved.get(RATIO), *(saved.get(name) for name in self.limits), *saved.get("betas", ())]
            for number in numbers:
                if isinstance(number, Tensor) and number.dim() and len(number) != self.n:
                    raise ArgumentError(f"this state is of {len(number)} lanes, the parameters have {self.n}")
            for index, p in zip(saved["params"], group["params"], strict=False):
                for name, tensor in state_dict["state"].get(index, {}).items():
                    right = (self.n,) if name == "step" else p.shape
                    if isinstance(tensor, Tensor) and tensor.dim() and tensor.shape != right:
                        raise ArgumentError(
                            f"{name} of {name_of(p, index)} is {tuple(tensor.shape)}, "
                            f"the parameter is {tuple(p.shape)}"
                        )
