"""Random models put through random lives by every door, beside the members run one by one.

    python tests/life/random_lives.py 1000 200                # seeds 1000 to 1199
    python tests/life/random_lives.py 1000 200 compile cuda   # one door; calls and steps are recorded

A life is a sequence of calls, training steps and changes. Each is applied to the members (the reference:
copies run in a Python loop) and to a door: `compile`, `WideRouter`, `CompileRouter`, or a `@jit` loop.
"""

import copy
import dataclasses
import io
import random
import sys
import threading
import traceback
from collections import Counter, namedtuple
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import wide_compiler
from wide_compiler.routers import CompileRouter, WideRouter
from wide_compiler.training import TrainStep
from wide_compiler.xcs import Config, jit

WIDTH = 6
RTOL = 1e-9
DEVICE = "cuda" if "cuda" in sys.argv else "cpu"

# What forwards read, and lives change.
GAIN = 1.0
TABLE = {"shift": 0.1, "inner": {"power": 1.0}}
SETTINGS = SimpleNamespace(slope=0.2, names=["relu"])
OFFSET = torch.zeros(WIDTH, dtype=torch.float64, device=DEVICE)


class Limits:
    highest = 3.0


@dataclasses.dataclass
class Options:
    eps: float = 0.01


OPTIONS = Options()


def helper(x: Tensor) -> Tensor:
    return x * 1.1


def other_helper(x: Tensor) -> Tensor:
    return x * 0.9


def reset_world() -> None:
    global GAIN, OFFSET, helper
    GAIN, Limits.highest, OPTIONS.eps, SETTINGS.slope, SETTINGS.names[:] = 1.0, 3.0, 0.01, 0.2, ["relu"]
    TABLE["shift"], TABLE["inner"]["power"] = 0.1, 1.0
    OFFSET = torch.zeros(WIDTH, dtype=torch.float64, device=DEVICE)
    helper = _first_helper


_first_helper = helper


# Blocks: from [B, WIDTH] to [B, WIDTH].


class ReadsGlobals(nn.Module):
    def forward(self, x):
        return helper(x * GAIN + TABLE["shift"]) + OFFSET


class ReadsObjects(nn.Module):
    def forward(self, x):
        x = F.leaky_relu(x, SETTINGS.slope).clamp(max=Limits.highest)
        x = x / (x.abs().mean() + OPTIONS.eps) ** TABLE["inner"]["power"]
        return x.relu() if "relu" in SETTINGS.names else x.tanh()


class CountsCalls(nn.Module):
    """A Python number that its forward changes."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * (1 + 0.1 * (self.calls % 4))


class CountsInBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.tensor(0.0))
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)

    def forward(self, x):
        if self.training:
            self.steps.add_(1)
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean + self.steps * 0.01


class Caches(nn.Module):
    """Keeps a tensor computed from its weight until `train(True)`."""

    def __init__(self):
        super().__init__()
        self.weight, self.kept = nn.Parameter(torch.randn(WIDTH)), None

    def train(self, mode=True):
        if mode:
            self.kept = None
        return super().train(mode)

    def forward(self, x):
        if self.training:
            return x * self.weight.softmax(0)
        if self.kept is None:
            self.kept = self.weight.detach().softmax(0)
        return x * self.kept


class BranchesOnSize(nn.Module):
    def __init__(self):
        super().__init__()
        self.few, self.many = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.few(x) if x.shape[0] < 3 else self.many(x)


class BranchesOnMode(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.linear(x) if self.training else self.linear(x) * 0.5
        return x + 1 if torch.is_grad_enabled() else x


class BranchesOnValue(nn.Module):
    def forward(self, x):
        return x * 2 if x.mean() > 0 else x - 1


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.b = nn.Linear(WIDTH, WIDTH, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x).relu())


class Normed(nn.Module):
    """A parametrised weight."""

    def __init__(self):
        super().__init__()
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return self.linear(x)


class MaxNorm(nn.Module):
    """Writes its own weight's data in training."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x):
        if self.training:
            self.weight.data = torch.renorm(self.weight.data, 2, 0, 1.0)
        return x @ self.weight.T


class OwnNumber(nn.Module):
    """A number and a list that are different in each member."""

    def __init__(self):
        super().__init__()
        self.factor, self.terms = random.uniform(0.5, 1.5), [random.uniform(-1, 1)]

    def forward(self, x):
        return x * self.factor + sum(self.terms)


class PartlyFrozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.a.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            y = self.b(x)
        return self.a(x) + self.b(x).sigmoid() + y


class Looks(nn.Module):
    """Integers computed from values choose rows."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, WIDTH)

    def forward(self, x):
        return x + self.table((x[:, 0].abs() * 3).long().clamp(0, 4))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(2, 3, batch_first=True)

    def forward(self, x):
        return x + self.gru(x.reshape(x.shape[0], 3, 2))[0].reshape(x.shape[0], -1)[:, :WIDTH]


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 1, batch_first=True)

    def forward(self, x):
        rows = x.reshape(x.shape[0], 3, 2)
        return x + self.attention(rows, rows, rows, need_weights=False)[0].reshape(x.shape)


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5


class OwnFunction(nn.Module):
    def forward(self, x):
        return Clipped.apply(x)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


class InPlace(nn.Module):
    """Writes into a temporary, and into its input."""

    def __init__(self, writes_input=False):
        super().__init__()
        self.writes_input = writes_input

    def forward(self, x):
        y = x if self.writes_input and not x.requires_grad else x.clone()
        y[:, 0] = 0.5
        y.mul_(1.5)
        return y + y.cumsum(1).sort(1).values


class Convolves(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(1, 2, 3, padding=1), nn.BatchNorm1d(2)

    def forward(self, x):
        return x + self.norm(self.conv(x.unsqueeze(1))).mean(1)


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


BLOCKS = [
    *(lambda: nn.Linear(WIDTH, WIDTH), lambda: nn.LayerNorm(WIDTH), lambda: nn.BatchNorm1d(WIDTH)),
    *(nn.Tanh, nn.GELU, lambda: nn.PReLU(), lambda: nn.BatchNorm1d(WIDTH, momentum=None)),
    *(ReadsGlobals, ReadsObjects, CountsCalls, CountsInBuffer, Caches, BranchesOnSize, BranchesOnMode),
    *(BranchesOnValue, Tied, Normed, MaxNorm, OwnNumber, PartlyFrozen, Looks, Recurrent, Attends),
    *(OwnFunction, Checkpointed, InPlace, Convolves, lambda: Residual(nn.Linear(WIDTH, WIDTH))),
]
RARE = [CountsCalls, BranchesOnValue, Caches, MaxNorm]

Pair = namedtuple("Pair", "first rest")


@dataclasses.dataclass
class Answer:
    """An output that PyTorch does not know as a pytree."""

    mean: Tensor
    parts: list


OUTPUTS = {
    "tensor": lambda x: x,
    "tuple": lambda x: (x, x.mean(1)),
    "dict": lambda x: {"out": x, "norm": x.norm(dim=1), "size": x.shape[0]},
    "namedtuple": lambda x: Pair(x, [x[:, :1], None]),
    "dataclass": lambda x: Answer(x.mean(1), [x, 3]),
    "view": lambda x: (x, x[:, 1:3], x.T),
    "same": lambda x: (x, x),
}


class Model(nn.Module):
    def __init__(self, blocks, output, takes_scale):
        super().__init__()
        self.blocks, self.output, self.takes_scale = nn.ModuleList(blocks), output, takes_scale

    def forward(self, x, scale=None):
        for block in self.blocks:
            x = block(x)
        if scale is not None:
            x = x * scale
        return OUTPUTS[self.output](x)


def lane_losses(outputs: Tensor) -> Tensor:
    """One loss per lane: `[N, B, WIDTH]` -> `[N]`."""
    return (outputs.square().mean((1, 2)) + outputs.mean((1, 2))) * GAIN


def tensors(value: Any) -> list[Any]:
    """The leaves of an output, in order, of any type."""
    if isinstance(value, Answer):
        return tensors([value.mean, value.parts])
    if isinstance(value, dict):
        return [leaf for key in value for leaf in (key, *tensors(value[key]))]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *(leaf for item in value for leaf in tensors(item))]
    return [value]


def differs(got: Any, want: Any, rtol: float) -> str:
    got, want = tensors(got), tensors(want)
    if len(got) != len(want):
        return f"{got} has another form than {want}"
    for mine, theirs in zip(got, want, strict=True):
        if not isinstance(theirs, Tensor):
            if type(mine) is not type(theirs) or mine != theirs:
                return f"{mine!r} instead of {theirs!r}"
        elif type(mine) is not Tensor and not isinstance(mine, nn.Parameter):
            return f"a {type(mine).__name__} instead of a Tensor"
        elif mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"{tuple(mine.shape)} {mine.dtype} instead of {tuple(theirs.shape)} {theirs.dtype}"
        elif mine.requires_grad != theirs.requires_grad:
            return f"requires_grad={mine.requires_grad} instead of {theirs.requires_grad}"
        else:
            mine, theirs = (x + 0 if x.dtype is torch.bool else x for x in (mine, theirs))
            error = (mine.detach() - theirs.detach()).abs().max().item() if theirs.numel() else 0.0
            scale = max(theirs.detach().abs().max().item() if theirs.numel() else 0.0, 1e-3)
            if not error <= rtol * scale and not (mine.isnan() == theirs.isnan()).all():
                return f"NaN at other places than {theirs}"
            if error > rtol * scale:
                return f"off by {error:.2g} of {scale:.2g}"
    return ""


# Doors: what is tested. Each has `call(inputs, scale)`, one input per lane, and `modules`, its members if it
# runs the modules it was given, which lives may then change as they like.


class Loop:
    def __init__(self, members):
        self.modules = members

    def call(self, inputs, scale):
        scales = [None] * len(inputs) if scale is None else scale
        return [m(x, scale=s) for m, x, s in zip(self.modules, inputs, scales, strict=True)]


class Compiled:
    def __init__(self, members, sample, config):
        self.wide = wide_compiler.compile(members, sample, config=config)
        self.modules, self.stackable = None, members[0].output in ("tensor", "tuple", "dict")

    def call(self, inputs, scale):
        same = all(x is inputs[0] for x in inputs) or len({x.data_ptr() for x in inputs}) == 1
        if scale is not None:
            return self.wide.each(inputs, scale=scale)
        if same and self.stackable:
            return wide_compiler.unstack(self.wide.shared(inputs[0]), len(inputs))
        if self.stackable and not inputs[0].requires_grad and len(inputs[0]) == 3:
            return wide_compiler.unstack(self.wide.stacked(torch.stack(inputs)), len(inputs))
        return self.wide.each(inputs)

    def looped(self):
        return bool(self.wide.explain(measure=False).why)


class Routed:
    """Towers get one input; so all lanes do."""

    def __init__(self, members, sample, config):
        self.memory = random.choice(["own", "own", "stacked", "prepared"])
        self.router = WideRouter("router", config=config, stacked=self.memory == "stacked")
        for i, member in enumerate(members):
            self.router.attach(f"t{i}", member)
            self.router.register_tower(f"t{i}")
        if self.memory == "prepared":
            self.router.prepare_for_compile()
        self.modules = members

    def call(self, inputs, scale):
        options = {} if scale is None else {"scale": scale[0]}
        return list(self.router.wide_forward(inputs[0], **options).values())

    def looped(self):
        return self.router.explain().coverage < 1


class Branches(nn.Module):
    """A model whose branches are the members."""

    def __init__(self, members):
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x, scale=None):
        return [member(x, scale=scale) for member in self.members]


class Rewritten:
    """`CompileRouter`; all lanes get one input."""

    def __init__(self, members, sample, config):
        self.fast = CompileRouter.from_module(Branches(members), sample, config=config).compile()
        self.modules = members

    def call(self, inputs, scale):
        return self.fast(inputs[0]) if scale is None else self.fast(inputs[0], scale=scale[0])

    def looped(self):
        return self.fast.ran is None or not self.fast.ran.together if hasattr(self.fast, "ran") else True


class Jitted:
    def __init__(self, members, sample, config):
        @jit(config=Config(measure=False))
        def run(modules, inputs):
            return [m(x) for m, x in zip(modules, inputs, strict=True)]

        @jit(config=Config(measure=False))
        def scaled(modules, inputs, scales):
            return [m(x, scale=s) for m, x, s in zip(modules, inputs, scales, strict=True)]

        self.run, self.scaled, self.modules = run, scaled, members

    def call(self, inputs, scale):
        return self.run(self.modules, inputs) if scale is None else self.scaled(self.modules, inputs, scale)

    def looped(self):
        return False


DOORS = {"compile": Compiled, "router": Routed, "branches": Rewritten, "jit": Jitted}
ONE_INPUT = ("router", "branches")


class Wrong(AssertionError):
    pass


class Life:
    """One random model, its reference and one door; `events` says what was done."""

    def __init__(self, seed: int, doors=tuple(DOORS)):
        reset_world()
        self.random = random.Random(seed)
        random.seed(seed)
        torch.manual_seed(seed)
        self.name = self.random.choice(doors)
        self.events: list[str] = []
        self.looped = Counter()
        rng = self.random
        n = rng.choice([2, 3, 4])
        count = rng.randint(1, 4)
        makers = [rng.choice(BLOCKS) for _ in range(count)]
        makers = [m if m not in RARE or rng.random() < 0.5 else rng.choice(BLOCKS[:4]) for m in makers]
        if rng.random() < 0.1:
            makers.insert(0, lambda: InPlace(writes_input=True))
        makers.insert(rng.randint(0, len(makers)), BLOCKS[0])
        if set(makers) & set(RARE):  # members that run as Python cannot be checkpointed in training
            makers = [m for m in makers if m is not Checkpointed]
        output = self.output = rng.choice(list(OUTPUTS))
        self.takes_scale = rng.random() < 0.3
        members = [Model([m() for m in makers], output, self.takes_scale).double() for _ in range(n)]
        members = [member.to(DEVICE) for member in members]
        names = [type(b).__name__ for b in members[0].blocks]
        self.training = rng.random() < 0.5
        for member in members:
            member.train(self.training)
        # A wide model never writes into its caller's inputs: as if each member were given a copy.
        self.keeps_inputs = self.name == "compile"
        self.n, self.loop = n, Loop(copy.deepcopy(members))
        self.originals = copy.deepcopy(members)
        # A compiled configuration records calls and steps on a GPU.
        fast = DEVICE == "cuda" and rng.random() < 0.7
        options = {"compile": True, "backend": "aot_eager"} if fast else {}
        config = wide_compiler.WideConfig(tune_seconds=rng.choice([0, 0, 0.05]), **options)
        how = f"{config.tune_seconds} s, fast={fast}, train={self.training}"
        self.event(f"{self.name}: {n} x {names} -> {output}, {how}")
        self.door = DOORS[self.name](members, self.input(3), config)
        if self.name == "router":
            self.event(f"  memory: {self.door.memory}")
        self.optimizers = self.new_optimizers()

    def event(self, text: str) -> None:
        self.events.append(text)

    def new_optimizers(self):
        mine = [p for m in self.loop.modules for p in m.parameters()]
        theirs = (
            list(self.door.wide.parameters())
            if self.door.modules is None
            else [p for m in self.door.modules for p in m.parameters()]
        )
        return [torch.optim.SGD(p, lr=0.05, momentum=0.5) for p in (mine, theirs)]

    def input(self, batch: int) -> Tensor:
        return torch.randn(batch, WIDTH, dtype=torch.float64, device=DEVICE)

    def inputs(self) -> list[Tensor]:
        """One input per lane, at times shared, a view, transposed, or one that needs gradients."""
        batch = self.random.choice([1, 2, 3, 3, 3, 5])
        if self.training and batch == 1:
            batch = 2  # batch norm
        kind = self.random.choice(["own", "own", "own", "shared", "views", "transposed", "grad"])
        if self.name in ONE_INPUT and kind in ("own", "views"):
            kind = "shared"
        if kind == "shared":
            made = [self.input(batch)] * self.n
        elif kind == "views":
            made = list(torch.randn(self.n, batch, WIDTH, dtype=torch.float64, device=DEVICE).unbind(0))
        elif kind == "transposed":
            made = [torch.randn(WIDTH, batch, dtype=torch.float64, device=DEVICE).T] * self.n
        else:
            made = [self.input(batch) for _ in range(self.n)]
        if self.name in ONE_INPUT:
            made = [made[0]] * self.n
        if kind == "grad":
            for x in made:
                x.requires_grad_()
        self.event(f"  inputs: {kind} of {batch}")
        return made

    def scale(self):
        if self.takes_scale and self.random.random() < 0.5:
            shared = torch.rand((), dtype=torch.float64, device=DEVICE) + 0.5
            return [shared] * self.n
        return None

    # Comparing.

    def check(self, what: str, got: Any, want: Any, rtol: float = RTOL) -> None:
        why = differs(got, want, rtol)
        if why:
            raise Wrong(f"{what}: {why}")

    def both(self, run, inputs, scale):
        """The outcome of the loop, then of the door: a value or an error; and the inputs after the call."""
        found = []
        for door in (self.loop, self.door):
            mine = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
            if all(x is inputs[0] for x in inputs) and not self.keeps_inputs:
                mine = [mine[0]] * len(mine)
            torch.manual_seed(0)
            try:
                found.append((run(door, mine, scale), mine))
            except Exception as error:
                found.append((error, mine))
        (want, theirs), (got, mine) = found
        if isinstance(want, Exception) and not isinstance(got, Exception):
            raise Wrong(f"no error where the loop raises {want!r}")
        if isinstance(got, Exception) and not isinstance(want, Exception):
            raise Wrong(f"an error where the loop has none: {type(got).__name__}: {got}") from got
        if not isinstance(want, Exception):
            for lane, (a, b) in enumerate(zip(got, want, strict=True)):
                self.check(f"output of lane {lane}", a, b, self.rtol)
        for lane, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            left = inputs[lane] if self.keeps_inputs else b
            self.check(f"input of lane {lane} after the call", a.detach(), left.detach())
            unreached = b.grad is None and a.grad is not None and not a.grad.any()  # lanes have one graph
            if (a.grad is None) != (b.grad is None) and not unreached:
                raise Wrong(f"gradient of input {lane}: {a.grad} instead of {b.grad}")
            if b.grad is not None:
                self.check(f"gradient of input {lane}", a.grad, b.grad, self.rtol)
        return got

    rtol = RTOL

    def state(self, lane: int, name: str) -> Any:
        if self.door.modules is not None:
            return dict(self.door.modules[lane].state_dict(keep_vars=True))[name]
        return self.door.wide.lane_state(lane, name)

    def compare_state(self) -> None:
        for lane, member in enumerate(self.loop.modules):
            for name, tensor in (*member.named_parameters(), *member.named_buffers()):
                if name.endswith("mean") and "running" not in name and self.door.modules is not None:
                    got = self.door.modules[lane].get_buffer(name)
                else:
                    got = self.state(lane, name)
                self.check(f"{name} of lane {lane}", got.detach(), tensor.detach(), self.state_rtol)

    state_rtol = RTOL

    # Events.

    def call(self) -> None:
        how = self.random.choice(["no_grad", "grad", "inference", "no_grad"])
        modes = {"no_grad": torch.no_grad, "grad": nullcontext, "inference": torch.inference_mode}
        self.event(f"call, {how}")

        def run(door, inputs, scale):
            with modes[how]():
                return door.call(inputs, scale)

        self.both(run, self.inputs(), self.scale())
        self.after()

    def call_and_write(self) -> None:
        """A caller may write into an output. Outputs of lanes do not share memory with each other."""
        if self.name != "jit" and self.output in ("same", "view", "namedtuple"):
            return self.call()
        self.event("call, output written")

        def run(door, inputs, scale):
            with torch.no_grad():
                outputs = door.call(inputs, scale)
                for leaf in tensors(outputs[0]):
                    if isinstance(leaf, Tensor):
                        leaf.mul_(2)
                        break
            return outputs

        self.both(run, self.inputs(), self.scale())
        self.after()

    def call_in_thread(self) -> None:
        self.event("call in another thread")

        def run(door, inputs, scale):
            found: list[Any] = []

            def work():
                try:
                    found.append(door.call(inputs, scale))
                except Exception as error:
                    found.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            if isinstance(found[0], Exception):
                raise found[0]
            return found[0]

        self.both(run, self.inputs(), self.scale())
        self.after()

    def call_in_threads(self) -> None:
        """Three threads at once, with inputs of their own; members that keep state are left out."""
        if {CountsCalls, CountsInBuffer, Caches, MaxNorm} & set(map(type, self.loop.modules[0].blocks)):
            return self.call()
        if self.training or self.writes_inputs():
            return self.call()
        self.event("calls in three threads")
        calls = [(self.inputs(), self.scale()) for _ in range(3)]
        wanted, found = [], [None] * 3
        with torch.no_grad():
            for inputs, scale in calls:
                torch.manual_seed(0)
                wanted.append(self.loop.call([x.detach().clone() for x in inputs], scale))

        def work(i, inputs, scale):
            try:
                with torch.no_grad():
                    found[i] = self.door.call(inputs, scale)
            except Exception as error:
                found[i] = error

        threads = [threading.Thread(target=work, args=(i, *call)) for i, call in enumerate(calls)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for got, want in zip(found, wanted, strict=True):
            if isinstance(got, Exception):
                raise Wrong(f"a thread failed: {type(got).__name__}: {got}") from got
            for lane, (a, b) in enumerate(zip(got, want, strict=True)):
                self.check(f"output of lane {lane} in a thread", a, b)
        self.after()

    def writes_inputs(self) -> bool:
        blocks = (block for member in self.loop.modules for block in member.blocks)
        return any(block.writes_input for block in blocks if type(block) is InPlace)

    def call_in_autocast(self) -> None:
        self.event("call under autocast")

        def run(door, inputs, scale):
            with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
                return door.call(inputs, scale)

        self.both(run, self.inputs(), self.scale())  # float64 is not cast: the numbers stay
        self.after()

    def step(self) -> None:
        self.event("step")
        set_to_none = self.random.random() < 0.7
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)

        def run(door, inputs, scale):
            outputs = door.call(inputs, scale)
            leaves = [x for out in outputs for x in tensors(out) if isinstance(x, Tensor)]
            loss = sum((x * x).mean() + x.sum() * 0.1 for x in leaves if x.requires_grad)
            if isinstance(loss, Tensor):
                loss.backward()
            return outputs

        got = self.both(run, self.inputs(), self.scale())
        if isinstance(got, Exception):
            return
        for optimizer in self.optimizers:
            optimizer.step()
        self.after()

    def train_step(self) -> None:
        """A few steps of `TrainStep`, one or two batches in turns; its loss reads a global."""
        if self.name != "compile" or self.output != "tensor" or self.keeps_python_state():
            return self.step()
        if self.trainer is None or self.trainer.optimizer is not self.optimizers[1]:
            self.trainer = TrainStep(self.door.wide, self.optimizers[1], lane_losses)
        batches = [[self.input(3) for _ in range(self.n)] for _ in range(self.random.choice([1, 2]))]
        steps = self.random.choice([1, 2, 6])
        self.event(f"{steps} of TrainStep on {len(batches)} batches")
        stacked = [torch.stack(batch) for batch in batches]
        for i in range(steps):
            if self.random.random() < 0.2:
                self.change_world()
            self.optimizers[0].zero_grad()
            outputs = self.loop.call([x.clone() for x in batches[i % len(batches)]], None)
            losses = lane_losses(torch.stack(outputs))
            losses.sum().backward()
            self.optimizers[0].step()
            target = stacked[i % len(batches)]
            got = self.trainer(target if self.random.random() < 0.5 else target.clone())
            self.check("losses of TrainStep", got, losses.detach())
        self.after()

    trainer = None

    def keeps_python_state(self) -> bool:
        return bool({CountsCalls, MaxNorm} & set(map(type, self.loop.modules[0].blocks)))

    def after(self) -> None:
        self.compare_state()
        self.looped[self.door.looped()] += 1

    def switch(self) -> None:
        self.training = not self.training
        self.event(f"train({self.training})")
        for module in [*self.loop.modules, *(self.door.modules or [self.door.wide])]:
            module.train(self.training)

    def change_world(self) -> None:
        global GAIN, OFFSET, helper
        what = self.random.randrange(9)
        value = self.random.uniform(0.5, 1.5)
        if what == 0:
            GAIN = value
        elif what == 1:
            TABLE["shift"] = value
        elif what == 2:
            TABLE["inner"]["power"] = value
        elif what == 3:
            SETTINGS.slope = value
        elif what == 4:
            SETTINGS.names[:] = [] if SETTINGS.names else ["relu"]
        elif what == 5:
            OFFSET.add_(value)
        elif what == 6:
            OFFSET = OFFSET + value
        elif what == 7:
            Limits.highest, OPTIONS.eps = value, value
        else:
            helper = other_helper if helper is _first_helper else _first_helper
        self.event(f"world: {what} {value:.3f}")

    def write_weight(self) -> None:
        """In place, by `.data`, or by a state dict; in one lane."""
        lane = self.random.randrange(self.n)
        names = [n for n, _ in self.loop.modules[lane].named_parameters()]
        name, how = self.random.choice(names), self.random.choice(["in place", "data", "load"])
        self.event(f"write {name} of lane {lane}: {how}")
        parameter = self.loop.modules[lane].get_parameter(name)
        with torch.no_grad():
            if how == "in place":
                parameter.mul_(1.1)
            else:
                parameter.data = parameter.data * 1.1
        if self.door.modules is None:
            wide = self.door.wide
            if how == "load":
                wide.load_lane(lane, copy.deepcopy(self.loop.modules[lane]))
            elif how == "data":
                whole = wide.tensors()[name]
                fresh = whole.data.clone()
                fresh[lane] *= 1.1
                whole.data = fresh
            else:
                with torch.no_grad():
                    wide.tensors()[name][lane].mul_(1.1)
        else:
            theirs = self.door.modules[lane].get_parameter(name)
            if how == "in place":
                with torch.no_grad():
                    theirs.mul_(1.1)
            elif how == "data":
                theirs.data = theirs.data * 1.1
            else:
                self.door.modules[lane].load_state_dict(self.loop.modules[lane].state_dict())

    def freeze(self) -> None:
        names = [n for n, _ in self.loop.modules[0].named_parameters()]
        name, on = self.random.choice(names), self.random.random() < 0.5
        self.event(f"requires_grad_({on}) of {name}")
        for member in (*self.loop.modules, *(self.door.modules or ())):
            member.get_parameter(name).requires_grad_(on)
        if self.door.modules is None:
            self.door.wide.tensors()[name].requires_grad_(on)
        self.optimizers = self.new_optimizers()

    def take_lane(self) -> None:
        """`lane(i)`, or a copy of module i, computes what the member does."""
        lane = self.random.randrange(self.n)
        self.event(f"lane({lane})")
        member = copy.deepcopy(self.loop.modules[lane])
        if self.door.modules is None:
            taken = self.door.wide.lane(lane)
        else:
            taken = copy.deepcopy(self.door.modules[lane])
        x = self.input(2)
        with torch.no_grad():
            self.check("lane", taken(x.clone()), member(x.clone()))

    def copy_all(self) -> None:
        """Go on with a deep copy, or with what was pickled or saved."""
        how = self.random.choice(["deepcopy", "state_dict"])
        self.event(f"go on with a {how}")
        if how == "deepcopy":
            self.loop.modules = copy.deepcopy(self.loop.modules)
            if self.door.modules is None:
                self.door.wide = copy.deepcopy(self.door.wide)
            elif self.name == "router":
                self.door.router = copy.deepcopy(self.door.router)
                self.door.modules = [self.door.router[f"t{i}"] for i in range(self.n)]
            elif self.name == "branches":
                self.door.fast = copy.deepcopy(self.door.fast)
                self.door.modules = list(self.door.fast.members)
            else:
                self.door.modules = copy.deepcopy(self.door.modules)
            self.optimizers = self.new_optimizers()
            return
        for module in (*self.loop.modules, *(self.door.modules or [self.door.wide])):
            file = io.BytesIO()
            torch.save(module.state_dict(), file)
            file.seek(0)
            module.load_state_dict(torch.load(file))

    def change_member(self) -> None:
        """Set an attribute of one module; a wide model has copies of its own."""
        if self.door.modules is None:
            return self.change_world()
        lane = self.random.randrange(self.n)
        self.event(f"attribute of lane {lane}")
        for member in (self.loop.modules[lane], self.door.modules[lane]):
            for block in member.blocks:
                if isinstance(block, OwnNumber):
                    block.terms.append(0.5)
                elif isinstance(block, nn.LayerNorm):
                    block.eps = 1e-2
                elif isinstance(block, InPlace):
                    block.writes_input = False
                elif isinstance(block, nn.BatchNorm1d):
                    block.eval()

    EVENTS = (
        *("call", "call", "call", "step", "step", "switch", "change_world", "change_world", "write_weight"),
        *("freeze", "take_lane", "copy_all", "call_and_write", "call_in_thread", "call_in_autocast"),
        *("change_member", "call_in_threads", "train_step"),
    )

    def live(self, events: int) -> None:
        self.call()
        for _ in range(events):
            getattr(self, self.random.choice(self.EVENTS))()
        self.call()
        self.step()


def live(seed: int, events: int = 12, doors=tuple(DOORS)) -> Counter:
    """Return calls by (door, looped); raise `Wrong` with the events at the first difference."""
    made: list[Life] = []
    try:
        made.append(Life(seed, doors))
        made[0].live(events)
    except Exception as error:
        if made and "graph leaves" in str(error) and _members_cannot_be_copied(made[0]):
            return Counter()
        if "Inference tensors cannot be saved" in str(error):
            return Counter()  # a member has kept one, and a wide model is more lenient
        if made and "on device meta" in str(error) and any(map(_checkpoints, made[0].loop.modules)):
            return Counter()  # members that run as Python cannot be checkpointed in training
        story = "\n".join(made[0].events) if made else ""
        raise Wrong(f"seed {seed}\n{story}\n{type(error).__name__}: {error}") from error
    finally:
        reset_world()
    return Counter({(made[0].name, looped): count for looped, count in made[0].looped.items()})


def _checkpoints(member: nn.Module) -> bool:
    return any(isinstance(block, Checkpointed) for block in member.modules())


def _members_cannot_be_copied(life: Life) -> bool:
    """An old spectral norm keeps a computed weight, which PyTorch does not copy: the life ends there."""
    try:
        copy.deepcopy(life.loop.modules)
    except RuntimeError as error:
        return "graph leaves" in str(error)
    return False


def main() -> None:
    first, count = (int(a) for a in sys.argv[1:3])
    doors = next((tuple(arg.split(",")) for arg in sys.argv[3:] if arg.split(",")[0] in DOORS), tuple(DOORS))
    calls, wrong = Counter(), 0
    for seed in range(first, first + count):
        try:
            calls += live(seed, doors=doors)
        except Wrong as error:
            wrong += 1
            print("=" * 80)
            print(error)
            if "-v" in sys.argv:
                traceback.print_exception(error)
    print(f"{count} lives, {wrong} wrong; calls by door and whether members ran as a loop: {dict(calls)}")


if __name__ == "__main__":
    main()
