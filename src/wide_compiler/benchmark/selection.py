"""Look up workloads by their command-line names."""

import re

from ..errors import UnknownNameError
from .primitive_cases import PRIMITIVE_CASES
from .workload import Workload
from .workloads import MODELS


def families() -> dict[str, list[str]]:
    """Families of primitives: `batchnorm` -> `batchnorm1d`, `batchnorm2d`, `batchnorm3d`."""
    found: dict[str, list[str]] = {}
    for name in PRIMITIVE_CASES:
        if family := re.fullmatch(r"(.*)\dd", name):
            found.setdefault(family[1], []).append(name)
    return found


def choices() -> list[str]:
    """Return every name that `find` accepts."""
    return list(dict.fromkeys(["all", "models", *PRIMITIVE_CASES, *families(), *MODELS]))


def find(name: str) -> list[Workload]:
    """Return the workloads of a name; raises `UnknownNameError` if there are none.

    `all` is every primitive, `models` every model. A name that a primitive and a model share (lstm, gru)
    selects both; `primitive:lstm` and `model:lstm` select one of them.
    """
    kind, _, bare = name.rpartition(":")
    if name == "all":
        return list(PRIMITIVE_CASES.values())
    if name == "models":
        return list(MODELS.values())
    found = [PRIMITIVE_CASES[each] for each in families().get(bare, [])]
    found += [table[bare] for table in (PRIMITIVE_CASES, MODELS) if bare in table]
    found = [workload for workload in found if kind in ("", workload.kind)]
    if not found:
        raise UnknownNameError(name)
    return found
