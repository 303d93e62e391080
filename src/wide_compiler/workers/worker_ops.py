"""Worker instructions that run ops: on plain tensors, or by `sharded` and `writes` on `ShardedValue`s.

Random numbers do not depend on the layout: every draw has its own seed (see `script_state`), from which all
workers make the same whole draw, and each keeps its shard.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from .sharded import gathered, is_view, replicated, run_op
from .sharded_value import ShardedValue, cut, is_partial, local_of, whole_of, wrap
from .templates import Template
from .worker_state import WorkerState
from .writes import write_gathered, write_op, writes, written_values

aten = torch.ops.aten
_ADDS = {aten.add_.Tensor, aten.add.Tensor}
# Ops besides elementwise ones that do not need a parameter gathered.
_KEEP_LAYOUT = {
    *(aten.zeros_like.default, aten.ones_like.default, aten.empty_like.default, aten.full_like.default),
    aten._to_copy.default,
}


def _are_pending(operands: list[ShardedValue]) -> bool:
    first, second = operands[0], operands[-1]
    return (
        first.goal is not None
        and first.goal == second.goal
        and first.dtensor.placements == second.dtensor.placements
        and first.dtensor.shape == second.dtensor.shape
    )


def _runs_on_shards(func: Any, operands: list[ShardedValue]) -> bool:
    """Return whether a sharded parameter can be used as it is: elementwise, operands sharded alike."""
    if torch.Tag.pointwise not in func.tags and func not in _KEEP_LAYOUT:
        return False
    first = operands[0].current()
    alike = (first.shape, first.placements)
    return all((v.current().shape, v.current().placements) == alike for v in operands)


def draw_sharded(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run a random op on DTensors; the generator must have the same seed on every worker."""
    if func is aten.native_dropout.default:
        return _dropout(*args)
    first = next((a for a in args if isinstance(a, DTensor)), None)
    if first is not None and func._schema.is_mutable:
        # In-place draws do not depend on the old values (bernoulli_.Tensor depends on its other operands).
        whole = torch.empty(first.shape, dtype=first.dtype, device=local_of(first).device)
        rest = [whole_of(a) if isinstance(a, DTensor) else a for a in args[1:]]
        func(whole, *rest, **kwargs)
        local_of(first).copy_(cut(whole, first))
        return first
    return gathered(func, args, kwargs)


def _dropout(x: DTensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Apply dropout with a mask drawn for the whole tensor; the product stays sharded."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    whole = torch.empty(x.shape, device=local_of(x).device)
    keep = torch.bernoulli(whole.fill_(1 - p)).bool()
    if is_partial(x):
        mask = replicated(keep, x.device_mesh)
    else:
        mask = wrap(cut(keep, x).contiguous(), x, x.shape, x.stride())
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return x * mask * scale, mask


class OpInstructions(WorkerState):
    def do_op(self, template: int, inputs: tuple, outputs: tuple, floats: tuple) -> None:
        t = self.templates[template]
        self._count(t.name)
        self._keep(self._run(t, inputs, floats), outputs)

    def do_draw(self, template: int, inputs: tuple, outputs: tuple, floats: tuple, draw: int) -> None:
        t = self.templates[template]
        self._count(t.name)
        torch.manual_seed(draw)
        operands = [self._get(i) for i in inputs]
        if not any(isinstance(v, ShardedValue) for v in operands):
            args, kwargs = t.arguments(operands, floats)
            self._keep(t.func(*args, **kwargs), outputs)
            return
        if writes(t.func):
            args, kwargs = t.arguments(operands, floats)
            if [id(v) for v in written_values(t.func, args, kwargs)] != [id(operands[0])]:
                self._keep(write_gathered(t.func, args, kwargs), outputs)
                return
        written = operands[0] if t.func._schema.is_mutable else None
        values = [v.gathered() for v in operands] if written is None else [v.reduced() for v in operands]
        args, kwargs = t.arguments(values, floats)
        if written is not None and not written.aliases:
            whole = torch.empty(args[0].shape, dtype=args[0].dtype, device=self.device)
            scratch = replicated(whole, args[0].device_mesh)
            written.store(draw_sharded(t.func, (scratch, *args[1:]), kwargs))
            return
        result = draw_sharded(t.func, args, kwargs)
        if written is not None:
            written.root.writes += 1
        else:
            self._keep(result, outputs)

    def do_ask(
        self, template: int, inputs: tuple, outputs: tuple, floats: tuple, request: int, reporter: int
    ) -> None:
        """Run an op whose result, or its shape, depends on values, and reply with it.

        Replies with the Python result, or with (shape, stride, dtype) of each tensor made. `outputs` has one
        id for each possible result.
        """
        t = self.templates[template]
        self._count(t.name)
        operands = [self._get(i) for i in inputs]
        dtensors = [v.gathered() if isinstance(v, ShardedValue) else v for v in operands]
        args, kwargs = t.arguments(dtensors, floats)
        meshed = any(isinstance(v, ShardedValue) for v in operands)
        if meshed:
            self.ways.op = t.name
            self.ways.took("gathered")
        result = gathered(t.func, args, kwargs) if meshed else t.func(*args, **kwargs)
        several = result if isinstance(result, tuple | list) else [result]
        made = [r for r in several if isinstance(r, Tensor)]
        if made:
            self._keep(made, outputs[: len(made)])
            answer: Any = [(tuple(m.shape), tuple(m.stride()), str(m.dtype)) for m in made]
        else:
            answer = result
        if self.rank == reporter:
            self.reply(request, answer)

    def _run(self, t: Template, inputs: tuple, floats: tuple) -> Any:
        operands = [self._get(i) for i in inputs]
        for operand in operands:
            if operand.__class__ is ShardedValue:
                break
        else:
            if t.func is aten.view_as_real.default:
                operands = [operands[0].resolve_conj()]
            args, kwargs = t.arguments(operands, floats)
            return t.func(*args, **kwargs)
        self.ways.op = t.name
        if t.func in _ADDS and not t.make_kwargs and _are_pending(operands):
            return self._add_pending(t, operands)
        if writes(t.func):
            args, kwargs = t.arguments(operands, floats)
            return write_op(t.func, args, kwargs, self.ways)
        view = is_view(t.func)
        gathers = any(v.gathers for v in operands) and not view
        if gathers and not _runs_on_shards(t.func, operands):
            args, kwargs = t.arguments([v.gathered() for v in operands], floats)
            return run_op(t.func, args, kwargs, self.ways)
        args, kwargs = t.arguments([v.current() for v in operands], floats)
        result = run_op(t.func, args, kwargs, self.ways)
        if view:
            return self._views(t, operands, floats, result)
        if gathers and t.func is aten._to_copy.default:
            result = ShardedValue(result)  # a parameter cast to another dtype is gathered like the parameter
            result.gathers = operands[0].gathers
        return result

    def _add_pending(self, t: Template, operands: list[ShardedValue]) -> Any:
        """Add gradients of several backward passes while they are still partial sums."""
        self.ways.took("local")
        first, second = operands[0].dtensor, operands[1].dtensor
        total = wrap(local_of(first) + local_of(second), first, first.shape, first.stride())
        if t.func is aten.add_.Tensor:
            operands[0].dtensor = total  # a new tensor: another parameter may have the same gradient
            return None
        made = ShardedValue(total)
        made.goal = operands[0].goal
        return made

    def _views(self, t: Template, operands: list[ShardedValue], floats: tuple, result: Any) -> Any:
        """Return the results of a view op, each with a function that remakes it from its parent."""
        parent = operands[0]

        def remake(x: Tensor, k: int | None) -> Tensor:
            args, kwargs = t.arguments([x], floats)
            sharded = isinstance(x, DTensor)
            made = run_op(t.func, args, kwargs, self.ways) if sharded else t.func(*args, **kwargs)
            return made if k is None else made[k]

        if isinstance(result, DTensor):
            return ShardedValue(result, parent, functools.partial(remake, k=None))
        return [ShardedValue(r, parent, functools.partial(remake, k=k)) for k, r in enumerate(result)]

    def _keep(self, result: Any, outputs: tuple) -> None:
        if not outputs:
            return
        if not isinstance(result, tuple | list):
            result = (result,)
        made = [r for r in result if isinstance(r, Tensor | ShardedValue)]
        assert len(made) == len(outputs), (len(made), outputs)
        for number, value in zip(outputs, made, strict=True):
            self.values[number] = ShardedValue(value) if isinstance(value, DTensor) else value
