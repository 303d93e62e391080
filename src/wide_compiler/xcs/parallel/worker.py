"""The main loop of a worker process: chunks in by stdin, values out by stdout, until stdin closes.

Run as a file, not as a part of the package: importing that would import PyTorch, which few bodies need.
"""

import importlib
import os
import struct
import sys
import types
from pathlib import Path
from typing import Any


def light_package(name: str, folder: Path) -> None:
    """Let submodules of a package be imported without the package itself, until somebody asks for more."""
    light = types.ModuleType(name)
    light.__path__ = [str(folder)]

    def whole(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        for package in ("wide_compiler", "wide_compiler.xcs"):
            if getattr(sys.modules.get(package), "__spec__", None) is None:  # not imported, but one of these
                sys.modules.pop(package, None)
        return getattr(importlib.import_module(name), attribute)

    light.__getattr__ = whole  # type: ignore[method-assign]
    sys.modules[name] = light


def main() -> None:
    room = Path(__file__).resolve().parents[1]
    light_package("wide_compiler", room.parent)
    light_package("wide_compiler.xcs", room)
    run_chunk = importlib.import_module("wide_compiler.xcs.parallel.receiving").run_chunk
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that prints may get between the answers
    source = sys.stdin.buffer
    digests: dict[tuple[str, str], str] = {}  # of libraries, which nobody patches here
    while len(head := source.read(8)) == 8:
        answer = run_chunk(source.read(struct.unpack("<Q", head)[0]), digests)
        out.write(struct.pack("<Q", len(answer)) + answer)
        out.flush()


if __name__ == "__main__":
    main()
