"""Checks the environment of a call: tracing tools, PyTorch modes, CUDA graph capture."""

import sys

from ..guards.modes import capturing, plain_world

_monitoring = getattr(sys, "monitoring", None)  # Python 3.12
TRACED = "a debugger, profiler or coverage tool is active"


def in_the_way() -> str:
    """Return why only the original code may run here; '' if there is no reason."""
    monitored = _monitoring is not None and any(map(_monitoring.get_tool, range(6)))
    if sys.gettrace() is not None or sys.getprofile() is not None or monitored:
        return TRACED
    if not plain_world():
        return "a mode or transform of PyTorch is active, such as torch.func.grad or a TorchFunctionMode"
    if capturing():  # comparing and timing would synchronise with the GPU
        return "a CUDA graph is being recorded"
    return ""
