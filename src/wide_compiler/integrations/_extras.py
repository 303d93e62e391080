"""Packages that only an extra installs."""

import importlib
from typing import Any

from ..errors import MissingExtraError


def needs(package: str, extra: str) -> Any:
    """The package, or an error that says how to get it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != package:
            raise  # it is there, but something that it needs is not
        raise MissingExtraError(
            f"{package} is not installed: pip install 'wide_compiler[{extra}]'", name=package
        ) from missing
