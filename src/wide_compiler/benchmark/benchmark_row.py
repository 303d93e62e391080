"""BenchmarkRow: what was measured of one strategy at one number of lanes; and how far it is from the loop."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

# Groups of tensors by what they are ("outputs", "gradients", ...), each tensor `[N, ...]`.
Results = Mapping[str, Sequence[Tensor]]


def largest_error(got: Results, want: Results, random: bool = False) -> float:
    """The largest difference of any tensor, relative to the largest number of its group in `want`.

    Groups that only `want` has are not looked at; another shape, or another place that is not finite, is
    infinitely far. With `random`, elements that either side has drawn as zero are left out.
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
    """Within six standard deviations of a fair coin."""
    apart = ((ours == 0).double().mean() - (theirs == 0).double().mean()).abs().item()
    return apart <= 6 * 0.5 * (2 / ours.numel()) ** 0.5


LOOP = "loop"
OURS = "ours"


@dataclass
class BenchmarkRow:
    """One line of the table.

    Attributes:
        name: of the workload.
        kind: "model" or "primitive".
        n: lanes.
        batch: of each lane.
        mode: "infer" (a forward pass) or "train" (forward, backward, Adam).
        device: as PyTorch calls it.
        strategy: the primitive's strategy, or those a wide model has chosen.
        ms: milliseconds for all lanes, by candidate: "loop", "ours", and the peers.
        error: how far from the loop, relative to the largest number; None if it did not run.
        loop_error: how far the loop itself is from the same in float64 (a few lanes of it).
        ok: ran, and is within the tolerance.
        why: what is not ok.
        errors: the same as `error`, of every peer.
        failures: of the peers that raised: type and first line of the error.
        tolerance: the error that is allowed.
        build_seconds: from the members to the first result.
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
        """Ran, but not as the loop does."""
        return self.error is not None and not self.ok

    @property
    def speedup(self) -> float | None:
        """How many times faster than the eager loop."""
        return self.ms[LOOP] / self.ms[OURS] if self.ran and LOOP in self.ms else None

    @property
    def best_peer(self) -> str | None:
        """The fastest of the others, the loop included, whose result is right; None without peers."""
        right = {
            name: ms
            for name, ms in self.ms.items()
            if name != OURS and self.errors.get(name, 0.0) <= self.tolerance
        }
        return min(right, key=right.__getitem__) if len(self.ms) + len(self.failures) > 2 and right else None

    @property
    def peer_ratio(self) -> float | None:
        """How many times faster than the best peer."""
        return self.ms[self.best_peer] / self.ms[OURS] if self.ran and self.best_peer else None

    def as_dict(self) -> dict[str, Any]:
        extra = {"speedup": self.speedup, "best_peer": self.best_peer, "peer_ratio": self.peer_ratio}
        return {**asdict(self), **extra}


def crossover(rows: Iterable[BenchmarkRow]) -> int | None:
    """The smallest N from which wide stays faster than the loop; None if it is slower at the largest."""
    found = None
    for row in sorted(rows, key=lambda row: row.n, reverse=True):
        if row.speedup is None:
            continue
        if row.speedup <= 1:
            break
        found = row.n
    return found


def lines(rows: Iterable[BenchmarkRow]) -> dict[tuple[str, str, str], list[BenchmarkRow]]:
    """The rows that differ in N alone: by kind, name and strategy (of a model: all of it)."""
    found: dict[tuple[str, str, str], list[BenchmarkRow]] = {}
    for row in rows:
        strategy = row.strategy if row.kind == "primitive" else OURS
        found.setdefault((row.kind, row.name, strategy), []).append(row)
    return found
