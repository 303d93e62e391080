"""State of the script that is sent to its workers, and how.

- Settings (`SETTINGS`): read before every instruction, and sent ahead of it if one has changed.
- Random numbers: every draw carries a seed from the script's generator, or from the generator passed to it.
  `torch.manual_seed`, `get_rng_state`, `set_rng_state`, `fork_rng` and recomputed regions therefore work.
- Grad mode, inference mode and autocast are not sent: they act in the script, above the ops that workers run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

_C: Any = torch._C
_PRECISIONS = (("cuda", "matmul"), ("cuda", "conv"), ("mkldnn", "matmul"), ("mkldnn", "conv"))

# Each setting with its getter and setter.
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "deterministic algorithms": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "filled memory": (
        _C._get_deterministic_fill_uninitialized_memory,
        _C._set_deterministic_fill_uninitialized_memory,
    ),
    "cudnn benchmark": (_C._get_cudnn_benchmark, _C._set_cudnn_benchmark),
    "cudnn deterministic": (_C._get_cudnn_deterministic, _C._set_cudnn_deterministic),
    **{
        f"precision of {library} {op}": (
            partial(_C._get_fp32_precision_getter, library, op),
            partial(_C._set_fp32_precision_setter, library, op),
        )
        for library, op in _PRECISIONS
    },
}
_READERS = [read for read, _ in SETTINGS.values()]


def settings() -> tuple:
    """Return the current values of `SETTINGS`."""
    return tuple([read() for read in _READERS])


def follow(values: tuple) -> None:
    """Apply values that `settings()` returned in another process."""
    for value, (read, write) in zip(values, SETTINGS.values(), strict=True):
        if read() != value:
            write(value)


def draw_seed(generator: torch.Generator | None = None) -> int:
    """Return a seed for one draw on the workers: the next number of `generator`, by default the script's."""
    device = "cpu" if generator is None else generator.device
    with _C._DisableTorchDispatch():
        return int(torch.empty((), dtype=torch.int64, device=device).random_(generator=generator))
