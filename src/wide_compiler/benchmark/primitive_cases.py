"""A workload for every primitive: a member, an input, and the strategies to measure."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..primitives import PRIMITIVES, WideModule
from .workload import Call, InputMaker, Workload, floats, plain_call, token_ids

# On a CPU these fall back to another strategy, which is measured under its own name.
CUDA_ONLY = frozenset({"tensor_core", "implicit_gemm", "implicit_forward", "streams", "persistent"})
SWEEP = (1, 2, 4, 8, 16, 32, 64, 128)
FEW = (2, 8, 32)


@dataclass(frozen=True)
class _Member:
    """Constructor arguments, input and call of the member of one primitive."""

    args: tuple[Any, ...]
    inputs: InputMaker
    batch: int = 8
    options: tuple[tuple[str, Any], ...] = ()
    call: Call = plain_call
    random: bool = False


def _attend(module: nn.Module, x: Tensor) -> Tensor:
    return module(x, x, x, need_weights=False)[0]


def _recurrent() -> _Member:
    first = (("batch_first", True),)
    return _Member((32, 64), floats(16, 32), options=first, call=lambda module, x: module(x)[0])


def _conv(channels: int, *space: int) -> _Member:
    return _Member((channels, channels, 3), floats(channels, *space), options=(("padding", 1),))


def _norm(channels: int, *space: int) -> _Member:
    return _Member((channels,), floats(channels, *space))


def _affine(channels: int, *space: int) -> _Member:
    return _Member((channels,), floats(channels, *space), options=(("affine", True),))


_MEMBERS: dict[str, _Member] = {
    "linear": _Member((128, 128), floats(128), batch=32),
    "conv1d": _conv(32, 64),
    "conv2d": _conv(32, 16, 16),
    "conv3d": _conv(8, 8, 8, 8),
    "convtranspose1d": _conv(32, 64),
    "convtranspose2d": _conv(32, 16, 16),
    "convtranspose3d": _conv(8, 8, 8, 8),
    "batchnorm1d": _Member((128,), floats(128), batch=32),
    "batchnorm2d": _norm(32, 16, 16),
    "batchnorm3d": _norm(8, 8, 8, 8),
    "layernorm": _Member((128,), floats(128), batch=32),
    "groupnorm": _Member((8, 32), floats(32, 16, 16)),
    "instancenorm1d": _affine(32, 64),
    "instancenorm2d": _affine(32, 16, 16),
    "instancenorm3d": _affine(8, 8, 8, 8),
    "rmsnorm": _Member((128,), floats(128), batch=32),
    "embedding": _Member((1000, 64), token_ids(1000, 32)),
    "embeddingbag": _Member((1000, 64), token_ids(1000, 16), batch=32),
    "attention": _Member((128, 4), floats(32, 128), batch=4, options=(("batch_first", True),), call=_attend),
    "lstm": _recurrent(),
    "gru": _recurrent(),
    "rnn": _recurrent(),
    "dropout": _Member((0.5,), floats(128), batch=32, random=True),
    "prelu": _norm(32, 16, 16),
}


def name_of(primitive: type[WideModule]) -> str:
    """Return the command-line name of a primitive: `conv2d` for `WideConv2d`."""
    return primitive.__name__.removeprefix("Wide").lower()


def member_class(primitive: type[WideModule]) -> type[nn.Module]:
    kinds = primitive.MEMBER
    return kinds[0] if isinstance(kinds, tuple) else kinds


def strategies_on(primitive: type[WideModule], device: torch.device) -> list[str]:
    """Return the strategies available on a device."""
    return [s for s in primitive.STRATEGIES if device.type == "cuda" or s not in CUDA_ONLY]


def _workload(primitive: type[WideModule]) -> Workload:
    name = name_of(primitive)
    member, kind = _MEMBERS[name], member_class(primitive)
    shape = "x".join(map(str, member.inputs(member.batch, torch.device("meta")).shape))
    arguments = ", ".join([*map(str, member.args), *(f"{key}={value}" for key, value in member.options)])
    return Workload(
        name=name,
        about=f"nn.{kind.__name__}({arguments}) on {shape}: {', '.join(primitive.STRATEGIES)}",
        make=lambda: kind(*member.args, **dict(member.options)),
        inputs=member.inputs,
        n=32,
        batch=member.batch,
        sweep=SWEEP,
        few=FEW,
        primitive=primitive,
        call=member.call,
        random=member.random,
    )


PRIMITIVE_CASES: dict[str, Workload] = {name_of(p): _workload(p) for p in PRIMITIVES if p.STRATEGIES}
