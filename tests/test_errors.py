"""One family: whatever this library raises on purpose is a `WideError` and a built-in kind."""

import ast
import functools
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import wide_compiler
from wide_compiler import errors, routers, signals, training, xcs
from wide_compiler.errors import WideError

SOURCE = Path(wide_compiler.__file__).parent

# Exceptions that one part of the library raises for another, which catches them.
INTERNAL = {
    "Bail",
    "CaptureFailed",
    "CaptureRefused",
    "Decline",
    "Diverge",
    "Failed",
    "HasEffects",
    "Incomparable",
    "NeedsRealShapes",
    "NoSource",
    "NotRepeatable",
    "OtherShapes",
    "Poisoned",
    "ReadsLayout",
    "RegisteredMismatch",
    "ResultsDiffer",
    "Uncompilable",
    "WholeGraphDiffers",
    "WidenFailed",
    "_MemberError",
    "_WidenRoot",
    "yaml.YAMLError",
}
# What Python's own protocols, abstract methods, and bugs of the library itself raise.
PROTOCOL = {"AssertionError", "AttributeError", "NotImplementedError", "typer.BadParameter", "typer.Exit"}
# Built-in kinds that do not leave the function or the dictionary they are raised in, or that PyTorch itself
# raises for the same mistake.
CAUGHT = {
    ("model/chooser.py", "ValueError"),
    ("observe/endpoint.py", "PermissionError"),
    ("observe/trace_file.py", "ValueError"),
    ("signals/lane_runner.py", "ValueError"),
    ("model/select_rows.py", "RuntimeError"),
    ("model/strategy_sites.py", "KeyError"),
    ("routers/wide_router.py", "KeyError"),
    ("xcs/lanes/gather.py", "ValueError"),
    ("xcs/outputs.py", "TypeError"),
}


@functools.cache
def raised():
    """Every class that is raised by its name: (file, name, line)."""
    return list(_raised())


def _raised():
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Raise) and node.exc is not None:
                called = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                name = ast.unparse(called)
                if name.split(".")[-1].lstrip("_")[:1].isupper():  # functions make some, and are below
                    yield str(file.relative_to(SOURCE)), name, node.lineno


def descendants(kind):
    return {kind}.union(*(descendants(child) for child in kind.__subclasses__()))


def test_every_raise_is_of_the_family_or_stays_inside():
    apart, family = [], {kind.__name__ for kind in descendants(WideError)}
    for file, name, line in raised():
        if name in INTERNAL | PROTOCOL or (file, name) in CAUGHT:
            continue
        if name not in family:
            apart.append(f"{file}:{line} raises {name}")
    assert apart == []


def test_no_exception_to_the_rule_has_outlived_its_reason():
    found = {(file, name) for file, name, _ in raised()}
    assert found >= CAUGHT
    assert {name for _, name in found} >= INTERNAL | PROTOCOL


FAMILY = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind is not WideError]
FAMILY += [routers.RouterError, xcs.Mismatch, signals.WorkerFailed, signals.NoWorkers]


@pytest.mark.parametrize("kind", FAMILY)
def test_each_is_a_built_in_kind_too_and_survives_pickling(kind):
    assert issubclass(kind, WideError)
    assert next(base for base in kind.__mro__ if base.__module__ == "builtins") not in (Exception, object)
    error = pickle.loads(pickle.dumps(kind("what went wrong")))
    assert type(error) is kind and error.args == ("what went wrong",)


def test_the_public_errors_are_all_of_errors():
    assert {kind.__name__ for kind in FAMILY if kind.__module__ == "wide_compiler.errors"} <= set(
        wide_compiler.__all__
    )


def _wide():
    return wide_compiler.compile([nn.Linear(3, 2) for _ in range(4)], torch.randn(5, 3))


MISTAKES = {
    "compile": (
        TypeError,
        lambda: wide_compiler.compile([nn.Linear(3, 2)], torch.ones(1, 3), config="fast"),
    ),
    "config": (ValueError, lambda: wide_compiler.WideConfig(compile_mode="quick")),
    "registry": (TypeError, lambda: wide_compiler.register(nn.Linear)),
    "unregister": (KeyError, lambda: wide_compiler.REGISTRY.unregister("Nothing")),
    "lanes": (IndexError, lambda: _wide().lane(7)),
    "primitives": (TypeError, lambda: wide_compiler.WideLinear.from_modules(nn.Linear(3, 2))),
    "training": (ValueError, lambda: training.EarlyStop(patience=0)),
    "optimiser": (ValueError, lambda: training.Adam(_wide().parameters(), lr=-1.0)),
    "routers": (ValueError, lambda: routers.BaseRouter("r")["nothing"]),
    "towers": (ValueError, lambda: routers.AttentionTower("t", 8, heads=3)),
    "xcs": (TypeError, lambda: xcs.jit(3)),
    "xcs.Config": (ValueError, lambda: xcs.Config(max_workers=0)),
    "signals": (ValueError, lambda: signals.ShardConfig(axis=-1, workers=[0])),
    "signals.load_config": (FileNotFoundError, lambda: signals.load_config("no such file.yaml")),
}


@pytest.mark.parametrize("door", MISTAKES)
def test_one_except_clause_catches_the_mistakes_at_every_door(door):
    kind, mistake = MISTAKES[door]
    with pytest.raises(WideError) as caught:
        mistake()
    assert isinstance(caught.value, kind)
