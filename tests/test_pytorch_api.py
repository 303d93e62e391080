"""Every name of PyTorch that the library uses is there.

A release of PyTorch that moves or removes one fails here at once, with the whole list, instead of somewhere
in a capture. `make nightly` runs this with the oldest and with the newest PyTorch.
"""

import ast
import functools
import importlib
import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import wide_compiler

SOURCE = Path(wide_compiler.__file__).parent
# Names that some supported versions lack; the code asks for them with `hasattr`, `getattr` or `try`.
OPTIONAL: set[str] = {"torch.autograd.Function.apply.__func__.__code__"}
# Ops of the library's own, and names that only CUDA builds have.
OWN, CUDA_ONLY = "torch.ops.wide_compiler.", "torch._C._cuda"


def used_names(path: Path) -> Iterator[str]:
    """Dotted names that begin with `torch`, as a file imports or reads them."""
    tree = ast.parse(path.read_text())
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "torch")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Attribute) and id(node) not in inner and isinstance(node.ctx, ast.Load):
            name = ast.unparse(node)
            if name.startswith("torch.") and name.replace(".", "").isidentifier():
                yield name


def found(name: str) -> Any:
    """What a dotted name stands for: the longest part that is a module, and attributes of it."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        module = ".".join(parts[:count])
        if count == 1 or find_spec(module):
            return functools.reduce(getattr, parts[count:], importlib.import_module(module))
    raise AssertionError(name)


def find_spec(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # its parent is no package, or it was made without a file
        return False


def all_names() -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for name in used_names(path):
            names.setdefault(name, []).append(path.relative_to(SOURCE).as_posix())
    return names


def test_all_names_of_pytorch_exist():
    missing = {}
    skipped = (OWN,) if torch.version.cuda else (OWN, CUDA_ONLY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, places in all_names().items():
            try:
                found(name)
            except ModuleNotFoundError as error:  # of a package that PyTorch itself needs for it
                if (error.name or "").startswith("torch"):
                    missing[name] = (sorted(set(places)), str(error))
            except AttributeError as error:
                if name not in OPTIONAL and not name.startswith(skipped):
                    missing[name] = (sorted(set(places)), str(error))
    assert not missing


def test_a_missing_name_is_noticed():
    with pytest.raises(AttributeError):
        found("torch.nn.functional.no_such_function")
    assert "torch.nn.Module" in all_names()
