"""The captures of several variants zipped into one graph: what differs becomes per lane."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ..errors import AlignmentError
from .captured import Captured


def zip_variants(variants: Sequence[Captured], variant_of_lane: Sequence[int]) -> Captured:
    """One `Captured` for all lanes. Differing Python numbers become `scalars`, differing tensors made while
    tracing become `lane_constants`; any other difference is an `AlignmentError`."""
    merged = variants[0]
    if len(variants) == 1:
        return merged
    rows = [list(v.graph.nodes) for v in variants]
    lane_of = [variant_of_lane.index(v) for v in range(len(variants))]
    for lane, row in zip(lane_of, rows, strict=True):
        if len(row) != len(rows[0]):
            raise AlignmentError(
                f"lane {lane}: its forward has {len(row)} operations, lane 0 has {len(rows[0])}; "
                f"the lanes' Python attributes lead to different computations"
            )
    zipper = _Zipper(merged, variant_of_lane, lane_of)
    for column in zip(*rows, strict=True):
        zipper.zip_nodes(column)
    _zip_constants(merged, variants, variant_of_lane, rows)
    return merged


class _Zipper:
    def __init__(self, merged: Captured, variant_of_lane: Sequence[int], lane_of: Sequence[int]):
        self.merged, self.variant_of_lane, self.lane_of = merged, variant_of_lane, lane_of
        self.position: list[dict[fx.Node, int]] = []
        self.first_compute = next(n for n in merged.graph.nodes if n.op != "placeholder")
        self.index: dict[fx.Node, int] = {}
        self.count = 0

    def zip_nodes(self, column: Sequence[fx.Node]) -> None:
        first = column[0]
        for lane, node in zip(self.lane_of, column, strict=True):
            self.index[node] = self.count
            if node.op != first.op or (node.op != "placeholder" and node.target != first.target):
                raise AlignmentError(
                    f"lane {lane}: {_where(node)} computes {node.target}, lane 0 computes {first.target}"
                )
        self.count += 1
        first.args = tuple(self._zip([n.args[i] for n in column], first) for i in range(len(first.args)))
        keys = first.kwargs.keys()
        first.kwargs = {k: self._zip([n.kwargs.get(k) for n in column], first) for k in keys}

    def _zip(self, values: list[Any], node: fx.Node) -> Any:
        first = values[0]
        if isinstance(first, fx.Node):
            for lane, value in zip(self.lane_of, values, strict=True):
                if not isinstance(value, fx.Node) or self.index[value] != self.index[first]:
                    raise AlignmentError(f"lane {lane}: {_where(node)} is wired differently than in lane 0")
            return first
        if isinstance(first, (list, tuple)) and all(
            isinstance(v, (list, tuple)) and len(v) == len(first) for v in values
        ):
            return type(first)(self._zip(list(items), node) for items in zip(*values, strict=True))
        if all(type(v) is type(first) and v == first for v in values):
            return first
        if all(isinstance(v, (int, float, bool)) for v in values):
            return self._scalar(values)
        lane = next(l for l, v in zip(self.lane_of, values, strict=True) if v != first)
        raise AlignmentError(
            f"lane {lane}: {_where(node)} has {values[self.lane_of.index(lane)]!r}, lane 0 has {first!r}"
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


def _zip_constants(
    merged: Captured, variants: Sequence[Captured], variant_of_lane: Sequence[int], rows: list[list[fx.Node]]
) -> None:
    position = {node.name: i for i, node in enumerate(rows[0])}
    for name, tensor in list(merged.constants.items()):
        if name not in position:
            continue
        mine = [v.constants[rows[k][position[name]].name] for k, v in enumerate(variants)]
        if not all(torch.equal(tensor, other) for other in mine):
            merged.lane_constants[name] = torch.stack([mine[v] for v in variant_of_lane])
            del merged.constants[name]


def _where(node: fx.Node) -> str:
    return module_path(node) or "the model's forward"


def module_path(node: fx.Node) -> str:
    """The path of the module whose forward made this node."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values() if isinstance(path, str)]
    inner = [p for p in paths if p == "member" or ".member" in p or p.startswith("member")]
    return inner[-1].split("member", 1)[1].lstrip(".") if inner else ""
