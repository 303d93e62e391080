"""The result of widening: a pure function of (states, inputs), for any number of lanes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..explain import Row
from ..lane_values import LaneValues


@dataclass
class NodeRow(Row):
    """One node of the member's graph: by 'rule', 'shared' by all lanes, under 'vmap', or in a 'loop'."""

    strategy: str = ""
    nodes: list[str] = field(default_factory=list)  # nodes of the lane graph

    def more(self) -> dict[str, str]:
        return {"strategy": self.strategy}


@dataclass
class LaneGraph:
    """`graph(states, inputs, n)`: the members' forward for n lanes at once.

    `states` maps a path to its tensor, `[n, ...]` for paths in `wide_states`, else without lane axis. Besides
    returning its outputs the graph writes the states in `writes` in place. It keeps nothing between calls.
    """

    module: fx.GraphModule
    feeds: list[tuple[str, str]]  # (kind, key) of each placeholder
    wide_states: frozenset[str]
    wide_inputs: tuple[bool, ...]
    writes: frozenset[str]
    lane_data: dict[str, Any]  # per-lane numbers and constants made while tracing, for all N lanes
    rows: list[NodeRow]
    output_ranks: list[int | None]  # without lane axis; None for a number
    enters_autocast: bool = False

    def __call__(
        self,
        states: Mapping[str, Any],
        inputs: Sequence[Any],
        n: int,
        lanes: slice | None = None,
        rng: Any = None,
    ) -> tuple[Any, ...]:
        """Return the outputs, each `[n, ...]`. `lanes` are the lanes that `states` holds (None: all)."""
        return self.module(*self.arguments(states, inputs, n, lanes, rng))

    def arguments(
        self,
        states: Mapping[str, Any],
        inputs: Sequence[Any],
        n: int,
        lanes: slice | None = None,
        rng: Any = None,
    ) -> list[Any]:
        """Return the arguments of `module`. `lanes` are the lanes that `states` holds (None: all)."""

        def argument(kind: str, key: str) -> Any:
            if kind in ("n", "rng"):
                return n if kind == "n" else rng
            if kind in ("state", "input"):
                return states[key] if kind == "state" else inputs[int(key)]
            data = self.lane_data[f"{kind}:{key}"]
            return data if lanes is None else data[lanes]

        return [argument(kind, key) for kind, key in self.feeds]

    @property
    def coverage(self) -> float:
        """Share of the member's nodes that run by a wide rule or once for all lanes."""
        own = sum(row.how in ("rule", "shared") for row in self.rows)
        return own / len(self.rows) if self.rows else 1.0

    @property
    def code(self) -> str:
        """The graph as Python code."""
        return self.module.code


def scalar_tensor(values: tuple[Any, ...]) -> torch.Tensor:
    """Return per-lane numbers as an exact tensor `[N]`: integers as int64, floats as float64."""
    return torch.tensor(values, dtype=torch.float64 if isinstance(values[0], float) else None)


def scalar_data(name: str, values: tuple[Any, ...], device: torch.device) -> dict[str, Any]:
    """Return both forms of per-lane Python numbers that a lane graph may use."""
    tensor = scalar_tensor(values).to(device)
    return {f"scalar:{name}": tensor, f"scalar_values:{name}": LaneValues(values)}
