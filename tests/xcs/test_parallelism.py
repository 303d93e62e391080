"""The graph, what is read off it, and the strategies: each on the path that runs."""

import ast
import inspect
import textwrap
import time

import numpy as np
import pytest
import torch

from wide_compiler.xcs import (
    AdaptiveStrategy,
    Config,
    Effect,
    ExecutionStrategy,
    GraphParallelismAnalyzer,
    IRGraph,
    IRNode,
    ParallelismAnalyzer,
    ParallelismInfo,
    ParallelStrategy,
    SequentialStrategy,
    StrategySelector,
    VectorizedStrategy,
    graph_of,
    jit,
    module,
)
from wide_compiler.xcs import plan as plan_room

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
    assert analyze(waits) == ParallelismInfo(can_parallelize=True, data_parallel_axes={"x"})
    assert analyze(prints) == ParallelismInfo() == analyze(len)
    assert analyze(torch.nn.Linear(2, 2)).can_vmap


def test_info_has_the_fields_and_is_frozen():
    info = ParallelismInfo()
    assert (info.can_vmap, info.can_pmap, info.can_batch, info.can_parallelize) == (False,) * 4
    assert info.data_parallel_axes == set()
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
    graph.order("a", "b")
    assert not graph.independent("a", "b")


def test_a_graph_of_a_function():
    def function(x, y):
        a = x + 1
        b = print(a)
        c = y * 2
        d = print(c, b)
        return d

    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    graph = graph_of(tree.body[0].body, ["x", "y"])
    lines = [n for n in graph.nodes if n.startswith("line")]
    assert graph.nodes[lines[0]].inputs == ["x"]
    assert graph.nodes[lines[0]].effect is Effect.PURE
    assert graph.effects[lines[1]] == {lines[3]}
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


def test_vectorized_and_sequential_run_where_nothing_else_is_possible(monkeypatch):
    from wide_compiler.xcs import parallelism

    monkeypatch.setattr(parallelism, "cores", lambda: 1)
    fast = jit(doubled, config=NOW)
    assert fast([1.0, 2.0]) == [2.0, 4.0]
    assert isinstance(fast.__xcs__.sites[0].plans[0].strategy, VectorizedStrategy)
    monkeypatch.setattr(ParallelismAnalyzer, "analyze_operator", lambda self, operator: ParallelismInfo())
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

    monkeypatch.setattr(plan_room.GraphParallelismAnalyzer, "analyze_graph", note)
    jit(doubled, config=NOW)([1.0, 2.0])
    assert asked == [["body", "items"]]
