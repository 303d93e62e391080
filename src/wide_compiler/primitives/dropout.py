"""Dropout of N lanes, with independent draws per element and a separate rate per lane.

Shapes: N lanes, `*` any number of axes.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._lanes import check_lanes
from ._module import WideModule


def wide_dropout(x: Tensor, p: float | Tensor = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each element of x `[N, *]` with probability p and scale the others by 1 / (1 - p).

    `p` is a float for all lanes, or a tensor `[N]`; a lane with p = 1 is zero, and so is its gradient. Draws
    are independent for every element, across lanes too; they differ from those of N separate dropouts with
    the same seed.
    """
    if not isinstance(p, Tensor):
        return F.dropout(x, p, training, inplace)
    check_lanes("wide_dropout", x=x, p=p)
    if not training:
        return x
    p_N1 = p.to(x.device, torch.float32).view(-1, *(1,) * (x.dim() - 1))
    # Drawn in float32 for every dtype of x: bfloat16 has too few values to represent p.
    kept = torch.rand(x.shape, device=x.device, dtype=torch.float32) >= p_N1
    scale = torch.where(p_N1 < 1, 1 / (1 - p_N1), 0.0)
    factor = (kept * scale).to(x.dtype)
    return x.mul_(factor) if inplace else x * factor


class WideDropout(WideModule):
    """N `nn.Dropout` layers, of one rate or of different ones: `[N, *]` -> `[N, *]`.

    `p` is the members' common rate, or a tensor `[N]` if the rates differ.
    """

    kernel = staticmethod(wide_dropout)
    MEMBER = nn.Dropout
    CONFIG = ("inplace",)
    ARGUMENTS = ("p", "training", "inplace")

    p: float | Tensor

    def setup(self, members: list[Any]) -> None:
        rates = [float(m.p) for m in members]
        self.rates = tuple(rates)
        if len(set(rates)) == 1:
            self.p = rates[0]
        else:  # a buffer so that it moves with the module; not saved, like nn.Dropout's p
            self.register_buffer("p", torch.tensor(rates, dtype=torch.float32), persistent=False)

    def to_modules(self) -> list[nn.Module]:
        """Return the N lanes as ordinary modules with their own rates."""
        modules: list[Any] = super().to_modules()
        for module, rate in zip(modules, self.rates, strict=True):
            module.p = rate
        return modules

    def extra_repr(self) -> str:
        """Return the base class's text and the rates."""
        p = self.p if isinstance(self.p, float) else self.rates
        return f"{super().extra_repr()}, p={p}"
