"""Packages that only an extra installs."""

import importlib
from typing import Any

from ..errors import MissingExtraError


def needs(package: str, extra: str) -> Any:
    """The package, or an error that says how to get it."""
    top = package.partition(".")[0]
    try:
        importlib.import_module(top)
        return importlib.import_module(package)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != top:
            raise  # it is there, but something that it needs is not
        raise MissingExtraError(
            f"{top} is not installed: pip install 'wide_compiler[{extra}]'", name=top
        ) from missing
