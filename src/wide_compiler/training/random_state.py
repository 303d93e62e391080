"""Saving, restoring and seeding of all random generators used in training."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ..model import WideModel


def random_state(wide: WideModel) -> dict[str, Any]:
    """Return the state of Python's, NumPy's and PyTorch's generators, and the seeds of the lanes."""
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    seeds = wide.seeds.peek()
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if cuda else [],
        "lanes": None if seeds is None else seeds.clone(),
    }


def set_random_state(wide: WideModel, state: dict[str, Any]) -> None:
    """Restore the state returned by `random_state`."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    seeds = state["lanes"]
    wide.seeds.seeds = None if seeds is None else seeds.to(wide._device())


@contextlib.contextmanager
def untouched_random_state(wide: WideModel) -> Iterator[None]:
    """Context manager that restores all generators on exit."""
    before = random_state(wide)
    try:
        yield
    finally:
        set_random_state(wide, before)


@contextlib.contextmanager
def seeded(wide: WideModel, seed: int | None) -> Iterator[None]:
    """Context manager that seeds Python's, NumPy's and PyTorch's generators, and restores them on exit.

    With `seed=None` it does nothing. Changes to the seeds of the lanes persist.
    """
    if seed is None:
        yield
        return
    with untouched_random_state(wide):
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        yield
        lanes = wide.seeds.seeds
    wide.seeds.seeds = lanes
