"""The same training twice: wide with one optimiser by lane, and every model alone with a stock optimiser."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler
from wide_compiler import WideConfig

N = 8
PLAIN = WideConfig(tune_seconds=0)


class Net(nn.Module):
    """A layer, a norm with buffers, and a vector and a number as parameters: four ranks."""

    def __init__(self):
        super().__init__()
        # The norm comes first: a bias before it has gradients of mere rounding, whose sign means nothing.
        self.norm, self.up, self.down = nn.BatchNorm1d(5), nn.Linear(5, 6), nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.rand(()) + 0.5)

    def forward(self, x):
        return self.scale * self.down(torch.tanh(self.up(self.norm(x))))


class LionReference(torch.optim.Optimizer):
    """Lion as its paper has it, for one model: the sign of a blend, then a slower blend as memory."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                direction = torch.sign(beta1 * m + (1 - beta1) * p.grad)
                p.sub_(group["lr"] * (direction + group["weight_decay"] * p))
                m.copy_(beta2 * m + (1 - beta2) * p.grad)


def of_lane(value, lane):
    """A hyper-parameter of one lane: a list of N has one for each, a pair is one of betas."""
    if isinstance(value, tuple):
        return tuple(of_lane(v, lane) for v in value)
    return value[lane] if isinstance(value, list) else value


_KNOWN = {}


def models_and_wide(make, n, features, config, device="cpu"):
    """The same `n` models every time, alone and wide; compiled once, since all tests want the same."""
    key = (make, n, features, id(config), device)
    if key not in _KNOWN:
        torch.manual_seed(5)
        models = [make().double().to(device) for _ in range(n)]
        sample = torch.randn(2, features, dtype=torch.float64, device=device)
        _KNOWN[key] = models, wide_compiler.compile(copy.deepcopy(models), sample, config=config)
    return copy.deepcopy(_KNOWN[key])


class Both:
    """Wide and alone, from the same weights on the same batches."""

    def __init__(self, ours, stock, options, n=N, make=Net, config=PLAIN, device="cpu", features=(5, 3)):
        self.n, self.features, self.device = n, features, device
        self.models, self.wide = models_and_wide(make, n, features[0], config, device)
        torch.manual_seed(3)
        self.optimizer = ours(self.wide.parameters(), **options)
        self.own = [
            stock(m.parameters(), **{k: of_lane(v, lane) for k, v in options.items()})
            for lane, m in enumerate(self.models)
        ]

    def batch(self):
        into, out = self.features
        options = {"dtype": torch.float64, "device": self.device}
        return torch.randn(self.n, 4, into, **options), torch.randn(self.n, 4, out, **options)

    def backward(self):
        x, y = self.batch()
        losses = F.mse_loss(self.wide.stacked(x), y, reduction="none").mean((1, 2))
        losses.sum().backward()
        for model, a, b in zip(self.models, x, y, strict=True):
            F.mse_loss(model(a), b).backward()

    def zero_grad(self):
        for optimizer in (self.optimizer, *self.own):
            optimizer.zero_grad()

    def step(self):
        for optimizer in (self.optimizer, *self.own):
            optimizer.step()

    def run(self, steps, after=None, accumulate=1, before=None):
        """`before` is called between backward and step, `after` after each step."""
        for _ in range(steps):
            self.zero_grad()
            for _ in range(accumulate):
                self.backward()
            if before is not None:
                before()
            self.step()
            if after is not None:
                after()

    def check(self, lanes=None, tolerance=1e-6):
        for lane in range(self.n) if lanes is None else lanes:
            for name, value in self.models[lane].state_dict().items():
                got = self.wide.lane(lane).state_dict()[name]
                torch.testing.assert_close(
                    got, value, rtol=tolerance, atol=tolerance, msg=lambda m, k=(lane, name): f"{k}: {m}"
                )
