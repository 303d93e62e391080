"""Compare a captured graph with one run of the member.

This detects Python that behaves differently while traced (`is_compiling()`, `type(x) is Tensor`, a setting
that `torch.export` changes).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..measure.compare import difference, whole_model
from .captured import Captured
from .failure import CaptureFailed
from .observation import Observation, copy_of
from .state import canonical_names, slots
from .strides import overlaps_itself

# Ops that return uninitialised memory, which is not compared.
UNSET = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}


def confirm(captured: Captured, member: nn.Module, leaves: Sequence[Any], observation: Observation) -> None:
    """Raise `CaptureFailed` unless the graph returns the tensors of the observed run.

    Graphs with opaque calls, and forwards that draw random numbers, are not compared.
    """
    expected = observation.output
    if expected is None or captured.calls:
        return
    names = canonical_names(member)
    states = {names[slot.path]: slot.tensor for slot in slots(member)}
    if any(path in states and overlaps_itself(states[path]) for path in captured.writes):
        return  # rejected elsewhere with its own reason; a copy would not overlap
    arguments = _arguments(captured, states, leaves)
    try:
        with torch.no_grad():
            results = fx.Interpreter(nn.Module(), graph=captured.graph).run(*arguments)
    except Exception:  # sizes known only at the call; checked op by op later
        return
    nodes = next(iter(captured.graph.find_nodes(op="output"))).args[0]
    outputs = zip(results, nodes, captured.gives_numbers(), strict=True)
    got = [(leaf, node) for leaf, node, is_number in outputs if isinstance(leaf, Tensor) and not is_number]
    if len(got) != len(expected):
        raise CaptureFailed(f"its graph returns {len(got)} tensors, its forward {len(expected)}")
    for position, ((tensor, node), want) in enumerate(zip(got, expected, strict=True)):
        schema = getattr(getattr(node, "target", None), "_schema", None)
        unset = schema is not None and schema.name.split("::")[-1] in UNSET
        if want.is_meta or unset:  # no values, or uninitialised ones
            continue
        problem = difference(tensor, want, whole_model(want.dtype, want.is_cuda))
        if problem:
            raise CaptureFailed(
                f"its graph and its forward differ: output {position} {problem}; the forward may behave "
                f"differently while it is traced, as by torch.compiler.is_compiling()"
            )


def _arguments(captured: Captured, states: Mapping[str, Tensor], leaves: Sequence[Any]) -> list[Any]:
    """Return the arguments of the graph: copies of inputs and states, and the constants."""
    inputs = [copy_of(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
    arguments = []
    for node in captured.graph.find_nodes(op="placeholder"):
        kind, given = captured.source(node.name)
        if kind == "state":
            given = states[given].detach().clone()
        arguments.append(inputs[given] if kind == "input" else given)
    return arguments
