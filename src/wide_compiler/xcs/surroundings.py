"""What surrounds a call: may other things than the text as written happen in it?"""

import sys

from ..guards.modes import capturing, plain_world

_monitoring = getattr(sys, "monitoring", None)  # Python 3.12
SEES = "a debugger, profiler or coverage tool sees each line"


def in_the_way() -> str:
    """Why nothing but the text may run here; empty if nothing stands in the way."""
    monitored = _monitoring is not None and any(map(_monitoring.get_tool, range(6)))
    if sys.gettrace() is not None or sys.getprofile() is not None or monitored:
        return SEES
    if not plain_world():
        return "a mode or transform of PyTorch around the call sees each call of a function"
    if capturing():  # comparing and timing wait for the GPU, which nobody may do meanwhile
        return "a CUDA graph is being recorded"
    return ""
