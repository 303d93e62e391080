"""Effect analysis: abstract interpretation of a function's AST, with the real objects bound.

It proves that the code is PURE or IO (`Effect`) while the guards hold, and raises `Decline` with the reason
otherwise. This file handles statements; `expressions` handles expressions, `objects` objects from outside,
`known_calls` and `python_calls` calls.
"""

import ast
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..text.liveness import read_first
from ..text.names import stored
from ..text.site_text import excerpt
from ..text.source import FunctionNode
from . import expressions, objects
from .class_tables import Fields
from .effects import Decline, Effect
from .guards import Guards
from .kinds import HOLDERS, Bottom, Events, Iterator
from .torch_tables import GradMode
from .values import Value, join, join_all, opaque
from .waiting import ReadFile

ROUNDS = 40  # maximum number of iterations until a loop reaches a fixed point
MOST_STEPS = 20_000  # maximum number of expressions analysed, about 50 ms
ENDING = ("StopIteration", "StopAsyncIteration", "GeneratorExit")


Env = dict[str, Value]


@dataclass
class Frame:
    """One function being analysed.

    Attributes:
        function: the function object, for globals and closure cells.
        slot: the guards' slot of the function.
        outer: for a site's own body, the variables of the jitted function.
        env: local variables at the current point.
        returns: values of the `return` statements so far.
        inside: number of enclosing branches, loops and `try` statements.
        handling: number of enclosing exception handlers.
    """

    node: FunctionNode
    function: Any
    slot: int | None
    outer: Env | None = None
    env: Env = field(default_factory=dict)
    returns: list[Value] = field(default_factory=list)
    inside: int = 0
    handling: int = 0


class Analyzer:
    """Analyses the bodies of a site under one set of guards.

    Attributes:
        effect: the effect of everything analysed so far.
        ends: True if the code may raise an exception that ends an iteration, such as StopIteration.
        functions: syntax trees of the functions analysed.
        classes: guards of the classes whose fields are read, by id.
        frame: the current function.
        stack: code objects of calls in progress.
        finished: results of calls.
        put, keys: the join of all elements, and of all keys, that the code puts into containers it has made.
        exposed: True if code that is not analysed received something that can be changed. Then nothing may be
            changed, and nothing is known about the contents of containers.
    """

    frame: Frame

    def __init__(self, guards: Guards | None = None):
        self.guards = guards or Guards()
        self.effect = Effect.PURE
        self.ends = self.exposed = False
        self.functions: dict[types.CodeType, FunctionNode] = {}
        self.classes: dict[int, Fields] = {}
        self.put = self.keys = Value(Bottom)
        self.stack: list[types.CodeType] = []
        self.finished: dict[Any, Value] = {}
        self.steps = 0

    def settled(self, analyse: Callable[[], Value]) -> Value:
        """Repeat an analysis until what it found out about containers does not change any more."""
        for _ in range(ROUNDS):
            before = self.put, self.keys, self.exposed
            found = analyse()
            if before == (self.put, self.keys, self.exposed):
                return found
        raise self.decline(f"the contents of containers did not converge in {ROUNDS} rounds")

    def site_body(self, which: str, node: FunctionNode, function: Any, arguments: list[Value]) -> Value:
        """Analyse a site's own body, which reads variables of the jitted function through closure cells."""
        return self.settled(lambda: self._site_body(which, node, function, arguments))

    def _site_body(self, which: str, node: FunctionNode, function: Any, arguments: list[Value]) -> Value:
        frame = Frame(node, function, None, {})
        for index, name in enumerate(function.__code__.co_freevars):
            try:
                held = function.__closure__[index].cell_contents
            except ValueError:
                continue  # not bound yet; the plain loop raises if it is read
            frame.outer[name] = self.look(held, self.guards.note("free", which, index))  # type: ignore[index]
        if self.exposed:
            arguments = [Value(v.type, v.obj, v.slot) if v.type in HOLDERS else v for v in arguments]
        env = dict(zip((a.arg for a in node.args.args), arguments, strict=True))
        if which == "items":  # a generator that is listed at once
            self.frame, frame.env = frame, env
            return expressions.comprehension(self, node.body)
        return self.run(frame, env)

    def called(self, tree: FunctionNode, callee: Value, env: Env, node: ast.AST) -> Value:
        """Return the result of a call. The callee is analysed once for each kind of arguments."""
        code = callee.obj.__code__
        key = (code, callee.slot, self.put, self.keys, self.exposed, *sorted(env.items(), key=lambda i: i[0]))
        if key not in self.finished:
            self.demand(code not in self.stack, "it is recursive", node)
            self.stack.append(code)
            self.finished[key] = self.run(Frame(tree, callee.obj, callee.slot), env)
            self.stack.pop()
        return self.finished[key]

    def run(self, frame: Frame, env: Env) -> Value:
        """Return the result of a function for these arguments."""
        before, self.frame = getattr(self, "frame", frame), frame
        for name, value in env.items():
            self.bind(name, value)
        if isinstance(frame.node, ast.Lambda):
            found = self.expr(frame.node.body)
        else:
            body = frame.node.body
            ended = self.block(body)
            for name in sorted(stored(body) - env.keys()):
                unbound = read_first(body, name, swallowing=False)
                self.demand(not unbound, f"{name!r} may be unbound", frame.node)
            found = join_all([*frame.returns, *([] if ended else [Value(type(None))])])
        self.frame = before
        return found

    def bind(self, name: str, value: Value) -> None:
        """Assign a value to a variable. Inside a branch, loop or `try`, it may keep its other values."""
        if value.type is Iterator:  # its elements were analysed when it was made, not when it is consumed
            raise self.decline(expressions.KEPT_ITERATOR)
        env = self.frame.env
        env[name] = join(env.get(name, value), value) if self.frame.inside else value

    def made(self, kind: type, elem: Value | None = None, key: Value | None = None) -> Value:
        """Return a new list, dict or set with these contents, and all that the code puts into any."""
        if self.exposed:
            return Value(kind, fresh=True)
        elem, key = join(elem or self.put, self.put), join(key or self.keys, self.keys)
        return Value(kind, fresh=True, elem=elem, key=key)

    def expr(self, node: ast.expr) -> Value:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise self.decline(f"more than {MOST_STEPS:,} expressions to analyse", node)
        return expressions.evaluate(self, node)

    def look(self, held: Any, slot: int) -> Value:
        """Return the abstract value of an object from outside the analysed code, found at a guarded slot."""
        return objects.look(self, held, slot)

    def decline(self, reason: str, node: ast.AST | None = None, impure: bool = False) -> Decline:
        """Return the exception to raise; its reason names the function, unless it is the site's own body."""
        frame = getattr(self, "frame", None)
        if frame is not None and frame.outer is None:
            reason = f"{reason}, in `{frame.function.__qualname__}`"
        return Decline(Effect.IMPURE if impure else Effect.UNKNOWN, reason, getattr(node, "lineno", None))

    def demand(self, holds: bool, reason: str, node: ast.AST) -> None:
        """Raise `Decline` unless `holds`."""
        if not holds:
            raise self.decline(reason, node)

    def known(self, holds: bool, what: str, node: ast.AST) -> None:
        """Raise `Decline`, naming the expression, unless `holds`: the type of `what` in `node` is known."""
        if not holds:
            raise self.decline(f"the type of {what} is unknown: `{excerpt(node)}`", node)

    def waits(self) -> None:
        self.effect = max(self.effect, Effect.IO)

    def changes(self, held: Value, node: ast.AST) -> None:
        """Raise `Decline` unless the value was made by the analysed code and not passed to other code."""
        if not held.fresh or (self.exposed and held.type is not Events):
            raise self.decline(f"side effect on an object from outside: `{excerpt(node)}`", node, impure=True)

    def truth(self, value: Value, node: ast.AST) -> Value:
        """Return the result of `bool(value)`. Raises `Decline` if a user's `__bool__` may run."""
        known = value.is_safe or (value.type in HOLDERS and value.type is not Iterator)
        self.known(known, "the condition", node)
        return Value(bool)

    def iterable(self, value: Value, node: ast.AST) -> Value:
        """Return `value`. Raises `Decline` if iterating over it may run user code."""
        known = value.type in (*HOLDERS, str, bytes, range, Bottom) or value.is_array or value.is_tensor
        self.known(known, "the iterable", node)
        return value

    # Statements. These return True if the end is never reached.

    def block(self, statements: list[ast.stmt]) -> bool:
        return any(self.statement(statement) for statement in statements)

    def statement(self, node: ast.stmt) -> bool:
        frame = self.frame
        match node:
            case ast.Return(value=value):
                frame.returns.append(self.expr(value) if value else Value(type(None)))
                return True
            case ast.Expr(value=value):
                self.expr(value)
            case ast.Assign(targets=targets, value=value):
                found = self.expr(value)
                for target in targets:
                    expressions.assign(self, target, found)
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    expressions.assign(self, target, self.expr(value))
            case ast.AugAssign():
                expressions.augment(self, node)
            case ast.If(test=test, body=body, orelse=orelse):
                self.truth(self.expr(test), test)
                return self.settle(node, lambda: [self.block(body), self.block(orelse)])
            case ast.For() | ast.While():
                return self.settle(node, lambda: [self.loop(node)])
            case ast.Raise(exc=exc, cause=cause):
                if exc is None and not frame.handling:
                    raise self.decline("a bare raise outside of an except block is not analysed", node)
                for part in filter(None, (exc, cause)):
                    self.expr(part)
                raised = exc.func if isinstance(exc, ast.Call) else exc
                self.ends = self.ends or (isinstance(raised, ast.Name) and raised.id in ENDING)
                return True
            case ast.Assert(test=test, msg=msg):
                self.truth(self.expr(test), test)
                if msg is not None:
                    self.expr(msg)
            case ast.Try(finalbody=[]):
                return self.settle(node, lambda: self.attempt(node))
            case ast.With(items=items, body=body):
                for item in items:
                    self.enter(item)
                return self.block(body)
            case ast.Pass():
                pass
            case ast.Break() | ast.Continue():
                return True
            case _:
                raise self.decline(f"statement not analysed: `{excerpt(node)}`", node)
        return False

    def settle(self, node: ast.AST, parts: Callable[[], list[bool]]) -> bool:
        """Analyse the parts of a statement until all variables stay the same.

        A variable then has the join of all values that it has before the statement or anywhere in it, so the
        order in which the parts run does not matter. Returns whether the end of no part is reached.
        """
        frame = self.frame
        frame.inside += 1
        for _ in range(ROUNDS):
            before = dict(frame.env)
            ended = all(parts())
            if frame.env == before or frame.inside > 1:  # an enclosing statement repeats this one
                frame.inside -= 1
                return ended
        raise self.decline(f"the analysis of variables did not converge in {ROUNDS} rounds", node)

    def loop(self, node: ast.For | ast.While) -> bool:
        if isinstance(node, ast.While):
            self.truth(self.expr(node.test), node.test)
        else:
            source = self.iterable(self.expr(node.iter), node.iter)
            expressions.assign(self, node.target, source.element())
        self.block(node.body)
        self.block(node.orelse)
        return False

    def attempt(self, node: ast.Try) -> list[bool]:
        """Analyse the parts of a `try`. Its body may raise anywhere."""
        ended = [self.block([*node.body, *node.orelse])]
        for handler in node.handlers:
            if handler.type is not None:
                self.expr(handler.type)
            if handler.name:
                self.bind(handler.name, opaque())
            self.frame.handling += 1
            ended.append(self.block(handler.body))
            self.frame.handling -= 1
        return ended

    def enter(self, item: ast.withitem) -> None:
        held = self.expr(item.context_expr)
        if held.type not in (ReadFile, GradMode) or (held.type is GradMode and item.optional_vars):
            known = "a file opened for reading, torch.no_grad() or torch.inference_mode()"
            shown = excerpt(item.context_expr)
            raise self.decline(f"context not analysed: `{shown}`, expected {known}", item.context_expr)
        if item.optional_vars is not None:
            expressions.assign(self, item.optional_vars, held)
