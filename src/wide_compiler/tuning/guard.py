"""Are these tensors the ones that were there before, as far as a recording can tell?"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_data_ptr = Tensor.data_ptr


class TensorGuard:
    """Type, shape, strides, dtype, device, address and what dispatch depends on (gradients, autocast, vmap,
    inference mode, ...) of several tensors, compared in C++: the guards that torch.compile uses itself.

    >>> x = torch.ones(2, 3)
    >>> guard = TensorGuard([x])
    >>> guard.holds([x]), guard.holds([x.clone()]), guard.holds([None])
    (True, False, False)
    """

    def __init__(self, tensors: Sequence[Tensor]):
        shapes: Any = [list(t.shape) for t in tensors]
        strides: Any = [list(t.stride()) for t in tensors]
        guards = torch._C._dynamo.guards.TensorGuards
        self.check = guards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides).check
        self.addresses = [t.data_ptr() for t in tensors]

    def holds(self, tensors: Sequence[Any]) -> bool:
        """Whether these, as many as there were, are as those were."""
        return self.check(*tensors) and [*map(_data_ptr, tensors)] == self.addresses
