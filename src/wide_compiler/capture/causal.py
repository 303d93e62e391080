"""Detect attention masks that are causal for every batch, so that kernels can use `is_causal`.

Some libraries omit the causal mask in eager mode, but build it explicitly under export.
"""

from typing import Any

import torch
from torch import Tensor, fx

from .failure import CaptureFailed

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_MASK, _CAUSAL = 3, 5  # positions of its arguments
_BATCHES = (2, 3)
_LONGEST = 2**14  # masks of longer sequences are not evaluated


def mark_causal(graph: fx.Graph) -> None:
    """Replace a mask that depends on the batch size only, and is causal for two batch sizes, by
    `is_causal=True`. A mask that depends on another size, or on an input, stays."""
    known: dict[fx.Node, bool] = {}
    for node in graph.nodes:
        if node.target is not _ATTENTION or len(node.args) <= _MASK:
            continue
        mask = node.args[_MASK]
        if not isinstance(mask, fx.Node) or not _can_look(mask):
            continue
        if mask not in known:
            known[mask] = _is_causal(mask)
        if known[mask]:
            args = [*node.args, 0.0, False][: _CAUSAL + 1]
            args[_MASK], args[_CAUSAL] = None, True
            node.args = tuple(args)


def _can_look(mask: fx.Node) -> bool:
    value = mask.meta.get("val")
    sizes = value.shape[-2:] if isinstance(value, Tensor) else ()
    return len(sizes) == 2 and all(isinstance(size, int) and size <= _LONGEST for size in sizes)


def _is_causal(mask: fx.Node) -> bool:
    try:
        found = [_evaluate(mask, batch, {}) for batch in _BATCHES]
    except Exception:  # it reads an input, or this batch size is invalid
        return False
    return found[0].shape[-2:] == found[1].shape[-2:] and all(map(_masks_what_follows, found))


def _masks_what_follows(mask: Tensor) -> bool:
    """Return whether it masks exactly the later tokens."""
    if mask.dim() < 2 or mask.shape[-1] != mask.shape[-2] or not mask.numel():
        return False
    if mask.is_floating_point():  # added to the scores
        masked = mask <= torch.finfo(mask.dtype).min
        if not bool((masked | (mask == 0)).all()):
            return False
    elif mask.dtype == torch.bool:
        masked = ~mask
    else:
        return False
    after = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).triu(1)
    return bool((masked == after).all())


def _evaluate(value: Any, batch: int, env: dict[fx.Node, Any]) -> Any:
    """Return the value of a node if the first dim of every input has size `batch`."""
    nodes = [value]
    while nodes:  # iterative, because chains of ops may be long
        node = nodes[-1]
        missing = [n for n in node.all_input_nodes if n not in env]
        if node in env:
            nodes.pop()
        elif _is_batch(node):
            env[node] = batch
        elif node.op != "call_function" or not _is_repeatable(node.target):
            raise CaptureFailed(f"{node} depends on more than the batch size")
        elif missing:
            nodes += missing
        else:
            args, kwargs = (fx.node.map_arg(a, env.__getitem__) for a in (node.args, node.kwargs))
            env[node] = node.target(*args, **kwargs)
    return env[value]


def _is_batch(node: fx.Node) -> bool:
    """Return whether the node is the size of an input's first dim."""
    if node.target is not torch.ops.aten.sym_size.int:
        return False
    source, dim = node.args
    return isinstance(source, fx.Node) and source.op == "placeholder" and bool(dim == 0)


def _is_repeatable(target: Any) -> bool:
    """Return whether it is arithmetic on sizes, or an op that is neither random nor in place."""
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__module__", "") in ("_operator", "math", "builtins", "torch")
    return torch.Tag.nondeterministic_seeded not in target.tags and not target._schema.is_mutable
