"""All samples of the databases: `PYTHONPATH=src:tests python -m databases.report --help`.

Prints the counts by way and every WRONG or ERROR row; the exit code says whether there was one.
"""

import argparse
import collections
import json
import sys
import time
from collections.abc import Iterator

import torch

from . import on_workers
from .harness import LANES, Outcome, cases, run
from .samples import entries


def outcomes(
    shard: int = 0,
    shards: int = 1,
    most: int = 4,
    only: str = "",
    seconds: int = 60,
    dtype: torch.dtype | None = None,
    workers: bool = False,
) -> Iterator[Outcome]:
    """Run the entries of one shard, `most` samples of each: as lanes, or with tensors on workers."""
    for entry in entries(dtype):
        if not entry.in_shard(shard, shards) or (only and entry.name not in only.split(",")):
            continue
        try:
            samples = entry.make(LANES, most)
        except Exception as error:  # the database's own generator fails on this machine
            yield Outcome(entry.name, "skip", f"no samples: {type(error).__name__}: {error}")
            continue
        for sample in samples:
            if workers:
                yield from on_workers.outcomes_of(sample, seconds)
            else:
                yield from (run(case, seconds) for case in cases(sample))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shard", default="0/1", help="which of how many shards, e.g. 0/8")
    parser.add_argument("--only", default="", help="names of entries, separated by commas")
    parser.add_argument("--most", type=int, default=4, help="samples of an entry")
    parser.add_argument("--seconds", type=int, default=60, help="time limit of a sample")
    parser.add_argument("--dtype", default="", help="e.g. complex128; by default float64, else another")
    parser.add_argument("--rows", default="", help="write every outcome to this file, one JSON object a line")
    parser.add_argument("--workers", action="store_true", help="tensors on two and three workers, not lanes")
    parser.add_argument("--verbose", action="store_true", help="print every outcome")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shard, shards = map(int, options.shard.split("/"))
    counts: collections.Counter[str] = collections.Counter()
    start, bad = time.perf_counter(), 0
    with open(options.rows or "/dev/null", "w") as rows:
        dtype = getattr(torch, options.dtype) if options.dtype else None
        for outcome in outcomes(
            shard, shards, options.most, options.only, options.seconds, dtype, options.workers
        ):
            counts[outcome.kind] += 1
            rows.write(json.dumps(vars(outcome)) + "\n")
            rows.flush()
            bad += outcome.bad
            if outcome.bad or options.verbose:
                print(
                    f"{outcome.kind:10} {outcome.sample}: {outcome.detail or outcome.reason}"[:400],
                    flush=True,
                )
    print(
        f"{sum(counts.values())} samples in {time.perf_counter() - start:.0f} s:", dict(counts.most_common())
    )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
