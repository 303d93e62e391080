"""A training step in a CUDA graph."""

from typing import Any

import torch
from torch import Tensor

from ..tuning.replay import CaptureRefused, capture

# Optimisers whose step is all on the GPU: they have no option `capturable` because they need none.
_ON_DEVICE = (torch.optim.SGD,)


def can_record_optimizer(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step does nothing in Python that a replay would leave out.

    Only exact types: a subclass may count steps in Python.
    """
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    if type(optimizer) in _ON_DEVICE:
        return True
    own = type(optimizer).__module__.startswith(("torch.optim.", "wide_compiler.training."))
    return own and all(group.get("capturable", False) for group in optimizer.param_groups)


def hooks_of(wide: torch.nn.Module) -> str:
    """The name of a parameter with hooks on its gradient, '' if there is none."""
    for name, p in wide.named_parameters():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            return name
    return ""


class StepRecording:
    """The graph, the buffers it reads, the losses and gradients it writes."""

    def __init__(self, step: Any, args: tuple, targets: tuple, whole: bool):
        self.step, self.whole = step, whole
        self.args = tuple(x.clone() if isinstance(x, Tensor) else x for x in args)
        self.targets = tuple(x.clone() if isinstance(x, Tensor) else x for x in targets)
        step.optimizer.zero_grad(set_to_none=True)
        run = step.run if whole else step.gradients
        with _no_autocast_cache():
            self.graph, self.losses = capture(lambda: run(self.args, self.targets))
        self.gradients = [(p, p.grad) for p in step.wide.parameters()]

    @classmethod
    def of(cls, step: Any, args: tuple, targets: tuple) -> "StepRecording | None":
        """The whole step; forward and backward only, if the optimiser cannot be recorded; or None."""
        whole = can_record_optimizer(step.optimizer)
        try:
            return cls(step, args, targets, whole)
        except CaptureRefused as error:
            step.optimizer.zero_grad(set_to_none=True)
            step.why = f"no CUDA graph: {error}"
            return None

    def replay(self, args: tuple, targets: tuple) -> Tensor:
        for buffer, given in zip((*self.args, *self.targets), (*args, *targets), strict=True):
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


class _no_autocast_cache:
    """Weights cast once and kept would lie in a recording's memory, and be stale."""

    def __enter__(self) -> None:
        self.before = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)

    def __exit__(self, *error: object) -> None:
        torch.set_autocast_cache_enabled(self.before)
