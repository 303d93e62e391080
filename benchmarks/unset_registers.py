"""Compiled Triton kernels that read a uniform register before anything has written it.

    TRITON_CACHE_DIR=/tmp/kernels python -m pytest tests/kernels    on a GPU: fills the folder
    python benchmarks/unset_registers.py /tmp/kernels               lists the kernels at fault

ptxas 12.8 makes such kernels of several 16-bit products (see `sound_wgmma` in kernels/_triton.py). The order
of instructions in the text is taken for the order in which they run, so a loop may be listed wrongly.
"""

import re
import subprocess
import sys
from pathlib import Path

import triton

NVDISASM = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]+)\s*(.*?);")
WRITES = ("U", "S2UR", "R2UR", "CS2UR", "VOTEU", "REDUX")


def unset_reads(cubin: Path) -> list[str]:
    """Return the instructions that read a uniform register too early."""
    done = subprocess.run([NVDISASM, "-c", cubin], capture_output=True, text=True, check=True)
    written, early = {63}, []
    for line in done.stdout.splitlines():
        found = INSTRUCTION.search(line)
        if found is None:
            continue
        op, operands = found[1], [operand.strip() for operand in found[2].split(",")]
        target = re.fullmatch(r"UR(\d+)", operands[0]) if op.startswith(WRITES) else None
        if any(number not in written for o in operands[target is not None :] for number in registers(o)):
            early.append(line.strip())
        if target is not None:
            pair = any(part in op for part in (".64", ".WIDE", ".128"))
            written |= {int(target[1]), int(target[1]) + pair}
    return early


def registers(operand: str) -> list[int]:
    """Return the uniform registers of an operand; a matrix descriptor is in the second pair of four."""
    numbers = [int(number) for number in re.findall(r"\bUR(\d+)\b", operand)]
    return [n + i for n in numbers for i in (2, 3)] if "gdesc" in operand else numbers


def main() -> None:
    cubins = sorted(Path(sys.argv[1]).rglob("*.cubin"))
    faulty = 0
    for cubin in cubins:
        reads = unset_reads(cubin)
        if reads:
            faulty += 1
            print(cubin.parent.name, cubin.name, len(reads), reads[0], flush=True)
    print(f"{len(cubins)} kernels, {faulty} with reads of unset registers")


if __name__ == "__main__":
    main()
