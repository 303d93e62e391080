"""torch.export of one member, through a wrapper that takes a flat tuple of tensors.

Non-strict, training IR, with the requested dims dynamic where the model allows it. Linear, convolutions,
attention, norms, embeddings and RNNs stay single ops in this IR.
"""

import contextlib
import functools
import logging
import threading
import types
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.export.graph_signature import InputKind

from .. import _tree
from ..errors import one_line
from ..guards import Snapshot
from .captured import Captured
from .cleanup import clean, written_placeholders
from .confirm import confirm
from .failure import CaptureFailed
from .lock import CAPTURE
from .number_outputs import OUTPUT_TENSOR, numbers_as_tensors
from .observation import Observation, copy_of
from .opaque import NeedsRealShapes, Recorder, TorchFunctionCalls, replaced, watch_real_shapes
from .shape_guards import ShapeGuards
from .state import canonical_names
from .strides import LayoutReads
from .substitutes import average_of_all_batches, unless_unchanged
from .value_reads import ValueReads
from .variants import tensors_apart

_PREFIX = "member."
# Whether the member is told that it is traced, and whether submodules that fail may be kept whole.
_ATTEMPTS = ((False, False), (True, False), (False, True), (True, True))


class _MemberError(Exception):
    """Wraps a member's error; keeps torch.export from attaching and printing the partial graph."""

    def __init__(self, raised: Exception):
        super().__init__(str(raised))
        self.raised = raised

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "partial_fx_graph":
            super().__setattr__(name, value)


class _Flat(nn.Module):
    """`member(*args, **kwargs)` as a function of its tensor leaves, which returns its tensor leaves."""

    def __init__(
        self, member: nn.Module, leaves: list[Any], spec: _tree.TreeSpec, reads: Snapshot, traced: bool
    ):
        super().__init__()
        self.member, self.reads, self.traced = member, reads, traced
        self.leaves, self.spec = leaves, spec
        # What tracing shows of the forward; a separate object, because export reverts attributes of modules.
        self.seen: Any = types.SimpleNamespace()

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        try:
            return self._run(tensors)
        except Exception as error:
            raise _MemberError(error) from error

    def _run(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        tensor_iter = iter(tensors)
        leaves = [next(tensor_iter) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        args, kwargs = _tree.unflatten(leaves, self.spec)
        buffers = _buffers(self.member)
        if flag := self.reads.changed_flag():
            raise CaptureFailed(f"its forward reads {flag.path}, which torch.export changes")
        assert Recorder.current is not None
        calls = TorchFunctionCalls(Recorder.current)
        answers = contextlib.nullcontext() if self.traced else _answers_of_a_plain_call()
        with answers, calls, ValueReads() as values, LayoutReads(tensors) as self.seen.layout:
            out, self.seen.out_spec = _tree.flatten_output(self.member(*args, **kwargs))
        self.seen.layout.check()
        values.check()
        self.seen.asks_values = values.asked
        if any(home[name] is not old for home, name, old in buffers):
            # Cloned before the write, because the output may be the old buffer or a view of it.
            out = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in out]
            _write_assigned(buffers)
        self.seen.out_statics = [OUTPUT_TENSOR if _is_output(leaf) else leaf for leaf in out]
        for leaf in self.seen.out_statics:
            if leaf is not OUTPUT_TENSOR and _tree.holds_tensor(leaf):
                raise CaptureFailed(
                    f"it returns a {type(leaf).__name__} whose tensors cannot be replaced; return tensors, "
                    f"or lists, tuples or dicts of them"
                )
            try:
                _tree.own_copy(leaf)
            except Exception as error:
                raise CaptureFailed(
                    f"it returns a {type(leaf).__name__}, which cannot be copied: {one_line(error)}"
                ) from error
        return tuple(leaf for leaf in out if _is_output(leaf))


@contextlib.contextmanager
def _answers_of_a_plain_call() -> Iterator[None]:
    """`is_compiling()` and `is_exporting()` are False, as in a call of the member; torch.export sets them."""
    flags = torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag
    torch.compiler._is_compiling_flag = torch.compiler._is_exporting_flag = False
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag = flags


def _buffers(member: nn.Module) -> list[tuple[dict[str, Any], str, Tensor]]:
    return [(m._buffers, n, t) for m in member.modules() for n, t in m._buffers.items() if t is not None]


def _write_assigned(buffers: list[tuple[dict[str, Any], str, Tensor]]) -> None:
    """Record assigned buffers (`self.mean = ...`) as writes into the old ones, because export loses them."""
    assigned = [(home, name, old, home[name]) for home, name, old in buffers if home[name] is not old]
    for _, name, old, new in assigned:
        if not isinstance(new, Tensor) or new.shape != old.shape or new.dtype != old.dtype:
            what = f"{tuple(old.shape)} {old.dtype}"
            raise CaptureFailed(f"its forward sets the buffer {name} to something else than a {what} tensor")
        if new.requires_grad:
            raise CaptureFailed(f"its forward stores a tensor with a gradient in the buffer {name}")
    with torch.no_grad():
        fresh = [new.clone() for *_, new in assigned]  # all clones first, because buffers may be swapped
        for (home, name, old, _), value in zip(assigned, fresh, strict=True):
            old.copy_(value)
            home[name] = old


def _is_output(leaf: Any) -> bool:
    """Return whether a graph must compute the leaf: a tensor, or a size that depends on the input's."""
    return isinstance(leaf, (Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))


def export_member(
    member: nn.Module,
    leaves: list[Any],
    spec: _tree.TreeSpec,
    kept: dict[str, str],
    dynamic: Sequence[set[int]],
    observation: Observation,
    grad: bool = True,
    like: Captured | None = None,
) -> Captured:
    """Capture `member` at the given input leaves; modules in `kept` (path -> why) become one node each.

    A submodule that cannot be traced is added to `kept` and the capture is repeated. Raises `CaptureFailed`
    if the member's own forward cannot be traced. A forward that asks whether it is traced gets the answer of
    a plain call, or that of a trace where only this can be captured, or where only this keeps no submodule.

    Args:
        dynamic: `dynamic[i]` are the dims of tensor i that are dynamic where the model allows it.
        observation: from a run of the member at these inputs.
        like: the capture of another member, which kept some modules; the same are kept here.
    """
    observation.check()
    attempts = _ATTEMPTS if observation.asks_tracing else _ATTEMPTS[-1:]
    if like is not None and like.calls:
        attempts = ((like.traced, True),)
        kept = {call.path: call.why for call in like.calls if call.path} | kept
    failing: dict[bool, dict[str, str]] = {False: dict(kept), True: dict(kept)}
    with CAPTURE:
        for traced, keeps in attempts:
            try:
                captured = _exported(
                    member, leaves, spec, failing[traced], dynamic, observation, grad, traced, keeps
                )
                confirm(captured, member, leaves, observation)
                break
            except CaptureFailed:
                if (traced, keeps) == attempts[-1]:
                    raise
            finally:
                # A forward that behaves differently on fake tensors may have stored some of them.
                observation.reads.put_back(observation.stores)
    observation.output = None
    missed = observation.written - captured.writes
    if missed:
        raise CaptureFailed(f"its forward writes {min(missed)} in a way that torch.export does not record")
    captured.reads_grad_mode |= observation.asks_grad_mode
    captured.checkpointed = observation.checkpointed
    return captured


def derive_capture(
    known: Captured, of: nn.Module, member: nn.Module, leaves: list[Any], observation: Observation
) -> Captured | None:
    """Derive the capture of `member` from that of a member that differs only in tensors held by Python.

    The result is compared with the observed run. Returns None if a new capture is needed.
    """
    if known.calls or known.asks_values or observation.output is None:
        return None
    observation.check()
    apart = tensors_apart(of, member)
    if apart is None:
        return None
    constants = {name: apart.get(id(tensor), tensor) for name, tensor in known.constants.items()}
    captured = replace(known, constants=constants, guards=[], writes=set(known.writes))
    try:
        confirm(captured, member, leaves, observation)
    except CaptureFailed:  # a value of such a tensor is baked into the graph
        return None
    observation.output = None
    return captured


def _exported(
    member: nn.Module,
    leaves: list[Any],
    spec: _tree.TreeSpec,
    kept: dict[str, str],
    dynamic: Sequence[set[int]],
    observation: Observation,
    grad: bool,
    traced: bool,
    keeps: bool,
) -> Captured:
    real_shapes = None
    functions = observation.functions
    suspects: dict[str, str] = {}
    torch_functions: dict[Any, str] = {}
    while True:
        recorder = Recorder(kept, functions, real_shapes, suspects, torch_functions)
        failures: list[str] = []
        try:
            with recorder.active(member), _watch_failures(member, failures):
                flat = _Flat(member, leaves, spec, observation.reads, traced)
                exported = _export(flat, dynamic if real_shapes is None else None, grad)
            if recorder.handlers:
                raise NeedsRealShapes("a module that runs as Python is called inside a try")
            captured = _read(flat, exported, recorder)
            captured.reads_layout = flat.seen.layout.of_inputs
            captured.reads_grad_mode = flat.seen.layout.of_gradients
            captured.asks_values, captured.traced = flat.seen.asks_values, traced
            return captured
        except CaptureFailed:
            raise
        except Exception as error:
            if recorder.handlers:  # the error may have changed the parent's path
                home = _keep_handler(member, kept, *recorder.handlers[0])
                suspects = {path: why for path, why in suspects.items() if not path.startswith(f"{home}.")}
                real_shapes = None
                continue
            if isinstance(error, NeedsRealShapes):
                if real_shapes is not None:
                    raise CaptureFailed(_first_line(error)) from error
            elif isinstance(error.__cause__, NeedsRealShapes) and real_shapes is None:
                pass
            elif recorder.unsupported is not None and recorder.unsupported not in torch_functions:
                torch_functions[recorder.unsupported] = f"torch.export cannot trace it: {_first_line(error)}"
            else:
                culprit = failures[0] if failures else ""
                if culprit == "" or culprit in kept:
                    raise CaptureFailed(_first_line(error)) from error
                kept[culprit] = why = f"torch.export cannot trace it: {_first_line(error)}"
                if not keeps:
                    raise CaptureFailed(why) from error
                # Others of its class probably fail as well; treating them now saves a capture for each.
                suspects |= dict.fromkeys(_others_of_its_class(member, culprit, {*kept, *suspects}), why)
                if real_shapes is None:
                    continue
        args, kwargs = _tree.unflatten([copy_of(leaf) for leaf in leaves], spec)
        run = functools.partial(member, *args, **kwargs)
        real_shapes = watch_real_shapes(member, suspects | kept, functions, torch_functions, run)


def _keep_handler(member: nn.Module, kept: dict[str, str], handler: Any, path: str) -> str:
    """Keep the module whole whose Python handles errors of `path`; return the path of that module."""
    why = f"its forward catches errors of {path}, which a graph cannot"
    home = next((name for name, module in member.named_modules() if module is handler), "")
    if not home or home in kept:
        raise CaptureFailed(why)
    for inner in [path for path in kept if path.startswith(f"{home}.")]:
        del kept[inner]
    kept[home] = why
    return home


def _others_of_its_class(member: nn.Module, culprit: str, known: set[str]) -> list[str]:
    """Return the paths of modules of the same class, without nested ones: calls could not be told apart."""
    kind = type(member.get_submodule(culprit))
    paths = [path for path, module in member.named_modules() if path and type(module) is kind]
    nested = {p for p in paths for q in {*paths, *known} if p.startswith(f"{q}.") or q.startswith(f"{p}.")}
    return [path for path in paths if path not in nested]


def _export(flat: _Flat, dynamic: Sequence[set[int]] | None, grad: bool) -> torch.export.ExportedProgram:
    # Copies, because export marks dynamic dims on the tensors it is given.
    tensors = tuple(copy_of(leaf) for leaf in flat.leaves if isinstance(leaf, Tensor))
    shapes = None
    if dynamic is not None and tensors:
        pairs = zip(tensors, dynamic, strict=True)
        kinds = ({d: Dim.AUTO if d in dims else Dim.STATIC for d in range(t.dim())} for t, dims in pairs)
        shapes = {"tensors": tuple(kinds)}
    with quiet_logs(), torch.set_grad_enabled(grad):
        try:
            return torch.export.export(flat, tensors, dynamic_shapes=shapes, strict=False)
        except _MemberError as error:
            raised = error.raised
        raise raised


def _read(flat: _Flat, exported: torch.export.ExportedProgram, recorder: Recorder) -> Captured:
    names = canonical_names(flat.member)
    inputs, states, constants = [], {}, {}
    placeholders = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    for spec in exported.graph_signature.input_specs:
        name = spec.arg.name
        if spec.kind == InputKind.USER_INPUT:
            inputs.append(name)
        elif spec.target.removeprefix(_PREFIX) in names:
            states[name] = names[spec.target.removeprefix(_PREFIX)]
        else:
            constants[name] = exported.constants[spec.target]
            if not isinstance(constants[name], Tensor):
                kind = type(constants[name]).__name__
                raise CaptureFailed(f"its forward uses a {kind}, which a graph cannot hold")
            if _tree.is_fake(constants[name]):
                raise CaptureFailed("its forward computes with tensors that torch.export cannot trace")
    graph = clean(exported.graph_module, set(inputs))
    out_statics = numbers_as_tensors(graph, flat.seen.out_statics)
    for node in graph.nodes:
        if (getattr(node.target, "__module__", None) or "").startswith("torch._functorch"):
            raise CaptureFailed(f"its forward uses a transform of torch.func ({node.name})")
    captured = Captured(
        graph=graph,
        inputs=inputs,
        states=states,
        constants=constants,
        guards=[ShapeGuards.from_export([placeholders[name].meta["val"] for name in inputs], exported)],
        out_spec=flat.seen.out_spec,
        out_statics=out_statics,
        calls=recorder.calls,
    )
    written = written_placeholders(graph)
    for name in written & constants.keys():
        raise CaptureFailed(
            f"its forward writes into {name}, a tensor that is neither a parameter nor a buffer; register "
            f"it with register_buffer"
        )
    captured.writes = {states[name] for name in written if name in states}
    # The effects of a module kept whole are unknown, so it counts as writing its buffers.
    kept = tuple(f"{call.path}." for call in recorder.calls if call.path)
    captured.writes |= {names[path] for path, _ in flat.member.named_buffers() if path.startswith(kept)}
    return captured


@contextlib.contextmanager
def _watch_failures(member: nn.Module, failures: list[str]) -> Iterator[None]:
    """Collect in `failures` the paths of the modules that an exception passes, innermost first.

    Modules also get methods that read no values, and no memory, where their own would (see `substitutes`).
    """
    modules = [(p, m) for p, m in member.named_modules() if not isinstance(m, torch.jit.ScriptModule)]
    own = ((m, average_of_all_batches(m) or m.forward, path) for path, m in modules)
    with (
        replaced("forward", ((m, _reporting(forward, path, failures)) for m, forward, path in own)),
        replaced("_apply", ((m, unless_unchanged(m)) for _, m in modules)),
    ):
        yield


def _reporting(forward: Any, path: str, failures: list[str]) -> Any:
    @functools.wraps(forward)
    def reporting(*args: Any, **kwargs: Any) -> Any:
        try:
            return forward(*args, **kwargs)
        except Exception:
            failures.append(path)
            raise

    return reporting


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Mute this thread's log messages: a failing export logs whole graphs, the exception is enough."""
    silence = _Silence()
    known = [x for x in logging.root.manager.loggerDict.values() if isinstance(x, logging.Logger)]
    theirs = [logger for logger in known if logger.name.partition(".")[0] == "torch"]
    handlers = [handler for logger in (logging.root, *theirs) for handler in logger.handlers]
    handlers += [logging.lastResort] if logging.lastResort else []
    for handler in handlers:
        handler.addFilter(silence)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(silence)


class _Silence(logging.Filter):
    """Drops the records of the thread that created it."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread != self.thread


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
