"""Towers for tests: small, of several kinds, in float64 so that equality is a matter of the last digits."""

import copy

import torch
from torch import nn

from wide_compiler import WideConfig
from wide_compiler.routers import BaseTower, WideRouter

# Groups run together without being measured first: tests compare numbers, not times.
AT_ONCE = WideConfig(tune_seconds=0)


class Mlp(BaseTower):
    def __init__(self, name, dim=6, hidden=10):
        super().__init__(name)
        self.extend([nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim)])


class Conv(BaseTower):
    def __init__(self, name, channels=3):
        super().__init__(name)
        self.extend([nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()])
        self.attach("head", nn.Linear(4 * 25, 5))

    def forward(self, x):
        return self["head"](super().forward(x))


class Attention(BaseTower):
    def __init__(self, name, dim=8):
        super().__init__(name)
        self.norm, self.attention = nn.LayerNorm(dim), nn.MultiheadAttention(dim, 2, batch_first=True)

    def forward(self, x, mask=None):
        h = self.norm(x)
        return x + self.attention(h, h, h, key_padding_mask=mask, need_weights=False)[0]


class Signed(BaseTower):
    def __init__(self, name, dim=6, sign=+1):
        super().__init__(name)
        self.sign = sign
        self.fc = nn.Linear(dim, dim)

    def forward(self, x):
        return torch.tanh(self.fc(x)) * self.sign


def collective(*towers, config=AT_ONCE, **options):
    """A router of towers in float64."""
    router = WideRouter("collective", config=config, **options)
    for tower in towers:
        router.attach(tower._label.text, tower.double())
    return router


def in_sequence(router, x, **kwargs):
    """What a copy of the router's towers gives, one after the other: outputs, and the towers afterwards."""
    towers = {name: copy.deepcopy(tower) for name, tower in router._towers().items()}
    return {name: tower(x, **kwargs) for name, tower in towers.items()}, towers


def loss_of(outputs):
    """A sum in which no element weighs like another, so that mixed-up gradients show."""
    total = 0
    for i, out in enumerate(outputs.values()):
        weights = torch.linspace(0.5, 1.5 + i, out.numel(), dtype=out.dtype, device=out.device).view_as(out)
        total = total + (out * weights).sum()
    return total


def assert_equal_to_sequence(router, x, step=True, **kwargs):
    """Outputs, gradients, buffers, the input's gradient and one optimiser step equal those of sequence."""
    x = x.detach().clone().requires_grad_(x.is_floating_point())
    expected, towers = in_sequence(router, x, **kwargs)
    loss_of(expected).backward()
    wanted_x, x.grad = x.grad, None
    router.zero_grad()
    got = router.wide_forward(x, **kwargs)
    assert list(got) == router.tower_names
    loss_of(got).backward()
    if x.requires_grad:
        torch.testing.assert_close(x.grad, wanted_x, rtol=1e-9, atol=1e-10)
    living = router._towers()
    for name, tower in towers.items():
        torch.testing.assert_close(got[name], expected[name], rtol=1e-9, atol=1e-10)
        for path, parameter in tower.named_parameters():
            own = living[name].get_parameter(path)
            assert (own.grad is None) == (parameter.grad is None), f"{name}.{path}"
            if own.grad is not None:
                torch.testing.assert_close(own.grad, parameter.grad, rtol=1e-8, atol=1e-9)
        for path, buffer in tower.named_buffers():
            torch.testing.assert_close(living[name].get_buffer(path), buffer, rtol=1e-9, atol=1e-10)
    if step:
        for module in (router, *towers.values()):
            torch.optim.Adam(module.parameters(), lr=0.01).step()
        for name, tower in towers.items():
            for path, parameter in tower.named_parameters():
                torch.testing.assert_close(living[name].get_parameter(path), parameter, rtol=1e-6, atol=1e-7)
    router.zero_grad()
