"""BenchmarkRow: times and errors of one strategy at one number of lanes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

# Lists of tensors by kind ("outputs", "gradients", ...), each tensor `[N, ...]`.
Results = Mapping[str, Sequence[Tensor]]


def largest_error(got: Results, want: Results, random: bool = False) -> float:
    """Return the largest error of any tensor, relative to the largest value of its group in `want`.

    Only groups in `got` are compared. A different shape, or a value that is not finite on one side only,
    counts as infinite. With `random`, elements that are zero on either side are left out.
    """
    return max((_group_error(tensors, want[name], random) for name, tensors in got.items()), default=0.0)


def first_lanes(results: Results, lanes: int) -> Results:
    return {name: [tensor[:lanes] for tensor in tensors] for name, tensors in results.items()}


def _group_error(got: Sequence[Tensor], want: Sequence[Tensor], random: bool) -> float:
    if len(got) != len(want):
        return float("inf")
    worst, scale = 0.0, 0.0
    for ours, theirs in zip(got, want, strict=True):
        if ours.shape != theirs.shape:
            return float("inf")
        if not theirs.numel():
            continue
        ours, theirs = ours.detach().double(), theirs.detach().double()
        if random:
            if not _same_share_of_zeros(ours, theirs):
                return float("inf")
            kept = (ours != 0) & (theirs != 0)
            ours, theirs = ours * kept, theirs * kept
        difference = torch.where(ours == theirs, 0.0, ours - theirs).abs().max().item()
        if difference != difference:
            return float("inf")
        worst, scale = max(worst, difference), max(scale, theirs.abs().nan_to_num(posinf=0.0).max().item())
    return worst / scale if scale > 0 else worst


def _same_share_of_zeros(ours: Tensor, theirs: Tensor) -> bool:
    """Return whether the shares of zeros differ by at most six standard deviations of a fair coin."""
    apart = ((ours == 0).double().mean() - (theirs == 0).double().mean()).abs().item()
    return apart <= 6 * 0.5 * (2 / ours.numel()) ** 0.5


LOOP = "loop"
OURS = "ours"


@dataclass
class BenchmarkRow:
    """One line of the table.

    Attributes:
        name: name of the workload.
        kind: "model" or "primitive".
        n: number of lanes.
        batch: batch size of each lane.
        mode: "infer" (a forward pass) or "train" (forward, backward, Adam).
        device: the PyTorch device.
        strategy: the primitive's strategy, or those that a wide model has chosen.
        ms: milliseconds for all lanes, by candidate: "loop", "ours", and the peers.
        error: difference from the loop, relative to the largest value; None if it did not run.
        loop_error: difference of the loop from float64, on a few lanes.
        ok: whether it ran and is within the tolerance.
        why: the reason if it is not ok.
        errors: `error` of every peer.
        failures: for peers that raised: type and first line of the error.
        tolerance: the largest allowed error.
        build_seconds: time from the members to the first result.
    """

    name: str
    kind: str
    n: int
    batch: int
    mode: str
    device: str
    strategy: str
    ms: dict[str, float] = field(default_factory=dict)
    error: float | None = None
    loop_error: float = 0.0
    ok: bool = False
    why: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    tolerance: float = 0.0
    build_seconds: float | None = None

    @property
    def ran(self) -> bool:
        return OURS in self.ms

    @property
    def wrong(self) -> bool:
        """Ran, but differs from the loop."""
        return self.error is not None and not self.ok

    @property
    def speedup(self) -> float | None:
        """Time of the eager loop divided by ours."""
        return self.ms[LOOP] / self.ms[OURS] if self.ran and LOOP in self.ms else None

    @property
    def best_peer(self) -> str | None:
        """The fastest correct candidate besides ours, the loop included; None without peers."""
        right = {
            name: ms
            for name, ms in self.ms.items()
            if name != OURS and self.errors.get(name, 0.0) <= self.tolerance
        }
        return min(right, key=right.__getitem__) if len(self.ms) + len(self.failures) > 2 and right else None

    @property
    def peer_ratio(self) -> float | None:
        """Time of the best peer divided by ours."""
        return self.ms[self.best_peer] / self.ms[OURS] if self.ran and self.best_peer else None

    def as_dict(self) -> dict[str, Any]:
        extra = {"speedup": self.speedup, "best_peer": self.best_peer, "peer_ratio": self.peer_ratio}
        return {**asdict(self), **extra}


def crossover(rows: Iterable[BenchmarkRow]) -> int | None:
    """Return the smallest N from which on wide is faster than the loop; None if slower at the largest N."""
    found = None
    for row in sorted(rows, key=lambda row: row.n, reverse=True):
        if row.speedup is None:
            continue
        if row.speedup <= 1:
            break
        found = row.n
    return found


def lines(rows: Iterable[BenchmarkRow]) -> dict[tuple[str, str, str], list[BenchmarkRow]]:
    """Group rows that differ in N only, by (kind, name, strategy); all rows of a model are one group."""
    found: dict[tuple[str, str, str], list[BenchmarkRow]] = {}
    for row in rows:
        strategy = row.strategy if row.kind == "primitive" else OURS
        found.setdefault((row.kind, row.name, strategy), []).append(row)
    return found
