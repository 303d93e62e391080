"""One architecture of the zoo: how to make it, and what to feed it."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

Inputs = Callable[[int], tuple[tuple, dict]]


@dataclass(frozen=True)
class Case:
    """`make()` gives a fresh, randomly initialised model; `inputs(batch)` gives (args, kwargs) for it.

    Tags: 'hf' needs transformers; 'loop' cannot be captured by torch.export and has to run as a loop;
    'random' draws random numbers in training even with dropout off; 'no_batch' the batch size is not free;
    'float32_only' does not run in float64.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Inputs
    tags: frozenset[str] = frozenset()


CASES: dict[str, Case] = {}


def zoo_case(
    name: str, inputs: Inputs, *tags: str
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Register a maker (a function or a module class that takes no arguments) under `name`."""

    def register(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        assert name not in CASES, f"two zoo cases are called {name}"
        CASES[name] = Case(name, make, inputs, frozenset(tags))
        return make

    return register
