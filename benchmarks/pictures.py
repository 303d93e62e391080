"""The pictures of the README and the docs: the speed from the result files, the others from the examples.

python benchmarks/pictures.py                 all of them, about ten minutes on two cores
python benchmarks/pictures.py speed towers    some of them
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib
from PIL import Image
from PIL.PngImagePlugin import PngInfo

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
OURS, PEER, LOOP = "#4c5fd5", "#e8833a", "0.55"


def load(name: str) -> dict:
    return json.loads((RESULTS / name).read_text())


def training_on_a_gpu(axes: plt.Axes) -> None:
    """Speed of one training step of all lanes, as a multiple of the loop's; beside it the best other way."""
    found = load("h200_train.json")
    rows = sorted(found["rows"], key=lambda row: row["speedup"])
    for place, row in enumerate(rows):
        axes.barh(place + 0.2, row["speedup"], 0.38, color=OURS)
        axes.barh(place - 0.2, row["speedup"] / row["peer_ratio"], 0.38, color=PEER)
    axes.set_yticks(range(len(rows)), [f"{row['name']}, N={row['n']}" for row in rows])
    axes.set(xscale="log", xlim=(1, None), xlabel="times the speed of the loop over the models")
    axes.set_title(f"Training N models, {found['device']}, WideConfig.fast()", fontsize=10)
    axes.barh(0, 0, color=OURS, label="wide_compiler")
    axes.barh(0, 0, color=PEER, label="best of vmap, compiled loops, CUDA graphs, JAX")
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def calls_on_a_cpu(axes: plt.Axes) -> None:
    """Speed of one call as a multiple of the loop's, by the number of models."""
    found = load("never_slower_default.json")
    lanes = [row["n"] for row in found["rows"]]
    axes.axhline(1, color=LOOP, linestyle=":")
    axes.scatter(lanes, [row["x_loop"] for row in found["rows"]], color=OURS, s=22)
    axes.set(xscale="log", yscale="log", xlabel="models", ylabel="times the speed of the loop")
    axes.set_xticks([2, 8, 32, 128], [2, 8, 32, 128])
    axes.set_yticks([1, 2, 5, 10, 30], [1, 2, 5, 10, 30])
    axes.minorticks_off()
    axes.set_title(f"{len(lanes)} architectures and sizes, one CPU thread", fontsize=10)


def digest() -> str:
    """Of the files that the picture of the speed is made from; it is written into the picture."""
    files = (RESULTS / name for name in ("h200_train.json", "never_slower_default.json"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def speed(folder: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained", width_ratios=(3, 2))
    training_on_a_gpu(left)
    calls_on_a_cpu(right)
    figure.savefig(folder / "speed.png", dpi=110)


def make_small(source: Path, target: Path, made_from: str = "the example") -> None:
    """Save a picture with a palette of 128 colours: a third of the size, and the same to the eye."""
    info = PngInfo()
    info.add_text("made from", made_from)
    Image.open(source).convert("RGB").quantize(128).save(target, optimize=True, pnginfo=info)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size // 1024} kB")


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if not names or "speed" in names:
            speed(Path(folder))
            make_small(Path(folder) / "speed.png", IMAGES / "speed.png", digest())
    for script in sorted((ROOT / "examples").glob("*.py")):
        if names and script.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, script], cwd=folder, check=True)
            for picture in Path(folder).glob("*.png"):
                make_small(picture, IMAGES / "examples" / picture.name)


if __name__ == "__main__":
    main(sys.argv[1:])
