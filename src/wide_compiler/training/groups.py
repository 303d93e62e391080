"""LaneGroups: parameter groups with hyper-parameters per lane."""

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import ArgumentError
from ..model.marks import has_lanes, lane_mark
from .lane_numbers import LaneNumber, Limits, lane_indices, lane_number

# Keys of a group: learning rates per lane as multiples of group['lr'], and indices `[k]` of frozen lanes.
RATIO, MASKED = "lr_ratio", "masked"


class LaneGroups(Optimizer):
    """Optimiser base class whose hyper-parameters are numbers or float64 tensors `[N]`.

    `group['lr']` is always a single number, so torch's schedulers work; learning rates per lane are stored as
    multiples of it. On CUDA it is a tensor `[]`, so a recorded step reads its current value.
    """

    limits: ClassVar[dict[str, Limits]]  # hyper-parameters that may differ between lanes

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]):
        self.n = 0
        super().__init__(params, defaults)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "n": self.n}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._read(group)
        except ValueError:
            self.param_groups.pop()
            raise

    def _read(self, group: dict[str, Any]) -> None:
        marks = [mark for mark in map(lane_mark, group["params"]) if mark is not None]
        for mark in marks:
            if self.n and mark.n != self.n:
                raise ArgumentError(f"{mark.path} has {mark.n} lanes, the parameters before it {self.n}")
            self.n = mark.n
        if not self.n:
            raise ArgumentError(
                f"{type(self).__name__} takes the parameters of a wide model, wide.parameters(), and none of "
                f"these is one; torch.optim has optimisers for ordinary models"
            )
        if "betas" in group and (not isinstance(group["betas"], (list, tuple)) or len(group["betas"]) != 2):
            raise ArgumentError(f"betas: expected a pair, each a number or {self.n}, got {group['betas']!r}")
        device = group["params"][0].device
        group[MASKED] = self.param_groups[0].get(MASKED)
        group[RATIO] = None
        for name in self.limits:
            write(group, name, lane_number(name, read(group, name), self.n, self.limits[name], device))
        rates = group["lr"]
        if isinstance(rates, Tensor):
            top = float(rates.max())
            group["lr"], group[RATIO] = top, rates / top if top else torch.ones_like(rates)
        self.put_rate_on_device(group)
        self.check_group(group)
        for parameter in group["params"]:
            if parameter.requires_grad:
                self._refuse_lanes_on_trunk(group, parameter)

    def put_rate_on_device(self, group: dict[str, Any]) -> None:
        """On CUDA, store `group['lr']` as a tensor `[]`, so a recorded step reads its current value."""
        device = group["params"][0].device
        if device.type == "cuda" and group.get("capturable") and not isinstance(group["lr"], Tensor):
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float64, device=device)

    def check_group(self, group: dict[str, Any]) -> None:
        """Raise `ArgumentError` for options that exclude each other."""

    def _refuse_lanes_on_trunk(self, group: dict[str, Any], parameter: Tensor) -> None:
        if has_lanes(parameter):
            return
        for name in self.limits:
            if isinstance(group[RATIO] if name == "lr" else read(group, name), Tensor):
                what = name_of(parameter, "a parameter that is not the wide model's")
                raise ArgumentError(
                    f"{what} is one tensor for all lanes and cannot have one {name} per lane; give it "
                    f"a group of its own with a number: {{'params': [...], {name!r}: ...}}, or freeze it"
                )

    def lane_values(self, name: str, group: int = 0) -> Tensor:
        """Return the current value of a hyper-parameter, such as "lr" or "beta1", per lane: float64 `[N]`."""
        value = self._number(self.param_groups[group], self._known(name))
        if isinstance(value, Tensor) and value.dim():
            return value.clone()
        device = self.param_groups[group]["params"][0].device
        return torch.as_tensor(value, dtype=torch.float64, device=device).repeat(self.n)

    def set_lane_values(self, name: str, values: Any, lanes: Any = None, group: int | None = None) -> None:
        """Change a hyper-parameter of some or all lanes, in one group or in all groups with lanes.

        A learning rate given here is the current one; later schedule steps scale it.

        Args:
            values: a number, or one per chosen lane.
            lanes: indices, a slice, or a boolean mask `[N]`; None means all lanes.
            group: index of a parameter group; None means all.
        """
        limits = self.limits[self._known(name)]
        chosen = lane_indices(slice(None) if lanes is None else lanes, self.n)
        for index, home in enumerate(self.param_groups):
            if group not in (None, index) or not any(map(has_lanes, home["params"])):
                continue
            now = self.lane_values(name, index)
            now[chosen.to(now.device)] = _for_lanes(name, values, len(chosen)).to(now.device)
            lane_number(name, now, self.n, limits, now.device)
            if name != "lr":
                self._put(home, name, now)
                continue
            base = float(home["lr"])
            if base == 0:
                if bool((now != 0).any()):
                    raise ArgumentError(
                        "group['lr'] is 0, set by a schedule, and learning rates per lane are multiples of "
                        "it; set them before the schedule reaches 0"
                    )
                continue
            self._put(home, RATIO, now / base)

    def scale_lane_rates(self, factors: Any, lanes: Any = None) -> None:
        """Multiply the current learning rates by `factors`: a number, or one per chosen lane."""
        chosen = lane_indices(slice(None) if lanes is None else lanes, self.n)
        for group in self.param_groups:
            if any(map(has_lanes, group["params"])):
                device = group["params"][0].device
                ones = torch.ones(self.n, dtype=torch.float64, device=device)
                now = ones if group[RATIO] is None else group[RATIO].clone()
                now[chosen.to(device)] *= _for_lanes("factors", factors, len(chosen)).to(device)
                lane_number("lr", now, self.n, self.limits["lr"], device)
                self._put(group, RATIO, now)

    def _known(self, name: str) -> str:
        if name not in self.limits:
            raise ArgumentError(
                f"{type(self).__name__} has no hyper-parameter {name!r} per lane; choose one of "
                f"{', '.join(self.limits)}"
            )
        return name

    def _put(self, group: dict[str, Any], name: str, values: Tensor) -> None:
        """Store values per lane, in place if there is a tensor already, because recordings read it."""
        old = read(group, name)
        if isinstance(old, Tensor) and old.dim():
            old.copy_(values)
            return
        write(group, name, values)
        for parameter in group["params"]:
            if parameter.requires_grad:
                self._refuse_lanes_on_trunk(group, parameter)

    def _number(self, group: dict[str, Any], name: str) -> LaneNumber:
        value = read(group, name)
        is_tensor = isinstance(value, Tensor)
        if isinstance(value, (list, tuple)) or (is_tensor and value.shape not in ((), (self.n,))):
            raise ArgumentError(
                f"group[{name!r}] is {value!r}, expected one number; "
                f"set_lane_values({name!r}, ...) sets it by lane"
            )
        if name == "lr":
            if is_tensor and value.dim():
                raise ArgumentError(
                    "group['lr'] must stay a number; set_lane_values('lr', ...) sets it by lane"
                )
            if group[RATIO] is not None:
                return value * group[RATIO]
        return value.double() if is_tensor else value

    def lane_numbers(self, group: int, lane: int) -> dict[str, Any]:
        """Return one lane's hyper-parameters in a group, under the names used by `torch.optim`."""
        found: dict[str, Any] = {name: float(self.lane_values(name, group)[lane]) for name in self.limits}
        if "beta1" in found:
            found["betas"] = (found.pop("beta1"), found.pop("beta2"))
        return found


def name_of(parameter: Tensor, otherwise: Any = "a parameter") -> Any:
    mark = lane_mark(parameter)
    return otherwise if mark is None else mark.path


def read(group: dict[str, Any], name: str) -> Any:
    """Read a hyper-parameter by its name in `limits`; 'beta1' is the first entry of 'betas'."""
    if name in ("beta1", "beta2"):
        return group["betas"][name == "beta2"]
    return group[name]


def write(group: dict[str, Any], name: str, value: Any) -> None:
    if name in ("beta1", "beta2"):
        group["betas"] = list(group["betas"])  # a scheduler may have set a tuple
        group["betas"][name == "beta2"] = value
    else:
        group[name] = value


def _for_lanes(name: str, values: Any, count: int) -> Tensor:
    given = torch.as_tensor(values, dtype=torch.float64)
    if given.shape not in ((), (count,)):
        raise ArgumentError(f"{name}: expected a number or {count}, one per lane, got {tuple(given.shape)}")
    return given
