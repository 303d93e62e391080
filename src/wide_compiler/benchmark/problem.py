"""Problem: a workload with its members and input; BenchmarkCandidate: one way to run it."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from .benchmark_row import Results
from .workload import Call, Workload

TF32 = 5e-3


class Called(nn.Module):
    """A member together with its call, as a module that takes one tensor."""

    def __init__(self, member: nn.Module, call: Call) -> None:
        super().__init__()
        self.member = member
        self.call = call

    def forward(self, x: Tensor) -> Any:
        return self.call(self.member, x)


@dataclass
class Problem:
    """N members and an input `[N, B, ...]`, the same for all candidates."""

    workload: Workload
    n: int
    batch: int
    device: torch.device
    train: bool
    members: list[nn.Module]
    x: Tensor

    @classmethod
    def of(cls, workload: Workload, n: int, batch: int, device: torch.device, train: bool) -> "Problem":
        """Make members and inputs from a fixed seed; PyTorch's random state is restored."""
        with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
            torch.manual_seed(0)
            training = train or workload.random
            members = [workload.make().to(device).train(training) for _ in range(n)]
            x = torch.stack([workload.inputs(batch, device) for _ in range(n)])
        return cls(workload, n, batch, device, train, members, x)

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def called(self) -> list[nn.Module]:
        """Return the members as modules that take one tensor."""
        return [Called(member, self.workload.call) for member in self.members]

    def in_float64(self, lanes: int) -> "Problem":
        """Return the first `lanes` lanes of the problem, in double precision."""
        members = [copy.deepcopy(member).double() for member in self.members[:lanes]]
        x = self.x[:lanes].double() if self.x.is_floating_point() else self.x[:lanes]
        return replace(self, n=len(members), members=members, x=x)

    @property
    def tolerance(self) -> float:
        own = self.workload.train_tolerance if self.train else self.workload.tolerance
        convolves = any(isinstance(m, _ConvNd) for m in self.members[0].modules())
        # With TF32, cuDNN may round to a 10-bit mantissa, for some shapes only.
        return max(own, TF32) if self.cuda and convolves and torch.backends.cudnn.allow_tf32 else own


@dataclass
class BenchmarkCandidate:
    """One way to run a problem.

    Attributes:
        call: the function to time.
        results: computes the tensors to compare with the loop's.
        repeats: number of runs of the problem in one `call`.
        strategy: describes how it ran; valid after a run.
    """

    call: Callable[[], Any]
    results: Callable[[], Results]
    repeats: int = 1
    strategy: Callable[[], str] = str


Build = Callable[[], BenchmarkCandidate]


def stacked(outputs: Tensor | Sequence[Tensor]) -> Tensor:
    """Stack N outputs to `[N, ...]`; an output that is stacked already is cloned, as later calls reuse it."""
    if isinstance(outputs, Tensor):
        return outputs.detach().clone()
    return torch.stack([output.detach() for output in outputs])


def inference(
    call: Callable[[], Any], strategy: Callable[[], str] = str, warm_up: int = 0
) -> BenchmarkCandidate:
    """Return the candidate of a function that returns the outputs of all lanes.

    `warm_up` calls run before the compared one, where the first calls run differently.
    """

    def results() -> Results:
        for _ in range(warm_up):
            call()
        return {"outputs": [stacked(call())]}

    return BenchmarkCandidate(call, results, strategy=strategy)
