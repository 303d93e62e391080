"""Python calls that become one opaque node of the captured graph.

Four kinds of callable are kept whole: a module with a wide builder registered by the user, a module that
`torch.export` cannot trace (a C extension, a branch on values), a custom `autograd.Function` (tracing into it
would lose its backward), and a PyTorch function that does not run on fake tensors (`ctc_loss`). Each call
becomes one node of a custom op. Its fake implementation runs the callable on fake tensors or, where that
fails, repeats the shapes of a real run.
"""

import contextlib
import enum
import functools
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import DynamicOutputShapeException, UnsupportedOperatorException
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from .. import _tree
from .failure import CaptureFailed
from .handlers import handling_frame


@dataclass
class OpaqueCall:
    """One call of a callable kept whole; `path` is its module's path, '' for a function."""

    path: str
    name: str
    function: Callable[..., Any]
    spec: _tree.TreeSpec
    statics: list[Any]  # leaves of (args, kwargs), with placeholders for tensors, sizes, numbers of tensors
    out_spec: _tree.TreeSpec | None = None
    out_statics: list[Any] = field(default_factory=list)
    why: str = ""
    number: int = 0  # number of earlier calls of the callable
    records: bool = True  # whether gradients were recorded at the call

    def run(
        self, function: Callable[..., Any], tensors: Sequence[Tensor], sizes: Sequence[int]
    ) -> list[Tensor]:
        """Call `function` with these tensors and sizes; return its tensor leaves."""
        args, kwargs = _tree.unflatten(self.leaves(tensors, sizes), self.spec)
        out_leaves, self.out_spec = _tree.flatten(function(*args, **kwargs))
        self.out_statics = [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in out_leaves]
        return [leaf for leaf in out_leaves if isinstance(leaf, Tensor)]

    def leaves(self, tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[Any]:
        """Return the leaves of (args, kwargs) with these tensors and sizes."""
        own, given_sizes = iter(tensors), iter(sizes)
        take = {
            _TENSOR: lambda: next(own),
            _NUMBER: lambda: next(own).item(),
            _SIZE: lambda: next(given_sizes),
        }
        return [take[leaf]() if isinstance(leaf, _Hole) else leaf for leaf in self.statics]

    def rebuild(self, tensors: list[Tensor]) -> Any:
        assert self.out_spec is not None
        given = iter(tensors)
        leaves = [next(given) if leaf is _TENSOR else leaf for leaf in self.out_statics]
        return _tree.unflatten(leaves, self.out_spec)


class _Hole(enum.Enum):
    TENSOR = enum.auto()
    SIZE = enum.auto()
    NUMBER = enum.auto()


_TENSOR, _SIZE, _NUMBER = _Hole
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_ABSENT = object()


@contextlib.contextmanager
def replaced(name: str, values: Iterable[tuple[Any, Any]]) -> Iterator[None]:
    """Set the attribute of this name on objects, and restore their own at the end.

    Args:
        values: (object, new value) pairs; a value may be computed from the old one.
    """
    before: list[tuple[Any, Any]] = []
    try:
        for owner, value in values:
            before.append((owner, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, own in before:
            if own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


class NeedsRealShapes(Exception):
    """An opaque callable fails on fake tensors; the capture must be repeated with real shapes."""


class Recorder:
    """Records the opaque calls of one capture, with real output shapes where needed."""

    current: "Recorder | None" = None

    def __init__(
        self,
        kept: dict[str, str],
        functions: Sequence[type] = (),
        real_shapes: dict[Any, Any] | None = None,
        suspects: Mapping[str, str] | None = None,
        torch_functions: Mapping[Any, str] | None = None,
    ):
        self.kept = kept  # module path -> why it is kept whole
        # Modules of a class that has failed to trace (path -> why); each call is tried on fake tensors first.
        self.suspects = {path: why for path, why in (suspects or {}).items() if path not in kept}
        self.counts: Counter[tuple[str, str]] = Counter()
        # (module, path) where a module's Python handles errors of a recorded call of `path`.
        self.handlers: list[tuple[Any, str]] = []
        self.functions = functions  # custom autograd functions that the model applies
        self.torch_functions = torch_functions or {}  # PyTorch functions kept whole -> why
        self.unsupported: Any = None  # another one, that has failed on fake tensors
        # By id: numbers that the forward has read from tensors (`item`), and those tensors.
        self.numbers: dict[int, tuple[Any, Tensor]] = {}
        self.thread = threading.get_ident()
        self.calls: list[OpaqueCall] = []
        self.real_shapes = real_shapes
        self.inside = 0

    @contextlib.contextmanager
    def active(self, model: nn.Module) -> Iterator["Recorder"]:
        """Make kept modules and custom autograd functions record their calls instead of running.

        PyTorch has no mode that intercepts `Function.apply`, so it is patched on the classes; other threads
        still get the original behaviour.
        """
        modules = {path: model.get_submodule(path) for path in (*self.kept, *self.suspects)}
        forwards = ((m, self._recording(p, type(m).__name__, m.forward)) for p, m in modules.items())
        applies = ((cls, self._apply_or_record(cls)) for cls in self.functions)
        previous, Recorder.current = Recorder.current, self
        try:
            with replaced("forward", forwards), replaced("apply", applies):
                yield self
        finally:
            Recorder.current = previous

    def _apply_or_record(self, function: type) -> Any:
        found: Any = inspect.getattr_static(function, "apply")  # in Python or (PyTorch 2.15) in C
        apply = getattr(found, "__func__", found)

        def patched(cls: type, *args: Any, **kwargs: Any) -> Any:
            original = functools.partial(apply, cls)
            if threading.get_ident() != self.thread or self.inside:
                return original(*args, **kwargs)
            if cls is CheckpointFunction:
                run, _preserve_rng, *operands = args
                return run(*operands)  # checkpointing changes memory use only; its ops are traced
            why = f"autograd function {cls.__name__} keeps its own backward"
            return self._record("", cls.__name__, original, why, args, kwargs)

        return classmethod(patched)

    def _recording(self, path: str, name: str, forward: Callable) -> Callable[..., Any]:
        @functools.wraps(forward)
        def recording(*args: Any, **kwargs: Any) -> Any:
            if self.inside:
                return forward(*args, **kwargs)
            if path in self.suspects and path not in self.kept and self._traceable(forward, args, kwargs):
                self.counts[path, name] += 1
                return forward(*args, **kwargs)
            why = self.kept.setdefault(path, self.suspects.get(path, ""))
            return self._record(path, name, forward, why, args, kwargs)

        return recording

    def _traceable(self, forward: Callable, args: tuple, kwargs: dict) -> bool:
        """Return whether it runs on fake tensors; tried with tracing disabled."""
        mode = detect_fake_mode(_tree.flatten((args, kwargs))[0])
        symbols = mode.shape_env.ignore_fresh_unbacked_symbols() if mode and mode.shape_env else None
        self.inside += 1
        try:
            with symbols or contextlib.nullcontext(), disable_proxy_modes_tracing():
                forward(*args, **kwargs)
            return True
        except Exception:
            return False
        finally:
            self.inside -= 1

    def _record(self, path: str, name: str, function: Callable, why: str, args: tuple, kwargs: dict) -> Any:
        leaves, spec = _tree.flatten((args, kwargs))
        tensors, sizes, statics = [], [], []
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                tensors.append(leaf)
                statics.append(_TENSOR)
            elif id(leaf) in self.numbers:
                tensors.append(self.numbers[id(leaf)][1])
                statics.append(_NUMBER)
            elif isinstance(leaf, torch.SymInt):
                sizes.append(leaf)
                statics.append(_SIZE)
            else:
                statics.append(leaf)
        handler = handling_frame(inspect.currentframe())
        if handler is not None:
            self.handlers.append((handler.f_locals.get("self"), path or name))
        number = self.counts[path, name]
        self.counts[path, name] += 1
        call = OpaqueCall(path, name, function, spec, statics, None, [], why, number, torch.is_grad_enabled())
        self.calls.append(call)
        outputs = torch.ops.wide_compiler.opaque(tensors, sizes, len(self.calls) - 1)
        for leaf in call.out_statics:
            if leaf is not _TENSOR and leaf is not None:
                raise CaptureFailed(
                    f"{path or name} returns the Python value {leaf!r}, which a graph would freeze"
                )
        return call.rebuild(list(outputs))

    def fake_outputs(self, tensors: list[Tensor], sizes: list[int], handle: int) -> list[Tensor]:
        call = self.calls[handle]
        if self.real_shapes is not None:
            shown, call.out_spec, call.out_statics = self.real_shapes[call.path, call.name, call.number]
            return [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in shown]
        self.inside += 1
        try:
            outputs = call.run(call.function, tensors, sizes)
            return [torch.empty_like(out) for out in outputs]
        except Exception as error:
            raise NeedsRealShapes(f"{call.path or call.name}: {error}") from error
        finally:
            self.inside -= 1


class TorchFunctionCalls(TorchFunctionMode):
    """Records the calls of PyTorch functions that the recorder keeps whole, and notes which others should."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder, kwargs = self.recorder, kwargs or {}
        if not recorder.torch_functions or recorder.inside or func not in recorder.torch_functions:
            try:
                result = func(*args, **kwargs)
                if func is Tensor.item and isinstance(result, _SYMBOLIC):
                    recorder.numbers[id(result)] = result, args[0].clone()  # it may be written before a call
                return result
            except (DynamicOutputShapeException, UnsupportedOperatorException):
                recorder.unsupported = func
                raise
        return recorder._record("", func.__name__, func, recorder.torch_functions[func], args, kwargs)


def watch_real_shapes(
    model: nn.Module,
    kept: dict[str, str],
    functions: Sequence[type],
    torch_functions: Mapping[Any, str],
    run: Callable[[], Any],
) -> dict[Any, Any]:
    """Run for real; return by (path, name, number) the outputs, structure and other leaves of each call."""
    shown: dict[Any, Any] = {}

    class Watcher(Recorder):
        def _record(self, path: str, name: str, function: Callable, why: str, args: Any, kwargs: Any) -> Any:
            self.inside += 1
            try:
                result = function(*args, **kwargs)
            finally:
                self.inside -= 1
            leaves, spec = _tree.flatten(result)
            statics = [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            number = self.counts[path, name]
            self.counts[path, name] += 1
            shown[path, name, number] = ([x for x in leaves if isinstance(x, Tensor)], spec, statics)
            return result

    watcher = Watcher(kept, functions, torch_functions=torch_functions)
    with watcher.active(model), TorchFunctionCalls(watcher), torch.enable_grad():
        run()
    return shown


@torch.library.custom_op("wide_compiler::opaque", mutates_args=())
def opaque(tensors: list[Tensor], sizes: list[int], handle: int) -> list[Tensor]:
    raise AssertionError("an opaque call is only a marker in a captured graph and never runs")


@opaque.register_fake
def _(tensors: list[Tensor], sizes: list[int], handle: int) -> list[Tensor]:
    assert Recorder.current is not None
    return Recorder.current.fake_outputs(tensors, sizes, handle)


OPAQUE = torch.ops.wide_compiler.opaque.default
