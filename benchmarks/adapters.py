"""Training N LoRA adapters of one frozen Llama at once, beside three peers, on a GPU.

    python benchmarks/adapters.py --out benchmarks/results/h200_adapters.json
    python benchmarks/adapters.py --out rows.json --only 100M:8 1B:32      some cases
    python benchmarks/adapters.py --out rows.json --tiny                   small ones, on a CPU too
    python benchmarks/adapters.py --out rows.json --profile kernels.txt    the kernels of ours and hand too

A case is one model size and one N, in a process of its own. All are built at the same time; then each is
measured alone, its ways in turns. The ways, all on a bfloat16 base with float32 adapters under autocast to
bfloat16, AdamW on the adapters, the same tokens and the same first weights:

    ours    adapters.compile(base, configs, sample) and TrainStep, WideConfig.fast(); a rate for each adapter
    hand    a fusion written by hand for this model: batched products beside the base's linear layers,
            compiled by torch.compile, the whole step recorded in a CUDA graph; one rate for all adapters
    graph   the loop below, all N steps recorded in one CUDA graph
    peft    a PEFT model for each adapter over the base's own tensors, one after another, eager
    eager   ours with the default configuration: neither compiled nor recorded (not by default)
"""

import argparse
import copy
import fcntl
import json
import math
import platform
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "vocab_size")
SIZES = {
    "100M": (768, 12, 2048, 12, 8192),
    "1B": (2048, 16, 5632, 16, 32000),
    "tiny": (32, 2, 48, 2, 64),
}
LANES = (2, 8, 32)
WAYS = ("ours", "hand", "graph", "peft", "eager")
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
RANK, BATCH, TOKENS = 8, 2, 256
RATE = 1e-4
CHECKED_STEPS = 5
SECONDS = 6.0  # of timed steps, all ways together
TURN = 0.1  # seconds of one way's steps in a row


def rates(n):
    """The first adapter's is that of the hand-written fusion."""
    return [RATE * 2 ** (-lane % 5) for lane in range(n)]


def token_loss(logits, ids):
    """`[R, T, V]` and `[R, T]` -> the mean of the next tokens' losses for each row block."""
    flat = logits[:, :-1].float().flatten(0, 1)
    return F.cross_entropy(flat, ids[:, 1:].flatten(), reduction="none").view(len(ids), -1)


class Problem:
    def __init__(self, size, n):
        from peft import LoraConfig
        from transformers import LlamaConfig, LlamaForCausalLM

        self.n, self.device = n, "cuda" if torch.cuda.is_available() else "cpu"
        self.batch, self.tokens = (2, 16) if size == "tiny" else (BATCH, TOKENS)
        torch.manual_seed(0)
        config = LlamaConfig(
            **dict(zip(NAMES, SIZES[size], strict=True)), max_position_embeddings=2 * TOKENS, use_cache=False
        )
        with torch.device(self.device):
            base = LlamaForCausalLM(config)
        self.base = base.to(torch.bfloat16).requires_grad_(False).train()
        self.parameters = sum(p.numel() for p in base.parameters())
        self.configs = [
            LoraConfig(r=RANK, lora_alpha=8 + lane % 4, target_modules=TARGETS) for lane in range(n)
        ]
        generator = torch.Generator().manual_seed(1)
        shape = (n, self.batch, self.tokens)
        self.ids = torch.randint(0, config.vocab_size, shape, generator=generator).to(self.device)

    def autocast(self):
        return torch.autocast(self.device, torch.bfloat16, cache_enabled=False)


def peft_models(problem):
    from peft import get_peft_model

    torch.manual_seed(2)
    models = []
    for config in problem.configs:
        shared = copy.deepcopy(problem.base, {id(p): p for p in problem.base.parameters()})
        models.append(get_peft_model(shared, copy.deepcopy(config)))
    return models


def fused_adamw(parameters, rate, capturable):
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01, fused=True, capturable=capturable)


def peft_loop(problem, capturable=False):
    models = peft_models(problem)
    trained = [[p for p in model.parameters() if p.requires_grad] for model in models]
    optimizers = [
        fused_adamw(own, rate, capturable) for own, rate in zip(trained, rates(problem.n), strict=True)
    ]
    losses = torch.zeros(problem.n, device=problem.device)

    def step():
        for lane, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad(set_to_none=True)
            with problem.autocast():
                loss = token_loss(model(problem.ids[lane]).logits, problem.ids[lane]).mean()
            loss.backward()
            optimizer.step()
            losses[lane] = loss.detach()
        return losses

    return step


def recorded(step):
    """A step as one CUDA graph; two plain steps come before."""
    if not torch.cuda.is_available():
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        losses = step()

    def replay(step=step):  # the graph reads what the step holds, which must stay alive
        graph.replay()
        return losses

    return replay


class HandLora(nn.Module):
    """`[N * B, T, in]`: the base's product over all rows, and two batched products by lane."""

    def __init__(self, linear, down, up, scale):
        super().__init__()
        self.linear, self.down, self.up = linear, nn.Parameter(down), nn.Parameter(up)
        self.register_buffer("scale", scale)

    def forward(self, x):
        rows = x.view(len(self.down), -1, x.shape[-1])
        low = torch.bmm(rows, self.down.to(x.dtype))
        return self.linear(x) + (torch.bmm(low, self.up.to(x.dtype)) * self.scale.to(x.dtype)).view(
            *x.shape[:-1], -1
        )


def hand_written(problem):
    models = peft_models(problem)
    model = copy.deepcopy(problem.base, {id(p): p for p in problem.base.parameters()})
    for path, module in list(model.named_modules()):
        if path.rpartition(".")[2] in TARGETS:
            layers = [m.get_submodule(f"base_model.model.{path}") for m in models]
            down = torch.stack([layer.lora_A["default"].weight.detach().T for layer in layers])
            up = torch.stack([layer.lora_B["default"].weight.detach().T for layer in layers])
            scale = torch.tensor([layer.scaling["default"] for layer in layers], device=down.device)
            parent, _, name = path.rpartition(".")
            fused = HandLora(module, down.contiguous(), up.contiguous(), scale.view(-1, 1, 1))
            setattr(model.get_submodule(parent), name, fused)
    del models
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = fused_adamw(trained, RATE, problem.device == "cuda")
    rows = problem.ids.flatten(0, 1)

    def losses_of(ids):
        return token_loss(model(ids).logits, ids).view(problem.n, -1).mean(1)

    compiled = torch.compile(losses_of, dynamic=False) if problem.device == "cuda" else losses_of

    def step():
        optimizer.zero_grad(set_to_none=True)
        with problem.autocast():
            losses = compiled(rows)
        losses.sum().backward()
        optimizer.step()
        return losses.detach()

    return recorded(step)


def ours(problem, fast=True):
    from wide_compiler import WideConfig, adapters
    from wide_compiler.training import AdamW, TrainStep

    torch.manual_seed(2)
    config = WideConfig.fast() if fast and problem.device == "cuda" else WideConfig()
    wide = adapters.compile(problem.base, problem.configs, problem.ids[0], config=config)
    optimizer = AdamW(wide.parameters(), lr=rates(problem.n), weight_decay=0.01)

    def loss(output, ids):
        rows = token_loss(output.logits.flatten(0, 1), ids.flatten(0, 1))
        return rows.view(problem.n, -1).mean(1)

    take = TrainStep(wide, optimizer, loss, autocast=torch.bfloat16)

    def step():
        return take(problem.ids, problem.ids)

    step.say = lambda: {
        "nodes": str(wide.explain(measure=False)).splitlines()[0],
        "recorded": len(take.recordings),
        "why not": take.why,
    }
    return step


MAKE = {
    "peft": peft_loop,
    "graph": lambda problem: recorded(peft_loop(problem, capturable=problem.device == "cuda")),
    "hand": hand_written,
    "ours": ours,
    "eager": lambda problem: ours(problem, fast=False),
}


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def reserved():
    """Memory of the GPU that this process holds; a graph's is in the pool that it reserved."""
    if not torch.cuda.is_available():
        return math.nan
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() / 2**30


def build(size, n, ways):
    """The steps by way, and a row for each; a way that cannot be built has an error in its row."""
    problem, steps, rows = Problem(size, n), {}, {}
    base = reserved()
    for way in ways:
        before, began = reserved(), time.perf_counter()
        row = rows[way] = {"row": f"{size}:{n}:{way}", "parameters": problem.parameters}
        try:
            step = MAKE[way](problem)
            row["first_losses"] = [round(x, 4) for x in step().tolist()[:4]]
            row["first_step_s"] = round(time.perf_counter() - began, 1)
            for _ in range(CHECKED_STEPS):
                losses = step()
            row["later_losses"] = [round(x, 4) for x in losses.tolist()[:4]]
            row["ready_s"] = round(time.perf_counter() - began, 1)
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
                step()
                synchronize()
                row["peak_gib"] = round(torch.cuda.max_memory_reserved() / 2**30 - before + base, 2)
            row |= step.say() if hasattr(step, "say") else {}
            steps[way] = step
        except Exception as error:
            traceback.print_exc()
            row["error"] = f"{type(error).__name__}: {error}"[:300]
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    return problem, steps, rows


def measure(problem, steps, rows):
    """The steps timed in turns, as a loop takes them: the GPU is waited for only when a turn ends."""
    times = {way: [] for way in steps}
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until or len(times[next(iter(times))]) < 4:
        for way, step in steps.items():
            repeats = max(1, round(TURN / times[way][-1])) if times[way] else 5
            synchronize()
            start = time.perf_counter()
            for _ in range(repeats):
                step()
            synchronize()
            times[way].append((time.perf_counter() - start) / repeats)
    for way, taken in times.items():
        del taken[0]  # too short a turn
        seconds = sorted(taken)[len(taken) // 2]
        rows[way] |= {
            "ms": round(1000 * seconds, 3),
            "tokens_per_second": round(problem.ids.numel() / seconds),
            "rounds": len(taken),
        }


def profile(name, steps, path, repeats=5):
    """Append how long each kernel of a step takes, how often it runs, and after which the GPU is idle."""
    from torch.autograd import DeviceType

    for way in [way for way in ("ours", "hand") if way in steps]:
        with torch.profiler.profile() as seen:
            for _ in range(repeats):
                steps[way]()
            synchronize()
        kernels = [event for event in seen.key_averages() if event.device_type == DeviceType.CUDA]
        kernels.sort(key=lambda event: -event.device_time_total)
        timeline = sorted(
            (event.time_range.start, event.time_range.end, event.name)
            for event in seen.events()
            if event.device_type == DeviceType.CUDA
        )
        idle, until, before = {}, timeline[0][0], ""
        for start, end, kernel in timeline:
            pair = f"{before[:55]} -> {kernel[:55]}"
            total, times = idle.get(pair, (0.0, 0))
            idle[pair] = total + max(start - until, 0) / repeats, times + 1 / repeats
            until, before = max(until, end), kernel
        with open(path, "a") as file:
            total = sum(event.device_time_total for event in kernels) / repeats
            count = sum(event.count for event in kernels) // repeats
            print(f"== {name} {way}: {total:.0f} us in {count} kernels", file=file)
            for event in kernels[:45]:
                took, times = event.device_time_total / repeats, event.count / repeats
                print(f"{took:9.1f} us {times:6.1f} times  {event.key[:150]}", file=file)
            print(f"-- idle for {sum(took for took, _ in idle.values()):.0f} us", file=file)
            for pair, (took, times) in sorted(idle.items(), key=lambda item: -item[1][0])[:25]:
                print(f"{took:9.1f} us {times:6.1f} times  {pair}", file=file)


def one_case(name, ways, meeting, wait, profile_to):
    """Build, wait until every case is built (but no longer than until `wait`), then measure alone."""
    warnings.simplefilter("ignore")
    size, n = name.split(":")
    problem, steps, rows = build(size, int(n), ways)
    (meeting / f"{name}.built").touch()
    while len(list(meeting.glob("*.built"))) < len(list(meeting.glob("*.case"))) and time.time() < wait:
        time.sleep(0.2)
    for row in rows.values():
        row["built_alone"] = len(list(meeting.glob("*.case"))) == 1
    with open(meeting / "turn", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if steps:
            measure(problem, steps, rows)
            if profile_to:
                profile(name, steps, profile_to)
        print(f"{name} measured", flush=True)
    (meeting / f"{name}.json").write_text(json.dumps(rows))


def table(rows):
    print(f"\n{'row':16}{'ms':>10}{'tokens/s':>12}{'peak GiB':>10}{'first step s':>14}   later losses")
    for row in rows.values():
        if "ms" not in row:
            print(f"{row['row']:16} {row.get('error', 'not measured')[:100]}")
            continue
        print(
            f"{row['row']:16}{row['ms']:10.2f}{row['tokens_per_second']:12d}"
            f"{row.get('peak_gib', math.nan):10.2f}"
            f"{row['first_step_s']:14.1f}   {row['later_losses'][:2]}"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="cases, as 100M:8")
    parser.add_argument("--ways", nargs="*", default=WAYS[:4], choices=WAYS)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--profile", type=Path, help="a file for the kernels' times")
    parser.add_argument("--limit", type=float, default=900, help="seconds for all")
    parser.add_argument("--meeting", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--wait", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.meeting:
        one_case(options.only[0], options.ways, options.meeting, options.wait, options.profile)
        return
    sizes = ["tiny"] if options.tiny else [size for size in SIZES if size != "tiny"]
    cases = options.only or [f"{size}:{n}" for size in sizes for n in LANES]
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in cases:
            (Path(folder) / f"{name}.case").touch()
        wait = time.time() + 0.7 * options.limit
        command = [sys.executable, __file__, "--out", str(options.out), "--meeting", folder]
        command += ["--profile", str(options.profile)] if options.profile else []
        command += ["--wait", str(wait), "--ways"]
        processes = [subprocess.Popen([*command, *options.ways, "--only", name]) for name in cases]
        until = time.perf_counter() + options.limit
        for name, process in zip(cases, processes, strict=True):
            try:
                process.wait(max(1.0, until - time.perf_counter()))
            except subprocess.TimeoutExpired:
                process.kill()
            (Path(folder) / f"{name}.built").touch()  # nobody waits for one that has died
        for found in Path(folder).glob("*.json"):
            rows |= {row["row"]: row for row in json.loads(found.read_text()).values()}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    page = {"device": device, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "rows": rows}
    options.out.write_text(json.dumps({**page, "command": "python " + " ".join(sys.argv)}, indent=1))
    table(rows)


if __name__ == "__main__":
    main()
