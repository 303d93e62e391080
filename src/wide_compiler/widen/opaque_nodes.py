"""Opaque calls in the lane graph: a registered wide module, or the callable lane by lane."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..capture import OpaqueCall, canonical_names, slots
from ..errors import UnsupportedError, UsageError, one_line
from ..guards.modes import no_inference_mode
from ..lanes import join_lanes, split_lanes
from .builder import Val, map_leaves
from .check import gradients_of, tensors_differ
from .fallbacks import vmap_must_be_whole, vmap_over_lanes
from .lane_function import LanesFunction
from .lane_graph import NodeRow
from .per_lane import give_back, lane_generator, lent


def is_registered(walk: Any, call: OpaqueCall) -> bool:
    return bool(call.path) and isinstance(walk.states.get(call.path), nn.Module)


# How a registered class takes and gives tensors: the name -> what a user reads of it.
LAYOUTS = {"stacked": "as [N, B, ...]", "packed": "packed, as [B, N*C, ...]"}


def widen_call(walk: Any, call: OpaqueCall, tensors: list[Val], sizes: list[Any], row: NodeRow) -> Val:
    """Emit one opaque call and set in `row` how it runs. Returns a tuple of wide tensors."""
    builder = walk.builder
    if is_registered(walk, call):
        module = Val(walk.feed("state", call.path), walk.states[call.path], wide=True)
        wide_tensors = [builder.wide(t) for t in tensors]
        numbers = [size.value if isinstance(size, Val) else size for size in sizes]
        layout, row.why = walk.probe.layout(call, [t.value for t in wide_tensors], numbers)
        row.how, row.strategy = "rule", "registered" if layout == "stacked" else f"registered, {layout}"
        return builder.call(_registered(call, layout), module, builder.n, wide_tensors, sizes)
    row.how = "loop"
    flags = tuple(t.wide for t in tensors)
    if not call.path:
        operands = (builder.n, tensors, sizes, builder.rng)
        problem = _over_lanes_differs(call, flags, operands)
        if problem is None:
            row.how = "vmap"
            return builder.call(_function_over_lanes(call, flags), *operands)
        row.why = f"{row.why}; {problem}"
        return builder.call(_function_per_lane(call, flags), *operands)
    members = Val(walk.feed("state", MEMBERS), walk.states[MEMBERS], wide=True)
    names = _state_names(walk.states[MEMBERS][0], call.path)
    states = {inner: walk.state(canonical) for inner, canonical in names.items()}
    wide = {inner: state.wide for inner, state in states.items()}
    before = {inner: state.value for inner, state in states.items()}
    for state in states.values():
        state.value = state.value.clone()  # it may write its parameters, and the lanes must stay as they are
    result = builder.call(_module_per_lane(call, flags, wide), members, states, tensors, sizes, builder.rng)
    for slot in slots(walk.states[MEMBERS][0].get_submodule(call.path)):
        if slot.kind == "parameter" and not torch.equal(states[slot.path].value, before[slot.path]):
            raise WritesItsParameter(call.path, slot.path)
    return result


MEMBERS = "<members>"  # the states' key for the N members' skeletons


def _state_names(member: nn.Module, path: str) -> dict[str, str]:
    """Tensor path inside the submodule -> its canonical path in the member."""
    names = canonical_names(member)
    inner = [slot.path for slot in slots(member.get_submodule(path)) if slot.kind != "constant"]
    return {own: names[f"{path}.{own}"] for own in inner}


def _registered(call: OpaqueCall, layout: str) -> Callable[..., Any]:
    def run_registered(module: Any, n: int, tensors: list[Tensor], sizes: list[int]) -> tuple[Tensor, ...]:
        return run_in_layout(call, module, layout, n, tensors, sizes)

    return _named(run_registered, call)


def run_in_layout(
    call: OpaqueCall, module: nn.Module, layout: str, n: int, tensors: list[Tensor], sizes: list[int]
) -> tuple[Tensor, ...]:
    """Run `module` on tensors `[N, B, ...]`, converted to and from its layout."""
    if layout == "stacked":
        return tuple(call.run(module, tensors, sizes))
    packed = call.run(module, [join_lanes(t) for t in tensors], sizes)
    return tuple([split_lanes(t, n) for t in packed])


def _function_per_lane(call: OpaqueCall, wide: tuple[bool, ...]) -> Callable[..., Any]:
    def run_per_lane(n: int, tensors: list[Tensor], sizes: list[int], rng: Any) -> tuple[Tensor, ...]:
        lanes = [_run_lane(call, call.function, tensors, wide, sizes, rng, i) for i in range(n)]
        return tuple(torch.stack(column) for column in zip(*lanes, strict=True))

    return _named(run_per_lane, call)


def _function_over_lanes(call: OpaqueCall, wide: tuple[bool, ...]) -> Callable[..., Any]:
    """Return a function under vmap; lane by lane with seeds per lane, or under torch.compile."""
    per_lane = _function_per_lane(call, wide)
    # `apply` of a custom autograd function, bound to its class.
    custom = call.function.args[0] if isinstance(call.function, functools.partial) else None

    def run_over_lanes(n: int, tensors: list[Tensor], sizes: list[int], rng: Any) -> tuple[Tensor, ...]:
        if rng is not None or torch.compiler.is_dynamo_compiling():
            return per_lane(n, tensors, sizes, rng)
        if custom is None:
            return vmap_over_lanes(lambda *own: tuple(call.run(call.function, own, sizes)), wide, *tensors)
        flags = iter(wide)
        args, kwargs = _tree.unflatten(call.leaves(tensors, sizes), call.spec)
        assert not kwargs and not any(isinstance(arg, (list, tuple, dict)) for arg in args)
        mapped = tuple(isinstance(arg, Tensor) and next(flags) for arg in args)
        return LanesFunction.apply(custom, mapped, n, *args)

    return _named(run_over_lanes, call)


def _over_lanes_differs(call: OpaqueCall, wide: tuple[bool, ...], operands: Any) -> str | None:
    """Return how the function under vmap differs from the loop, in results or gradients; None if equal."""
    if not any(wide):
        return "no argument has lanes"
    n, tensors, sizes, rng = map_leaves(lambda x: x.value if isinstance(x, Val) else x, operands)
    ways = []
    for way in (_function_per_lane(call, wide), _function_over_lanes(call, wide)):

        def run(args: Any, _: Any, way: Callable[..., Any] = way) -> Any:
            with vmap_must_be_whole():
                return way(n, list(args), sizes, rng)

        try:
            ways.append((run(tensors, {}), gradients_of(run, (tuple(tensors), {}))))
        except Exception as error:
            return one_line(error)
    (expected, theirs), (got, mine) = ways
    for a, b in zip([*got, *mine], [*expected, *theirs], strict=True):
        if (a is None) != (b is None):
            return "has a gradient where the loop has none, or the reverse"
        if a is not None and (problem := tensors_differ(a, b)):
            return problem
    return None


def _module_per_lane(call: OpaqueCall, wide: tuple[bool, ...], wide_states: dict[str, bool]) -> Any:
    def run_per_lane(
        members: tuple[nn.Module, ...],
        states: dict[str, Tensor],
        tensors: list[Tensor],
        sizes: list[int],
        rng: Tensor | None,
    ) -> tuple[Tensor, ...]:
        lanes: list[list[Tensor]] = []
        returns: list[tuple[Tensor, Tensor]] = []
        versions = {path: state._version for path, state in states.items()}
        for i, member in enumerate(members):
            module = member.get_submodule(call.path)
            own = {path: state[i] if wide_states[path] else state for path, state in states.items()}
            addresses = {path: tensor.data_ptr() for path, tensor in own.items()}

            def unchanged(path: str, value: Any, addresses: dict[str, int] = addresses) -> None:
                if path in addresses and getattr(value, "data_ptr", int)() != addresses[path]:
                    raise WritesItsParameter(call.path, path)

            with lent(module, own.__getitem__, returns, unchanged):
                lanes.append(_run_lane(call, module.forward, tensors, wide, sizes, rng, i))
        for path, state in states.items():
            if state._version != versions[path]:
                raise WritesItsParameter(call.path, path)
        give_back(returns)
        return tuple(torch.stack(column) for column in zip(*lanes, strict=True))

    return _named(run_per_lane, call)


def _run_lane(
    call: OpaqueCall,
    function: Any,
    tensors: list[Tensor],
    wide: Any,
    sizes: list[int],
    rng: Tensor | None,
    lane: int,
) -> list[Tensor]:
    """Run one lane on copies, because the graph does not know what the callable writes."""
    with no_inference_mode():  # only tensors made without it count their writes
        own = [(t[lane] if w else t).clone() for t, w in zip(tensors, wide, strict=True)]
    versions = [t._version for t in own]
    with lane_generator(rng, lane):
        results = call.run(function, own, sizes)
    if [t._version for t in own] != versions:
        raise UsageError(
            f"{call.path or call.name} writes into its input, which the graph around it would not see"
        )
    return results


class WritesItsParameter(UnsupportedError):
    """A module writes its parameter in its forward, which the graph around it cannot represent."""

    def __init__(self, module: str, parameter: str):
        super().__init__(
            f"{module} writes its parameter {parameter} in its forward, which the graph around it does not "
            f"expect; write it outside of the forward"
        )


def _named(function: Callable[..., Any], call: OpaqueCall) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = f"{function.__name__}_{call.name}"
    return function
