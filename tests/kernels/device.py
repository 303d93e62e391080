"""Where the kernels run in these tests: on a GPU, or in triton's interpreter, which is slow: tiny tensors.

Imported before any kernel: without triton the tests are skipped here.
"""

import pytest
import torch

triton = pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 3e-6 if DEVICE == "cpu" else 2e-5  # three TF32 products lose a little on a float32 one
READY = DEVICE == "cuda" or type(triton.language.cdiv).__name__ == "InterpretedFunction"
needs_kernels = pytest.mark.skipif(
    not READY, reason="no GPU, and triton was imported before TRITON_INTERPRET was set"
)
