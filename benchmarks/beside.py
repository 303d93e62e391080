"""Draw ten source files, and print them beside ten files of other libraries (docs/compared.md).

    python benchmarks/beside.py --seed 20261119 FOLDER...     FOLDER: an unpacked equinox, einops, ...
    python benchmarks/beside.py --seed 20261119 --text FOLDER...    with the text of both

Ten folders of the package are drawn, and one file of at least 50 lines from each. Its partner is the file
nearest in length that is not taken yet.
"""

import argparse
import ast
import random
import statistics
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[1] / "src" / "wide_compiler"
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
NESTING = (*FUNCTION, ast.ClassDef, ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)


class Counts(NamedTuple):
    lines: int
    functions: int
    median: float  # lines of a function without its docstring
    longest: int
    nesting: int
    public: int  # classes and functions without `_`
    documented: int
    raises: int
    comments: int
    parameters: int
    typed: int


def body_lines(node: ast.AST) -> int:
    first = node.body[0]
    docstring = first.end_lineno - first.lineno + 1 if ast.get_docstring(node) is not None else 0
    return node.end_lineno - node.lineno + 1 - docstring


def depth(node: ast.AST) -> int:
    """Return how deep statements are nested; `elif` is no deeper than its `if`."""
    children = list(ast.iter_child_nodes(node))
    elif_ = node.orelse[0] if isinstance(node, ast.If) and len(node.orelse) == 1 else None
    if isinstance(elif_, ast.If):
        children.remove(elif_)
        return max(depth(elif_), 1 + max(map(depth, children)))
    return isinstance(node, NESTING) + max(map(depth, children), default=0)


def counted(path: Path) -> Counts:
    text = path.read_text()
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, FUNCTION)]
    lengths = [body_lines(node) for node in functions] or [0]
    public = [n for n in nodes if isinstance(n, (*FUNCTION, ast.ClassDef)) and not n.name.startswith("_")]
    parameters = [
        parameter
        for function in functions
        for parameter in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        if parameter.arg not in ("self", "cls")
    ]
    return Counts(
        lines=len(text.splitlines()),
        functions=len(functions),
        median=statistics.median(lengths),
        longest=max(lengths),
        nesting=depth(tree),
        public=len(public),
        documented=sum(ast.get_docstring(node) is not None for node in public),
        raises=sum(isinstance(node, ast.Raise) for node in nodes),
        comments=sum(line.lstrip().startswith("#") for line in text.splitlines()),
        parameters=len(parameters),
        typed=sum(parameter.annotation is not None for parameter in parameters),
    )


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def drawn(seed: int, others: list[Path]) -> list[tuple[Path, Path]]:
    """Return ten files, each with its partner."""
    draw = random.Random(seed)
    folders = [p.parent for p in sorted(SOURCE.glob("*/__init__.py"))]
    theirs = [p for folder in others for p in sorted(folder.rglob("*.py")) if p.name != "__init__.py"]
    theirs = [p for p in theirs if "tests" not in p.parts]
    pairs = []
    for folder in draw.sample(folders, 10):
        long_enough = [p for p in sorted(folder.rglob("*.py")) if p.name != "__init__.py" and lines(p) >= 50]
        ours = draw.choice(long_enough)
        partner = min(theirs, key=lambda p: abs(lines(p) - lines(ours)))
        theirs.remove(partner)
        pairs.append((ours, partner))
    return pairs


def cells(ours: Counts, theirs: Counts) -> list[str]:
    def pair(one: object, other: object) -> str:
        return f"{one}, {other}"

    return [
        pair(ours.lines, theirs.lines),
        pair(ours.functions, theirs.functions),
        f"{ours.median:g}, {ours.longest}; {theirs.median:g}, {theirs.longest}",
        pair(ours.nesting, theirs.nesting),
        pair(f"{ours.documented}/{ours.public}", f"{theirs.documented}/{theirs.public}"),
        pair(ours.raises, theirs.raises),
        pair(ours.comments, theirs.comments),
        pair(f"{ours.typed}/{ours.parameters}", f"{theirs.typed}/{theirs.parameters}"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--text", action="store_true")
    options = parser.parse_args()
    for ours, partner in drawn(options.seed, options.folders):
        (root,) = [folder for folder in options.folders if folder in partner.parents]
        names = [f"`{ours.relative_to(SOURCE)}`", f"{root.name} {partner.relative_to(root).with_suffix('')}"]
        print("|", " | ".join(names + cells(counted(ours), counted(partner))), "|")
        if options.text:
            for path in (ours, partner):
                print(f"\n##### {path}\n{path.read_text()}")


if __name__ == "__main__":
    main()
