"""The zoo itself: each architecture builds, runs at any batch size, and differs from one make to the next."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from zoo import CASES, Case

every_case = pytest.mark.parametrize("case", list(CASES.values()), ids=list(CASES))


@pytest.fixture(autouse=True)
def one_thread_and_a_seed():
    """Tiny models are quicker on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def tensors(tree) -> list[torch.Tensor]:
    """The tensors of any nest of outputs."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@every_case
def test_runs_and_gives_a_float(case: Case):
    model = case.make().eval()
    for batch in (2, 5):
        args, kwargs = case.inputs(batch)
        with torch.no_grad():
            outputs = tensors(model(*args, **kwargs))
        floats = [out for out in outputs if out.is_floating_point() or out.is_complex()]
        assert floats, f"no float among {outputs}"
        assert all(out.isfinite().all() for out in floats)


@every_case
def test_inputs_are_batched_and_random(case: Case):
    first, again = tensors(case.inputs(5)), tensors(case.inputs(5))
    if "no_batch" not in case.tags:
        assert all(tensor.shape[0] == 5 for tensor in first)
    assert any(not torch.equal(one, other) for one, other in zip(first, again, strict=True))


@every_case
def test_two_makes_differ(case: Case):
    one, other = case.make(), case.make()
    assert type(one) is type(other)
    pairs = list(zip(one.parameters(), other.parameters(), strict=True))
    assert pairs, "no parameters"
    assert all(a.shape == b.shape for a, b in pairs)
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_the_zoo_is_large():
    assert len(CASES) >= 66
