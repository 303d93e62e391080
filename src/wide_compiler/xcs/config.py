"""Config: what may be said about how a jitted function runs. Nothing has to be."""

import os
from dataclasses import dataclass
from typing import Any

from ..config import variable
from ..errors import ArgumentError, WrongTypeError

ANALYZES = ("analyze_graph", "analyze_operator")
ON, OFF = ("1", "yes", "true", "on"), ("0", "no", "false", "off")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Config:
    """Options of `jit` and `vmap`; every one has a default that needs no thought.

    Attributes:
        enabled: False runs the function as it is written.
        max_workers: how many waiting calls may overlap.
        exact: True vectorises floating point numbers only where results are equal to the last bit.
        check: compare every call of a site with plain Python and raise `Mismatch` where they differ; also set
            by the environment variable `WIDE_COMPILER_VALIDATE=1` (or yes, true, on) at the first call.
        validate: another name of `check`, the one that `wide_compiler.compile` has.
        measure: False takes the first proven way without asking the clock whether it pays: for tests.
        analyzer: a `GraphParallelismAnalyzer` or `ParallelismAnalyzer` of your own, which is asked what each
            site allows. It may forbid what is proven to be possible, not the reverse.
        selector: a `StrategySelector` of your own, which is asked for the strategy of each site.
    """

    enabled: bool = True
    max_workers: int = 32
    exact: bool = False
    check: bool = False
    measure: bool = True
    validate: bool = False
    analyzer: Any = None
    selector: Any = None

    def __post_init__(self) -> None:
        for name in ("enabled", "exact", "check", "validate", "measure"):
            given = getattr(self, name)
            if not isinstance(given, bool):  # "no" and "0" would count as true
                raise WrongTypeError(f"{name} must be True or False, got {given!r}")
        whole = isinstance(self.max_workers, int) and not isinstance(self.max_workers, bool)
        if not whole or self.max_workers < 1:
            raise ArgumentError(f"max_workers must be a positive integer, got {self.max_workers!r}")
        for name, methods in (("analyzer", ANALYZES), ("selector", ("select_strategy",))):
            given = getattr(self, name)
            if given is not None and not any(callable(getattr(given, method, None)) for method in methods):
                raise WrongTypeError(f"{name} must have a method {' or '.join(methods)}, got {given!r}")

    @property
    def checking(self) -> bool:
        """Is every call compared with plain Python? The environment is read when this is asked."""
        return self.check or self.validate or _switched_on(variable("VALIDATE"))


def _switched_on(variable: str) -> bool:
    given = os.environ.get(variable, "")
    word = given.strip().lower()
    if word and word not in (*ON, *OFF):
        raise ArgumentError(
            f"the environment variable {variable} must be one of {', '.join(ON)} to switch it on, or one of "
            f"{', '.join(OFF)} or empty to leave it off, got {given!r}"
        )
    return word in ON
