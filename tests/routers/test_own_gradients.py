"""Parameters that are added to each other get gradients of their own: a second backward adds to each once."""

import copy

import pytest
import torch
from torch import nn

from wide_compiler import WideConfig
from wide_compiler.routers import BaseTower, CompileRouter, WideRouter

CONFIG = WideConfig(tune_seconds=0)  # joined without measuring


class Sums(BaseTower):
    """Sums of small and of large parameters, which `prepare_for_compile` stores in another way."""

    def __init__(self, name):
        super().__init__(name)
        self.attach("fc", nn.Linear(4, 4))
        self.u, self.v = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.large, self.larger = (nn.Parameter(torch.randn(300, 300)) for _ in range(2))

    def forward(self, x):
        return self["fc"](x * (self.u + self.v)) + (self.large + self.larger).mean()


class Recurrent(BaseTower):
    def __init__(self, name):
        super().__init__(name)
        self.attach("rnn", nn.LSTM(4, 4))

    def forward(self, x):
        return self["rnn"](x.unsqueeze(0))[0]


class Towers(WideRouter):
    def __init__(self, kind, **options):
        super().__init__("towers", **options)
        for i in range(3):
            self.attach(f"t{i}", kind(f"t{i}"))
        self.discover_towers()

    def forward(self, x):
        return torch.stack(list(self.wide_forward(x).values()))


class Branches(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.branches = nn.ModuleList(kind(f"t{i}") for i in range(3))

    def forward(self, x):
        return torch.stack([branch(x) for branch in self.branches])


def towers(kind, x, **options):
    router = Towers(kind, config=CONFIG, **options).double()
    alone = copy.deepcopy(router)
    return router, router, alone, lambda: torch.stack([alone[f"t{i}"](x) for i in range(3)])


def prepared(kind, x):
    router, *rest = towers(kind, x)
    router.prepare_for_compile(x)
    return router, *rest


def branches(kind, x):
    model = Branches(kind).double()
    alone = copy.deepcopy(model)
    return model, CompileRouter.from_module(model, x, config=CONFIG).compile(), alone, lambda: alone(x)


DOORS = {
    "towers": towers,
    "prepared": prepared,
    "stacked": lambda kind, x: towers(kind, x, stacked=True),
    "branches": branches,
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
@pytest.mark.parametrize("kind", [Sums, Recurrent])
@pytest.mark.parametrize("rows", [1, 2])
def test_gradients_of_sums_share_no_memory(door, kind, rows):
    x = torch.randn(rows, 4, dtype=torch.float64)
    model, joined, alone, expected = door(kind, x)
    for _ in range(3):  # accumulated
        joined(x).square().sum().backward()
        expected().square().sum().backward()
    for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-10, atol=1e-10, msg=name)
    gradients = [p.grad for p in model.parameters()]
    places = [(g.data_ptr(), g.data_ptr() + g.nbytes) for g in gradients]
    for (_, end), (start, _) in zip(sorted(places), sorted(places)[1:], strict=False):
        assert end <= start
