"""LaneOptimizer: what the optimisers of this room have in common."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..model.marks import has_lanes, lane_mark
from .bucket import Bucket
from .lane_numbers import LaneNumber, lane_indices, lane_number
from .lane_states import MASKED, RATIO, LaneStates

FUSED_ON = ("cpu", "cuda")


class LaneOptimizer(LaneStates, Optimizer):
    """An optimiser over `wide.parameters()` whose hyper-parameters may each be one per lane.

    In a parameter group a hyper-parameter is a number, or a float64 tensor `[N]`. `group['lr']` is always a
    number, which torch's schedulers drive; the lanes' own rates stand beside it as multiples of it. On CUDA
    that number lives in a tensor `[]`, so that a recorded step sees a scheduler's changes.

    All state is on the parameters' device and no step waits for it.
    """

    # What each optimiser says of itself.

    def fresh_state(self, group: dict[str, Any]) -> dict[str, float]:
        """The names of a parameter's state tensors, and the number they are filled with at first."""
        raise NotImplementedError

    def counts_steps(self, group: dict[str, Any]) -> bool:
        """Whether an update asks how many steps were taken."""
        return True

    def update(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> None:
        """Take one step. `numbers` are the hyper-parameters, each a number or `[N]`."""
        raise NotImplementedError

    def has_fused(self, device: str, group: dict[str, Any]) -> bool:
        """Whether torch has a fused kernel for this, which `update_fused` then calls."""
        return False

    def update_fused(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> None:
        """Take one step by a fused kernel of torch; `numbers` are plain."""
        raise NotImplementedError

    # Groups.

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]):
        self.n = 0
        super().__init__(params, defaults)

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
                raise ValueError(f"{mark.path} has {mark.n} lanes, the parameters before it {self.n}")
            self.n = mark.n
        if not self.n:
            raise ValueError(
                f"{type(self).__name__} takes the parameters of a wide model, wide.parameters(), and none of "
                f"these is one; torch.optim has optimisers for ordinary models"
            )
        if "betas" in group and (not isinstance(group["betas"], (list, tuple)) or len(group["betas"]) != 2):
            raise ValueError(f"betas: expected a pair, each a number or {self.n}, got {group['betas']!r}")
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
        """On CUDA the number that schedulers drive is a tensor `[]`: a recorded step then sees it change."""
        device = group["params"][0].device
        if device.type == "cuda" and group.get("capturable") and not isinstance(group["lr"], Tensor):
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float64, device=device)

    def check_group(self, group: dict[str, Any]) -> None:
        """Options that exclude each other are refused here."""

    def _refuse_lanes_on_trunk(self, group: dict[str, Any], parameter: Tensor) -> None:
        mark = lane_mark(parameter)
        if mark is not None and mark.stacked:
            return
        for name in self.limits:
            if isinstance(group[RATIO] if name == "lr" else read(group, name), Tensor):
                what = "a parameter that is not the wide model's" if mark is None else mark.path
                raise ValueError(
                    f"{what} is one tensor for all lanes and cannot have one {name} per lane; give it "
                    f"a group of its own with a number: {{'params': [...], {name!r}: ...}}, or freeze it"
                )

    # Hyper-parameters by lane.

    def lane_values(self, name: str, group: int = 0) -> Tensor:
        """A hyper-parameter of every lane now, float64 `[N]`: 'lr', 'beta1', 'beta2', 'weight_decay', ..."""
        value = self._number(self.param_groups[group], self._known(name))
        if isinstance(value, Tensor) and value.dim():
            return value.clone()
        device = self.param_groups[group]["params"][0].device
        return torch.as_tensor(value, dtype=torch.float64, device=device).repeat(self.n)

    def set_lane_values(self, name: str, values: Any, lanes: Any = None, group: int | None = None) -> None:
        """Change a hyper-parameter, of all lanes or of some, in all groups that have lanes or in one.

        Learning rates are what the lanes have at this moment of a schedule.

        Args:
            values: a number, or one for each of `lanes`.
            lanes: whole numbers, a slice, or a boolean `[N]`; all if None.
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
                    raise ValueError("group['lr'] is 0 now, by a schedule; multiples of it are 0 too")
                continue
            self._put(home, RATIO, now / base)

    def scale_lane_rates(self, factors: Any, lanes: Any = None) -> None:
        """Multiply learning rates, wherever a schedule stands: by a number, or one for each of `lanes`."""
        chosen = lane_indices(slice(None) if lanes is None else lanes, self.n)
        for group in self.param_groups:
            if any(map(has_lanes, group["params"])):
                device = group["params"][0].device
                ratio = group[RATIO]
                now = (
                    torch.ones(self.n, dtype=torch.float64, device=device) if ratio is None else ratio.clone()
                )
                now[chosen.to(device)] *= _for_lanes("factors", factors, len(chosen)).to(device)
                lane_number("lr", now, self.n, self.limits["lr"], device)
                self._put(group, RATIO, now)

    def _known(self, name: str) -> str:
        if name not in self.limits:
            raise ValueError(
                f"{type(self).__name__} has no {name!r} by lane; choose one of {', '.join(self.limits)}"
            )
        return name

    def _put(self, group: dict[str, Any], name: str, values: Tensor) -> None:
        """In place where there is a tensor already: recordings read it."""
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
            raise ValueError(f"group[{name!r}] is {value!r}; set_lane_values({name!r}, ...) sets it by lane")
        if name == "lr":
            if is_tensor and value.dim():
                raise ValueError("group['lr'] must stay a number; set_lane_values('lr', ...) sets it by lane")
            if group[RATIO] is not None:
                return value * group[RATIO]
        return value.double() if is_tensor else value

    # The step.

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every lane that is not masked."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            numbers = {name: self._number(group, name) for name in self.limits}
            for bucket in self._buckets(group):
                if self._can_fuse(bucket, numbers, group):
                    if bucket.step is not None:
                        bucket.step += 1
                    self.update_fused(bucket.real(), numbers, group)
                else:
                    self._step(bucket, numbers, group)
        return loss

    def _can_fuse(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> bool:
        """Do all lanes have the same numbers, and torch a fused kernel for them?"""
        parted = bucket.step is not None and bucket.step.dim() > 0
        masked = bucket.stacked and group[MASKED] is not None
        if group["fused"] is False or parted or masked or any(map(by_lane, numbers.values())):
            return False
        return self.has_fused(bucket.params[0].device.type, group) and bucket.alike()

    def _step(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> None:
        """By a few operations on all lanes at once."""
        kept = self._kept(bucket, group)
        if bucket.step is not None:
            bucket.step += 1
        work = bucket.in_float32() if bucket.low_precision else bucket.real()
        if group["maximize"]:
            work.grads = list(torch._foreach_neg(work.grads))
        self.update(work, numbers, group)
        if bucket.low_precision:
            bucket.take(work)
        for tensor, lanes in kept:
            tensor.index_copy_(0, group[MASKED], lanes)

    def _buckets(self, group: dict[str, Any]) -> list[Bucket]:
        buckets: dict[Any, Bucket] = {}
        new_steps: dict[Any, Tensor] = {}
        names = list(self.fresh_state(group))
        needed = {*names, "step"} if self.counts_steps(group) else set(names)
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise ValueError(f"{type(self).__name__} does not take sparse gradients, as {name_of(p)} has")
            wide = has_lanes(p)
            if not wide:
                self._refuse_lanes_on_trunk(group, p)
            state = self.state[p]
            if not needed <= state.keys():
                self._begin(p, state, group, new_steps)
            step = state.get("step")
            key = (p.device, p.dtype, wide, id(step))
            bucket = buckets.get(key)
            if bucket is None:
                bucket = buckets[key] = Bucket([], [], {name: [] for name in names}, step, wide)
            bucket.params.append(p)
            bucket.grads.append(p.grad)
            for name in names:
                bucket.state[name].append(state[name])
        return list(buckets.values())

    def _begin(
        self, p: Tensor, state: dict[str, Any], group: dict[str, Any], steps: dict[Any, Tensor]
    ) -> None:
        """Make a parameter's state. One step count serves all parameters that begin together."""
        for name, value in self.fresh_state(group).items():
            if name not in state:
                state[name] = torch.full_like(p, value, memory_format=torch.preserve_format)
        if self.counts_steps(group) and "step" not in state:
            shape = (self.n,) if has_lanes(p) and group[MASKED] is not None else ()
            key = (p.device, has_lanes(p))
            if key not in steps:
                steps[key] = torch.zeros(shape, dtype=torch.float32, device=p.device)
            state["step"] = steps[key]

    def _kept(self, bucket: Bucket, group: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
        """The masked lanes of all that a step writes: put back afterwards, whatever it wrote."""
        masked = group[MASKED]
        if masked is None or not bucket.stacked:
            return []
        steps = [] if bucket.step is None else [bucket.step]
        return [(t, t.index_select(0, masked)) for t in (*bucket.tensors(), *steps)]


def name_of(parameter: Tensor) -> str:
    mark = lane_mark(parameter)
    return "a parameter" if mark is None else mark.path


def read(group: dict[str, Any], name: str) -> Any:
    """A hyper-parameter by its name in `limits`: 'beta1' is the first entry of 'betas'."""
    if name in ("beta1", "beta2"):
        return group["betas"][name == "beta2"]
    return group[name]


def write(group: dict[str, Any], name: str, value: Any) -> None:
    if name in ("beta1", "beta2"):
        group["betas"] = list(group["betas"])  # a scheduler may have left a tuple
        group["betas"][name == "beta2"] = value
    else:
        group[name] = value


def by_lane(number: Any) -> bool:
    return isinstance(number, Tensor) and number.dim() > 0


def used(number: Any) -> bool:
    """Whether some lane uses this; a tensor is not looked into, which would wait for the device."""
    return isinstance(number, Tensor) or number != 0


def single(lr: Any) -> Any:
    """A learning rate for torch's fused kernels, which read it in single precision where it is a tensor."""
    return lr.float() if isinstance(lr, Tensor) else lr


def _for_lanes(name: str, values: Any, count: int) -> Tensor:
    given = torch.as_tensor(values, dtype=torch.float64)
    if given.shape not in ((), (count,)):
        raise ValueError(f"{name}: expected a number or {count}, one per lane, got {tuple(given.shape)}")
    return given
