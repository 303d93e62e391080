"""Worker instructions for regions: replayed in order, and compiled once they have repeated."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass

from .compiled import CollectiveDetector, CompiledRegion, Uncompilable, layouts
from .templates import SETTLE
from .worker_lanes import LaneInstructions
from .worker_ops import OpInstructions
from .worker_placement import PlacementInstructions

log = logging.getLogger(__name__)
_PROOF = 2  # runs before a region is compiled

Step = tuple[int, tuple[int, ...], int, int]  # template, input positions, number of outputs, number of floats


@dataclass
class RegionCounts:
    """Counters of one signal.

    Attributes:
        compiled: regions compiled.
        compiled_runs: runs of compiled regions.
        replayed: runs op by op.
        reason: why the last region that ran op by op was not compiled.
    """

    compiled: int = 0
    compiled_runs: int = 0
    replayed: int = 0
    reason: str = ""


class Region:
    """A sequence of steps; live: positions of the results that are used after the region."""

    def __init__(self, name: str, steps: tuple[Step, ...], live: tuple[int, ...]) -> None:
        self.name = name
        self.steps = steps
        self.live = live
        self.runs = 0
        self.tried = False
        self.quiet_with: list[tuple] | None = None  # layouts with which its ops ran without a collective
        self.compiled: CompiledRegion | None = None


class RegionInstructions(PlacementInstructions, OpInstructions, LaneInstructions):
    def do_define(self, number: int, name: str, steps: tuple, live: tuple) -> None:
        self.regions[number] = Region(name, steps, live)

    def do_forget_regions(self) -> None:
        self.regions.clear()

    def do_region(self, number: int, outside: tuple, made: tuple, floats: tuple) -> None:
        """Run a region; positions count first the ids in `outside`, then those in `made`."""
        region = self.regions[number]
        counts = self.region_counts.setdefault(region.name, RegionCounts())
        region.runs += 1
        ids, operands = outside + made, [self._get(i) for i in outside]
        ready = not region.tried and region.quiet_with is not None
        if ready and region.quiet_with == layouts(operands):
            self._compile(region, counts, operands, floats)
        if region.compiled is not None and region.compiled.fits(operands, floats):
            counts.compiled_runs += 1
            self._run_compiled(region.compiled, operands, ids, floats)
            return
        counts.replayed += 1
        if region.tried or region.runs < _PROOF:
            self._replay(region, ids, len(outside), floats)
            return
        seen, detector = layouts(operands), CollectiveDetector()
        self._replay(region, ids, len(outside), floats, detector)
        region.quiet_with = seen
        if detector.found:
            region.tried = True
            counts.reason = f"its ops talk to other workers ({detector.found})"

    def _replay(
        self, region: Region, ids: tuple, out: int, floats: tuple, detector: CollectiveDetector | None = None
    ) -> None:
        used = 0
        for template, inputs, outputs, values in region.steps:
            mode = detector if detector is not None and template != SETTLE else contextlib.nullcontext()
            with mode:
                self._step(template, ids, inputs, ids[out : out + outputs], floats[used : used + values])
            used, out = used + values, out + outputs

    def _step(self, template: int, ids: tuple, inputs: tuple, outputs: tuple, floats: tuple) -> None:
        numbers = tuple([ids[i] for i in inputs])
        if template == SETTLE:
            self.do_settle(outputs[0], *numbers)
        else:
            self.do_op(template, numbers, outputs, floats)

    def _compile(self, region: Region, counts: RegionCounts, operands: list, floats: tuple) -> None:
        """Try to compile the region, once; on failure it keeps running op by op, with the same values."""
        region.tried = True
        try:
            compiled = CompiledRegion(region.steps, region.live, self.templates, operands, floats, self.ways)
        except Uncompilable as error:
            counts.reason = str(error)
            return
        except Exception as error:  # the compiler may raise anything; the region then runs uncompiled
            counts.reason = f"torch.compile failed: {type(error).__name__}: {str(error).splitlines()[0]}"
            log.warning("worker %d, signal %r: %s; it runs op by op", self.rank, region.name, counts.reason)
            return
        region.compiled = compiled
        counts.compiled += 1
        counts.reason = ""

    def _run_compiled(self, compiled: CompiledRegion, operands: list, ids: tuple, floats: tuple) -> None:
        for place, value in compiled.run(operands).items():
            self.values[ids[place]] = value
        for name in compiled.names:
            self.instructions[name] += 1
        for step, first, used in compiled.after:
            template, inputs, outputs, values = step
            self._step(template, ids, inputs, ids[first : first + outputs], floats[used : used + values])
