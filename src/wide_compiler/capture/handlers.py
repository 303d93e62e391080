"""Find Python that handles errors of a call: a graph contains only the path without an error."""

import ast
import functools
import inspect
import textwrap
from types import CodeType, FrameType
from typing import NamedTuple

_EXPRESSIONS = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>", "<lambda>")


def handling_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the member's Python that handles errors raised in `frame`, or None."""
    while frame is not None:
        home = frame.f_globals.get("__name__") or ""
        if home.startswith("wide_compiler.capture") and frame.f_code.co_name == "forward":
            return None  # start of the export
        own = home.partition(".")[0] not in ("torch", "wide_compiler", "contextlib", "functools")
        if own and any(first <= frame.f_lineno <= last for first, last in _guarded_lines(frame.f_code)):
            return frame
        frame = frame.f_back
    return None


@functools.lru_cache(maxsize=256)
def _guarded_lines(code: CodeType) -> list[tuple[int, int]]:
    """Line ranges in which an error is handled: a `try` with handlers, or `contextlib.suppress`.

    Without source, every line of code that has a `try` or `with`.
    """
    # Expressions have no `try`, but since Python 3.12 generators have an exception table for StopIteration.
    if not code.co_exceptiontable or code.co_name in _EXPRESSIONS:
        return []
    source = source_of(code)
    if source is None:
        return [(0, 2**31)]
    found = []
    for node in ast.walk(source.tree):
        handles = isinstance(node, (ast.Try, ast.TryStar)) and bool(node.handlers)
        suppresses = isinstance(node, ast.With) and any(map(_is_suppress, node.items))
        if handles or suppresses:
            body = node.body  # type: ignore[attr-defined]
            last = body[-1].end_lineno or body[-1].lineno
            found.append((node.lineno + source.lines_before, last + source.lines_before))  # type: ignore[attr-defined]
    return found


class FunctionSource(NamedTuple):
    """A function's dedented source as a tree, with the number of lines before it and its indentation."""

    tree: ast.Module
    lines_before: int
    indent: int


def source_of(code: CodeType) -> FunctionSource | None:
    """Return the source of a code object; None if it is not available."""
    try:
        lines, start = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, TypeError):
        return None
    return FunctionSource(tree, max(start, 1) - 1, len(lines[0]) - len(lines[0].lstrip()))


def _is_suppress(item: ast.withitem) -> bool:
    called = item.context_expr.func if isinstance(item.context_expr, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name == "suppress"
