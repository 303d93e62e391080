"""A region as one function that torch.compile has compiled.

The ops are traced on this worker's own shards, so what is compiled knows nothing of DTensor. Results that are
views of others, and gradients on their way to their parameters, are made after the compiled part by the
ordinary instructions: the first must share memory, the second talk to other workers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from .sharded import is_view, run_op
from .table import Ways
from .templates import SETTLE, Template
from .values import Value, local_of
from .writes import written_positions


class Uncompilable(Exception):
    """Why a region stays a list of ops."""


class Listening(TorchDispatchMode):
    """`heard`: a collective of the ops run within, if there was one."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # DTensor first; what it does with the shards comes here
        if "c10d" in func.namespace:
            self.heard = str(func)
        return func(*args, **(kwargs or {}))


class CompiledRegion:
    """Only for ops of which `Listening` has heard nothing with the same layouts: a worker that failed alone
    in the midst of a collective could not go back to running op by op.

    names: of the ops that the compiled part holds. after: steps that follow it, each with the place of its
    first result and the place of its first float."""

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
        self._check_steps()
        self._divide(live)
        self.layouts = layouts(operands)
        self._specs: list[Any] = []
        shards = [_shard(v) for v in operands]
        traced = make_fx(self._on_shards)(*shards)
        self._function = torch.compile(traced, dynamic=False)
        self._function(*shards)  # compiled here, so that a failure is heard of here

    def fits(self, operands: list, floats: tuple) -> bool:
        """Is this call like the one that was traced?"""
        return floats == self.floats and layouts(operands) == self.layouts

    def run(self, operands: list) -> dict[int, Any]:
        """The results that are not views, by place."""
        shards = self._function(*[_shard(v) for v in operands])
        return {
            place: x if spec is None else Value(DTensor(x, spec, requires_grad=False))  # type: ignore[call-arg]
            for place, x, spec in zip(self.wanted, shards, self._specs, strict=True)
        }

    # ---- what is compiled

    def _check_steps(self) -> None:
        for template, *_ in self.steps:
            if template != SETTLE and written_positions(self.templates[template].func):
                raise Uncompilable(f"it writes to a tensor ({self.templates[template].name})")

    def _divide(self, live: tuple[int, ...]) -> None:
        """Which results the compiled part gives, and which steps follow it."""
        late: set[int] = set()  # places of gradients that are laid out, and of what is made from them
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
        """The ops in order, from this worker's shards to this worker's shards."""
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
    return local_of(value.current()) if isinstance(value, Value) else value


def layouts(operands: list) -> list[tuple]:
    """What has to be the same for the traced ops to be right."""
    return [_layout(v) for v in operands]


def _layout(value: Any) -> tuple:
    """Placement, and the shard's look."""
    spec = value.current()._spec if isinstance(value, Value) else None
    shard = _shard(value)
    return spec, shard.shape, shard.stride(), shard.dtype
