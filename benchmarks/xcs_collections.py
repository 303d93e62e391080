"""Other people's code, every function of it jitted: does anything behave otherwise, and which loops leave
the text?

    python benchmarks/xcs_collections.py --doctests DIR         modules with doctests, such as a collection
    of algorithms
    python benchmarks/xcs_collections.py --tests PACKAGE DIR    a package's own tests, in DIR; PACKAGE must
    be importable
    --share 0.1    a part of the modules; --eager takes rungs without asking the clock; --out FILE writes
    what was seen

A module is imported in a process of its own, its examples run plain twice and jitted once. Examples whose
output is not the same in both plain runs (random numbers, times) are left out. A package's tests run plain in
one process and jitted in another; a test that fails with any other function in the place of one is left out.
Exit code 1 if anything differs.
"""

import argparse
import collections
import contextlib
import doctest
import functools
import importlib.util
import io
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
import time
import types
import warnings
from pathlib import Path

SECONDS = 40  # for one module


def jitted_everywhere(modules, eager, wrapped=False):
    """Put jitted functions in the place of all plain ones, wherever these modules hold them. Gives them."""
    from wide_compiler.xcs import Config, jit

    made = {}
    names = {module.__name__ for module in modules}

    def of(found):
        if not isinstance(found, types.FunctionType) or found.__module__ not in names:
            return None
        if found not in made:
            made[found] = wrapper(found) if wrapped else jit(found, config=Config(measure=not eager))
        return made[found]

    for module in modules:
        for holder in (
            module,
            *(c for c in vars(module).values() if isinstance(c, type) and c.__module__ in names),
        ):
            for name, found in list(vars(holder).items()):
                if of(found) is not None and not (holder is not module and name.startswith("__")):
                    with contextlib.suppress(AttributeError, TypeError):
                        setattr(holder, name, of(found))
    return list(made.values())


def loops_of(functions):
    """Of the loops that ran: how each ran, and why as written."""
    found = []
    for fast in functions:
        with contextlib.suppress(Exception):
            ran = fast.stats()
            for row in fast.explain().rows:
                if not row.site:
                    found.append((False, row.why))
                    continue
                counts = next((c for site, c in ran.items() if site.startswith(f"{row.path}:")), {})
                if counts:
                    found.append((bool(set(counts) - {"plain"}), row.why))
    return found


def wrapper(function):
    """Another function that does the same: tests that tell it from the first are not about `jit`."""

    @functools.wraps(function)
    def same(*args, **kwargs):
        return function(*args, **kwargs)

    return same


class Noting(doctest.OutputChecker):
    """Notes what examples print, and takes all of it as right."""

    def __init__(self):
        self.got = []

    def check_output(self, want, got, flags):
        self.got.append(re.sub(r"0x[0-9a-f]+", "0x", got))
        return True


def examples_of(tests, spaces):
    """What all examples print, in one list for each test, and the seconds they took."""
    printed, began = [], time.perf_counter()
    for test in tests:
        checker = Noting()
        test.globs = dict(spaces)
        doctest.DocTestRunner(checker, verbose=False).run(test, out=lambda text: None, clear_globs=False)
        printed.append(checker.got)
    return printed, time.perf_counter() - began


def module_outcome(path, eager):
    """Import a module, run its examples plain twice and jitted once."""
    os.chdir(path.parent)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(f"module_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    tests = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    first, _ = examples_of(tests, vars(module))
    plain, plain_seconds = examples_of(tests, vars(module))
    functions = jitted_everywhere([module], eager)
    fast, fast_seconds = examples_of(tests, vars(module))
    steady = [k for k, (a, b) in enumerate(zip(first, plain, strict=True)) if a == b]
    different = [tests[k].name for k in steady if plain[k] != fast[k]]
    return {
        "module": str(path), "examples": sum(len(plain[k]) for k in steady), "different": different,
        "plain": plain_seconds, "jitted": fast_seconds, "loops": loops_of(functions),
    }  # fmt: skip


def in_a_process(path, eager):
    """The outcome of a module, or None if it cannot be imported or takes too long."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(SECONDS)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            code = 1
            with contextlib.suppress(BaseException), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                os.write(write, json.dumps(module_outcome(path, eager)).encode())
                code = 0
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def doctests(folder, share, eager):
    paths = [p for p in sorted(folder.rglob("*.py")) if ">>>" in p.read_text(errors="ignore")]
    chosen = paths[:: max(int(1 / share), 1)]
    outcomes = [in_a_process(path.resolve(), eager) for path in chosen]
    return [o for o in outcomes if o is not None], len(chosen)


def tests_of(package, folder, how, eager):
    """The outcome of every test of a package, by name; run in a process of its own."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        worker = [
            sys.executable,
            __file__,
            "--worker",
            package,
            str(folder),
            how,
            file.name,
        ]
        subprocess.run([*worker, *(["--eager"] if eager else [])], check=False, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)  # fmt: skip
        return json.loads(Path(file.name).read_text())


def worker(package, folder, how, out, eager):
    import pytest

    functions = []
    if how != "plain":
        root = importlib.import_module(package)
        for found in pkgutil.walk_packages(root.__path__, f"{package}."):
            if ".tests" not in found.name:
                with contextlib.suppress(Exception):
                    importlib.import_module(found.name)
        modules = [m for n, m in sys.modules.items() if n.split(".")[0] == package and ".tests" not in n]
        functions = jitted_everywhere(modules, eager, how == "wrapped")

    class Plugin:
        outcomes = {}

        def pytest_runtest_logreport(self, report):
            if report.when == "call" or report.outcome != "passed":
                self.outcomes[report.nodeid] = report.outcome

    began = time.perf_counter()
    pytest.main(
        ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", folder, folder], plugins=[Plugin()]
    )
    seconds = time.perf_counter() - began
    Path(out).write_text(
        json.dumps({"outcomes": Plugin.outcomes, "seconds": seconds, "loops": loops_of(functions)})
    )


def summary(name, what, different, plain, jitted, loops):
    left = sum(took for took, _ in loops)
    reasons = collections.Counter(
        re.sub(r"\(line \d+\)|'[^']*'|`[^`]*`|numpy lanes: ", "", why) for took, why in loops if not took
    )
    lines = [
        f"{name}: {what}, {len(different)} differ {different[:10]}",
        f"  {left} of {len(loops)} loops left plain Python; jitted {jitted:.1f} s, plain {plain:.1f} s, "
        f"{jitted / max(plain, 1e-9):.2f}x",
        *[f"  {count:5d}  {why or 'not told'}" for why, count in reasons.most_common(10)],
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--doctests", type=Path)
    parser.add_argument("--tests", nargs=2, metavar=("PACKAGE", "DIR"))
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.worker:
        return worker(*options.worker, options.eager)
    import wide_compiler.xcs  # noqa: F401  once, before processes are forked

    if options.doctests:
        found, tried = doctests(options.doctests, options.share, options.eager)
        different = [name for o in found for name in o["different"]]
        what = f"{sum(o['examples'] for o in found)} examples of {len(found)} modules ({tried} tried)"
        loops = [tuple(loop) for o in found for loop in o["loops"]]
        text = summary(options.doctests.name, what, different, sum(o["plain"] for o in found),
                       sum(o["jitted"] for o in found), loops)  # fmt: skip
    else:
        package, folder = options.tests
        plain, fast = (tests_of(package, folder, how, options.eager) for how in ("plain", "jitted"))
        names = {**plain["outcomes"], **fast["outcomes"]}
        different = [n for n in names if plain["outcomes"].get(n) != fast["outcomes"].get(n)]
        if different:
            other = tests_of(package, folder, "wrapped", options.eager)["outcomes"]
            different = [n for n in different if plain["outcomes"].get(n) == other.get(n)]
        loops = [tuple(loop) for loop in fast["loops"]]
        text = summary(
            package, f"{len(plain['outcomes'])} tests", different, plain["seconds"], fast["seconds"], loops
        )
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
