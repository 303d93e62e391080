"""The main loop of a worker process: chunks in by stdin, values out by stdout, until stdin closes."""

import os
import struct
import sys


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that prints may get between the answers
    sys.stdout = sys.stderr
    from wide_compiler.xcs.shipping import run_chunk

    source = sys.stdin.buffer
    while len(head := source.read(8)) == 8:
        answer = run_chunk(source.read(struct.unpack("<Q", head)[0]))
        out.write(struct.pack("<Q", len(answer)) + answer)
        out.flush()


if __name__ == "__main__":
    main()
