"""Numbers that a batch rounds otherwise than one item: no yes or no comes from them, no end of a function is
crossed, and no type hides how coarse they are. Where none of that can happen, the batch is taken."""

import pytest
import torch
import torch.nn.functional as F

from wide_compiler.xcs import Config, jit
from xcs import oracle

SIZE = 16


def normalised(xs, w):
    return [x * torch.rsqrt((x @ w).pow(2).mean() + 1e-6) for x in xs]


def length(xs, w):
    return [(x / x.norm()) @ w for x in xs]


def spread(xs, w):
    return [torch.sqrt((x * w).var() + 1e-5) for x in xs]


def entropy(xs, w):
    return [torch.log(torch.softmax(x * w, 0)) for x in xs]


def root_of_a_square(xs, w):
    return [torch.sqrt((x @ w) ** 2) for x in xs]


def clamped(xs, w):
    return [torch.log(torch.clamp(x @ w, min=1e-3)) for x in xs]


def half_powers(xs, w):
    return [(torch.exp(torch.tanh(x @ w)) + 1.0) ** 0.5 for x in xs]


def totals(xs, w):
    return sum(x @ w for x in xs)


def narrow(xs, w):
    return [(x @ w).bfloat16() for x in xs]


def soft(xs, w):
    return [F.softplus(x @ w) for x in xs]


def angle(xs, w):
    return [torch.sqrt(1 - (x @ w) ** 2 / ((x @ x) * (w @ w))) for x in xs]


def arc(xs, w):
    return [torch.acos((x @ w) / (x.norm() * w.norm())) for x in xs]


def logarithm(xs, w):
    return [torch.log(x @ w) for x in xs]


def logarithm_of_a_square(xs, w):
    return [torch.log((x @ w) ** 2) for x in xs]


def fractional(xs, w):
    return [(x @ w) ** 0.5 for x in xs]


def counted(xs, w):
    return [(x @ w).norm(0) for x in xs]


def kinked(xs, w):
    return [F.softplus(x @ w, 1.0, 0.5) for x in xs]


def coarse(xs, w):
    return [(x @ w).bfloat16().float() for x in xs]


def anything(xs, w):
    return any(x @ w for x in xs)


def everything(xs, w):
    return all(x @ w for x in xs)


def largest(xs, w):
    return max((x @ w, x[0] * 2.0) for x in xs)


def smallest(xs, w):
    return min(x @ w for x in xs)


def in_order(xs, w):
    return sorted((x @ w, x[0] * 2.0) for x in xs)


TAKEN = [length, totals, narrow, soft]
# Functions that choose between a number and none by a rounded one are computed as written.
ENDING = [normalised, spread, entropy, root_of_a_square, clamped, half_powers, angle, arc, logarithm]
LEFT = [*ENDING, logarithm_of_a_square, fractional, counted, kinked, coarse]
DECIDING = [anything, everything, largest, smallest, in_order]


def rows(n=60):
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(SIZE, generator=generator)
    xs = [torch.randn(SIZE, generator=generator) for _ in range(n)]
    xs[1::3] = [w * (k + 1) for k in range(len(xs[1::3]))]  # where angles are none
    return xs, w


def counts(fast):
    (found,) = fast.stats().values()
    return found


@pytest.mark.parametrize("function", [*TAKEN, *LEFT, *DECIDING], ids=lambda f: f.__name__)
def test_equal_and_taken_only_where_it_must_be(function):
    fast = jit(function, config=Config(measure=False))
    for _ in range(3):
        wanted, got = oracle.observe(function, rows()), oracle.observe(fast, rows())
        oracle.compare(wanted, got, rtol=1e-4)
    assert counts(fast) == ({"torch vmap": 3} if function in TAKEN else {"plain": 3}), str(fast.explain())


def losses(model, xs, ys):
    with torch.no_grad():
        return [F.cross_entropy(model(x), y) for x, y in zip(xs, ys, strict=True)]


def test_losses_under_autocast_are_no_finer_than_what_they_are_made_of():
    torch.manual_seed(0)
    model = torch.nn.Linear(SIZE, 4)
    xs, ys = [torch.randn(2, SIZE) for _ in range(40)], [torch.randint(4, (2,)) for _ in range(40)]
    fast = jit(losses, config=Config(measure=False))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted, got = losses(model, xs, ys), fast(model, xs, ys)
    assert counts(fast) == {"plain": 1}
    assert all(map(torch.equal, wanted, got))
    fast(model, xs, ys)
    assert counts(fast) == {"plain": 1, "torch vmap": 1}


def wide_rows(xs):
    return [x.repeat(64, 1).exp() @ x for x in xs]


def test_a_batch_is_cut_where_it_would_take_much_memory(monkeypatch):
    from wide_compiler.xcs.modules import torch_vmap

    xs, _ = rows()
    plain = wide_rows(xs)
    sizes = []
    mapped = torch.func.vmap
    monkeypatch.setattr(torch_vmap, "BATCH_BYTES", 2**16)
    monkeypatch.setattr(
        torch.func, "vmap", lambda f, **how: sizes.append(how["chunk_size"]) or mapped(f, **how)
    )
    fast = jit(wide_rows, config=Config(measure=False))
    for a, b in zip(fast(xs), plain, strict=True):
        torch.testing.assert_close(a, b)
    assert counts(fast) == {"torch vmap": 1}
    assert len(sizes) == 1 and 1 <= sizes[0] <= 16
    fast([x[:2] for x in xs])
    fast(xs)  # known already, and as large as before
    assert counts(fast) == {"torch vmap": 3} and sizes[2] == sizes[0]


def long_rows(xs):
    return [torch.cat([x, -x]) for x in xs]


def test_one_row_keeps_no_more_than_a_block():
    xs = [torch.full((2**15,), float(k)) for k in range(80)]
    fast = jit(long_rows, config=Config(measure=False))
    made = fast(xs)
    assert counts(fast) == {"torch vmap": 1}
    assert made[3].untyped_storage().nbytes() == made[3].nbytes
