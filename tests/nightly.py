"""Long lists of cases: `make test` runs some of them, spread over the list; `make nightly` runs all."""

import os
from collections.abc import Iterable
from typing import Any

NIGHTLY = bool(os.environ.get("NIGHTLY"))
# Where random cases begin: by day at 0; at night where NIGHTLY_SEED says, which `make nightly` prints.
SEED = int(os.environ.get("NIGHTLY_SEED", 0)) if NIGHTLY else 0


def one_of(every: int, cases: Iterable[Any], first: int = 0) -> list[Any]:
    """Every k-th case, from number `first` on; at night all of them."""
    return list(cases) if NIGHTLY else list(cases)[first::every]


def count(by_day: int, at_night: int) -> int:
    """How many random cases."""
    return at_night if NIGHTLY else by_day
