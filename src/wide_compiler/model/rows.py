"""Rows of a tensor selected in place, for a parameter that an earlier loss may still hold on to."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from ..errors import UsageError


def select_rows(tensors: Sequence[Tensor], rows: Sequence[int]) -> None:
    """`tensor = tensor[rows]`, gradients too; in the memory they have if that fits, always the same objects.

    All of them or, if one cannot be changed, none.
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
        tensor.grad = gradient.index_select(0, rows)


def _shape_expected(parameter: Tensor) -> torch.Size:
    """The shape of gradient that autograd waits for: the old one as long as a loss of before is held."""
    return torch.Size(get_gradient_edge(parameter).node._input_metadata[0].shape)


def _leave_graph(parameter: Tensor) -> None:
    """Take a parameter out of the graph of an earlier loss, which can no longer run backward."""
    try:
        if parameter._backward_hooks:
            raise RuntimeError("it has gradient hooks")
        torch.utils.swap_tensors(parameter, nn.Parameter(parameter.data))
    except RuntimeError as error:
        raise UsageError(
            f"the number of lanes cannot change while losses or outputs of an earlier step are held: delete "
            f"them (`del losses`) or detach them ({error})"
        ) from error
