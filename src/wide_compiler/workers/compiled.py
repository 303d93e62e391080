"""A region compiled by torch.compile into one function.

The ops are traced on this worker's local shards, so the compiled code does not contain DTensor. Two kinds of
results are made after the compiled part by ordinary instructions: views of other results, because they must
share memory, and gradients being laid out like their parameters, because that needs collectives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from .sharded import is_view, run_op
from .sharded_value import ShardedValue, local_of
from .templates import SETTLE, Template
from .worker_state import Ways
from .writes import written_positions


class Uncompilable(Exception):
    """Raised with the reason why a region cannot be compiled."""


class CollectiveDetector(TorchDispatchMode):
    """Dispatch mode that stores in `found` the name of a collective run inside it, or ""."""

    def __init__(self) -> None:
        super().__init__()
        self.found = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # DTensor runs first; its ops on the local shards are dispatched here again
        if "c10d" in func.namespace:
            self.found = str(func)
        return func(*args, **(kwargs or {}))


class CompiledRegion:
    """The compiled form of a region for one set of operand layouts.

    Only for ops that ran without a collective (`CollectiveDetector`) on the same layouts: if one worker
    failed to compile in the middle of a collective, it could not fall back to running op by op.

    Attributes:
        names: the ops in the compiled part.
        wanted: positions of its results.
        after: steps that run after it, each with the positions of its first result and of its first float.
    """

    def __init__(
        self,
        steps: tuple,
        live: tuple[int, ...],
        templates: dict[int, Template],
        operands: list,
        floats: tuple,
        ways: Ways,
    ) -> None:
        self.steps, self.templates, self.floats, self.ways = steps, templates, floats, ways
        self.outside = len(operands)
        for template, *_ in steps:
            if template != SETTLE and written_positions(templates[template].func):
                raise Uncompilable(f"it writes to a tensor ({templates[template].name})")
        self._divide(live)
        self.layouts = layouts(operands)
        self._specs: list[Any] = []
        shards = [_shard(v) for v in operands]
        traced = make_fx(self._on_shards)(*shards)
        self._function = torch.compile(traced, dynamic=False)
        self._function(*shards)  # compiles now, so that a failure is raised here

    def fits(self, operands: list, floats: tuple) -> bool:
        """Return whether floats and layouts equal those of the traced call."""
        return floats == self.floats and layouts(operands) == self.layouts

    def run(self, operands: list) -> dict[int, Any]:
        """Run the compiled part; returns its results by position."""
        shards = self._function(*[_shard(v) for v in operands])
        return {
            place: x if spec is None else ShardedValue(DTensor(x, spec, requires_grad=False))  # type: ignore[call-arg]
            for place, x, spec in zip(self.wanted, shards, self._specs, strict=True)
        }

    # ---- the compiled part

    def _divide(self, live: tuple[int, ...]) -> None:
        """Choose the results of the compiled part and the steps that run after it."""
        late: set[int] = set()  # positions of laid-out gradients and of results computed from them
        steps: list[tuple[tuple, int, int, bool]] = []
        first, used = self.outside, 0
        for step in self.steps:
            template, inputs, outputs, floats = step
            is_late = template == SETTLE or bool(late.intersection(inputs))
            if is_late:
                late.update(range(first, first + outputs))
            steps.append((step, first, used, is_late))
            first, used = first + outputs, used + floats
        needed = set(live)
        self.wanted: list[int] = []
        self.after: list[tuple[tuple, int, int]] = []
        self.names: list[str] = []
        self.inside: list[tuple[tuple, int, int]] = []
        for step, first, used, is_late in reversed(steps):
            template, inputs, outputs, _ = step
            wanted = [place for place in range(first, first + outputs) if place in needed]
            follows = is_late or (bool(wanted) and is_view(self.templates[template].func))
            if follows:
                self.after.insert(0, (step, first, used))
                needed.update(inputs)
            else:
                self.wanted = wanted + self.wanted
                self.names.append(self.templates[template].name)
            if not is_late:
                self.inside.insert(0, (step, first, used))

    def _on_shards(self, *shards: Tensor) -> list[Tensor]:
        """Run the compiled steps in order on local shards; returns the local shards of the results."""
        values: list[Any] = [
            x if layout[0] is None else DTensor(x, layout[0], requires_grad=False)  # type: ignore[call-arg]
            for x, layout in zip(shards, self.layouts, strict=True)
        ]
        made: dict[int, Any] = dict(enumerate(values))
        for (template, inputs, outputs, count), first, used in self.inside:
            t = self.templates[template]
            args, kwargs = t.arguments([made[i] for i in inputs], self.floats[used : used + count])
            sharded = any(isinstance(made[i], DTensor) for i in inputs)
            result = run_op(t.func, args, kwargs, self.ways) if sharded else t.func(*args, **kwargs)
            parts = [r for r in (result if isinstance(result, tuple | list) else [result]) if r is not None]
            assert len(parts) == outputs, (t.name, len(parts), outputs)
            made.update({first + k: part for k, part in enumerate(parts)})
        results = [made[place] for place in self.wanted]
        self._specs = [r._spec if isinstance(r, DTensor) else None for r in results]
        return [local_of(r) if isinstance(r, DTensor) else r for r in results]


def _shard(value: Any) -> Tensor:
    return local_of(value.current()) if isinstance(value, ShardedValue) else value


def layouts(operands: list) -> list[tuple]:
    """Return what must be equal for the traced ops to apply: placement, and the local shard's metadata."""
    specs = [v.current()._spec if isinstance(v, ShardedValue) else None for v in operands]
    shards = map(_shard, operands)
    return [(spec, x.shape, x.stride(), x.dtype) for spec, x in zip(specs, shards, strict=True)]
