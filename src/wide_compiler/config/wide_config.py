"""WideConfig: how a wide model is built and run, and its presets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ArgumentError

COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass
class WideConfig:
    """Options of `wide_compiler.compile`.

    Attributes:
        compile: run the lane graph through `torch.compile`.
        compile_mode: the mode of `torch.compile`: 'default', 'reduce-overhead', 'max-autotune', ...
        backend: the backend of `torch.compile`.
        validate: compare the wide model with the loop over its members on the sample, before it is returned.
        validate_rtol: tolerance of that comparison, relative to the largest value of each tensor.
        validate_atol: absolute tolerance of that comparison.
        fallback_passthrough: run what cannot be fused (an unknown module, an op without rule) lane by lane
            and report it in `explain()`; if False, raise an error that names it.
        verbose: print a summary of the wide model; `debug=True` is the same.
        strategy: force a strategy instead of measuring: one name for all primitives that have it
            ('sequential'), a dict by primitive ({'WideLinear': 'sequential'}), or 'loop', lane by lane.
        chunk_lanes: run at most this many lanes at a time, to bound memory.
        tune_seconds: time limit for measuring the candidates at the first call with a new shape (for short
            calls it takes about a hundred calls). 0, or `measure=False`, measures nothing and runs the lane
            graph.
    """

    compile: bool
    compile_mode: str
    backend: str
    validate: bool
    validate_rtol: float
    validate_atol: float
    fallback_passthrough: bool
    verbose: bool
    strategy: str | Mapping[str, str] | None
    chunk_lanes: int | None
    tune_seconds: float

    def __init__(
        self,
        compile: bool = False,
        compile_mode: str = "default",
        backend: str = "inductor",
        validate: bool = False,
        validate_rtol: float = 1e-3,
        validate_atol: float = 1e-5,
        fallback_passthrough: bool = True,
        verbose: bool = False,
        strategy: str | Mapping[str, str] | None = None,
        chunk_lanes: int | None = None,
        tune_seconds: float = 3.0,
        *,
        debug: bool | None = None,
        measure: bool | None = None,
    ) -> None:
        if measure not in (None, True, False):
            raise ArgumentError(f"measure must be True or False, got {measure!r}")
        self.compile, self.compile_mode, self.backend = compile, compile_mode, backend
        self.validate, self.validate_rtol, self.validate_atol = validate, validate_rtol, validate_atol
        self.fallback_passthrough, self.strategy, self.chunk_lanes = (
            fallback_passthrough,
            strategy,
            chunk_lanes,
        )
        self.verbose = verbose if debug is None else bool(debug)
        self.tune_seconds = 0.0 if measure is False else tune_seconds
        self._check()

    def _check(self) -> None:
        if self.compile_mode not in COMPILE_MODES:
            raise ArgumentError(
                f"unknown compile_mode {self.compile_mode!r}; choose one of {', '.join(COMPILE_MODES)}"
            )
        whole = isinstance(self.chunk_lanes, int) and not isinstance(self.chunk_lanes, bool)
        if self.chunk_lanes is not None and (not whole or self.chunk_lanes < 1):
            raise ArgumentError(f"chunk_lanes must be a positive integer or None, got {self.chunk_lanes!r}")
        for name in ("validate_rtol", "validate_atol", "tune_seconds"):
            if not getattr(self, name) >= 0:
                raise ArgumentError(f"{name} must not be negative, got {getattr(self, name)!r}")
        check_strategies(self.strategies)

    @classmethod
    def default(cls) -> "WideConfig":
        """Eager, no validation."""
        return cls()

    @classmethod
    def fast(cls) -> "WideConfig":
        """Through `torch.compile`, no validation."""
        return cls(compile=True)

    @classmethod
    def safe(cls) -> "WideConfig":
        """Eager, validated against the loop."""
        return cls(validate=True)

    @classmethod
    def debug(cls) -> "WideConfig":
        """Verbose and strict: prints a summary, validates, raises for anything that is not fused."""
        return cls(validate=True, verbose=True, fallback_passthrough=False)

    @classmethod
    def preset(cls, name: str) -> "WideConfig":
        """Return a preset by name, for command lines and configuration files."""
        presets = {"default": cls.default, "fast": cls.fast, "debug": cls.debug, "safe": cls.safe}
        if name not in presets:
            raise ArgumentError(f"unknown preset {name!r}; choose one of {', '.join(presets)}")
        return presets[name]()

    @property
    def measure(self) -> bool:
        """Whether the first call with a new shape measures the candidates."""
        return self.tune_seconds > 0

    def replace(self, **changes: Any) -> "WideConfig":
        return replace(self, **changes)

    @property
    def strategies(self) -> dict[str, str]:
        """The forced strategies by primitive; '*' means all primitives."""
        if self.strategy is None or self.strategy == "auto":
            return {}
        return {"*": self.strategy} if isinstance(self.strategy, str) else dict(self.strategy)


def check_strategies(strategies: Mapping[str, str]) -> None:
    """Raise `ArgumentError` for an unknown primitive or strategy."""
    if not strategies:
        return
    from ..primitives import PRIMITIVES  # imported late: it imports torch

    known = {p.__name__: p.STRATEGIES for p in PRIMITIVES}
    for primitive, strategy in strategies.items():
        if primitive != "*" and primitive not in known:
            raise ArgumentError(f"unknown primitive {primitive!r}; choose one of {', '.join(known)}")
        all_of_them = sorted({s for choices in known.values() for s in choices} | {"loop"})
        choices = all_of_them if primitive == "*" else known[primitive]
        if strategy not in choices:
            whose = "" if primitive == "*" else f" of {primitive}"
            raise ArgumentError(f"unknown strategy {strategy!r}{whose}; choose one of {', '.join(choices)}")
