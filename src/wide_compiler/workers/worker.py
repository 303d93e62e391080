"""A worker: a table of values, and one method for each kind of instruction.

The same class runs in a local process, in the script's own process and wherever else workers live. On a
mesh of one worker values are plain tensors and ops run as they are; on a larger mesh they are `Value`s
over DTensor.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from .draws import draw_sharded, seed_for
from .layout import shardable
from .memory import read_payload
from .sharded import count_all_gathers, gathered, is_view, replicated, run_op
from .storing import load_values, save_values
from .templates import Template
from .transfer import exchange
from .values import Value, cut, local_of, wrap
from .writes import write_op, written_positions

Reply = Callable[..., None]


class Poison:
    """In place of a value whose op failed."""


class Poisoned(Exception):
    """An operand is the result of an op that failed earlier: nothing new to report."""


class Worker:
    """rank: this worker's id; reply(request, payload): answers the controller."""

    def __init__(self, rank: int, device: torch.device, seed: int, reply: Reply) -> None:
        self.rank = rank
        self.device = device
        self.seed = seed
        self.reply = reply
        self.values: dict[int, Any] = {}
        self.templates: dict[int, Template] = {}
        self.regions: dict[int, tuple] = {}
        self.meshes: dict[int, tuple[tuple[int, ...], DeviceMesh | None]] = {}
        self.instructions: Counter[str] = Counter()
        self.ways: Counter[str] = Counter()
        self.op_ways: dict[str, Counter[str]] = {}
        self.bytes_sent = 0
        count_all_gathers()

    def execute(self, instruction: tuple) -> None:
        """Run one instruction: `(kind, seq, ...)`."""
        getattr(self, "do_" + instruction[0])(*instruction[2:])

    def poison(self, instruction: tuple) -> None:
        """The instruction failed: what it would have made or written does not exist."""
        kind = instruction[0]
        outs: tuple = ()
        if kind in ("op", "ask", "draw", "region"):
            outs = instruction[4]
        elif kind in ("make", "put", "move", "settle"):
            outs = (instruction[2],)
        for out in outs:
            if kind != "region" or out not in self.values:
                self.values[out] = Poison()

    # ---- set-up

    def do_template(self, number: int, name: str, args: tuple, kwargs: dict) -> None:
        self.templates[number] = Template(name, args, kwargs, self.device)

    def do_forget(self, number: int) -> None:
        del self.templates[number]

    def do_mesh(self, number: int, workers: tuple[int, ...]) -> None:
        """Every worker takes part in making the group, whether or not it is a member."""
        mesh = None
        if len(workers) > 1:
            group = dist.new_group(list(workers))
            if self.rank in workers:
                mesh = DeviceMesh.from_group(group, self.device.type, mesh=list(workers))
        self.meshes[number] = (workers, mesh)

    def do_seed(self, seed: int) -> None:
        self.seed = seed

    def do_free(self, ids: list[int]) -> None:
        for number in ids:
            self.values.pop(number, None)

    # ---- values in and out

    def do_put(self, out: int, mesh: int, axis: int | None, shape: tuple, dtype: str, payload: Any) -> None:
        """payload: this worker's part."""
        local = read_payload(payload, getattr(torch, dtype)).to(self.device)
        self.values[out] = self._placed(local, mesh, axis, shape)

    def do_make(self, out: int, template: int, mesh: int, axis: int | None, draw: int | None) -> None:
        """A new tensor from no other: made whole, of which each worker keeps its part."""
        t = self.templates[template]
        self._count(t.name)
        if draw is not None:
            torch.manual_seed(seed_for(self.seed, draw))
        args, kwargs = t.arguments([], ())
        whole = t.func(*args, **kwargs)
        device_mesh = self.meshes[mesh][1]
        if device_mesh is not None and shardable(whole.shape, axis, device_mesh.size()):
            assert axis is not None
            like = _like(device_mesh, whole, Shard(axis))
            local = cut(whole, like).contiguous()
            self.values[out] = Value(wrap(local, like, whole.shape, whole.stride()))
        else:
            self.values[out] = self._placed(whole, mesh, None, whole.shape)

    def _placed(self, local: Tensor, mesh: int, axis: int | None, shape: tuple) -> Any:
        device_mesh = self.meshes[mesh][1]
        if device_mesh is None:
            return local
        if axis is None:
            return Value(replicated(local, device_mesh))
        whole = torch.empty(shape, dtype=local.dtype, device="meta")
        return Value(wrap(local, _like(device_mesh, whole, Shard(axis)), whole.shape, whole.stride()))

    def do_fetch(self, number: int, request: int, reporter: int) -> None:
        """The whole tensor, from one worker of its mesh."""
        value = self._get(number)
        if isinstance(value, Value):
            value = value.current().full_tensor()
        if self.rank == reporter:
            self.reply(request, value.detach().cpu().contiguous())

    def do_placement(self, number: int, request: int, reporter: int) -> None:
        value = self._get(number)
        if self.rank == reporter:
            placement = str(value.current().placements[0]) if isinstance(value, Value) else "whole"
            self.reply(request, placement)

    def do_move(
        self,
        out: int,
        number: int,
        source: int,
        target: int,
        axis: int | None,
        wire: int | None,
        shape: tuple[int, ...],
        dtype: str,
    ) -> None:
        """From one mesh to another, sharded along `wire` on the way; placed as `Shard(axis)` or
        replicated."""
        senders, _ = self.meshes[source]
        receivers, device_mesh = self.meshes[target]
        torch_dtype = getattr(torch, dtype)
        mine = self._wire_part(number, source, wire, shape, torch_dtype) if self.rank in senders else None
        self.instructions["move"] += 1
        held, sent = exchange(self.rank, senders, receivers, shape, torch_dtype, wire, mine, self.device)
        self.bytes_sent += sent
        if self.rank not in receivers:
            return
        assert held is not None
        if device_mesh is None:
            self.values[out] = held
            return
        whole = torch.empty(shape, dtype=torch_dtype, device="meta")
        placement = Replicate() if wire is None else Shard(wire)
        moved = wrap(held, _like(device_mesh, whole, placement), whole.shape, whole.stride())
        goal = Shard(axis) if axis is not None and shardable(shape, axis, len(receivers)) else Replicate()
        self.values[out] = Value(moved.redistribute(placements=[goal]))

    def _wire_part(
        self, number: int, mesh: int, wire: int | None, shape: tuple, dtype: torch.dtype
    ) -> Tensor | None:
        value = self.values.get(number)
        device_mesh = self.meshes[mesh][1]
        if isinstance(value, Poison):
            # The receivers wait; the controller knows that what they get is not to be used.
            value = torch.zeros(shape, dtype=dtype, device=self.device)
            return value if device_mesh is None else cut(value, _like(device_mesh, value, _wire(wire)))
        if not isinstance(value, Value):
            return value
        return local_of(value.current().redistribute(placements=[_wire(wire)]))

    # ---- ops

    def do_op(self, template: int, inputs: tuple, outputs: tuple, floats: tuple) -> None:
        t = self.templates[template]
        self._count(t.name)
        self._keep(self._run(t, inputs, floats), outputs)

    def do_define(self, number: int, steps: tuple) -> None:
        self.regions[number] = steps

    def do_forget_regions(self) -> None:
        self.regions.clear()

    def do_region(self, number: int, outside: tuple, made: tuple, floats: tuple) -> None:
        """The ops of a region, in order; ids by place: first those from outside, then those it makes."""
        ids = outside + made
        used, out = 0, len(outside)
        for template, inputs, outputs, values in self.regions[number]:
            numbers = ids[out : out + outputs]
            self.do_op(template, tuple([ids[i] for i in inputs]), numbers, floats[used : used + values])
            used, out = used + values, out + outputs

    def do_draw(self, template: int, inputs: tuple, outputs: tuple, floats: tuple, draw: int) -> None:
        t = self.templates[template]
        self._count(t.name)
        torch.manual_seed(seed_for(self.seed, draw))
        operands = [self._get(i) for i in inputs]
        if not any(isinstance(v, Value) for v in operands):
            args, kwargs = t.arguments(operands, floats)
            self._keep(t.func(*args, **kwargs), outputs)
            return
        written = operands[0] if t.func._schema.is_mutable else None
        values = [v.current() for v in operands] if written is None else [v.reduced() for v in operands]
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
        """An op whose result, or its shape, only the values tell: run it now and report.

        Replies with the Python result, or with (shape, stride, dtype) of each tensor it made; `outputs` are
        as many ids as the op has results.
        """
        t = self.templates[template]
        self._count(t.name)
        operands = [self._get(i) for i in inputs]
        dtensors = [v.current() if isinstance(v, Value) else v for v in operands]
        args, kwargs = t.arguments(dtensors, floats)
        meshed = any(isinstance(v, Value) for v in operands)
        self.ways["gathered"] += meshed
        result = gathered(t.func, args, kwargs) if meshed else t.func(*args, **kwargs)
        made = [
            r for r in (result if isinstance(result, tuple | list) else [result]) if isinstance(r, Tensor)
        ]
        if made:
            self._keep(made, outputs)
            answer: Any = [(tuple(m.shape), tuple(m.stride()), str(m.dtype)) for m in made]
        else:
            answer = result
        if self.rank == reporter:
            self.reply(request, answer)

    def do_settle(self, out: int, gradient: int, parameter: int) -> None:
        """A gradient laid out as its parameter: partial sums are added up here, once."""
        value, like = self._get(gradient), self._get(parameter)
        if not isinstance(value, Value):
            self.values[out] = value
            return
        self.values[out] = Value(value.current().redistribute(placements=like.current().placements))

    def do_spread(self, out: int, number: int, mesh: int, axis: int | None) -> None:
        """The same values on the same workers, as `Shard(axis)` or replicated; a copy."""
        value = self._get(number)
        if not isinstance(value, Value):
            self.values[out] = value.clone()
            return
        goal = Replicate() if axis is None else Shard(axis)
        self.values[out] = Value(cast(DTensor, value.current().redistribute(placements=[goal]).clone()))

    def _run(self, t: Template, inputs: tuple, floats: tuple) -> Any:
        operands = [self._get(i) for i in inputs]
        for operand in operands:
            if operand.__class__ is Value:
                break
        else:
            args, kwargs = t.arguments(operands, floats)
            return t.func(*args, **kwargs)
        before = self.ways.copy()
        if written_positions(t.func):
            args, kwargs = t.arguments(operands, floats)
            result = write_op(t.func, args, kwargs, self.ways)
        else:
            args, kwargs = t.arguments([v.current() for v in operands], floats)
            result = run_op(t.func, args, kwargs, self.ways)
            if is_view(t.func):
                result = self._views(t, operands, floats, result)
        self.op_ways.setdefault(t.name, Counter()).update(self.ways - before)
        return result

    def _views(self, t: Template, operands: list[Value], floats: tuple, result: Any) -> Any:
        """The results of a view op, each with the way to make it again from its parent."""
        parent = operands[0]

        def remake(x: Tensor, k: int | None) -> Tensor:
            args, kwargs = t.arguments([x], floats)
            made = (
                run_op(t.func, args, kwargs, self.ways) if isinstance(x, DTensor) else t.func(*args, **kwargs)
            )
            return made if k is None else made[k]

        if isinstance(result, DTensor):
            return Value(result, parent, functools.partial(remake, k=None))
        return [Value(r, parent, functools.partial(remake, k=k)) for k, r in enumerate(result)]

    def _keep(self, result: Any, outputs: tuple) -> None:
        if not outputs:
            return
        if not isinstance(result, tuple | list):
            result = (result,)
        made = [r for r in result if isinstance(r, Tensor | Value)]
        assert len(made) == len(outputs), (len(made), outputs)
        for number, value in zip(outputs, made, strict=True):
            self.values[number] = Value(value) if isinstance(value, DTensor) else value

    def _get(self, number: int) -> Any:
        value = self.values[number]
        if value.__class__ is Poison:
            raise Poisoned
        return value

    def _count(self, name: str) -> None:
        self.instructions[name] += 1

    # ---- questions

    def do_stats(self, request: int) -> None:
        self.reply(
            request,
            {
                "worker": self.rank,
                "instructions": dict(self.instructions),
                "bytes_sent": self.bytes_sent,
                "live_tensors": len(self.values),
                "templates": len(self.templates),
                "ways": dict(self.ways),
                "all_gathers": count_all_gathers()["all_gathers"],
                "op_ways": {name: dict(ways) for name, ways in self.op_ways.items()},
            },
        )

    def do_sync(self, request: int) -> None:
        self.reply(request, None)

    def do_save(self, folder: str, ids: dict[int, str], request: int) -> None:
        self.reply(request, save_values(folder, {n: self._get(n) for n in ids}, ids))

    def do_load(self, folder: str, ids: dict[int, str], request: int) -> None:
        load_values(folder, {n: self._get(n) for n in ids}, ids)
        self.reply(request, None)


def _wire(axis: int | None) -> Replicate | Shard:
    return Replicate() if axis is None else Shard(axis)


def _like(mesh: DeviceMesh, whole: Tensor, placement: Replicate | Shard) -> DTensor:
    """A DTensor of which only the placement is used."""
    meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
    spec = DTensorSpec(mesh, (placement,), tensor_meta=meta)
    return DTensor(whole, spec, requires_grad=False)  # type: ignore[call-arg]
