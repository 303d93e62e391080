"""TrainStep: forward, backward and optimiser of all lanes as one call, on CUDA as one recording."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..model import WideModel
from ..tuning.when import capturing, plain_world
from .fingerprint import fingerprint
from .recording import StepRecording, can_record_optimizer, hooks_of

# Steps that run plainly before a recording: the first makes the optimiser's state and compiles, the second
# finds everything warm.
WARM_UP = 2
MAX_RECORDINGS = 6


class TrainStep:
    """One training step of every lane.

    `step(x, *targets)` runs `loss(wide.stacked(x), *targets)`, takes the gradients of its sum, steps the
    optimiser and returns the lanes' losses. The sum, not the mean: so every lane gets the gradients that it
    would get alone.

    With `WideConfig.fast()` on CUDA the whole step is recorded in a CUDA graph and replayed. It is recorded
    anew when shapes, train flags, hyper-parameters, numbers that the loss reads, or the place of any weight
    or optimiser state change. The loss must be a function of tensors and plain numbers; what else it does in
    Python happens only while recording. `why` says what could not be recorded.

    Args:
        wide: a wide model.
        optimizer: any optimiser over `wide.parameters()`. To be part of a recording it must be one of
            torch's own, with `capturable=True` where there is such an option.
        loss: takes the wide output (and targets), gives one loss per lane `[N]`, or their sum.
        door: 'stacked' (`[N, B, ...]` inputs) or 'shared' (one input for all lanes).

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
    ):
        if door not in ("stacked", "shared"):
            raise ValueError(f"unknown door {door!r}; choose 'stacked' or 'shared'")
        self.wide, self.optimizer, self.loss = wide, optimizer, loss
        self.door: Callable[..., Any] = getattr(wide, door)
        fast = wide.config.compile
        self.compiled_loss = torch.compile(loss, backend=wide.config.backend, dynamic=False) if fast else loss
        self.recordings: dict[Any, StepRecording] = {}
        self.warm: dict[Any, tuple[int, Any]] = {}  # plain steps, and where everything lay after the last
        self.why = "" if fast else "the configuration does not compile"

    def __call__(self, inputs: Any, *targets: Any) -> Tensor:
        """`inputs`: a tensor, or a tuple of the model's positional arguments."""
        args = inputs if isinstance(inputs, tuple) else (inputs,)
        if not self._recordable(args, targets):
            return self.run(args, targets)
        look = self._look(args, targets)
        key = (look, self._addresses())
        recording = self.recordings.get(key)
        if recording is None:
            # What a step makes for itself, above all an optimiser's state, must be there before a recording.
            steps, addresses = self.warm.get(look, (0, None))
            if steps < WARM_UP or addresses != key[1]:
                losses = self.run(args, targets)
                self.warm[look] = (steps + 1, self._addresses())
                return losses
            if len(self.recordings) >= MAX_RECORDINGS:
                self.recordings.clear()
                self.warm.clear()
            recording = StepRecording.of(self, args, targets)
            if recording is None:
                return self.run(args, targets)
            self.recordings[key] = recording
        return recording.replay(args, targets)

    def run(self, args: tuple, targets: tuple) -> Tensor:
        """The step as it is written, without a recording."""
        losses = self.gradients(args, targets)
        self.optimizer.step()
        return losses

    def gradients(self, args: tuple, targets: tuple) -> Tensor:
        """Forward and backward; the lanes' losses."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.enable_grad():
            losses = self.compiled_loss(self.door(*args), *targets)
            if not isinstance(losses, Tensor) or losses.shape not in ((self.wide.n,), ()):
                got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
                raise ValueError(
                    f"the loss must give one number per lane [{self.wide.n}] or their sum, got {got}; "
                    f"reduce over all dimensions but the first"
                )
            losses.sum().backward()
        return losses.detach()

    def _recordable(self, args: tuple, targets: tuple) -> bool:
        if self.why or capturing() or not plain_world():
            return False
        latest = self.wide.programs.latest
        tensors = [x for x in (*args, *targets) if isinstance(x, Tensor)]
        if not tensors or not all(t.is_cuda for t in tensors):
            self.why = "the inputs are not on CUDA"
        elif latest is not None and latest.runs_members:
            self.why = "modules run as Python, which a recording would skip"
        elif hooks_of(self.wide):
            self.why = f"{hooks_of(self.wide)} has gradient hooks, whose Python a recording would skip"
        elif not all(isinstance(x, (Tensor, bool, int, float, str, type(None))) for x in (*args, *targets)):
            self.why = "the arguments are more than tensors and numbers"
        return not self.why

    def _look(self, args: tuple, targets: tuple) -> tuple[Any, ...]:
        """All that a recording holds but for addresses."""
        arguments = [
            (tuple(x.shape), x.dtype, x.stride(), x.requires_grad) if isinstance(x, Tensor) else x
            for x in (*args, *targets)
        ]
        groups = [
            tuple((k, _plain(v)) for k, v in group.items() if k != "params")
            for group in self.optimizer.param_groups
        ]
        return (
            tuple(arguments),
            len(args),
            self.wide.circumstances(),
            tuple(groups),
            fingerprint(self.loss),
            can_record_optimizer(self.optimizer),
        )

    def _addresses(self) -> tuple[Any, ...]:
        state = self.optimizer.state
        held = [t for p in state.values() for t in p.values() if isinstance(t, Tensor)]
        weights = [(t.data_ptr(), t.requires_grad) for t in self.wide.tensors().values()]
        return tuple(weights), tuple(t.data_ptr() for t in held)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return ("tensor", value.data_ptr()) if value.is_cuda else ("tensor", value.tolist().__repr__())
    return tuple(value) if isinstance(value, list) else value
