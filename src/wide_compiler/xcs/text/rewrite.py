"""Rewrite a function so that its sites call the runtime first.

A site becomes `<result of SITE, or the original code over the rest> if <SITE is on> else <original code>`. A
loop keeps its body and gets another iterable: the items left to do, none if the runtime has done all of them.
A declined site therefore runs the original code, with its line numbers. Under `torch.compile` all sites are
off.
"""

import ast
from collections.abc import Sequence
from typing import Any

from . import sites
from .bodies import items_of, loop_body, step_of
from .liveness import Block
from .names import captured, is_consumed, reads
from .site_text import ITEMS, RUNTIME, SiteText, shape_of, short
from .sites import flat_target
from .trees import clone, expression, lambda_of, name

KINDS = {ast.ListComp: "list", ast.SetComp: "set", ast.DictComp: "dict"}
COMPILING = "__xcs_compiling"


class Rewriter(ast.NodeTransformer):
    """Finds the sites of one function and rewrites them.

    Attributes:
        found: the sites in source order.
        depth: nesting depth of loops that are sites.
        inside: True inside a comprehension that is a site.
        captured: names that other scopes may read or store.
    """

    def __init__(self, function: ast.FunctionDef | ast.Lambda):
        self.original = function
        self.found: list[SiteText] = []
        self.depth = 0
        self.inside = False
        self.captured = captured(function)

    def rewritten(self) -> ast.FunctionDef | ast.Lambda:
        tree = clone(self.original)
        if isinstance(tree, ast.Lambda):
            tree.body = self.visit(tree.body)
        else:
            tree.body = self._block(tree.body, tree, None)
            if any(not site.reason for site in self.found):  # `torch.compile` reads the rewritten code too
                asked = ast.Assign([name(COMPILING, store=True)], expression("R.compiling()", R=RUNTIME))
                documented = ast.get_docstring(tree, clean=False) is not None
                tree.body.insert(int(documented), ast.copy_location(asked, tree.body[0]))
        return tree

    # Statements.

    def _block(self, statements: list[ast.stmt], owner: ast.AST, outer: Block | None) -> list[ast.stmt]:
        """Return the rewritten statements; positions refer to the original list."""
        out: list[ast.stmt] = []
        index = 0
        while index < len(statements):
            block = Block(statements, index, owner, outer)
            run = sites.independent_run(block, self.captured) if self.depth == 0 else 0
            if run >= 2:
                out += self._together(statements[index : index + run])
            else:
                out += self._statement(clone(statements[index]), block)
            index += max(run, 1)
        return out

    def _statement(self, node: ast.stmt, block: Block) -> list[ast.stmt]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return [node]  # a separate scope
        if isinstance(node, ast.For):
            found = self._loop(node, block)
            if found is not None:
                return found
        if isinstance(node, ast.While):
            self._no_site("loop", node, "the number of iterations of a while loop is not known beforehand")
        original = block.statements[block.index]
        for field_name in ("body", "orelse", "finalbody"):
            inner = getattr(original, field_name, None)
            if isinstance(inner, list) and inner:
                setattr(node, field_name, self._block(inner, original, block))
        for part in ("handlers", "cases"):
            for new, old in zip(getattr(node, part, ()), getattr(original, part, ()), strict=True):
                new.body = self._block(old.body, original, block)
        return [self._expressions(node)]

    def _expressions(self, node: ast.stmt) -> ast.stmt:
        """Visit the expressions of a statement, but not the statements nested in it."""
        for field_name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, field_name, self.visit(value))
            elif isinstance(value, list) and value and isinstance(value[0], (ast.expr, ast.withitem)):
                setattr(node, field_name, [self.visit(v) for v in value])
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    # Comprehensions.

    def _comprehension(self, node: Any) -> ast.AST:
        return self._map_site(node, KINDS[type(node)], "")

    visit_ListComp = visit_SetComp = visit_DictComp = _comprehension

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not is_consumed(node):
            if isinstance(node.func, ast.Name) and node.func.id == "map":
                self._no_site("generator", node, "map() is lazy; write [f(x) for x in xs]")
            return self.generic_visit(node)
        consumer = node.func.id if isinstance(node.func, ast.Name) else "join"
        options = [*node.args[1:], *(k.value for k in node.keywords if k.arg != "default")]
        node.args = [self._map_site(node.args[0], "generator", consumer, options), *node.args[1:]]
        return node

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.AST:
        reason = "the generator is not consumed at once by a builtin such as sum() or list()"
        self._no_site("generator", node, reason)
        return self.generic_visit(node)

    def _map_site(self, node: Any, kind: str, consumer: str, options: Sequence[ast.expr] = ()) -> Any:
        """Rewrite a comprehension or a consumed generator."""
        site = self._new(kind, node)
        site.consumer = consumer
        site.reason = sites.comprehension(node) or ("it is inside another comprehension" * self.inside)
        if site.reason:
            return self.generic_visit(node)
        original = clone(node)
        self.inside = True
        plain: Any = self.generic_visit(node)
        self.inside = False
        first = original.generators[0]
        several = len(original.generators) > 1
        targets = [n for g in original.generators for n in flat_target(g.target) or []]
        site.shape = shape_of(first.target)
        value = ast.Tuple([original.key, original.value], ast.Load()) if kind == "dict" else original.elt
        if several:  # list only the variables that the body reads
            targets = [t for t in targets if reads(value, t)] or targets[-1:]
        site.bodies["body"] = lambda_of(targets, value)
        cond = expand = ast.Constant(None)  # type: Any
        if several:
            expand = site.bodies["items"] = lambda_of([ITEMS], items_of(original, targets))
        elif first.ifs:
            test = first.ifs[0] if len(first.ifs) == 1 else ast.BoolOp(ast.And(), first.ifs)
            cond = site.bodies["cond"] = lambda_of(targets, test)
        checked = [name(consumer), *options] if kind == "generator" and consumer != "join" else []
        arguments = [site.bodies["body"], cond, expand, *checked]
        inner, held = clone(plain), f"__xcs_call{site.index}"
        arguments = [self._source(inner.generators[0].iter), *arguments]
        inner.generators[0].iter = expression("H.rest()", H=held)
        call = self._call(site, "run", [clone(a) for a in arguments])
        whole = expression(
            "(H.take() if (H := C).done else I) if ON else P",
            H=held, C=call, I=inner, ON=self._on(site), P=plain,
        )  # fmt: skip
        return ast.copy_location(whole, node)

    def _source(self, node: ast.expr) -> ast.expr:
        """Return the iterable; calls of `zip` and `enumerate` become a `ZipOrEnumerate`."""
        match node:
            case ast.Call(ast.Name(function), given) if function in sites.SOURCES:
                if not any(isinstance(a, ast.Starred) for a in given):
                    parts = [node.func, *map(self._source, given)]
                    made = expression("R.source(*A)", R=RUNTIME, A=parts)
                    made.keywords = node.keywords
                    return made
        return node

    # Loops.

    def _loop(self, node: ast.For, block: Block) -> list[ast.stmt] | None:
        sinks, reason = sites.loop(node, block, self.original, self.captured)
        if reason or self.depth >= 1:
            self._no_site("loop", node, reason or "it is inside another loop that may run in parallel")
            return None
        site = self._new("loop", node)
        site.sinks, site.shape = sinks, shape_of(node.target)
        body_name, state = f"__xcs_body{site.index}", f"__xcs_state{site.index}"
        carried = sites.carrying(node, block) if sinks[0].kind == "carried" else None
        # A loop with carried names may have to fall back to the original code.
        site.caught = carried is not None or sites.caught(node.body, sinks)
        body, site.single = loop_body(node, sinks, body_name, carried)
        site.bodies["body"] = body
        totals = [s.name for s in sinks if s.kind in sites.TOTALS]
        containers: list[ast.expr] = [name(s.name) for s in sinks if s.kind not in sites.TOTALS]
        makers = {s.maker for s in sinks if s.maker} | set(carried.calls if carried is not None else ())
        functions: list[ast.stmt] = [clone(body)]
        more: list[Any] = [expression(maker) for maker in sorted(makers)]
        if carried is not None:
            functions.append(step_of(node, carried, f"__xcs_step{site.index}"))
            more.append(name(f"__xcs_step{site.index}"))
        source = self._source(self.visit(clone(node.iter)))
        given: list[Any] = [name(body_name), ast.Tuple(containers, ast.Load())]
        given.append(ast.Tuple([name(total) for total in totals], ast.Load()))
        rest = expression(
            "((S := C), *T, S.pop())[-1]",
            S=state,
            C=self._call(site, "loop", [source, *given, *more]),
            T=[expression("(N := S.pop())", N=total, S=state) for total in totals],
        )
        nothing = ast.Assign([name(body_name, store=True)], ast.Constant(None))
        before = ast.If(self._on(site), functions, [nothing])
        self.depth += 1
        plain_iter = self.visit(node.iter)
        original = block.statements[block.index]
        assert isinstance(original, ast.For)
        node.body = self._block(original.body, original, block)
        node.orelse = self._block(original.orelse, original, block)
        self.depth -= 1
        iterable = expression("P if B is None else R", P=plain_iter, B=body_name, R=rest)
        node.iter = ast.copy_location(iterable, node.iter)
        return [ast.copy_location(before, node), node]

    # Independent statements.

    def _together(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        site = self._new("statements", statements[0])
        site.text = "; ".join(short(s) for s in statements)
        held = f"__xcs_started{site.index}"
        out: list[ast.stmt] = []
        for i, statement in enumerate(map(clone, statements)):
            assert isinstance(statement, ast.Assign)
            site.bodies[f"thunk {i}"] = lambda_of([], clone(statement.value))
            value = expression("V if H is None or not H.done else H.value(I)", V=statement.value, H=held,
                               I=ast.Constant(i))  # fmt: skip
            statement.value = ast.copy_location(value, statement.value)
            out.append(statement)
        call = self._call(site, "start", [clone(thunk) for thunk in site.bodies.values()])
        start = expression("C if ON else None", C=call, ON=self._on(site))
        over = expression("None if H is None else H.over()", H=held)
        first, last = (ast.Assign([name(held, store=True)], value) for value in (start, over))
        return [
            ast.copy_location(first, statements[0]), *out, ast.copy_location(last, statements[-1]),
        ]  # fmt: skip

    # Helpers.

    def _new(self, kind: str, node: ast.AST) -> SiteText:
        site = SiteText(len(self.found), kind, getattr(node, "lineno", 0), short(node, kind == "loop"))
        self.found.append(site)
        return site

    def _no_site(self, kind: str, node: ast.AST, reason: str) -> None:
        self._new(kind, node).reason = reason

    def _on(self, site: SiteText) -> ast.expr:
        """Return the expression that checks whether a site is on.

        It runs only C code, so that a debugger does not step into this library. `torch.compile` treats
        the first condition as a constant and therefore sees the original code only.
        """
        untraced = f"(R.tracer() is None or R.traced.add({site.index}))"
        compiling = "R.compiling()" if isinstance(self.original, ast.Lambda) else COMPILING
        paused = f"None in R.pause{site.index}.left"
        return expression(f"not {compiling} and not {paused} and {untraced}", R=RUNTIME)

    def _call(self, site: SiteText, method: str, given: list[Any]) -> ast.Call:
        return expression(f"R.s{site.index}.{method}(*A)", R=RUNTIME, A=given)
