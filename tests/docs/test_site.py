"""The site is built without a warning, and the reference has every public name."""

import importlib
import os
import re
import subprocess
import sys

import pytest
import torch

from docs.pages import PYTHON, ROOT

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")

MODULES = ("wide_compiler", "training", "adapters", "routers", "xcs", "signals", "primitives", "oracle")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("name", MODULES)
def test_the_reference_has_every_public_name(name, site):
    module = importlib.import_module(name if name == "wide_compiler" else f"wide_compiler.{name}")
    page = (site / "api" / name / "index.html").read_text()
    shown = set(re.findall(r'id="[\w.]*?(\w+)"', page)) | set(
        re.findall(r"<code>(?:gt\.)?(\w+)</code>", page)
    )
    assert {public for public in module.__all__ if not public.startswith("_")} <= shown


def test_the_reference_has_every_method_that_the_pages_call(site):
    shown = {
        name
        for page in site.glob("api/*/index.html")
        for name in re.findall(r'id="[\w.]*?(\w+)"', page.read_text())
    }
    objects = r"\b(wide|collective|many|compiler|optimizer|population|strategy|history|explanation)"
    called = {
        name for block in PYTHON for _, name in re.findall(rf"{objects}\.([a-z_]+)\(", block.code)
    }  # fmt: skip
    of_torch = {*dir(torch.nn.Module), *dir(torch.optim.Optimizer)}
    assert {"lane", "save", "lane_values", "attach"} <= called
    assert not called - of_torch - shown
