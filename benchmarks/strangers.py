"""Rows that nobody picks by hand: models, sizes, precision and mode drawn from a seed.

    python benchmarks/strangers.py --seed 7 --rows 12            measure, and add to the results file
    python benchmarks/strangers.py --seed 7 --rows 12 --list     only show what the rows are
    python benchmarks/strangers.py --seed 7 --rows 12 --jobs 6   build six at once, time each alone
    python benchmarks/strangers.py --page                        docs/strangers.md from the results file

Every call gets another input tensor at another address. `WideConfig.fast()` is timed in turns with what one
would do instead: compiled `torch.func.vmap`, and the loop over members, each in a CUDA graph. Each row
runs in a process of its own. `--jobs` rows are built at once; then each is timed while the others wait, after
ours has been built once more, alone. A candidate that is not built in `CANDIDATE_SECONDS` is left out. Rows
that the results file has already are not measured again. The distribution of rows was fixed before anything
was tuned on it. Without a GPU the same runs on the CPU, without graphs.
"""

import argparse
import contextlib
import copy
import gc
import json
import math
import queue
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
import traceback
import types
import warnings
import zlib
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

OUT = Path(__file__).parent / "results/strangers.json"
INPUTS = 6  # tensors that calls take turns with
ROUNDS, ROUND_SECONDS = 11, 0.03
CANDIDATE_SECONDS = 90
BUILT, DONE = "-- built", "-- done"  # what a row's process says
MEMBER_FLOATS, ALL_FLOATS, ACTIVATION_FLOATS = 6e7, 3e8, 4e8
# Of an H200, what large kernels reach: bytes and operations per second.
BANDWIDTH, RATES = 4.3e12, {"fp32": 165e12, "bf16": 700e12}
LR = 1e-3
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


# Families: each takes a random generator and a width, gives (make, shape of one sample).


class ActorCritic(nn.Module):
    def __init__(self, obs, width, actions, depth, norm):
        super().__init__()
        layers = []
        for i in range(depth):
            layers += [nn.Linear(obs if i == 0 else width, width)]
            layers += [nn.LayerNorm(width)] if norm else []
            layers += [nn.Tanh()]
        self.body = nn.Sequential(*layers)
        self.actor, self.critic = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, x):
        h = self.body(x)
        return torch.cat([self.actor(h), self.critic(h)], -1)


class Mlp(nn.Module):
    def __init__(self, sizes, norm, act):
        super().__init__()
        layers = []
        for i, (a, b) in enumerate(pairwise(sizes)):
            layers.append(nn.Linear(a, b))
            if i < len(sizes) - 2:
                layers += [norm(b), act()]
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        return self.net(x)


class Cnn(nn.Module):
    """Plain, depthwise or residual."""

    def __init__(self, width, depth, kind, classes):
        super().__init__()
        self.stem, self.kind = nn.Conv2d(3, width, 3, padding=1), kind
        self.blocks = nn.ModuleList(self.block(width, kind) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    @staticmethod
    def block(width, kind):
        if kind == "depthwise":
            first = [nn.Conv2d(width, width, 3, padding=1, groups=width), nn.Conv2d(width, width, 1)]
        else:
            first = [nn.Conv2d(width, width, 3, padding=1, bias=False)]
        return nn.Sequential(*first, nn.BatchNorm2d(width), nn.ReLU())

    def forward(self, x):
        x = F.relu(self.stem(x))
        for i, block in enumerate(self.blocks):
            y = block(x)
            x = x + y if self.kind == "residual" else y
            if i % 2:
                x = F.max_pool2d(x, 2)
        return self.head(x.mean((2, 3)))


class Tcn(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.inp = nn.Conv1d(8, width, 1)
        self.convs = nn.ModuleList(
            nn.Conv1d(width, width, 3, padding=2**i, dilation=2**i) for i in range(depth)
        )
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        x = self.inp(x)
        for conv in self.convs:
            x = x + F.gelu(conv(x))
        return self.out(x.mean(-1))


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()

        def block(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU())

        self.a, self.b, self.c = block(3, width), block(width, 2 * width), block(2 * width, 2 * width)
        self.up1, self.up2 = block(4 * width, width), block(2 * width, width)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = self.c(F.max_pool2d(b, 2))
        u = self.up1(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        return self.out(self.up2(torch.cat([F.interpolate(u, scale_factor=2.0), a], 1)))


class Attention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.qkv, self.out, self.heads, self.causal = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            heads,
            causal,
        )

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.n1, self.n2, self.attention = (
            nn.LayerNorm(width),
            nn.LayerNorm(width),
            Attention(width, heads, causal),
        )
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.n1(x))
        return x + self.mlp(self.n2(x))


class Transformer(nn.Module):
    """Encoder of vectors, decoder, or ViT by its `inp`."""

    def __init__(self, inp, width, depth, heads, causal, tokens):
        super().__init__()
        self.inp = inp
        self.place = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads, causal) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        h = self.inp(x)
        if h.dim() == 4:  # patches
            h = h.flatten(2).transpose(1, 2)
        return self.head(self.norm(self.layers(h + self.place)).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind, width, layers):
        super().__init__()
        self.rnn = getattr(nn, kind)(16, width, layers, batch_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Adapter(nn.Module):
    """A low-rank adapter of its own on a trunk that all members share, which does not learn."""

    def __init__(self, trunk, width, rank):
        super().__init__()
        self.trunk = trunk
        self.down = nn.ParameterList(nn.Parameter(torch.randn(rank, width) * 0.02) for _ in trunk)
        self.up = nn.ParameterList(nn.Parameter(torch.randn(width, rank) * 0.02) for _ in trunk)

    def forward(self, x):
        for layer, down, up in zip(self.trunk, self.down, self.up, strict=True):
            x = x + F.gelu(layer(x) + (x @ down.T) @ up.T)
        return x


def actor_critic(r, w):
    obs, actions, depth, norm = r.randint(4, 64), r.randint(2, 18), r.randint(2, 3), r.random() < 0.5
    w = min(w, 1024)
    return (
        lambda: ActorCritic(obs, w, actions, depth, norm),
        (obs,),
        f"{obs}-{w}x{depth}-{actions}+1 norm={norm}",
    )


def mlp(r, w):
    depth, act = r.randint(1, 6), r.choice([nn.ReLU, nn.GELU, nn.SiLU])
    norm = r.choice([nn.LayerNorm, nn.Identity, nn.BatchNorm1d])
    sizes = [r.choice([16, 64, w]), *[w] * depth, r.choice([1, 10, w])]
    text = f"{'-'.join(map(str, sizes))} {norm.__name__} {act.__name__}"
    return lambda: Mlp(sizes, lambda n: norm(n), act), (sizes[0],), text


def cnn(kind):
    def family(r, w):
        w, depth, size = min(w, 256), r.randint(2, 6), r.choice([16, 28, 32])
        return lambda: Cnn(w, depth, kind, 10), (3, size, size), f"{w}x{depth} {size}px"

    return family


def tcn(r, w):
    w, depth, length = min(w, 256), r.randint(2, 6), r.choice([64, 128, 256])
    return lambda: Tcn(w, depth), (8, length), f"{w}x{depth} T={length}"


def unet(r, w):
    w, size = max(8, min(w, 64) // 4 * 4), r.choice([16, 32])
    return lambda: UNet(w), (3, size, size), f"{w} {size}px"


def transformer(kind):
    def family(r, w):
        heads, depth = r.choice([2, 4, 8]), r.randint(1, 6)
        w = max(32, min(w, 768) // (8 * heads) * (8 * heads))
        if kind == "vit":
            patch = r.choice([4, 8])
            tokens, shape = (32 // patch) ** 2, (3, 32, 32)
            make_inp = lambda: nn.Conv2d(3, w, patch, stride=patch)  # noqa: E731
        else:
            tokens = r.choice([16, 64, 128])
            shape, make_inp = (tokens, 32), lambda: nn.Linear(32, w)
        text = f"{w}x{depth} heads={heads} T={tokens}"
        return lambda: Transformer(make_inp(), w, depth, heads, kind == "decoder", tokens), shape, text

    return family


def recurrent(r, w):
    kind, w, layers, length = r.choice(["LSTM", "GRU"]), min(w, 256), r.randint(1, 2), r.choice([16, 32])
    return lambda: Recurrent(kind, w, layers), (length, 16), f"{kind} {w}x{layers} T={length}"


def adapters(r, w):
    w, depth, rank = max(64, min(w, 1024)), r.randint(2, 8), r.choice([4, 8, 16])
    trunk = nn.ModuleList(nn.Linear(w, w).requires_grad_(False) for _ in range(depth))

    def make():
        trunk.to(DEVICE)
        return Adapter(trunk, w, rank)

    return make, (w,), f"{w}x{depth} rank={rank}"


FAMILIES = {
    "actor_critic": actor_critic,
    "mlp": mlp,
    "cnn": cnn("plain"),
    "resnet": cnn("residual"),
    "depthwise": cnn("depthwise"),
    "tcn": tcn,
    "unet": unet,
    "encoder": transformer("encoder"),
    "decoder": transformer("decoder"),
    "vit": transformer("vit"),
    "recurrent": recurrent,
    "adapters": adapters,
}


class Row:
    """Row `number` of a seed."""

    def __init__(self, seed, number):
        r = random.Random(f"{seed}:{number}")
        self.id = f"{seed}:{number}"
        self.family = list(FAMILIES)[(number + seed) % len(FAMILIES)]
        self.dtype = ("fp32", "bf16")[(number // len(FAMILIES) + number) % 2]
        self.train = r.random() < 0.5

        def log_uniform(low, high):
            return round(math.exp(r.uniform(math.log(low), math.log(high))))

        width, self.n, self.batch = log_uniform(16, 4096), log_uniform(2, 1024), log_uniform(1, 512)
        torch.manual_seed(r.randrange(2**31))
        self.make, self.shape, self.text = FAMILIES[self.family](r, width)
        with torch.device("meta"):
            member = (
                FAMILIES[self.family](random.Random(0), width)[0]
                if self.family == "adapters"
                else self.make()
            )
        size = 1e6 if self.family == "adapters" else sum(p.numel() for p in member.parameters())
        self.too_large = size > MEMBER_FLOATS
        rows = math.prod(self.shape) * 8
        while self.n > 2 and size * self.n > ALL_FLOATS:
            self.n //= 2
        while self.batch > 1 and self.n * self.batch * rows > ACTIVATION_FLOATS:
            self.batch = max(1, self.batch // 2)

    def __str__(self):
        mode = "train" if self.train else "infer"
        return f"{self.id:6s} {self.family:12s} {self.text:34s} N={self.n} B={self.batch} {self.dtype} {mode}"


def autocast(row):
    return torch.autocast(DEVICE, dtype=torch.bfloat16) if row.dtype == "bf16" else contextlib.nullcontext()


def member_loss(y):
    return y.float().square().mean()


def lane_losses(y):
    return y.float().square().flatten(1).mean(1)


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def megabytes(peak=False):
    if not CUDA:
        return 0.0
    return (torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()) / 2**20


def graphed(call, buffer):
    """`call` in a CUDA graph; the input is copied into `buffer`."""
    if not CUDA:
        return lambda x: buffer.copy_(x) is not None and call()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = call()

    def run(x, kept=call):  # the graph reads what the call holds
        buffer.copy_(x)
        graph.replay()
        return out

    return run


def ours(row, members, inputs):
    import wide_compiler
    from wide_compiler.training import Adam, TrainStep

    wide = wide_compiler.compile(members, inputs[0][0], config=wide_compiler.WideConfig.fast())
    if row.train:
        dtype = torch.bfloat16 if row.dtype == "bf16" else None
        parameters = [p for p in wide.parameters() if p.requires_grad]
        run = TrainStep(wide, Adam(parameters, LR), lane_losses, door="stacked", autocast=dtype)
        return run, wide

    def call(x):
        with torch.no_grad(), autocast(row):
            return wide.stacked(x)

    return call, wide


def stacked(members):
    """Parameters and buffers of all lanes; what the members share stays one, not learning."""
    shared = {
        k
        for k, p in members[0].named_parameters()
        if all(dict(m.named_parameters())[k] is p for m in members[1:])
    }
    parameters, buffers = stack_module_state(members)
    own = {k: p for k, p in parameters.items() if k not in shared}
    rest = {k: p.detach() for k, p in members[0].named_parameters() if k in shared}
    return own, rest, buffers


def vmapped(row, members, inputs):
    parameters, shared, buffers = stacked(members)
    template = copy.deepcopy(members[0]).to("meta")
    buffer = inputs[0].clone()

    def member(own, state, x):
        y = functional_call(template, ({**own, **shared}, state), (x,))
        return member_loss(y) if row.train else y

    lanes = torch.compile(vmap(member, randomness="different"), dynamic=False)

    def forward():
        with autocast(row):
            return lanes(parameters, buffers, buffer)

    if not row.train:
        with torch.no_grad():
            return graphed(forward, buffer), None
    adam = torch.optim.Adam(parameters.values(), LR, fused=CUDA, capturable=CUDA)

    def step():
        adam.zero_grad(set_to_none=False)
        losses = forward()
        losses.sum().backward()
        adam.step()
        return losses.detach()

    return graphed(step, buffer), None


def looped(row, members, inputs):
    members, buffer = copy.deepcopy(members) if row.family != "adapters" else members, inputs[0].clone()
    if not row.train:

        def forward():
            with autocast(row):
                return [m(x) for m, x in zip(members, buffer.unbind(0), strict=True)]

        with torch.no_grad():
            run = graphed(forward, buffer)
        return run, None
    parameters = [p for m in members for p in m.parameters() if p.requires_grad]
    adam = torch.optim.Adam(parameters, LR, fused=CUDA, capturable=CUDA)

    def step():
        adam.zero_grad(set_to_none=False)
        with autocast(row):
            losses = [member_loss(m(x)) for m, x in zip(members, buffer.unbind(0), strict=True)]
        torch.stack(losses).sum().backward()
        adam.step()
        return [loss.detach() for loss in losses]

    return graphed(step, buffer), None


def together(result):
    return torch.stack(list(result)) if isinstance(result, list) else result


def truth(row, members, inputs, dtype):
    """Results of the first calls of the plain loop in `dtype` (None: as the row says)."""
    members = copy.deepcopy(members)
    if dtype is not None:
        members = [m.to(dtype) for m in members]
    mode = autocast(row) if dtype is None else contextlib.nullcontext()
    results = []
    adams = (
        [torch.optim.Adam([p for p in m.parameters() if p.requires_grad], LR) for m in members]
        if row.train
        else []
    )
    for x in inputs[:3]:
        x = x if dtype is None else x.to(dtype)
        found = []
        for m, one in zip(members, x.unbind(0), strict=True):  # one by one: float64 takes much memory
            with torch.set_grad_enabled(row.train), mode:
                y = m(one)
                y = y if not row.train else y.square().mean() if dtype else member_loss(y)
            if row.train:
                y.backward()
            found.append(y.detach())
        for adam in adams:
            adam.step()
            adam.zero_grad()
        results.append(torch.stack(found).double())
    return torch.stack(results)


def error(got, want):
    return float((got.double() - want).square().mean().sqrt() / (want.square().mean().sqrt() + 1e-30))


def floor_ms(row, member, inputs):
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        y = member(inputs[0][0])
    weights = sum(p.numel() for p in member.parameters())
    traffic = 4 * (weights + inputs[0][0].numel() + y.numel())
    operations = counter.get_total_flops()
    if row.train:
        operations, traffic = 3 * operations, 2 * traffic + 28 * weights
    return 1e3 * row.n * max(operations / RATES[row.dtype], traffic / BANDWIDTH)


def build(row):
    torch.manual_seed(zlib.crc32(row.id.encode()))
    members = [row.make().to(DEVICE).train(row.train) for _ in range(row.n)]
    inputs = [torch.randn(row.n, row.batch, *row.shape, device=DEVICE) for _ in range(INPUTS)]
    return members, inputs


VMAP = "vmap compiled, graph"
CANDIDATES = {"ours": ours, VMAP: vmapped, "loop, graph": looped}


def measure(row, wait_for_turn=None):
    """Build every candidate, then time them in turns.

    Args:
        wait_for_turn: called when everything is built; returns once this process has the GPU for itself.
    """
    result = {"id": row.id, "family": row.family, "text": row.text, "n": row.n, "batch": row.batch}
    result |= {"dtype": row.dtype, "mode": "train" if row.train else "infer", "ms": {}, "error": {}}
    result |= {"first_s": {}, "mb": {}, "failed": {}}
    members, inputs = build(row)
    want = truth(row, members, inputs, torch.float64)
    result["error"]["loop"] = error(truth(row, members, inputs, None), want)
    result["floor_ms"] = floor_ms(row, members[0], inputs)
    runs = {}
    for name in CANDIDATES:
        make_candidate(row, name, want, result, runs)
    if wait_for_turn is not None:
        wait_for_turn()
        if "ours" in runs:  # what was chosen while others used the GPU is looked at again
            del runs["ours"]
            as_a_later_process()
            make_candidate(row, "ours", want, result, runs)
    time_in_turns(runs, inputs, result)
    return result


def as_a_later_process():
    """A choice made under load is confirmed in a later process; let this one count as such."""
    from wide_compiler.measure import contest

    contest.os = types.SimpleNamespace(getpid=lambda: -1)


def make_candidate(row, name, want, result, runs):
    """Build one candidate and compare its results with `want`; a failure is kept in the result."""
    members, inputs = build(row)
    gc.collect()  # what an earlier candidate held is freed now, not while this one is measured
    synchronize()
    before, started = megabytes(), time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, CANDIDATE_SECONDS)
    try:
        run, wide = CANDIDATES[name](row, members, inputs)
        first = together(run(inputs[0])).double()
        synchronize()
        result["first_s"].setdefault(name, round(time.perf_counter() - started, 1))
        if name == "ours":
            results = [first] + [together(run(x)).double() for x in inputs[1:3]]
            result["error"][name] = error(torch.stack(results), want)
            for x in inputs * 2:
                run(x)
            result["plan"] = str(wide.explain(measure=False).tuned)[:1500] if wide.programs.latest else ""
            result["why"] = getattr(run, "why", "")
        elif not row.train:
            result["error"][name] = error(first, want[0])
        for x in inputs:
            run(x)
        synchronize()
        if CUDA:
            torch.cuda.reset_peak_memory_stats()
        run(inputs[1])
        synchronize()
        result["mb"][name] = round(megabytes(peak=True) - before, 1)
        runs[name] = run
    except Exception as failure:
        result["failed"][name] = f"{type(failure).__name__}: {str(failure).splitlines()[0][:200]}"
        if name == "ours":
            traceback.print_exc()
        if "CUDA error" in str(failure):
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def time_in_turns(runs, inputs, result):
    times = {name: [] for name in runs}
    counts = {}
    for name, run in runs.items():
        synchronize()
        started = time.perf_counter()
        for x in inputs:
            run(x)
        synchronize()
        counts[name] = max(1, min(200, int(ROUND_SECONDS / (time.perf_counter() - started))))
    host = {}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            synchronize()
            started = time.perf_counter()
            y = None
            for _ in range(counts[name]):
                for x in inputs:
                    y = run(x)
            issued = time.perf_counter() - started
            synchronize()
            times[name].append((time.perf_counter() - started) / counts[name] / INPUTS)
            host.setdefault(name, []).append(issued / counts[name] / INPUTS)
            del y
    result["ms"] = {name: 1e3 * statistics.median(t) for name, t in times.items()}
    result["host_us"] = {name: round(1e6 * min(t), 1) for name, t in host.items()}
    peers = {name: ms for name, ms in result["ms"].items() if name != "ours"}
    if peers and "ours" in result["ms"]:
        result["best_peer"] = min(peers, key=peers.get)
        result["ratio"] = min(peers.values()) / result["ms"]["ours"]


def write(out, result):
    before = json.loads(out.read_text()) if out.exists() else {}
    rows = [r for r in before.get("rows", []) if r["id"] != result["id"]] + [result]
    head = {
        "device": torch.cuda.get_device_name() if CUDA else "cpu",
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }
    head["date"] = time.strftime("%Y-%m-%d")
    head["missing"] = [r for r in before.get("missing", []) if r["id"] != result["id"]]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(
        json.dumps(
            {**head, "command": "python benchmarks/strangers.py --seed S --rows R", "rows": rows}, indent=1
        )
    )


def missing(out, row, why):
    """Add a row without a result to the file."""
    data = json.loads(out.read_text()) if out.exists() else {"rows": []}
    data["missing"] = [r for r in data.get("missing", []) if r["id"] != row.id]
    data["missing"].append({"id": row.id, "why": f"{why} ({str(row).split(maxsplit=1)[1]})"})
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(data, indent=1))


def known(out):
    return {r["id"] for r in json.loads(out.read_text())["rows"]} if out.exists() else set()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=12)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of rows")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="rows that are built at once")
    parser.add_argument("--seconds", type=float, default=1e9, help="end after about so many")
    parser.add_argument("--build-seconds", type=float, default=200, help="to build the rows of a batch")
    parser.add_argument("--row-seconds", type=float, default=60, help="to time one row, once it is built")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--page", action="store_true", help="write docs/strangers.md, measure nothing")
    args = parser.parse_args()
    if args.page:
        page(args.out)
        return
    warnings.filterwarnings("ignore")
    rows = [Row(args.seed, i) for i in (args.only if args.only is not None else range(args.rows))]
    rows = [row for row in rows if not row.too_large]
    if args.list:
        print(*rows, sep="\n")
    elif args.inside:
        measure_one(rows[0], args.out)
    else:
        end = time.monotonic() + args.seconds
        rows = [row for row in rows if row.id not in known(args.out)]
        while rows and time.monotonic() < end:
            batch, rows = rows[: args.jobs], rows[args.jobs :]
            measure_batch(batch, args, end)


def measure_batch(rows, args, end):
    """Build rows at once, each in a process of its own; then each is timed while the others wait."""
    children = {row: Child(row, args) for row in rows}
    built_by = min(time.monotonic() + args.build_seconds, end)
    built = {row: child for row, child in children.items() if child.says(BUILT, built_by)}
    for row in children.keys() - built.keys():
        children[row].process.kill()
        missing(args.out, row, f"not built within {args.build_seconds:.0f} s")
    for row, child in built.items():
        child.go()
        if not child.says(DONE, time.monotonic() + args.row_seconds):
            missing(args.out, row, f"not timed within {args.row_seconds:.0f} s")
        child.process.kill()


class Child:
    """A row's process; a thread shows what it prints, and notes the words that it says."""

    def __init__(self, row, args):
        command = [sys.executable, __file__, "--inside", "--seed", str(args.seed), "--out", str(args.out)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([*command, "--only", row.id.split(":")[1]], **pipes)
        self.words = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            if line.strip() in (BUILT, DONE):
                self.words.put(line.strip())
            else:
                print(line, end="", flush=True)
        self.words.put("")

    def says(self, word, until):
        """Whether the process says `word` before the clock shows `until`."""
        with contextlib.suppress(queue.Empty):
            return self.words.get(timeout=max(0.0, until - time.monotonic())) == word
        return False

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.close()


def measure_one(row, out):
    def wait_for_turn():
        print(BUILT, flush=True)
        sys.stdin.readline()

    def late(*_):
        raise TimeoutError(f"not built within {CANDIDATE_SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    began = time.perf_counter()
    result = measure(row, wait_for_turn)
    write(out, result)
    ms = ", ".join(f"{k} {v:.4f}" for k, v in result["ms"].items())
    print(row, f"ratio {result.get('ratio', 0):.2f} | {ms} | floor {result['floor_ms']:.4f}", flush=True)
    print(
        "   ",
        f"host {result['host_us']} first {result['first_s']} error",
        {k: f"{v:.1e}" for k, v in result["error"].items()},
        result["failed"],
        result.get("why", ""),
        f"[{time.perf_counter() - began:.0f} s]",
        flush=True,
    )
    print("    plan:", result.get("plan", "").splitlines()[:4], flush=True)
    print(DONE, flush=True)


HEAD = """# Rows drawn from a seed

Made by `python benchmarks/strangers.py --page`. {device}, PyTorch {torch}, Python {python}, {date}.

Models, sizes, precision and mode are drawn from a seed, and every call gets another input tensor.
`WideConfig.fast()` beside compiled `torch.func.vmap` and beside the loop, each in a CUDA graph, timed in
turns. `ratio` is the time of the best peer over ours; `floor` what the row's bytes and operations would take
at the GPU's peak rates; `host us` the time until a call returns, before the GPU is done; errors are relative
to the loop in float64. First calls are with an empty cache while several rows are built at once, and ours,
the first in its process, starts the compiler for both; where it says *warm*, code and answers were found that
an earlier process had kept.

"""
COLUMNS = ("row", "family", "model", "lanes", "batch", "dtype", "mode", "ours ms", "best peer ms", "ratio")
COLUMNS += (
    "floor ms",
    "host us, ours / vmap",
    "first call s, ours / vmap",
    "MB, ours / peer",
    "error, ours / loop",
)


def page(out):
    """The results as docs/strangers.md, every row."""
    data = json.loads(out.read_text())
    table = [COLUMNS, ["---"] * len(COLUMNS)]
    for r in sorted(data["rows"], key=lambda r: -r.get("ratio", 0)):
        peer = r.get("best_peer", "")
        both = [(r["host_us"], VMAP, ""), (r["first_s"], VMAP, " *warm*" * r.get("warm", False))]
        both.append((r["mb"], peer, ""))
        errors = " / ".join(f"{r['error'][k]:.0e}" if k in r["error"] else "-" for k in ("ours", "loop"))
        cells = [r[k] for k in ("id", "family", "text", "n", "batch", "dtype", "mode")]
        cells += [f"{r['ms'].get('ours', math.nan):.3f}"]
        cells += [f"{r['ms'].get(peer, math.nan):.3f} ({peer[:4]})", f"{r.get('ratio', math.nan):.2f}"]
        cells.append(f"{r['floor_ms']:.3f}")
        cells += [f"{t.get('ours', '-')} / {t.get(name, '-')}{how}" for t, name, how in both]
        table.append([*map(str, cells), errors])
    ratios = [r["ratio"] for r in data["rows"] if "ratio" in r]
    lines = [f"| {' | '.join(row)} |" for row in table]
    lines += ["", f"{len(ratios)} rows: median {statistics.median(ratios):.2f}, lowest {min(ratios):.2f}, "]
    lines[-1] += f"{sum(ratio < 0.97 for ratio in ratios)} under 0.97."
    notes = [f"{r['id']}: {r['note']}." for r in data["rows"] if r.get("note")]
    lines += ["", *notes] if notes else []
    if data.get("missing"):
        lines += ["", "Drawn, but without a result:", ""]
        lines += [f"- {row['id']}: {row['why']}" for row in data["missing"]]
    text = HEAD.format(**data) + "\n".join(lines) + "\n"
    (Path(__file__).parents[1] / "docs/strangers.md").write_text(text)


if __name__ == "__main__":
    main()
