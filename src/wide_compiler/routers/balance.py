"""Balance report: which towers dominate the sum of outputs, and which contribute nothing."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .. import _tree
from ..errors import ArgumentError
from ..explain import table
from .wide_router import WideRouter

# A tower counts as dead if its output, or its gradient, is below this share of the towers' mean.
DEAD = 1e-4
# And as dominant if its share is at least this multiple of an equal share.
DOMINANT = 2.0


@dataclass
class TowerBalance:
    """Statistics of one tower.

    Attributes:
        opinion: root mean square of its output.
        spread: standard deviation of its output over the batch; zero if it does not depend on the input.
        share: its part of the sum of all opinions.
        gradient: norm of its parameters' gradients; None before a backward pass.
    """

    name: str
    opinion: float
    spread: float
    share: float
    gradient: float | None
    parameters: int
    state: str = ""  # 'dominant', 'dead' or ''
    why: str = ""


@dataclass
class Balance:
    """Statistics of the towers, in order of registration."""

    towers: list[TowerBalance]

    @property
    def dominant(self) -> list[str]:
        return [tower.name for tower in self.towers if tower.state == "dominant"]

    @property
    def dead(self) -> list[str]:
        return [tower.name for tower in self.towers if tower.state == "dead"]

    def __str__(self) -> str:
        rows = [
            {
                "tower": t.name,
                "opinion": f"{t.opinion:.3g}",
                "share": f"{t.share:.0%}",
                "spread": f"{t.spread:.3g}",
                "gradient": "" if t.gradient is None else f"{t.gradient:.3g}",
                "parameters": f"{t.parameters:,}",
                "state": t.state,
                "why": t.why,
            }
            for t in self.towers
        ]
        return "\n".join([f"balance of {len(rows)} towers", *table(rows)])


def balance(router: WideRouter, opinions: Mapping[str, Any]) -> Balance:
    """Compute the balance of the outputs of `wide_forward`, with gradients after `backward()`.

    Args:
        router: the router of the towers.
        opinions: the towers' outputs by name.
    """
    towers = router._towers()
    unknown = [name for name in opinions if name not in towers]
    if unknown:
        raise ArgumentError(f"no tower {unknown[0]!r}; registered towers: {', '.join(towers)}")
    found = []
    for name, out in opinions.items():
        tensors, parameters = _tensors(out), list(towers[name].parameters())
        gradients = [p.grad.detach().float() for p in parameters if p.grad is not None]
        norm = float(nn.utils.get_total_norm(gradients)) if gradients else None
        count = sum(p.numel() for p in parameters)
        found.append(TowerBalance(name, _size(tensors), _spread(tensors), 0.0, norm, count))
    total = sum(t.opinion for t in found if math.isfinite(t.opinion)) or 1.0
    for tower in found:
        tower.share = tower.opinion / total
    if any(tower.gradient is not None for tower in found):
        for tower in found:  # a backward pass that did not reach a tower left it without gradients
            if tower.gradient is None and any(p.requires_grad for p in towers[tower.name].parameters()):
                tower.gradient = 0.0
    _judge(found)
    return Balance(found)


def _judge(towers: list[TowerBalance]) -> None:
    mean = sum(t.opinion for t in towers) / max(len(towers), 1)
    gradients = [t.gradient for t in towers if t.gradient is not None]
    usual = sum(gradients) / len(gradients) if gradients else 0.0
    for tower in towers:
        if not math.isfinite(tower.opinion):
            tower.state, tower.why = "dead", "its output is not finite"
        elif tower.opinion <= DEAD * mean:
            tower.state, tower.why = "dead", "its output is close to zero"
        elif tower.spread <= DEAD * tower.opinion:
            tower.state, tower.why = "dead", "its output does not depend on its input"
        elif tower.gradient is not None and usual and tower.gradient <= DEAD * usual:
            tower.state, tower.why = "dead", "its gradient is close to zero"
        elif len(towers) > 1 and tower.share >= min(DOMINANT / len(towers), 0.9):
            tower.state, tower.why = "dominant", f"its output is {tower.share:.0%} of the sum of all outputs"


def _tensors(output: Any) -> list[Tensor]:
    leaves = _tree.flatten(output)[0]
    return [leaf.detach().float() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _size(tensors: list[Tensor]) -> float:
    count = sum(t.numel() for t in tensors)
    return math.sqrt(sum(float(t.square().sum()) for t in tensors) / count) if count else 0.0


def _spread(tensors: list[Tensor]) -> float:
    """Standard deviation over the batch; infinite if there is no batch to compare."""
    spreads = [float(t.std(0).square().mean().sqrt()) for t in tensors if t.dim() and t.shape[0] > 1]
    return max(spreads, default=math.inf)
