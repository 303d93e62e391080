"""Compare a wide model with its members over a sequence of phases: train, save, load, copy, edit, call.

One call is not enough: a stale cache or a lost write shows only in the call after it.
"""

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..capture import clone_members
from ..errors import ValidationError
from .pair import Batch, Pair, in_dtype
from .report import Difference, Report, raise_tiny_scales

SINGLE = 1e-3  # tolerance of phases in single precision; the others use `rtol`


@dataclass
class Phase:
    """One phase: every comparison made, its tolerance, and how the last call ran."""

    name: str
    report: Report
    rtol: float
    coverage: float  # share of the members' nodes that ran by a wide rule
    why: str = ""  # why the members ran as a Python loop; empty if they did not

    @property
    def difference(self) -> Difference | None:
        """The first tensor outside the tolerance, or None."""
        return next((d for d in self.report.differences if not d.error <= self.rtol * d.scale), None)


@dataclass
class Life:
    """The compared phases, in order."""

    phases: list[Phase] = field(default_factory=list)

    @property
    def first_wrong(self) -> Phase | None:
        return next((phase for phase in self.phases if phase.difference is not None), None)

    @property
    def coverage(self) -> float:
        """The smallest coverage of any phase."""
        return min((phase.coverage for phase in self.phases), default=0.0)

    def __getitem__(self, name: str) -> Phase:
        return next(phase for phase in self.phases if phase.name == name)

    def check(self) -> "Life":
        """Return self; raise `ValidationError` for the first phase with a difference."""
        wrong = self.first_wrong
        if wrong is not None:
            raise ValidationError(f"phase {wrong.name!r}: {wrong.difference} (rtol={wrong.rtol})")
        return self


def life(
    models: Sequence[nn.Module],
    wide: Any,
    batches: Sequence[Batch],
    *,
    learning_rate: float = 0.1,
    rtol: float = 1e-9,
    check: bool = True,
    on_phase: Callable[[Phase], None] | None = None,
    only: Collection[str] | None = None,
) -> Life:
    """Put copies of the members and the wide model through the same phases, and compare after each.

    Compares outputs, gradients, parameters, buffers, and `lane(i)` with member i. Models in single precision
    are converted to double after the first phase. `wide` itself is trained and modified. An exception gets a
    note with the name of its phase. Dropout must be off, because lanes draw other numbers than the members.

    Args:
        models: the N members, in the state that `wide` was built from.
        batches: two or more, each with one (args, kwargs) per lane; shapes may differ between batches.
        rtol: relative tolerance in double precision.
        check: raise `ValidationError` at the first phase with a difference.
        on_phase: called with each finished phase.
        only: names of the phases to run; None runs all.
    """
    lived = Life()
    for name, tolerance, live, runs in _phases(_Alive(models, wide, batches, learning_rate), rtol):
        if only is not None and name not in only:
            continue
        report = Report()
        try:
            live(report)
        except Exception as error:
            error.add_note(f"phase {name!r} of the model's life")
            raise
        raise_tiny_scales(report.differences)
        ran = runs.wide.explain(measure=False)
        lived.phases.append(Phase(name, report, tolerance, ran.coverage, ran.why))
        if on_phase is not None:
            on_phase(lived.phases[-1])
        if check:
            lived.check()
    return lived


def _phases(alive: "_Alive", rtol: float) -> Iterator[tuple[str, float, Callable[[Report], None], Any]]:
    """Yield (name, tolerance, function that runs the phase, owner of the wide model that it runs)."""
    if alive.is_single:
        yield "eval in single precision", SINGLE, alive.evaluate, alive.pair
    yield "eval", rtol, alive.evaluate_in_double, alive.pair
    yield "train", rtol, alive.train, alive.pair
    yield "train again", rtol, alive.train, alive.pair
    yield "eval after training", rtol, alive.evaluate, alive.pair
    yield "eval again", rtol, alive.evaluate, alive.pair
    yield "one input for all lanes", rtol, alive.evaluate_shared, alive.pair
    yield "lane(i)", rtol, alive.read_lanes, alive.pair
    yield "saved and loaded", rtol, alive.save_and_load, alive
    yield "deepcopy", rtol, alive.deep_copy, alive
    yield "train after the copy", rtol, alive.train, alive.pair
    yield "load_lane", rtol, alive.load_lane, alive.pair
    yield "numbers set in place", rtol, alive.set_in_place, alive.pair
    yield "data replaced", rtol, alive.replace_data, alive.pair
    yield "train after the changes", rtol, alive.train, alive.pair
    yield "frozen", rtol, alive.freeze, alive.pair
    yield "thawed", rtol, alive.thaw, alive.pair
    yield "eval at the end", rtol, alive.evaluate, alive.pair
    yield "lane(i) at the end", rtol, alive.read_lanes, alive.pair
    yield "to single precision", SINGLE, alive.to_single, alive


class _Alive:
    """State of the phases: the pair, a copy of the original members, and the next batch."""

    def __init__(
        self, models: Sequence[nn.Module], wide: Any, batches: Sequence[Batch], learning_rate: float
    ):
        self.first = clone_members(models)
        self.pair = Pair(clone_members(models), wide, learning_rate)
        self.wide = wide  # the wide model of the last phase that made a new one
        self.batches, self.used = list(batches), 0
        parameters = [p for model in models for p in model.parameters()]
        self.dtype = next((p.dtype for p in parameters if p.is_floating_point()), torch.float64)
        self.is_single = self.dtype == torch.float32

    def next_batch(self) -> Batch:
        self.used += 1
        return in_dtype(self.batches[(self.used - 1) % len(self.batches)], self.dtype)

    def evaluate(self, report: Report) -> None:
        self.pair.train(False)
        self.pair.call(report, self.next_batch())

    def evaluate_in_double(self, report: Report) -> None:
        if self.dtype != torch.float64:
            self.dtype = torch.float64
            self.pair.move(lambda model: model.double())
            self.first = [model.double() for model in self.first]
        self.evaluate(report)

    def evaluate_shared(self, report: Report) -> None:
        self.pair.train(False)
        batch = self.next_batch()
        self.pair.call(report, [batch[0]] * len(batch), shared=True)

    def train(self, report: Report) -> None:
        self.pair.train(True)
        self.pair.step(report, self.next_batch())

    def read_lanes(self, report: Report) -> None:
        self.pair.train(False)
        self.pair.compare_lanes(report, self.next_batch())

    def save_and_load(self, report: Report) -> None:
        """Save, then load into fresh models on both sides: a state_dict holds no Python attributes."""
        pair, sample = self.pair, self.pair.wide._sample
        fresh = clone_members(self.first)
        self.wide = type(pair.wide)(clone_members(fresh), *sample, pair.wide.config)
        with tempfile.TemporaryDirectory() as folder:
            pair.wide.save(Path(folder) / "all.safetensors")
            self.wide.load(Path(folder) / "all.safetensors")
        for new, old in zip(fresh, pair.members, strict=True):
            new.load_state_dict(old.state_dict())
        loaded = Pair(fresh, self.wide, pair.learning_rate)
        loaded.train(False)
        loaded.call(report, self.next_batch())

    def deep_copy(self, report: Report) -> None:
        """Train a deep copy, and check that the original has not changed."""
        copied = self.pair.copied()
        self.wide = copied.wide
        copied.train(True)
        copied.step(report, self.next_batch())
        copied.train(False)
        copied.call(report, self.next_batch())
        self.pair.compare_state(report)

    def load_lane(self, report: Report) -> None:
        """Reset the last lane to its original state."""
        pair, last = self.pair, len(self.first) - 1
        shared = [
            p for p in pair.wide.places if p.kind == "parameter" and p.path not in pair.wide.wide_states
        ]
        if not shared:  # a parameter that all lanes share cannot be reset in one lane
            pair.wide.load_lane(last, self.first[last])
            pair.members[last].load_state_dict(self.first[last].state_dict())
        self.evaluate(report)

    def set_in_place(self, report: Report) -> None:
        """Scale weights in place under `no_grad`, by another factor in each lane."""
        with torch.no_grad():
            for stacked, alone in self._edited():
                for lane, parameter in enumerate(alone):
                    stacked[lane].mul_(1 + 0.1 * (lane + 1))
                    parameter.mul_(1 + 0.1 * (lane + 1))
        self.evaluate(report)

    def replace_data(self, report: Report) -> None:
        """Assign `parameter.data`, which replaces a parameter's storage."""
        for stacked, alone in self._edited():
            stacked.data = stacked.data * 0.9
            for parameter in alone:
                parameter.data = parameter.data * 0.9
        self.evaluate(report)

    def freeze(self, report: Report) -> None:
        self._require(False)
        self.train(report)

    def thaw(self, report: Report) -> None:
        self._require(True)
        self.train(report)

    def _require(self, gradient: bool) -> None:
        for stacked, alone in self._edited():
            for parameter in (stacked, *alone):
                parameter.requires_grad_(gradient)

    def _edited(self) -> list[tuple[Any, list[nn.Parameter]]]:
        """(stacked parameter, [parameter of each member]) for the first and the last trainable parameter."""
        pair = self.pair
        held = {n: t for n, t in pair.wide.tensors().items() if n in pair.wide.wide_states}
        names = [n for n, p in self.first[0].named_parameters() if n in held and p.requires_grad]
        chosen = dict.fromkeys([*names[:1], *names[-1:]])
        return [(held[n], [m.get_parameter(n) for m in pair.members]) for n in chosen]

    def to_single(self, report: Report) -> None:
        copied = self.pair.copied()
        self.wide = copied.wide
        copied.train(True)  # in training mode, members drop the tensors that they cache in double precision
        copied.move(lambda model: model.float())
        copied.train(False)
        batch = in_dtype(self.next_batch(), torch.float32)
        why = copied.fails_alone(batch)  # for example because it keeps plain tensors in double precision
        if why:
            report.note = f"not compared: a member alone fails: {why}"
        else:
            copied.call(report, batch)
