"""Worker instructions for a repeated training step: defined once, then run by one instruction.

A definition holds the instructions of a recorded step with positions instead of ids: first the values it
uses, then those it makes. Made values that are not kept are dropped after their last use.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .optimizer_floats import GroupKind, OptimizerProbe
from .worker_regions import RegionInstructions

# By kind of instruction: the fields that hold ids of values used, and made (one id, or a tuple of ids).
FIELDS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    **dict.fromkeys(("op", "draw", "region"), ((1,), (2,))),
    **dict.fromkeys(("move", "spread"), ((1,), (0,))),
    "make": ((), (0,)),
    "settle": ((1, 2), (0,)),
}
USED, MADE = 0, 1
FLOATS, DRAW = 3, 4  # field of an op's floats; field of the seed in "draw" and "make"
DRAWS = ("draw", "make")


class Window(NamedTuple):
    """The ops of an optimiser for the parameters of one group.

    Attributes:
        places: their positions in the step, parameter by parameter.
        ops: number of ops per parameter.
        group: the parameter group.
    """

    places: tuple[int, ...]
    ops: int
    group: GroupKind


class Definition(NamedTuple):
    """A recorded training step, with positions instead of ids.

    Attributes:
        instructions: `(kind, content, workers)`; the seed field of a draw is an index into the seeds given at
            each run.
        used: ids of the values it uses.
        arguments: positions of the used values whose ids are given at each run.
        kept: positions of the values that outlive the step, with their fixed ids (None: given at each run).
        windows: the optimisers' ops.
    """

    instructions: tuple[tuple[str, tuple, tuple[int, ...]], ...]
    used: tuple[int, ...]
    arguments: tuple[int, ...]
    kept: dict[int, int | None]
    windows: tuple[Window, ...]


class StepInstructions(RegionInstructions):
    def do_define_step(self, number: int, definition: Definition) -> None:
        self.steps[number] = PreparedStep(definition, self.rank)

    def do_forget_step(self, number: int) -> None:
        self.steps.pop(number, None)

    def do_step(self, number: int, arguments: tuple, outputs: tuple, seeds: tuple, settings: tuple) -> None:
        """Run a step; settings: for each window the step count and the settings that may have changed."""
        step = self.steps[number]
        ids = step.ids(arguments, outputs)
        for number in step.replaced:
            self.values.pop(number, None)  # of the previous step; nothing refers to it
        floats = step.floats(settings)
        run = {kind: getattr(self, "do_" + kind) for kind in FIELDS}
        for at, kind, content, dropped in step.mine:
            run[kind](*with_ids(kind, content, ids, floats.get(at), seeds))
            for place in dropped:
                self.values.pop(ids[place], None)


class PreparedStep:
    """A definition prepared for one worker.

    Attributes:
        mine: its instructions as (index in the step, kind, content, positions to drop afterwards).
        probes: one for each window.
        replaced: ids of kept values that the next run replaces.
        places: number of positions.
    """

    def __init__(self, definition: Definition, rank: int) -> None:
        self.definition = definition
        self.probes = [OptimizerProbe(window.group) for window in definition.windows]
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
        """Return the id at each position; values that are dropped get negative ids, which are unique."""
        ids = [*self.definition.used, *range(-1 - len(self.definition.used), -1 - self.places, -1)]
        for place, number in zip(self.definition.arguments, arguments, strict=True):
            ids[place] = number
        given = iter(outputs)
        for place, fixed in self.definition.kept.items():
            ids[place] = next(given) if fixed is None else fixed
        return ids

    def floats(self, settings: tuple) -> dict[int, tuple[float, ...]]:
        """Return, by instruction, the floats that optimisers pass to their ops in this step."""
        found = {}
        for window, probe, (steps, new) in zip(self.definition.windows, self.probes, settings, strict=True):
            numbers = probe.floats(steps, new)
            assert len(numbers) == window.ops, (window, numbers)
            for i, place in enumerate(window.places):
                found[place] = numbers[i % window.ops][1]
        return found


def places_of(kind: str, content: tuple, which: int) -> list[int]:
    """Return the ids or positions that an instruction uses or makes; `which` is `USED` or `MADE`."""
    found: list[int] = []
    for field in FIELDS[kind][which]:
        given = content[field]
        found += given if isinstance(given, tuple | list) else (given,)
    return found


def with_ids(kind: str, content: tuple, ids: Any, floats: Any, seeds: Any) -> list[Any]:
    """Return the content with each id or position x replaced by `ids[x]`, and the seed s by `seeds[s]`."""
    fields = list(content)
    for field in (*FIELDS[kind][USED], *FIELDS[kind][MADE]):
        given = fields[field]
        fields[field] = tuple([ids[x] for x in given]) if isinstance(given, tuple | list) else ids[given]
    if floats is not None:
        fields[FLOATS] = floats
    if kind in DRAWS and fields[DRAW] is not None:
        fields[DRAW] = seeds[fields[DRAW]]
    return fields
