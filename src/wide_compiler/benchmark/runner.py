"""Run workloads: build the candidates of a row, compare them with the loop, time them interleaved."""

import gc
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ..errors import one_line
from ..measure.clock import SAMPLE_SECONDS, interleaved
from . import peers
from .benchmark_row import LOOP, OURS, BenchmarkRow, first_lanes, largest_error
from .ours import our_candidates
from .problem import BenchmarkCandidate, Problem
from .workload import PRESETS, Preset, Workload

# The loop's error is measured on this many lanes; a result within this multiple of it is accepted.
EXACT_LANES = 3
NOISE_FACTOR = 3
# Seconds of calls between two synchronisations with the GPU.
GPU_SAMPLE = 5e-3
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Options:
    """Options of the command line; None takes the value of the preset or workload."""

    preset: Preset = PRESETS["full"]
    lanes: Sequence[int] | None = None
    batch: int | None = None
    train: bool = False
    compile: bool = False
    compile_mode: str | None = None
    peers: bool = False
    device: torch.device = CPU
    seconds: float | None = None

    @property
    def mode(self) -> str:
        return "train" if self.train else "infer"


@dataclass(frozen=True)
class Point:
    """One workload at one number of lanes; gives one row per strategy."""

    workload: Workload
    n: int
    batch: int

    def __str__(self) -> str:
        return f"{self.workload.name} N={self.n}"


def trainable(workload: Workload) -> bool:
    return any(True for _ in workload.make().parameters())


def plan(workloads: Sequence[Workload], options: Options) -> list[Point]:
    """Return the points to measure; workloads without parameters are skipped in training."""
    return [
        Point(workload, n, options.batch or options.preset.batch(workload))
        for workload in workloads
        if not options.train or trainable(workload)
        for n in options.lanes or options.preset.lanes(workload)
    ]


def run(
    points: Sequence[Point], options: Options, tell: Callable[[str], None] = lambda what: None
) -> Iterator[BenchmarkRow]:
    """Yield rows as they are measured; `tell` gets progress messages."""
    for point in points:
        yield from measure(point, options, tell)
        gc.collect()
        if options.device.type == "cuda":
            torch.cuda.empty_cache()


def measure(
    point: Point, options: Options, tell: Callable[[str], None] = lambda what: None
) -> list[BenchmarkRow]:
    """Return the rows of one point, one per strategy, timed interleaved with the loop and the peers."""
    if options.compile or options.peers:
        torch._dynamo.reset()  # the recompile limit would otherwise count all rows together
    tell(f"{point}: members")
    with torch.set_grad_enabled(options.train), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers emit many warnings
        problem = Problem.of(point.workload, point.n, point.batch, options.device, options.train)
        found = _Measured(problem)
        ours = our_candidates(problem, options.compile, options.compile_mode)
        others = peers.peers_of(problem) if options.peers else {}
        found.start(peers.loop)
        for name, build in {**ours, **others}.items():
            tell(f"{point}: {name}")
            found.add(name, build)
        tell(f"{point}: timing")
        seconds = options.preset.seconds if options.seconds is None else options.seconds
        found.time(seconds)
    return [found.row(name, options.mode, set(ours)) for name in ours]


class _Measured:
    """Candidates of one problem with their errors and times."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.candidates: dict[str, BenchmarkCandidate] = {}
        self.errors: dict[str, float] = {}
        self.failures: dict[str, str] = {}
        self.build_seconds: dict[str, float] = {}
        self.ms: dict[str, float] = {}
        self.loop_error = 0.0

    def start(self, loop: Callable[[Problem], BenchmarkCandidate]) -> None:
        """Run the loop and measure its own error, which bounds the accuracy that others can reach (TF32)."""
        self.candidates[LOOP] = loop(self.problem)
        self.wanted = self.candidates[LOOP].results()
        if not self.problem.workload.random:
            exact = loop(self.problem.in_float64(EXACT_LANES)).results()
            self.loop_error = largest_error(first_lanes(self.wanted, EXACT_LANES), exact)
        self.tolerance = max(self.problem.tolerance, NOISE_FACTOR * self.loop_error)

    def add(self, name: str, build: Callable[[], BenchmarkCandidate]) -> None:
        """Build and compare one candidate; an exception is recorded as its failure."""
        started = time.perf_counter()
        try:
            candidate = build()
            results = candidate.results()
            self.errors[name] = largest_error(results, self.wanted, self.problem.workload.random)
            self.candidates[name] = candidate
        except Exception as error:
            self.failures[name] = one_line(error)
        self.build_seconds[name] = time.perf_counter() - started

    def time(self, seconds: float) -> None:
        calls = {name: candidate.call for name, candidate in self.candidates.items()}
        sample = GPU_SAMPLE if self.problem.cuda else SAMPLE_SECONDS
        times = interleaved(calls, seconds * len(calls), self.problem.cuda, sample_seconds=sample)
        self.ms = {name: 1e3 * t / self.candidates[name].repeats for name, t in times.items()}

    def row(self, name: str, mode: str, ours: set[str]) -> BenchmarkRow:
        problem, candidate = self.problem, self.candidates.get(name)
        error = self.errors.get(name)
        ok = error is not None and error <= self.tolerance
        strategy = candidate.strategy() if candidate else name.removeprefix(OURS).removeprefix(": ")
        return BenchmarkRow(
            name=problem.workload.name,
            kind=problem.workload.kind,
            n=problem.n,
            batch=problem.batch,
            mode=mode,
            device=str(problem.device),
            strategy=strategy,
            ms={OURS if k == name else k: v for k, v in self.ms.items() if k == name or k not in ours},
            error=error,
            loop_error=self.loop_error,
            ok=ok,
            why=self._why(name, ok),
            errors={k: v for k, v in self.errors.items() if k not in ours},
            failures={k: v for k, v in self.failures.items() if k not in ours},
            tolerance=self.tolerance,
            build_seconds=self.build_seconds.get(name),
        )

    def _why(self, name: str, ok: bool) -> str:
        if ok:
            return ""
        if name in self.failures:
            return self.failures[name]
        error = self.errors[name]
        far = f"{error:.1e} of the largest number" if math.isfinite(error) else "another shape, or not finite"
        return f"differs from the loop: {far}, allowed {self.tolerance:.0e}"
