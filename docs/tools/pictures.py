"""Make the pictures of the documentation anew: every example is run, and its picture made small.

    python docs/tools/pictures.py                 all of them, about ten minutes on two cores
    python docs/tools/pictures.py deep_ensemble   some of them
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "images" / "examples"


def main(names: list[str]) -> None:
    scripts = [path for path in sorted((ROOT / "examples").glob("*.py")) if not names or path.stem in names]
    for script in scripts:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, script], cwd=folder, check=True)
            for picture in Path(folder).glob("*.png"):
                make_small(picture, FOLDER / picture.name)
                print(f"{picture.name}: {(FOLDER / picture.name).stat().st_size // 1024} kB")


def make_small(source: Path, target: Path, colours: int = 128) -> None:
    """Save a picture with a palette: a third of the size, and the same to the eye."""
    target.parent.mkdir(exist_ok=True)
    Image.open(source).convert("RGB").quantize(colours).save(target, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
