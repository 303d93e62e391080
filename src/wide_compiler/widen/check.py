"""Compare the result of a rule with the member's op on each lane, at every node, on the probe."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _tree
from ..measure.compare import Tolerances, difference, one_op
from .builder import LaneScalar, Val, map_leaves
from .classify import is_random, wide_flags
from .fallbacks import lane_call, stack_results


class WholeGraphDiffers(Exception):
    """Every node is correct by itself, but the output of the whole graph is not."""


def probe_values(tree: Any, copies: dict[int, Tensor]) -> Any:
    """Nested arguments with probe values instead of `Val`s; tensors in `copies` (by id) are replaced."""

    def value(x: Any) -> Any:
        if isinstance(x, Val):
            return copies.get(id(x.value), x.value)
        return x.values if isinstance(x, LaneScalar) else x

    return map_leaves(value, tree)


def expected_per_lane(
    op: Any, args: Any, kwargs: Any, n: int, written: Sequence[Tensor]
) -> tuple[Any, list[Tensor]]:
    """Return the result of the member's op lane by lane, stacked, and what it leaves in `written`."""
    copies = {id(w): w.clone() for w in written}
    args_values, kwargs_values = probe_values(args, copies), probe_values(kwargs, copies)
    flags = wide_flags((args, kwargs))
    results = [lane_call(op, flags, lane, args_values, kwargs_values) for lane in range(n)]
    return stack_results(results), [copies[id(w)] for w in written]


def differs(
    result: Any, expected: Any, n: int, used: set[int] | None = None, values: bool = True
) -> str | None:
    """Return how `result` (a `Val`) differs from `expected`; None if it does not.

    `used` selects elements of a tuple; without `values` only shapes and dtypes are compared.
    """
    got = result.value
    if used is not None and isinstance(expected, (list, tuple)):
        got, expected = [got[i] for i in sorted(used)], [expected[i] for i in sorted(used)]
    if not result.wide:
        got = _tree.tree_map(lambda t: t.expand(n, *t.shape) if isinstance(t, Tensor) else t, got)
    got_leaves, expected_leaves = _tree.flatten(got)[0], _tree.flatten(expected)[0]
    if len(got_leaves) != len(expected_leaves):
        return f"gives {len(got_leaves)} results, expected {len(expected_leaves)}"
    for a, b in zip(got_leaves, expected_leaves, strict=True):
        if isinstance(b, Tensor):
            problem = tensors_differ(a, b) if values else kinds_differ(a, b)
        else:
            problem = None if a == b else f"gives {a}, expected {b}"
        if problem:
            return problem
    return None


def kinds_differ(got: Any, expected: Tensor) -> str | None:
    if not isinstance(got, Tensor):
        return f"gives {type(got).__name__}, expected a tensor"
    if got.shape != expected.shape:
        return f"gives {tuple(got.shape)}, expected {tuple(expected.shape)}"
    return None if got.dtype == expected.dtype else f"gives {got.dtype}, expected {expected.dtype}"


def tensors_differ(got: Any, expected: Tensor, factor: float = 1.0) -> str | None:
    if not isinstance(got, Tensor):
        return f"gives {type(got).__name__}, expected a tensor"
    mean, single = one_op(expected.dtype)
    return difference(got, expected, Tolerances(mean, factor * single))


def gradients_differ(
    mapped: Callable[..., Any], op: Any, flags: tuple[bool, ...], args: Any, kwargs: Any, n: int
) -> str | None:
    """Return how the gradient of `mapped`, a vmap of `op`, differs from that of the loop; None if equal.

    None also if the op has no gradient.
    """
    values = probe_values(args, {}), probe_values(kwargs, {})

    def looped(a: Any, k: Any) -> Any:
        return stack_results([lane_call(op, flags, lane, a, k) for lane in range(n)])

    try:
        expected = gradients_of(looped, values)
    except Exception:  # the op has no gradient for these arguments
        return None
    got = gradients_of(lambda a, k: mapped(op, flags, *a, **k), values)
    for mine, theirs in zip(got, expected, strict=True):
        if mine is None or theirs is None:
            present = mine if theirs is None else theirs
            if present is not None and present.any():  # a zero gradient equals none
                return "has a gradient where the loop has none, or the reverse"
        elif problem := tensors_differ(mine, theirs):
            return f"gradient {problem}"
    return None


def gradients_of(run: Callable[[Any, Any], Any], values: Any) -> list[Tensor | None]:
    """Gradients of every floating tensor in `values` (args, kwargs), of a weighted sum of all results."""
    leaves, spec = _tree.flatten(values)
    leaves = [leaf.detach().clone().requires_grad_() if _is_float(leaf) else leaf for leaf in leaves]
    roots = [leaf for leaf in leaves if _is_float(leaf)]
    with torch.enable_grad():
        out = run(*_tree.unflatten(leaves, spec)) if roots else ()
        outputs = [o for o in _tree.flatten(out)[0] if _is_float(o) and o.requires_grad]
        weights = [torch.linspace(0.5, 1.5, o.numel(), dtype=o.dtype, device=o.device) for o in outputs]
        terms = [(o * w.view(o.shape)).sum() for o, w in zip(outputs, weights, strict=True)]
        if not terms:
            return [None] * len(roots)
        return list(torch.autograd.grad(sum(terms[1:], terms[0]), roots, allow_unused=True))


def check_whole_graph(
    captured: Any, probe: Any, wide_states: Any, wide_inputs: Any, outputs: list[Val]
) -> None:
    """Run a graph that writes what it has views of again lane by lane, and compare the outputs.

    The check of each node uses the lane graph's own values, so it cannot detect a write that does not reach a
    view of the same memory.
    """
    if captured.calls or any(is_random(n.target) for n in captured.graph.nodes):
        return
    names = [node.name for node in captured.graph.find_nodes(op="placeholder")]
    runner = torch.fx.Interpreter(torch.nn.Module(), graph=captured.graph)
    per_lane = [
        runner.run(*[_lane_value(captured, probe, wide_states, wide_inputs, name, lane) for name in names])
        for lane in range(probe.n)
    ]
    for k, output in enumerate(outputs):
        if not isinstance(output.value, Tensor):
            continue  # a number, part of the graph itself
        problem = tensors_differ(output.value, torch.stack([result[k] for result in per_lane]), factor=10.0)
        if problem:
            raise WholeGraphDiffers(
                f"output {k} of the lane graph {problem}: a write does not reach a view of it"
            )


def _lane_value(captured: Any, probe: Any, wide_states: Any, wide_inputs: Any, name: str, lane: int) -> Any:
    kind, value = captured.source(name)
    wide = kind in ("scalar", "lane_constant")
    if kind == "state":
        value, wide = probe.states[value], value in wide_states
    elif kind == "input":
        value, wide = probe.inputs[value], wide_inputs[value]
    value = value[lane] if wide else value
    return value.clone() if isinstance(value, Tensor) else value


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()
