"""Assertions about values: they fire if any lane violates them."""

from typing import Any

import torch

from ..widen.builder import Builder, Val
from ..widen.rules import ops, rule

aten = torch.ops.aten


@rule(*ops("_assert_async"))
def assert_async(b: Builder, x: Val, *message: str) -> Val:
    every_lane = b.call(torch.all, x, wide=False)
    op = aten._assert_async.msg if message else aten._assert_async.default
    return b.call(op, every_lane, *message)


@rule(*ops("_linalg_check_errors"))
def linalg_check_errors(b: Builder, info: Val, api_name: str, **_: Any) -> Val:
    return b.call(aten._linalg_check_errors.default, info, api_name, is_matrix=False)
