"""Large tensors between processes of one machine go through a file in shared memory, not the socket."""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_LARGE = 1 << 20


def make_folder() -> str:
    """Create a folder in shared memory for one run, accessible to this user only."""
    return tempfile.mkdtemp(prefix="wide_put_", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


def write_payload(x: Tensor, folder: str | None) -> Any:
    """Return a CPU tensor as bytes, or as the name of a file in `folder` that the reader deletes."""
    flat = x.detach().resolve_conj().resolve_neg().reshape(-1)
    if flat.numel() and flat.stride(0) != 1:
        flat = flat.clone(memory_format=torch.contiguous_format)
    raw = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    shape = tuple(x.shape)
    if folder is None or raw.nbytes < _LARGE:
        return "bytes", shape, raw.tobytes()
    handle, name = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "wb") as file:
        raw.tofile(file)
    return "file", shape, name


def read_payload(payload: Any, dtype: torch.dtype) -> Tensor:
    kind, shape, content = payload
    if kind == "file":
        raw = np.fromfile(content, np.uint8)
        os.unlink(content)
    else:
        raw = np.frombuffer(content, np.uint8).copy()
    if not raw.size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(raw).view(dtype).reshape(shape)
