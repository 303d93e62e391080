"""Own GPU kernels beside PyTorch's, each in a CUDA graph: milliseconds, ratio, error against float64.

python benchmarks/kernels.py            prints a line for each case; needs a CUDA device
"""

import itertools
import sys
import time

import torch
import torch.nn.functional as F

sys.path.insert(0, "src")

from wide_compiler.measure import interleaved
from wide_compiler.replay.cuda_graph import recorded

CUDA = torch.device("cuda")


def rand(*shape, scale=1.0):
    return torch.randn(*shape, device=CUDA).mul_(scale).requires_grad_()


def with_backward(function, leaves):
    def run():
        outputs = function(*leaves)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return torch.autograd.grad(outputs[0], leaves, torch.ones_like(outputs[0]))

    return run


def relative(got, want):
    return float((got.double() - want).norm() / want.norm())


def compare(title, own, others, leaves):
    """One line each for forward and forward with backward."""
    try:
        doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
        reference = next(iter(others.values()))
        wanted = with_backward(reference, doubles)()
        with torch.no_grad():
            output = reference(*doubles)
            output = output[0] if isinstance(output, tuple) else output
        start = time.perf_counter()
        with torch.no_grad():
            got = own(*leaves)
            errors = [relative(got[0] if isinstance(got, tuple) else got, output)]
        errors.append(max(relative(g, w) for g, w in zip(with_backward(own, leaves)(), wanted, strict=True)))
        built = time.perf_counter() - start
        for mode, error in zip(("forward", "backward"), errors, strict=True):
            calls = {}
            for name, function in {"own": own, **others}.items():
                if mode == "forward":
                    fixed = [leaf.detach() for leaf in leaves]
                    call = lambda f=function, fixed=fixed: f(*fixed)  # noqa: E731
                else:
                    call = with_backward(function, leaves)
                calls[name] = recorded(call)
            ms = {name: 1e3 * t for name, t in interleaved(calls, 0.15, cuda=True).items()}
            best = min(v for k, v in ms.items() if k != "own")
            listed = "  ".join(f"{name} {value:.4f}" for name, value in ms.items())
            print(
                f"{title:44s} {mode:8s} {best / ms['own']:5.2f}x  error {error:.0e}  {listed}  [{built:.0f}s]"
            )
    except Exception as error:
        print(f"{title:44s} FAILED {type(error).__name__}: {str(error)[:300]}")
    sys.stdout.flush()


def linears():
    from wide_compiler.kernels.lane_linear import lane_linear

    shapes = [(32, 1024, 256, 768), (32, 1024, 256, 1024), (32, 1024, 1024, 256), (32, 256, 1024, 4096)]
    for n, m, k, o in [*shapes, (32, 256, 4096, 1024), (8, 512, 256, 1024), (8, 512, 256, 256)]:
        leaves = [rand(n, m, k), rand(n, o, k, scale=k**-0.5), rand(n, o)]
        plain = {"baddbmm": lambda x, w, b: torch.baddbmm(b[:, None], x, w.mT)}
        compare(f"linear {n}x{m}x{k}x{o}", lane_linear, plain, leaves)


def chains():
    from wide_compiler.kernels.lane_chain import lane_chain

    for n, b, dims, act in [
        (100, 32, (64, 128, 64), "relu"),
        (1000, 32, (64, 128, 64), "relu"),
        (20, 32, (64,) * 9, "gelu"),
    ]:
        layers = len(dims) - 1
        acts = [act] * layers if act == "gelu" else [act] * (layers - 1) + ["none"]
        leaves = [rand(n, b, dims[0])]
        leaves += [rand(n, o, i, scale=i**-0.5) for i, o in itertools.pairwise(dims)]
        leaves += [rand(n, o, scale=0.1) for o in dims[1:]]

        def own(x, *wb, layers=layers, acts=acts):
            return lane_chain(x, list(wb[:layers]), list(wb[layers:]), acts)

        def plain(x, *wb, layers=layers, acts=acts):
            for w, bias, a in zip(wb[:layers], wb[layers:], acts, strict=True):
                x = torch.baddbmm(bias[:, None], x, w.mT)
                x = {"relu": F.relu, "gelu": F.gelu, "none": lambda t: t}[a](x)
            return x

        compare(f"chain N={n} {dims[0]}-{dims[1]}.. x{layers}", own, {"baddbmm": plain}, leaves)


def convs():
    from wide_compiler.kernels.lane_conv import lane_conv2d

    cases = [
        (64, 32, 3, 32, 32, 3, 1),
        (64, 32, 32, 64, 16, 3, 1),
        (64, 32, 64, 64, 8, 3, 1),
        (20, 8, 64, 64, 16, 3, 1),
    ]
    cases += [(10, 8, 64, 64, 16, 3, 1), (10, 8, 128, 128, 8, 3, 1), (10, 8, 256, 256, 4, 3, 1)]
    for n, b, c, o, s, k, stride in [
        *cases,
        (10, 8, 512, 512, 2, 3, 1),
        (10, 8, 3, 64, 64, 7, 2),
        (10, 8, 64, 128, 16, 3, 2),
    ]:
        x = torch.randn(b, s, s, n, c, device=CUDA).permute(3, 0, 4, 1, 2).requires_grad_()
        w = (
            torch.randn(n, o, k, k, c, device=CUDA)
            .mul_((c * k * k) ** -0.5)
            .permute(0, 1, 4, 2, 3)
            .requires_grad_()
        )
        leaves = [x, w, rand(n, o)]

        def own(x, w, bias, k=k, stride=stride):
            return lane_conv2d(x, w, bias, stride, k // 2, 1)

        def grouped(x, w, bias, k=k, stride=stride, last=False):
            n = x.shape[0]
            folded = x.transpose(0, 1).flatten(1, 2)
            form = torch.channels_last if last else torch.contiguous_format
            y = F.conv2d(
                folded.contiguous(memory_format=form),
                w.flatten(0, 1).contiguous(memory_format=form),
                bias.flatten(),
                stride,
                k // 2,
                groups=n,
            )
            return y.unflatten(1, (n, -1)).transpose(0, 1)

        others = {"grouped": grouped, "channels_last": lambda *a, f=grouped: f(*a, last=True)}
        compare(f"conv N={n} B={b} {c}->{o} {s}x{s} k={k} s={stride}", own, others, leaves)


def recurrent():
    from wide_compiler.kernels.lane_rnn import lane_gru, lane_lstm
    from wide_compiler.primitives.rnn_layers import GRU, LSTM, LayerWeights

    n, t, b, h = 32, 32, 4, 128

    def steps(kind, gates, state, w_hh, b_hh):
        weights = LayerWeights(w_hh, w_hh, None, b_hh, None)
        outputs = []
        for gates_t in gates.unbind(1):
            state = kind.cell(gates_t, state, weights)
            outputs.append(state[0])
        return torch.stack(outputs, 1)

    leaves = [rand(n, t, b, 4 * h), rand(n, 4 * h, h, scale=h**-0.5), rand(n, b, h), rand(n, b, h)]
    plain = {"steps": lambda g, w, h0, c0: steps(LSTM, g, (h0, c0), w, None)}
    compare(f"lstm N={n} T={t} B={b} H={h}", lane_lstm, plain, leaves)
    leaves = [rand(n, t, b, 3 * h), rand(n, 3 * h, h, scale=h**-0.5), rand(n, 3 * h), rand(n, b, h)]
    plain = {"steps": lambda g, w, bias, h0: steps(GRU, g, (h0,), w, bias)}
    compare(f"gru N={n} T={t} B={b} H={h}", lane_gru, plain, leaves)


def attentions():
    """Without a gradient: with one, `lane_attention` is torch's op."""
    from wide_compiler.kernels.lane_attention import lane_attention

    cases = [
        (32, 8, 128, 32, True),
        (256, 8, 128, 32, False),
        (256, 8, 128, 32, True),
        (64, 8, 512, 64, True),
    ]
    for z, h, length, e, causal in cases:

        def split(qkv):
            return qkv.permute(2, 0, 3, 1, 4).unbind(0)

        def own(qkv, split=split, causal=causal):
            return lane_attention(*split(qkv), is_causal=causal)

        def sdpa(qkv, split=split, causal=causal):
            return F.scaled_dot_product_attention(*split(qkv), is_causal=causal)

        kind = "causal" if causal else "full"
        compare(
            f"attention Z={z} H={h} L={length} E={e} {kind}", own, {"sdpa": sdpa}, [rand(z, length, 3, h, e)]
        )


if __name__ == "__main__":
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), torch.__version__)
    chosen = sys.argv[1:] or ["chains", "linears", "recurrent", "convs", "attentions"]
    for name in chosen:
        globals()[name]()
