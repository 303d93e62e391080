"""Effect analysis: run a function's text on abstract values, with the real objects bound.

What is proven: the code is PURE or IO (`Effect`), given that the guards hold. Everything else raises
`Decline`
with the reason. Statements are here, expressions in `expressions`, calls in `calls`.
"""

import ast
import types
from typing import Any

from . import expressions, outside
from .effects import Decline, Effect
from .guards import Guards
from .pure_torch import GradMode
from .source import FunctionNode
from .values import BOTTOM, CONTAINERS, ITERATORS, Value, join, opaque
from .waiting import ReadFile

Env = dict[str, Value]
DEEPEST = 24
ROUNDS = 4


class Frame:
    """One function being analysed: where its free names are found, and what it returns."""

    def __init__(self, node: FunctionNode, function: Any, slot: int | None, parent: "Frame | None" = None):
        self.node = node
        self.function = function  # the function object, for globals and cells; None for a site's own body
        self.slot = slot
        self.parent = parent
        self.outer: Env | None = None  # of a function defined inside another analysed one
        self.returns: list[Value] = []


class Analyzer:
    """Analyses one or more bodies of a site under one set of guards."""

    def __init__(self, guards: Guards | None = None):
        self.guards = guards or Guards()
        self.effect = Effect.PURE
        self.calls: dict[str, str] = {}  # what was called, and how it was known: for explain()
        self.functions: dict[types.CodeType, FunctionNode] = {}
        self.stack: list[tuple[Any, ...]] = []
        self.recursive = False
        self.answers: dict[tuple[Any, ...], Value] = {}

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
        return self.run(frame, env)

    def run(self, frame: Frame, env: Env) -> Value:
        if isinstance(frame.node, ast.Lambda):
            return self.expr(frame.node.body, env, frame)
        ends = self.block(frame.node.body, env, frame)
        if not ends:
            frame.returns.append(Value(type(None)))
        found = frame.returns[0]
        for value in frame.returns[1:]:
            found = join(found, value)
        return found

    def expr(self, node: ast.expr, env: Env, frame: Frame) -> Value:
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
                self.augment(node, target, op, value, env, frame)
            case ast.If(test=test, body=body, orelse=orelse):
                self.truth(self.expr(test, env, frame), test)
                return self.branch(env, [body, orelse], frame)
            case ast.For():
                self.loop(node, env, frame)
            case ast.While(test=test, body=body, orelse=orelse):
                for _ in range(ROUNDS):
                    self.truth(self.expr(test, env, frame), test)
                    self.branch(env, [body, []], frame)
                self.block(orelse, env, frame)
            case ast.Raise(exc=exc, cause=cause):
                for part in (exc, cause):
                    if part is not None:
                        self.expr(part, env, frame)
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
                made = Value(types.FunctionType, fresh=True)
                made.function = (node, env, frame)
                if node.decorator_list or node.args.defaults or node.args.kw_defaults:
                    raise self.decline("it defines a function with decorators or defaults", node)
                env[name] = made
            case ast.Pass() | ast.Break() | ast.Continue():
                return not isinstance(node, ast.Pass)
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

    def loop(self, node: ast.For, env: Env, frame: Frame) -> None:
        source = self.iterable(self.expr(node.iter, env, frame), node.iter)
        for _ in range(ROUNDS):
            inner = dict(env)
            self.assign(node.target, source.element(), inner, frame)
            self.block(node.body, inner, frame)
            merge(env, [dict(env), inner])
        self.block(node.orelse, env, frame)

    def iterable(self, value: Value, node: ast.AST) -> Value:
        """What may be iterated over without running anybody's code."""
        known = (
            value.type in (*CONTAINERS, *ITERATORS, str, bytes, range) or value.is_array or value.is_tensor
        )
        if not known:
            raise self.decline("it loops over something of unknown type", node)
        return value

    def attempt(self, node: ast.Try, env: Env, frame: Frame) -> bool:
        before = dict(env)
        self.block(node.body, env, frame)
        merged = [dict(env)]
        ended = [False]
        for handler in node.handlers:
            inner = dict(before)
            merge(inner, [dict(before), dict(env)])
            if handler.type is not None:
                self.expr(handler.type, inner, frame)
            if handler.name:
                inner[handler.name] = opaque()
            ended.append(self.block(handler.body, inner, frame))
            merged.append(inner)
        self.block(node.orelse, env, frame)
        merge(env, merged)
        return self.block(node.finalbody, env, frame)

    def within(self, items: list[ast.withitem], body: list[ast.stmt], env: Env, frame: Frame) -> bool:
        for item in items:
            held = self.expr(item.context_expr, env, frame)
            if held.type not in (ReadFile, GradMode) or (held.type is GradMode and item.optional_vars):
                what = "a file opened for reading, torch.no_grad() or torch.inference_mode()"
                raise self.decline(f"it enters a context other than {what}", item.context_expr)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, held, env, frame)
        return self.block(body, env, frame)

    def assign(self, target: ast.expr, value: Value, env: Env, frame: Frame) -> None:
        match target:
            case ast.Name(id=name):
                env[name] = value
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                if any(isinstance(e, ast.Starred) for e in elts):
                    raise self.decline("it unpacks with a star", target)
                parts = value.parts if value.parts is not None and len(value.parts) == len(elts) else None
                if parts is None:
                    self.iterable(value, target)
                    parts = [value.element()] * len(elts)
                for element, part in zip(elts, parts, strict=True):
                    self.assign(element, part, env, frame)
            case ast.Subscript(value=holder, slice=index):
                held = self.expr(holder, env, frame)
                key = self.expr(index, env, frame)
                self.changes(held, target)
                if not key.is_deep_safe:
                    raise self.decline("it stores under a key of unknown type", target)
                if held.type is dict:
                    held.key = key if held.key is None else join(held.key, key)
                    held.may_hold(value)
                elif held.type is list:
                    held.may_hold(value)
                elif not (held.is_array or held.is_tensor) or not value.is_deep_safe:
                    raise self.decline("it stores into something of unknown type", target)
            case _:
                raise self.decline("it sets an attribute", target, impure=True)

    def changes(self, held: Value, node: ast.AST) -> None:
        """Only what the analysed code has made itself may be changed."""
        if not held.fresh:
            what = ast.unparse(node)
            raise self.decline(f"it changes something it did not make: {what}", node, impure=True)

    def augment(
        self, node: ast.AugAssign, target: ast.expr, op: ast.operator, value: ast.expr, env: Env, frame: Frame
    ) -> None:
        if not isinstance(target, ast.Name):
            holder = target.value if isinstance(target, (ast.Subscript, ast.Attribute)) else target
            held = self.expr(holder, env, frame)
            self.changes(held, target)
        load = ast.parse(ast.unparse(target), mode="eval").body
        ast.copy_location(load, target)
        ast.fix_missing_locations(load)
        before = self.expr(load, env, frame)
        after = expressions.operate(self, op, before, self.expr(value, env, frame), node)
        if not before.is_safe or before.is_array or before.is_tensor:
            self.changes(before, node)  # += writes into the object itself
            after = before if before.is_array or before.is_tensor else after
        if isinstance(target, ast.Name):
            env[target.id] = after
        else:
            self.assign(target, after, env, frame)

    def truth(self, value: Value, node: ast.AST) -> Value:
        """`if value`, `not value`: asks nobody's `__bool__`."""
        if not value.is_safe and value.type not in CONTAINERS and value.type is not BOTTOM:
            raise self.decline("it asks for the truth of something of unknown type", node)
        return Value(bool)


def merge(env: Env, ends: list[Env]) -> None:
    """After branches: a name that only some of them bind is not relied upon."""
    names = set.intersection(*(set(end) for end in ends)) if ends else set()
    for gone in set(env) - names:
        del env[gone]
    for name in names:
        found = ends[0][name]
        for end in ends[1:]:
            found = join(found, end[name])
        env[name] = found
