"""Contest: check candidates against a reference, time them, and store the decision."""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import _tree
from ..errors import one_line
from .clock import current_clock
from .compare import Incomparable, distances, exact_products, model_difference, products_are_rounded
from .fixed_draws import FixedDraws
from .policy import FINAL_ROUNDS, HOPELESS, budget, close_losers, winner
from .store import Store


class Written(NamedTuple):
    """Where a tensor is that a run writes, or replaces by another one: `table[key]`."""

    table: Any
    key: Any

    @property
    def tensor(self) -> Tensor:
        return self.table[self.key]


@dataclass
class Candidate:
    """One way to run a call.

    Attributes:
        run: returns the outputs, in any structure.
        leaves: tensors that get gradients; in the same order for all candidates.
        written: tensors that a run writes or replaces; in the same order for all candidates.
        private: whether the leaves are copies. If so, backward accumulates into `.grad` as a user's does, and
            that is timed too; otherwise `.grad` is not touched.
    """

    run: Callable[[], Any]
    leaves: Sequence[Tensor] = ()
    written: Sequence[Written] = ()
    private: bool = False


class CandidateResults(NamedTuple):
    outputs: list[Tensor]
    gradients: list[Tensor | None]
    written: list[Tensor]


@dataclass
class Decision:
    """The chosen candidate, the reason, and the measured times.

    `provisional`: measured under load, so a later process times the close losers again.
    """

    name: str
    why: str
    ms: dict[str, float] = field(default_factory=dict)
    provisional: bool = False


class Contest:
    """Context manager that runs candidates on a real call.

    On exit, gradients, written tensors and random state are restored.

    Args:
        reference: the candidate with the correct results.
        reordered: whether candidates draw random numbers in another order than the reference. Then results
            are compared with fixed draws, see `FixedDraws`.
        wrap: turns a run into the call that is timed.
        tolls: additional seconds per call, by candidate name.
    """

    def __init__(
        self,
        reference: Candidate,
        gradients: bool,
        cuda: bool,
        reordered: bool = False,
        wrap: Callable[[Any], Any] | None = None,
        tolls: Mapping[str, float] | None = None,
    ):
        self.reference, self.gradients, self.cuda, self.reordered = reference, gradients, cuda, reordered
        self.tolls = tolls or {}
        self.wrap, self.store, self.clock = wrap, Store(), current_clock()
        self.seconds: dict[str, float] = {}
        self.busy = ""
        self.directions: list[Tensor] = []  # initial gradients of backward
        self.before = [place.tensor.detach().clone() for place in reference.written]
        self.places: dict[int, list[Tensor]] = {}  # by candidate: the tensors before its first run
        self._expected: CandidateResults | None = None
        self._noise: list[list[float]] = []

    def __enter__(self) -> "Contest":
        self._random = torch.random.fork_rng(None if self.cuda else [])
        self._random.__enter__()
        self._state = torch.get_rng_state(), torch.cuda.get_rng_state() if self.cuda else None
        return self

    def __exit__(self, *error: Any) -> None:
        self._restore(self.reference)
        self._random.__exit__(*error)

    @property
    def ms(self) -> dict[str, float]:
        return {name: 1e3 * seconds for name, seconds in self.seconds.items()}

    def problem(self, candidate: Candidate) -> str | None:
        """Return how a candidate's results differ from the reference, or what it raises; None if correct."""
        expected = self.expect()
        if self.reordered and (raised := self.fails(candidate)):
            return raised
        try:
            got = self._compared(candidate)
        except Exception as error:  # a failing candidate must not break the user's call
            return f"raises {one_line(error)}"
        return _difference(got, expected, self._noise)

    def fails(self, candidate: Candidate) -> str | None:
        """Return the error of a candidate in the modes of a real call, or None. This also warms it up."""
        try:
            self.results(candidate)
        except Exception as error:
            return f"raises {one_line(error)}"
        return None

    def expect(self) -> CandidateResults:
        """Return the results of the reference. It runs twice, to measure rounding and other noise."""
        if self._expected is None:
            expected = self._compared(self.reference)
            rounded = self.cuda and products_are_rounded(self.cuda)
            with exact_products() if rounded else contextlib.nullcontext():
                second = self._compared(self.reference)
            self._noise = [distances(*pair) for pair in zip(expected, second, strict=True)]  # type: ignore[arg-type]
            problem = None if rounded else _difference(second, expected, [None] * len(expected))
            if problem:
                raise Incomparable(f"two runs of it disagree: the second {problem}")
            self._expected = expected
        return self._expected

    def results(self, candidate: Candidate) -> CandidateResults:
        """Run from the initial random state and tensors; return outputs, gradients and written tensors."""
        torch.set_rng_state(self._state[0])
        if self._state[1] is not None:
            torch.cuda.set_rng_state(self._state[1])
        self._restore(candidate)
        try:
            outputs, gradients = self.execute(candidate)
            written = [place.tensor.detach().clone() for place in candidate.written]
            return CandidateResults(outputs, gradients, written)
        finally:
            self._restore(candidate)

    def execute(self, candidate: Candidate) -> tuple[list[Tensor], list[Tensor | None]]:
        """Run once, with backward; this is what is timed."""
        leaves = candidate.leaves
        with torch.set_grad_enabled(self.gradients):
            outputs = [o for o in _tree.flatten(candidate.run())[0] if isinstance(o, Tensor)]
            ends = [o for o in outputs if o.requires_grad] if self.gradients and leaves else []
            if not ends:
                return [o.detach() for o in outputs], []
            if [d.shape for d in self.directions] != [o.shape for o in ends]:
                self.directions = [_direction(o) for o in ends]
            gradients: Sequence[Tensor | None]
            if candidate.private:
                torch.autograd.backward(ends, self.directions)
                gradients = [leaf.grad for leaf in leaves]
                for leaf in leaves:
                    leaf.grad = None
            else:
                gradients = torch.autograd.grad(ends, leaves, self.directions, allow_unused=True)
        return [o.detach() for o in outputs], list(gradients)

    def _compared(self, candidate: Candidate) -> CandidateResults:
        if not self.reordered:
            return self.results(candidate)
        # Compiled code has its own generator, and torch.compile never compiles a function it first met under
        # a mode.
        with FixedDraws(), torch.compiler.set_stance("force_eager"):
            return self.results(candidate)

    def _restore(self, candidate: Candidate) -> None:
        with torch.no_grad():
            tensors = self.places.setdefault(id(candidate), [place.tensor for place in candidate.written])
            for place, tensor, before in zip(candidate.written, tensors, self.before, strict=True):
                place.table[place.key] = tensor
                # A tensor made in inference mode is written in inference mode only.
                with torch.inference_mode() if tensor.is_inference() else contextlib.nullcontext():
                    tensor.copy_(before)

    def once(self, candidate: Candidate) -> float:
        """Return the seconds of one run."""
        return self.clock.once(partial(self.execute, candidate), self.cuda)

    def time(
        self,
        candidates: Mapping[str, Candidate],
        seconds: float,
        rounds: int = 3,
        on_round: Callable[[int], None] | None = None,
    ) -> None:
        """Time candidates in turns, and store the times in `seconds`."""
        calls: dict[str, Any] = {name: partial(self.execute, c) for name, c in candidates.items()}
        if self.wrap is not None:
            calls = {name: self.wrap(call) for name, call in calls.items()}
        hopeless = HOPELESS if rounds < FINAL_ROUNDS else None  # final rounds keep all candidates
        options = {"hopeless": hopeless, "on_round": on_round, "rounds_at_least": rounds}
        times = self.clock.turns(calls, seconds, self.cuda, **options)
        self.seconds |= {name: taken + self.tolls.get(name, 0.0) for name, taken in times.seconds.items()}
        self.busy = self.busy or times.busy

    def settle(
        self, key: tuple[Any, ...], name: str, candidate: Candidate, plain: str, seconds: float
    ) -> Decision:
        """Decide whether `candidate` is correct and faster than the reference, which is named `plain`.

        Timing may take `seconds`; with 0, a correct candidate is taken without timing.
        """
        both = {name: candidate, plain: self.reference}
        found = self.recall(key, lambda label, _: both[label], seconds) if seconds else None
        if found is not None:
            return found
        try:
            problem = self.problem(candidate)
        except Incomparable as error:
            return Decision(plain, f"not compared: {error}")
        if problem:
            return Decision(plain, f"{name}: {problem}")
        if not seconds:
            return Decision(name, "tuning is off")
        return self.conclude(key, self._final(both, [plain], seconds), [plain], dict.fromkeys(both))

    def _final(self, candidates: Mapping[str, Candidate], plain: Sequence[str], seconds: float) -> str:
        """Return the winner among correct candidates."""
        slowest = max(map(self.once, candidates.values()))
        self.time(candidates, budget(slowest, seconds), FINAL_ROUNDS)
        return winner({name: self.seconds[name] for name in candidates}, plain)

    def conclude(
        self,
        key: tuple[Any, ...],
        name: str,
        plain: Sequence[str],
        recipes: Mapping[str, Any],
        rivals: Sequence[str] = (),
    ) -> Decision:
        """Store the decision for `name`, the winner; if measured under load, with the close losers.

        Args:
            plain: as in `winner`.
            recipes: plain data from which each candidate can be built again.
            rivals: losers that are stored under load even if they are not close.
        """
        losers = dict.fromkeys((*close_losers(self.seconds, name), *rivals)) if self.busy else ()
        kept = [label for label in dict.fromkeys((name, *losers)) if label in recipes]
        answer = {"name": name, "plain": list(plain), "ms": self.ms, "provisional": len(kept) > 1}
        answer |= {"under": self.busy, "process": os.getpid()}
        answer["recipes"] = {label: recipes[label] for label in kept}
        self.store.write(key, answer)
        return Decision(name, "measured", self.ms, len(kept) > 1)

    def recall(
        self, key: tuple[Any, ...], build: Callable[[str, Any], Candidate], seconds: float
    ) -> Decision | None:
        """Return a stored decision, if its candidate can still be built and is correct; else None.

        A provisional decision is timed again against the close losers, in a later process, and becomes final.
        """
        answer = self.store.read(key) or {}
        try:
            name, plain = str(answer["name"]), [str(p) for p in answer["plain"]]
            ms = {str(label): float(taken) for label, taken in answer["ms"].items()}
            candidates = {label: build(label, recipe) for label, recipe in answer["recipes"].items()}
            provisional, process = bool(answer["provisional"]), answer["process"]
            if candidates[name] is not self.reference and self.problem(candidates[name]):
                return None
        except (KeyError, ValueError, TypeError, AttributeError, Incomparable):
            return None
        self.seconds = {label: 1e-3 * taken for label, taken in ms.items()}
        if not provisional or process == os.getpid():  # the same process, so probably the same load
            return Decision(name, "remembered", ms, provisional)
        right = {label: c for label, c in candidates.items() if c is self.reference or not self.problem(c)}
        name = self._final(right, plain, seconds)
        # Stored without losers, so it is final: on a machine that is always busy it is confirmed only once.
        decision = self.conclude(key, name, plain, {name: answer["recipes"][name]})
        return Decision(name, "confirmed", decision.ms)


def _difference(got: CandidateResults, want: CandidateResults, noise: Sequence[Any]) -> str | None:
    problems = (model_difference(*kind) for kind in zip(got, want, noise, strict=True))  # type: ignore[arg-type]
    return next(filter(None, problems), None)


def private_copies(arguments: Sequence[Any], written: Sequence[int]) -> list[Any]:
    """Return detached arguments; those at positions `written` are copied."""
    return [
        leaf_like(a, a.detach().clone() if i in written else a.detach()) if isinstance(a, Tensor) else a
        for i, a in enumerate(arguments)
    ]


def leaf_like(original: Tensor, copy: Tensor) -> Tensor:
    """Return `copy` as the same class as `original`; for another class torch.compile would recompile."""
    if type(original) is nn.Parameter:
        return nn.Parameter(copy, original.requires_grad)
    return copy.requires_grad_(original.requires_grad)


def _direction(output: Tensor) -> Tensor:
    """Return the initial gradient. Not ones: the gradient of a batch norm's sum is only rounding error."""
    places = torch.arange(output.numel(), device=output.device, dtype=torch.float32)
    return torch.sin(places * 1.618).to(output.dtype).view(output.shape)
