"""Merge the captures of several variants into one graph; differences become per-lane values."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ..errors import AlignmentError
from ..lane_values import LaneValues, alike
from .align import REMEDY
from .captured import Captured
from .failure import CaptureFailed
from .number_outputs import is_output


def zip_variants(variants: Sequence[Captured], variant_of_lane: Sequence[int]) -> Captured:
    """One `Captured` for all lanes. Different Python numbers become `scalars`, different constant tensors
    become `lane_constants`; any other difference raises `AlignmentError`."""
    merged = variants[0]
    if len(variants) == 1:
        return merged
    rows = [list(v.graph.nodes) for v in variants]
    lane_of = [variant_of_lane.index(v) for v in range(len(variants))]
    for lane, row in zip(lane_of, rows, strict=True):
        if len(row) != len(rows[0]):
            raise AlignmentError(
                f"lane {lane}: its forward has {len(row)} operations, lane 0 has {len(rows[0])}; "
                f"the lanes' Python attributes lead to different computations; {REMEDY}"
            )
    zipper = _Zipper(variants, variant_of_lane, lane_of)
    for column in zip(*rows, strict=True):
        zipper.zip_nodes(column)
    zipper.zip_constants(rows)
    zipper.zip_outputs()
    _check_calls(variants)
    merged.guards = [guards for variant in variants for guards in variant.guards]
    merged.writes = set().union(*(variant.writes for variant in variants))
    merged.rests_on = merged.rests_on.joined([variant.rests_on for variant in variants[1:]])
    merged.own = merged.own.joined([variant.own for variant in variants[1:]])
    merged.reads_grad_mode = any(variant.reads_grad_mode for variant in variants)
    merged.reads_layout = any(variant.reads_layout for variant in variants)
    return merged


class _Zipper:
    def __init__(self, variants: Sequence[Captured], variant_of_lane: Sequence[int], lane_of: Sequence[int]):
        self.variants, self.variant_of_lane, self.lane_of = variants, variant_of_lane, lane_of
        self.merged = variants[0]
        self.first_compute = next(n for n in self.merged.graph.nodes if n.op != "placeholder")
        self.index: dict[fx.Node, int] = {}
        self.count = 0

    def zip_nodes(self, column: Sequence[fx.Node]) -> None:
        first = column[0]
        for lane, node in zip(self.lane_of, column, strict=True):
            self.index[node] = self.count
            if node.op != first.op or (node.op != "placeholder" and node.target != first.target):
                raise AlignmentError(
                    f"lane {lane}: {_where(node)} computes {node.target}, lane 0 computes {first.target}; "
                    f"{REMEDY}"
                )
        self.count += 1
        if first.op == "placeholder":
            self._zip_placeholders(column)
        alike = len({(len(n.args), *sorted(n.kwargs)) for n in column}) == 1
        spelled = [(n.args, n.kwargs) if alike else _spelled_out(n) for n in column]
        arguments, keywords = spelled[0]
        first.args = tuple(self._zip([a[i] for a, _ in spelled], first) for i in range(len(arguments)))
        first.kwargs = {k: self._zip([kw[k] for _, kw in spelled], first) for k in keywords}

    def _zip_placeholders(self, column: Sequence[fx.Node]) -> None:
        stands_for = [v.states.get(n.name) for v, n in zip(self.variants, column, strict=True)]
        for lane, path in zip(self.lane_of, stands_for, strict=True):
            if path != stands_for[0]:
                raise CaptureFailed(f"lane {lane} reads {path} where lane 0 reads {stands_for[0]}")

    def _zip(self, values: list[Any], node: fx.Node) -> Any:
        first = values[0]
        if isinstance(first, fx.Node):
            for lane, value in zip(self.lane_of, values, strict=True):
                if not isinstance(value, fx.Node) or self.index[value] != self.index[first]:
                    raise AlignmentError(
                        f"lane {lane}: {_where(node)} has other inputs than in lane 0; {REMEDY}"
                    )
            return first
        if isinstance(first, (list, tuple)) and all(
            isinstance(v, (list, tuple)) and len(v) == len(first) for v in values
        ):
            return type(first)(self._zip(list(items), node) for items in zip(*values, strict=True))
        if all(type(v) is type(first) and v == first and repr(v) == repr(first) for v in values):
            return first
        if all(isinstance(v, (int, float, bool)) for v in values):
            if any(type(v) is not type(first) for v in values):
                kinds = " and ".join(sorted({type(v).__name__ for v in values}))
                raise CaptureFailed(f"{_where(node)}: a Python number is {kinds} in different lanes")
            return self._scalar(values)
        lane = next(l for l, v in zip(self.lane_of, values, strict=True) if v != first)
        raise AlignmentError(
            f"lane {lane}: {_where(node)} has {values[self.lane_of.index(lane)]!r}, lane 0 has {first!r}; "
            f"{REMEDY}"
        )

    def _scalar(self, values: list[Any]) -> fx.Node:
        per_lane = tuple(values[v] for v in self.variant_of_lane)
        for name, known in self.merged.scalars.items():
            if known == per_lane and list(map(type, known)) == list(map(type, per_lane)):
                return next(n for n in self.merged.graph.nodes if n.name == name)
        with self.merged.graph.inserting_before(self.first_compute):
            node = self.merged.graph.placeholder(f"lane_scalar_{len(self.merged.scalars)}")
        self.merged.scalars[node.name] = per_lane
        return node

    def zip_constants(self, rows: list[list[fx.Node]]) -> None:
        constants = self.merged.constants
        for column in zip(*rows, strict=True):
            name = column[0].name
            if name not in constants:
                continue
            mine = [v.constants[node.name] for v, node in zip(self.variants, column, strict=True)]
            if not all(torch.equal(mine[0], other) for other in mine):
                self.merged.lane_constants[name] = torch.stack([mine[v] for v in self.variant_of_lane])
                del constants[name]

    def zip_outputs(self) -> None:
        """Turn non-tensor leaves of the output that differ into one value per lane."""
        statics, spec = self.merged.out_statics, self.merged.out_spec
        for lane, captured in zip(self.lane_of, self.variants, strict=True):
            if captured.out_spec != spec:
                raise AlignmentError(
                    f"lane {lane} returns {captured.out_spec}, lane 0 returns {spec}; {REMEDY}"
                )
        for position, leaf in enumerate(statics):
            leaves = [captured.out_statics[position] for captured in self.variants]
            if not is_output(leaf) and not all(alike(other, leaf) for other in leaves):
                statics[position] = LaneValues(leaves[v] for v in self.variant_of_lane)


def _check_calls(variants: Sequence[Captured]) -> None:
    """Check that opaque calls have the same constant arguments in all variants."""
    for calls in zip(*(captured.calls for captured in variants), strict=True):
        if len({(c.path, c.name, repr(c.statics)) for c in calls}) > 1:
            raise CaptureFailed(
                f"{calls[0].path or calls[0].name} is called with different Python values in different lanes"
            )


def _spelled_out(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return all arguments with defaults, because a capture omits arguments that equal their default."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return node.args, dict(node.kwargs)
    positional, keywords = list(node.args), {}
    for index, argument in enumerate(schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        if argument.kwarg_only:
            keywords[argument.name] = node.kwargs.get(argument.name, default)
        elif index >= len(positional):
            positional.append(node.kwargs.get(argument.name, default))
    return tuple(positional), keywords


def _where(node: fx.Node) -> str:
    return module_path(node) or "the model's forward"


def module_path(node: fx.Node) -> str:
    """Return the path of the module whose forward created the node."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values() if isinstance(path, str)]
    inner = [p for p in paths if p == "member" or ".member" in p or p.startswith("member")]
    return inner[-1].split("member", 1)[1].lstrip(".") if inner else ""
