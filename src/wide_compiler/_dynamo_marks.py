"""Helpers for code that torch.compile traces, without importing torch._dynamo, which takes a second."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable)


def constant_result(fn: Function) -> Function:
    """`torch.compiler.assume_constant_result` without importing `torch._dynamo`.

    torch.compile calls `fn` while tracing and uses the result as a constant. A test checks that both set the
    same attribute.
    """
    fn._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return fn


def outside_traces(fn: Function) -> Function:
    """`torch.compiler.disable` without importing `torch._dynamo`: breaks the graph; `fn` is not traced."""
    eval_frame: Any = torch._C._dynamo.eval_frame

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        before = eval_frame.set_eval_frame(None)
        try:
            return fn(*args, **kwargs)
        finally:
            eval_frame.set_eval_frame(before)

    marks = {"_torchdynamo_disable": True, "_torchdynamo_disable_msg": None, "_torchdynamo_orig_callable": fn}
    vars(run).update(marks, _torchdynamo_disable_recursive=True)
    return run  # type: ignore[return-value]


class TracedStore:
    """Numbered objects made while torch.compile traces, when functions can only return plain values.

    Each is a separate attribute: dynamo does not see items appended to a list it has read, and would guard on
    the length of a list.
    """

    def keep(self, thing: Any) -> int:
        number = len(vars(self))
        setattr(self, f"thing_{number}", thing)
        return number

    def get(self, number: int) -> Any:
        return getattr(self, f"thing_{number}")
