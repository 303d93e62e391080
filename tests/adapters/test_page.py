"""Every block of Python on the page about adapters runs, in order, as it is written there."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["wide"].names == ["large", "late"] and len(names["tokens"]) == 2
    assert names["mixed"].shape == (3, 9) and names["logits"].shape == (3, 10, 64)
    assert names["plain"].n == 3 and (tmp_path / "run" / "large" / "adapter_config.json").exists()
