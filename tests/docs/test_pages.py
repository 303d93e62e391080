"""The pages: each is in the navigation, links and pictures are there, numbers are those of the results."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import wide_compiler
import wide_compiler.signals as gt
from docs.pages import PAGES, PYTHON, ROOT, blocks

DOCS = ROOT / "docs"
OTHERS = {"traced_wide.py", "train.py"}  # files of other systems, and of the reader
LINK = re.compile(r"\]\(([^)\s]+)\)")


def _in_navigation(entry):
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in _in_navigation(part)]


def test_every_page_is_in_the_navigation_once():
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    listed = _in_navigation(navigation)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES if DOCS in page.parents)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in LINK.findall(text):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{target} is not there"
        if anchor and found.suffix == ".md":
            assert anchor in _anchors(found), f"{target}: {found.name} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page):
    for name in re.findall(r"`(?:python )?([\w/]+\.py)\b", page.read_text()):
        found = (ROOT / name).exists() or any(ROOT.glob(f"examples/{name}"))
        assert found or name in OTHERS or any(ROOT.glob(f"src/**/{name}")), f"{name} is not there"


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as MkDocs makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_every_picture_is_shown():
    shown = {Path(target).name for page in PAGES for target in LINK.findall(page.read_text())}
    for picture in (DOCS / "images").rglob("*.png"):
        assert picture.name in shown
        assert picture.stat().st_size < 150_000


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_code_fits_the_page(block):
    assert max(map(len, block.code.splitlines())) <= 92


def test_numbers_are_those_of_the_results():
    command = [sys.executable, ROOT / "benchmarks" / "write_numbers.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}run python benchmarks/write_numbers.py"


def test_the_newest_notes_are_of_this_version():
    releases = re.findall(r"^## \[(.+)\](.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == ("Unreleased", "")
    assert releases[1][0] == wide_compiler.VERSION
    assert re.fullmatch(r" - \d{4}-\d\d-\d\d", releases[1][1])


def test_the_picture_of_the_speed_is_made_from_the_results():
    image = pytest.importorskip("PIL.Image")
    digest = runpy.run_path(str(ROOT / "benchmarks" / "pictures.py"))["digest"]()
    made_from = image.open(DOCS / "images" / "speed.png").text["made from"]
    assert made_from == digest, "run python benchmarks/pictures.py speed"


def test_the_page_of_measurements_is_made_from_the_results(tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "report.py", "--docs", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    written = (tmp_path / "benchmarks.md").read_text()
    assert written == (DOCS / "benchmarks.md").read_text(), "run python benchmarks/report.py"


def test_the_placements_in_yaml_are_read(tmp_path):
    stages, meshes = (block.code for block in blocks(DOCS / "signals.md") if block.language == "yaml")
    (tmp_path / "stages.yaml").write_text(stages)
    (tmp_path / "meshes.yaml").write_text(meshes)
    try:
        assert set(gt.load_config(tmp_path / "stages.yaml")) == {"stage_1", "stage_1_backward"}
        read = gt.load_config(tmp_path / "meshes.yaml")
        assert read["data_times_tensor"] == read["the_same"]
    finally:
        gt.clear_configs()
