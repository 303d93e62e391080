"""What the analysis must see: nothing that changes, or may change, what others can see counts as pure.

Beside each program that must run as written stands one much like it that does take a fast path.
"""

import dataclasses
import operator
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from wide_compiler.xcs import Config, jit
from wide_compiler.xcs.proof import numpy_tables, torch_tables
from wide_compiler.xcs.proof.numpy_tables import risky_option
from wide_compiler.xcs.proof.values import Value
from xcs import oracle

NOW = Config(measure=False)
THIS = sys.modules[__name__]
SEEN = []
DEEP = [[0.5]]
PAIRS = {"a": [0.5]}
WHICH = 0
MODE = "r"


class Loud:
    """Counts how often it is computed with."""

    def __add__(self, other):
        SEEN.append("added")
        return other

    __radd__ = __add__


LOUD = Loud()
LOUDS = [LOUD]


def floats(n=6):
    return ([0.5 * i + 1.0 for i in range(n)],)


def arrays():
    return (list(np.arange(24.0).reshape(6, 4)),)


def squares():
    return (list(np.arange(24.0).reshape(6, 2, 2)),)


def tensors():
    return (list(torch.arange(24.0).reshape(6, 4) - 9.0),)


def check(function, make=floats, rung=None):
    """Three calls in a row show what plain Python shows; `rung` is the only one that took a call, if any."""
    fast = jit(function, config=NOW)
    for _ in range(3):
        seen = []
        for called in (function, fast):
            SEEN.clear()
            DEEP[:] = [[0.5]]
            PAIRS.clear()
            PAIRS["a"] = [0.5]
            observed = oracle.observe(called, make())
            observed.world = [list(SEEN), [list(d) for d in DEEP], {k: list(v) for k, v in PAIRS.items()}]
            seen.append(observed)
        oracle.compare(*seen, rtol=1e-6)
    ran = {r for c in fast.stats().values() for r in c if r != "plain"}
    assert ran == ({rung} if rung else set()), str(fast.explain())
    if rung is None:
        left = [row for row in fast.explain().rows if row.how == "loop" and row.strategy]
        assert not any(row.effect in ("PURE", "IO") for row in left), str(fast.explain())
    assert "source code" not in str(fast.explain()), "declined for another reason than the one tested"


def body(function, make=floats, rung=None):
    """The same, of what a comprehension calls for each item."""
    check(lambda xs: [function(x) for x in xs], make, rung)


# Loops and try.


def left_by_break(x):
    a = []
    for i in range(3):
        a = SEEN
        if i == 1:
            break
        a = []
    a.append(1.0)
    return x + 1.0


def left_by_break_own(x):
    a = []
    for i in range(3):
        a = [x]
        if i == 1:
            break
        a = []
    a.append(1.0)
    return x + 1.0


def cut_short(x):
    a = []
    for i in range(3):
        a.append(1.0)
        a = SEEN
        if i == 0:
            continue
        a = []
    return x + 1.0


def cut_short_own(x):
    a = []
    for i in range(3):
        a.append(1.0)
        a = [x]
        if i == 0:
            continue
        a = []
    return x + 1.0


def while_left(x):
    a, i = [], 0
    while i < 3:
        i += 1
        a = SEEN
        if i == 2:
            break
        a = []
    a.append(1.0)
    return x + 1.0


def while_left_own(x):
    a, i = [], 0
    while i < 3:
        i += 1
        a = []
        if i == 2:
            break
    a.append(1.0)
    return x + 1.0


def loud_at_break(x):
    a = 1.0
    for i in range(3):
        a = LOUD
        if i == 1:
            break
        a = 1.0
    return a + x


def left_through_finally(x):
    a = []
    for _ in range(3):
        try:
            a = []
            break
        finally:
            a = SEEN
    a.append(1.0)
    return x + 1.0


def broken_in_else(x):
    a = []
    for _ in range(2):
        for _ in range(2):
            pass
        else:
            a = SEEN
            break
    a.append(1.0)
    return x + 1.0


def middle_of_try(x):
    a = []
    try:
        a = SEEN
        1.0 / (len("abc") - 3)
        a = []
    except ZeroDivisionError:
        a.append(1.0)
    return x + 1.0


def middle_in_finally(x):
    a = []
    try:
        a = SEEN
        if x > 0:
            return x + 1.0
        a = []
    finally:
        a.append(1.0)
    return x


def middle_of_handler(x):
    a = []
    try:
        try:
            1.0 / (len("abc") - 3)
        except ZeroDivisionError:
            a = SEEN
            int("no")
            a = []
    except ValueError:
        a.append(1.0)
    return x + 1.0


def loop_in_try(x):
    a = []
    try:
        for i in (1, 0):
            1.0 / i
            a = SEEN
        a = []
    except ZeroDivisionError:
        a.append(1.0)
    return x + 1.0


def handed_on(x):
    a, b, c, d, e, h = [], [], [], [], [], []
    for _ in range(9):
        a.append(1.0)
        a = b
        b = c
        c = d
        d = e
        e = h
        h = SEEN
    return x + 1.0


def handed_on_own(x):
    a, b, c, d, e, h = [], [], [], [], [], []
    for _ in range(9):
        a.append(1.0)
        a = b
        b = c
        c = d
        d = e
        e = h
        h = []
    return x + 1.0


def ever_deeper(x):
    a = ()
    for _ in range(3):
        a = (a,)
    return x + len(a)


def test_where_a_loop_is_left():
    for f in (left_by_break, cut_short, while_left, loud_at_break, left_through_finally, broken_in_else):
        body(f)
    for f in (left_by_break_own, cut_short_own, while_left_own):
        body(f, rung="numpy lanes")


def test_where_a_try_is_left():
    for f in (middle_of_try, middle_in_finally, middle_of_handler, loop_in_try):
        body(f)


def test_loops_are_followed_until_they_settle():
    body(handed_on)
    body(ever_deeper)
    body(handed_on_own, rung="numpy lanes")


# Aliases.


def changed_through_either(x):
    a = [[]]
    b = a if x > 0 else [[]]
    b.append(SEEN)
    a[1].append(1.0)
    return x + 1.0


def changed_behind_either(x):
    a = [[]]
    b = a if x > 0 else [[]]
    a.append(SEEN)
    b[1].append(1.0)
    return x + 1.0


def changed_through_either_own(x):
    a = [[]]
    b = a if x is not None else [[]]
    b.append([])
    a[1].append(1.0)
    return x + 1.0


def changed_through_element(x):
    a = [[[]], [[]]]
    for e in a:
        e.append(SEEN)
    a[0][1].append(1.0)
    return x + 1.0


def added_in_place(x):
    a = [[]]
    b = a
    a += [SEEN]
    b[1].append(1.0)
    return x + 1.0


def turned_round(x):
    a = [SEEN, []]
    a.reverse()
    a[1].append(1.0)
    return x + 1.0


def sorted_away(x):
    a = sorted([SEEN, [x]], key=lambda v: -len(v))
    a[1].append(1.0)
    return x + 1.0


def stored_slice(x):
    a = [[], []]
    a[0:1] = [SEEN]
    a[0].append(1.0)
    return x + 1.0


def iterated_later(x):
    a = [[]]
    it = iter(a)
    a.append(SEEN)
    for e in it:
        e.append(1.0)
    return x + 1.0


def generated_later(x):
    a = []
    g = (a.append(1.0) for _ in range(2))
    a = SEEN
    list(g)
    return x + 1.0


def in_one_comprehension(x):
    a = [[], []]
    [(e.append(1.0), a.append(SEEN) if len(a) < 4 else None) for e in a]
    return x + 1.0


def unpacked(x):
    a, b = [], SEEN
    a, b = b, a
    a.append(1.0)
    return x + 1.0


def unpacked_own(x):
    a, b = [], [x]
    a, b = b, a
    a.append(1.0)
    return x + 1.0


def element_of_own(x):
    for e in [SEEN]:
        e.append(1.0)
    return x + 1.0


def changed_behind_max(x):
    max(((x, SEEN), (x + 1.0, SEEN)))[1].append(1.0)
    return x + 1.0


def told_of_late(x):
    a = []

    def f():
        a.append(1.0)

    a = SEEN
    f()
    return x + 1.0


def told_of_in_branch(x):
    a = []
    f = None
    if x > 0:
        f = lambda: a.append(1.0)  # noqa: E731
    else:
        f = lambda: a.append(2.0)  # noqa: E731
    a = SEEN
    f()
    return x + 1.0


def made_in_branch(x):
    a = []
    for _ in range(1):
        f = lambda: a.append(1.0)  # noqa: E731, B023
        a = SEEN
        f()
    return x + 1.0


def local_of_inner(x):
    a = []

    def f(y):
        if y > 0:
            a = SEEN
        a.append(1.0)
        return y

    return f(x) + len(a)


def default_of_pop(x):
    d = {"k": []}
    d.pop("no", SEEN).append(1.0)
    return x + 1.0


def default_of_max(x):
    v = max([y for y in (x,) if y > 1e9], default=SEEN)
    v += range(2)
    return x + 1.0


def start_of_sum(x):
    v = sum([y for y in (x,) if y.sum() > 1e9], x)
    v += 1.0
    return float(v[0])


def dict_by_name(x):
    d = dict(a=SEEN)  # noqa: C408
    d["b"] = 1.0
    v = d["a"]
    v += range(2)
    return x + 1.0


def dict_of_lists(x):
    p = ["a"]
    p.append(SEEN)
    d = dict([p])
    d["a"].append(1.0)
    return x + 1.0


def in_a_format(x):
    return f"{x:{SEEN.append(1.0) or 5}}"


def by_a_global(x):
    pair = ([], SEEN)
    pair[WHICH].append(1.0)
    return x + 1.0


def joined_with_unknown(x):
    a = LOUDS if x > 0 else [1.0]
    return sum(a, x)


def recursive(a, n):
    if n > 0:
        back_to_recursive(n)
    a[0].append(1.0)
    return 1.0


def back_to_recursive(n):
    return recursive([SEEN], n - 1)


def gives_back(n):
    if n > 1:
        return back_to_giving(n)
    return [] if n > 0 else SEEN


def back_to_giving(n):
    return gives_back(n - 1)


def from_recursion(x):
    gives_back(2 if x > 1e9 else 0).append(1.0)
    return x + 1.0


ALIASED = [
    changed_through_either, changed_behind_either, changed_through_element, added_in_place, turned_round,
    changed_behind_max, sorted_away, stored_slice, iterated_later, generated_later, in_one_comprehension,
    unpacked, element_of_own, told_of_late, told_of_in_branch, made_in_branch, local_of_inner, default_of_pop,
    default_of_max, dict_by_name, dict_of_lists, in_a_format, joined_with_unknown, from_recursion,
]  # fmt: skip


@pytest.mark.parametrize("function", ALIASED, ids=lambda f: f.__name__)
def test_what_others_see_is_changed(function):
    body(function)


def test_only_own_things_are_changed():
    body(changed_through_either_own)  # its lists are not told apart
    body(unpacked_own, rung="numpy lanes")


def test_a_start_comes_back():
    body(start_of_sum, arrays)


def test_recursion_runs_as_written():
    check(lambda xs: [recursive([[]], 2) + x for x in xs])


def test_guards_look_at_types_and_constants_count_alone(monkeypatch, tmp_path):
    fast = jit(lambda xs: [by_a_global(x) for x in xs], config=NOW)
    SEEN.clear()
    fast(*floats())
    monkeypatch.setattr(THIS, "WHICH", 1)
    fast(*floats())
    assert len(SEEN) == 6

    def pick(ks):
        SEEN.clear()
        [([], SEEN)[k].append(1.0) for k in ks]
        return len(SEEN)

    check(pick, lambda: ([0, 1, 1],))
    path = str(tmp_path / "kept")

    def opened(modes):
        return [open(path, mode).close() for mode in modes]

    jit(opened, config=NOW)(["w", "w"])
    assert "writing" in str(_explained(opened, (["r", "r"],)))
    read = _explained(lambda ps: [open(p, "rb").read() for p in ps], ([path, path],))  # noqa: SIM115
    assert "io" in str(read)


def _explained(function, args):
    fast = jit(function, config=NOW)
    fast(*args)
    return fast.explain()


def test_items_that_grow_a_part():
    fast = jit(lambda ts: [sum(t) for t in ts], config=NOW)
    for items in ([(1.0, 2.0)] * 5, [(1.0, 2.0, LOUD)] * 5):
        SEEN.clear()
        fast(items)
    assert len(SEEN) == 5


class LoudNumber(np.float64):
    def __add__(self, other):
        SEEN.append("added")
        return 1.0


def test_subclasses_of_numpy_numbers():
    check(lambda xs: [x + 1.0 for x in xs], lambda: ([LoudNumber(1.0) for _ in range(4)],))
    check(lambda xs: [x + 1.0 for x in xs], lambda: ([np.float64(1.0) for _ in range(4)],), "numpy lanes")


class Field:
    def __set__(self, owner, value):
        SEEN.append(value)

    def __get__(self, owner, kind):
        return 1.0


@dataclasses.dataclass
class WithField:
    x: float = Field()


@dataclasses.dataclass
class WithEnd:
    x: float

    def __del__(self):
        SEEN.append("gone")


class Asked(type):
    def __instancecheck__(cls, held):
        SEEN.append("asked")
        return True


class Asks(metaclass=Asked):
    pass


def test_classes_that_run_code():
    check(lambda xs: [WithField(x).x + x for x in xs])
    check(lambda xs: [WithEnd(x).x + x for x in xs])
    check(lambda xs: [x + isinstance(x, Asks) for x in xs])
    check(lambda xs: [x + isinstance(x, torch.Tensor) for x in xs], tensors, "torch vmap")


# NumPy.


def noted(x):
    SEEN.append(x)
    return x


NOISY = np.frompyfunc(noted, 1, 1)


def test_a_ufunc_of_somebody():
    check(lambda xs: [x + float(NOISY(1.0)) for x in xs])
    check(lambda xs: [x + float(np.sqrt(1.0)) for x in xs], rung="numpy lanes")


VIEWS = {
    "conj": lambda x: x.conj(), "conjugate": lambda x: x.conjugate(), "real": np.real,
    "flipud": np.flipud, "fliplr": np.fliplr, "array": lambda x: np.array(x, copy=None),
    "array no copy": lambda x: np.array(x, copy=False), "einsum": lambda x: np.einsum("ij->ji", x),
    "power": lambda x: np.linalg.matrix_power(x, 1), "diff": lambda x: np.diff(x, 0),
    "meshgrid": lambda x: np.meshgrid(x[0], x[1], copy=False)[0], "asarray": np.asarray,
    "nan_to_num": lambda x: np.nan_to_num(x, copy=False),
    "nan by position": lambda x: np.nan_to_num(x, False),
    "astype": lambda x: x.astype(float, copy=False), "edges": lambda x: np.histogram(x, x[0])[1],
    "several": lambda x: np.atleast_1d(x * 2.0, x)[1], "diag": lambda x: np.diag(x[0]),
    "objects": lambda x: np.array((DEEP, None), dtype="O")[0],
}  # fmt: skip
OWN = {
    "copy": lambda x: x.copy(), "times": lambda x: x * 2.0, "view of own": lambda x: (x * 2.0).T,
    "positive": lambda x: +x, "astype": lambda x: x.astype("f8"),
}  # fmt: skip


@pytest.mark.parametrize("how", VIEWS)
def test_what_may_be_the_argument_is_not_written_to(how):
    called = VIEWS[how]
    body(lambda x: written_in(called, x), squares)


def written_in(how, x):
    y = how(x)
    y += 1.0
    return float(x.sum())


@pytest.mark.parametrize("how", OWN)
def test_what_is_new_is_written_to(how):
    called = OWN[how]
    body(lambda x: written_in(called, x), squares, "numpy lanes")


WRITING = {
    "median": lambda x: np.median(x, overwrite_input=True),
    "percentile": lambda x: np.percentile(x, 50, None, None, True),
    "cumsum": lambda x: np.cumsum(x, 0, None, x), ".cumsum": lambda x: x.cumsum(0, None, x),
    ".round": lambda x: (x + 0.1).round(0, x), "dot": lambda x: np.dot(x, x * 2.0, x),
    "take": lambda x: np.take(x, [1, 0], 0, x), "mean": lambda x: np.mean(x, 0, None, x[0]),
    "concatenate": lambda x: np.concatenate([x[:1], x[:1]], 0, x), "clip": lambda x: np.clip(x, 1, 2, x),
    ".clip": lambda x: x.clip(1, 2, x), "compress": lambda x: np.compress([True, True], x * 2.0, 0, x),
    "ufunc": lambda x: np.add(x, 1.0, x), "out": lambda x: np.add(x, 1.0, out=x),
    "max": lambda x: np.max(x, 0, x[0]), ".sum": lambda x: x.sum(0, None, x[0]),
    "where": lambda x: np.add(x, 1.0, where=x > 3.0, out=x), "nan": lambda x: np.nansum(x, 0, None, x[0]),
}  # fmt: skip


@pytest.mark.parametrize("how", WRITING)
def test_options_that_write(how):
    called = WRITING[how]
    body(lambda x: float(np.sum(called(x))), squares)


def test_options_that_do_not_write():
    body(lambda x: np.cumsum(x, 0), arrays, "numpy lanes")
    body(lambda x: np.mean(x, 0), squares, "numpy lanes")
    body(lambda x: np.clip(x, 1, 2), squares, "numpy lanes")
    body(lambda x: np.concatenate([x, x], 0), squares, "numpy lanes")
    body(lambda x: x.astype("f8"), squares, "numpy lanes")


# PyTorch.


def model(*layers):
    torch.manual_seed(0)
    return nn.Sequential(*layers).eval().requires_grad_(False)


INPLACE = [nn.ReLU, nn.Hardtanh, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.ReLU6]


@pytest.mark.parametrize("kind", INPLACE, ids=lambda k: k.__name__)
def test_layers_that_write_into_their_argument(kind):
    for layer in (kind(inplace=True), model(kind(inplace=True), nn.Linear(4, 2))):
        check(lambda xs, layer=layer: [layer(x) for x in xs], tensors)
    for passing in (nn.Identity(), nn.Dropout(), nn.Flatten(0)):
        given = model(passing, kind(inplace=True))
        check(lambda xs, m=given: [m(x) for x in xs], tensors)
    for layers in ((nn.Linear(4, 2), kind(inplace=True)), (kind(), nn.Linear(4, 2))):
        given = model(*layers)
        check(lambda xs, m=given: [m(x) for x in xs], tensors, "torch vmap")


def test_members_of_a_wide_model_that_write():
    x = torch.arange(8.0).reshape(2, 4) - 3
    greedy = [model(nn.ReLU(inplace=True), nn.Linear(4, 4)) for _ in range(4)]
    check(lambda models, x: [m(x) for m in models], lambda: (greedy, x.clone()))
    common = [model(nn.Linear(4, 4), nn.ReLU(inplace=True)) for _ in range(4)]
    check(lambda models, x: [m(x) for m in models], lambda: (common, x.clone()), "wide model")


def test_a_layer_that_writes_from_now_on():
    one = model(nn.ReLU(), nn.Linear(4, 2))
    fast = jit(lambda xs: [one(x) for x in xs], config=NOW)
    fast(*tensors())
    assert "torch vmap" in str(fast.stats())
    one[0].inplace = True
    _same_as(fast, lambda xs: [one(x) for x in xs])
    one[0].inplace = False
    one.append(nn.Embedding(3, 2))  # a layer more, which cannot take what it gets
    with pytest.raises(RuntimeError):
        fast(*tensors())


def test_a_member_that_writes_from_now_on():
    models = [model(nn.ReLU(), nn.Linear(4, 2)) for _ in range(4)]
    fast = jit(lambda models, x: [m(x) for m in models], config=NOW)
    for _ in range(2):
        fast(models, -torch.ones(1, 4))
    assert "wide model" in str(fast.stats())
    models[2][0].inplace = True
    x = -torch.ones(1, 4)
    fast(models, x)
    assert not x.any()


def _same_as(fast, plain):
    seen = []
    for called in (plain, fast):
        seen.append(oracle.observe(called, tensors()))
    oracle.compare(*seen, rtol=1e-6)


class Block(nn.Module):
    """As in many networks: in place, on what its own layers made."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.act(self.first(x))
        out = self.act(self.second(out))
        out += x
        return self.act(out)


class Greedy(Block):
    def forward(self, x):
        return self.first(self.act(x))


def test_modules_that_write_into_what_they_made():
    for kind, rung in ((Block, "torch vmap"), (Greedy, None)):
        torch.manual_seed(0)
        one = kind().eval().requires_grad_(False)
        check(lambda xs, one=one: [one(x) for x in xs], tensors, rung)


def test_an_embedding_that_renormalises():
    for most, rung in ((0.5, None), (None, "torch vmap")):
        torch.manual_seed(0)
        layer = nn.Embedding(5, 2, max_norm=most).requires_grad_(False)
        start = layer.weight.clone()

        def looked_up(xs, layer=layer, start=start):
            layer.weight.data.copy_(start)
            out = [layer(x) for x in xs]
            return out, layer.weight.clone()

        check(looked_up, lambda: ([torch.tensor([i, i + 1]) for i in range(4)],), rung)


def test_functions_that_write():
    for called in (
        lambda x: F.relu(x, True),
        lambda x: F.relu(x, inplace=True),
        lambda x: F.relu(x * 2.0, inplace=True),
        lambda x: F.leaky_relu(x, 0.1, True),
        lambda x: F.elu(x, 1.0, True),
        lambda x: F.normalize(x, 2.0, 0, 1e-12, x),
        lambda x: written_in(lambda t: +t, x),
        lambda x: written_in(lambda t: t.contiguous(), x),
    ):
        body(called, tensors)
    for called in (lambda x: F.relu(x), lambda x: F.relu(x, False)):
        body(called, tensors, "torch vmap")


def test_attention_that_drops():
    def attend(x, p):
        x = x.reshape(1, 1, 2, 2)
        return F.scaled_dot_product_attention(x, x, x, None, p)

    for called in (lambda x: attend(x, 0.5), lambda x: attend(x, p=0.5)):
        assert "dropout_p" in str(_explained(lambda xs, called=called: [called(x) for x in xs], tensors()))
    proven = _explained(lambda xs: [attend(x, 0.0) for x in xs], tensors())
    assert "pure" in str(proven)


# The tables, by experiment: what is called new shares no memory with what went in.


def _inputs():
    whole = np.arange(1.0, 17.0).reshape(4, 4) + np.eye(4)
    yield from (whole, whole.T, whole[::2, ::2], np.asfortranarray(whole), whole[:1, :1])
    yield from (
        whole[0],
        whole[:1, 0],
        whole[0, 0:0],
        np.arange(4),
        np.arange(16).reshape(4, 4),
        whole[0, :3],
    )
    yield from (whole > 3.0, whole.astype("f4"), whole + 1j, np.array(3.0))


def _ways(x):
    """Arguments and options that a function might be called with."""
    yield from ((x,), (x, x), (x, x, x), ([x],), ((x, x),), (x, 0), (x, 1), (x, x.shape), (x, None, None))
    yield from (([0], x), ("ij", x), ("i", x), (0, x), (x, ()), (x, "f8"), (x, x.dtype), (x, [0]), (x, 0, 0))


OPTIONS = ({}, {"axis": ()}, {"axis": 0}, {"dtype": float}, {"order": "K"}, {"n": 0}, {"ndmin": 2})


def _arrays_in(found):
    if isinstance(found, (list, tuple)):
        return [a for f in found for a in _arrays_in(f)]
    return [found] if isinstance(found, np.ndarray) else []


def _shared(called, x):
    """How many ways of calling it ran; whether what came out of any of them is what went in."""
    ran = 0
    for args in _ways(x):
        for options in OPTIONS:
            if _risky(called, args, options):
                continue
            with np.errstate(all="ignore"):
                try:
                    found = called(*args, **options)
                except Exception:
                    continue
            ran += 1
            if any(np.shares_memory(a, x) for a in _arrays_in(found)):
                return ran, (args, options)
    return ran, None


def _risky(called, args, options):
    """Would the analysis refuse these options? `out` may be the argument."""
    values = [Value(type(arg), arg) for arg in args]
    return risky_option(called, called.__name__, values, {k: Value(type(v), v) for k, v in options.items()})


def _named(table):
    ufuncs = numpy_tables.UFUNCS
    return [pytest.param(f, id=f.__name__) for f, kind in table.items() if kind == "new" and f not in ufuncs]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", _named(numpy_tables.NUMPY_FUNCTIONS))
def test_new_arrays_are_new(function):
    ran = 0
    for x in _inputs():
        ways, shared = _shared(function, x)
        assert shared is None, shared
        ran += ways
    assert ran or function in (np.eye, np.identity, np.arange, np.polyval, np.zeros, np.empty, np.ones)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [n for n, kind in numpy_tables.ARRAY_METHODS.items() if kind == "new"])
def test_methods_that_make_arrays_make_new_ones(name):
    method = getattr(np.ndarray, name, None)
    if method is None:
        pytest.skip("a method of older versions of NumPy")
    ran = 0
    for x in _inputs():
        ways, shared = _shared(method, x)
        assert shared is None, shared
        ran += ways
    assert ran


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ufunc", sorted(numpy_tables.UFUNCS, key=lambda f: f.__name__))
def test_ufuncs_make_new_arrays(ufunc):
    for x in _inputs():
        with np.errstate(all="ignore"):
            try:
                found = ufunc(*[x] * ufunc.nin)
            except (TypeError, ValueError, np.linalg.LinAlgError):
                continue
        assert not any(np.shares_memory(a, x) for a in _arrays_in(found))


LAYERS = {
    nn.Linear: (4, 4), nn.LayerNorm: (4,), nn.RMSNorm: (4,), nn.GroupNorm: (2, 4), nn.Embedding: (20, 4),
    nn.Conv1d: (4, 4, 1), nn.Conv2d: (4, 4, 1), nn.MaxPool2d: (1,), nn.AvgPool2d: (1,),
    nn.AdaptiveAvgPool2d: (4,), nn.Bilinear: (4, 4, 4), nn.Softmax: (0,), nn.LogSoftmax: (0,),
    nn.BatchNorm1d: (4,), nn.BatchNorm2d: (4,), nn.Flatten: (0,),
}  # fmt: skip


@pytest.mark.parametrize("kind", [*torch_tables.LAYERS, *torch_tables.EVAL_LAYERS], ids=lambda k: k.__name__)
def test_layers_make_new_tensors_or_are_said_to_pass_on(kind):
    layer = kind(*LAYERS.get(kind, ())).eval()
    layer.requires_grad_(False)
    ran = shared = 0
    for shape in ((4,), (4, 4), (1, 4, 4), (1, 4, 4, 4), (1, 4, 1, 1), (1, 1, 1, 1)):
        turned = torch.rand(shape).mT if len(shape) > 1 else torch.rand(1)
        for x in (torch.rand(shape), turned, torch.ones(shape).long()):
            try:
                found = layer(x, x) if kind is nn.Bilinear else layer(x)
            except (RuntimeError, ValueError, IndexError):
                continue
            ran += 1
            shared += found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert ran and (kind in torch_tables.PASSING or not shared)


# Whatever is written there, the analysis gives an answer: the error is the program's own.

WRONG = [
    lambda x: [].append(), lambda x: [].insert(1), lambda x: {}.pop(), lambda x: {}.setdefault(),
    lambda x: sum(), lambda x: max(), lambda x: dict(1, 2), lambda x: isinstance(x), lambda x: operator.add(),
    lambda x: "".join(), lambda x: np.sum(), lambda x: np.float64(1.0).sort(), lambda x: F.relu(),
    lambda x: nn.Sequential()(), lambda x: set().add(), lambda x: zip(strict=x, key=len),
    lambda x: range(key=1),
    lambda x: F.relu(inplace=True), lambda x: sorted(key=len), lambda x: [].sort(key=None, no=1),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(WRONG)))
def test_calls_that_cannot_be(place):
    function = WRONG[place]
    fast = jit(lambda xs: [function(x) for x in xs], config=NOW)
    for make in (floats, tensors):
        plain = oracle.observe(lambda xs: [function(x) for x in xs], make())
        oracle.compare(plain, oracle.observe(fast, make()))
        assert plain.error is not None


class Talks(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x):
        return self.inner(x)


def test_modules_that_are_called_or_looked_into_in_another_way_from_now_on(monkeypatch):
    torch.manual_seed(0)
    one = Talks().requires_grad_(False)
    fast = jit(lambda xs: [one(x) for x in xs], config=NOW)
    fast(*tensors())
    assert "torch vmap" in str(fast.stats())

    def told(name):
        real = getattr(nn.Module, name)

        def noting(self, *args):
            SEEN.append(name)
            return real(self, *args)

        return noting

    for name in ("__call__", "__getattr__"):
        with monkeypatch.context() as patched:
            patched.setattr(Talks, name, told(name), raising=False)
            SEEN.clear()
            fast(*tensors())
            assert len(SEEN) == 6
