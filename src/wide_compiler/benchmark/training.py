"""Trainee: a training step whose first steps can be run again, from the same start, and compared."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from .problem import Candidate, stacked

# Small, because the first steps of Adam turn a gradient that is mere rounding into a whole step.
LEARNING_RATE = 1e-4
COMPARED_STEPS = 3
# Whatever has to be compiled, measured or captured happens in the first steps: the compared ones come after.
WARM_UP = 4


def member_loss(output: Tensor) -> Tensor:
    """The loss of one member."""
    return output.square().mean()


def lane_losses(outputs: Tensor) -> Tensor:
    """The losses `[N]` of outputs `[N, ...]`."""
    return outputs.square().flatten(1).mean(1)


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    return chain(module.parameters(), module.buffers())


def own_adam(parameters: Iterable[Tensor]) -> Optimizer:
    return Adam(parameters, LEARNING_RATE, foreach=True)


def fused_adam(parameters: Iterable[Tensor], cuda: bool) -> Optimizer:
    """One kernel for all parameters; on a GPU its step counter lives there too, as a CUDA graph wants it."""
    return Adam(parameters, LEARNING_RATE, fused=True, capturable=cuda)


class Trainee:
    """`step` takes one step and gives the lanes' losses; `tensors` is all it changes, but for optimisers."""

    def __init__(
        self,
        step: Callable[[], Tensor | list[Tensor]],
        tensors: Iterable[Tensor],
        optimizers: list[Optimizer],
    ) -> None:
        self.step = step
        self.tensors = list(tensors)
        self.start = [tensor.detach().clone() for tensor in self.tensors]
        self.optimizers = optimizers

    def reset(self) -> None:
        """Back to the start, in place: a captured graph reads the same memory."""
        with torch.no_grad():
            for tensor, start in zip(self.tensors, self.start, strict=True):
                tensor.copy_(start)
            for optimizer in self.optimizers:
                for state in optimizer.state.values():
                    for value in state.values():
                        if isinstance(value, Tensor):
                            value.zero_()

    def losses(self) -> Tensor:
        """The lanes' losses `[N, steps]` of the first steps."""
        for _ in range(WARM_UP):
            self.step()
        self.reset()
        return torch.stack([stacked(self.step()) for _ in range(COMPARED_STEPS)], dim=1)

    def candidate(self) -> Candidate:
        return Candidate(self.step, lambda: {"losses": [self.losses()]})
