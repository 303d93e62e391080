"""Compare a captured graph with one run of the member.

This detects Python that behaves differently while traced (`is_compiling()`, `type(x) is Tensor`, a setting
that `torch.export` changes).
"""

from collections.abc import Sequence
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
    expected, observation.output = observation.output, None
    if expected is None or captured.calls:
        return
    names = canonical_names(member)
    states = {names[slot.path]: slot.tensor for slot in slots(member)}
    if any(path in states and overlaps_itself(states[path]) for path in captured.writes):
        return  # rejected elsewhere with its own reason; a copy would not overlap
    inputs = iter([copy_of(leaf) for leaf in leaves if isinstance(leaf, Tensor)])
    arguments = [
        next(inputs)
        if node.name in captured.inputs
        else captured.constants[node.name]
        if node.name in captured.constants
        else states[captured.states[node.name]].detach().clone()
        for node in captured.graph.nodes
        if node.op == "placeholder"
    ]
    try:
        with torch.no_grad():
            got = fx.Interpreter(fx.GraphModule({}, captured.graph)).run(*arguments)
    except Exception:  # sizes known only at the call; checked op by op later
        return
    numbers = captured.gives_numbers()
    given = [
        leaf
        for leaf, is_number in zip(got, numbers, strict=True)
        if isinstance(leaf, Tensor) and not is_number
    ]
    tensors = [node for node, is_number in zip(_outputs(captured), numbers, strict=True) if not is_number]
    unset = {place for place, node in enumerate(tensors) if _is_unset(node)}
    if len(given) != len(expected):
        raise CaptureFailed(f"its graph returns {len(given)} tensors, its forward {len(expected)}")
    for place, (mine, theirs) in enumerate(zip(given, expected, strict=True)):
        if theirs.is_meta or place in unset:  # no values, or uninitialised ones
            continue
        problem = difference(mine, theirs, whole_model(theirs.dtype, theirs.is_cuda))
        if problem:
            raise CaptureFailed(
                f"its graph and its forward differ: output {place} {problem}; the forward may behave "
                f"differently while it is traced, as by torch.compiler.is_compiling()"
            )


def _outputs(captured: Captured) -> tuple[Any, ...]:
    return next(node for node in captured.graph.nodes if node.op == "output").args[0]


def _is_unset(node: Any) -> bool:
    name = getattr(getattr(node, "target", None), "_schema", None)
    return name is not None and name.name.split("::")[-1] in UNSET
