"""Config: the options of `jit` and `vmap`, all optional."""

import os
from dataclasses import dataclass
from typing import Any

from ..config import variable
from ..errors import ArgumentError, WrongTypeError

ANALYZES = ("analyze_graph", "analyze_operator")
ON, OFF = ("1", "yes", "true", "on"), ("0", "no", "false", "off")


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Config:
    """Options of `jit` and `vmap`.

    Attributes:
        enabled: False runs the function unchanged.
        max_workers: maximum number of overlapping waiting calls.
        exact: True vectorises floating point operations only where the results are bit-identical.
        check: compare every call of a site with plain Python and raise `Mismatch` on a difference. Also
            enabled by `WIDE_COMPILER_VALIDATE=1` in the environment, read at the first call.
        validate: alias of `check`, named as in `wide_compiler.compile`.
        measure: False uses the first proven rung without timing; for tests.
        analyzer: a custom `GraphParallelismAnalyzer` or `ParallelismAnalyzer`, called for each site. It may
            forbid what is proven to be safe, but cannot allow more.
        selector: a custom `StrategySelector`, called for the strategy of each site.
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
            if not isinstance(given, bool):  # strings such as "no" and "0" would be truthy
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
        """True if every call is compared with plain Python. Reads the environment at each access."""
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
