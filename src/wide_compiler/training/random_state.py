"""Every generator that training may draw from: noted, put back, seeded for a while."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ..model import WideModel


def random_state(wide: WideModel) -> dict[str, Any]:
    """Python's, NumPy's and PyTorch's generators, and the lanes' own seeds."""
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
    """Put back what `random_state` noted."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    seeds = state["lanes"]
    wide.seeds.seeds = None if seeds is None else seeds.to(wide._device())


@contextlib.contextmanager
def untouched_random_state(wide: WideModel) -> Iterator[None]:
    """Whatever is drawn inside, outside nothing was drawn."""
    before = random_state(wide)
    try:
        yield
    finally:
        set_random_state(wide, before)


@contextlib.contextmanager
def seeded(wide: WideModel, seed: int | None) -> Iterator[None]:
    """Inside, all of Python's, NumPy's and PyTorch's draws follow from `seed`; outside nothing was drawn.

    None leaves every generator as it is. The lanes' own seeds move on either way.
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
