"""LaneStates: optimiser state per lane, with masking, copying, resetting and selecting of lanes."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..model.marks import has_lanes
from .groups import MASKED, RATIO, LaneGroups
from .lane_numbers import lane_indices


class LaneStates(LaneGroups):
    """Optimiser whose state tensors have the shape of their parameter, plus a step count `[]` or `[N]`."""

    def fresh_state(self, group: dict[str, Any]) -> dict[str, float]:
        """Return the name and initial fill value of each state tensor of a parameter."""
        raise NotImplementedError

    def counts_steps(self, group: dict[str, Any]) -> bool:
        """Return whether the update uses the step count."""
        return True

    def _begin(
        self, p: Tensor, state: dict[str, Any], group: dict[str, Any], steps: dict[Any, Tensor]
    ) -> None:
        """Create a parameter's state. Parameters that are updated together share one step count tensor."""
        for name, value in self.fresh_state(group).items():
            if name not in state:
                state[name] = torch.full_like(p, value, memory_format=torch.preserve_format)
        if self.counts_steps(group) and "step" not in state:
            shape = (self.n,) if has_lanes(p) and group[MASKED] is not None else ()
            key = (p.device, p.dtype, has_lanes(p))
            if key not in steps:
                steps[key] = torch.zeros(shape, dtype=torch.float32, device=p.device)
            state["step"] = steps[key]

    @property
    def active(self) -> Tensor:
        """Lanes that are updated: bool `[N]`."""
        masked = self.param_groups[0][MASKED]
        active = torch.ones(self.n, dtype=torch.bool)
        if masked is not None:
            active[masked.cpu()] = False
        return active

    def mask(self, lanes: Any) -> None:
        """Freeze lanes: later steps change neither their weights nor their state."""
        self.set_active(self.active.index_fill(0, lane_indices(lanes, self.n), False))

    def unmask(self, lanes: Any = slice(None)) -> None:
        """Update these lanes again, from their current weights and state."""
        self.set_active(self.active.index_fill(0, lane_indices(lanes, self.n), True))

    def set_active(self, active: Tensor) -> None:
        """Set which lanes are updated: bool `[N]`."""
        masked = (~active).nonzero().squeeze(1)
        if len(masked):
            self._part_steps()
        for group in self.param_groups:
            group[MASKED] = masked.to(group["params"][0].device) if len(masked) else None
        if not len(masked):
            self._join_steps()

    @torch.no_grad()
    def copy_lanes(self, source: Any, target: Any, hyper: bool = True) -> None:
        """Copy the state of lanes `source` to lanes `target`; also the hyper-parameters if `hyper`."""
        source, target = lane_indices(source, self.n), lane_indices(target, self.n)
        tensors = {id(container[key]): container[key] for container, key in self._lane_tensors(hyper)}
        for tensor in tensors.values():  # parameters may share a step count: copy it once
            rows = tensor.index_select(0, source.to(tensor.device))
            tensor.index_copy_(0, target.to(tensor.device), rows.expand(len(target), *tensor.shape[1:]))

    @torch.no_grad()
    def reset_lanes(self, lanes: Any) -> None:
        """Set the state of these lanes to that of a new optimiser."""
        chosen = lane_indices(lanes, self.n)
        if len(chosen) < self.n:
            self._part_steps()
        for group in self.param_groups:
            fresh = {**self.fresh_state(group), "step": 0.0}
            for p in self._stacked(group):
                for name, tensor in self.state.get(p, {}).items():
                    if tensor.dim():
                        tensor.index_fill_(0, chosen.to(tensor.device), fresh[name])
                    else:
                        tensor.zero_()
        self._join_steps()

    @torch.no_grad()
    def select_lanes(self, indices: Any) -> None:
        """Keep, reorder or repeat lanes: new lane i is old lane `indices[i]`.

        Call it after selecting the parameters in the same way.
        """
        chosen = lane_indices(indices, self.n)
        active = self.active[chosen]
        new: dict[int, Tensor] = {}
        for container, key in list(self._lane_tensors(hyper=True)):
            tensor = container[key]
            if id(tensor) not in new:  # parameters may share a step count: select it once
                rows = tensor.index_select(0, chosen.to(tensor.device))
                new[id(tensor)] = tensor.copy_(rows) if len(rows) == len(tensor) else rows
            container[key] = new[id(tensor)]
        self.n = len(chosen)
        self.set_active(active)
        self._join_steps()

    # Step counts are `[]` while all lanes have taken the same number of steps, which allows fused kernels.

    def _part_steps(self) -> None:
        """Replace step counts `[]` by `[N]`."""
        parted: dict[int, Tensor] = {}
        for p in self._all_stacked():
            step = self.state.get(p, {}).get("step")
            if step is not None and step.dim() == 0:
                if id(step) not in parted:
                    parted[id(step)] = step.repeat(self.n)
                self.state[p]["step"] = parted[id(step)]

    def _join_steps(self) -> None:
        """Replace equal step counts `[N]` by `[]`; those that are incremented together share one tensor."""
        known: dict[Any, Tensor] = {}
        masked = self.param_groups[0][MASKED] is not None
        for index, p in [(i, p) for i, group in enumerate(self.param_groups) for p in group["params"]]:
            step = self.state.get(p, {}).get("step")
            if step is None:
                continue
            counts = step.tolist()
            if isinstance(counts, list) and len(set(counts)) == 1 and not masked:
                step, counts = step[0].clone(), counts[0]
            key = (index, str(counts), p.device, p.dtype, step.device, step.dim(), has_lanes(p))
            if key not in known:
                known[key] = step.clone() if any(step is other for other in known.values()) else step
            self.state[p]["step"] = known[key]

    def _stacked(self, group: dict[str, Any]) -> Iterator[Tensor]:
        return filter(has_lanes, group["params"])

    def _all_stacked(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from self._stacked(group)

    def _lane_tensors(self, hyper: bool) -> Iterator[tuple[Any, Any]]:
        """Yield (container, key) of every tensor with lanes: state, and hyper-parameters if `hyper`."""
        for p in self._all_stacked():
            state = self.state.get(p, {})
            yield from ((state, name) for name in list(state) if state[name].dim())
        for group in self.param_groups if hyper else ():
            numbers: list[tuple[Any, Any]] = [
                (group, name) for name in (RATIO, *self.limits) if name in group
            ]
            if "betas" in group:
                group["betas"] = list(group["betas"])  # a scheduler may have set a tuple
                numbers += [(group["betas"], 0), (group["betas"], 1)]
            for container, key in numbers:
                if isinstance(container[key], Tensor) and container[key].dim():
                    yield container, key
