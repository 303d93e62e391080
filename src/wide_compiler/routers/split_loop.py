"""Split a loop of a forward that calls one module per iteration, so that all calls can run at once.

A mixture of experts selects the tokens of each expert by value, so it cannot be captured:

    for expert in hit:
        slot, tokens = torch.where(mask[expert])                               # before
        out = self.experts[expert](x[tokens]) * weight[tokens, slot, None]     # the call
        final.index_add_(0, tokens, out)                                       # after

The code before a call needs no result of an earlier iteration. So all iterations can run up to their call,
the calls can run as lanes, and then all iterations can continue. This is decided on the source of the loop:
everything but the one call must be a torch function, a tensor method or arithmetic; nothing before the call
may write in place or read what the code after it writes.
"""

import ast
import copy
import dis
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

_TENSOR_METHODS = frozenset(name for name in dir(Tensor) if not name.startswith("__"))
_EFFECTS = {"backward", "register_hook", "retain_grad", "manual_seed", "seed", "save", "load"}
_BUILTINS = {"range", "len", "enumerate", "zip", "int", "float", "bool", "getattr", "min", "max"}
_PLAIN = (
    *(ast.Name, ast.Constant, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Attribute, ast.Call),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.JoinedStr, ast.FormattedValue),
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.If, ast.Continue, ast.Pass, ast.Starred),
    *(ast.keyword, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_ROUNDS, _CALLS, _OUTPUT = "_wide_rounds", "_wide_calls", "_wide_output"
# Attributes that a module with a split forward must have: `RUN` returns the outputs of (module, tensor)
# calls; `SAFE` is `memory_is_apart`.
RUN, SAFE = "_wide_run", "_wide_safe"


def split_forward(forward: Any) -> Callable[..., Any] | None:
    """Return the function with its loop split; None if it has no such loop.

    Args:
        forward: a plain function, the `forward` of a module's class.
    """
    if not isinstance(forward, types.FunctionType) or forward.__closure__:
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(forward)))
    except (OSError, TypeError, SyntaxError):
        return None
    function = tree.body[0]
    if not isinstance(function, ast.FunctionDef):
        return None
    _strip(function)
    if not _is_text_of(tree, forward.__code__):
        return None
    found = [(body, i) for body, i in _loops(function) if _Split(body[i], forward).possible]
    if len(found) != 1:
        return None
    body, i = found[0]
    loop = body[i]
    last = loop.end_lineno or loop.lineno
    split = _Split(loop, forward)
    later = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and n.lineno > last}
    if later & split.bound:  # after the loop they would have the values of its last iteration
        return None
    body[i : i + 1] = split.statements()
    code = _compiled(tree, f"<split {forward.__qualname__}>")
    made = types.FunctionType(code, forward.__globals__, forward.__name__, forward.__defaults__)
    made.__kwdefaults__ = forward.__kwdefaults__
    return made


def _strip(function: ast.FunctionDef) -> None:
    """Remove what is not part of a function's code object: decorators, defaults, annotations."""
    function.decorator_list, function.returns = [], None
    function.args.defaults = [ast.Constant(None) for _ in function.args.defaults]
    function.args.kw_defaults = [None if d is None else ast.Constant(None) for d in function.args.kw_defaults]
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None


def _compiled(tree: ast.Module, name: str) -> types.CodeType:
    """Return the code object of the one function in `tree`."""
    code = compile(ast.fix_missing_locations(tree), name, "exec", dont_inherit=True)
    return next(constant for constant in code.co_consts if isinstance(constant, types.CodeType))


def _is_text_of(tree: ast.Module, code: types.CodeType) -> bool:
    """Return whether the source compiles to `code`; the file may have changed, names may be mangled."""
    return _operations(_compiled(copy.deepcopy(tree), code.co_filename)) == _operations(code)


def _operations(code: types.CodeType) -> list[tuple[str, str]]:
    """Return the instructions of a code object, without those for calls, which depend on imports."""
    names = {"LOAD_METHOD": "LOAD_ATTR"}
    jumps = set(dis.hasjabs) | set(dis.hasjrel)
    return [
        (names.get(step.opname, step.opname), "" if step.opcode in jumps else _argument(step))
        for step in dis.get_instructions(code)
        if step.opname not in ("PUSH_NULL", "PRECALL", "CALL", "KW_NAMES", "RESUME")
    ]


def _argument(step: dis.Instruction) -> str:
    return repr(_operations(step.argval)) if isinstance(step.argval, types.CodeType) else repr(step.argval)


def _loops(function: ast.FunctionDef) -> Iterator[tuple[list[ast.stmt], int]]:
    """Outermost loops: (block, index in it)."""
    blocks: list[list[ast.stmt]] = [function.body]
    for block in blocks:
        for i, statement in enumerate(block):
            if isinstance(statement, ast.For):
                yield block, i
            elif isinstance(statement, (ast.If, ast.With)):
                blocks += [statement.body, getattr(statement, "orelse", [])]


class _Split:
    """A loop divided into the code before the call, the call, and the code after it."""

    def __init__(self, loop: Any, forward: types.FunctionType):
        self.loop, self.globals = loop, forward.__globals__
        self.own = forward.__code__.co_varnames[0] if forward.__code__.co_argcount else ""
        self.bound = _bound(loop)
        self.possible = self._analyse()

    def _analyse(self) -> bool:
        loop = self.loop
        if not isinstance(loop, ast.For) or loop.orelse or loop.type_comment:
            return False
        if not all(isinstance(node, _PLAIN) for s in loop.body for node in ast.walk(s)):
            return False
        calls = [
            (i, node)
            for i, statement in enumerate(loop.body)
            for node in ast.walk(statement)
            if isinstance(node, ast.Call) and not self._is_known(node.func)
        ]
        if len(calls) != 1:
            return False
        self.place, self.call = calls[0]
        statement = loop.body[self.place]
        plain = not self.call.keywords and len(self.call.args) == 1
        if not plain or not isinstance(statement, (ast.Assign, ast.Expr)):
            return False
        before, after = loop.body[: self.place], [statement, *loop.body[self.place + 1 :]]
        self.before, self.after = before, after
        halves = [*before, ast.Expr(self.call)]
        reads = {name for s in halves for name in _read(s)}
        self.reads = {f"locals().get({name!r})" for name in reads - _BUILTINS}
        self.reads |= {text for s in halves for text in _attributes(s, self.own)}
        self.written = _written_in_place(after)
        assigned = {name for s in after for name in _bound(s)}
        continues = any(isinstance(node, ast.Continue) for s in after for node in ast.walk(s))
        if continues or _written_in_place(before) or None in self.written:
            return False
        return not (assigned | self.written) & reads  # type: ignore[operator]

    def _is_known(self, function: ast.expr) -> bool:
        """Return whether it is a torch function, a tensor method, or a builtin without side effects."""
        if isinstance(function, ast.Name):
            return function.id in _BUILTINS - self.globals.keys() - self.bound
        if not isinstance(function, ast.Attribute):
            return False
        root = function.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and isinstance(self.globals.get(root.id), types.ModuleType):
            module = self.globals[root.id].__name__
            harmless = function.attr not in _EFFECTS and not function.attr.startswith("set_")
            return module.split(".")[0] == "torch" and root.id not in self.bound and harmless
        # `self.f(x)` and `self.table.get(x)` may call anything.
        if isinstance(root, ast.Name) and root.id == self.own:
            return False
        return function.attr in _TENSOR_METHODS - _EFFECTS

    def statements(self) -> list[ast.stmt]:
        """Return two loops, up to the calls and after them.

        At run time the original loop is used if the second half writes memory that the first half reads.
        """
        names = sorted({name for s in self.before for name in _bound(s)} | _bound(self.loop.target))
        row = ", ".join(names) + ","
        function, argument = ast.unparse(self.call.func), ast.unparse(self.call.args[0])
        written, read = ", ".join(sorted(map(str, self.written))), ", ".join(sorted(self.reads))
        text = f"""
if {self.own}.{SAFE}([{written}], [{read}]):
    {_ROUNDS}, {_CALLS} = [], []
    for _ in _:
        {_ROUNDS}.append(({row}))
        {_CALLS}.append(({function}, {argument}))
    for ({row}), {_OUTPUT} in zip({_ROUNDS}, {self.own}.{RUN}({_CALLS})):
        pass
else:
    pass
"""
        made: Any = ast.parse(text).body[0]
        first, second = made.body[1:]
        first.target, first.iter = self.loop.target, self.loop.iter
        first.body[:0] = self.before
        made.orelse = [copy.deepcopy(self.loop)]
        second.body = [_Replace(self.call).visit(s) for s in self.after]
        return [made]


class _Replace(ast.NodeTransformer):
    """Replaces the call by the name of its output."""

    def __init__(self, call: ast.Call):
        self.call = call

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if node is self.call:
            return ast.Name(_OUTPUT, ast.Load())
        self.generic_visit(node)
        return node


def memory_is_apart(written: Sequence[Any], read: Sequence[Any]) -> bool:
    """Return whether no tensor that is read shares memory with one that is written."""
    if not all(type(x) is Tensor for x in written):
        return False
    memory = {x.untyped_storage()._cdata for x in written}
    return not any(isinstance(x, Tensor) and x.untyped_storage()._cdata in memory for x in read)


def _read(statement: ast.AST) -> set[str]:
    """Return the names that a statement reads."""
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _bound(statement: ast.AST) -> set[str]:
    """Return the names that a statement assigns."""
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _attributes(statement: ast.AST, own: str) -> set[str]:
    """Return the attributes of the module that a statement reads, as text."""
    nodes = [n for n in ast.walk(statement) if isinstance(n, ast.Attribute)]
    inner = {id(n.value) for n in nodes}
    texts = {ast.unparse(n) for n in nodes if id(n) not in inner}
    return {text for text in texts if text.startswith(f"{own}.") and text.replace(".", "").isidentifier()}


def _written_in_place(statements: Sequence[ast.stmt]) -> set[str | None]:
    """Return the names of the values written in place; None stands for a value without a name."""
    found: set[str | None] = set()
    for node in (n for s in statements for n in ast.walk(s)):
        target: Any = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name.endswith("_") and not name.endswith("__"):
                target = node.func.value
            if any(k.arg in ("out", "inplace") for k in node.keywords):
                found.add(None)
        elif isinstance(node, ast.AugAssign):
            target = node.target
        elif isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            target = node
        if target is not None:
            while isinstance(target, ast.Subscript):
                target = target.value
            found.add(target.id if isinstance(target, ast.Name) else None)
    return found
