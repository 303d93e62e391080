"""Import of optional packages."""

import importlib
from typing import Any

from ..errors import MissingExtraError


def needs(package: str, extra: str) -> Any:
    """Import and return `package`. Raise `MissingExtraError` with the pip command if it is missing."""
    top = package.partition(".")[0]
    try:
        importlib.import_module(top)
        return importlib.import_module(package)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != top:
            raise  # installed, but one of its dependencies is missing
        raise MissingExtraError(
            f"{top} is not installed: pip install 'wide_compiler[{extra}]'", name=top
        ) from missing
