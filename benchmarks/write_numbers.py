"""Write the measured numbers of the README and the docs from the files in benchmarks/results.

    python benchmarks/write_numbers.py            write
    python benchmarks/write_numbers.py --check    only say which pages differ, and fail if one does

A region stands between `<!-- numbers: NAME -->` and `<!-- end -->`. Every function below gives the text of
the regions of its name.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
REGION = re.compile(r"(<!-- numbers: (\w+) -->\n)(.*?)(\n<!-- end -->)", re.DOTALL)


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def link(name: str, page: Path) -> str:
    """A link to a result file; the site does not hold these, so that its pages only name the file."""
    file = f"benchmarks/results/{name}.json"
    return f"[`{name}.json`]({file})" if page.name == "README.md" else f"`{file}`"


def span(values: list[float], digits: int = 2) -> str:
    """The smallest and the largest: `0.97 to 4.8`."""
    return f"{_short(min(values), digits)} to {_short(max(values), digits)}"


def _short(value: float, digits: int) -> str:
    return f"{value:,.0f}" if value >= 10 ** (digits - 1) else f"{value:#.{digits}g}"


def alternatives(page: Path) -> str:
    counts = {name: one["counts"] for name, one in load("zoo_cpu")["contenders"].items()}
    vmap, ours = counts["vmap"], counts["wide_compiler"]
    number = sum(vmap["eval"].values())
    trained = number - ours["train"].get("skipped", 0)
    speeds = [row["x_loop"] for row in load("never_slower_default")["rows"]]
    return table(
        ["", "what you change", "same numbers as the loop", "speed", "take it if"],
        [
            ["a Python loop", "nothing", "it is the loop", "1", "N is small or the models are large"],
            ["`torch.func.vmap`", "functional calls, stacked parameters, a functional optimiser",
             f"{vmap['eval']['right']} of {number} architectures in evaluation; in training "
             f"{vmap['train']['right']} of {trained}, {vmap['train']['wrong']} silently wrong",
             "good on a GPU; below the loop for some models", "your model is a pure function already"],
            ["JAX, equinox", "the framework: models are rewritten", "in its own arithmetic", "good",
             "you write JAX anyway, or need TPUs"],
            ["Ray, one process per model", "a script per trial", "yes",
             "one model per core or GPU share", "each model fills a GPU by itself"],
            ["PEFT, one adapter after another", "nothing", "yes", "1",
             "you train one adapter, or need a method that is not LoRA-like"],
            ["**wide_compiler**", "one line",
             f"{ours['eval']['right']} of {number} in evaluation, "
             f"{ours['train']['right']} of {trained} in training",
             f"{span(speeds)} times the loop on one CPU thread; measured on the first call, "
             "and the loop is a candidate", "you have many models or adapters of moderate size, in PyTorch"],
        ],
    )  # fmt: skip


def speed(page: Path) -> str:
    rows = load("h200_infer")["rows"] + load("h200_train")["rows"]
    peers = [row["peer_ratio"] for row in rows]
    slow = load("never_slower_default")["rows"]
    fast = [row["x_loop"] for row in load("never_slower_fast")["rows"]]
    behind = sum(row["x_loop"] < 1 for row in slow)
    adapters = load("h200_adapters")["rows"]
    against_peft = [
        adapters[f"{size}:{n}:peft"]["ms"] / adapters[f"{size}:{n}:ours"]["ms"] for size, n in SIZES
    ]
    against_graph = [
        adapters[f"{size}:{n}:graph"]["ms"] / adapters[f"{size}:{n}:ours"]["ms"] for size, n in SIZES
    ]
    return "\n".join([
        f"- One CPU thread, {len(slow)} cases from two linear layers to ResNet18, default settings: "
        f"{span([row['x_loop'] for row in slow])} times the eager loop, {behind} of them below 1 "
        f"({link('never_slower_default', page)}). With `WideConfig.fast()` {span(fast)} times the compiled "
        f"loop ({link('never_slower_fast', page)}).",
        f"- One H200, {len(rows)} workloads, `fast()`: {span([row['speedup'] for row in rows])} times the "
        f"eager loop, and {span(peers)} times the best of compiled vmap, compiled loops, CUDA graphs and JAX "
        f"({link('h200_infer', page)}, {link('h200_train', page)}).",
        f"- One H200, LoRA adapters over Llamas of 100M and 1B parameters, 2 to 32 at once: "
        f"{span(against_peft)} times PEFT models in a loop, {span(against_graph)} times the same loop "
        f"in one CUDA graph ({link('h200_adapters', page)}).",
    ])  # fmt: skip


SIZES = [(size, n) for size in ("100M", "1B") for n in (2, 8, 32)]


def adapters(page: Path) -> str:
    found = load("h200_adapters")["rows"]
    rows = []
    for size, n in SIZES:
        cells = []
        for way in ("ours", "hand", "graph", "peft"):
            row = found[f"{size}:{n}:{way}"]
            ms = f"{row['ms']:,.0f}" if row["ms"] >= 100 else f"{row['ms']:#.3g}"
            cells.append(f"{ms} ({row['tokens_per_second'] / 1000:.0f}k, {row['peak_gib']:.1f})")
        rows.append([f"{size}, {n}", *cells])
    return table(["parameters, adapters", "ours", "hand", "graph", "peft"], rows)


def population(page: Path) -> str:
    found = load("population_cpu")
    seeds, ahead = len(found["rows"]), found["ahead"]
    name = f"population-based training, a turn every {found['turn']} steps"
    return table(
        ["", f"median of {seeds} seeds", "ahead"],
        [["random search", f"{found['median']['random_search']:.4f}", f"{seeds - ahead} of {seeds}"],
         [name, f"{found['median']['population']:.4f}", f"{ahead} of {seeds}"]],
    )  # fmt: skip


CANDIDATES = {"vmap": "vmap", "vmap compiled": "vmap compiled", "wide, one setting": "wide, one setting",
              "by lane": "wide", "all by lane": "wide, all by lane",
              "by lane, TrainStep": "wide, TrainStep"}  # fmt: skip


def training_cpu(page: Path) -> str:
    return _training("training_cpu")


def training_cuda(page: Path) -> str:
    return _training("training_cuda")


def _training(name: str) -> str:
    rows = []
    for row in load(name)["rows"]:
        ratios = [row["x_loop"].get(key) for key in CANDIDATES.values()]
        cells = ["fails" if ratio is None else f"{ratio:.1f}x" for ratio in ratios]
        rows.append([row["workload"], str(row["n"]), *cells])
    return table(["model", "lanes", *CANDIDATES], rows)


def optuna(page: Path) -> str:
    found = load("optuna_study_cpu")
    seconds = found["processor_seconds"]
    rows = [["trial by trial", *(f"{s:.1f}" for s in seconds["trial by trial"])]]
    rows.append(["16 lanes", *(f"{s:.1f}" for s in seconds["lanes"])])
    rows.append(["ratio", *(f"{ratio:.2f}x" for ratio in found["processor_ratios"])])
    best = found["best_trial"]["lanes"]
    if best != found["best_trial"]["trial by trial"]:
        raise ValueError("optuna_study_cpu.json: the two searches find different trials")
    return table(["processor seconds", "first", "second", "third"], rows) + (
        f"\n\nBoth find trial {best} the best, with a value of {found['best_value']['lanes']:.6f}."
    )


def signals(page: Path) -> str:
    found = load("signals_cpu")
    rows = []
    for name, one in found.items():
        if isinstance(one, dict):
            cells = [one.get(key, "") for key in ("us_per_op", "ms_per_step", "us_to_issue_a_step")]
            rows.append([name.replace("1 workers", "1 worker"), *map(str, cells)])
    return table(["", "us per op", "ms per step", "us until a step is issued"], rows)


def scale(page: Path) -> str:
    rows = []
    for name, one in load("signals_scale_cpu").items():
        if not name.endswith(" workers"):
            continue
        slow, fast = one["op by op"], one["gt.step"]
        done, disk = "script's ms per step, until done", one.get("checkpoint, MB/s")
        cells = [f"{slow[done]:.1f} ms", f"{fast[done]:.1f} ms", f"{slow['messages sent per step']:.0f}"]
        cells += [f"{slow['messages heard per step']:.0f}", f"{disk:.0f} MB/s" if disk else ""]
        rows.append([name.split()[0], *cells])
    head = ["workers", "op by op", "with `gt.step`", "messages sent", "messages heard", "checkpoint"]
    return table(head, rows)


def lanes_over_workers(page: Path) -> str:
    found = load("lanes_over_workers_cpu")["population"]
    head = [
        "",
        *("in the script" if n == "0" else f"{n} worker{'s' * (n != '1')}" for n in found["ms_per_step"]),
    ]
    return table(head, [["ms per step", *(f"{ms:.0f}" for ms in found["ms_per_step"].values())]])


WRITERS: dict[str, Callable[[Path], str]] = {
    writer.__name__: writer
    for writer in (alternatives, speed, adapters, population, training_cpu, training_cuda, optuna, signals,
                   scale, lanes_over_workers)
}  # fmt: skip


def written(page: Path) -> str:
    """The page with every region written from the result files."""
    return REGION.sub(lambda m: m[1] + WRITERS[m[2]](page) + m[4], page.read_text())


def main() -> int:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    differ = [page for page in pages if written(page) != page.read_text()]
    for page in differ:
        print(f"{page.relative_to(ROOT)} differs from benchmarks/results")
        if "--check" not in sys.argv:
            page.write_text(written(page))
    return int(bool(differ) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
