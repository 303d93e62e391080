"""Loops over tensors and modules on a GPU: the same results, and nobody waits for it who did not before."""

import pytest
import torch
from torch import nn

from wide_compiler.measure.clock import Clock, Times
from wide_compiler.xcs import Config, choice, costs, jit
from xcs import oracle

from .module_loops import loop, rows, zipped

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


class Trunk(nn.Module):
    """A head on a trunk, and a table that is equal in all members."""

    def __init__(self, trunk):
        super().__init__()
        self.trunk, self.head = trunk, nn.Linear(16, 8)
        self.register_buffer("table", torch.linspace(0.0, 1.0, 16))

    def forward(self, x):
        return self.head(torch.relu(self.trunk(x)) + self.table)


def mlps(count=8):
    return [nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).cuda() for _ in range(count)]


def softmaxes(xs):
    return [torch.softmax(x * 2.0, dim=0) for x in xs]


def ran(fast, rung):
    return sum(counts.get(rung, 0) for counts in fast.stats().values())


def fast_of(plain):
    return jit(plain, config=Config(measure=False))


def check(plain, fast, *arguments):
    assert oracle.same(plain(*arguments), fast(*arguments), rtol=1e-5)


CALLS = [
    (loop, lambda: (mlps(), torch.randn(4, 16, device="cuda")), "wide model"),
    (zipped, lambda: (mlps(), [torch.randn(4, 16, device="cuda") for _ in range(8)]), "wide model"),
    (rows, lambda: (mlps(1)[0], [torch.randn(4, 16, device="cuda") for _ in range(64)]), "torch vmap"),
    (softmaxes, lambda: ([torch.randn(100, device="cuda") for _ in range(64)],), "torch vmap"),
]
over_calls = pytest.mark.parametrize(
    ("plain", "made", "rung"), CALLS, ids=["shared", "zipped", "rows", "softmax"]
)


@over_calls
def test_equal_and_fast(plain, made, rung):
    fast, arguments = fast_of(plain), made()
    for _ in range(5):
        check(plain, fast, *arguments)
    assert ran(fast, rung) == 5


@over_calls
def test_results_that_are_kept_stay_as_they_are(plain, made, rung):
    fast, given = fast_of(plain), [made() for _ in range(2)]
    wanted, got = [], []
    for i in range(10):
        arguments = given[0] if i % 2 else (given[0][0], *given[1][1:])
        wanted.append(plain(*arguments))
        got.append(fast(*arguments))
    assert oracle.same(wanted, got, rtol=1e-5)
    assert ran(fast, rung) == 10


@over_calls
def test_within_a_recording_the_text_runs_as_written(plain, made, rung):
    fast, arguments = fast_of(plain), made()
    check(plain, fast, *arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = fast(*arguments)
    graph.replay()
    assert oracle.same(plain(*arguments), got, rtol=1e-5)
    assert ran(fast, rung) == 1 and ran(fast, "plain") == 1
    check(plain, fast, *arguments)
    assert ran(fast, rung) == 2


@over_calls
def test_on_another_stream(plain, made, rung):
    fast, arguments = fast_of(plain), made()
    wanted = plain(*arguments)
    for _ in range(3):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            got = fast(*arguments)
        torch.cuda.current_stream().wait_stream(stream)
        assert oracle.same(wanted, got, rtol=1e-5)
    assert ran(fast, rung) == 3


@over_calls
def test_other_precision_is_compared_anew(plain, made, rung):
    """A batch may be multiplied with other digits than an item."""
    fast, arguments = fast_of(plain), made()
    before = torch.get_float32_matmul_precision()
    check(plain, fast, *arguments)
    torch.set_float32_matmul_precision("high")
    try:
        assert oracle.same(plain(*arguments), fast(*arguments), rtol=1e-4)
    finally:
        torch.set_float32_matmul_precision(before)
    check(plain, fast, *arguments)


@over_calls
def test_autocast(plain, made, rung):
    fast, arguments = fast_of(plain), made()
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        with torch.autocast("cuda", dtype=dtype):
            assert oracle.same(plain(*arguments), fast(*arguments), rtol=1e-5)
        check(plain, fast, *arguments)


def test_a_trunk_and_equal_buffers_that_part():
    trunk = nn.Linear(16, 16)
    models = [Trunk(trunk).cuda() for _ in range(6)]
    fast, x = fast_of(loop), torch.randn(4, 16, device="cuda")
    check(loop, fast, models, x)
    trunk.weight.data.mul_(2.0)
    check(loop, fast, models, x)
    models[3].table += 1.0
    check(loop, fast, models, x)
    models[2].head.bias.data = torch.ones(8, device="cuda")
    check(loop, fast, models, x)
    assert ran(fast, "wide model") == 4


def test_members_that_are_trained_between_calls():
    models, x = mlps(), torch.randn(4, 16, device="cuda")
    fast = fast_of(loop)
    optimiser = torch.optim.Adam([p for m in models for p in m.parameters()], lr=0.1)
    for _ in range(6):
        check(loop, fast, models, x)
        optimiser.zero_grad()
        sum(m(x).square().mean() for m in models).backward()
        optimiser.step()
    assert ran(fast, "wide model") == 6


def test_members_that_move_to_the_gpu():
    models, x = [m.cpu() for m in mlps()], torch.randn(4, 16)
    fast = fast_of(loop)
    check(loop, fast, models, x)
    for model in models:
        model.cuda()
    for _ in range(3):
        check(loop, fast, models, x.cuda())
    models[0].cpu()
    with pytest.raises(RuntimeError):
        fast(models, x.cuda())


def test_an_item_elsewhere_raises_as_ever():
    xs = [torch.randn(16, device="cuda") for _ in range(64)]
    xs[40] = xs[40].cpu()
    model = mlps(1)[0]
    fast = fast_of(rows)
    wanted, got = oracle.observe(rows, (model, xs)), oracle.observe(fast, (model, xs))
    assert type(wanted.error) is type(got.error) and str(wanted.error) == str(got.error)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_rung_must_win_a_race(monkeypatch, ahead):
    """The time of a call says nothing of the GPU's: what lost a race with the plain loop is not taken."""
    races = []

    class Decided(Clock):
        def turns(self, candidates, seconds, cuda=False, **options):
            assert cuda
            races.append([call() for call in candidates.values()])
            return Times({"plain": 1.0, "rung": 0.5 if ahead else 1.0})

    monkeypatch.setattr(choice, "current_clock", Decided)
    monkeypatch.setattr(costs, "SHARE", 10.0)
    fast, xs = jit(softmaxes), [torch.randn(100, device="cuda") for _ in range(2000)]
    for _ in range(6):
        check(softmaxes, fast, xs)
    assert races and all(len(some) == choice.RUNNERS for some in races[0])
    assert (ran(fast, "torch vmap") > 0) is ahead
    assert not ahead or len(races) == 1
