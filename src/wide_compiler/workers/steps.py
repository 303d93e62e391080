"""A training step that repeats: defined once, then run by one instruction.

The instructions of a recorded step, with places instead of ids: first what it uses, then what it makes. What
it makes and nobody holds afterwards is dropped after its last use.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .optimizer_numbers import GroupKind, Twin
from .repeating import Repeating
from .table import Reply

# By kind of instruction: which of its fields are ids, used or made (a tuple of ids, or one).
USED: dict[str, tuple[int, ...]] = {
    "op": (1,),
    "draw": (1,),
    "make": (),
    "move": (1,),
    "settle": (1, 2),
    "spread": (1,),
    "region": (1,),
}
MADE: dict[str, tuple[int, ...]] = {
    "op": (2,),
    "draw": (2,),
    "make": (0,),
    "move": (0,),
    "settle": (0,),
    "spread": (0,),
    "region": (2,),
}
FLOATS, DRAW = 3, 4  # fields of ops; of draws, and of what is made
DRAWS = ("draw", "make")


class Window(NamedTuple):
    """Ops of an optimiser for parameters of one group, by their place in the step: `ops` for each of them."""

    places: tuple[int, ...]
    ops: int
    group: GroupKind


class Definition(NamedTuple):
    """instructions: `(kind, content, workers)`, ids as places. used: ids of what it uses; those of arguments
    are given at each run, at the places `arguments`. kept: places of what lives on, with fixed ids (None:
    given at each run). A draw has the place of its seed among those given at each run."""

    instructions: tuple[tuple[str, tuple, tuple[int, ...]], ...]
    used: tuple[int, ...]
    arguments: tuple[int, ...]
    kept: dict[int, int | None]
    windows: tuple[Window, ...]


class Steps(Repeating):
    def __init__(self, rank: int, device: torch.device, reply: Reply) -> None:
        super().__init__(rank, device, reply)
        self.steps: dict[int, _Step] = {}

    def do_define_step(self, number: int, definition: Definition) -> None:
        self.steps[number] = _Step(definition, self.rank)

    def do_forget_step(self, number: int) -> None:
        self.steps.pop(number, None)

    def do_step(self, number: int, arguments: tuple, outputs: tuple, seeds: tuple, settings: tuple) -> None:
        """settings: for each window the steps taken so far and the settings that may have changed."""
        step = self.steps[number]
        ids = step.ids(arguments, outputs)
        for number in step.replaced:
            self.values.pop(number, None)  # of the step before; nobody holds it
        floats = step.floats(settings)
        run = {kind: getattr(self, "do_" + kind) for kind in USED}
        for at, kind, content, dropped in step.mine:
            run[kind](*_with_ids(kind, content, ids, floats.get(at), seeds))
            for place in dropped:
                self.values.pop(ids[place], None)


class _Step:
    """mine: this worker's instructions: place in the step, kind, content, places to be dropped after it."""

    def __init__(self, definition: Definition, rank: int) -> None:
        self.definition = definition
        self.twins = [Twin(window.group) for window in definition.windows]
        self.replaced = {n for n in definition.kept.values() if n is not None} - {*definition.used}
        self.places = len(definition.used)
        mine = []
        last: dict[int, int] = {}
        for at, (kind, content, workers) in enumerate(definition.instructions):
            made = places_of(kind, content, MADE)
            self.places += len(made)
            if rank in workers:
                mine.append((at, kind, content))
                for place in (*places_of(kind, content, USED), *made):
                    last[place] = at
        dropped: dict[int, list[int]] = {}
        for place, at in last.items():
            if place >= len(definition.used) and place not in definition.kept:
                dropped.setdefault(at, []).append(place)
        self.mine = [(at, kind, content, dropped.get(at, ())) for at, kind, content in mine]

    def ids(self, arguments: tuple[int, ...], outputs: tuple[int, ...]) -> list[int]:
        """The id at each place; what is dropped has a negative one, which no other value has."""
        ids = [*self.definition.used, *range(-1 - len(self.definition.used), -1 - self.places, -1)]
        for place, number in zip(self.definition.arguments, arguments, strict=True):
            ids[place] = number
        given = iter(outputs)
        for place, fixed in self.definition.kept.items():
            ids[place] = next(given) if fixed is None else fixed
        return ids

    def floats(self, settings: tuple) -> dict[int, tuple[float, ...]]:
        """By instruction: the numbers that optimisers hand to their ops in this step."""
        found = {}
        for window, twin, (steps, new) in zip(self.definition.windows, self.twins, settings, strict=True):
            numbers = twin.numbers(steps, new)
            assert len(numbers) == window.ops, (window, numbers)
            for i, place in enumerate(window.places):
                found[place] = numbers[i % window.ops][1]
        return found


def places_of(kind: str, content: tuple, fields: dict[str, tuple[int, ...]]) -> list[int]:
    """What an instruction uses (fields `USED`) or makes (`MADE`)."""
    found: list[int] = []
    for field in fields[kind]:
        given = content[field]
        found += given if isinstance(given, tuple | list) else (given,)
    return found


def mapped(kind: str, content: tuple, ids: Any) -> list[Any]:
    """The content with `ids[x]` for each id or place x in it."""
    fields = list(content)
    for field in (*USED[kind], *MADE[kind]):
        given = fields[field]
        fields[field] = tuple([ids[x] for x in given]) if isinstance(given, tuple | list) else ids[given]
    return fields


def _with_ids(kind: str, content: tuple, ids: list[int], floats: Any, seeds: tuple) -> list[Any]:
    fields = mapped(kind, content, ids)
    if floats is not None:
        fields[FLOATS] = floats
    if kind in DRAWS and fields[DRAW] is not None:
        fields[DRAW] = seeds[fields[DRAW]]
    return fields
