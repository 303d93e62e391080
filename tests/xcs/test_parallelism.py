"""The graph, what is read off it, and the strategies: each on the path that runs."""

import ast
import dataclasses
import inspect
import textwrap
import time

import numpy as np
import pytest
import torch

from wide_compiler.xcs import (
    AdaptiveStrategy,
    Config,
    ExecutionStrategy,
    GraphParallelismAnalyzer,
    IRGraph,
    IRNode,
    Miss,
    ParallelismAnalyzer,
    ParallelismInfo,
    ParallelStrategy,
    SequentialStrategy,
    StrategySelector,
    VectorizedStrategy,
    comparison,
    graph_of,
    jit,
    module,
    parallelism,
)

from . import spec_003

NOW = Config(measure=False)


@module
class TextEncoder:
    model: object
    max_length: int = 512

    def __call__(self, text: str) -> float:
        return float(len(text[: self.max_length]))


@module
class Scorer:
    weights: np.ndarray
    bias: float = 0.0

    def __call__(self, embedding: np.ndarray) -> float:
        return float(embedding @ self.weights + self.bias)


def waits(x):
    time.sleep(0.001)
    return x


def prints(x):
    print(x)


def test_operators():
    analyze = ParallelismAnalyzer().analyze_operator
    scorer = analyze(Scorer(np.ones(3)))
    assert scorer.can_vmap and scorer.can_batch and scorer.data_parallel_axes == {"embedding"}
    encoder = analyze(TextEncoder(None))
    assert not encoder.can_vmap and encoder.can_parallelize and encoder.data_parallel_axes == {"text"}
    assert analyze(waits) == ParallelismInfo(False, False, True, True, {"x"})
    assert analyze(prints) == ParallelismInfo() == analyze(print)
    assert analyze(torch.nn.Linear(2, 2)).can_vmap


class Model:
    def __init__(self):
        self.weights = np.ones(3)

    def score(self, row):
        return row @ self.weights


@pytest.mark.parametrize(
    "operator",
    [
        torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()),
        Model().score, len, abs, np.sin, np.add, torch.relu,
    ],
)  # fmt: skip
def test_operators_that_jit_would_vectorise(operator):
    assert ParallelismAnalyzer().analyze_operator(operator).can_vmap


def test_operators_by_their_annotations():
    def plain(xs: list):
        return [x + 1 for x in xs]

    def typed(xs: list[float]):
        return [x + 1 for x in xs]

    def either(x: float | None):
        return x

    def named(x, *, scale):
        return x * scale

    analyze = ParallelismAnalyzer().analyze_operator
    assert analyze(typed) == ParallelismInfo(False, True, True, True, {"xs"})
    assert not analyze(either).can_vmap and analyze(either).can_parallelize
    assert analyze(named).can_vmap and analyze(named).data_parallel_axes == {"x", "scale"}
    assert analyze(plain) == ParallelismInfo() and "is unknown" in analyze(plain).reason


@pytest.mark.parametrize("operator", [3, "x", ast.parse("a = f(b)").body[0]])
def test_what_is_not_called_says_so(operator):
    info = ParallelismAnalyzer().analyze_operator(operator)
    assert info == ParallelismInfo() and "is not callable" in info.reason


def test_info_has_the_fields_and_is_frozen():
    info = ParallelismInfo()
    assert (info.can_vmap, info.can_pmap, info.can_batch, info.can_parallelize) == (False,) * 4
    assert info.data_parallel_axes == set() == ParallelismInfo(data_parallel_axes=None).data_parallel_axes
    with pytest.raises(AttributeError):
        info.can_vmap = True


def test_a_graph_by_hand():
    graph = IRGraph()
    graph.add(IRNode("x", None))
    graph.add(IRNode("a", Scorer(np.ones(2)), ["x"]))
    graph.add(IRNode("b", waits, ["x"]))
    graph.add(IRNode("c", waits, ["a"]))
    assert graph.edges["x"] == {"a", "b"} and graph.nodes["a"].inputs == ["x"]
    infos = GraphParallelismAnalyzer().analyze_graph(graph)
    assert infos["x"].can_parallelize  # a and b read the same x, and do not depend on each other
    assert graph.independent("a", "b") and not graph.independent("a", "c")


def test_a_graph_refuses_what_it_does_not_know():
    graph = IRGraph()
    graph.add(IRNode("x", None))
    with pytest.raises(ValueError, match="'y', which must be added before"):
        graph.add(IRNode("a", waits, ["y"]))
    with pytest.raises(ValueError, match="already"):
        graph.add(IRNode("x", None))
    with pytest.raises(ValueError, match="'q', which is no node of the graph"):
        StrategySelector().select_strategy({"q": ParallelismInfo()}, graph)


def test_a_graph_of_a_function():
    def function(x, y):
        a = x + 1
        b = print(a)
        c = y * 2
        d = print(c, b)
        return d

    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    graph = graph_of(tree.body[0].body)
    lines = list(graph.nodes)
    assert graph.nodes[lines[0]].inputs == [] and graph.nodes[lines[1]].inputs == [lines[0]]
    assert graph.independent(lines[0], lines[2]) and not graph.independent(lines[1], lines[3])


def test_selection():
    graph = IRGraph()
    graph.add(IRNode("body", waits))

    def chosen(**facts):
        return type(StrategySelector().select_strategy({"body": ParallelismInfo(**facts)}, graph))

    assert chosen() is SequentialStrategy
    assert chosen(can_vmap=True, can_parallelize=True) is VectorizedStrategy
    assert chosen(can_parallelize=True) is ParallelStrategy
    assert chosen(can_vmap=True, can_pmap=True) is AdaptiveStrategy


def doubled(xs):
    return [x * 2.0 for x in xs]


def waited(xs):
    return [waits(x) for x in xs]


def printed(xs):
    return [x.upper() for x in xs]


@pytest.mark.parametrize(
    "strategy, function, items",
    [
        (AdaptiveStrategy, doubled, [1.0, 2.0]),
        (ParallelStrategy, waited, [1.0, 2.0]),
        (ParallelStrategy, printed, ["a", "b"]),
    ],
)
def test_each_strategy_runs_what_it_is_selected_for(monkeypatch, strategy, function, items):
    monkeypatch.setattr(strategy, "run", lambda self, work: ["replaced"] * work.items.n)
    assert jit(function, config=NOW)(items) == ["replaced", "replaced"]


def strategy_of(fast):
    return type(fast.__xcs__.sites[0].plans[0].strategy)


def test_vectorized_and_sequential_run_where_nothing_else_is_possible(monkeypatch):
    monkeypatch.setattr(parallelism, "cores", lambda: 1)
    fast = jit(doubled, config=NOW)
    assert fast([1.0, 2.0]) == [2.0, 4.0] and strategy_of(fast) is VectorizedStrategy
    monkeypatch.setattr(
        ParallelismAnalyzer, "analyze_operator", lambda self, op: ParallelismInfo(can_batch=True)
    )
    monkeypatch.setattr(SequentialStrategy, "run", lambda self, work: ["sequential"] * work.items.n)
    assert jit(doubled, config=NOW)([1.0, 2.0]) == ["sequential", "sequential"]


def test_the_analyzers_and_the_selector_are_asked(monkeypatch):
    class Mine(ExecutionStrategy):
        name = "mine"

        def run(self, work):
            return [work.items.row(i)[0] + 100.0 for i in range(work.items.n)]

    monkeypatch.setattr(StrategySelector, "select_strategy", lambda self, infos, graph: Mine())
    assert jit(doubled, config=NOW)([1.0, 2.0]) == [101.0, 102.0]
    monkeypatch.undo()
    asked = []
    real = GraphParallelismAnalyzer.analyze_graph

    def note(self, graph):
        asked.append(sorted(graph.nodes))
        return real(self, graph)

    monkeypatch.setattr(GraphParallelismAnalyzer, "analyze_graph", note)
    jit(doubled, config=NOW)([1.0, 2.0])
    assert asked == [["body"]]


def together(a, b):
    first = waits(a)
    second = waits(b)
    return first, second


def test_independent_statements_go_by_the_graph_and_the_strategy(monkeypatch):
    asked = []
    monkeypatch.setattr(ParallelStrategy, "run", lambda self, work: asked.append(work.items.n) or Miss())
    assert jit(together, config=NOW)(1, 2) == (1, 2) and asked == [2]
    monkeypatch.undo()
    fast = jit(together, config=NOW)
    assert fast(1, 2) == (1, 2) and next(iter(fast.stats().values())) == {"threads": 1}
    # By the graph alone: branches that depend on each other run as written.
    monkeypatch.setattr(IRGraph, "independent", lambda self, a, b: False)
    fast = jit(together, config=NOW)
    assert fast(1, 2) == (1, 2) and next(iter(fast.stats().values())) == {"plain": 1}
    assert "depends on another" in str(fast.explain())


def test_which_statements_are_independent_is_read_off_a_graph(monkeypatch):
    from wide_compiler.xcs.text import sites

    def one_after_another(statements):
        graph = graph_of(statements)
        for node in list(graph.nodes.values())[1:]:
            node.inputs = ["something before"]
        return graph

    def both(a, b):
        first = waits(a)
        second = waits(b)
        return second, first

    monkeypatch.setattr(sites, "graph_of", one_after_another)
    assert jit(both).explain().rows == []


class Own(ExecutionStrategy):
    name = "own"
    values = (7.0, 8.0)

    def run(self, work):
        return list(self.values)


def selecting(monkeypatch, strategy):
    monkeypatch.setattr(StrategySelector, "select_strategy", lambda self, infos, graph: strategy)
    return jit(doubled, config=NOW)


def test_a_strategy_of_ones_own_is_counted_and_named(monkeypatch):
    fast = selecting(monkeypatch, Own())
    assert fast([1.0, 2.0]) == [7.0, 8.0]
    assert next(iter(fast.stats().values())) == {"own": 1} and "own (1 call)" in str(fast.explain())


@pytest.mark.parametrize(
    ("strategy", "error", "says"),
    [
        (type("Short", (Own,), {"values": ()})(), ValueError, "'own' must return a list of 2 values"),
        (type("Lazy", (ExecutionStrategy,), {})(), NotImplementedError, r"Lazy must define run\(work\)"),
        ("parallel", TypeError, "must return an ExecutionStrategy, got 'parallel'"),
    ],
)
def test_strategies_that_are_none_say_so(monkeypatch, strategy, error, says):
    fast = selecting(monkeypatch, strategy)
    with pytest.raises(error, match=says):
        fast([1.0, 2.0])
    fast.explain()


class Careful(StrategySelector):
    def select_strategy(self, parallelism_map, ir_graph):
        chosen = super().select_strategy(parallelism_map, ir_graph)
        return SequentialStrategy() if isinstance(chosen, AdaptiveStrategy) else chosen


def test_a_selector_of_ones_own_by_config():
    given = [1.0, 2.0]
    for config, strategy in (
        (NOW, AdaptiveStrategy),
        (Config(measure=False, selector=Careful()), SequentialStrategy),
    ):
        fast = jit(doubled, config=config)
        assert fast(given) == doubled(given)
        assert strategy_of(fast) is strategy
    with pytest.raises(TypeError, match="select_strategy"):
        Config(selector=3)


def scored(rows):
    scorer = Scorer(np.ones(3))
    return [scorer(row) for row in rows]


def upper(texts):
    return [text.upper() for text in texts]


ROWS = list(np.random.default_rng(0).normal(size=(20, 3)))


@pytest.mark.parametrize(
    ("function", "items", "strategy", "rung"),
    [
        (scored, ROWS, VectorizedStrategy, "numpy lanes"),
        (doubled, ROWS, VectorizedStrategy, "numpy lanes"),
        (doubled, list(torch.ones(4, 3)), VectorizedStrategy, "torch vmap"),
        (waited, [1.0, 2.0], ParallelStrategy, "threads"),
        (upper, ["a", "b"], ParallelStrategy, "plain"),
    ],
)
def test_the_selector_of_the_document_decides_as_it_says(function, items, strategy, rung):
    fast = jit(function, config=Config(measure=False, selector=spec_003.StrategySelector()))
    assert comparison.same(fast(items), function(items), rtol=1e-9)
    assert strategy_of(fast) is strategy and list(fast.stats().values())[-1] == {rung: 1}


def test_the_selector_of_the_document_overlaps_statements():
    fast = jit(together, config=Config(measure=False, selector=spec_003.StrategySelector()))
    assert fast(1, 2) == (1, 2) and next(iter(fast.stats().values())) == {"threads": 1}


GIVEN = {
    "operators": lambda: spec_003.ParallelismAnalyzer(),
    "graphs": lambda: spec_003.GraphParallelismAnalyzer(),
    "ours, subclassed": lambda: type("Mine", (ParallelismAnalyzer,), {})(),
}


@pytest.mark.parametrize("make", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("selector", [None, spec_003.StrategySelector()])
def test_the_analyzer_of_the_document_sees_modules(make, selector):
    """It says of every module that it can be vectorised, and of other functions nothing."""
    fast = jit(scored, config=Config(measure=False, analyzer=make(), selector=selector))
    assert comparison.same(fast(ROWS), scored(ROWS), rtol=1e-9)
    assert strategy_of(fast) in (AdaptiveStrategy, VectorizedStrategy)
    assert next(iter(fast.stats().values())) == {"numpy lanes": 1}


def test_the_analyzer_of_the_document_leaves_other_functions_in_the_loop():
    fast = jit(doubled, config=Config(measure=False, analyzer=spec_003.GraphParallelismAnalyzer()))
    assert comparison.same(fast(ROWS), doubled(ROWS)) and strategy_of(fast) is SequentialStrategy
    assert next(iter(fast.stats().values())) == {"plain": 1}
    assert "Config.analyzer or Config.selector" in str(fast.explain())
    fast = jit(together, config=Config(measure=False, analyzer=spec_003.GraphParallelismAnalyzer()))
    assert fast(1, 2) == (1, 2) and "can_parallelize=False" in str(fast.explain())


def test_an_analyzer_may_forbid_but_not_permit():
    class Bold:
        """Everything may be done with everything."""

        def analyze_operator(self, operator):
            return ParallelismInfo(True, True, True, True, {"x"})

    def loud(xs):
        return [seen.append(x) for x in xs]

    seen = []
    for function, items in ((loud, [1, 2]), (waited, [1.0, 2.0])):
        fast = jit(function, config=Config(measure=False, analyzer=Bold()))
        assert fast(items) == function(items)
        assert not {"numpy lanes", "processes"} & {r for c in fast.stats().values() for r in c}
    assert seen == [1, 2, 1, 2]
    for fact in ("can_vmap", "can_batch"):
        shy = type("Shy", (Bold,), {"analyze_operator": lambda s, op, f=fact: without(Bold(), op, f)})()
        fast = jit(doubled, config=Config(measure=False, analyzer=shy))
        assert comparison.same(fast(ROWS), doubled(ROWS)) and next(iter(fast.stats().values())) == {
            "plain": 1
        }
    with pytest.raises(TypeError, match="analyze_graph or analyze_operator"):
        Config(analyzer=3)


def without(analyzer, operator, fact):
    return dataclasses.replace(analyzer.analyze_operator(operator), **{fact: False})


def test_what_is_mapped_is_what_differs_from_item_to_item():
    def weighted(rows, names, scale):
        return [(row * scale).sum() for i, (name, row) in enumerate(zip(names, rows, strict=True))]

    def repeated(rows):
        return [np.arange(3.0).sum() for row in rows]

    fast = jit(weighted, config=NOW)
    names = ["a"] * len(ROWS)
    assert comparison.same(fast(ROWS, names, 2.0), weighted(ROWS, names, 2.0), rtol=1e-9)
    fast2 = jit(repeated, config=NOW)
    assert comparison.same(fast2(ROWS), repeated(ROWS), rtol=1e-9)
    infos = [f.__xcs__.sites[0].plans[0].info for f in (fast, fast2)]
    assert infos[0].data_parallel_axes == {"row"} and infos[0].can_vmap
    assert infos[1].data_parallel_axes == set() and not infos[1].can_vmap  # nothing to put on an axis


def test_a_strategy_may_leave_the_items_to_the_text(monkeypatch):
    fast = selecting(monkeypatch, type("Lazy", (Own,), {"run": lambda self, work: Miss()})())
    assert fast([1.0, 2.0]) == [2.0, 4.0] and next(iter(fast.stats().values())) == {"plain": 1}
