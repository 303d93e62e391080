"""`make quick`: a few tests of every file, the same ones each time. `make test` runs all."""

import os
from collections import defaultdict
from typing import Any

QUICK = bool(os.environ.get("QUICK"))
FROM_EACH_FILE = 2
# Files whose tests take seconds each: they start processes, train, or compile. The rooms they belong to have
# quicker files that stay.
LEFT_OUT = ("tests/test_examples.py",)


def some_of_each_file(items: list[Any]) -> tuple[list[Any], list[Any]]:
    """(kept, left out) of collected tests: from each file the first and others spread evenly over it."""
    by_file: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        by_file[item.nodeid.partition("::")[0]].append(item)
    kept: set[str] = set()
    for path, tests in by_file.items():
        if not path.startswith(LEFT_OUT):
            step = -(-len(tests) // FROM_EACH_FILE)
            kept |= {test.nodeid for test in tests[::step]}
    return [i for i in items if i.nodeid in kept], [i for i in items if i.nodeid not in kept]
