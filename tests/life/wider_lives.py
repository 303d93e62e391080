"""More of what lives can do: random lives with rarer modules, and changes between steps, calls and threads.

python tests/life/wider_lives.py 1000 200 [door,...]
"""

import copy
import pickle
import sys
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parent))
import random_lives
from random_lives import BLOCKS, DOORS, ONE_INPUT, OUTPUTS, WIDTH, Life, Wrong, tensors

# Blocks: from [B, WIDTH] to [B, WIDTH].


class SharedChild(nn.Module):
    """One child under two names, called twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = self.first

    def forward(self, x):
        return self.second(self.first(x).tanh())


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(WIDTH)) for _ in range(2)])
        self.named = nn.ParameterDict({"scale": nn.Parameter(torch.rand(WIDTH)), "none": torch.ones(1)})

    def forward(self, x):
        for weight in self.weights:
            x = x + weight
        return x * self.named["scale"] * self.named["none"]


class Doubled(nn.Module):
    def forward(self, weight):
        return weight.triu() * 2

    def right_inverse(self, weight):
        return weight / 2


class Parametrized(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        parametrize.register_parametrization(self.linear, "weight", Doubled())

    def forward(self, x):
        return self.linear(x)


class CachedParametrization(Parametrized):
    def forward(self, x):
        with parametrize.cached():
            return self.linear(x) + self.linear(x * 0.5)


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return self.linear(x)


class OldSpectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return self.linear(x)


class MultiplyAdd(torch.autograd.Function):
    """Several inputs, one of which gets no gradient; keeps a number in its context."""

    @staticmethod
    def forward(ctx, x, weight, factor):
        ctx.save_for_backward(x, weight)
        ctx.factor = factor
        return x * weight * factor + 1

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight * ctx.factor, (grad * x * ctx.factor).sum(0), None


class OwnBackward(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.randn(WIDTH)), 0.7

    def forward(self, x):
        return MultiplyAdd.apply(x, self.weight, self.factor)


class DefaultDtype(nn.Module):
    """Makes tensors of the default dtype."""

    def forward(self, x):
        third = torch.tensor(1.0) / 3
        return x * third + torch.linspace(0, 1, WIDTH) / 7


class BufferView(nn.Module):
    """A buffer that is written through a view, and one buffer under two names."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(2, WIDTH))
        self.register_buffer("alias", self.table)

    def forward(self, x):
        if self.training:
            self.table[0].mul_(0.5).add_(x.detach().mean(0))
            self.alias[1].add_(0.1)
        return x + self.table.sum(0) - self.alias[0]


class Counts(nn.Module):
    """An integer buffer chooses a row of a parameter."""

    def __init__(self):
        super().__init__()
        self.register_buffer("at", torch.tensor(0))
        self.table = nn.Parameter(torch.randn(3, WIDTH))

    def forward(self, x):
        row = self.table[self.at % 3]
        self.at += 1
        return x + row


class History(nn.Module):
    """The first row of the last input, as a tensor attribute that is no buffer."""

    def __init__(self):
        super().__init__()
        self.last = torch.zeros(WIDTH, dtype=torch.float64)

    def forward(self, x):
        y = x + self.last
        self.last = x.detach()[0].clone()
        return y


class Variadic(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def inner(self, *args, **kwargs):
        return self.linear(args[0]) * kwargs.get("factor", 1.0) + sum(kwargs.values())

    def forward(self, *args, **kwargs):
        return self.inner(*args, factor=2.0, shift=0.25, **kwargs)


class Hooked(nn.Module):
    """Forward hooks of its children."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.linear.register_forward_pre_hook(_halve)
        self.linear.register_forward_hook(_shift)

    def forward(self, x):
        return self.linear(x)


def _halve(module, args):
    return (args[0] * 0.5,)


def _shift(module, args, output):
    return output + 0.1


class EvalNorm(nn.Module):
    """A batch norm without affine weights, and one that tracks nothing."""

    def __init__(self):
        super().__init__()
        self.a = nn.BatchNorm1d(WIDTH, affine=False, momentum=0.3)
        self.b = nn.BatchNorm1d(WIDTH, track_running_stats=False)

    def forward(self, x):
        x = self.a(x)
        return self.b(x) if x.shape[0] > 1 else x


class Experts(nn.Module):
    """Rows chosen by values, added back."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 2), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in "ab")

    def forward(self, x):
        weight, index = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mask = (index == i).unsqueeze(1)
            out = out + torch.where(mask, expert(x) * weight.unsqueeze(1), torch.zeros_like(x))
        return out


class Scatter(nn.Module):
    def forward(self, x):
        order = x.argsort(1)
        y = torch.zeros_like(x).scatter(1, order, x)
        y = y.index_add(0, torch.zeros(1, dtype=torch.long, device=x.device), x[:1])
        return y.masked_fill(x > 1, 0.5) + F.one_hot(order[:, 0], WIDTH)


class Expanded(nn.Module):
    """A buffer expanded from one number, read only; a parameter that is a view."""

    def __init__(self):
        super().__init__()
        self.register_buffer("one", torch.ones(1).expand(WIDTH))
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH).T)

    def forward(self, x):
        return x * self.one @ self.weight


class Dropped(nn.Module):
    """Dropout that drops nothing, or in eval everything is kept."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        return F.dropout(self.drop(x), 0.5, self.training and False)


class Lstm(nn.Module):
    """Keeps its state from call to call while sizes agree."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(WIDTH, WIDTH)
        self.register_buffer("h", torch.zeros(1, WIDTH))

    def forward(self, x):
        h, _ = self.cell(x, (self.h.clone().expand(x.shape[0], -1), torch.zeros_like(x)))
        if not self.training:
            self.h.copy_(h.detach().mean(0, keepdim=True))
        return x + h


class NoneGradient(nn.Module):
    """A parameter that is used in evaluation only."""

    def __init__(self):
        super().__init__()
        self.used, self.rest = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        return x * self.used if self.training else x * self.used + self.rest


NEW = [
    *(SharedChild, Lists, Parametrized, CachedParametrization, Spectral, OldSpectral, OwnBackward),
    *(DefaultDtype, BufferView, Counts, Variadic, Hooked, EvalNorm, Experts, Scatter, Expanded, Dropped),
    *(Lstm, NoneGradient),
]
NEW_RARE = [History]


# Outputs.


def _generated(x):
    return (part for part in (x, x.mean(1), 3))


NEW_OUTPUTS = {
    **OUTPUTS,
    "list of dicts": lambda x: [{"a": x, "b": (x.sum(), None)}, {}],
    "loss": lambda x: x.square().mean(),
    "detached": lambda x: (x, x.detach(), x.argmax(1), x > 0),
}


class WiderLife(Life):
    def __init__(self, seed: int, doors=tuple(DOORS)):
        self.kept: list[tuple[str, Any, Any, Any, Any]] = []
        self.handles: list[Any] = []
        self.reused: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        self.precise = True
        torch.set_default_dtype(torch.float32)
        super().__init__(seed, doors)

    # Optimisers of several kinds.

    def new_optimizers(self):
        kind = self.random.choice(["sgd", "adam", "adamw", "plain", "groups"])
        self.schedules = []
        found = []
        for modules in (self.loop.modules, self.door.modules or [self.door.wide]):
            own = [p for m in modules for p in m.parameters()]
            own = list(dict.fromkeys(own))
            if kind == "sgd":
                found.append(torch.optim.SGD(own, lr=0.02, momentum=0.5, weight_decay=0.01))
            elif kind == "adam":
                found.append(torch.optim.Adam(own, lr=0.003, eps=0.01))
            elif kind == "adamw":
                found.append(torch.optim.AdamW(own, lr=0.003, weight_decay=0.1, eps=0.01))
            elif kind == "plain":
                found.append(torch.optim.SGD(own, lr=0.02))
            else:
                vectors = [p for p in own if p.requires_grad]
                frozen = [p for p in own if not p.requires_grad]
                groups = [{"params": g} for g in (vectors, frozen) if g]
                found.append(torch.optim.RMSprop(groups, lr=0.002, momentum=0.3, eps=0.01))
        self.event(f"  optimizer: {kind}")
        return found

    # Sum of gradients: all lanes.

    def step(self) -> None:
        how = self.random.choice(["once", "once", "twice", "clip", "schedule", "reload", "closure", "retain"])
        self.event(f"step: {how}")
        set_to_none = self.random.random() < 0.7
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)

        def run(door, inputs, scale):
            outputs = door.call(inputs, scale)
            loss = self.loss(outputs)
            if isinstance(loss, Tensor):
                if how == "retain":
                    loss.backward(retain_graph=True)
                loss.backward()
            return outputs

        for _ in range(2 if how == "twice" else 1):
            got = self.both(run, self.inputs(), self.scale())
            if isinstance(got, Exception):
                return
        self.compare_gradients()
        for optimizer in self.optimizers:
            if how == "clip":
                own = [p for group in optimizer.param_groups for p in group["params"]]
                torch.nn.utils.clip_grad_norm_(own, 0.1)
            if how == "schedule":
                for group in optimizer.param_groups:
                    group["lr"] *= 0.7
            if how == "reload":
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            optimizer.step()
        self.after()

    def loss(self, outputs):
        leaves = [x for out in outputs for x in tensors(out) if isinstance(x, Tensor)]
        return sum((x * x).mean() + x.sum() * 0.1 for x in leaves if x.requires_grad)

    def compare_gradients(self) -> None:
        for lane, member in enumerate(self.loop.modules):
            for name, p in member.named_parameters():
                if self.door.modules is None:
                    whole = self.door.wide.tensors().get(name)
                    if whole is None:
                        continue
                    got = None if whole.grad is None else whole.grad[lane]
                else:
                    got = self.door.modules[lane].get_parameter(name).grad
                if got is None and p.grad is None:
                    continue
                if got is None or p.grad is None:
                    raise Wrong(f"gradient of {name}, lane {lane}: {got} instead of {p.grad}")
                self.check(f"gradient of {name}, lane {lane}", got, p.grad, self.rtol)

    def outer_checkpoint(self) -> None:
        """The whole call under a checkpoint, which runs it again in the backward pass."""
        kinds = {type(b) for m in self.loop.modules for b in m.blocks}
        keeps = {*random_lives.RARE, History, Counts, Lstm, BufferView, Spectral, OldSpectral}
        keeps |= {random_lives.CountsInBuffer, random_lives.Checkpointed}
        if kinds & keeps or self.takes_scale or self.writes_inputs():
            return self.call()
        reentrant, batch = self.random.random() < 0.3, self.random.choice([1, 1, 3])
        if self.training:
            batch = 3
        self.event(f"checkpoint around a call on {batch}, reentrant={reentrant}, twice")
        self.forget_gradients()
        x = self.input(batch)

        def run(door, inputs, scale):
            def call(*xs):
                outs = door.call([xs[0]] * self.n if len(xs) == 1 else list(xs), scale)
                return tuple(leaf for leaf in self.leaves(outs) if leaf.is_floating_point())

            same = all(x is inputs[0] for x in inputs)
            given = [x.requires_grad_() for x in (inputs[:1] if same else inputs)]
            outs = checkpoint(call, *given, use_reentrant=reentrant)
            loss = sum(out.square().sum() for out in outs if out.requires_grad)
            if isinstance(loss, Tensor):
                loss.backward()
            return [list(outs)]

        for _ in range(2):
            found = [run(door, [x.clone() for _ in range(self.n)], None) for door in (self.loop, self.door)]
            for got, want in zip(found[1][0], found[0][0], strict=True):
                self.check("output under a checkpoint", got, want, self.rtol)
        self.compare_gradients()
        self.forget_gradients()
        # The second forward ends as soon as it has what backward asks for, here or there: buffers may differ.
        for lane, member in enumerate(self.loop.modules):
            for name, buffer in member.named_buffers():
                buffer.copy_(self.state(lane, name))

    def tangents(self) -> None:
        """Forward-mode derivatives."""
        if self.output not in ("tensor", "tuple") or self.writes_inputs() or self.takes_scale:
            return self.call()
        kinds = {type(b) for m in self.loop.modules for b in m.blocks}
        known = {nn.Linear, nn.LayerNorm, nn.BatchNorm1d, nn.Tanh, nn.GELU, nn.PReLU, SharedChild, Lists}
        known |= {random_lives.Tied, random_lives.Residual, random_lives.BranchesOnSize, Hooked, Expanded}
        if not kinds <= known:
            return self.call()
        self.event("forward-mode derivative")
        x, tangent = self.input(3), self.input(3)
        found = []
        for door in (self.loop, self.door):
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(x, tangent)
                outs = door.call([dual] * self.n, None)
                found.append([forward_ad.unpack_dual(leaf)[1] for leaf in self.leaves(outs)])
        for got, want in zip(found[1], found[0], strict=True):
            self.check("tangent", got, want, self.rtol)
        self.after()

    def second_derivative(self) -> None:
        """A gradient penalty."""
        self.event("gradient penalty")
        for optimizer in self.optimizers:
            optimizer.zero_grad()

        def run(door, inputs, scale):
            inputs_ = [x.detach().requires_grad_() for x in inputs]
            if all(x is inputs[0] for x in inputs):
                inputs_ = [inputs_[0]] * len(inputs)
            outputs = door.call(inputs_, scale)
            loss = self.loss(outputs)
            different = list({id(x): x for x in inputs_}.values())
            if not isinstance(loss, Tensor):
                return outputs
            grads = torch.autograd.grad(loss, different, create_graph=True, allow_unused=True)
            penalty = sum(g.square().sum() for g in grads if g is not None)
            if isinstance(penalty, Tensor) and penalty.requires_grad:
                penalty.backward()
            return outputs, [None if g is None else g.detach() for g in grads]

        def outer(door, inputs, scale):
            found = run(door, inputs, scale)
            return found[0] if isinstance(found, tuple) and len(found) == 2 else found

        got = self.both(outer, self.inputs(), self.scale())
        if isinstance(got, Exception):
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            return
        self.compare_gradients()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.after()

    def freeze(self) -> None:
        names = [{n for n, _ in m.named_parameters()} for m in self.loop.modules]
        if all(own == names[0] for own in names):
            super().freeze()

    def call_in_threads(self) -> None:
        if {History, Counts, Lstm} & {type(b) for m in self.loop.modules for b in m.blocks}:
            return self.call()
        super().call_in_threads()

    def keep_outputs(self) -> None:
        """Outputs are kept; later calls must not write them."""
        self.event("keep outputs")
        how = self.random.choice([torch.no_grad, nullcontext, torch.inference_mode])

        def run(door, inputs, scale):
            with how():
                return door.call(inputs, scale)

        found = []

        def noting(door, inputs, scale):
            out = run(door, inputs, scale)
            found.append((out, [y.detach().clone() for y in self.leaves(out)], inputs))
            return out

        got = self.both(noting, self.inputs(), self.scale())
        self.after()
        if not isinstance(got, Exception) and len(found) == 2:
            self.kept.append(tuple(found))

    @staticmethod
    def leaves(out):
        return [leaf for leaf in tensors(list(out)) if isinstance(leaf, Tensor)]

    def compare_kept(self) -> None:
        for (want, was, _), (got, mine, _) in self.kept:
            for w, wc, g, gc_ in zip(self.leaves(want), was, self.leaves(got), mine, strict=True):
                stands = torch.equal(w.detach().nan_to_num(), wc.nan_to_num())
                if stands and not torch.equal(g.detach().nan_to_num(), gc_.nan_to_num()):
                    raise Wrong("an output of an earlier call has changed")

    def reuse_inputs(self) -> None:
        """The same tensor objects in several calls, written between them in every way."""
        batch = self.random.choice([2, 3, 4])
        if batch not in self.reused:
            one = [self.input(batch) for _ in range(self.n)]
            if self.name in ONE_INPUT or self.random.random() < 0.3:
                one = [one[0]] * self.n
            memo: dict[int, Tensor] = {}
            theirs = [memo.setdefault(id(x), x.clone()) for x in one]
            self.reused[batch] = (one, theirs)
        pair = self.reused[batch]
        how = self.random.choice(["not", "mul_", "data", "numpy", "set_", "swap", "grad on", "grad off"])
        factor = self.random.uniform(0.5, 1.5)
        self.event(f"call again on the inputs of {batch}, written: {how}")
        for mine in pair:
            x = mine[0]
            with torch.no_grad():
                if how == "mul_":
                    x.mul_(factor)
                elif how == "data":
                    x.data.mul_(factor)
                elif how == "numpy":
                    x.detach().numpy()[...] *= factor
                elif how == "set_":
                    x.data = x.data * factor
                elif how == "swap" and mine[0] is not mine[-1]:
                    mine[0], mine[-1] = mine[-1], mine[0]
                elif how == "grad on":
                    x.requires_grad_(True)
                elif how == "grad off":
                    x.requires_grad_(False)
        mode = self.random.choice([torch.no_grad, nullcontext, torch.inference_mode])
        found = []
        for door, inputs in zip((self.loop, self.door), pair, strict=True):
            given = inputs
            if self.keeps_inputs and door is self.loop:
                given = [x.clone() for x in inputs]
            torch.manual_seed(0)
            try:
                with mode():
                    found.append(door.call(given, None))
            except Exception as error:
                found.append(error)
        want, got = found
        if isinstance(want, Exception) != isinstance(got, Exception):
            raise Wrong(f"{got!r} instead of {want!r}") from (got if isinstance(got, Exception) else want)
        if isinstance(want, Exception):
            return
        for lane, (a, b) in enumerate(zip(got, want, strict=True)):
            self.check(f"output of lane {lane}", a, b, self.rtol)
        for a, b in zip(pair[1], pair[0], strict=True):
            self.check("input after the call", a.detach(), b.detach())
        self.after()

    def input_of_weights(self) -> None:
        """An input that is a view of a parameter, in its own memory."""
        alike = [{n for n, p in m.named_parameters() if p.shape == (WIDTH, WIDTH)} for m in self.loop.modules]
        names = sorted(set.intersection(*alike))
        if not names:
            return self.call()
        if self.writes_inputs():
            return self.call()
        name = self.random.choice(names)
        self.event(f"input is {name}")
        found = []
        how = self.random.choice([torch.no_grad, torch.inference_mode])
        for door in (self.loop, self.door):
            if door is self.loop or self.door.modules is not None:
                inputs = [m.get_parameter(name).detach()[:3] for m in door.modules]
            else:
                whole = self.door.wide.tensors()[name].detach()
                inputs = [x[:3] for x in whole.unbind(0)]
            if self.name in ONE_INPUT:
                inputs = [inputs[0]] * self.n
            with how():
                torch.manual_seed(0)
                found.append(door.call(inputs, None))
        for lane, (a, b) in enumerate(zip(found[1], found[0], strict=True)):
            self.check(f"output of lane {lane}", a, b, self.rtol)
        self.after()

    def pickled(self) -> None:
        """Go on with what was pickled in the middle of a life."""
        if self.name not in ("compile", "router") or self.handles:
            return self.call()
        try:
            pickle.dumps(self.loop.modules[0])
        except Exception:  # parametrized, or output functions of a local scope
            return self.call()
        self.event("go on with what was pickled")
        if self.name == "compile":
            self.door.wide = pickle.loads(pickle.dumps(self.door.wide))
        else:
            self.door.router = pickle.loads(pickle.dumps(self.door.router))
            self.door.modules = [self.door.router[f"t{i}"] for i in range(self.n)]
        self.optimizers = self.new_optimizers()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.forget_gradients()

    def forget_gradients(self) -> None:
        for module in (*self.loop.modules, *(self.door.modules or [self.door.wide])):
            module.zero_grad()

    def copy_all(self) -> None:
        super().copy_all()
        self.forget_gradients()

    def outcomes(self, doors, inputs, context, what, rtol) -> None:
        """Compare a call of the loop with one of a door, each on the same input for all lanes."""
        found: list[Any] = []
        for door in doors:
            mine = [inputs.clone()] * self.n
            if door is doors[0] and self.keeps_inputs:
                mine = [inputs.clone() for _ in mine]
            torch.manual_seed(0)
            try:
                with context():
                    found.append(door.call(mine, None))
            except Exception as error:
                found.append(error)
        want, got = found
        if isinstance(want, Exception) != isinstance(got, Exception):
            raise Wrong(f"{what}: {got!r} instead of {want!r}")
        if not isinstance(want, Exception):
            for lane, (x, y) in enumerate(zip(got, want, strict=True)):
                self.check(f"{what}, output of lane {lane}", x, y, rtol)

    def modules(self) -> list[nn.Module]:
        return [*self.loop.modules, *(self.door.modules or [self.door.wide])]

    def convert(self) -> None:
        """To float32, a call there, and back."""
        self.event("to float32 and back")
        for module in self.modules():
            module.float()
        if self.random.random() < 0.7:
            how = self.random.choice([torch.no_grad, nullcontext])
            self.outcomes([self.loop, self.door], self.input(3).float(), how, "in float32", 1e-3)
        for module in self.modules():
            module.double()
        # What was written in float32 has its rounding errors: the same numbers for both.
        for lane, member in enumerate(self.loop.modules):
            for name, tensor in (*member.named_parameters(), *member.named_buffers()):
                if self.door.modules is None:
                    self.door.wide.lane_state(lane, name).copy_(tensor.detach())
                else:
                    own = self.door.modules[lane]
                    own = dict((*own.named_parameters(), *own.named_buffers()))[name]
                    own.detach().copy_(tensor.detach())
        self.optimizers = self.new_optimizers()
        self.forget_gradients()
        self.compare_state()

    def autocast_life(self) -> None:
        """A copy in float32 under autocast, weights changed between two calls."""
        jumps = (random_lives.BranchesOnValue, random_lives.Looks, random_lives.InPlace, History, Experts)
        blocks = [block for member in self.loop.modules for block in member.blocks]
        if any(isinstance(block, (*jumps, Scatter)) for block in blocks) or self.output == "detached":
            return self.call()
        if self.name not in ("compile", "router"):
            return self.call()
        self.event("a copy in float32 under autocast")
        other = copy.copy(self.door)
        if self.name == "compile":
            other.wide = copy.deepcopy(self.door.wide).float()
        else:
            other.router = copy.deepcopy(self.door.router).float()
            other.modules = [other.router[f"t{i}"] for i in range(self.n)]
        loop = random_lives.Loop([copy.deepcopy(m).float() for m in self.loop.modules])
        for _ in range(3):
            grad = self.random.random() < 0.5

            @contextmanager
            def cast(grad=grad):
                with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16):
                    yield

            self.outcomes([loop, other], self.input(3).float(), cast, "under autocast", 0.15)
            change = self.random.choice(["none", "in place", "data"])
            self.event(f"  weights: {change}")
            for module in (*loop.modules, *(other.modules or [other.wide])):
                for p in module.parameters():
                    if change == "in place":
                        with torch.no_grad():
                            p.mul_(-1.5)
                    elif change == "data":
                        p.data = p.data * -1.5

    def functional(self) -> None:
        """`torch.func.grad` through `functional_call` with other weights."""
        pure = (
            nn.Linear,
            nn.LayerNorm,
            nn.Tanh,
            nn.GELU,
            nn.PReLU,
            SharedChild,
            Lists,
            Parametrized,
            Experts,
        )
        pure += (random_lives.Tied, random_lives.Normed, random_lives.Residual, random_lives.OwnNumber)
        if self.door.modules is not None or self.output != "tensor":
            return self.call()
        if not {type(b) for b in self.loop.modules[0].blocks} <= set(pure):
            return self.call()
        self.event("torch.func over the model")
        x, factor = self.input(3), self.random.uniform(0.5, 1.5)
        holder = nn.Module()
        holder.wide = self.door.wide
        holder.forward = lambda x: holder.wide.stacked(x)

        def gradients(model, inputs):
            own = {k: v.detach() * factor for k, v in model.named_parameters()}

            def total(own, x):
                return torch.func.functional_call(model, own, (x,)).square().sum()

            return torch.func.grad(total, argnums=(0, 1))(own, inputs)

        got, got_x = gradients(holder, torch.stack([x] * self.n))
        for lane, member in enumerate(self.loop.modules):
            want, want_x = gradients(member, x)
            self.check(f"functional gradient of the input of lane {lane}", got_x[lane], want_x)
            for k, v in want.items():
                self.check(f"functional gradient of {k}, lane {lane}", got[f"wide.{k}"][lane], v)
        self.after()

    def replace_tensor(self) -> None:
        """Another Parameter or buffer object under the same name."""
        member = self.loop.modules[0]
        name = self.random.choice([n for n, _ in (*member.named_parameters(), *member.named_buffers())])
        owner, _, leaf = name.rpartition(".")
        shared = (BufferView, SharedChild, OldSpectral, random_lives.Tied, random_lives.Normed, Parametrized)
        if any(isinstance(block, (*shared, Spectral)) for block in member.blocks):
            return self.write_weight()
        if any(name not in m.state_dict() for m in self.loop.modules):
            return self.write_weight()
        factor = self.random.uniform(0.5, 1.5)
        self.event(f"another object as {name}")

        def other(tensor):
            if not tensor.is_floating_point():
                return tensor.clone()
            fresh = tensor.detach() * factor
            return nn.Parameter(fresh, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fresh

        for module in self.modules():
            scope = module.get_submodule(owner)
            setattr(scope, leaf, other(getattr(scope, leaf)))
        self.optimizers = self.new_optimizers()
        self.forget_gradients()
        self.compare_state()

    def hook(self) -> None:
        """A forward hook is added to a module that stays in use, or removed."""
        if self.handles and self.random.random() < 0.6:
            self.event("hook removed")
            for handle in self.handles.pop():
                handle.remove()
            return
        if self.door.modules is None:
            return self.call()
        lane = self.random.randrange(self.n)
        block = self.random.randrange(len(self.loop.modules[0].blocks))
        kind = self.random.choice(["forward", "pre", "lane", "backward"])
        self.event(f"hook {kind} on block {block} of lane {lane}")
        handles = []
        for modules in (self.loop.modules, self.door.modules):
            module = modules[lane].blocks[block]
            if kind == "forward":
                handles.append(module.register_forward_hook(_shift))
            elif kind == "pre":
                handles.append(module.register_forward_pre_hook(_halve))
            elif kind == "backward":
                p = next(modules[lane].parameters())
                if p.requires_grad:
                    handles.append(p.register_hook(lambda g: g * 2))
            else:
                handles.append(modules[lane].register_forward_hook(_double_first))
        self.handles.append(handles)

    def patch(self) -> None:
        """A submodule, a method or a class attribute is replaced in one module."""
        if self.door.modules is None:
            return self.change_world()
        if self.handles:
            return self.hook()
        lane = self.random.randrange(self.n)
        block = self.random.randrange(len(self.loop.modules[0].blocks))
        how = self.random.choice(["module", "forward", "eval", "order"])
        self.event(f"{how} of block {block} of lane {lane} replaced")
        fresh = nn.Linear(WIDTH, WIDTH).double()
        for modules in (self.loop.modules, self.door.modules):
            member = modules[lane]
            if how == "module":
                member.blocks[block] = copy.deepcopy(fresh)
            elif how == "forward":
                member.blocks[block].forward = _identity_tanh
            elif how == "eval":
                member.blocks[block].train(not member.blocks[block].training)
            else:
                first, last = member.blocks[0], member.blocks[-1]
                member.blocks[0], member.blocks[-1] = last, first
        self.optimizers = self.new_optimizers()
        self.forget_gradients()

    def default_dtype(self) -> None:
        dtype = self.random.choice([torch.float64, torch.float32])
        self.event(f"default dtype {dtype}")
        torch.set_default_dtype(dtype)

    def one_lane_loss(self) -> None:
        """Only some lanes' outputs go into the loss."""
        self.event("the loss of one lane")
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=False)
        lane = self.random.randrange(self.n)

        def run(door, inputs, scale):
            outputs = door.call(inputs, scale)
            loss = self.loss([outputs[lane]])
            if isinstance(loss, Tensor):
                loss.backward()
            return outputs

        if isinstance(self.both(run, self.inputs(), self.scale()), Exception):
            return
        for i, member in enumerate(self.loop.modules):
            for name, p in member.named_parameters():
                if self.door.modules is None:
                    whole = self.door.wide.tensors().get(name)
                    got = None if whole is None or whole.grad is None else whole.grad[i]
                else:
                    got = self.door.modules[i].get_parameter(name).grad
                want = torch.zeros_like(p) if p.grad is None else p.grad
                got = torch.zeros_like(p) if got is None else got
                self.check(f"gradient of {name}, lane {i}", got, want, self.rtol)
        self.forget_gradients()
        self.after()

    def between_threads(self) -> None:
        """A thread calls while this one changes weights between barriers."""
        kinds = {type(b) for b in self.loop.modules[0].blocks}
        if kinds & {random_lives.Caches}:
            return self.call()
        self.event("calls in a thread, changes in this one between")
        rounds = 3
        inputs = [self.inputs() for _ in range(rounds)]
        first, second = threading.Barrier(2), threading.Barrier(2)
        found: list[Any] = []

        def work():
            for i in range(rounds):
                first.wait()
                try:
                    with torch.no_grad():
                        torch.manual_seed(0)
                        given = [x.detach().clone() for x in inputs[i]]
                        if all(x is inputs[i][0] for x in inputs[i]) and not self.keeps_inputs:
                            given = [given[0]] * len(given)
                        found.append(self.door.call(given, None))
                except Exception as error:
                    found.append(error)
                second.wait()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for i in range(rounds):
                with torch.no_grad():
                    torch.manual_seed(0)
                    given = [x.detach().clone() for x in inputs[i]]
                    if all(x is inputs[i][0] for x in inputs[i]) and not self.keeps_inputs:
                        given = [given[0]] * len(given)
                    want = self.loop.call(given, None)
                first.wait()
                second.wait()
                got = found[-1]
                if isinstance(got, Exception):
                    raise Wrong(f"a thread failed: {type(got).__name__}: {got}") from got
                for lane, (a, b) in enumerate(zip(got, want, strict=True)):
                    self.check(f"output of lane {lane} in a thread", a, b, self.rtol)
                self.random.choice([self.write_weight, self.change_world, self.call])()
        finally:
            first.abort()
            second.abort()
            thread.join()
        self.after()

    def select(self) -> None:
        """Lanes in another order or number."""
        if self.door.modules is not None:
            return self.call()
        count = self.random.choice([self.n, self.n, max(1, self.n - 1), self.n + 1])
        lanes = [self.random.randrange(self.n) for _ in range(count)]
        self.event(f"select_lanes({lanes})")
        self.kept.clear()
        self.door.wide.select_lanes(lanes)
        self.loop.modules = [copy.deepcopy(self.loop.modules[lane]) for lane in lanes]
        self.n = count
        self.trainer = None
        self.reused.clear()
        self.optimizers = self.new_optimizers()
        self.forget_gradients()
        self.compare_state()

    def hold(self) -> None:
        """Lanes whose buffers stand still."""
        if self.door.modules is not None:
            return self.call()
        kinds = {type(b) for b in self.loop.modules[0].blocks}
        if kinds & {random_lives.CountsCalls, random_lives.MaxNorm, History, random_lives.Caches, Counts}:
            return self.call()
        lane = self.random.randrange(self.n)
        self.event(f"hold_lanes([{lane}]), call")
        self.door.wide.hold_lanes([lane])
        member = self.loop.modules[lane]
        before = {k: v.clone() for k, v in member.named_buffers()}

        def run(door, inputs, scale):
            with torch.no_grad():
                return door.call(inputs, scale)

        self.both(run, self.inputs(), self.scale())
        for k, v in member.named_buffers():
            v.copy_(before[k])
        self.door.wide.hold_lanes([])
        self.after()

    def partial_load(self) -> None:
        """A state dict into the whole model, `assign=True` at times."""
        tied = any(isinstance(b, (random_lives.Tied, SharedChild)) for b in self.loop.modules[0].blocks)
        assign = not tied and self.random.random() < 0.5  # it unties the members
        self.event(f"load_state_dict, assign={assign}")
        for module in (*self.loop.modules, *(self.door.modules or [self.door.wide])):
            state = {k: v.clone() for k, v in module.state_dict().items()}
            for k, v in state.items():
                if v.is_floating_point() and "running" not in k:
                    v.mul_(1.05)
            module.load_state_dict(state, assign=assign)
        self.optimizers = self.new_optimizers()
        self.forget_gradients()
        self.compare_state()

    EVENTS = (
        *Life.EVENTS,
        *("second_derivative", "keep_outputs", "reuse_inputs", "reuse_inputs", "input_of_weights", "pickled"),
        *("convert", "autocast_life", "functional", "replace_tensor", "hook", "patch", "default_dtype"),
        *(
            "outer_checkpoint",
            "outer_checkpoint",
            "tangents",
            "one_lane_loss",
            "between_threads",
            "select",
            "hold",
            "partial_load",
            "keep_outputs",
        ),
    )

    def live(self, events: int) -> None:
        try:
            super().live(events)
            self.compare_kept()
        finally:
            torch.set_default_dtype(torch.float32)


def _double_first(module, args, output):
    return (output[0] * 2, *output[1:]) if type(output) is tuple else output


def _identity_tanh(x):
    return x.tanh()


def install() -> None:
    random_lives.BLOCKS[:] = [*BLOCKS[:1], *BLOCKS[1:], *NEW * 2, *NEW_RARE]
    random_lives.RARE += NEW_RARE
    random_lives.OUTPUTS.clear()
    random_lives.OUTPUTS.update(NEW_OUTPUTS)
    random_lives.Life = WiderLife


if __name__ == "__main__":
    install()
    random_lives.main()
