"""The table of wide rules: how each graph op is written for lanes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .builder import Builder, Val, map_leaves

RuleFunction = Callable[..., Any]


@dataclass(frozen=True)
class Rule:
    """`function(builder, *args, **kwargs)` gets the op's own arguments, graph values wrapped as `Val`."""

    function: RuleFunction
    lane_scalars: bool = False  # does it take Python numbers that differ by lane (as `LaneScalar`)?


RULES: dict[Any, Rule] = {}

# Random ops whose rule can draw from a seed per lane.
SEEDED: set[Any] = set()


def rule(
    *ops: Any, lane_scalars: bool = False, seeded: bool = False
) -> Callable[[RuleFunction], RuleFunction]:
    """Register `function` as the rule of each op: `@rule(aten.linear.default)`."""

    def register(function: RuleFunction) -> RuleFunction:
        for op in ops:
            RULES[op] = Rule(function, lane_scalars)
            if seeded:
                SEEDED.add(op)
        return function

    return register


def on_lanes(function: Callable[..., Any]) -> RuleFunction:
    """Return the rule that calls `function` with the op's own arguments, each tensor with a lane axis."""

    def run(b: Builder, *args: Any, **kwargs: Any) -> Val:
        return b.call(function, *map_leaves(b.wide, args), **map_leaves(b.wide, kwargs))

    return run


def lane_rule(*names: str) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function of tensors `[N, ...]` as the rule of ops: `@lane_rule("take.default")`."""

    def register(function: RuleFunction) -> RuleFunction:
        rule(*ops(*names))(on_lanes(function))
        return function

    return register


# (applies, make, lane_scalars) of each `generic_rule`.
_GENERIC: list[tuple[Callable[[Any], bool], Callable[[Any], RuleFunction], bool]] = []


def generic_rule(applies: Callable[[Any], bool], lane_scalars: bool = False) -> Callable[..., Any]:
    """Register a factory of rules for every op that `applies` accepts and that has no rule in `RULES`."""

    def register(make: Callable[[Any], RuleFunction]) -> Callable[[Any], RuleFunction]:
        _GENERIC.append((applies, make, lane_scalars))
        return make

    return register


def find_rule(op: Any) -> Rule | None:
    made = (Rule(make(op), lane_scalars) for applies, make, lane_scalars in _GENERIC if applies(op))
    return RULES.get(op) or next(made, None)


def overloads(packet: Any, *names: str) -> list[Any]:
    """Return the named overloads of an op that this version of PyTorch has; all of them if none is named."""
    return [getattr(packet, name) for name in (names or packet.overloads()) if hasattr(packet, name)]


def ops(*names: str) -> list[Any]:
    """ATen overloads by name: `ops("softmax.int roll")`; a bare name means every overload."""
    found: list[Any] = []
    for name in " ".join(names).split():
        packet_name, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, packet_name, None)
        if packet is not None:
            found += overloads(packet, *([overload] if overload else []))
    return found
