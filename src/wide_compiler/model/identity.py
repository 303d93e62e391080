"""What a tuning answer depends on, as a key for the store."""

import os
from typing import Any

import torch
from torch import Tensor

from ..kernels import precision
from ..version import __version__


def identity(chooser: Any) -> tuple[Any, ...]:
    tensors = [
        (tuple(a.shape), str(a.dtype), str(a.device.type), a.requires_grad)
        for a in chooser.arguments
        if isinstance(a, Tensor)
    ]
    config = chooser.config
    return (
        __version__,
        torch.__version__,
        _device(chooser.cuda),
        chooser.graph.code,
        tensors,
        chooser.n,
        chooser.gradients,
        (config.compile, config.compile_mode, config.backend) if config.compile else False,
        sorted(config.strategies.items()),
    )


def _device(cuda: bool) -> tuple[Any, ...]:
    if cuda:
        return torch.cuda.get_device_name(), torch.version.cuda, precision("matmul"), precision("conv")
    return torch.backends.cpu.get_cpu_capability(), os.cpu_count(), torch.get_num_threads()
