"""WideConfig: how a wide model is built and run, and the four presets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .errors import ArgumentError

COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class _DebugField:
    """`WideConfig.debug()` is a preset, `config.debug` a flag: one name, told apart by who is asked."""

    def __get__(self, config: Any, owner: type) -> Any:
        if config is None:
            return owner._debug_preset  # type: ignore[attr-defined]
        return config.__dict__["debug"]

    def __set__(self, config: Any, value: Any) -> None:
        # The dataclass passes the class attribute (the preset) where the caller gave nothing.
        config.__dict__["debug"] = False if callable(value) else bool(value)


@dataclass
class WideConfig:
    """Options of `wide_compiler.compile`.

    Attributes:
        compile: run the lane graph through `torch.compile`.
        compile_mode: its mode: 'default', 'reduce-overhead', 'max-autotune', ...
        backend: its backend, 'inductor' unless said otherwise.
        validate: compare the wide model with the loop over its members on the sample, before it is returned.
        validate_rtol: tolerance of that check, relative to the largest number of each tensor.
        validate_atol: absolute tolerance of that check.
        fallback_passthrough: run what cannot be fused (an unknown module, an op without rule) per lane and
            say so in `explain()`; if False, raise an error that names it.
        debug: print what is built.
        strategy: force a strategy instead of measuring: by name for all primitives that have it
            ('sequential'), per primitive ({'WideLinear': 'sequential'}), or 'loop', one lane after another.
        chunk_lanes: run at most so many lanes at a time, to bound memory.
        tune_seconds: how long the first call with a new shape may take to measure the ways to run it (a short
            call costs about a hundred calls); 0 takes the lane graph as it is.
    """

    compile: bool = False
    compile_mode: str = "default"
    backend: str = "inductor"
    validate: bool = False
    validate_rtol: float = 1e-3
    validate_atol: float = 1e-5
    fallback_passthrough: bool = True
    debug: bool = _DebugField()  # type: ignore[assignment]
    strategy: str | Mapping[str, str] | None = None
    chunk_lanes: int | None = None
    tune_seconds: float = 3.0

    def __post_init__(self) -> None:
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
        """Validated against the loop before it is returned."""
        return cls(validate=True)

    @classmethod
    def _debug_preset(cls) -> "WideConfig":
        """Verbose and strict: prints what is built, validates, refuses anything that is not fused."""
        return cls(validate=True, debug=True, fallback_passthrough=False)

    @classmethod
    def preset(cls, name: str) -> "WideConfig":
        """A preset by name, for command lines and configuration files."""
        presets = {"default": cls.default, "fast": cls.fast, "debug": cls._debug_preset, "safe": cls.safe}
        if name not in presets:
            raise ArgumentError(f"unknown preset {name!r}; choose one of {', '.join(presets)}")
        return presets[name]()

    def replace(self, **changes: Any) -> "WideConfig":
        return replace(self, **changes)

    @property
    def strategies(self) -> dict[str, str]:
        """The forced strategies by primitive; '*' stands for all."""
        if self.strategy is None or self.strategy == "auto":
            return {}
        return {"*": self.strategy} if isinstance(self.strategy, str) else dict(self.strategy)


def check_strategies(strategies: Mapping[str, str]) -> None:
    """Every forced strategy must exist; the error lists the choices."""
    if not strategies:
        return
    from .primitives import PRIMITIVES  # here, so that a plain config needs no torch

    known = {p.__name__: p.STRATEGIES for p in PRIMITIVES}
    for primitive, strategy in strategies.items():
        if primitive != "*" and primitive not in known:
            raise ArgumentError(f"unknown primitive {primitive!r}; choose one of {', '.join(known)}")
        all_of_them = sorted({s for choices in known.values() for s in choices} | {"loop"})
        choices = all_of_them if primitive == "*" else known[primitive]
        if strategy not in choices:
            whose = "" if primitive == "*" else f" of {primitive}"
            raise ArgumentError(f"unknown strategy {strategy!r}{whose}; choose one of {', '.join(choices)}")
