"""Three towers behind each door of the routers, beside the same towers run one by one."""

import copy

import torch
from torch import nn

from routers.towers import AT_ONCE
from wide_compiler.routers import BaseTower, CompileRouter, WideRouter


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


def towers(kind, x, config=AT_ONCE, **options):
    router = Towers(kind, config=config, **options).double()
    alone = copy.deepcopy(router)
    return router, router, alone, lambda: torch.stack([alone[f"t{i}"](x) for i in range(3)])


def prepared(kind, x, config=AT_ONCE):
    router, *rest = towers(kind, x, config)
    router.prepare_for_compile()
    return router, *rest


def branches(kind, x, config=AT_ONCE):
    model = Branches(kind).double()
    alone = copy.deepcopy(model)
    return model, CompileRouter.from_module(model, x, config=config).compile(), alone, lambda: alone(x)


DOORS = {
    "towers": towers,
    "prepared": prepared,
    "stacked": lambda kind, x, config=AT_ONCE: towers(kind, x, config, stacked=True),
    "branches": branches,
}
