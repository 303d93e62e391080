"""Which folder may import which: those above it in the list of docs/architecture.md. No two names alike."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import wide_compiler

SOURCE = Path(wide_compiler.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"

# Imports upward, each inside a function or a script, and why.
EXCEPTIONS = {
    ("config", "primitives"): "the strategies there are, looked up when one is forced",
    ("widen", "primitives"): "rules register themselves when the first graph is widened",
    ("signals", "cli"): "signals/scripts: commands under the names of the first GT",
}


def listed() -> list[str]:
    """Files and folders of the package in the order of the page, without suffix."""
    block = PAGE.read_text().split("```")[1]
    entries = re.findall(r"^  ([^\s,]+(?:, [^\s,]+)*)", block, flags=re.MULTILINE)
    return [name.removesuffix("/").removesuffix(".py") for entry in entries for name in entry.split(", ")]


def present() -> set[str]:
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    return folders | {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}


def imported(path: Path) -> Iterator[str]:
    """First names below `wide_compiler` that a file imports at run time, anywhere in it."""
    package = ("wide_compiler", *path.relative_to(SOURCE).parent.parts)
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            modules = [name.name.split(".") for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = list(package[: len(package) + 1 - node.level]) if node.level else []
            module = above + (node.module.split(".") if node.module else [])
            modules = [[*module, name.name] for name in node.names]
        else:
            continue
        yield from (parts[1] for parts in modules if parts[0] == "wide_compiler" and len(parts) > 1)


def test_the_page_lists_every_file_and_folder_once():
    assert sorted(listed()) == sorted(present())


def test_the_files_that_the_page_names_are_in_their_folders():
    block = PAGE.read_text().split("```")[1]
    for folder, inside in re.findall(r"^  (\w+)/ .*\n((?:    .*\n)*)", block, flags=re.MULTILINE):
        for name in re.findall(r"\b(\w+\.py|\w+/)", inside):
            assert (SOURCE / folder / name).exists(), f"{folder}/{name}"


@pytest.mark.parametrize("name", sorted(present()))
def test_imports_go_upward_in_the_list(name):
    order = listed()
    files = [SOURCE / f"{name}.py"] if (SOURCE / f"{name}.py").exists() else (SOURCE / name).rglob("*.py")
    wrong = {
        f"{path.relative_to(SOURCE)} imports {other}"
        for path in files
        for other in imported(path)
        if other in order and order.index(other) > order.index(name) and (name, other) not in EXCEPTIONS
    }
    assert not wrong


def occurring_twice() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """File names and names of classes that occur more than once, with their places."""
    files, classes = defaultdict(list), defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if path.name != "__init__.py":
            files[path.name].append(place)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(place)
    return tuple({name: at for name, at in found.items() if len(at) > 1} for found in (files, classes))


def test_no_name_occurs_twice():
    files, classes = occurring_twice()
    assert not files
    assert not classes


def test_the_table_of_lines_describes_every_folder():
    """The numbers may be of an earlier day; `python benchmarks/lines.py` writes them anew."""
    region = PAGE.read_text().split("<!-- lines -->")[1].split("<!-- end -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in region.strip().splitlines()]
    described = {row[0].strip("`"): row[-1] for row in rows if row[0].startswith("`")}
    folders = {path.parent.name: path for path in SOURCE.glob("*/__init__.py")}
    first_lines = {
        name: (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        for name, path in folders.items()
    }
    assert described == first_lines and all(first_lines.values())
