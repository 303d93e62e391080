"""Dependency graph of operations: an edge leads from a node to each node that reads its result."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..errors import ArgumentError
from .text.names import reads, stored


@dataclass
class IRNode:
    """One operation."""

    id: str
    operator: Any  # a function, a module, or an AST statement
    inputs: list[str] = field(default_factory=list)  # ids of the nodes whose results it reads
    proof: Any = None  # for a site of a jitted function: what is proven, a `parallelism.Proof`


@dataclass
class IRGraph:
    """A graph of operations. `edges[a]` holds the ids of the nodes that read the result of `a`."""

    nodes: dict[str, IRNode] = field(default_factory=dict)
    edges: dict[str, set[str]] = field(default_factory=dict)

    def add(self, node: IRNode) -> IRNode:
        """Add a node; the nodes that it reads must have been added before."""
        if node.id in self.nodes:
            raise ArgumentError(f"the graph has a node {node.id!r} already")
        missing = [source for source in node.inputs if source not in self.nodes]
        if missing:
            raise ArgumentError(f"{node.id!r} reads {missing[0]!r}, which must be added before it")
        self.nodes[node.id] = node
        self.edges.setdefault(node.id, set())
        for source in node.inputs:
            self.edges[source].add(node.id)
        return node

    def paths(self, start: str) -> set[str]:
        """Return the ids of all nodes that depend on `start`."""
        found: set[str] = set()
        new = self.edges[start]
        while new:
            found |= new
            new = set().union(*(self.edges[node] for node in new)) - found
        return found

    def independent(self, a: str, b: str) -> bool:
        """Return whether neither node depends on the other. Reading the same input is not a dependence."""
        return b not in self.paths(a) and a not in self.paths(b)


def graph_of(statements: Iterable[ast.stmt]) -> IRGraph:
    """Return the graph of a block: a node per statement, an edge where one reads another's result."""
    graph = IRGraph()
    maker: dict[str, str] = {}
    for statement in statements:
        node = IRNode(f"line {statement.lineno}", statement)
        while node.id in graph.nodes:
            node.id += "'"
        node.inputs = sorted({maker[name] for name in maker if reads(statement, name)})
        graph.add(node)
        maker |= dict.fromkeys(stored([statement]), node.id)
    return graph
