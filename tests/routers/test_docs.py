"""Every block of code on the page about routers runs, one after the other."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "routers.md"


def test_the_page_runs(capsys):
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 7
    for block in blocks:
        exec(block, names)
    printed = capsys.readouterr().out
    assert "WideRouter(name='my_collective', towers=8, analyzed=True, prepared=True)" in printed
    assert "towers: 8 of 8 wide" in printed or "towers: 0 of 8 wide" in printed
    assert [group.paths for group in names["compiler"].plan.groups] == [
        tuple(f"experts.{i}" for i in range(8))
    ]
