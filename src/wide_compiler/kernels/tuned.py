"""Kernels with several block sizes: all are compiled at the same time, and the fastest is kept.

Import this module only if `_triton.available()`: it needs triton.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import triton

from ._triton import briefly, interpreting

Prune = Callable[..., list[triton.Config]]


def tuned(
    configs: Sequence[triton.Config], key: Sequence[str], prune: Prune, **options: Any
) -> Callable[[Any], Any]:
    """Return a decorator like `triton.autotune`, which compiles one config after another.

    Args:
        prune: takes the configs, the positional arguments by name, and the keyword arguments; returns the
            configs to time.
    """

    def decorate(kernel: Any) -> Any:
        def compiled(
            configs: list[triton.Config], named: dict[str, Any], **given: Any
        ) -> list[triton.Config]:
            kept = prune(configs, named, **given)
            compile_together(kernel, kept, named, given)
            return kept

        options.update(prune_configs_by={"early_config_prune": compiled}, do_bench=briefly)
        return triton.autotune(list(configs), list(key), **options)(kernel)

    return decorate


def compile_together(
    kernel: Any, configs: list[triton.Config], named: dict[str, Any], given: dict[str, Any]
) -> None:
    """Compile a kernel's configs in threads, for a call with these arguments, without launching it.

    Errors are left to the autotuner, which compiles what is missing, and reports or skips it.
    """
    try:
        from triton.runtime._async_compile import AsyncCompileMode, active_mode
    except ImportError:  # before triton 3.5
        return
    if len(configs) < 2 or interpreting() or active_mode.get() is not None:
        return
    try:
        with (
            suppress(Exception),
            ThreadPoolExecutor(min(len(configs), os.cpu_count() or 1)) as pool,
            AsyncCompileMode(pool, ignore_errors=True),
        ):
            for config in configs:
                kernel.run(*named.values(), **{**given, **config.all_kwargs(), "warmup": True})
    finally:
        active_mode.set(None)  # triton leaves it set after an error
