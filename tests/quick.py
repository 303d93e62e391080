"""`make quick`: a few tests of every file, the same ones each time. `make test` runs all."""

import os
from collections import defaultdict
from typing import Any

QUICK = bool(os.environ.get("QUICK"))
FROM_EACH_FILE = 2
# Files and folders whose tests take seconds each: they start processes, train, or compile. Their rooms have
# quicker files, which stay.
LEFT_OUT = tuple(
    f"tests/{name}"
    for name in (
        *("adapters/test_families", "adapters/test_generation", "adapters/test_lane_batches"),
        *("adapters/test_over_workers", "benchmark/test_runner", "databases", "docs"),
        *("life/test_wider_lives", "observe/test_observe", "signals/test_common_ops"),
        *("signals/test_compile", "signals/test_failures", "signals/test_fuzz", "signals/test_growing"),
        *("signals/test_hooks", "signals/test_in_process", "signals/test_soak", "test_examples"),
        *("test_properties", "training/test_resume", "workers/test_ray"),
    )
)


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
