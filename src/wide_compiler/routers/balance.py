"""Balance report: which towers dominate the sum of outputs, and which contribute nothing."""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import _tree
from ..errors import ArgumentError
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
        from rich.console import Console
        from rich.table import Table

        table = Table(title=f"balance of {len(self.towers)} towers", title_justify="left")
        for column in ("tower", "opinion", "share", "spread", "gradient", "parameters", "state", "why"):
            table.add_column(column, overflow="fold")
        for t in self.towers:
            gradient = "" if t.gradient is None else f"{t.gradient:.3g}"
            numbers = (f"{t.opinion:.3g}", f"{t.share:.0%}", f"{t.spread:.3g}", gradient, f"{t.parameters:,}")
            table.add_row(t.name, *numbers, t.state, t.why)
        buffer = io.StringIO()
        Console(file=buffer, width=130).print(table)
        return buffer.getvalue()


def balance(router: WideRouter, opinions: Mapping[str, Any]) -> Balance:
    """Compute the balance of the outputs of `wide_forward`, with gradients after `backward()`.

    Args:
        router: the router of the towers.
        opinions: the towers' outputs by name.
    """
    towers = router._towers()
    unknown = [name for name in opinions if name not in towers]
    if unknown:
        raise ArgumentError(f"no tower is called {unknown[0]!r}; the towers are {', '.join(towers)}")
    found = []
    sizes = {name: _size(_tensors(out)) for name, out in opinions.items()}
    total = sum(size for size in sizes.values() if math.isfinite(size)) or 1.0
    for name, out in opinions.items():
        parameters = list(towers[name].parameters())
        found.append(
            TowerBalance(
                name,
                sizes[name],
                _spread(_tensors(out)),
                sizes[name] / total,
                _norm([p.grad for p in parameters if p.grad is not None]),
                sum(p.numel() for p in parameters),
            )
        )
    _judge(found)
    return Balance(found)


def _judge(towers: list[TowerBalance]) -> None:
    mean = sum(t.opinion for t in towers) / max(len(towers), 1)
    gradients = [t.gradient for t in towers if t.gradient is not None]
    usual = sum(gradients) / len(gradients) if gradients else 0.0
    for tower in towers:
        if not math.isfinite(tower.opinion):
            tower.state, tower.why = "dead", "its opinion is not finite"
        elif tower.opinion <= DEAD * mean:
            tower.state, tower.why = "dead", "its opinion is next to nothing"
        elif tower.spread <= DEAD * tower.opinion:
            tower.state, tower.why = "dead", "it says the same whatever it sees"
        elif tower.gradient is not None and usual and tower.gradient <= DEAD * usual:
            tower.state, tower.why = "dead", "next to no gradient reaches it"
        elif len(towers) > 1 and tower.share >= min(DOMINANT / len(towers), 0.9):
            tower.state, tower.why = "dominant", f"{tower.share:.0%} of all that is said is its own"


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


def _norm(gradients: list[Tensor]) -> float | None:
    if not gradients:
        return None
    return float(torch.stack([g.detach().float().norm() for g in gradients]).norm())
