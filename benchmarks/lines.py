"""Write the table of lines per folder in docs/architecture.md.

    python benchmarks/lines.py           write the table
    python benchmarks/lines.py --print   only print it

What a folder is for is the first line of the docstring in its `__init__.py`.
"""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE, PAGE = ROOT / "src" / "wide_compiler", ROOT / "docs" / "architecture.md"
REGION = re.compile(r"(<!-- lines -->\n).*?(\n<!-- end -->)", re.DOTALL)
NOT_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def counted(text: str) -> tuple[int, int, int]:
    """Return the numbers of lines of a file: all, code, docstrings. The rest is comments and blank lines."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstrings |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(text.splitlines()), len(code - docstrings), len(docstrings)


def purpose(folder: Path) -> str:
    """Return the first line of the docstring of a package."""
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return docstring.partition("\n")[0]


def table() -> str:
    """Return the table, one row per folder and one for the files directly in the package."""
    folders = sorted(path.parent for path in SOURCE.glob("*/__init__.py"))
    groups = [(f"`{folder.name}`", sorted(folder.rglob("*.py")), purpose(folder)) for folder in folders]
    groups.append(
        ("files beside them", sorted(SOURCE.glob("*.py")), "Entry points, errors, explanations, lanes.")
    )
    rows = ["| folder | files | lines | code | docstrings | for |", "| --- | --- | --- | --- | --- | --- |"]
    totals = [0, 0, 0, 0]
    for name, files, what in groups:
        sizes = [counted(file.read_text()) for file in files]
        numbers = [len(files), *map(sum, zip(*sizes, strict=True))]
        totals = [total + number for total, number in zip(totals, numbers, strict=True)]
        rows.append(f"| {name} | {' | '.join(f'{number:,}' for number in numbers)} | {what} |")
    rows.append(f"| all | {' | '.join(f'{total:,}' for total in totals)} | |")
    return "\n".join(rows)


def main() -> None:
    if "--print" in sys.argv:
        print(table())
        return
    page, found = REGION.subn(lambda match: match[1] + table() + match[2], PAGE.read_text())
    assert found == 1, f"{PAGE} needs one region <!-- lines --> ... <!-- end -->"
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
