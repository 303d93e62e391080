"""Fast guards for tensors and dictionaries, implemented in C++ because they run at every call."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .dict_versions import dict_version

_data_ptr = Tensor.data_ptr


def version_of(tensor: Tensor) -> int:
    """Return the number of writes to a tensor; 0 for one made in inference mode, which counts none."""
    return 0 if tensor.is_inference() else tensor._version


class TensorGuard:
    """Compares tensors with earlier ones: type, shape, strides, dtype, device, address and dispatch keys.

    Dispatch keys include `requires_grad`, autocast, vmap and inference mode. The check is torch.compile's
    own. Of the first `anywhere` tensors the address is not compared.

    >>> x = torch.ones(2, 3)
    >>> guard = TensorGuard([x])
    >>> guard.holds([x]), guard.holds([x.clone()]), guard.holds([None])
    (True, False, False)
    """

    def __init__(self, tensors: Sequence[Tensor], anywhere: int = 0):
        self.check, self.anywhere = tensor_check(tensors), anywhere
        self.addresses = [t.data_ptr() for t in tensors[anywhere:]]

    def holds(self, tensors: Sequence[Any]) -> bool:
        """Return whether `tensors`, of the same number as before, match the earlier ones."""
        return self.check(*tensors) and [*map(_data_ptr, tensors[self.anywhere :])] == self.addresses


class LookGuard:
    """Like `TensorGuard`, for plain tensors, without comparing strides and addresses.

    >>> guard = LookGuard([torch.ones(2, 3)])
    >>> guard.holds([torch.zeros(3, 2).T]), guard.holds([torch.ones(3, 3)]), guard.holds([None])
    (True, False, False)
    """

    def __init__(self, tensors: Sequence[Tensor]):
        self.check = tensor_check(tensors, any_strides=True)

    def holds(self, tensors: Sequence[Any]) -> bool:
        """Return whether `tensors`, of the same number as before, match the earlier ones."""
        for tensor in tensors:
            if type(tensor) is not Tensor or tensor.is_nested:  # the C++ check rejects nested tensors
                return False
        return self.check(*tensors)


class TableGuard:
    """Detects writes to dictionaries by their versions.

    Fast check: True is certain; False means that something was written, perhaps an equal value.

    >>> table = {"a": 1}
    >>> guard = TableGuard([table])
    >>> guard.holds(), table.update(a=2), guard.holds()
    (True, None, False)
    """

    def __init__(self, tables: Sequence[dict[str, Any]]):
        self.tables = tables
        self.remember()

    def remember(self) -> None:
        """Record the current versions."""
        self.versions = versions(self.tables)

    def holds(self) -> bool:
        """Return whether none of the dictionaries was written to since."""
        return versions(self.tables) == self.versions


def versions(tables: Iterable[dict[str, Any]]) -> list[Any]:
    """Return the version of each dictionary."""
    return [*map(dict_version, tables)]


def tensor_check(tensors: Sequence[Tensor], any_strides: bool = False) -> Callable[..., bool]:
    """Return a function that takes as many tensors and returns whether they match `tensors`, at any address.

    Positions that held the same tensor must hold the same tensor again. Nested tensors are not supported.

    >>> x = torch.ones(2)
    >>> check = tensor_check([x, x])
    >>> check(x, x), check(x, x.clone())
    (True, False)
    """
    firsts: dict[int, int] = {}
    pattern = [firsts.setdefault(id(t), place) for place, t in enumerate(tensors)]
    different = [tensors[place] for place in firsts.values()]
    shapes: Any = [list(t.shape) for t in different]
    strides: Any = [[None] * t.dim() if any_strides else list(t.stride()) for t in different]
    guards = torch._C._dynamo.guards.TensorGuards
    check = guards(*different, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides).check
    if len(different) == len(tensors):
        return check
    # The C++ guard does not accept the same tensor twice, as in `step(ids, ids)`.
    places = list(firsts.values())
    doubles = [(place, first) for place, first in enumerate(pattern) if place != first]

    def check_each_once(*given: Any) -> bool:
        return all(given[i] is given[j] for i, j in doubles) and check(*[given[i] for i in places])

    return check_each_once
