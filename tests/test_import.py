"""`import wide_compiler` costs next to nothing: every public name is imported when it is first asked for."""

import ast
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import wide_compiler
from wide_compiler._dynamo_marks import constant_result

SOURCE = Path(wide_compiler.__file__).parent

# Each of these takes a tenth of a second or more to import; torch.export comes with torch.
HEAVY = {
    "pydantic",
    "rich",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.export",
    "torch.onnx",
    "triton",
    "typer",
    "yaml",
}


def fresh(code, *arguments):
    """What `code` prints in a new interpreter, as a set of words."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


LOADED = """
import sys, torch
before = set(sys.modules)
exec(sys.argv[1])
print(*set(sys.modules) - before)
"""


def test_importing_the_package_imports_nothing_of_torch_and_of_nobody_else():
    loaded = fresh("import sys; import wide_compiler; print(*sys.modules)")
    assert "torch" not in loaded and "numpy" not in loaded
    assert {name for name in loaded if name.startswith("wide_compiler.")} == {"wide_compiler.version"}


@pytest.mark.parametrize(
    "statement",
    [
        "import wide_compiler",
        "from wide_compiler import *",
        "from wide_compiler import training, routers, xcs",
    ],
)
def test_no_door_loads_what_only_some_calls_need(statement):
    assert not HEAVY & fresh(LOADED, statement)


def test_the_command_line_asks_for_torch_only_when_a_command_runs():
    loaded = fresh("import sys; import wide_compiler.cli; print(*sys.modules)")
    assert "typer" in loaded
    assert not {"torch", "numpy", "matplotlib"} & loaded


def test_widen_brings_the_rules_that_register_themselves_with_it():
    code = """
import contextlib
from wide_compiler.widen import RULES, widen
print(len(RULES) > 0)
with contextlib.suppress(AttributeError):  # of None, which is no captured graph
    widen(None, frozenset(), (), None)
print(len(RULES) > 0, "after")
"""
    assert fresh(code) == {"False", "True", "after"}


def test_every_public_name_is_there_and_where_the_type_checker_finds_it():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    homes = {
        name.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    }
    aliases = {node.targets[0].id for node in checked.body if isinstance(node, ast.Assign)}
    rooms = {"primitives", "__version__", "VERSION"}
    assert {*homes, *aliases, *rooms} == set(wide_compiler.__all__)
    for name, home in homes.items():
        module = sys.modules.get(f"wide_compiler.{home}") or __import__(
            f"wide_compiler.{home}", fromlist=[name]
        )
        assert getattr(wide_compiler, name) is getattr(module, name)
    assert wide_compiler.TracedWideModel is wide_compiler.WideModel


def test_a_star_import_gives_all_of_them():
    space = {}
    exec("from wide_compiler import *", space)
    assert set(wide_compiler.__all__) <= set(space)
    assert space["compile"] is wide_compiler.compile


def test_dir_lists_names_and_rooms():
    listed = dir(wide_compiler)
    assert {*wide_compiler.__all__, "training", "routers", "xcs", "signals", "oracle"} <= set(listed)
    assert listed == sorted(listed)


def test_rooms_are_attributes():
    assert wide_compiler.training.Adam.__module__ == "wide_compiler.training.adam"
    assert wide_compiler.primitives.WideLinear is wide_compiler.WideLinear
    assert wide_compiler.oracle.__name__ == "wide_compiler.oracle"


@pytest.mark.parametrize("name", ["nothing_of_that_name", "_constant", "__wrapped__"])
def test_a_name_that_is_not_there_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=name):
        getattr(wide_compiler, name)
    assert not hasattr(wide_compiler, name)
    with pytest.raises(ImportError):
        exec(f"from wide_compiler import {name}")


@pytest.mark.parametrize("name", ["WideModel", "WideLinear", "WideConfig", "InputError", "compile", "stack"])
def test_classes_and_functions_survive_pickling(name):
    assert pickle.loads(pickle.dumps(getattr(wide_compiler, name))) is getattr(wide_compiler, name)


def test_a_pickled_model_loads_where_nothing_is_imported_yet(tmp_path):
    file = tmp_path / "layer.pickle"
    layers = [torch.nn.Linear(3, 2) for _ in range(4)]
    file.write_bytes(pickle.dumps(wide_compiler.WideLinear.from_modules(layers)))
    code = "import pickle, sys; print(type(pickle.load(open(sys.argv[1], 'rb'))).__name__)"
    assert fresh(code, str(file)) == {"WideLinear"}


def test_the_light_mark_is_the_one_that_torch_compile_sets():
    def ours():
        return 1

    def theirs():
        return 1

    assert constant_result(ours) is ours
    assert vars(ours) == vars(torch.compiler.assume_constant_result(theirs)) != {}


def test_torch_compile_takes_a_marked_result_as_a_constant():
    calls = []

    class Asked:
        @constant_result
        def number(self):
            calls.append(len(calls))  # a trace could not do this
            return 3

    asked = Asked()
    compiled = torch.compile(lambda x: x * asked.number(), backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == compiled(torch.ones(2)).tolist() == [3, 3]
    assert len(calls) == 1
