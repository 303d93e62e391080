"""TrainStep: forward, backward and optimiser step for all lanes in one call, recorded on CUDA."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..capture.state import has_gradient_hooks
from ..errors import ArgumentError
from ..guards import Observer, Snapshot
from ..guards.modes import capturing, plain_world
from ..model import WideModel
from ..model.program import WideProgram
from ..replay.cuda_graph import on_stream, uncached_autocast
from .clipping import clip_lane_norms_
from .lane_losses import check_loss
from .step_recording import StepRecording, TrainStepGuard

# Steps without recording: the first creates the optimiser's state and compiles, the second warms up.
WARM_UP = 2
MAX_RECORDINGS = 6


def autocast_to(dtype: torch.dtype | None, wide: WideModel) -> Any:
    """Return `torch.autocast` on the model's device; a null context if `dtype` is None."""
    return nullcontext() if dtype is None else torch.autocast(wide._device().type, dtype=dtype)


class TrainStep:
    """One training step of every lane.

    `step(x, *targets)` computes `loss(wide.stacked(x), *targets)`, backpropagates its sum, steps the
    optimiser and returns the losses per lane. With the sum, not the mean, each lane gets the gradients it
    would get alone.

    With `WideConfig.fast()` on CUDA the whole step is recorded in a CUDA graph and replayed. It is recorded
    again when shapes, train flags, hyper-parameters, numbers read by the loss, or the address of a weight or
    optimiser state change. The loss must be a function of tensors and plain numbers; other Python side
    effects happen only while recording. `why` holds the reason if nothing is recorded.

    Args:
        wide: a wide model.
        optimizer: any optimiser over `wide.parameters()`. Recorded are those of `wide_compiler.training`, and
            those of `torch.optim` with `capturable=True` where that option exists.
        loss: function of the wide output and the targets; returns one loss per lane `[N]`, or their sum.
        door: 'stacked' (inputs `[N, B, ...]`) or 'shared' (one input for all lanes).
        clip: maximum gradient norm per lane.
        autocast: run forward and loss under `torch.autocast` with this dtype.

    >>> from torch import nn
    >>> import wide_compiler
    >>> wide = wide_compiler.compile(nn.Linear(4, 1), torch.randn(2, 4), n=3)
    >>> sgd = torch.optim.SGD(wide.parameters(), 0.1)
    >>> step = TrainStep(wide, sgd, lambda y, target: (y - target).square().mean((1, 2)))
    >>> step(torch.randn(3, 8, 4), torch.zeros(3, 8, 1)).shape
    torch.Size([3])
    """

    def __init__(
        self,
        wide: WideModel,
        optimizer: torch.optim.Optimizer,
        loss: Callable[..., Tensor],
        door: str = "stacked",
        clip: float | None = None,
        autocast: torch.dtype | None = None,
    ):
        if door not in ("stacked", "shared"):
            raise ArgumentError(f"unknown door {door!r}; choose 'stacked' or 'shared'")
        check_loss(loss)
        self.wide, self.optimizer, self.loss = wide, optimizer, loss
        self.door: Callable[..., Any] = getattr(wide, door)
        self.clip, self.autocast = clip, autocast
        fast = wide.config.compile
        self.compiled_loss = torch.compile(loss, backend=wide.config.backend, dynamic=False) if fast else loss
        self.recordings: list[StepRecording] = []  # most recently used first
        self.warm: TrainStepGuard | None = None  # snapshot after the last step without recording
        self.given: tuple = ()  # arguments of that step
        self.ones: Tensor | None = None
        self.plain_steps = 0  # in a row, while `warm` holds
        self.stream: torch.cuda.Stream | None = None  # for warm-up and recording
        self.observing = False  # whether to observe the Python reads of the next step
        self.reads = Snapshot()  # values read by the loss and the members' forward
        self.why = "" if fast else "the configuration does not compile"

    def __call__(self, inputs: Any, *targets: Any) -> Tensor:
        """Run one step; return the losses `[N]`. `inputs` is a tensor or a tuple of positional arguments."""
        args = inputs if isinstance(inputs, tuple) else (inputs,)
        if self.why or capturing() or not plain_world():
            return self.run(args, targets)
        for position, recording in enumerate(self.recordings):
            if recording.guard.holds(args, targets):
                if position:
                    self.recordings.insert(0, self.recordings.pop(position))
                return recording.replay(args, targets)
        self.why = self._why_not(args, targets)
        if self.why:
            return self.run(args, targets)
        # State created by a step, such as the optimiser's, must exist before recording.
        if self.warm is None or not self.warm.holds(args, targets):
            self.plain_steps = 0
        if self.plain_steps < WARM_UP:
            if self.stream is None:
                self.stream = torch.cuda.Stream()
            self.observing = True
            with uncached_autocast(self.autocast is not None):
                losses = on_stream(self.stream, lambda: self.run(args, targets))
            self.observing = False
            self.plain_steps += 1
            self.warm, self.given = TrainStepGuard(self, args, targets), (*args, *targets)
            return losses
        # The same tensor objects as in the last step: the recording can read them in place.
        again = [*map(id, (*args, *targets))] == [*map(id, self.given)]
        in_place = again and not any(x.requires_grad for x in self.given if isinstance(x, Tensor))
        self.given = ()
        new = StepRecording.of(self, args, targets, in_place)
        if new is None:
            return self.run(args, targets)
        self.recordings = [new, *self.recordings][:MAX_RECORDINGS]
        return new.replay(args, targets)

    def observe(self, output: Any, targets: tuple) -> None:
        """Record which Python values the members' forward and the loss read, since a recording bakes them in.

        This runs the loss once more. Its Python side effects are undone, and prevent a recording.
        """
        devices = [d for d in {t.device for t in self.wide.parameters()} if d.type == "cuda"]
        roots = [part for part in (self.loss,) if isinstance(part, nn.Module)]
        for _ in range(2):  # run again if the first run imported modules
            observer = Observer(roots, calls=[self.loss])
            with torch.random.fork_rng(devices), torch.enable_grad(), autocast_to(self.autocast, self.wide):
                own = _tree.tree_map(_detached, output)
                observer.run(lambda own=own: self.loss(own, *targets))  # type: ignore[misc]
            if not observer.imported:
                break
        program = self.wide.programs.latest
        members = program.captured.rests_on if isinstance(program, WideProgram) else Snapshot()
        self.reads = observer.reads.without(()).joined([members])
        if observer.effects:
            self.why = f"a recording would lose a side effect of the loss: {observer.effects[0]}"

    def run(self, args: tuple, targets: tuple) -> Tensor:
        """Run the step without a recording."""
        losses = self.gradients(args, targets)
        self.optimizer.step()
        return losses

    def forward(self, args: tuple, targets: tuple, **kwargs: Any) -> tuple[Any, Any]:
        """Return the wide output and the losses."""
        with autocast_to(self.autocast, self.wide):
            output = self.door(*args, **kwargs)
            return output, self.compiled_loss(output, *targets)

    def gradients(self, args: tuple, targets: tuple) -> Tensor:
        """Run forward, backward and clipping; return the losses."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.enable_grad():
            output, losses = self.forward(args, targets)
            if self.observing:
                self.observe(output, targets)
            if not isinstance(losses, Tensor) or losses.shape not in ((self.wide.n,), ()):
                got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
                raise ArgumentError(
                    f"the loss must give one number per lane [{self.wide.n}] or their sum, got {got}; "
                    f"reduce over all dimensions but the first"
                )
            losses.backward(self._ones(losses))
        self.clip_gradients()
        return losses.detach()

    def _ones(self, losses: Tensor) -> Tensor:
        """Return the initial gradient of the backward pass: ones, the gradient of the sum of losses."""
        kind = (losses.shape, losses.dtype, losses.device)
        if self.ones is None or (self.ones.shape, self.ones.dtype, self.ones.device) != kind:
            self.ones = torch.ones_like(losses)
        return self.ones

    def clip_gradients(self) -> None:
        if self.clip is not None:
            clip_lane_norms_(self.wide.parameters(), self.clip)

    def _why_not(self, args: tuple, targets: tuple) -> str:
        """Return why this step can never be recorded; '' if it can."""
        tensors = [x for x in (*args, *targets) if isinstance(x, Tensor)]
        if not tensors or not all(t.is_cuda for t in tensors):
            return "the inputs are not on CUDA"
        if not all(isinstance(x, (Tensor, bool, int, float, str, type(None))) for x in (*args, *targets)):
            return "the arguments are more than tensors and numbers"
        if any(t.is_nested for t in tensors):
            return "the arguments are nested tensors"
        latest = self.wide.programs.latest
        if latest is not None and latest.runs_members:
            return "modules run as Python, which a recording would skip"
        for name, p in self.wide.named_parameters():
            if has_gradient_hooks(p):
                return f"{name} has gradient hooks, whose Python a recording would skip"
        return ""


def _detached(leaf: Any) -> Any:
    return leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf
