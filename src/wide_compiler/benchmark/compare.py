"""How far a result is from the loop's."""

from collections.abc import Mapping, Sequence

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
