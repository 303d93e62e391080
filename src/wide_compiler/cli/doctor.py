"""`wide_compiler doctor`: run each entry point on a small example and report what works."""

import importlib.util
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from ..config import PREFIX, WideConfig
from ..errors import UnsupportedError, ValidationError, one_line
from ..measure.progress import progress_bar
from .output_files import print_json

STYLES = {"works": "green", "absent": "yellow", "broken": "bold red"}
LANES = 3


@dataclass
class Finding:
    """The result of one check.

    Attributes:
        name: name of the check.
        status: 'works', 'absent' (not installed, or no such device: not an error), or 'broken'.
        detail: what was observed.
        remedy: how to fix it, if it does not work.
        seconds: duration.
    """

    name: str
    status: str
    detail: str
    remedy: str = ""
    seconds: float = 0.0


class Absent(NamedTuple):
    """Returned by a check that needs something that is missing; `remedy` says how to get it."""

    detail: str
    remedy: str


def _check_close(got: Tensor, expected: Tensor) -> str:
    difference = float((got - expected).detach().abs().max())
    if not difference <= 1e-4 * max(1.0, float(expected.detach().abs().max())):
        raise ValidationError(f"differs from the loop by {difference:.1e}")
    return f"equals the loop within {difference:.0e}" if difference else "equals the loop exactly"


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def _missing(extra: str, *packages: str) -> Absent | None:
    """Return the first of the packages that is not installed, or None."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            return Absent(f"{package} is not installed", f"pip install 'wide_compiler[{extra}]'")
    return None


def compile_check(device: str = "cpu") -> str:
    import wide_compiler

    models, x = [_net().to(device) for _ in range(LANES)], torch.randn(5, 6, device=device)
    wide = wide_compiler.compile(models, x)
    got = wide.shared(x)
    said = _check_close(got, torch.stack([model(x) for model in models]))
    got.square().mean().backward()
    explanation = wide.explain(measure=False)
    if explanation.why:
        raise UnsupportedError(f"runs as a loop, because {explanation.why}")
    return f"{explanation.coverage:.0%} of {len(explanation.rows)} nodes wide; {said}"


def training_check() -> str:
    import wide_compiler
    from wide_compiler.training import Adam, lane_losses

    models, x, y = [_net() for _ in range(LANES)], torch.randn(5, 6), torch.randn(5, 2)
    wide = wide_compiler.compile(models, x)
    lane_losses.mse(wide.shared(x), y.expand(LANES, 5, 2)).sum().backward()
    Adam(wide.parameters(), lr=[1e-3, 1e-2, 1e-1]).step()
    for model, rate in zip(models, (1e-3, 1e-2, 1e-1), strict=True):
        nn.functional.mse_loss(model(x), y).backward()
        torch.optim.Adam(model.parameters(), lr=rate).step()
    return "one step of Adam, a rate per lane; " + _check_close(
        wide.shared(x).detach(), torch.stack([model(x) for model in models]).detach()
    )


def router_check() -> str:
    from wide_compiler.routers import WideRouter

    towers, x = {f"tower{i}": _net() for i in range(LANES)}, torch.randn(5, 6)
    router = WideRouter("doctor", config=WideConfig(measure=False))
    for name, tower in towers.items():
        router.attach(name, tower)
        router.register_tower(name)
    got = router(x)
    expected = torch.stack([tower(x) for tower in towers.values()])
    said = _check_close(torch.stack([got[name] for name in towers]), expected)
    return f"{LANES} towers run {', '.join(router.explain().counts)}; {said}"


def jit_check() -> str:
    from wide_compiler.xcs import Config, jit

    def scores(items: list[Tensor]) -> list[Tensor]:
        return [torch.tanh(item) * 2 + item.sum() for item in items]

    fast, items = jit(scores, config=Config(measure=False)), [torch.randn(64) for _ in range(40)]
    for _ in range(4):
        got = fast(items)
    said = _check_close(torch.stack(got), torch.stack(scores(items)))
    return f"a loop of {len(items)} runs as {', '.join(fast.explain().counts)}; {said}"  # type: ignore[attr-defined]


def signals_check() -> str | Absent:
    import wide_compiler.signals as gt

    return _with_workers(lambda: gt.cpu_workers(2))


def ray_check() -> str | Absent:
    if absent := _missing("ray", "ray"):
        return absent
    import ray

    import wide_compiler.signals as gt

    if ray.is_initialized():
        return _with_workers(lambda: gt.ray_workers(2))
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=100 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    try:
        return _with_workers(lambda: gt.ray_workers(2, "auto"))
    finally:
        ray.shutdown()


def _with_workers(start: Callable[[], None]) -> str | Absent:
    import wide_compiler.signals as gt
    from wide_compiler.signals import runtime

    if runtime.running() is not None:
        return Absent("this process has workers already", "run doctor in a process of its own")
    x, w = torch.randn(8, 6), torch.randn(6, 4)
    gt.register_config("doctor", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    try:
        start()
        with gt.signal.context("doctor"):
            placed = gt.tensor(x) @ gt.tensor(w)
            workers, how = gt.debug.placement(placed)
            got = placed.cpu()
    finally:
        gt.shutdown()
        gt.clear_configs()
    return f"a product over workers {workers}, placed {how}; {_check_close(got, x @ w)}"


def torch_compile_check() -> str:
    def scaled(x: Tensor) -> Tensor:
        return torch.relu(x) * 2 + 1

    x = torch.randn(64)
    said = _check_close(torch.compile(scaled, dynamic=False)(x), scaled(x))
    return f"inductor compiles for the CPU (WideConfig.fast()); {said}"


def peft_check() -> str | Absent:
    if absent := _missing("peft", "peft"):
        return absent
    from peft import LoraConfig

    from wide_compiler import adapters

    configs = [LoraConfig(r=rank, target_modules=["0", "2"], init_lora_weights=False) for rank in (1, 2, 2)]
    x = torch.randn(5, 6)
    wide = adapters.compile(_net(), configs, x)
    got = wide.shared(x).detach()
    expected = torch.stack([wide.lane(lane)(x).detach() for lane in range(LANES)])
    return f"{LANES} adapters of ranks 1, 2, 2 over one base; {_check_close(got, expected)}"


def onnx_check() -> str | Absent:
    if absent := _missing("onnx", "onnx", "onnxscript", "onnxruntime"):
        return absent
    import wide_compiler

    wide = wide_compiler.compile([_net() for _ in range(LANES)], torch.randn(5, 6))
    with tempfile.TemporaryDirectory() as folder:
        wide.export(Path(folder) / "doctor.onnx")
    return "exported, and run by onnxruntime with the same outputs"


def cuda_check() -> str | Absent:
    if not torch.cuda.is_available():
        return Absent("no CUDA device", "nothing to do: everything runs on the CPU")
    return f"{torch.cuda.get_device_name()}: {compile_check('cuda')}"


def triton_check() -> str | Absent:
    if importlib.util.find_spec("triton") is None:
        return Absent("triton is not installed", "CUDA builds of PyTorch bring it; the CPU does not need it")
    if not torch.cuda.is_available():
        return Absent(
            "installed, but its kernels need a CUDA device", "nothing to do: the CPU has other ways"
        )
    from ..kernels.lane_linear import lane_linear

    x, w = (torch.randn(LANES, 64, 64, device="cuda") for _ in range(2))
    got = lane_linear(x, w, None, "none")
    return _check_close(got / 8, x @ w.mT / 8)


def cache_check() -> str:
    from ..measure.store import Store

    folder = Store().folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return f"{folder} can be written; {len(list(folder.glob('*.json')))} answers in it"


# In order of execution: name -> (check, remedy if it fails).
REPORT = "report it with the output of `wide_compiler info --json`"
CHECKS: dict[str, tuple[Callable[[], str | Absent], str]] = {
    "cache": (cache_check, f"set {PREFIX}CACHE to a folder that can be written"),
    "compile": (compile_check, f"the core does not run here: {REPORT}"),
    "training": (training_check, REPORT),
    "router": (router_check, REPORT),
    "jit": (jit_check, REPORT),
    "signals": (
        signals_check,
        "workers are processes that talk over the loopback interface: is 127.0.0.1 reachable, and is there "
        f"memory for two more of them? {PREFIX}WORKERS=0 runs scripts without workers",
    ),
    "torch.compile": (torch_compile_check, "it needs a C++ compiler: install g++, or set CXX"),
    "export to ONNX": (onnx_check, "update onnx, onnxscript and onnxruntime"),
    "PEFT": (peft_check, "update peft: 0.17 or newer"),
    "Ray": (ray_check, "does `ray start --head` work here? Ray needs /dev/shm and 2 GB of memory"),
    "CUDA": (cuda_check, "does `python -c 'import torch; torch.zeros(1).cuda()'` work?"),
    "Triton": (triton_check, "does the Triton version fit this PyTorch? `pip show triton torch`"),
}


def examine(names: Sequence[str], tell: Callable[[str], None] = lambda name: None) -> Iterator[Finding]:
    """Run the named checks one after another; an exception becomes a finding."""
    for name in names:
        tell(name)
        check, remedy = CHECKS[name]
        start = time.perf_counter()
        try:
            with _limited_waiting(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                seen = check()
            finding = (
                Finding(name, "absent", *seen) if isinstance(seen, Absent) else Finding(name, "works", seen)
            )
        except Exception as error:  # any error is shown to the user
            finding = Finding(name, "broken", one_line(error), remedy)
        finding.seconds = round(time.perf_counter() - start, 2)
        yield finding


@contextmanager
def _limited_waiting() -> Iterator[None]:
    """Give up on hanging workers after 30 seconds instead of ten minutes."""
    name = PREFIX + "HANG_SECONDS"
    before = os.environ.get(name)
    os.environ.setdefault(name, "30")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)


def run(console: Console, names: Sequence[str], as_json: bool) -> bool:
    """Run the checks and print the findings; return whether nothing is broken."""
    findings: list[Finding] = []
    with progress_bar(Console(stderr=True) if as_json else console, transient=True) as progress:
        task = progress.add_task("", total=len(names))
        for finding in examine(names, lambda name: progress.update(task, description=name)):
            findings.append(finding)
            progress.advance(task)
    broken = [finding for finding in findings if finding.status == "broken"]
    if as_json:
        print_json({"ok": not broken, "findings": [asdict(finding) for finding in findings]})
        return not broken
    console.print(_table(findings))
    if broken:
        console.print(f"[bold red]{len(broken)} of {len(findings)} do not work here.[/]")
    else:
        absent = sum(finding.status == "absent" for finding in findings)
        more = f", {absent} not installed or without a device" if absent else ""
        console.print(f"[green]{len(findings) - absent} of {len(findings)} work here{more}.[/]")
    return not broken


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(title="What works here", title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("result", overflow="fold")
    table.add_column("s", justify="right", no_wrap=True)
    for f in findings:
        seen: Any = Text(f.detail)
        if f.remedy:
            seen = Text.assemble(f.detail, ("\n-> " + f.remedy, "dim"))
        table.add_row(f.name, Text(f.status, STYLES[f.status]), seen, f"{f.seconds:.1f}")
    return table
