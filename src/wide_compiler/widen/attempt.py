"""Widen one node: by its rule, else by vmap of the op, else by a loop over lanes."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx

from ..capture.aliases import written_tensor
from ..errors import one_line
from .builder import Builder, LaneScalar, Val, map_leaves, vals_in
from .check import differs, expected_per_lane, gradients_differ, tensors_differ
from .classify import (
    depends_on_values,
    draws,
    is_unset,
    reads_layout,
    used_results,
    wide_flags,
    with_dense_gradient,
)
from .equivalents import decomposition_of, functional_of, vmap_parts_over_lanes
from .fallbacks import loop_in_place, loop_over_lanes, vmap_must_be_whole, vmap_over_lanes
from .helpers import refuse_seeds
from .lane_graph import NodeRow
from .rules import SEEDED, find_rule


class WidenFailed(Exception):
    """No lane graph can be built; the message says why in one line."""


class ReadsLayout(WidenFailed):
    """An op reads strides or offsets of memory, which differ for lanes."""


class Attempt:
    """Widening of one node. Sets in `row` how the node runs, and why not in a better way."""

    def __init__(
        self, builder: Builder, node: fx.Node, args: Any, kwargs: Any, written: list[Tensor], row: NodeRow
    ):
        args, kwargs = with_dense_gradient(node.target, args, kwargs)
        self.builder, self.node, self.args, self.kwargs, self.row = builder, node, args, kwargs, row
        self.op: Any = node.target
        self.written = written
        self.before = [w.clone() for w in written]  # a failed try must not leave its writes behind
        self.flags = wide_flags((args, kwargs))
        self.lanes: int = builder.n.value
        self.scalars = any(isinstance(v, LaneScalar) for v in vals_in((args, kwargs)))
        if reads_layout(self.op):
            raise ReadsLayout(f"{self.op} reads the memory layout, which differs for lanes")
        if depends_on_values(self.op, args):
            raise WidenFailed(f"{self.op} returns a shape or number that depends on values")
        self.draws = draws(node)
        self.comparable = not (self.draws or is_unset(self.op))  # otherwise only shape and dtype are compared
        try:
            self.expected, self.left = expected_per_lane(self.op, args, kwargs, self.lanes, written)
        except Exception as error:
            raise WidenFailed(f"{self.op} cannot run lane by lane: {one_line(error)}") from error
        if self.draws and self.op not in SEEDED:
            builder.call(refuse_seeds, builder.rng, str(self.op), wide=False)

    def run(self) -> Val:
        reasons: list[str] = []
        for how, way in self._ways():
            mark = len(self.builder.emitted)
            try:
                result, problem = way()
            except Exception as error:
                result, problem = None, one_line(error)
            if problem is None and result is not None:
                self.row.how, self.row.why = how, "; ".join(reasons)
                return result
            if problem and problem not in reasons:
                reasons.append(problem)
            self._take_back(mark)
        self.row.how, self.row.why = "loop", "; ".join(reasons)
        return self._by_loop()

    def _ways(self) -> Iterator[tuple[str, Callable[[], tuple[Val | None, str | None]]]]:
        """Return the ways to try, best first: for an in-place op also its functional form and a copy."""
        functional = functional_of(self.op) if self.written else None
        yield "rule", functools.partial(self._by_rule, self.op)
        if functional is not None:
            yield "rule", functools.partial(self._by_rule, functional)
        if self.scalars or (self.written and functional is None):
            return
        op = functional or self.op
        yield "vmap", functools.partial(self._by_vmap, vmap_over_lanes, op)
        if decomposition_of(op) is not None:
            yield "vmap", functools.partial(self._by_vmap, vmap_parts_over_lanes, op)

    def _by_rule(self, op: Any) -> tuple[Val | None, str | None]:
        rule = find_rule(op)
        if rule is None:
            return None, "no rule"
        if self.scalars and not rule.lane_scalars:
            return None, "a Python number differs between lanes"
        try:
            if op is self.op:
                result = rule.function(self.builder, *self.args, **self.kwargs)
            else:
                result = rule.function(self.builder, *self._unwritten(), **self.kwargs)
                result = result and self._written_back(result)
        except Exception as error:
            return None, f"its rule: {one_line(error)}"
        if result is None:
            return None, "its rule does not cover these arguments"
        problem = self._difference(result)
        return result, None if problem is None else f"its rule: {problem}"

    def _by_vmap(self, mapped: Callable[..., Any], op: Any) -> tuple[Val | None, str | None]:
        """`mapped`: vmap of an op or of its decomposition; `op`: the node's op, or its functional form."""
        args = self._unwritten() if self.written else self.args
        try:
            with vmap_must_be_whole():
                result = self.builder.call(mapped, op, self.flags, *args, **self.kwargs)
                problem = None
                if self.comparable:
                    # vmap is wrong about gradients more often than about values (padding_idx, for example).
                    problem = gradients_differ(mapped, op, self.flags, args, self.kwargs, self.lanes)
        except Exception as error:
            return None, f"vmap: {one_line(error)}"
        if self.written:
            result = self._written_back(result)
        problem = self._difference(result) or problem
        return result, None if problem is None else f"vmap: {problem}"

    def _unwritten(self) -> tuple[Any, ...]:
        """Return the arguments with a clone of the written tensor, whose old value autograd may need."""
        return self.builder.call(torch.clone, self.args[0]), *self.args[1:]

    def _written_back(self, result: Val) -> Val:
        return self.builder.call(torch.Tensor.copy_, self.args[0], result)

    def _by_loop(self) -> Val:
        args, kwargs = map_leaves(self._lane_values, self.args), map_leaves(self._lane_values, self.kwargs)
        # Only if the op returns what it wrote; a norm writes its statistics, not its input.
        in_place = written_tensor(self.node) is not self.node
        loop = loop_in_place if in_place else loop_over_lanes
        try:
            return self.builder.call(loop, self.op, self.flags, self.builder.n, *args, **kwargs)
        except Exception as error:
            raise WidenFailed(f"{self.op} cannot run lane by lane: {one_line(error)}") from error

    def _difference(self, result: Val) -> str | None:
        if self.draws and not result.wide:
            return "draws once for all lanes"
        for tensor, left in zip(self.written, self.left, strict=True):
            # A result that is the written tensor is compared below.
            problem = tensors_differ(tensor, left) if self.comparable and tensor is not result.value else None
            if problem:
                return f"what it writes {problem}"
        return differs(result, self.expected, self.lanes, used_results(self.node), self.comparable)

    def _take_back(self, mark: int) -> None:
        self.builder.undo(mark)
        for value, old in zip(self.written, self.before, strict=True):
            value.resize_(old.shape).copy_(old) if value.shape != old.shape else value.copy_(old)

    def _lane_values(self, x: Any) -> Any:
        return self.builder.lane_values(x) if isinstance(x, LaneScalar) else x
