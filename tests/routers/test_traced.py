"""Under torch.compile: one graph, no recompilation, right after every change."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from routers.towers import AT_ONCE, Attention, Conv, Mlp, Signed, in_sequence
from wide_compiler.routers import BaseTower, WideRouter


class Collective(WideRouter):
    def forward(self, x, **options):
        return self.wide_forward(x, **options)


def make(*towers):
    router = Collective("collective", config=AT_ONCE)
    for tower in towers:
        router.attach(tower._label.text, tower.double())
    return router


def compiled(router, fullgraph=True):
    torch._dynamo.reset()
    counters.clear()
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(router, backend=counter, fullgraph=fullgraph), counter


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def assert_right(run, router, x, **kwargs):
    expected, towers = in_sequence(router, x, **kwargs)
    got = run(x, **kwargs)
    for name, out in expected.items():
        torch.testing.assert_close(got[name], out)
    for name, tower in towers.items():
        for path, buffer in tower.named_buffers():
            torch.testing.assert_close(router[name].get_buffer(path), buffer)


KINDS = {
    "conv": ([Conv(f"c{i}") for i in range(3)], (4, 3, 5, 5)),
    "mixed": ([Mlp("a"), Signed("b", sign=-1), Mlp("c"), Signed("d", sign=+1)], (4, 6)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_graph_break_and_no_recompilation_over_100_steps_in_train_and_eval(kind):
    towers, shape = KINDS[kind]
    router = make(*copy.deepcopy(towers)).prepare_for_compile()
    alone = copy.deepcopy(nn.ModuleDict(router._towers()))
    run, counter = compiled(router)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (router, alone)]
    for training in (True, False):
        router.train(training), alone.train(training)
        frames = counter.frame_count
        for _ in range(100):
            x = double(*shape)
            got, expected = run(x), {name: tower(x) for name, tower in alone.items()}
            for outputs, optimizer in zip((got, expected), optimizers, strict=True):
                optimizer.zero_grad()
                sum(out.square().mean() for out in outputs.values()).backward()
                optimizer.step()
        for name, out in expected.items():
            torch.testing.assert_close(got[name], out, rtol=1e-6, atol=1e-8)
        assert counter.frame_count == frames + 1
    assert not counters["graph_break"]
    assert router.explain().together == len(towers)
    for mine, theirs in zip(router._towers().values(), alone.values(), strict=True):
        for a, b in zip(mine.state_dict().values(), theirs.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_batches_of_any_size_need_one_graph_more():
    router = make(*[Mlp(str(i)) for i in range(4)]).prepare_for_compile()
    run, counter = compiled(router)
    for batch in (4, 5, 17):
        assert_right(run, router, double(batch, 6))
    assert counter.frame_count == 2


def test_unprepared_it_runs_in_sequence_and_is_right():
    router = make(*[Conv(str(i)) for i in range(4)])
    run, counter = compiled(router)
    assert_right(run, router, double(4, 3, 5, 5))
    assert counter.frame_count == 1 and not counters["graph_break"]
    assert "prepared=False" in repr(router)


def test_masks_and_some_towers_only():
    router = make(*[Attention(str(i)) for i in range(3)]).prepare_for_compile()
    run, _ = compiled(router)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[:, 3:] = True
    x = double(2, 5, 8)
    assert_right(run, router, x, mask=mask)
    assert router.explain().together == 3
    got = run(x, tower_names=["1", "2"])
    assert list(got) == ["1", "2"] and router.explain().together == 2
    torch.testing.assert_close(got["2"], router["2"](x))


def attach(router):
    router.attach("new", Mlp("new").double())


def detach(router):
    router.detach("1")


def replace(router):
    router.replace("2", Mlp("2").double())


def replace_by_another_kind(router):
    router.replace("2", Mlp("2", hidden=3).double())


def set_attribute(router):
    router.__setattr__("2", Mlp("2").double())


def half_the_router_and_back(router):
    router.half().double()


def one_in_eval_mode(router):
    router["3"].eval()


def freeze(router):
    router["0"].requires_grad_(False)


def another_layer(router):
    router["1"].stages[0] = nn.Linear(6, 10).double()


def one_stage_more(router):
    router["1"].append(nn.Tanh())


def another_activation(router):
    router["1"].stages[1] = nn.Tanh()


def another_attribute(router):
    router["1"].stages[1].approximate = "tanh"


def a_hook(router):
    router["1"].register_forward_hook(lambda module, args, out: out * 2)


def weights_in_place(router):
    router["1"][0].weight.data.mul_(2)


def new_weights(router):
    router["1"][0].weight = nn.Parameter(double(10, 6))


CHANGES = [attach, detach, replace, replace_by_another_kind, set_attribute, half_the_router_and_back]
CHANGES += [one_in_eval_mode, freeze, another_layer, one_stage_more, another_activation, another_attribute]
CHANGES += [a_hook, weights_in_place, new_weights]
# Each costs seconds of tracing. (Hooks that are added later torch.compile does not see, here or elsewhere.)
TRACED = [attach, replace_by_another_kind, freeze, one_stage_more, another_attribute]


@pytest.mark.parametrize(
    ("change", "eager"),
    [*((c, True) for c in CHANGES), *((c, False) for c in TRACED)],
    ids=lambda p: getattr(p, "__name__", {True: "eager", False: "compiled"}.get(p)),
)
def test_the_forward_after_a_change_is_right(change, eager):
    router = make(*[Mlp(str(i)) for i in range(4)]).prepare_for_compile()
    run = router if eager else compiled(router, fullgraph=False)[0]
    x = double(4, 6)
    assert_right(run, router, x)
    assert router.explain().together == 4
    change(router)
    assert_right(run, router, x)
    router.prepare_for_compile()
    learning = [p for p in router.parameters() if p.requires_grad]
    sum(out.sum() for out in run(x).values()).backward()
    assert all(p.grad is not None for p in learning)
    assert all(p.grad is None for p in router.parameters() if not p.requires_grad)


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "compiled"])
def test_one_tower_in_another_precision(eager):
    if not eager and torch.__version__ < "2.12":
        pytest.skip("this torch.compile does not notice a parameter that changes its dtype")
    router = make(*[Mlp(str(i)) for i in range(4)]).prepare_for_compile()
    run = router if eager else compiled(router, fullgraph=False)[0]
    run(double(4, 6))
    router["2"].float()
    with pytest.raises(Exception, match="dtype"):
        run(double(4, 6))
    got = run(double(4, 6), tower_names=["0", "1", "3"])
    assert list(got) == ["0", "1", "3"]
    router["2"].double()
    assert_right(run, router, double(4, 6))


def test_towers_with_objects_that_no_guard_covers_run_in_sequence_in_a_trace():
    class Settings:
        scale = 1.0

    class Configured(BaseTower):
        def __init__(self, name, settings):
            super().__init__(name)
            self.fc, self.settings = nn.Linear(6, 6), settings

        def forward(self, x):
            return self.fc(x) * self.settings.scale

    settings = Settings()
    settings.scale = 2.0
    router = make(*[Configured(str(i), settings) for i in range(3)]).prepare_for_compile()
    x = double(4, 6)
    assert_right(router, router, x)
    assert router.explain().together == 3
    run, _ = compiled(router)
    assert_right(run, router, x)
    settings.scale = 5.0
    assert_right(run, router, x)
    assert_right(router, router, x)


class OfItsClass(BaseTower):
    power, factor = 2, 2

    def __init__(self, name):
        super().__init__(name)
        self.fc, self.scale = nn.Linear(6, 6), 1.0

    def forward(self, x):
        return self.fc(x) ** self.power * self.factor * self.scale


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "compiled"])
def test_settings_changed_of_a_class_and_of_one_tower(eager, monkeypatch):
    router = make(*[OfItsClass(str(i)) for i in range(3)]).prepare_for_compile()
    run = router if eager else compiled(router)[0]
    x = double(4, 6)
    for power in (2, 3, 4):
        monkeypatch.setattr(OfItsClass, "power", power)
        assert_right(run, router, x)
        assert router.explain().together == 3
    for scale in (0.5, 0.25, 0.125):  # in a trace such a tower runs by itself, until it is prepared again
        router["1"].scale = scale
        assert_right(run, router, x)
    router.prepare_for_compile()
    assert_right(run, router, x)
    assert router.explain().together == 3
    monkeypatch.setattr(OfItsClass, "factor", 0.5)
    assert_right(run, router, x)


def test_compile_prepares_and_compiles():
    torch._dynamo.reset()
    router = make(*[Mlp(str(i)) for i in range(4)])
    run = router.compile(backend="aot_eager")
    assert "prepared=True" in repr(router) and router.objects["_vmap_groups"].keys() == {("0", "1", "2", "3")}
    assert_right(run, router, double(4, 6))
    assert router.explain().together == 4


def test_inside_a_larger_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.collective = nn.Linear(3, 6), make(*[Mlp(str(i)) for i in range(4)])
            self.head = nn.Linear(6, 2)

        def forward(self, x):
            opinions = self.collective(self.stem(x))
            return self.head(torch.stack(list(opinions.values())).mean(0))

    model = Model().double()
    model.collective.prepare_for_compile()
    run, counter = compiled(model)
    x = double(4, 3)
    torch.testing.assert_close(run(x), model(x))
    assert counter.frame_count == 1 and model.collective.explain().together == 4
