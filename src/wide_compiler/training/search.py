"""Hyper-parameter search over lanes: grids, random settings, population-based training, halving."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from .lane_losses import check_lane_losses
from .population import Population


@dataclass(frozen=True)
class Uniform:
    """Uniform distribution over `[low, high]`."""

    low: float
    high: float

    def draw(self, n: int, generator: torch.Generator) -> list[float]:
        return (self.low + (self.high - self.low) * _rand(n, generator)).tolist()


@dataclass(frozen=True)
class LogUniform:
    """Log-uniform distribution over `[low, high]`, for learning rates and decays."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise ArgumentError(f"LogUniform needs 0 < low <= high, got {self.low:g} and {self.high:g}")

    def draw(self, n: int, generator: torch.Generator) -> list[float]:
        low, high = math.log(self.low), math.log(self.high)
        return (low + (high - low) * _rand(n, generator)).exp().tolist()


@dataclass(frozen=True)
class Choice:
    """Uniform distribution over a list of values."""

    values: Sequence[Any]

    def draw(self, n: int, generator: torch.Generator) -> list[Any]:
        return [self.values[i] for i in torch.randint(len(self.values), (n,), generator=generator).tolist()]


def random_search(n: int, seed: int = 0, **space: Uniform | LogUniform | Choice) -> dict[str, Any]:
    """Draw settings for `n` lanes: keyword arguments for an optimiser, each a list of `n`.

    >>> settings = random_search(4, lr=LogUniform(1e-4, 1e-1), beta1=Uniform(0.8, 0.99))
    >>> [len(values) for values in (settings["lr"], settings["betas"][0])]
    [4, 4]
    """
    generator = torch.Generator().manual_seed(seed)
    return _options({name: kind.draw(n, generator) for name, kind in space.items()})


def grid_search(**values: Sequence[Any]) -> dict[str, Any]:
    """Return all combinations of settings, one per lane: keyword arguments for an optimiser.

    >>> grid_search(lr=[0.1, 0.2], weight_decay=[0.0, 0.01])
    {'lr': [0.1, 0.1, 0.2, 0.2], 'weight_decay': [0.0, 0.01, 0.0, 0.01]}
    """
    rows = list(itertools.product(*values.values()))
    return _options({name: [row[i] for row in rows] for i, name in enumerate(values)})


def exploit_and_explore(
    population: Population,
    scores: Tensor,
    change: dict[str, float | Callable[[Tensor], Tensor]],
    fraction: float = 0.25,
    generator: torch.Generator | None = None,
) -> dict[int, int]:
    """Run one round of population-based training: replace the worst lanes by perturbed copies of the best.

    Args:
        population: the lanes being trained.
        scores: `[N]`, lower is better; non-finite scores rank last.
        change: how each hyper-parameter of a copy is perturbed (see `Population.perturb`).
        fraction: share of the lanes that is replaced, and share that is copied.
        generator: for the choice of copies and the perturbations.

    Returns:
        Replaced lane -> copied lane.
    """
    check_lane_losses(scores, population.n)
    if not 0 < fraction <= 0.5:
        raise ArgumentError(f"fraction must be above 0 and at most 0.5, got {fraction:g}")
    order = ranked(scores)
    k = int(fraction * population.n)
    if k == 0:
        return {}
    best, worst = order[:k], order[-k:]
    sources = [best[i] for i in torch.randint(k, (k,), generator=generator).tolist()]
    population.copy(sources, worst)
    for name, by in change.items():
        population.perturb(worst, by, name, generator)
    return dict(zip(worst, sources, strict=True))


def halve(population: Population, scores: Tensor, keep: float = 0.5) -> list[int]:
    """Run one round of successive halving: keep only the best lanes, sorted by score.

    `scores` is `[N]`, lower is better. Returns the previous numbers of the lanes kept.
    """
    check_lane_losses(scores, population.n)
    if not 0 < keep < 1:
        raise ArgumentError(f"keep must be between 0 and 1, got {keep:g}")
    stay = ranked(scores)[: max(1, round(keep * population.n))]
    population.select(stay)
    return stay


def ranked(scores: Tensor) -> list[int]:
    """Return the lanes in order of ascending score; non-finite scores come last."""
    plain = scores.detach().double().cpu()
    return torch.where(plain.isfinite(), plain, math.inf).argsort(stable=True).tolist()


def folds(count: int, k: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return training and test indices for k-fold cross-validation, one fold per lane.

    Shapes are `[k, count - count // k]` and `[k, count // k]`. Each sample is in at most one test fold;
    `count % k` samples, drawn at random, are in none.

    >>> train, test = folds(7, 3)
    >>> train.shape, test.shape
    (torch.Size([3, 5]), torch.Size([3, 2]))
    """
    if not 2 <= k <= count:
        raise ArgumentError(f"expected between 2 and {count} folds of {count} samples, got {k}")
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    size = count // k
    tests = shuffled[: size * k].view(k, size)
    trains = [torch.cat([shuffled[: i * size], shuffled[(i + 1) * size :]]) for i in range(k)]
    return torch.stack(trains), tests


def _options(columns: dict[str, list[Any]]) -> dict[str, Any]:
    """Combine beta1 and beta2 into the pair `betas`, as optimisers take it."""
    if "beta1" in columns or "beta2" in columns:
        columns["betas"] = (columns.pop("beta1", 0.9), columns.pop("beta2", 0.999))  # type: ignore[assignment]
    return columns


def _rand(n: int, generator: torch.Generator) -> Tensor:
    return torch.rand(n, generator=generator, dtype=torch.float64)
