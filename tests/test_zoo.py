"""Every architecture of the zoo, as lanes, against the loop over its members."""

import copy

import pytest
import torch

from nightly import one_of
from wide_compiler import InputError, oracle
from zoo import CASES
from zoo_oracle import compile_case, make_inputs, make_models

N = 4
CAPTURED_AT, RUN_AT = 2, (1, 5, 17)
OLD_TORCH = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


def batches(case):
    return () if "no_batch" in case.tags else RUN_AT


@pytest.mark.parametrize("case", one_of(4, CASES.values(), first=1), ids=lambda c: c.name)
def test_eval_equals_the_loop(case):
    models = make_models(case, N)
    wide = compile_case(case, models, make_inputs(case, CAPTURED_AT, 1)[0])
    for batch in (CAPTURED_AT, *batches(case)):
        inputs = make_inputs(case, batch, N)
        if members_refuse(models, inputs):
            with pytest.raises(InputError):
                oracle.compare(models, wide, inputs)
            continue
        oracle.compare(models, wide, inputs).check(rtol=1e-5)
        check_fast_path(case, wide)
    oracle.compare(models, wide, shared_input=inputs[0]).check(rtol=1e-5)
    check_fast_path(case, wide)


@pytest.mark.parametrize(
    "case", one_of(3, [c for c in CASES.values() if "random" not in c.tags]), ids=lambda c: c.name
)
def test_training_equals_the_loop(case):
    dtype = torch.float32 if "float32_only" in case.tags else torch.float64
    models = make_models(case, N, train=True, dtype=dtype)
    wide = compile_case(case, models, make_inputs(case, CAPTURED_AT, 1, dtype)[0])
    inputs = make_inputs(case, CAPTURED_AT if "no_batch" in case.tags else 5, N, dtype)
    report = oracle.compare(models, wide, inputs, gradients=True, learning_rate=0.1)
    report.check(rtol=1e-6)
    assert any(d.what == "gradient" for d in report.differences)
    check_fast_path(case, wide)
    oracle.compare(models, wide, shared_input=inputs[0], gradients=True, learning_rate=0.1).check(rtol=1e-6)
    check_fast_path(case, wide)


def members_refuse(models, inputs):
    """A norm without running statistics takes no single example: then neither may the wide model."""
    try:
        copy.deepcopy(models[0])(*inputs[0][0], **inputs[0][1])
    except ValueError:
        return True
    return False


def check_fast_path(case, wide):
    """Equal because it declined does not count: all nodes by own rules, or a reason that the case expects."""
    explanation = wide.explain(measure=False)
    if "loop" in case.tags:
        return
    assert not explanation.why, f"ran as a loop: {explanation.why}"
    slow = [(r.op, r.how, r.why) for r in explanation.rows if r.how in ("vmap", "loop")]
    if OLD_TORCH:  # whose export has other gaps; what it cannot look into is kept whole
        slow = [row for row in slow if "torch.export cannot trace it" not in row[2]]
    assert not slow


def test_most_of_the_zoo_is_expected_on_the_fast_path():
    """The figures of the promise: at least 60 architectures, at least 95 % of them through the wide graph."""
    loops = [case for case in CASES.values() if "loop" in case.tags]
    assert len(CASES) >= 60
    assert len(loops) <= 0.05 * len(CASES)
