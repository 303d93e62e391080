"""Evolution strategies: lanes are noisy copies of one model, updated from their scores."""

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..model import WideModel
from .lane_losses import check_lane_losses
from .search import ranked


class EvolutionStrategy:
    """Gradient-free training: only the scores of the lanes are used.

    The lanes are the model plus normal noise, in pairs of opposite sign. `ask` draws the lanes; `tell` moves
    the model towards the noise of lanes with lower scores. Only the ranks of scores matter, not their scale.

    Args:
        wide: a wide model with an even number of lanes; lane 0 is the initial model.
        sigma: standard deviation of the noise.
        lr: learning rate of the model.
        seed: seed of the noise.

    >>> import wide_compiler
    >>> _ = torch.manual_seed(0)
    >>> wide = wide_compiler.compile(torch.nn.Linear(3, 1), torch.randn(2, 3), n=20)
    >>> strategy = EvolutionStrategy(wide, sigma=0.1, lr=0.1)
    >>> x = torch.randn(50, 3)
    >>> with torch.no_grad():
    ...     for _ in range(200):
    ...         strategy.ask()
    ...         strategy.tell((wide.shared(x) - x.sum(1, keepdim=True)).square().mean((1, 2)))
    ...     strategy.settle()
    >>> bool((wide.lane(0)(x) - x.sum(1, keepdim=True)).square().mean() < 0.05)
    True
    """

    def __init__(self, wide: WideModel, sigma: float = 0.05, lr: float = 0.05, seed: int = 0):
        if wide.n % 2:
            raise ArgumentError(
                f"noise comes in pairs of opposite signs: give an even number of lanes, not {wide.n}"
            )
        if sigma <= 0:
            raise ArgumentError(f"sigma must be above 0, got {sigma:g}")
        self.wide, self.sigma, self.lr = wide, sigma, lr
        self.parameters = [p for p in wide.stacked_parameters() if p.requires_grad]
        self.generator = torch.Generator().manual_seed(seed)
        self.center = [p.detach()[0].clone() for p in self.parameters]
        self.noise: list[Tensor] = []

    @torch.no_grad()
    def ask(self) -> None:
        """Draw new lanes around the model."""
        self.noise = []
        for p, center in zip(self.parameters, self.center, strict=True):
            half = torch.randn(self.wide.n // 2, *center.shape, generator=self.generator).to(center)
            noise = torch.cat([half, -half])
            p.data.copy_(center + self.sigma * noise)
            self.noise.append(noise)

    @torch.no_grad()
    def tell(self, scores: Tensor) -> None:
        """Update the model from the scores of its lanes, `[N]`; lower is better."""
        check_lane_losses(scores, self.wide.n)
        if not self.noise:
            raise ArgumentError("tell: call ask() first, which draws the weights of the lanes")
        weights = torch.empty(self.wide.n)
        weights[ranked(scores)] = torch.linspace(0.5, -0.5, self.wide.n)
        for center, noise in zip(self.center, self.noise, strict=True):
            step = torch.tensordot(weights.to(noise), noise, dims=1) / (self.wide.n * self.sigma)
            center.add_(step, alpha=self.lr)

    @torch.no_grad()
    def settle(self) -> None:
        """Copy the current model into every lane."""
        for p, center in zip(self.parameters, self.center, strict=True):
            p.data.copy_(center.expand_as(p))
