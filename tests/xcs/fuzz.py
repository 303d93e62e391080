"""A fuzzer: random functions from a grammar of loops, run jitted and plain, compared by the oracle.

A program is text, made from a seed. It has one to three statements, each a place where parallelism could be
found, over items of one kind, with bodies from pure arithmetic to side effects.
"""

import linecache
import random
import types
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import xcs.fuzz_world as world
from wide_compiler.xcs import Config, jit
from xcs import oracle

RTOL = 1e-9
KINDS = (
    "float",
    "int",
    "array",
    "text",
    "pairs",
    "mixed",
    "odd",
    "matrix",
    "ragged",
    "range",
    "records",
    "named",
    "dicts",
)
WEIGHTS = (8, 7, 12, 3, 4, 1, 1, 2, 1, 3, 2, 2, 2)
ARRAYS = ("array", "matrix", "ragged", "records", "named", "dicts")  # and what holds one in each item
ROW = {"records": "{0}.row", "named": "{0}.row", "dicts": "{0}['row']"}


@dataclass
class Program:
    """The text of one function `program(xs, ys, k, box)` and the kind of its items."""

    seed: int
    text: str
    kind: str
    n: int
    measure: bool


class Writer:
    """Writes one program. Every choice comes from the seed."""

    def __init__(self, seed: int):
        self.seed = seed
        self.r = random.Random(seed)
        self.kind = self.r.choices(KINDS, WEIGHTS)[0]
        # Most programs have no effects at all; the others have any.
        self.effects = self.r.choices(("none", "waiting", "any"), (6, 3, 2))[0]
        self.names = 0

    def program(self) -> Program:
        lines = []
        made = []
        for _ in range(self.r.choice((1, 1, 1, 2, 3))):
            name = self.fresh("r")
            lines += self.statement(name)
            made.append(name)
        body = "\n".join(f"    {line}" for line in lines)
        text = f"def program(xs, ys, k, box):\n{body}\n    return {', '.join(made)}, k\n"
        return Program(
            self.seed, text, self.kind, self.r.choice((0, 1, 2, 3, 5, 9, 17, 33)), self.r.random() < 0.15
        )

    def fresh(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    # Statements.

    def statement(self, name: str) -> list[str]:
        makers = [
            self.comprehension, self.comprehension, self.comprehension, self.append_loop, self.append_loop,
            self.eaten, self.accumulate, self.dict_loop, self.two_lists, self.guarded_loop, self.independent,
            self.nested_scope, self.two_loops, self.early, self.while_loop, self.chain, self.carried,
            self.sums, self.windows,
        ]  # fmt: skip
        return self.r.choice(makers)(name)

    def source(self) -> tuple[str, str, str]:
        """The loop variable, what it runs over, and the name of an item's value in the body."""
        if self.kind == "pairs":
            return self.r.choice((("(x, y)", "xs", "x"), ("x, y", "zip(xs, ys)", "y"), ("p", "xs", "p[0]")))
        forms = [("x", "xs", "x")] * 5 + [("i, x", "enumerate(xs)", "x"), ("x, y", "zip(xs, ys)", "x")]
        if self.kind in ROW:
            row = ROW[self.kind].format("x")
            return self.r.choice(
                (("x", "xs", row), ("i, x", "enumerate(xs)", row), ("x, y", "zip(xs, ys)", row))
            )
        if self.kind in ("float", "int", "text"):
            forms += [
                ("x", "tuple(xs)", "x"),
                ("x", "list(reversed(xs))", "x"),
                ("x", "(v for v in xs)", "x"),
            ]
        return self.r.choice(forms)

    def of(self, item: str) -> str:
        """The array of an item, where items hold one."""
        return ROW.get(self.kind, "{0}").format(item)

    def test(self, item: str) -> str:
        return f" if {self.condition(item)}" if self.r.random() < 0.25 else ""

    def comprehension(self, name: str) -> list[str]:
        target, source, item = self.source()
        value, test = self.value(item), self.test(item)
        form = self.r.choices(("list", "set", "dict"), (7, 1, 2))[0]
        if self.kind in ARRAYS and form == "set":
            form = "list"
        if form == "dict":
            key = self.number(item) if self.kind not in ARRAYS else "len(box.__dict__)"
            return [f"{name} = {{{key}: {value} for {target} in {source}{test}}}"]
        marks = "[]" if form == "list" else "{}"
        return [f"{name} = {marks[0]}{value} for {target} in {source}{test}{marks[1]}"]

    def chain(self, name: str) -> list[str]:
        """A site that loops over what the statement before it has made, maybe after a change of it."""
        x = self.of("x")
        rows, value = self.fresh("c"), self.value(x)
        if self.r.random() < 0.5:
            value = f"({self.plain_value(x, 1)} if {self.condition(x)} else {self.plain_value(x, 1)})"
        whole = f"[{self.plain_value('v', 0)} for v in {rows}]"
        if self.r.random() < 0.2:
            whole = f"({rows}.reverse(), {whole})"
        return [f"{rows} = [{value} for x in xs]", f"{name} = {whole}"]

    def two_loops(self, name: str) -> list[str]:
        return [f"{name} = [{self.value(self.of('x'))} for x in xs for j in range(2)]"]

    def eaten(self, name: str) -> list[str]:
        target, source, item = self.source()
        eater = self.r.choice(("sum", "max", "min", "any", "all", "list", "tuple", "sorted"))
        if self.kind in ARRAYS and eater not in ("list", "tuple", "any", "all"):
            value = self.number(item)
        else:
            value = self.condition(item) if eater in ("any", "all") else self.value(item)
        if target == "x" and self.r.random() < 0.3:
            function = self.fresh("f")
            return [f"def {function}(x):", f"    return {value}", f"{name} = {eater}(map({function}, xs))"]
        return [f"{name} = {eater}({value} for {target} in {source}{self.test(item)})"]

    def temps(self, item: str) -> tuple[list[str], str]:
        if self.r.random() < 0.5:
            return [], item
        name = self.fresh("t")
        return [f"{name} = {self.value(item)}"], name if self.kind not in ("text",) else item

    def append_loop(self, name: str) -> list[str]:
        target, source, item = self.source()
        lines, held = self.temps(item)
        value = self.value(item) if self.r.random() < 0.4 else held
        test = self.r.random()
        append = [f"{name}.append({value})"]
        if test < 0.2:
            append = [f"if {self.condition(item)}:", f"    {append[0]}"]
        elif test < 0.3:
            append = [f"if {self.condition(item)}:", "    continue", *append]
        return [f"{name} = []", f"for {target} in {source}:", *(f"    {line}" for line in [*lines, *append])]

    def two_lists(self, name: str) -> list[str]:
        target, source, item = self.source()
        other = self.fresh("o")
        return [
            f"{name} = []",
            f"{other} = []",
            f"for {target} in {source}:",
            f"    if {self.condition(item)}:",
            f"        {name}.append({self.value(item)})",
            "    else:",
            f"        {other}.append({self.value(item)})",
            f"{name} = ({name}, {other})",
        ]

    def accumulate(self, name: str) -> list[str]:
        target, source, item = self.source()
        start, step = self.r.choice((("0", "+="), ("0.0", "+="), ("1.0", "*="), ("0", "-=")))
        lines, _ = self.temps(item)
        return [
            f"{name} = {start}",
            f"for {target} in {source}:",
            *(f"    {line}" for line in lines),
            f"    {name} {step} {self.number(item)}",
        ]

    def carried(self, name: str) -> list[str]:
        """The last statements of a round carry names on to the next."""
        target, source, item = self.source()
        held, count = self.fresh("h"), self.fresh("n")
        last = self.r.choice((
            [f"if {held} > {name}:", f"    {name} = {held}", f"    {count} += 1"],
            [f"{name} = max({name}, {held})", f"{count} = {count} + 1 if {held} > 0 else {count}"],
            [f"{name} = 0.5 * {name} + {held}"],
            [f"if {name} is None or {held} < {name}:", f"    {name} = {held}"],
            [f"{count} = {count} + {held} / {name}"],
        ))  # fmt: skip
        return [
            f"{name} = {self.r.choice(('0.0', '-9', '1', 'k', 'None'))}",
            f"{count} = 0",
            f"for {target} in {source}:",
            f"    {held} = {self.number(item)}",
            *(f"    {line}" for line in last),
            f"{name} = ({name}, {count})",
        ]

    def sums(self, name: str) -> list[str]:
        target, source, item = self.source()
        start = self.r.choice(
            ("{}", "{0: 0, 1: 0.5}", "collections.defaultdict(float)", "collections.defaultdict(int)")
        )
        key = self.r.choice(
            (f"int({self.number(item)}) % 2", f"len(str({item})) % 2", f"({self.number(item)}) > 0")
        )
        return [
            f"{name} = {start}",
            f"for {target} in {source}:",
            f"    {name}[{key}] += {self.number(item)}",
        ]

    def windows(self, name: str) -> list[str]:
        """Parts of an array that all items share, by the number of the round."""
        part = self.r.choice((
            "GRID[i : i + 2, i : i + 3].sum()", "GRID[i : i + 3].mean()", "GRID[i, i]", "WEIGHTS[i % 4] * 2",
            "GRID[i + 1 : i + 3, 0].max()", "(GRID[i] * 2.0)[1]", "GRID[i : i + 2, j : j + 2].std()",
            "float(GRID[j, i : i + 4].min())", "WEIGHTS[i:].sum()", "GRID[i][j]",
        ))  # fmt: skip
        return [f"{name} = [{part} for i in range({self.r.choice((3, 5, 9))}) for j in range(2)]"]

    def dict_loop(self, name: str) -> list[str]:
        target, source, item = self.source()
        return [
            f"{name} = {{}}",
            f"for {target} in {source}:",
            f"    {name}[{self.key(item)}] = {self.value(item)}",
        ]

    def guarded_loop(self, name: str) -> list[str]:
        target, source, item = self.source()
        return [
            f"{name} = []",
            "try:",
            f"    for {target} in {source}:",
            f"        {name}.append({self.value(item)})",
            "except (ValueError, KeyError, ZeroDivisionError, TypeError) as error:",
            f"    {name} = ({name}, str(error))",
        ]

    def early(self, name: str) -> list[str]:
        target, source, item = self.source()
        return [
            f"{name} = []",
            f"for {target} in {source}:",
            f"    if {self.condition(item)}:",
            "        break",
            f"    {name}.append({self.value(item)})",
        ]

    def while_loop(self, name: str) -> list[str]:
        return [
            f"{name} = []",
            "count = 0",
            "while count < 3:",
            "    count += 1",
            f"    {name}.append([{self.value(self.of('x'))} for x in xs])",
        ]

    def nested_scope(self, name: str) -> list[str]:
        inner = self.fresh("f")
        return [
            f"def {inner}(v):",
            f"    return {self.value(self.of('v'))}",
            f"{name} = [{inner}(x) for x in xs]",
        ]

    def independent(self, name: str) -> list[str]:
        a, b = self.fresh("a"), self.fresh("b")
        calls = ["wait(k)", "wait(2.5)", "pure(k)", "box.move(k)", "wait(box.shift)", "wait_and_fail(k)"]
        if self.effects == "any":
            calls += ["log(k)", "box.count(1)", f"wait({a})"]
        return [f"{a} = wait(1.5)", f"{b} = {self.r.choice(calls)}", f"{name} = ({a}, {b})"]

    # Expressions.

    def value(self, item: str, depth: int = 0) -> str:
        value = self.plain_value(item, depth)
        chance = self.r.random()
        if depth == 0 and self.effects == "waiting" and chance < 0.6:
            return (
                f"{self.r.choice(('wait', 'wait', 'wait', 'wait_and_fail'))}({value})"
                if chance < 0.5
                else value
            )
        if depth == 0 and self.effects == "any" and chance < 0.5:
            return f"{self.r.choice(('log', 'say', 'box.count', 'rescale', 'remember', 'wait'))}({value})"
        return value

    def plain_value(self, item: str, depth: int) -> str:
        if self.kind == "text":
            forms = (
                "{0}.upper()",
                "{0} + '!'",
                "len({0})",
                "{0}[0]",
                "f'<{{{0}}}>'",
                "{0} * 2",
                "{0}.split('e')",
            )
            return self.r.choice(forms).replace("{{", "{").replace("}}", "}").replace("{0}", item)
        if self.kind in ARRAYS:
            return self.array(item, depth)
        if self.r.random() < 0.1:
            return f"({self.number(item)}, {self.number(item)})"
        return self.number(item)

    def array(self, item: str, depth: int) -> str:
        a = item if depth > 1 or self.r.random() < 0.5 else self.array(item, depth + 1)
        forms = [
            f"{a} * 2.0", f"({a} - {item}.mean())", f"np.exp({a} / 10)", f"softmax({item})",
            f"centred({item})",
            f"np.tanh({a})", f"({a} + k)", f"np.clip({item}, -1.0, 1.0)", f"np.sqrt(np.abs({item}))",
            f"({a} * SCALE)",
            f"np.where({item} > 0, {item}, 0.0)", f"pure({a})", f"np.maximum({item}, 0)", f"{item}.cumsum()",
            f"-({a})", f"({item} / 3)", f"np.zeros_like({item})", f"{item}.copy()", f"np.diff({item})",
            f"np.sort({a})", f"np.roll({item}, 1)", f"np.convolve({item}, WEIGHTS[:2], mode='same')",
            f"np.round({a}, 1)", f"{item}[np.argsort({item})]", f"np.cumprod({a})", f"{item}[[1, 0]]",
            f"({item} ** 2)", f"({item} ** 0.5)", f"np.array([{item}[0], {item}.sum(), 1.0])",
            f"np.concatenate([{item}, WEIGHTS])", f"(MATRIX @ {item})", f"np.floor({a})",
            f"np.abs(np.fft.rfft({item}))",
        ]  # fmt: skip
        if depth == 0:
            forms += [
                f"float({item} @ WEIGHTS)", f"{item}.sum()", f"{item}[0]", f"{item}.argmax()",
                f"{item}.max()",
                f"({item}.mean(), {item}.std())", f"np.linalg.norm({item})", f"len({item})",
                f"{item}.tolist()",
                f"{item}", f"{item}[1:]", f"first_two({item})", f"float({item}[1])", f"{item}.shape",
                f"({item} if {item}[0] > 0 else {item} * 2)", f"{{'m': {item}.mean(), 's': {item} + 1}}",
                f"[{item}.min(), {item}.max()]", f"np.histogram({item}, bins=4, range=(-2.0, 2.0))[0]",
                f"np.percentile({item}, [25, 75])", f"float(np.median({item}))", f"int(({item} > 0.0).sum())",
                f"np.linalg.det(np.outer({item}, {item}) + np.eye(4))", f"np.stack([{item}, {item} * 2.0])",
                f"np.linalg.solve(np.outer({item}, {item}) + np.eye(4), {item})", f"sum({item})",
                f"max({item})",
                f"[v * 2 for v in {item}]", f"bool((MATRIX @ {item}).max() > 0.5)",
                f"round(float({item}[0]), 2)",
                f"WEIGHTS[int({item}.argmax())]", f"np.take_along_axis({item}, np.argsort({item}), 0)",
                f"(np.linalg.norm({item}) > 2.0, {item}.var(ddof=1))", f"np.searchsorted(WEIGHTS, {item})",
            ]  # fmt: skip
            if self.effects == "any":
                forms += [f"spoil({item})"]
        return self.r.choice(forms)

    def number(self, item: str, depth: int = 0) -> str:
        if self.kind in ARRAYS:
            return self.r.choice(
                (
                    f"float({item}[0])",
                    f"{item}.sum()",
                    f"{item}.max()",
                    f"float({item} @ WEIGHTS)",
                    f"(MATRIX @ {item}).max()",
                    f"float(np.diff({item}).mean())",
                    f"int({item}.argmin())",
                )
            )
        if self.kind == "text":
            return f"len({item})"
        if depth > 2:
            return item
        a, b = self.number(item, depth + 1), self.r.choice((item, "2", "0.5", "k", "3", "SCALE"))
        forms = [
            f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} / ({item} * {item} + 1))",
            f"abs({a})", f"-({a})",
            f"pure({a})", f"branchy({item})", f"looping({item})", f"max({a}, {b})", f"min({item}, 2)",
            f"({a} if {item} > 1 else {b})", f"math.sqrt(abs({a}))", f"box.move({item})", f"box({a})",
            f"scaled({a})",
            f"({a} % 7)", f"({item} ** 2)", f"int({item})", f"float({a})", f"pure_two({item})", f"({a} // 2)",
            f"round({item})", f"guarded({item})", f"bare_except({item})", f"TABLE['a'] * {item}", item,
        ]  # fmt: skip
        if self.r.random() < 0.04:
            forms = [f"picky({item})", f"(1 / {item})", f"[0, 1][{item}]", f"TABLE[{item}]"]
        return self.r.choice(forms)

    def key(self, item: str) -> str:
        return item if self.kind in ("float", "int", "text", "range") else self.number(item)

    def condition(self, item: str) -> str:
        if self.kind in ARRAYS:
            return self.r.choice(
                (f"{item}[0] > 0", f"{item}.sum() > 0.3", f"len({item}) > 2", f"(MATRIX @ {item})[0] > 0")
            )
        if self.kind == "text":
            return self.r.choice((f"len({item}) > 3", f"{item}.startswith('a')", f"'e' in {item}"))
        forms = (
            f"{item} > 1",
            f"{item} != 2",
            f"0 < {item} < 3",
            f"{item} > 0 and {item} < 4",
            f"not {item} < 1",
        )
        return self.r.choice(forms)


def arguments(program: Program) -> tuple[Any, ...]:
    """Fresh arguments: the same numbers for the same program."""
    r = np.random.default_rng(program.seed)
    n = program.n
    numbers = [round(float(v), 2) for v in r.normal(size=n) * 2]
    whole = [int(v) for v in r.integers(-4, 6, size=n)]
    items: dict[str, Any] = {
        "float": numbers,
        "int": whole,
        "array": list(r.normal(size=(n, 4))),
        "matrix": r.normal(size=(n, 4)),
        "ragged": [r.normal(size=2 + i % 3) for i in range(n)],
        "text": [("apple", "bee", "e", "tree")[i % 4] + str(i) for i in range(n)],
        "pairs": list(zip(numbers, whole, strict=True)),
        "mixed": [(1, 2.5, True)[i % 3] for i in range(n)],
        "odd": [world.Odd(v) for v in numbers],
        "range": range(n),
        "records": [world.RungCosts(v, row) for v, row in zip(numbers, r.normal(size=(n, 4)), strict=True)],
        "named": [world.Named(v, row) for v, row in zip(numbers, r.normal(size=(n, 4)), strict=True)],
        "dicts": [{"value": v, "row": row} for v, row in zip(numbers, r.normal(size=(n, 4)), strict=True)],
    }
    return items[program.kind], list(reversed(whole)), 1.25, world.Box(0.5)


def build(program: Program) -> types.FunctionType:
    """The program as a function with a source text."""
    filename = f"<fuzz {program.seed}>"
    linecache.cache[filename] = (len(program.text), None, program.text.splitlines(True), filename)
    space = world.__dict__
    local: dict[str, Any] = {}
    exec(compile(program.text, filename, "exec"), space, local)
    return local["program"]


@dataclass
class Outcome:
    program: Program
    difference: str = ""
    rungs: set[str] = field(default_factory=set)


def run(seed: int) -> Outcome:
    """Make the program of a seed, call it three times plainly and three times jitted, and compare."""
    program = Writer(seed).program()
    outcome = Outcome(program)
    plain = build(program)
    fast = jit(plain, config=Config(measure=program.measure))
    try:
        expected, got = _three(program, plain), _three(program, fast)
        for one, two in zip(expected, got, strict=True):
            started = "wait_and_fail" in program.text and any("threads" in c for c in fast.stats().values())
            if started and not Counter(one.warned) - Counter(two.warned):
                two.warned = one.warned  # where an item fails, later ones may have started, and warn too
            oracle.compare(one, two, rtol=RTOL)
    except oracle.ResultsDiffer as difference:
        outcome.difference = str(difference)
    finally:
        linecache.cache.pop(f"<fuzz {program.seed}>", None)
    outcome.rungs = {rung for counts in fast.stats().values() for rung in counts if rung != "plain"}
    return outcome


def _three(program: Program, function: Any) -> list[oracle.Observed]:
    world.reset()
    seen = []
    for i in range(3):
        first, *rest = arguments(program)
        turned = [*first[i:], *first[:i]] if type(first) is list else first  # other items first, other ways
        given = (turned, *rest)
        seen.append(oracle.observe(function, given))
        seen[-1].world = (list(world.LOG), world.SCALE, vars(given[3]).copy())
    return seen
