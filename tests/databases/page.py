"""Write docs/databases.md from rows that `databases.report --rows` has written.

PYTHONPATH=src:tests python -m databases.report --most 1 --rows float64.jsonl
PYTHONPATH=src:tests python -m databases.page float64=float64.jsonl bfloat16=bfloat16.jsonl
"""

import collections
import json
import sys
from pathlib import Path
from typing import Any

import torch

from .harness import WAYS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "databases.md"
KINDS = (*WAYS, "refused", "skip", "WRONG", "ERROR", "HANG")
HEAD = """# PyTorch's own databases of operators and modules

PyTorch tests itself with a list of its operators (`op_db`) and one of its modules (`module_db`), with
sample inputs for each. Here every sample becomes three lanes with numbers of their own. Modules are taken
in evaluation and in training; functions also in their in-place form, with their tensors as parameters,
inputs or buffers. They run through `each` and `shared`, and outputs, gradients and buffers are compared
with those of the members, each alone. `PYTHONPATH=src:tests python -m databases.report` does that;
`databases.page` makes this page. torch {torch}.

The columns go from best to worst: all by rules of the library; with `vmap` of an op; with a loop over
lanes for an op; the whole model as a loop. Refused is an error that says why; skipped is where the member
itself fails. Of the two doors the worse counts.

"""


def page(by_dtype: dict[str, list[dict[str, Any]]]) -> str:
    text = HEAD.format(torch=torch.__version__)
    text += "| dtype | samples | " + " | ".join(KINDS) + " |\n" + "| --- " * (len(KINDS) + 2) + "|\n"
    for dtype, rows in by_dtype.items():
        counts = collections.Counter(row["kind"] for row in rows)
        text += f"| {dtype} | {len(rows)} | " + " | ".join(str(counts[kind]) for kind in KINDS) + " |\n"
    for kind in ("WRONG", "ERROR", "HANG", "whole loop", "node loop", "refused"):
        found: dict[tuple[str, str], list[str]] = {}
        for dtype, rows in by_dtype.items():
            for row in rows:
                if row["kind"] == kind:
                    entry, why = (
                        row["sample"].split(" #")[0],
                        " ".join((row["reason"] or row["detail"]).split()),
                    )
                    found.setdefault((entry, why.replace("|", "\\|")[:160]), []).append(dtype)
        if found:
            text += f"\n## {kind.capitalize()}\n\n| entry | samples | why |\n| --- | --- | --- |\n"
            for (entry, why), dtypes in found.items():
                counts = collections.Counter(dtypes)
                samples = ", ".join(f"{count} {dtype}" for dtype, count in counts.items())
                text += f"| {entry} | {samples} | {why} |\n"
    return text


def main() -> None:
    by_dtype: dict[str, list[dict[str, Any]]] = {}
    for given in sys.argv[1:]:
        dtype, _, files = given.partition("=")
        lines = [line for file in files.split(",") for line in Path(file).read_text().splitlines()]
        by_dtype[dtype] = [json.loads(line) for line in lines]
    PAGE.write_text(page(by_dtype))


if __name__ == "__main__":
    main()
