"""What surrounds a call: may other things than the text as written happen in it?"""

from ..guards.modes import capturing, plain_world


def in_the_way() -> str:
    """Why nothing but the text may run here; empty if nothing stands in the way."""
    if not plain_world():
        return "a mode or transform of PyTorch around the call sees each call of a function"
    if capturing():  # comparing and timing wait for the GPU, which nobody may do meanwhile
        return "a CUDA graph is being recorded"
    return ""
