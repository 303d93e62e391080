"""`Config`: options that mean what they say, or say that they do not."""

import pytest

from wide_compiler.xcs import Config, jit

SWITCHES = ("enabled", "exact", "check", "measure")


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("given", ["no", "0", "yes", "", None, 0, 1])
def test_a_switch_is_true_or_false(name, given):
    with pytest.raises(TypeError, match=f"{name} must be True or False, got {given!r}"):
        Config(**{name: given})


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("given", [True, False])
def test_switches_hold_what_they_are_given(name, given):
    assert getattr(Config(**{name: given}), name) is given


@pytest.mark.parametrize("given", [0, -1, True, 2.0, "8", None])
def test_max_workers_is_a_positive_integer(given):
    with pytest.raises(ValueError, match="max_workers must be a positive integer"):
        Config(max_workers=given)


@pytest.mark.parametrize("word", ["", "0", "no", "No", "false", "FALSE", "off", " off "])
def test_words_that_leave_checking_off(monkeypatch, word):
    monkeypatch.setenv("XCS_CHECK", word)
    assert Config().checking is False
    assert Config(check=True).checking is True


@pytest.mark.parametrize("word", ["1", "yes", "YES", "true", "True", "on"])
def test_words_that_switch_checking_on(monkeypatch, word):
    monkeypatch.setenv("XCS_CHECK", word)
    assert Config().checking is True


def test_checking_is_off_without_the_variable(monkeypatch):
    monkeypatch.delenv("XCS_CHECK", raising=False)
    assert Config().checking is False


@pytest.mark.parametrize("word", ["maybe", "2", "nope"])
def test_other_words_are_refused_when_they_are_read(monkeypatch, word):
    monkeypatch.setenv("XCS_CHECK", word)
    config = Config()
    with pytest.raises(ValueError, match=f"XCS_CHECK must be one of 1, yes, true, on .* got '{word}'"):
        _ = config.checking

    @jit
    def doubled(xs):
        return [2 * x for x in xs]

    with pytest.raises(ValueError, match="XCS_CHECK"):
        doubled([1, 2])
    monkeypatch.setenv("XCS_CHECK", "no")
    assert doubled([1, 2]) == [2, 4]  # a mended variable is enough
