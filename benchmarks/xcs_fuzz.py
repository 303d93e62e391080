"""Random programs, jitted and plain: does any of them differ, and how many left the plain loop?

    python benchmarks/xcs_fuzz.py                     10,000 programs
    python benchmarks/xcs_fuzz.py --programs 1000     as in the tests
    python benchmarks/xcs_fuzz.py --seed 17 --show    one program, its text and what became of it

Exit code 1 if a program differs, or if fewer than 40% left the plain loop.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from xcs import fuzz

LEAST = 0.40


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this program")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.programs) if options.seed is None else [options.seed]
    began = time.perf_counter()
    rungs, different, left = Counter(), [], 0
    for seed in seeds:
        outcome = fuzz.run(seed)
        rungs.update(outcome.rungs)
        left += bool(outcome.rungs)
        if outcome.difference:
            different.append(seed)
            print(f"seed {seed}: {outcome.difference}\n{outcome.program.text}", flush=True)
        elif options.show:
            print(
                f"{outcome.program.text}\n{outcome.program.kind}, {outcome.program.n} items: {outcome.rungs}"
            )
    share = left / len(seeds)
    print(
        f"{len(seeds)} programs in {time.perf_counter() - began:.0f} s: "
        f"{len(different)} differ {different[:20]}"
    )
    print(f"{left} ({share:.0%}) left the plain loop: {dict(rungs)}")
    if different or (options.seed is None and share < LEAST):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
