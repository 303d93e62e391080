"""Rewrite a function so that its sites ask the run time first.

A site becomes `<SITE's result, or the text over what is left> if SITE.on() else <the original text>`. A loop
keeps its text and gets another
iterable: what is left to do, which is nothing where the run time has done it all. So a declined site is the
original text, line numbers included. Under `torch.compile` every site is off.
"""

import ast
from collections.abc import Sequence
from typing import Any

from . import sites
from .attempts import attempted
from .blocks import Block
from .bodies import items_of, lambda_of, loop_body, step_of
from .handing import Handing
from .maps import eaten_map
from .names import captured, eaten, reads
from .site_text import ITEMS, RUNTIME, SiteText, name, shape_of, short
from .sites import flat_target
from .trees import clone


class Rewriter(ast.NodeTransformer):
    """Finds the sites of one function and rewrites them. `found` lists them in order of the text."""

    def __init__(self, function: ast.FunctionDef | ast.Lambda):
        self.original = function
        self.found: list[SiteText] = []
        self.depth = 0
        self.inside = False  # of a comprehension that is a site
        self.held = captured(function)
        self.handing = Handing()

    def rewritten(self) -> ast.FunctionDef | ast.Lambda:
        tree = clone(self.original)
        if isinstance(tree, ast.Lambda):
            tree.body = self.visit(tree.body)
        else:
            tree.body = self._block(tree.body, tree, None)
        return ast.fix_missing_locations(tree)

    # Statements.

    def _block(self, statements: list[ast.stmt], owner: ast.AST, outer: Block | None) -> list[ast.stmt]:
        """The statements, rewritten; places refer to the statements as they were."""
        before = statements
        out: list[ast.stmt] = []
        index = 0
        while index < len(before):
            block = Block(before, index, owner, outer)
            run = sites.independent_run(block, self.held) if self.depth == 0 else 0
            if run >= 2:
                out += self._together(before[index : index + run])
                index += run
                continue
            out += self._statement(clone(before[index]), block)
            index += 1
        return out

    def _statement(self, node: ast.stmt, block: Block) -> list[ast.stmt]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return [node]  # a scope of its own
        if isinstance(node, ast.For):
            found = self._loop(node, block)
            if found is not None:
                return found
        if isinstance(node, ast.While):
            site = self._new("loop", node, first_line=True)
            site.reason = "how many rounds there are is known only when it ends"
        original = block.statements[block.index]
        for field_name in ("body", "orelse", "finalbody"):
            inner = getattr(original, field_name, None)
            if isinstance(inner, list) and inner:
                setattr(node, field_name, self._block(inner, original, block))
        for part in ("handlers", "cases"):
            for new, old in zip(getattr(node, part, ()), getattr(original, part, ()), strict=True):
                new.body = self._block(old.body, original, block)
        made = len(self.found)
        self.handing.enter(block)
        node = self._expressions(node)
        out = [node, *self.handing.forgotten(node)]
        match block.statements[block.index]:
            case ast.Assign([ast.Name(identifier)], ast.ListComp()) if identifier not in self.held:
                self.handing.offer(identifier, block, self.found[made], node)
        return out

    def _expressions(self, node: ast.stmt) -> ast.stmt:
        """Visit the expressions of a statement, not the statements inside it."""
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
        kind = {ast.ListComp: "list", ast.SetComp: "set", ast.DictComp: "dict"}[type(node)]
        return self._map_site(node, kind, "")

    visit_ListComp = visit_SetComp = visit_DictComp = _comprehension

    def visit_Call(self, node: ast.Call) -> ast.AST:
        found = eaten_map(node)
        mapped, generator = found or (None, node.args[0] if node.args else None)
        if found is None and not eaten(node):
            if isinstance(node.func, ast.Name) and node.func.id == "map":
                self._new("generator", node).reason = "it is a map: [f(x) for x in xs] would be looked at"
            return self.generic_visit(node)
        eater = node.func.id if isinstance(node.func, ast.Name) else "join"  # type: ignore[attr-defined]
        rest = [*node.args[1:], *(k.value for k in node.keywords if k.arg != "default")]
        node.args = [self._map_site(generator, "generator", eater, rest, mapped), *node.args[1:]]
        return node

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.AST:
        self._new("generator", node).reason = "who takes its items, and when, is not known"
        return self.generic_visit(node)

    def _map_site(
        self,
        node: Any,
        kind: str,
        eater: str,
        options: Sequence[ast.expr] = (),
        mapped: ast.Call | None = None,
    ) -> Any:
        """mapped: the `map` for which the generator `node` stands."""
        written = node if mapped is None else mapped
        site = self._new(kind, written)
        site.eater, site.keyed, site.maps = eater, bool(options), mapped is not None
        reason = sites.comprehension(node)
        if reason or self.inside:
            site.reason = reason or "it is inside another comprehension"
            return self.generic_visit(written)
        original = clone(node)
        if self.depth == 0:
            site.fed = self.handing.taken_by(original.generators[0].iter)
        self.inside = True
        plain: Any = self.generic_visit(written)
        self.inside = False
        first = original.generators[0]
        targets = [n for g in original.generators for n in flat_target(g.target) or []]
        site.shape = shape_of(first.target)
        value = ast.Tuple([original.key, original.value], ast.Load()) if kind == "dict" else original.elt
        if len(original.generators) > 1:  # only what the body reads need be listed for each round
            targets = [t for t in targets if reads(value, t)] or targets[-1:]
        site.bodies["body"] = lambda_of(targets, value)
        extra: list[ast.expr] = []
        if len(original.generators) > 1:
            site.bodies["items"] = lambda_of([ITEMS], items_of(original, targets))
            extra = [ast.Constant(None), site.bodies["items"]]
        elif first.ifs:
            test = first.ifs[0] if len(first.ifs) == 1 else ast.BoolOp(ast.And(), first.ifs)
            site.bodies["cond"] = lambda_of(targets, test)
            extra = [site.bodies["cond"]]
        if kind == "generator" and eater != "join":
            extra = [*extra, *[ast.Constant(None)] * (2 - len(extra)), name(eater), *options]
        # `T.take() if (T := SITE.run(...)).done else T.end(<the text over T.rest()>)`
        inner, held = clone(plain), f"__xcs_call{site.index}"
        if mapped is None:
            source, inner.generators[0].iter = inner.generators[0].iter, self._of_call(held, "rest")
            door, arguments = "run", [self._source(source), site.bodies["body"], *extra]
        else:
            door, arguments = "mapped", [inner.func, *inner.args, site.bodies["body"], *extra]
            inner = self._of_call(held, "map")
        call = self._call(site, door, [clone(a) for a in arguments])
        if site.fed:
            call.keywords.append(ast.keyword("before", name(site.fed)))
        asked = ast.Attribute(ast.NamedExpr(name(held, store=True), call), "done", ast.Load())
        taken = ast.IfExp(asked, self._of_call(held, "take"), self._of_call(held, "end", inner))
        return ast.copy_location(ast.IfExp(self._on(site), taken, plain), node)

    def _source(self, node: ast.expr) -> ast.expr:
        """The iterable; `zip` and `enumerate` are handed over in parts, to be looked into or made as
        written."""
        simple = isinstance(node, ast.Call) and not any(isinstance(a, ast.Starred) for a in node.args)
        if simple and isinstance(node.func, ast.Name) and node.func.id in sites.SOURCES:  # type: ignore[attr-defined]
            assert isinstance(node, ast.Call)
            function = ast.Attribute(name(RUNTIME), "source", ast.Load())
            arguments = [node.func, *(self._source(a) for a in node.args)]
            return ast.Call(function, arguments, node.keywords)
        return node

    # Loops.

    def _loop(self, node: ast.For, block: Block) -> list[ast.stmt] | None:
        sinks, reason = sites.loop(node, block, self.original)
        if self.depth >= 1 and not reason:
            reason = "it is inside another site"
        if reason:
            self._new("loop", node, first_line=True).reason = reason
            return None
        site = self._new("loop", node, first_line=True)
        site.sinks, site.shape = sinks, shape_of(node.target)
        site.attempted, site.caught = attempted(node.body, sinks)
        body_name, state = f"__xcs_body{site.index}", f"__xcs_state{site.index}"
        carried = sites.carrying(node, block) if sinks[0].kind == "carried" else None
        site.caught = (
            site.caught or carried is not None
        )  # then the loop may have to run once more, as written
        body, site.single = loop_body(node, sinks, body_name, carried)
        site.bodies["body"] = body
        containers = [s for s in sinks if s.kind not in sites.TOTALS]
        totals = [s for s in sinks if s.kind in sites.TOTALS]
        makers = {s.maker for s in sinks if s.maker} | set(carried.calls if carried is not None else ())
        functions: list[ast.stmt] = [clone(body)]
        arguments: list[ast.expr] = [
            self._source(self.visit(clone(node.iter))),
            name(body_name),
            ast.Tuple([name(s.name) for s in containers], ast.Load()),
            ast.Tuple([name(s.name) for s in totals], ast.Load()),
            *(ast.parse(maker, mode="eval").body for maker in sorted(makers)),
        ]
        if carried is not None:
            step = f"__xcs_step{site.index}"
            functions.append(step_of(node, carried, step))
            arguments.append(name(step))
        call = ast.NamedExpr(name(state, store=True), self._call(site, "loop", arguments))
        pop = ast.Call(ast.Attribute(name(state), "pop", ast.Load()), [], [])
        steps = [call, *(ast.NamedExpr(name(s.name, store=True), clone(pop)) for s in totals), pop]
        rest = ast.Subscript(ast.Tuple(steps, ast.Load()), ast.Constant(-1), ast.Load())
        before = ast.If(
            self._on(site),
            functions,
            [ast.Assign([name(body_name, store=True)], ast.Constant(None))],
        )
        off = self._is_none(body_name)
        self.depth += 1
        plain_iter = self.visit(node.iter)
        original = block.statements[block.index]
        assert isinstance(original, ast.For)
        node.body = self._block(original.body, original, block)
        node.orelse = self._block(original.orelse, original, block)
        self.depth -= 1
        node.iter = ast.copy_location(ast.IfExp(off, plain_iter, rest), node.iter)
        return [ast.copy_location(before, node), node]

    # Independent statements.

    def _together(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        site = self._new("statements", statements[0])
        site.text = "; ".join(short(s) for s in statements)
        started = f"__xcs_started{site.index}"
        thunks = []
        for i, statement in enumerate(statements):
            assert isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
            site.names.append(statement.targets[0].id)
            site.bodies[f"thunk {i}"] = lambda_of([], clone(statement.value))
            thunks.append(clone(site.bodies[f"thunk {i}"]))
        start = ast.IfExp(self._on(site), self._call(site, "start", thunks), ast.Constant(None))
        out: list[ast.stmt] = [
            ast.copy_location(ast.Assign([name(started, store=True)], start), statements[0])
        ]
        for i, statement in enumerate(map(clone, statements)):
            assert isinstance(statement, ast.Assign)
            off = ast.BoolOp(
                ast.Or(), [self._is_none(started), ast.Attribute(name(started), "plain", ast.Load())]
            )
            take = self._of_call(started, "take", ast.Constant(i))
            statement.value = ast.copy_location(ast.IfExp(off, statement.value, take), statement.value)
            out.append(statement)
        over = ast.IfExp(self._is_none(started), ast.Constant(None), self._of_call(started, "over"))
        out.append(ast.copy_location(ast.Assign([name(started, store=True)], over), statements[-1]))
        return out

    # Pieces.

    def _new(self, kind: str, node: ast.AST, first_line: bool = False) -> SiteText:
        text = short(node, first_line)
        site = SiteText(len(self.found), kind, getattr(node, "lineno", 0), text)
        self.found.append(site)
        return site

    def _site(self, site: SiteText) -> ast.expr:
        return ast.Attribute(name(RUNTIME), f"s{site.index}", ast.Load())

    def _on(self, site: SiteText) -> ast.expr:
        """`torch.compile` knows the first question for a constant, and then reads the original text alone."""
        compiling = ast.Call(ast.Attribute(name(RUNTIME), "compiling", ast.Load()), [], [])
        on = ast.Call(ast.Attribute(self._site(site), "on", ast.Load()), [], [])
        return ast.BoolOp(ast.And(), [ast.UnaryOp(ast.Not(), compiling), on])

    @staticmethod
    def _of_call(held: str, method: str, *given: ast.expr) -> ast.expr:
        return ast.Call(ast.Attribute(name(held), method, ast.Load()), list(given), [])

    @staticmethod
    def _is_none(held: str) -> ast.expr:
        return ast.Compare(name(held), [ast.Is()], [ast.Constant(None)])

    def _call(self, site: SiteText, method: str, arguments: list[Any]) -> ast.Call:
        return ast.Call(ast.Attribute(self._site(site), method, ast.Load()), arguments, [])
