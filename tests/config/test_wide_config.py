"""WideConfig: presets, older words for options, options that cannot be; environment variables."""

import copy
import dataclasses
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import wide_compiler
from untouched import refused
from wide_compiler import WideBuilder, WideConfig
from wide_compiler.config import SETTINGS, variable

PRESETS = {
    "default": {},
    "fast": {"compile": True},
    "safe": {"validate": True},
    "debug": {"validate": True, "verbose": True, "fallback_passthrough": False},
}
FIELDS = {
    "compile": False,
    "compile_mode": "default",
    "backend": "inductor",
    "validate": False,
    "validate_rtol": 1e-3,
    "validate_atol": 1e-5,
    "fallback_passthrough": True,
    "verbose": False,
    "strategy": None,
    "chunk_lanes": None,
    "tune_seconds": 3.0,
}


def fields(config):
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}


@pytest.mark.parametrize("name", PRESETS)
def test_each_preset(name):
    by_name, by_method = WideConfig.preset(name), getattr(WideConfig, name)()
    assert fields(by_name) == fields(by_method) == {**FIELDS, **PRESETS[name]}
    assert by_name == by_method


def test_a_config_without_arguments_is_the_default():
    assert WideConfig() == WideConfig.default()
    assert fields(WideConfig()) == FIELDS


@pytest.mark.parametrize("name", ["turbo", "", "Debug", None, 3])
def test_an_unknown_preset_lists_the_choices(name):
    with refused(ValueError, repr(name), "default", "fast", "debug", "safe"):
        WideConfig.preset(name)


def test_debug_is_a_preset_and_an_older_word_for_verbose():
    preset = WideConfig.debug()
    assert preset.verbose is True and preset.fallback_passthrough is False and preset.validate is True
    assert WideConfig(debug=True) == WideConfig(verbose=True)
    assert WideConfig(debug=False) == WideConfig()
    assert WideConfig.debug().replace(debug=False).verbose is False


def test_measure_is_said_as_at_the_other_doors():
    assert WideConfig(measure=False) == WideConfig(tune_seconds=0)
    assert WideConfig(measure=True, tune_seconds=1.0) == WideConfig(tune_seconds=1.0)
    assert WideConfig().measure is True and WideConfig(tune_seconds=0).measure is False
    assert WideConfig().replace(measure=False).tune_seconds == 0
    with refused(ValueError, "measure", "'no'"):
        WideConfig(measure="no")


@pytest.mark.parametrize(
    "again",
    [
        dataclasses.replace,
        lambda c: c.replace(),
        copy.copy,
        copy.deepcopy,
        lambda c: pickle.loads(pickle.dumps(c)),
        lambda c: WideConfig(**dataclasses.asdict(c)),
    ],
    ids=["dataclasses.replace", "replace", "copy", "deepcopy", "pickle", "asdict"],
)
def test_copies_have_the_same_options(again):
    config = WideConfig(verbose=True, measure=False, chunk_lanes=3, strategy={"WideLinear": "sequential"})
    other = again(config)
    assert other == config and other is not config
    assert fields(other) == fields(config)


def test_replace_changes_only_what_it_names():
    config = WideConfig.debug()
    assert config.replace(verbose=False).verbose is False
    assert config.replace(validate=False).verbose is True
    assert config == WideConfig.debug()
    with pytest.raises(TypeError, match="nonsense"):
        config.replace(nonsense=1)


def test_repr_and_equality_show_the_flag():
    assert "verbose=True" in repr(WideConfig(debug=True)) and "verbose=False" in repr(WideConfig())
    assert WideConfig(debug=True) != WideConfig()


def test_a_subclass_has_the_preset_of_its_own_kind():
    class Mine(WideConfig):
        pass

    assert type(Mine.debug()) is Mine and Mine.debug().verbose is True and Mine().verbose is False


@pytest.mark.parametrize("name", SETTINGS)
def test_environment_variables_have_one_prefix_and_older_names_still_count(name, monkeypatch):
    older, _ = SETTINGS[name]
    new = f"WIDE_COMPILER_{name}"
    monkeypatch.delenv(new, raising=False)
    monkeypatch.delenv(older or "NONE", raising=False)
    assert variable(name) == new
    if older:
        monkeypatch.setenv(older, "1")
        assert variable(name) == older
        monkeypatch.setenv(new, "1")
        assert variable(name) == new


def test_the_environment_is_read_through_one_helper():
    """No other file spells a variable of the library's own."""
    root = Path(wide_compiler.__file__).parent
    spelled = re.compile(r"environ[^\n]*[\"'](WIDE_COMPILER_|XCS_|GT_)")
    files = [
        path.relative_to(root).as_posix() for path in root.rglob("*.py") if spelled.search(path.read_text())
    ]
    assert files == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compile_mode": "warp"}, ["compile_mode", "'warp'", "default", "reduce-overhead", "max-autotune"]),
        ({"compile_mode": None}, ["compile_mode", "None", "default"]),
        ({"chunk_lanes": 0}, ["chunk_lanes", "positive integer", "0"]),
        ({"chunk_lanes": -2}, ["chunk_lanes", "positive integer", "-2"]),
        ({"chunk_lanes": 1.5}, ["chunk_lanes", "positive integer", "1.5"]),
        ({"chunk_lanes": "4"}, ["chunk_lanes", "positive integer", "'4'"]),
        ({"chunk_lanes": True}, ["chunk_lanes", "positive integer", "True"]),
        ({"validate_rtol": -1e-3}, ["validate_rtol", "negative", "-0.001"]),
        ({"validate_atol": -1.0}, ["validate_atol", "negative", "-1.0"]),
        ({"validate_rtol": float("nan")}, ["validate_rtol", "nan"]),
        ({"strategy": "guess"}, ["'guess'", "sequential"]),
        ({"strategy": {"WideLinear": "guess"}}, ["'guess'", "WideLinear", "sequential"]),
        (
            {"strategy": {"WideLinearr": "sequential"}},
            ["'WideLinearr'", "WideLinear", "WideConv2d", "WideLSTM"],
        ),
        ({"strategy": {"Linear": "sequential"}}, ["'Linear'", "WideLinear"]),
    ],
)
def test_an_option_that_cannot_be(options, says):
    with refused(ValueError, *says):
        WideConfig(**options)
    with refused(ValueError, *says):
        WideConfig().replace(**options)


@pytest.mark.parametrize("strategy", [None, "auto", "sequential", {"WideLinear": "sequential"}, {}])
def test_strategies_by_primitive(strategy):
    expected = {"sequential": {"*": "sequential"}, "auto": {}, None: {}}
    wanted = strategy if isinstance(strategy, dict) else expected[strategy]
    assert WideConfig(strategy=strategy).strategies == wanted


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compile_mode": "warp"}, ["'warp'", "reduce-overhead"]),
        ({"chunk_lanes": 0}, ["chunk_lanes", "0"]),
        ({"config": "fast"}, ["config", "WideConfig", "'fast'"]),
        ({"config": 7}, ["config", "WideConfig", "7"]),
    ],
)
def test_compile_refuses_such_options_and_changes_nothing(options, says):
    models = [nn.Linear(4, 2) for _ in range(2)]
    x = torch.randn(2, 4)
    with refused((ValueError, TypeError), *says, of=models):
        wide_compiler.compile(models, x, **options)


def test_compiles_own_options_override_the_config():
    config = WideConfig(chunk_lanes=2, validate=False)
    models = [nn.Linear(4, 2) for _ in range(3)]
    wide = wide_compiler.compile(models, torch.randn(2, 4), config=config, chunk_lanes=1, validate=True)
    assert wide.config.chunk_lanes == 1 and wide.config.validate is True
    assert config == WideConfig(chunk_lanes=2)


def test_the_builder_gathers_the_same_config():
    models = [nn.Linear(4, 2) for _ in range(2)]
    builder = WideBuilder(models).with_config(WideConfig(chunk_lanes=1))
    wide = builder.with_sample(torch.randn(2, 4)).validate(rtol=1e-2).build()
    assert wide.config == WideConfig(chunk_lanes=1, validate=True, validate_rtol=1e-2)
    with refused(ValueError, "with_sample", of=models):
        WideBuilder(models).build()
    with refused(ValueError, "compile_mode", "'warp'", of=models):
        WideBuilder(models).compile(mode="warp")
