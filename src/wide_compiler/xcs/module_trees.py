"""Trees of modules: how an object comes apart into leaves and structure, told to PyTorch and to JAX."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from torch.utils import _pytree

from ..errors import ArgumentError, WrongTypeError
from .statics import Statics, dumpable, loaded

_newest: dict[str, type] = {}  # the class that a name stands for in a file


class ModuleTree:
    """Takes objects of one class apart and puts them together again."""

    def __init__(self, kind: type, moving: tuple[str, ...], fixed: tuple[str, ...]):
        self.kind, self.moving, self.fixed = kind, moving, fixed
        self.name = f"{kind.__module__}.{kind.__qualname__}"

    def flatten(self, value: Any) -> tuple[list[Any], Statics]:
        return [getattr(value, n) for n in self.moving], Statics([getattr(value, n) for n in self.fixed])

    def unflatten(self, leaves: Any, structure: Any) -> Any:
        leaves, structure = list(leaves), tuple(structure)
        self._check("leaves", self.moving, leaves)
        self._check("static fields", self.fixed, structure)
        new: Any = object.__new__(self.kind)
        for name, held in zip((*self.moving, *self.fixed), (*leaves, *structure), strict=True):
            object.__setattr__(new, name, held)
        return new

    def _check(self, what: str, names: tuple[str, ...], given: Any) -> None:
        if len(given) != len(names):
            listed = f" ({', '.join(names)})" if names else ""
            raise ArgumentError(f"{self.kind.__qualname__} has {len(names)} {what}{listed}, got {len(given)}")

    def with_keys(self, key: Callable[[str], Any]) -> Callable[[Any], tuple[list[tuple[Any, Any]], Statics]]:
        """Like `flatten`, with the path to each leaf: by the name of its field."""
        keys = [key(name) for name in self.moving]

        def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Statics]:
            leaves, structure = self.flatten(value)
            return list(zip(keys, leaves, strict=True)), structure

        return flatten_with_keys

    def dump(self, structure: Statics) -> list[Any]:
        """The static fields for a file that `torch.export.save` writes."""
        if _newest[self.name] is not self.kind:
            raise WrongTypeError(
                f"{self.name} has been defined again, and a file would mean the newer class: make the object "
                f"from that one, or give the classes different names"
            )
        written = []
        for name, held in zip(self.fixed, structure, strict=True):
            try:
                written.append(dumpable(held))
            except TypeError as reason:
                raise WrongTypeError(
                    f"static field {name!r} of {self.name}: {reason}. Hold numbers, texts, None, or lists, "
                    f"tuples and dicts of them in it, or make it a field that is not static"
                ) from None
        return written

    def register(self) -> None:
        """Make the class known to PyTorch, and to JAX where it is installed. A class that is defined again
        under its name takes the name over, as it does in Python."""
        _newest[self.name] = self.kind
        _pytree.register_pytree_node(
            self.kind,
            self.flatten,
            self.unflatten,
            serialized_type_name=self.name,
            to_dumpable_context=self.dump,
            from_dumpable_context=lambda written: Statics([loaded(held) for held in written]),
            flatten_with_keys_fn=self.with_keys(_pytree.GetAttrKey),
        )
        if importlib.util.find_spec("jax") is not None:
            tree_util = importlib.import_module("jax").tree_util
            tree_util.register_pytree_with_keys(
                self.kind,
                self.with_keys(tree_util.GetAttrKey),
                lambda structure, leaves: self.unflatten(leaves, structure),
                self.flatten,
            )
