"""LaneOptimizer: base class of the optimisers of this package."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypedDict, Unpack

import torch
from torch import Tensor

from ..errors import ArgumentError, WrongTypeError
from ..model.marks import has_lanes
from .bucket import Bucket, in_layout_of
from .groups import MASKED, name_of
from .stock_states import StockStates


class StepOptions(TypedDict, total=False):
    """Options of every optimiser of this package, as in `torch.optim`; the same for all lanes."""

    maximize: bool  # False
    fused: bool | None  # None: use a fused kernel where there is one
    capturable: bool  # True: on CUDA, steps can be recorded


class LaneOptimizer(StockStates):
    """An optimiser over `wide.parameters()` with hyper-parameters per lane.

    All state is on the device of the parameters, and a step does not synchronise with it.

    Args:
        params: parameters of a wide model, or groups of them.
        settings: hyper-parameters of a subclass by name, each a number or one number per lane.
        options: see `StepOptions`.
    """

    fused_on: ClassVar[tuple[str, ...]] = ()  # devices for which torch has a fused kernel
    kernel: ClassVar[str]  # name in torch of that kernel, and the names of its states and of its options
    kernel_states: ClassVar[tuple[str, ...]] = ()
    kernel_options: ClassVar[tuple[str, ...]] = ()
    _memory: Tensor | None = None

    def __init__(self, params: Iterable[Any], settings: dict[str, Any], **options: Unpack[StepOptions]):
        unknown = options.keys() - StepOptions.__annotations__.keys()
        if unknown:
            raise WrongTypeError(f"{type(self).__name__} got an unexpected keyword argument {min(unknown)!r}")
        defaults = {"maximize": False, "fused": None, "capturable": True}
        super().__init__(params, {**settings, **defaults, **options})

    def update(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> None:
        """Update one bucket. `numbers` are the hyper-parameters, each a number or `[N]`."""
        raise NotImplementedError

    def has_fused(self, device: str, group: dict[str, Any]) -> bool:
        """Return whether torch has a fused kernel for these settings; if so, `update_fused` calls it."""
        return device in self.fused_on

    def update_fused(
        self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any], maximize: bool
    ) -> None:
        """Update one bucket with torch's fused kernel. `numbers` are equal for all lanes."""
        lr = numbers["lr"]
        steps = [] if bucket.step is None else [[bucket.step] * len(bucket.params)]
        getattr(torch, self.kernel)(
            *(bucket.params, bucket.grads),
            *[bucket.state.get(name, []) for name in self.kernel_states],
            *steps,
            **{**numbers, "lr": lr.float() if isinstance(lr, Tensor) else lr},  # it takes no float64 tensor
            **{name: group.get(name, False) for name in self.kernel_options},
            maximize=maximize,
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every lane that is not masked. Return the result of `closure`, if given."""
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
                    self.update_fused(bucket.real(), numbers, group, group["maximize"])
                else:
                    self._step(bucket, numbers, group)
        return loss

    def _can_fuse(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> bool:
        """Return whether all lanes have equal hyper-parameters and torch has a fused kernel for them."""
        parted = bucket.step is not None and bucket.step.dim() > 0
        masked = bucket.stacked and group[MASKED] is not None
        if group["fused"] is False or parted or masked or any(map(by_lane, numbers.values())):
            return False
        return self.has_fused(bucket.params[0].device.type, group) and bucket.alike()

    def _step(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> None:
        """Update one bucket with operations over all lanes, keeping masked lanes unchanged."""
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
        standing: set[int] = set()  # ids of the step counts of parameters without a gradient
        names = list(self.fresh_state(group))
        needed = {*names, "step"} if self.counts_steps(group) else set(names)
        for p in group["params"]:
            if p.grad is None:
                standing.add(id(self.state[p].get("step")) if p in self.state else 0)
                continue
            if p.grad.is_sparse:
                raise ArgumentError(
                    f"{type(self).__name__} does not take sparse gradients, as {name_of(p)} has"
                )
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
            bucket.grads.append(in_layout_of(p, p.grad))
            for name in names:
                bucket.state[name].append(state[name])
        for bucket in buckets.values():
            if bucket.step is not None and id(bucket.step) in standing:
                bucket.step = bucket.step.clone()
                for p in bucket.params:
                    self.state[p]["step"] = bucket.step
        return list(buckets.values())

    def scratch(self, like: list[Tensor]) -> list[Tensor]:
        """Return uninitialised tensors with the shapes and strides of `like`.

        On a CPU the memory is reused by the next step, because page faults would cost more than the
        arithmetic.
        """
        if like[0].device.type != "cpu":
            return [torch.empty_like(t) for t in like]
        sizes = [t.numel() for t in like]
        if self._memory is None or self._memory.dtype != like[0].dtype or len(self._memory) < sum(sizes):
            self._memory = torch.empty(sum(sizes), dtype=like[0].dtype)
        pieces = self._memory[: sum(sizes)].split(sizes)
        return [
            torch.as_strided(piece, t.shape, t.stride(), piece.storage_offset())
            for piece, t in zip(pieces, like, strict=True)
        ]

    def _kept(self, bucket: Bucket, group: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
        """Return the masked lanes of every tensor a step writes, to restore them afterwards."""
        masked = group[MASKED]
        if masked is None or not bucket.stacked:
            return []
        steps = [] if bucket.step is None else [bucket.step]
        return [(t, t.index_select(0, masked)) for t in (*bucket.tensors(), *steps)]


def by_lane(number: Any) -> bool:
    return isinstance(number, Tensor) and number.dim() > 0


def used(number: Any) -> bool:
    """Return whether any lane may use this value. A tensor always counts: reading it would synchronise."""
    return isinstance(number, Tensor) or number != 0
