"""Templates: an op with its plain arguments, sent once and then referred to by number.

A template is `(op name, args, kwargs)`, each argument a pair `(kind, payload)`: a tensor by its position in
the instruction, a float by its position (floats change from step to step and must not create new templates),
a list, or a constant. dtypes, layouts and memory formats are sent as names.
"""

from collections.abc import Callable
from typing import Any

import torch

TENSOR, FLOAT, LIST, CONSTANT, NAMED = range(5)
# Used in a region instead of a template's number: lay out a gradient like its parameter.
SETTLE = 0
_NAMED_TYPES = (torch.dtype, torch.layout, torch.memory_format)


def constant(value: Any) -> tuple[int, Any]:
    """Return a plain argument in the form in which it is sent.

    >>> constant(torch.float32)
    (4, 'float32')
    """
    if isinstance(value, _NAMED_TYPES):
        return NAMED, str(value).removeprefix("torch.")
    return CONSTANT, value


def op_name(func: torch._ops.OpOverload) -> str:
    """Return the name of an op, such as `aten.add.Tensor`; `find_op` is the inverse."""
    return f"{func.namespace}.{func._opname}.{func._overloadname}"


def find_op(name: str) -> torch._ops.OpOverload:
    namespace, op, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), op), overload)


class Template:
    """A template on a worker; `arguments(tensors, floats)` returns the op's args and kwargs."""

    __slots__ = ("func", "make_args", "make_kwargs", "name")

    def __init__(self, name: str, args: tuple, kwargs: dict[str, tuple], device: torch.device) -> None:
        self.name = name
        self.func = find_op(name)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": (CONSTANT, device)}
        if "pin_memory" in kwargs:
            kwargs = {**kwargs, "pin_memory": (CONSTANT, False)}
        self.make_args = [_maker(a) for a in args]
        self.make_kwargs = {k: _maker(a) for k, a in kwargs.items()}

    def arguments(self, tensors: list, floats: tuple) -> tuple[tuple, dict[str, Any]]:
        args = tuple([make(tensors, floats) for make in self.make_args])
        return args, {k: make(tensors, floats) for k, make in self.make_kwargs.items()}


def _maker(argument: tuple[int, Any]) -> Callable[[list, tuple], Any]:
    kind, payload = argument
    if kind == TENSOR:
        return lambda tensors, floats: tensors[payload]
    if kind == FLOAT:
        return lambda tensors, floats: floats[payload]
    if kind == LIST:
        makers = [_maker(a) for a in payload]
        return lambda tensors, floats: [make(tensors, floats) for make in makers]
    value = getattr(torch, payload) if kind == NAMED else payload
    return lambda tensors, floats: value
