"""What the interpreter cannot see: triton's launcher and its compiler, neither of which needs a GPU."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

KERNELS = Path(__file__).parents[2] / "src/wide_compiler/kernels"
# Names of triton's own in the function it makes to launch a kernel: an argument called so is lost.
TAKEN = {"params", "specialization", "options", "backend", "grid", "warmup"}

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from wide_compiler.kernels.lane_adam import _adam_kernel as kernel

numbers = dict.fromkeys(("lr", "beta1", "beta2", "eps", "weight_decay"), "*fp64")
for dtype in ("*fp32", "*fp64"):
    tensors = dict.fromkeys(("weights", "grads", "averages", "squares", "largest"), (dtype, dtype))
    given = {**tensors, "ends": ("i32",), "sizes": ("i32", "i32"), "step": "*fp32", **numbers}
    flags = {name: 1024 if name == "BLOCK" else True for name in kernel.arg_names if name not in given}
    places = {(kernel.arg_names.index(name),): value for name, value in flags.items()}
    source = ASTSource(kernel, {**given, **dict.fromkeys(flags, "constexpr")}, constexprs=places)
    print(len(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]))
"""


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.py")), ids=lambda path: path.stem)
def test_no_argument_has_a_name_that_triton_needs(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.dump(d) for d in node.decorator_list):
            names = {argument.arg for argument in node.args.args}
            assert not names & TAKEN, f"{node.name}: {names & TAKEN}"


@pytest.mark.skipif(torch.cuda.is_available(), reason="its own tests run it on the GPU")
def test_adam_compiles_for_a_gpu(tmp_path):
    script = tmp_path / "compiles.py"
    script.write_text(COMPILE)
    environment = {"TRITON_INTERPRET": "0", "PYTHONPATH": str(KERNELS.parents[1]), "PATH": "/usr/bin:/bin"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(int(size) > 1000 for size in done.stdout.split()) and len(done.stdout.split()) == 2
