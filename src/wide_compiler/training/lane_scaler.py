"""Loss scaling per lane for half precision: a lane that overflows does not make others skip the step."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..model.marks import has_lanes

INITIAL, GROWTH, BACKOFF, INTERVAL = 2.0**16, 2.0, 0.5, 2000


class LaneScaler:
    """`torch.amp.GradScaler` with one scale per lane, `[N]`.

    A lane's scale halves when its gradients overflow (that lane skips the step) and doubles after 2000 steps
    without overflow. If any trained parameter is shared by all lanes, all lanes overflow together.
    """

    def __init__(self, n: int, parameters: Iterable[Tensor], interval: int = INTERVAL):
        self.parameters = [p for p in parameters if p.requires_grad]
        self.together = not all(has_lanes(p) for p in self.parameters)
        device = self.parameters[0].device
        self.all = torch.full((n,), INITIAL, device=device), torch.zeros(n, dtype=torch.int64, device=device)
        self.kept = list(range(n))
        self.scale, self.good_steps = self.all
        self.interval = interval

    def select(self, kept: list[int]) -> None:
        """Continue with a subset of all lanes; the state of the others is kept."""
        for full, part in zip(self.all, (self.scale, self.good_steps), strict=True):
            full[self.kept] = part.clone()
        self.kept = kept
        self.scale, self.good_steps = (full[kept] for full in self.all)

    def unscale_(self) -> Tensor:
        """Divide the gradients by the scale, in place. Return which lanes overflowed, bool `[N]`."""
        overflowed = torch.zeros_like(self.scale, dtype=torch.bool)
        for p in self.parameters:
            if p.grad is None:
                continue
            if has_lanes(p):
                p.grad.div_(self.scale.to(p.grad.dtype).view(-1, *[1] * (p.dim() - 1)))
                overflowed |= ~p.grad.isfinite().flatten(1).all(1) if p.dim() > 1 else ~p.grad.isfinite()
            else:
                p.grad.div_(self.scale[0])
                overflowed |= ~p.grad.isfinite().all()
        return overflowed.any().expand_as(overflowed) if self.together else overflowed

    def update(self, overflowed: Tensor) -> None:
        self.good_steps = torch.where(overflowed, 0, self.good_steps + 1)
        grow = self.good_steps >= self.interval
        grown = torch.where(grow, self.scale * GROWTH, self.scale)
        self.scale = torch.where(overflowed, self.scale * BACKOFF, grown)
        self.good_steps = torch.where(grow, 0, self.good_steps)

    def state(self) -> dict[str, Any]:
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load(self, state: dict[str, Any]) -> None:
        self.scale = state["scale"].to(self.scale.device)
        self.good_steps = state["good_steps"].to(self.scale.device)
