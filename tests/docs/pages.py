"""The documentation as data: its pages, and the code blocks of each."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# A block that cannot run here says why in its title, which the reader sees above the code.
NOT_RUN = ("needs a GPU", "needs a cluster", "takes minutes")

_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r'title="([^"]*)"')


class Block(NamedTuple):
    page: Path
    line: int  # of its first line of code
    language: str
    title: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        title = _TITLE.search(match[2])
        line = text.count("\n", 0, match.start(3)) + 1
        found.append(Block(page, line, match[1], title[1] if title else "", match[3]))
    return found


PYTHON = [block for page in PAGES for block in blocks(page) if block.language == "python"]
