"""`torch.nn` and the optimisers of `torch.optim`: `from wide_compiler.signals.nn import Linear, SGD`."""

from typing import Any

import torch.nn
import torch.optim


def __getattr__(name: str) -> Any:
    for home in (torch.nn, torch.optim):
        if hasattr(home, name):
            return getattr(home, name)
    raise AttributeError(f"neither torch.nn nor torch.optim has {name!r}")


def __dir__() -> list[str]:
    return sorted({*dir(torch.nn), *dir(torch.optim)})
