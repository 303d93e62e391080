"""Selecting rows of parameters in place, even if an earlier loss still references them."""

import gc
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from ..capture.state import has_gradient_hooks
from ..errors import UsageError


def select_rows(tensors: Sequence[Tensor], rows: Sequence[int]) -> None:
    """Set `tensor = tensor[rows]` for all tensors and their gradients, keeping the tensor objects.

    The memory is kept too if the number of rows is the same. If one tensor cannot be changed, none is.
    """
    before = [(tensor, tensor.data, tensor.grad) for tensor in tensors]
    try:
        for tensor in tensors:
            _select(tensor, torch.tensor(list(rows), device=tensor.device))
    except RuntimeError:
        for tensor, data, gradient in before:
            tensor.grad, tensor.data = None, data
            tensor.grad = gradient
        raise


def _select(tensor: Tensor, rows: Tensor) -> None:
    gradient, tensor.grad = tensor.grad, None
    selected = tensor.data.index_select(0, rows)
    if len(rows) == len(tensor):
        tensor.data.copy_(selected)
    else:
        tensor.data = selected
        if tensor.requires_grad and _shape_expected(tensor) != tensor.shape:
            _leave_graph(tensor)
    if gradient is not None:
        chosen = gradient.index_select(0, rows)
        # PyTorch's fused optimisers on a CPU take for granted that gradients have the parameter's strides.
        tensor.grad = chosen if chosen.stride() == tensor.stride() else torch.empty_like(tensor).copy_(chosen)


def _shape_expected(parameter: Tensor) -> torch.Size:
    """Return the gradient shape that autograd expects: the old one while an earlier loss is alive."""
    return torch.Size(get_gradient_edge(parameter).node._input_metadata[0].shape)


def _leave_graph(parameter: Tensor) -> None:
    """Detach a parameter from the graph of an earlier loss, whose backward becomes impossible."""
    try:
        if has_gradient_hooks(parameter):
            raise RuntimeError("it has gradient hooks")
        try:
            torch.utils.swap_tensors(parameter, nn.Parameter(parameter.data))
        except RuntimeError:  # a checkpoint's graph is in a reference cycle, although nobody holds it
            gc.collect()
            torch.utils.swap_tensors(parameter, nn.Parameter(parameter.data))
    except RuntimeError as error:
        raise UsageError(
            f"the number of lanes cannot change while losses or outputs of an earlier step are held: delete "
            f"them (`del losses`) or detach them ({error})"
        ) from error
