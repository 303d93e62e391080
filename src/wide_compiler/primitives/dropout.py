"""Dropout of N lanes, each element with a draw of its own, each lane with a rate of its own.

Shapes: N lanes, `*` any number of axes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._lanes import check_lanes
from ._module import WideModule


def wide_dropout(x: Tensor, p: float | Tensor = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each element with probability p and scale the others by 1 / (1 - p).

    Args:
        x: `[N, *]`.
        p: a float for all lanes, or a tensor `[N]` with one probability for each. A lane with p = 0
            passes untouched; one with p = 1 is zero, and so is its gradient.
        training: False returns x.
        inplace: write into x.

    Returns:
        `[N, *]`. The draws are independent in every element, across lanes too; they are not those N
        separate dropouts would make from the same seed.
    """
    if not isinstance(p, Tensor):
        return F.dropout(x, p, training, inplace)
    check_lanes("wide_dropout", x=x, p=p)
    if not training:
        return x
    p_N1 = p.to(x.device, torch.float32).view(-1, *(1,) * (x.dim() - 1))
    # Drawn in float32 whatever x is: a bfloat16 draw has too few values to hit a probability.
    kept = torch.rand(x.shape, device=x.device, dtype=torch.float32) >= p_N1
    scale = torch.where(p_N1 < 1, 1 / (1 - p_N1), 0.0)
    factor = (kept * scale).to(x.dtype)
    return x.mul_(factor) if inplace else x * factor


class WideDropout(WideModule):
    """N `nn.Dropout` layers, of one rate or of different ones: `[N, *]` -> `[N, *]`.

    `p` is the members' rate, or the tensor `[N]` of their rates where they differ.
    """

    kernel = staticmethod(wide_dropout)

    MEMBER = nn.Dropout
    CONFIG = ("inplace",)
    STRATEGIES = ("wide",)
    ARGUMENTS = ("p", "training", "inplace")

    p: float | Tensor

    def setup(self, members: list[Any]) -> None:
        rates = [float(m.p) for m in members]
        self.rates = tuple(rates)
        if len(set(rates)) == 1:
            self.p = rates[0]
        else:  # a buffer so that it follows the module to its device; not saved, like nn.Dropout's p
            self.register_buffer("p", torch.tensor(rates, dtype=torch.float32), persistent=False)

    def to_modules(self) -> list[nn.Module]:
        """The N lanes as ordinary modules."""
        modules: list[Any] = super().to_modules()
        for module, rate in zip(modules, self.rates, strict=True):
            module.p = rate
        return modules

    def extra_repr(self) -> str:
        """As in every wide module, with the rates."""
        p = self.p if isinstance(self.p, float) else self.rates
        return f"{super().extra_repr()}, p={p}"
