"""Modules of one structure, each on its own rows, as lanes of one graph: experts on their tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from .. import _tree
from ..capture import Captured
from ..capture.state import has_gradient_hooks
from ..config import WideConfig
from ..guards import ModuleGuard
from ..guards.modes import ambient_modes
from ..lanes import own_gradient
from ..measure.contest import Candidate, Contest
from ..measure.store import circumstances
from ..model.isolation import no_saved_tensors_hooks
from ..model.program import Call, WideProgram
from ..model.routes import Routes
from .calls import without_history
from .fused_lanes import Fused
from .programs import some_lanes
from .router_explanation import GroupRow
from .tower_group import VMapTowerGroup
from .verdict import HOOKED, LOOP, TOGETHER, TOLL, Verdict

# Seconds per call that the timing does not include: its share of the split loop.
TOLL_PER_CALL = 2e-6
# Rows are padded to the longest lane; with more than this multiple of the real rows, the lanes run as a loop.
MOST_FILLED = 2.0
# With at most this many rows in a lane, padding is cheap.
FEW_ROWS = 16


class RowGroup:
    """Modules of one structure that take one tensor `[rows, ...]`; the number of rows may differ.

    Attributes:
        latest: how the last settled call runs.
    """

    def __init__(self, names: Sequence[str], modules: Sequence[nn.Module], config: WideConfig):
        self.names, self.modules, self.config = tuple(names), list(modules), config
        self.guard = ModuleGuard(self.modules)
        self.group = VMapTowerGroup(names, modules, config, self.guard)
        self.routes = Routes()  # by lanes and look: a `Fused`, or None for the loop
        self.verdicts: dict[Any, Verdict] = {}
        self.latest = Verdict(False, "not run")
        self.zeros_are_harmless = False

    def run(self, lanes: Sequence[int], inputs: Sequence[Tensor]) -> list[Any]:
        """Outputs of these lanes, each on its own rows, in the way that was measured as faster."""
        counts = [x.shape[0] if x.dim() else 0 for x in inputs]
        look = self._look(inputs, counts)
        verdict = self.verdicts.get(look)
        if verdict is None or not verdict.together or not _fits(inputs, counts) or not self.guard.holds():
            return self.in_sequence(lanes, inputs)
        if (*lanes, look) not in self.routes:
            self.routes[*lanes, look] = self._fused(tuple(lanes), inputs, counts)
        fused = self.routes[*lanes, look]
        return self.in_sequence(lanes, inputs) if fused is None else self._together(fused, inputs, counts)

    def in_sequence(self, lanes: Sequence[int], inputs: Sequence[Tensor]) -> list[Any]:
        return [self.modules[lane](x) for lane, x in zip(lanes, inputs, strict=True)]

    def _together(self, fused: Fused, inputs: Sequence[Tensor], counts: Sequence[int]) -> list[Any]:
        """Run one lane graph on the rows padded to the longest lane, and remove the padding."""
        outputs, most = fused([self._filled(inputs, counts)]), max(counts)
        return [output if n == most else output[:n] for output, n in zip(outputs, counts, strict=True)]

    @no_saved_tensors_hooks()
    def settle(self, lanes: Sequence[int], inputs: Sequence[Tensor]) -> Verdict:
        """Decide how calls like this one run."""
        counts = [x.shape[0] if x.dim() else 0 for x in inputs]
        look = self._look(inputs, counts)
        if not _fits(inputs, counts):
            self.latest = Verdict(False, "padding to the longest input would add too many rows")
            return self.latest
        if look not in self.verdicts:
            self.verdicts[look] = self._judge(tuple(lanes), inputs, counts)
        self.latest = self.verdicts[look]
        return self.latest

    def explain(self) -> GroupRow:
        """Return how the modules run, as settled last."""
        how, verdict = "together" if self.latest.together else "loop", self.latest
        return GroupRow.of_modules(self.names, self.modules, how, verdict.why, ms=verdict.ms, stage=1)

    def _look(self, inputs: Sequence[Tensor], counts: Sequence[int]) -> tuple[Any, ...]:
        """Cache key of a verdict; the number of rows is rounded up to a power of two."""
        first = inputs[0]
        kind = (first.shape[1:], first.dtype, first.device, first.requires_grad)
        return (max(counts).bit_length(), kind, torch.is_grad_enabled(), ambient_modes())

    def _filled(self, inputs: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
        """Pad to `[lanes, most rows, ...]`: with zeros if that is harmless, else with real rows.

        Zero rows may give NaN gradients even where their output is not used.
        """
        most = max(counts)
        if min(counts) == most:
            return own_gradient(torch.stack(list(inputs)))
        if self.zeros_are_harmless:
            return nn.utils.rnn.pad_sequence(list(inputs), batch_first=True)
        places, start = [], 0
        for count in counts:
            places += [*range(start, start + count), *[start] * (most - count)]
            start += count
        index = torch.tensor(places).to(inputs[0].device, non_blocking=True)
        rows = torch.cat(list(inputs)).index_select(0, index)
        return rows.view(len(counts), most, *rows.shape[1:])

    def _program(self, inputs: Sequence[Tensor], counts: Sequence[int]) -> Any:
        filled = self._filled(inputs, counts)
        if filled.shape[1] == 1:  # a capture would specialise on a size of 1
            filled = torch.cat([filled, filled], 1)
        leaves, spec = _tree.flatten(((filled,), {}))
        call = Call(leaves, spec, (True,), _tree.signature(((filled,), {})))
        mode = self.group._mode(call)
        rest = tuple(shape[1:] for shape in call.member_shapes)
        return self.group.programs.any_batch(mode, rest, call.wide) or self.group.program(call)

    def _fused(self, lanes: tuple[int, ...], inputs: Sequence[Tensor], counts: Sequence[int]) -> Fused | None:
        program = self._program(inputs, counts)
        if not isinstance(program, WideProgram):
            return None
        program = some_lanes(program, lanes, len(self.modules))
        return Fused(program, self.group.living, lanes, self.guard)

    def _judge(self, lanes: tuple[int, ...], inputs: Sequence[Tensor], counts: Sequence[int]) -> Verdict:
        if any(has_gradient_hooks(p) for module in self.modules for p in module.parameters()):
            return Verdict(False, HOOKED)
        program = self._program(inputs, counts)
        if not isinstance(program, WideProgram):
            return Verdict(False, program.why)
        problem = _mixes_rows(program.captured)
        if problem:
            return Verdict(False, problem)
        self.zeros_are_harmless = _is_smooth(program.captured)
        fused = self._fused(lanes, inputs, counts)
        assert fused is not None
        own = [without_history(x) for x in inputs]
        leaves = [p for lane in lanes for p in self.modules[lane].parameters() if p.requires_grad]
        leaves += [x for x in own if x.requires_grad]
        gradients = torch.is_grad_enabled() and bool(leaves)
        cuda = inputs[0].is_cuda
        sequence = Candidate(lambda: self.in_sequence(lanes, own), leaves)
        wide = Candidate(lambda: self.guard.holds() and self._together(fused, own, counts), leaves)
        tolls = {TOGETHER: TOLL + TOLL_PER_CALL * len(lanes)}
        with Contest(sequence, gradients, cuda, reordered=program.draws, tolls=tolls) as contest:
            shapes = tuple(tuple(x.shape) for x in inputs)
            code = program.graph.module.code
            key = ("rows", *circumstances(cuda), code, shapes, str(own[0].dtype), gradients)
            return Verdict.of(contest.settle(key, TOGETHER, wide, LOOP, self.config.tune_seconds))


def _fits(inputs: Sequence[Tensor], counts: Sequence[int]) -> bool:
    """Return whether the rows fit into one tensor without much padding."""
    shape, dtype, device = inputs[0].shape[1:], inputs[0].dtype, inputs[0].device
    most = max(counts)
    full = most <= FEW_ROWS or most * len(counts) <= MOST_FILLED * sum(counts)
    if len(counts) < 2 or not min(counts) or not full:
        return False
    return all(x.shape[1:] == shape and x.dtype is dtype and x.device == device for x in inputs)


_ATEN = torch.ops.aten
_BY_ROW = {
    *(_ATEN.linear.default, _ATEN.dropout.default, _ATEN.clone.default, _ATEN.contiguous.default),
    *(_ATEN.to.dtype, _ATEN.to.dtype_layout, _ATEN._to_copy.default),
    *(_ATEN.detach.default, _ATEN.alias.default),
}
_LAST_DIMS = {_ATEN.layer_norm.default, _ATEN.rms_norm.default}
# Ops and the position of their dim argument.
_ALONG = {
    _ATEN.softmax.int: 1,
    _ATEN.log_softmax.int: 1,
    _ATEN.slice.Tensor: 1,
    _ATEN.chunk.default: 2,
    _ATEN.split.Tensor: 2,
}


# Ops whose values and gradients stay finite where a row is zero.
_SMOOTH = {
    *(_ATEN.relu.default, _ATEN.silu.default, _ATEN.gelu.default, _ATEN.sigmoid.default, _ATEN.tanh.default),
    *(_ATEN.mul.Tensor, _ATEN.add.Tensor, _ATEN.sub.Tensor),
}


def _is_smooth(captured: Captured) -> bool:
    calls = [node.target for node in captured.graph.nodes if node.op == "call_function"]
    return all(t in _SMOOTH or t in _BY_ROW or getattr(t, "__name__", "") == "getitem" for t in calls)


def _mixes_rows(captured: Captured) -> str:
    """Return why an output row may depend on other rows, or on their number; '' if it does not."""
    if not all(guards.any_batch() for guards in captured.guards):
        return "its graph is not valid for every number of rows"
    if captured.writes:
        return "it writes buffers, to which all rows contribute"
    rows: set[fx.Node] = set()
    for node in captured.graph.nodes:
        if node.op == "placeholder":
            if node.name in captured.inputs:
                rows.add(node)
        elif node.op == "output":
            outputs = [x for x in _tree.flatten(node.args)[0] if isinstance(x, fx.Node)]
            if len(outputs) != 1 or outputs[0] not in rows:
                return "its output does not have one row for each row of its input"
        elif any(x in rows for x in node.all_input_nodes):
            if not _by_row(node, rows):
                return f"{node.target} may mix rows"
            rows.add(node)
    return ""


def _by_row(node: fx.Node, rows: set[fx.Node]) -> bool:
    own = [x for x in node.all_input_nodes if x in rows]
    target: Any = node.target
    if getattr(target, "__name__", "") == "getitem":
        return True
    if target in _BY_ROW:
        return node.args[0] in rows and own == [node.args[0]]
    if target in _LAST_DIMS:
        return own == [node.args[0]] and len(node.args[1]) < _dims(node.args[0])  # type: ignore[arg-type]
    if target in _ALONG:
        position = _ALONG[target]
        dim = node.args[position] if len(node.args) > position else node.kwargs.get("dim", 0)
        return own == [node.args[0]] and isinstance(dim, int) and dim % _dims(node.args[0]) != 0
    pointwise = torch.Tag.pointwise in getattr(target, "tags", ())
    return pointwise and all(_dims(x) == _dims(node) for x in own)


def _dims(node: Any) -> int:
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (list, tuple)) else value
    return value.dim() if isinstance(value, Tensor) else 0
