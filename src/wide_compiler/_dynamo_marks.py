"""Marks for torch.compile that do not import torch.compile: that takes a second."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable)


def constant_result(fn: Function) -> Function:
    """`torch.compiler.assume_constant_result` without its import of `torch._dynamo`.

    torch.compile calls `fn` while it traces and takes the result as a constant. Both set the same attribute;
    a test holds them against each other.
    """
    fn._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return fn


def outside_traces(fn: Function) -> Function:
    """`torch.compiler.disable` without its import of `torch._dynamo`: a trace breaks here, and nothing that
    `fn` runs is traced."""
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
