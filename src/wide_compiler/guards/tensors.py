"""Are these tensors, or dictionaries, the ones that were there before? Asked in C++, because asked often."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .dict_versions import dict_version

_data_ptr = Tensor.data_ptr


class TensorGuard:
    """Type, shape, strides, dtype, device, address and what dispatch depends on (gradients, autocast, vmap,
    inference mode, ...) of several tensors, compared in C++: the guards that torch.compile uses itself.

    Args:
        anywhere: of so many tensors, the first ones, the address does not matter.

    >>> x = torch.ones(2, 3)
    >>> guard = TensorGuard([x])
    >>> guard.holds([x]), guard.holds([x.clone()]), guard.holds([None])
    (True, False, False)
    """

    def __init__(self, tensors: Sequence[Tensor], anywhere: int = 0):
        self.check, self.anywhere = tensor_check(tensors), anywhere
        self.addresses = [t.data_ptr() for t in tensors[anywhere:]]

    def holds(self, tensors: Sequence[Any]) -> bool:
        """Whether these, as many as there were, are as those were."""
        return self.check(*tensors) and [*map(_data_ptr, tensors[self.anywhere :])] == self.addresses


class LookGuard:
    """The same for plain tensors of any strides at any address: whether they look as those did.

    >>> guard = LookGuard([torch.ones(2, 3)])
    >>> guard.holds([torch.zeros(3, 2).T]), guard.holds([torch.ones(3, 3)]), guard.holds([None])
    (True, False, False)
    """

    def __init__(self, tensors: Sequence[Tensor]):
        self.check = tensor_check(tensors, any_strides=True)

    def holds(self, tensors: Sequence[Any]) -> bool:
        """Whether these, as many as there were, look as those did."""
        for tensor in tensors:
            if type(tensor) is not Tensor or tensor.is_nested:  # the check cannot look at a nested tensor
                return False
        return self.check(*tensors)


class TableGuard:
    """Dictionaries that nobody has written to: Python counts what happens to each.

    A true answer is certain. Of a false one the reason may be a value set to what it was.

    >>> table = {"a": 1}
    >>> guard = TableGuard([table])
    >>> guard.holds(), table.update(a=2), guard.holds()
    (True, None, False)
    """

    def __init__(self, tables: Sequence[dict[str, Any]]):
        self.tables = tables
        self.remember()

    def remember(self) -> None:
        """Take the tables as they are now."""
        self.versions = versions(self.tables)

    def holds(self) -> bool:
        """Whether nobody has written to them since."""
        return versions(self.tables) == self.versions


def versions(tables: Iterable[dict[str, Any]]) -> list[Any]:
    """The version of each dictionary."""
    return [*map(dict_version, tables)]


def tensor_check(tensors: Sequence[Tensor], any_strides: bool = False) -> Callable[..., bool]:
    """A function of as many tensors: whether they look as these do, wherever they lie. None may be nested.

    Two places that held one tensor must hold one again.

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
    # It takes no tensor twice, as in `step(ids, ids)`.
    places = list(firsts.values())
    doubles = [(place, first) for place, first in enumerate(pattern) if place != first]

    def check_each_once(*given: Any) -> bool:
        return all(given[i] is given[j] for i, j in doubles) and check(*[given[i] for i in places])

    return check_each_once
