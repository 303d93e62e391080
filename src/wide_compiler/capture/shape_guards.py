"""Input shapes for which a captured graph is valid: symbols, ranges and guards of the export."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sympy

_SIZES = (2, 3, 4, 5, 7, 16, 17, 64, 100, 513, 1000, 4097, 65536, 100003)


@dataclass
class ShapeGuards:
    """`dims[i][d]` is the captured size of input i in dim d: an int or a sympy expression of symbols."""

    dims: list[tuple[Any, ...]]
    ranges: dict["sympy.Symbol", tuple[int, int | None]] = field(default_factory=dict)
    conditions: list[Any] = field(default_factory=list)

    @classmethod
    def from_export(cls, fake_inputs: Sequence[Any], exported: Any) -> "ShapeGuards":
        dims = [tuple(_expression(size) for size in fake.shape) for fake in fake_inputs]
        sizes = {size for shape in dims for size in shape if not isinstance(size, int)}
        symbols = {symbol for size in sizes for symbol in size.free_symbols}
        ranges = {
            symbol: (_bound(found.lower), _bound(found.upper))
            for symbol, found in exported.range_constraints.items()
            if symbol in symbols  # others are numbers that were read from tensors
        }
        conditions: list[Any] = []
        for fake in fake_inputs:
            env = getattr(getattr(fake, "fake_mode", None), "shape_env", None)
            if env is not None:
                conditions = [guard.expr.xreplace(env.replacements) for guard in env.guards]
                break
        return cls(dims, ranges, conditions)  # type: ignore[arg-type]

    def admit(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Return whether a capture at these per-lane shapes would give the same graph."""
        import sympy

        binding: dict[Any, int] = {}
        for expected, shape in zip(self.dims, shapes, strict=True):
            if len(expected) != len(shape):
                return False
            for dim, size in zip(expected, shape, strict=True):
                if isinstance(dim, sympy.Symbol) and binding.setdefault(dim, size) != size:
                    return False
        for expected, shape in zip(self.dims, shapes, strict=True):
            for dim, size in zip(expected, shape, strict=True):
                value = dim.xreplace(binding) if isinstance(dim, sympy.Basic) else dim
                if value != size:
                    return False
        return self._holds(binding)

    def any_batch(self) -> bool:
        """Return whether dim 0 of every input is free; tested with small, large, odd and even sizes."""
        import sympy

        if not all(dims and isinstance(dims[0], sympy.Symbol) for dims in self.dims):
            return False
        symbols = {dims[0] for dims in self.dims}
        rest = [d for dims in self.dims for d in dims[1:] if isinstance(d, sympy.Basic)]
        if any(d.free_symbols & symbols for d in rest):
            return False
        return all(self._holds(dict.fromkeys(symbols, size)) for size in _SIZES)

    def _holds(self, binding: dict[Any, int]) -> bool:
        """Return whether sizes lie in the ranges and fulfil the conditions."""
        import sympy

        for symbol, (low, high) in self.ranges.items():
            size = binding.get(symbol)
            if size is not None and (size < (low or 0) or (high is not None and size > high)):
                return False
        integers = {symbol: sympy.Integer(size) for symbol, size in binding.items()}
        for condition in self.conditions:
            if condition.free_symbols - integers.keys():
                continue  # a symbol of no input: specialised to a number, which was checked above
            if condition.xreplace(integers) == sympy.false:
                return False
        return True


def _expression(size: Any) -> Any:
    if isinstance(size, int):
        return size
    expr = size.node.expr
    return int(expr) if expr.is_number else expr


def _bound(value: Any) -> int | None:
    return int(value) if value.is_finite and value < 2**62 else None
