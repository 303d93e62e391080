"""The numbers of the members in the memory of their wide model: put there again where they have changed, and
at every call where that cannot be told."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...capture import canonical_names
from ..work import Bail
from .members import Members, memory_of


class Copies:
    """Which tensor of which member lies where. Nothing of the members but their tensors is asked for."""

    def __init__(self, wide: Any, first: nn.Module, members: Members):
        self.wide = wide
        canonical = canonical_names(first)  # tensors under two names are one tensor in the wide model
        self.places = [
            (canonical[path], lane) for path, lane in zip(members.paths, members.lanes, strict=True)
        ]
        self.homes: list[int] = []  # where the wide model's tensors lay when `rooms` were found
        self.rooms: list[Tensor] = []  # for each of `unread` its room there
        self.unread: list[Tensor] = []  # the members' tensors whose numbers are not looked at
        self.renew(members.tensors, ())  # what lanes share, which was found to be equal, is the same

    def renew(self, tensors: Sequence[Tensor], lanes: Sequence[int]) -> bool:
        """Copy all tensors of these lanes; tells whether a buffer that lanes shared has got lanes now.
        Raises `Bail` if the wide model has no room for what the members hold."""
        self.homes = []
        now: dict[tuple[str, int], Tensor] = {}
        for place, tensor in zip(self.places, tensors, strict=True):
            if now.setdefault(place, tensor) is not tensor:
                raise Bail(f"{place[0]} of lane {place[1]} was one tensor under two names, and is two now")
        wide, parted = self.wide, False
        # Ours is ordinary memory in any mode; in no mode are these copies part of a graph.
        with torch.inference_mode(False), torch.no_grad():
            for place in wide.places:
                of_lanes = [now[place.path, lane] for lane in range(wide.n)]
                changed = lanes
                if place.path not in wide.wide_states:
                    if _all_alike(of_lanes):  # another memory: that of a frozen trunk is the members' own
                        place.tensor.data = of_lanes[0].detach().clone()
                        continue
                    if place.kind == "parameter":
                        raise Bail(f"{place.path} was one parameter for all members, and is no longer")
                    wide.promote(place.path)
                    parted, changed = True, range(wide.n)
                for lane in changed:
                    place.tensor[lane].copy_(of_lanes[lane])
        return parted

    def look_for_unread(self, tensors: Sequence[Tensor]) -> None:
        """Find what is not looked at, and its room, where that may be another one."""
        homes = [place.tensor.data_ptr() for place in self.wide.places]
        if homes != self.homes:  # finding how to run the wide model best may lay its tensors out anew
            self._find_rooms(tensors)
            self.homes = homes

    def copy(self, unread: Sequence[Tensor]) -> None:
        """Put that into its room, all of it in a few launches."""
        with torch.inference_mode(False), torch.no_grad():
            torch._foreach_copy_(self.rooms, list(unread))

    def _find_rooms(self, tensors: Sequence[Tensor]) -> None:
        places = {place.path: place.tensor.detach() for place in self.wide.places}
        found: dict[Any, tuple[Tensor, Tensor]] = {}
        for (path, lane), tensor in zip(self.places, tensors, strict=True):
            if memory_of(tensor) is None:
                wide = path in self.wide.wide_states
                room = places[path][lane] if wide else places[path]
                found[path, lane if wide else None] = room, tensor.detach()
        self.rooms, self.unread = [r for r, _ in found.values()], [t for _, t in found.values()]


def _all_alike(tensors: Sequence[Tensor]) -> bool:
    """The same bytes: zeros of either sign are two numbers. Where they are not looked at: the same tensor."""
    first = memory_of(tensors[0])
    return all(t is tensors[0] or (first is not None and memory_of(t) == first) for t in tensors[1:])
