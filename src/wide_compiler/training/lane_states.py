"""An optimiser's state by lane: masked, copied, reset, selected, given to a stock optimiser and back."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..model.marks import has_lanes, lane_mark
from .lane_numbers import Limits, lane_indices

# In a group: the lanes' learning rates as multiples of its 'lr', and the lanes that do not move, `[k]`.
RATIO, MASKED = "lr_ratio", "masked"
# Of a group, what concerns how a step runs and not what it computes; a stock optimiser has its own.
_HOW = ("foreach", "fused", "capturable", "params", "param_names", RATIO, MASKED)


class LaneStates:
    """The part of `LaneOptimizer` that moves state about."""

    n: int
    state: Any
    param_groups: list[dict[str, Any]]
    limits: ClassVar[dict[str, Limits]]  # the hyper-parameters that lanes may differ in

    # Masks.

    @property
    def active(self) -> Tensor:
        """Which lanes move: bool `[N]`."""
        masked = self.param_groups[0][MASKED]
        moving = torch.ones(self.n, dtype=torch.bool)
        if masked is not None:
            moving[masked.cpu()] = False
        return moving

    def mask(self, lanes: Any) -> None:
        """From now on a step moves neither weights nor state of these lanes."""
        self.set_active(self.active.index_fill(0, lane_indices(lanes, self.n), False))

    def unmask(self, lanes: Any = slice(None)) -> None:
        """Let these lanes move again, from where they stand."""
        self.set_active(self.active.index_fill(0, lane_indices(lanes, self.n), True))

    def set_active(self, active: Tensor) -> None:
        """Say which lanes move: bool `[N]`."""
        masked = (~active).nonzero().squeeze(1)
        if len(masked):
            self._part_steps()
        for group in self.param_groups:
            group[MASKED] = masked.to(group["params"][0].device) if len(masked) else None
        if not len(masked):
            self._join_steps()

    # Lanes among themselves.

    @torch.no_grad()
    def copy_lanes(self, source: Any, target: Any, hyper: bool = True) -> None:
        """Give lanes `target` the state of lanes `source`, and their hyper-parameters if `hyper`."""
        source, target = lane_indices(source, self.n), lane_indices(target, self.n)
        tensors = {id(home[name]): home[name] for home, name in self._lane_tensors(hyper)}
        for tensor in tensors.values():  # a step count may serve many parameters: it is copied once
            rows = tensor.index_select(0, source.to(tensor.device))
            tensor.index_copy_(0, target.to(tensor.device), rows.expand(len(target), *tensor.shape[1:]))

    @torch.no_grad()
    def reset_lanes(self, lanes: Any) -> None:
        """Give these lanes the state of an optimiser that has not begun."""
        chosen = lane_indices(lanes, self.n)
        if len(chosen) < self.n:
            self._part_steps()
        for group in self.param_groups:
            fresh = {**self.fresh_state(group), "step": 0.0}  # type: ignore[attr-defined]
            for p in self._stacked(group):
                for name, tensor in self.state.get(p, {}).items():
                    if tensor.dim():
                        tensor.index_fill_(0, chosen.to(tensor.device), fresh[name])
                    else:
                        tensor.zero_()
        self._join_steps()

    @torch.no_grad()
    def select_lanes(self, indices: Any) -> None:
        """Keep, reorder or repeat lanes: lane i becomes what lane `indices[i]` was.

        For after the parameters themselves were selected.
        """
        chosen = lane_indices(indices, self.n)
        active = self.active[chosen]
        for home, name in list(self._lane_tensors(hyper=True)):
            home[name] = home[name].index_select(0, chosen.to(home[name].device))
        self.n = len(chosen)
        self.set_active(active)
        self._join_steps()

    # One lane, to a stock optimiser and back.

    def lane_state(self, lane: int) -> dict[str, Any]:
        """A state_dict for a stock optimiser of this kind over `wide.lane(lane).parameters()`."""
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
                if self.state.get(p):
                    states[position] = self.stock_state(self._lane_of(p, lane), group)
            count += len(group["params"])
        return {"state": states, "param_groups": groups}

    def stock_state(self, state: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
        """One parameter's state of one lane as a stock optimiser has it."""
        return state

    def own_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """One parameter's state of a stock optimiser as one lane here has it."""
        return state

    def _lane_of(self, p: Tensor, lane: int) -> dict[str, Any]:
        found = {}
        for name, tensor in self.state[p].items():
            own = tensor[lane] if has_lanes(p) and tensor.dim() else tensor
            found[name] = own.cpu().clone() if name == "step" else own.clone()
        return found

    def lane_numbers(self, group: int, lane: int) -> dict[str, Any]:
        """One lane's hyper-parameters in a group, under the names that a stock optimiser has for them."""
        values = self.lane_values  # type: ignore[attr-defined]
        found: dict[str, Any] = {name: float(values(name, group)[lane]) for name in self.limits}
        if "beta1" in found:
            found["betas"] = (found.pop("beta1"), found.pop("beta2"))  # as stock optimisers hold them
        return found

    @torch.no_grad()
    def load_lane_state(self, lane: int, state_dict: Mapping[str, Any]) -> None:
        """Put a stock optimiser's state and hyper-parameters (or those of another lane) into one lane."""
        lane = int(lane_indices(lane, self.n))
        groups = state_dict["param_groups"]
        sizes, expected = [len(g["params"]) for g in groups], [len(g["params"]) for g in self.param_groups]
        if sizes != expected:
            raise ValueError(f"lane {lane}: this state has groups of {sizes} parameters, expected {expected}")
        homes = list(self._incoming(lane, state_dict))
        self._load_numbers(lane, groups)
        self.reset_lanes([lane])
        for p, group, _ in homes:
            if not self.state[p]:
                self._begin(p, self.state[p], group, {})  # type: ignore[attr-defined]
        self._part_steps()
        for p, _, state in homes:
            for name, tensor in self.state[p].items():
                if state.get(name) is not None:
                    tensor[lane].copy_(torch.as_tensor(state[name]))
        self._join_steps()

    def _incoming(self, lane: int, state_dict: Mapping[str, Any]) -> Iterator[Any]:
        """(parameter, its group, its state) of a lane's state_dict, where there is a lane axis."""
        for saved, group in zip(state_dict["param_groups"], self.param_groups, strict=True):
            for index, p in zip(saved["params"], group["params"], strict=True):
                mark = lane_mark(p)
                state = state_dict["state"].get(index)
                if not state or mark is None or not mark.stacked:
                    continue
                for name in self.fresh_state(group):  # type: ignore[attr-defined]
                    given = state.get(name)
                    if given is not None and given.shape != p.shape[1:]:
                        raise ValueError(
                            f"lane {lane}: {name} of {mark.path} is {tuple(given.shape)}, "
                            f"the members have {tuple(p.shape[1:])}"
                        )
                yield p, group, self.own_state(dict(state))

    def _load_numbers(self, lane: int, groups: list[dict[str, Any]]) -> None:
        for index, (saved, group) in enumerate(zip(groups, self.param_groups, strict=True)):
            for name, value in group.items():
                if isinstance(value, bool) and name not in _HOW and saved.get(name, value) != value:
                    raise ValueError(
                        f"lane {lane}: this state is of {name}={saved[name]}, the lanes here are of {value}"
                    )
            for name, now in self._flat(self.lane_numbers(index, lane)).items():
                given = self._flat(saved).get(name, now)
                if float(given) != now:
                    self.set_lane_values(name, float(given), [lane], index)  # type: ignore[attr-defined]

    def _flat(self, numbers: dict[str, Any]) -> dict[str, Any]:
        found = {name: numbers[name] for name in self.limits if name in numbers}
        if "betas" in numbers:
            found["beta1"], found["beta2"] = numbers["betas"]
        return found

    # All lanes, to a checkpoint and back.

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` gave, or a stock optimiser of this kind over `wide.parameters()`."""
        self._check_shapes(state_dict)
        super().load_state_dict(copy.deepcopy(dict(state_dict)))  # type: ignore[misc]
        for group in self.param_groups:
            device = group["params"][0].device
            for key, value in self.defaults.items():  # type: ignore[attr-defined]
                group.setdefault(key, value)
            for key in (RATIO, MASKED):
                group.setdefault(key, None)
            for key, value in group.items():
                if isinstance(value, Tensor):
                    group[key] = value.to(device)
            self.put_rate_on_device(group)  # type: ignore[attr-defined]
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
                    raise ValueError(f"this state is of {len(number)} lanes, the parameters have {self.n}")
            for index, p in zip(saved["params"], group["params"], strict=False):
                for name, tensor in state_dict["state"].get(index, {}).items():
                    right = (self.n,) if name == "step" else p.shape
                    if isinstance(tensor, Tensor) and tensor.dim() and tensor.shape != right:
                        mark = lane_mark(p)
                        raise ValueError(
                            f"{name} of {mark.path if mark else index} is {tuple(tensor.shape)}, "
                            f"the parameter is {tuple(p.shape)}"
                        )

    # Step counts: one for all lanes while they are equal.

    def _part_steps(self) -> None:
        """Give every lane a step count of its own."""
        parted: dict[int, Tensor] = {}
        for p in self._all_stacked():
            step = self.state.get(p, {}).get("step")
            if step is not None and step.dim() == 0:
                if id(step) not in parted:
                    parted[id(step)] = step.repeat(self.n)
                self.state[p]["step"] = parted[id(step)]

    def _join_steps(self) -> None:
        """One count again where all lanes have taken the same number of steps, one for all parameters."""
        known: dict[Any, Tensor] = {}
        masked = self.param_groups[0][MASKED] is not None
        for p in [p for group in self.param_groups for p in group["params"]]:
            step = self.state.get(p, {}).get("step")
            if step is None:
                continue
            counts = step.tolist()
            if isinstance(counts, list) and len(set(counts)) == 1 and not masked:
                step, counts = step[0].clone(), counts[0]
            key = (str(counts), step.device, step.dim())
            self.state[p]["step"] = known.setdefault(key, step)

    def _stacked(self, group: dict[str, Any]) -> Iterator[Tensor]:
        return filter(has_lanes, group["params"])

    def _all_stacked(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from self._stacked(group)

    def _lane_tensors(self, hyper: bool) -> Iterator[tuple[Any, Any]]:
        """(home, key) of every tensor with lanes: state, and hyper-parameters if `hyper`."""
        for p in self._all_stacked():
            state = self.state.get(p, {})
            yield from ((state, name) for name in list(state) if state[name].dim())
        for group in self.param_groups if hyper else ():
            homes: list[tuple[Any, Any]] = [(group, name) for name in (RATIO, *self.limits) if name in group]
            if "betas" in group:
                group["betas"] = list(group["betas"])  # a scheduler may have left a tuple
                homes += [(group["betas"], 0), (group["betas"], 1)]
            yield from (
                (home, key) for home, key in homes if isinstance(home[key], Tensor) and home[key].dim()
            )
