"""WideConfig: presets, the two meanings of `debug`, and every option that cannot be."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import wide_compiler
from untouched import refused
from wide_compiler import WideBuilder, WideConfig

PRESETS = {
    "default": {},
    "fast": {"compile": True},
    "safe": {"validate": True},
    "debug": {"validate": True, "debug": True, "fallback_passthrough": False},
}
FIELDS = {
    "compile": False,
    "compile_mode": "default",
    "backend": "inductor",
    "validate": False,
    "validate_rtol": 1e-3,
    "validate_atol": 1e-5,
    "fallback_passthrough": True,
    "debug": False,
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


def test_debug_is_a_preset_of_the_class_and_a_flag_of_an_instance():
    preset = WideConfig.debug()
    assert preset.debug is True and preset.fallback_passthrough is False and preset.validate is True
    assert WideConfig(debug=True).debug is True
    assert WideConfig(debug=False).debug is False
    assert WideConfig().debug is False
    config = WideConfig()
    config.debug = True
    assert config.debug is True and WideConfig().debug is False


@pytest.mark.parametrize("flag", [True, False])
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
def test_the_flag_survives(again, flag):
    config = WideConfig(debug=flag, validate=True, chunk_lanes=3, strategy={"WideLinear": "sequential"})
    other = again(config)
    assert other.debug is flag
    assert other == config and other is not config
    assert fields(other) == fields(config)


def test_replace_changes_only_what_it_names():
    config = WideConfig.debug()
    assert config.replace(debug=False).debug is False
    assert config.replace(validate=False).debug is True
    assert config == WideConfig.debug()
    with pytest.raises(TypeError, match="nonsense"):
        config.replace(nonsense=1)


def test_repr_and_equality_show_the_flag():
    assert "debug=True" in repr(WideConfig(debug=True)) and "debug=False" in repr(WideConfig())
    assert WideConfig(debug=True) != WideConfig()


def test_a_subclass_has_the_preset_of_its_own_kind():
    class Mine(WideConfig):
        pass

    assert type(Mine.debug()) is Mine and Mine.debug().debug is True and Mine().debug is False


@pytest.mark.parametrize("value", ["yes", np.True_])
def test_a_flag_that_is_not_a_bool_is_not_lost_in_silence(value):
    try:
        config = WideConfig(debug=value)
    except (TypeError, ValueError) as error:
        assert "debug" in str(error)
    else:
        assert config.debug is True


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
