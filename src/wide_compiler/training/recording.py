"""A training step in a CUDA graph."""

from typing import Any

import torch
from torch import Tensor

from ..guards.modes import current_stream
from ..replay.cuda_graph import CaptureRefused, capture, uncached_autocast
from .step_guard import StepGuard, can_record_optimizer


class StepRecording:
    """The graph, the buffers it reads, the losses and gradients it writes.

    Args:
        in_place: it reads the caller's own tensors, for loops that fill the same ones again and again.
    """

    def __init__(self, step: Any, args: tuple, targets: tuple, in_place: bool):
        self.step = step
        self.whole = can_record_optimizer(step.optimizer)
        self.guard = StepGuard(step, args, targets, in_place)
        self.stream = current_stream()
        self.arguments = [
            x.clone() if isinstance(x, Tensor) and not in_place else x for x in (*args, *targets)
        ]
        mine, theirs = tuple(self.arguments[: len(args)]), tuple(self.arguments[len(args) :])
        step.optimizer.zero_grad(set_to_none=True)
        run = step.run if self.whole else step.gradients
        with uncached_autocast(step.autocast is not None):
            self.graph, self.losses = capture(lambda: run(mine, theirs), stream=step.stream)
        self.gradients = [(p, p.grad) for p in step.wide.parameters()]

    @classmethod
    def of(cls, step: Any, args: tuple, targets: tuple, in_place: bool) -> "StepRecording | None":
        """The whole step, or forward and backward only if the optimiser cannot be recorded; or None."""
        try:
            return cls(step, args, targets, in_place)
        except CaptureRefused as error:
            step.optimizer.zero_grad(set_to_none=True)
            step.why = f"no CUDA graph: {error}"
            return None

    def replay(self, args: tuple, targets: tuple) -> Tensor:
        stream = current_stream()
        if stream != self.stream:  # two streams must not use a recording's memory at the same time
            torch.cuda.synchronize()
            self.stream = stream
        if not self.guard.in_place:
            for buffer, given in zip(self.arguments, (*args, *targets), strict=True):
                if isinstance(buffer, Tensor):
                    buffer.copy_(given)
        self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient  # somebody may have cleared it
        if self.whole:
            self.step.optimizer._opt_called = True  # what a scheduler looks for, set by `step` otherwise
        else:
            self.step.optimizer.step()
        return self.losses.clone()
