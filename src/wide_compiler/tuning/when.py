"""Whether now is a moment to measure, or to replay what was recorded: only in the plain world."""

import torch


def plain_world() -> bool:
    """No transform, no dispatch mode, no trace around the call: tensors are what they seem."""
    return (
        torch._C._functorch.peek_interpreter_stack() is None  # torch.func's vmap, grad, ...
        and torch._C._len_torch_dispatch_stack() == 0  # fake tensors, make_fx, a profiler of ops
        and torch._C._get_tracing_state() is None
    )


def capturing() -> bool:
    """Is somebody recording a CUDA graph? Then nothing may wait for the GPU."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
