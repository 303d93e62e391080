"""The code of spec 003, pasted as it stands there: only the imports are of this library."""
# ruff: noqa
# fmt: off

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Set, Tuple
from wide_compiler.xcs import get_tree_functions


@dataclass(frozen=True)
class ParallelismInfo:
    """Information about parallelization opportunities."""
    can_vmap: bool = False          # Can be vectorized
    can_pmap: bool = False          # Can be parallelized across devices
    can_batch: bool = False         # Can process batches
    can_parallelize: bool = False   # Has independent branches
    data_parallel_axes: Set[str] = None  # Which axes can be parallelized

    def __post_init__(self):
        if self.data_parallel_axes is None:
            object.__setattr__(self, 'data_parallel_axes', set())


class ParallelismAnalyzer:
    """Discovers parallelism from operator structure."""

    def analyze_operator(self, operator: Any) -> ParallelismInfo:
        """Analyze a single operator for parallelism opportunities."""

        # Check if it's an EmberModule with pytree structure
        tree_fns = get_tree_functions(type(operator))
        if not tree_fns:
            # Regular function - limited parallelism info
            return self._analyze_function(operator)

        # It's a module - rich parallelism information available!
        return self._analyze_module(operator, tree_fns)

    def _analyze_module(self, module: Any, tree_fns: Tuple) -> ParallelismInfo:
        """Analyze EmberModule for parallelism."""
        flatten_fn, unflatten_fn = tree_fns

        # Flatten to understand structure
        flat_values, treedef = flatten_fn(module)

        # Analyze the flattened structure
        info = ParallelismInfo(
            can_vmap=True,  # Modules can always be vmapped
            can_batch=True,  # And batched
        )

        # Check for data parallel fields
        if hasattr(module, '__dataclass_fields__'):
            for field in module.__dataclass_fields__.values():
                if not field.metadata.get('static', False):
                    # Non-static fields can be parallelized
                    object.__setattr__(
                        info, 'data_parallel_axes',
                        info.data_parallel_axes | {field.name}
                    )

        # If module has array/tensor fields, it can be pmapped
        for value in flat_values:
            if self._is_array_like(value):
                object.__setattr__(info, 'can_pmap', True)
                break

        return info

    def _analyze_function(self, func: Any) -> ParallelismInfo:
        """Analyze regular function for parallelism."""
        # Limited info without structure
        return ParallelismInfo(
            can_batch=self._looks_batchable(func),
            can_parallelize=self._has_list_comprehension(func)
        )

    def _is_array_like(self, value: Any) -> bool:
        """Check if value is array/tensor-like."""
        return (
            hasattr(value, 'shape') or
            hasattr(value, '__array__') or
            type(value).__name__ in {'Tensor', 'Array', 'ndarray'}
        )

    def _looks_batchable(self, func: Any) -> bool:
        """Heuristic: does function look batchable?"""
        # Simple heuristic based on function signature
        import inspect
        sig = inspect.signature(func)
        # If it takes a single input, probably batchable
        return len(sig.parameters) == 1

    def _has_list_comprehension(self, func: Any) -> bool:
        """Check if function contains list comprehensions."""
        # This would use AST analysis in real implementation
        return False  # Simplified


class GraphParallelismAnalyzer:
    """Analyzes entire computation graphs for parallelism."""

    def __init__(self):
        self.op_analyzer = ParallelismAnalyzer()

    def analyze_graph(self, ir_graph: 'IRGraph') -> Dict[str, ParallelismInfo]:
        """Analyze entire graph for parallelism opportunities."""
        parallelism_map = {}

        for node_id, node in ir_graph.nodes.items():
            # Analyze individual operator
            op_info = self.op_analyzer.analyze_operator(node.operator)

            # Enhance with graph-level analysis
            graph_info = self._analyze_graph_context(node, ir_graph)

            # Combine insights
            combined_info = self._combine_parallelism_info(op_info, graph_info)
            parallelism_map[node_id] = combined_info

        return parallelism_map

    def _analyze_graph_context(self, node: 'IRNode', graph: 'IRGraph') -> ParallelismInfo:
        """Analyze parallelism from graph structure."""
        # Check for independent branches
        children = graph.edges.get(node.id, set())
        can_parallelize = self._has_independent_branches(children, graph)

        # Check for map patterns
        is_map_pattern = self._is_map_pattern(node, graph)

        return ParallelismInfo(
            can_parallelize=can_parallelize,
            can_vmap=is_map_pattern
        )

    def _has_independent_branches(self, children: Set[str], graph: 'IRGraph') -> bool:
        """Check if children can run in parallel."""
        if len(children) <= 1:
            return False

        # Check data dependencies between children
        child_inputs = []
        for child_id in children:
            child = graph.nodes[child_id]
            child_inputs.append(set(child.inputs))

        # Independent if no shared inputs
        for i, inputs1 in enumerate(child_inputs):
            for inputs2 in child_inputs[i+1:]:
                if inputs1 & inputs2:
                    return False
        return True

    def _is_map_pattern(self, node: 'IRNode', graph: 'IRGraph') -> bool:
        """Detect map-like patterns in graph."""
        # Look for patterns like [f(x) for x in xs]
        # This would be more sophisticated in practice
        return False

    def _combine_parallelism_info(self, op_info: ParallelismInfo,
                                  graph_info: ParallelismInfo) -> ParallelismInfo:
        """Combine operator and graph parallelism insights."""
        return ParallelismInfo(
            can_vmap=op_info.can_vmap or graph_info.can_vmap,
            can_pmap=op_info.can_pmap,
            can_batch=op_info.can_batch,
            can_parallelize=op_info.can_parallelize or graph_info.can_parallelize,
            data_parallel_axes=op_info.data_parallel_axes
        )


from wide_compiler.xcs import AdaptiveStrategy, ParallelStrategy, SequentialStrategy, VectorizedStrategy


class StrategySelector:
    """Selects execution strategy based on parallelism opportunities."""

    def select_strategy(self, parallelism_map: Dict[str, ParallelismInfo],
                       ir_graph: 'IRGraph') -> 'ExecutionStrategy':
        """Select optimal execution strategy."""

        # Count parallelism opportunities
        vmap_count = sum(1 for p in parallelism_map.values() if p.can_vmap)
        parallel_count = sum(1 for p in parallelism_map.values() if p.can_parallelize)

        # Smart selection based on graph characteristics
        if vmap_count > len(parallelism_map) * 0.5:
            # Many vectorizable ops - use vectorized strategy
            return VectorizedStrategy()
        elif parallel_count > len(parallelism_map) * 0.3:
            # Many parallel branches - use parallel strategy
            return ParallelStrategy()
        elif len(ir_graph.nodes) < 5:
            # Small graph - sequential is fine
            return SequentialStrategy()
        else:
            # Mixed workload - use adaptive strategy
            return AdaptiveStrategy()
