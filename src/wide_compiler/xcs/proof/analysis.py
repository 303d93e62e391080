"""Effect analysis: run a function's text on abstract values, with the real objects bound.

What is proven: the code is PURE or IO (`Effect`), given that the guards hold. Everything else raises
`Decline` with the reason. Statements are here, stores in `storing`, expressions in `expressions`, calls in
`calls`.
"""

import ast
import types
from collections.abc import Callable
from typing import Any

from ..text.source import FunctionNode
from . import expressions, outside, storing
from .effects import Decline, Effect
from .fields import Fields
from .frames import Env, Frame, Loop, merge
from .guards import Guards
from .kinds import BOTTOM, CONTAINERS, ITERATORS
from .pure_torch import GradMode
from .shapes import shape
from .values import Value, join, join_all, opaque
from .waiting import ReadFile

DEEPEST = 24
ROUNDS = 40  # of a loop, until nothing new is learnt
MOST_LOOKS = 20_000  # at expressions: some 50 milliseconds, once


ENDING = ("StopIteration", "StopAsyncIteration", "GeneratorExit")


class Analyzer:
    """Analyses one or more bodies of a site under one set of guards."""

    def __init__(self, guards: Guards | None = None):
        self.guards = guards or Guards()
        self.effect = Effect.PURE
        self.ends = False  # may it raise what ends an iteration?
        self.calls: dict[str, str] = {}  # what was called, and how it was known: for explain()
        self.functions: dict[types.CodeType, FunctionNode] = {}
        self.classes: dict[int, Fields] = {}  # whose fields are read
        self.stack: list[tuple[Any, ...]] = []
        self.answers: dict[tuple[Any, ...], Value] = {}
        self.recursive: set[tuple[Any, ...]] = set()
        self.given: dict[tuple[Any, ...], Env] = {}  # arguments of what is on the stack, of any depth
        self.finished: dict[
            tuple[Any, ...], tuple[Value, Env]
        ] = {}  # calls whose answer serves others like them
        self.unfinished = 0  # answers that were taken of calls in progress
        self.looks = 0

    def site_body(self, which: str, node: FunctionNode, function: Any, arguments: list[Value]) -> Value:
        """Analyse a site's own body, which reads names of the jitted function through its cells."""
        frame = Frame(node, function, None)
        frame.outer = {}
        for index, name in enumerate(function.__code__.co_freevars):
            try:
                held = function.__closure__[index].cell_contents
            except ValueError:
                continue  # not bound yet: reading it is the plain loop's business
            slot = self.guards.note("free", which, index)
            frame.outer[name] = self.look(held, slot)
        env = dict(zip((a.arg for a in node.args.args), arguments, strict=True))
        if which == "items":  # a generator that is listed at once
            return expressions.comprehension(self, node.body, env, frame)
        return self.run(frame, env)

    def run(self, frame: Frame, env: Env) -> Value:
        for name, value in env.items():
            frame.note(name, value)
        if isinstance(frame.node, ast.Lambda):
            return self.expr(frame.node.body, env, frame)
        ends = self.block(frame.node.body, env, frame)
        if not ends:
            frame.returns.append(Value(type(None)))
        return join_all(frame.returns) if frame.returns else Value(BOTTOM)

    def expr(self, node: ast.expr, env: Env, frame: Frame) -> Value:
        self.looks += 1
        if self.looks > MOST_LOOKS:
            raise self.decline("there is more to look at than is looked at", node)
        return expressions.evaluate(self, node, env, frame)

    def look(self, held: Any, slot: int) -> Value:
        """A value that lies outside the analysed code, at a place the guards know."""
        return outside.look(self, held, slot)

    def decline(self, reason: str, node: ast.AST | None = None, impure: bool = False) -> Decline:
        effect = Effect.IMPURE if impure else Effect.UNKNOWN
        return Decline(effect, reason, getattr(node, "lineno", None))

    def waits(self) -> None:
        self.effect = max(self.effect, Effect.IO)

    # Statements.

    def block(self, statements: list[ast.stmt], env: Env, frame: Frame) -> bool:
        """Run statements; True if the end is never reached."""
        return any(self.statement(statement, env, frame) for statement in statements)

    def statement(self, node: ast.stmt, env: Env, frame: Frame) -> bool:
        match node:
            case ast.Return(value=value):
                frame.returns.append(self.expr(value, env, frame) if value else Value(type(None)))
                return True
            case ast.Expr(value=value):
                self.expr(value, env, frame)
            case ast.Assign(targets=targets, value=value):
                found = self.expr(value, env, frame)
                for target in targets:
                    self.assign(target, found, env, frame)
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self.assign(target, self.expr(value, env, frame), env, frame)
            case ast.AugAssign(target=target, op=op, value=value):
                storing.augment(self, node, target, op, value, env, frame)
            case ast.If(test=test, body=body, orelse=orelse):
                self.truth(self.expr(test, env, frame), test)
                return self.branch(env, [body, orelse], frame)
            case ast.For(target=target):
                source = self.iterable(self.expr(node.iter, env, frame), node.iter)

                def step(inner: Env) -> None:
                    self.assign(target, source.element(), inner, frame)

                return self.loop(node, step, env, frame)
            case ast.While(test=test):

                def ask(inner: Env) -> None:
                    self.truth(self.expr(test, inner, frame), test)

                return self.loop(node, ask, env, frame)
            case ast.Raise(exc=exc, cause=cause):
                if exc is None and not frame.handling:
                    raise self.decline("it raises again what its caller handles", node)
                for part in (exc, cause):
                    if part is not None:
                        self.expr(part, env, frame)
                raised = exc.func if isinstance(exc, ast.Call) else exc
                self.ends = self.ends or (isinstance(raised, ast.Name) and raised.id in ENDING)
                return True
            case ast.Assert(test=test, msg=msg):
                self.truth(self.expr(test, env, frame), test)
                if msg is not None:
                    self.expr(msg, env, frame)
            case ast.Try():
                return self.attempt(node, env, frame)
            case ast.With(items=items, body=body):
                return self.within(items, body, env, frame)
            case ast.FunctionDef(name=name):
                if node.decorator_list or node.args.defaults or node.args.kw_defaults:
                    raise self.decline("it defines a function with decorators or defaults", node)
                self.bind(name, frame.made(node), env, frame)
            case ast.Pass():
                pass
            case ast.Break() | ast.Continue():
                if frame.loops:  # else it ends the body of the site itself
                    loop = frame.loops[-1]
                    (loop.breaks if isinstance(node, ast.Break) else loop.continues).append(dict(env))
                return True
            case _:
                raise self.decline(f"it has a statement ({type(node).__name__}) that is not analysed", node)
        return False

    def branch(self, env: Env, branches: list[list[ast.stmt]], frame: Frame) -> bool:
        """Run branches from one environment and keep what is true after any of them."""
        ends, after = [], []
        for body in branches:
            inner = dict(env)
            ended = self.block(body, inner, frame)
            ends.append(ended)
            if not ended:
                after.append(inner)
        if after:
            merge(env, after)
        return all(ends)

    def loop(self, node: ast.For | ast.While, begin: Callable[[Env], None], env: Env, frame: Frame) -> bool:
        """Rounds of a loop until they teach nothing new. A round may begin where any round went on."""
        loop = Loop()
        frame.loops.append(loop)

        def one() -> None:
            loop.breaks, loop.continues = [], []
            inner = dict(env)
            begin(inner)
            ended = self.block(node.body, inner, frame)
            merge(env, [dict(env), *loop.continues, *([] if ended else [inner])])

        self.settle(one, env, frame, node)
        frame.loops.pop()
        if isinstance(node, ast.While):
            begin(env)
        ended = self.block(node.orelse, env, frame)
        ends = [*([] if ended else [dict(env)]), *loop.breaks]
        merge(env, ends)
        return not ends

    def settle(self, one: Callable[[], Any], env: Env, frame: Frame, node: ast.AST, *more: Env) -> None:
        """Run a round until what is known is the same before and after it."""
        before = None
        for _ in range(ROUNDS):
            now = shape([env, *more, *frame.spaces()])
            if now == before:
                return
            before = now
            one()
        raise self.decline("what a loop does depends on ever more rounds of it", node)

    def iterable(self, value: Value, node: ast.AST) -> Value:
        """What may be iterated over without running anybody's code."""
        known = (
            value.type in (*CONTAINERS, *ITERATORS, str, bytes, range) or value.is_array or value.is_tensor
        )
        if not known:
            raise self.decline("it loops over something of unknown type", node)
        return value

    def attempt(self, node: ast.Try, env: Env, frame: Frame) -> bool:
        """An error may come at any point of the body: a handler may find each name with any value that it had
        in there. So may `finally`, which also comes before whatever leaves by `break` or `continue`."""
        before, loop = dict(env), frame.loops[-1] if frame.loops else Loop()
        left = len(loop.breaks), len(loop.continues)
        anywhere: Env = {}  # the values that names had anywhere in the statement
        frame.tries.append(anywhere)
        within: Env = {}  # and in its body
        frame.tries.append(within)
        ended = self.block(node.body, env, frame)
        frame.tries.pop()
        ends = [] if ended or self.block(node.orelse, env, frame) else [dict(env)]
        for handler in node.handlers:
            inner = at_any_point(before, within)
            if handler.type is not None:
                self.expr(handler.type, inner, frame)
            if handler.name:
                self.bind(handler.name, opaque(), inner, frame)
            frame.handling += 1
            ended = self.block(handler.body, inner, frame)
            frame.handling -= 1
            if not ended:
                inner.pop(handler.name or "", None)
                ends.append(inner)
        frame.tries.pop()
        merge(env, ends)
        if not node.finalbody:
            return not ends
        self.block(node.finalbody, at_any_point(before, anywhere), frame)
        for leaving, kept in ((loop.breaks, left[0]), (loop.continues, left[1])):
            leaving[kept:] = [e for e in leaving[kept:] if not self.block(node.finalbody, e, frame)]
        return not ends or self.block(node.finalbody, env, frame)

    def within(self, items: list[ast.withitem], body: list[ast.stmt], env: Env, frame: Frame) -> bool:
        for item in items:
            held = self.expr(item.context_expr, env, frame)
            if held.type not in (ReadFile, GradMode) or (held.type is GradMode and item.optional_vars):
                what = "a file opened for reading, torch.no_grad() or torch.inference_mode()"
                raise self.decline(f"it enters a context other than {what}", item.context_expr)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, held, env, frame)
        return self.block(body, env, frame)

    def bind(self, name: str, value: Value, env: Env, frame: Frame) -> None:
        env[name] = value
        frame.note(name, value)

    def assign(self, target: ast.expr, value: Value, env: Env, frame: Frame) -> None:
        storing.assign(self, target, value, env, frame)

    def changes(self, held: Value, node: ast.AST) -> None:
        """Only what the analysed code has made itself may be changed."""
        if not held.fresh:
            what = ast.unparse(node)
            raise self.decline(f"it changes something it did not make: {what}", node, impure=True)

    def truth(self, value: Value, node: ast.AST) -> Value:
        """`if value`, `not value`: asks nobody's `__bool__`."""
        if not value.is_safe and value.type not in CONTAINERS and value.type is not BOTTOM:
            raise self.decline("it asks for the truth of something of unknown type", node)
        return Value(bool)


def at_any_point(before: Env, within: Env) -> Env:
    """Names that were set before, with any value they had since."""
    return {name: join(v, within[name]) if name in within else v for name, v in before.items()}
