"""Trainee: a training step that can be reset to its start, so that its first steps can be compared."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from .benchmark_row import Results
from .problem import BenchmarkCandidate, stacked

# Small, because the first steps of Adam turn a gradient of rounding noise into a full step.
LEARNING_RATE = 1e-4
COMPARED_STEPS = 3
# Compilation, measurement and graph capture happen in the first steps; the compared steps come after them.
WARM_UP = 4


def member_loss(output: Tensor) -> Tensor:
    """Return the loss of one member's output."""
    return output.square().mean()


def lane_losses(outputs: Tensor) -> Tensor:
    """Return the losses `[N]` of outputs `[N, ...]`."""
    return outputs.square().flatten(1).mean(1)


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    return chain(module.parameters(), module.buffers())


def fused_adam(parameters: Iterable[Tensor], cuda: bool) -> Optimizer:
    """Adam with one kernel for all parameters; on a GPU capturable, as CUDA graphs require."""
    return Adam(parameters, LEARNING_RATE, fused=True, capturable=cuda)


def stepping(optimizer: Optimizer, losses_of: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that steps the optimiser on the sum of the losses `[N]`, and returns these."""

    def step() -> Any:
        optimizer.zero_grad()
        losses = losses_of()
        losses.sum().backward()
        optimizer.step()
        return losses

    return step


def first_results(
    trainee: "Trainee", buffers: Callable[[], dict[str, Tensor]], gradients: Callable[[], Sequence[Tensor]]
) -> Results:
    """Losses of the first steps; buffers and gradients `[N, ...]` of the first step."""
    found: dict[str, Sequence[Tensor]] = {"losses": [trainee.losses()]}
    trainee.reset()
    trainee.step()
    found |= {f"buffer {name}": [buffer.clone()] for name, buffer in buffers().items()}
    found["gradients"] = gradients()
    trainee.reset()
    return found


class Trainee:
    """A training step and the state to reset.

    Args:
        step: runs one step and returns the losses of the lanes.
        tensors: every tensor that a step changes, except the optimisers' state.
    """

    def __init__(
        self,
        step: Callable[[], Tensor | list[Tensor]],
        tensors: Iterable[Tensor],
        optimizers: Sequence[Optimizer],
    ) -> None:
        self.step = step
        self.tensors = list(tensors)
        self.start = [tensor.detach().clone() for tensor in self.tensors]
        self.optimizers = optimizers

    def reset(self) -> None:
        """Restore the start in place, because a captured CUDA graph reads the same memory."""
        with torch.no_grad():
            for tensor, start in zip(self.tensors, self.start, strict=True):
                tensor.copy_(start)
            for optimizer in self.optimizers:
                for state in optimizer.state.values():
                    for value in state.values():
                        if isinstance(value, Tensor):
                            value.zero_()

    def losses(self) -> Tensor:
        """Return the losses `[N, steps]` of the first steps."""
        for _ in range(WARM_UP):
            self.step()
        self.reset()
        return torch.stack([stacked(self.step()) for _ in range(COMPARED_STEPS)], dim=1)

    def candidate(self) -> BenchmarkCandidate:
        return BenchmarkCandidate(self.step, lambda: {"losses": [self.losses()]})
