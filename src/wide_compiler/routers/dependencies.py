"""Which nodes of a captured graph wait for which, and an order in which groups of calls can run."""

import graphlib
import itertools
from collections.abc import Mapping, Sequence

from torch import fx

from ..capture.aliases import root_of, written_args


class Dependencies:
    """For each node the nodes that must come first: those it reads, and those that touch memory it writes."""

    def __init__(self, graph: fx.Graph):
        self.nodes = [node for node in graph.nodes if node.op != "output"]
        self.before: dict[fx.Node, set[fx.Node]] = {node: set(node.all_input_nodes) for node in self.nodes}
        touching: dict[fx.Node, list[fx.Node]] = {}
        last_write: dict[fx.Node, fx.Node] = {}
        for node in self.nodes:
            for root in {root_of(used) for used in node.all_input_nodes}:
                if root in last_write:
                    self.before[node].add(last_write[root])
                touching.setdefault(root, []).append(node)
            for root in {root_of(used) for used in written_args(node)}:
                self.before[node] |= {other for other in touching[root] if other is not node}
                last_write[root] = node

    def in_turn(self, nodes: Sequence[fx.Node]) -> None:
        """These nodes keep their order."""
        for first, second in itertools.pairwise(nodes):
            self.before[second].add(first)

    def levels(self, counted: set[fx.Node]) -> dict[fx.Node, int]:
        """For each counted node the length of the longest chain of counted nodes that ends in it.

        Nodes of one level never wait for each other, not even through groups of other nodes of one level.
        """
        depth: dict[fx.Node, int] = {}
        for node in self.nodes:
            depth[node] = max((depth[b] for b in self.before[node]), default=0) + (node in counted)
        return {node: depth[node] for node in counted}

    def order(self, group_of: Mapping[fx.Node, int]) -> list[list[fx.Node]]:
        """The nodes in an order that keeps all dependencies, each group as one entry."""
        unit_of: dict[fx.Node, list[fx.Node]] = {}
        groups: dict[int, list[fx.Node]] = {}
        for node in self.nodes:
            number = group_of.get(node)
            unit_of[node] = groups.setdefault(number, []) if number is not None else []
            unit_of[node].append(node)
        place = {node: i for i, node in enumerate(self.nodes)}
        first = {node: place[unit[0]] for node, unit in unit_of.items()}  # a unit is known by its first node
        units = {first[node]: unit for node, unit in unit_of.items()}
        waits = {
            number: {first[b] for node in unit for b in self.before[node]} - {number}
            for number, unit in units.items()
        }
        # Groups of one level cannot wait for each other, so there is no cycle.
        return [units[number] for number in graphlib.TopologicalSorter(waits).static_order()]
