"""How fast the convolution and recurrent kernels are, against what torch has; needs a CUDA device.

    python benchmarks/kernels_dev2.py                      # everything, float32 with TF32 (torch's default)
    python benchmarks/kernels_dev2.py --only conv --cases 0 3
    python benchmarks/kernels_dev2.py --dtype bfloat16
    python benchmarks/kernels_dev2.py --exact              # float32 without TF32
    python benchmarks/kernels_dev2.py --packing            # the forward with the weight packed and not

Times are of CUDA graph replays, in ms; `x` is the best of torch's over ours; errors are relative, of the
outputs (fwd) or the worst gradient (bwd), against float64.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

# N, B, C, O, image size, kernel, stride
CONVS = (
    (64, 32, 3, 32, 32, 3, 1),
    (64, 32, 32, 64, 16, 3, 1),
    (64, 32, 64, 64, 8, 3, 1),
    (20, 8, 64, 64, 16, 3, 1),
    (10, 8, 64, 64, 16, 3, 1),
    (10, 8, 128, 128, 8, 3, 1),
    (10, 8, 256, 256, 4, 3, 1),
    (10, 8, 512, 512, 2, 3, 1),
    (10, 8, 3, 64, 64, 7, 2),
    (10, 8, 64, 128, 16, 3, 2),
)
# N, B, T, H
RNNS = ((32, 4, 32, 128), (32, 4, 32, 64), (8, 64, 32, 128))


def replay_ms(fn: Callable[[], object], repeat: int = 30) -> float:
    """The median time of one replay of fn, captured as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # tunes what tunes itself
            fn()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = fn()
    for _ in range(5):
        graph.replay()
    times = []
    for _ in range(repeat):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    del graph, kept
    return sorted(times)[len(times) // 2]


def error(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    pairs = zip(got, want, strict=True)
    return max(((a.double() - b).norm() / b.norm()).item() for a, b in pairs)


def both(fn: Callable[..., Tensor], given: Sequence[Tensor], learned: Sequence[Tensor], dy: Tensor):
    """The forward alone, and forward with backward, as functions of nothing."""

    def forward():
        with torch.no_grad():
            return fn(*given)

    return forward, lambda: torch.autograd.grad(fn(*given), learned, dy)


def report(name: str, rows: dict[str, Callable[[], object]], errors: Callable[[], str]) -> None:
    times = {}
    for row, fn in rows.items():
        try:
            times[row] = replay_ms(fn)
        except Exception as problem:
            print(f"    {row} failed: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
            torch.cuda.synchronize()
    shown = "  ".join(f"{row} {ms:.4f}" for row, ms in times.items())
    theirs = [ms for row, ms in times.items() if row not in ("lane", "streams")]
    ratio = f"x{min(theirs) / times['lane']:.2f}" if theirs and "lane" in times else "x ?"
    print(f"  {name}: {ratio}  {shown}", end="  ", flush=True)  # first: the check may fail
    print(errors(), flush=True)


def conv_case(case: tuple[int, ...], dtype: torch.dtype, packing: bool) -> None:
    from wide_compiler.kernels import conv, conv_backward, streams

    N, B, C, O, size, k, stride = case
    padding = k // 2
    torch.manual_seed(0)
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=dtype)  # noqa: E731
    # As the layer before leaves it: channels-last of the folded lanes.
    x = make(B, size, size, N, C).permute(3, 0, 4, 1, 2).requires_grad_(C != 3)
    weight = (make(N, O, C, k, k) / (C * k * k) ** 0.5).requires_grad_()
    bias = make(N, O).requires_grad_()
    given, options = (x, weight, bias), (stride, padding)

    def grouped(x_BP: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.conv2d(x_BP, w, b, stride, padding, 1, N)

    folded = x.detach().transpose(0, 1).flatten(1, 2)
    flat = [t.detach().flatten(0, 1) for t in (weight, bias)]
    learned = [t for t in given if t.requires_grad]
    calls = {}
    for name, fn in (("lane", conv.lane_conv2d), ("streams", streams.streamed_conv)):
        own_fn = lambda *t, fn=fn: fn(*t, *options)  # noqa: E731
        calls[name] = both(own_fn, given, learned, torch.randn_like(own_fn(*given)))
    for name, layout in (("grouped", torch.contiguous_format), ("channels_last", torch.channels_last)):
        own = [folded.contiguous(memory_format=layout), flat[0].contiguous(memory_format=layout), flat[1]]
        own = [t.clone(memory_format=torch.preserve_format) for t in own]
        own = [t.requires_grad_(i > 0 or C != 3) for i, t in enumerate(own)]
        dy = torch.randn_like(grouped(*own))
        calls[name] = both(grouped, own, [t for t in own if t.requires_grad], dy)

    def errors(backward: bool) -> str:
        exact = [t.detach().double().requires_grad_(t.requires_grad) for t in given]
        want = torch.stack([F.conv2d(*lane, *options) for lane in zip(*exact, strict=True)])
        y = conv.lane_conv2d(*given, *options)
        if not backward:
            return f"error {error([y], [want]):.1e}"
        dy = torch.randn_like(want)
        got = torch.autograd.grad(y, learned, dy.to(dtype))
        wanted = torch.autograd.grad(want, [t for t in exact if t.requires_grad], dy)
        return f"error {error(got, wanted):.1e}"

    if packing:
        rows = {}
        for name, least in (("lane", 0), ("unpacked", 2**31)):

            def forward(least=least):
                conv_backward.PACK_ROWS = least
                return calls["lane"][0]()

            rows[name] = forward
        report("packing", rows, lambda: "")
        return
    kernels = conv._conv_kernel, conv_backward._dx_kernel, conv_backward._dw_kernel
    for i, name in enumerate(("fwd", "fwd+bwd")):
        report(name, {row: fns[i] for row, fns in calls.items()}, lambda i=i: errors(i == 1))
    chosen = (f"{k.base_fn.__name__} {getattr(k, 'best_config', None)}" for k in kernels)
    print("    " + "\n    ".join(chosen), flush=True)


def lstm_loop(gates_x: Tensor, w_hh: Tensor, h: Tensor, c: Tensor) -> Tensor:
    outputs = []
    for gates in gates_x.unbind(1):
        i, f, g, o = torch.baddbmm(gates, h, w_hh.mT).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs, 1)


def gru_loop(gates_x: Tensor, w_hh: Tensor, b_hh: Tensor, h: Tensor) -> Tensor:
    size, outputs = h.shape[-1], []
    for gates in gates_x.unbind(1):
        part = torch.baddbmm(b_hh.unsqueeze(1), h, w_hh.mT)
        r, z = torch.sigmoid(gates[..., : 2 * size] + part[..., : 2 * size]).chunk(2, -1)
        n = torch.tanh(gates[..., 2 * size :] + r * part[..., 2 * size :])
        h = torch.lerp(n, h, z)
        outputs.append(h)
    return torch.stack(outputs, 1)


def rnn_case(case: tuple[int, ...], kind: str) -> None:
    from wide_compiler.kernels import rnn

    N, B, T, H = case
    gates = 4 if kind == "lstm" else 3
    torch.manual_seed(0)
    last = (N, B, H) if kind == "lstm" else None
    shapes = [(N, T, B, gates * H), (N, gates * H, H), last or (N, gates * H), (N, B, H)]
    given = [torch.randn(*shape, device="cuda") for shape in shapes]
    given[1] /= H**0.5
    given = [t.requires_grad_() for t in given]
    ours = (lambda *t: rnn.lane_lstm(*t)[0]) if kind == "lstm" else rnn.lane_gru
    loop = lstm_loop if kind == "lstm" else gru_loop
    dy = torch.randn(N, T, B, H, device="cuda")
    calls = {"lane": both(ours, given, given, dy), "loop": both(loop, given, given, dy)}

    def errors(backward: bool) -> str:
        exact = [t.detach().double().requires_grad_() for t in given]
        y, want = ours(*given), loop(*exact)
        if not backward:
            return f"error {error([y], [want]):.1e}"
        got = torch.autograd.grad(y, given, dy)
        return f"error {error(got, torch.autograd.grad(want, exact, dy.double())):.1e}"

    for i, name in enumerate(("fwd", "fwd+bwd")):
        report(f"{kind} {name}", {row: fns[i] for row, fns in calls.items()}, lambda i=i: errors(i == 1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("conv", "rnn"))
    parser.add_argument("--cases", type=int, nargs="*", help="which of the convolutions, by number")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--packing", action="store_true")
    args = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = not args.exact
    torch.backends.cudnn.benchmark = True  # torch's own at its best
    print(torch.cuda.get_device_name(), torch.__version__, args.dtype, "exact" if args.exact else "tf32")
    chosen = [CONVS[i] for i in args.cases] if args.cases else CONVS
    todo = [("N,B,C,O,S,k,stride", c, lambda c: conv_case(c, getattr(torch, args.dtype), args.packing))
            for c in chosen] * (args.only != "rnn")  # fmt: skip
    for kind in ("lstm", "gru"):
        todo += [("N,B,T,H", c, lambda c, kind=kind: rnn_case(c, kind)) for c in RNNS] * (args.only != "conv")
    for what, case, run in todo:
        start = time.time()
        print(f"{what} = {case}", flush=True)
        try:
            run(case)
        except Exception:
            traceback.print_exc()
        print(f"    ({time.time() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
