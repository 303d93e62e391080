"""Runs one script on many workers with the values of one process: `import wide_compiler.signals as gt`."""

from torch import manual_seed

from ..workers.worker_errors import ClusterError, NoWorkers, WorkerDied, WorkerFailed, WorkerHung
from . import debug, lanes_over_workers, modules, nn, observing
from . import scope as signal
from .checkpoint_restart import checkpoint, restart
from .creation import (
    arange,
    empty,
    eye,
    from_numpy,
    full,
    linspace,
    ones,
    rand,
    randint,
    randn,
    randperm,
    tensor,
    zeros,
)
from .modules import adopt
from .runtime import cpu_workers, gpu_workers, ray_workers, shutdown
from .signal_config import ShardConfig, SignalConfig, clear_configs, load_config, register_config
from .steps import step
from .tensor import SignalTensor

__all__ = [
    "ClusterError",
    "NoWorkers",
    "ShardConfig",
    "SignalConfig",
    "SignalTensor",
    "WorkerDied",
    "WorkerFailed",
    "WorkerHung",
    "adopt",
    "arange",
    "checkpoint",
    "clear_configs",
    "cpu_workers",
    "debug",
    "empty",
    "eye",
    "from_numpy",
    "full",
    "gpu_workers",
    "lanes_over_workers",
    "linspace",
    "load_config",
    "manual_seed",
    "modules",
    "nn",
    "observing",
    "ones",
    "rand",
    "randint",
    "randn",
    "randperm",
    "ray_workers",
    "register_config",
    "restart",
    "shutdown",
    "signal",
    "step",
    "tensor",
    "zeros",
]
