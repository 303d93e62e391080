"""`wide.export(...)`: a wide model as a program that runs without this library.

The result is a `torch.export.ExportedProgram`, optionally saved as `.pt2`, or an ONNX file. It is run once
and compared with the wide model before it is returned.
"""

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..capture.member_export import quiet_logs
from ..errors import ArgumentError, UnsupportedError, ValidationError, needs, one_line
from ..lanes import packed_arguments_to_stacked, stacked_to_packed
from ..measure.compare import model_difference
from ..remote_tensors import memory_id
from .inputs import normalize_sample, sample_leaves
from .program import Call, LoopProgram

DOORS = ("shared", "stacked", "packed")


class ExportedDoor(nn.Module):
    """One way to call a wide model (`door`) as a plain forward. The model's tensors are under `lanes.`."""

    def __init__(self, model: Any, door: str, names: tuple[str, ...] = (), keywords: tuple[str, ...] = ()):
        super().__init__()
        self.lanes, self.door = model, door

        def forward(*args: Any, **kwargs: Any) -> Any:
            return (model if door == "packed" else getattr(model, door))(*args, **kwargs)

        # `torch.export` names inputs by the signature, and rejects keywords that are not in it.
        kinds: list[tuple[str, Any]] = [(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        kinds += [(name, inspect.Parameter.KEYWORD_ONLY) for name in keywords]
        forward.__signature__ = inspect.Signature([inspect.Parameter(*kind) for kind in kinds])  # type: ignore[attr-defined]
        self.forward = forward


def export(
    model: Any,
    path: str | Path | None = None,
    *,
    door: str = "shared",
    sample: Any = None,
    sample_kwargs: dict[str, Any] | None = None,
    dynamic_batch: bool = True,
) -> Any:
    """Export the wide model as an `ExportedProgram`, or as an ONNX program if `path` ends in `.onnx`.

    Args:
        path: None, a `.pt2` file for `torch.export.load`, or an `.onnx` file.
        door: the call to export: 'shared' takes one input `[B, ...]` for all lanes, 'stacked' takes
            `[N, B, ...]`, both return `[N, B, ...]`; 'packed' takes and returns `[B, N*C, ...]`.
        sample: one member's input, as in `compile`; by default the one the model was compiled with.
        sample_kwargs: keyword arguments of the sample.
        dynamic_batch: make the batch size `B` dynamic, for all inputs with the same batch size as the first.

    The program shares the current weights with the model, as `torch.export` does; a file has a copy. Raises
    `UnsupportedError` for a forward that is not a pure function of its inputs, or that `torch.export` or ONNX
    does not support.
    """
    if door not in DOORS:
        hint = "; stack the lists of `each` and take 'stacked'" if door == "each" else ""
        raise ArgumentError(f"unknown door {door!r}; choose one of {', '.join(DOORS)}{hint}")
    suffix = "" if path is None else Path(path).suffix
    if suffix not in ("", ".pt2", ".onnx") or (path is not None and not suffix):
        raise ArgumentError(f"{path} should end in .pt2 (torch.export) or .onnx")
    if suffix == ".onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            needs(package, "onnx")
    given = model._sample if sample is None and not sample_kwargs else normalize_sample(sample, sample_kwargs)
    args, kwargs = _inputs(model, given, door)
    _check_pure(model, door, args, kwargs)
    forward = ExportedDoor(model, door, _input_names(model, len(args)), tuple(kwargs))
    shapes = _open_batch(args, kwargs, int(door == "stacked")) if dynamic_batch else None
    program = _exported(forward, args, kwargs, shapes)
    expected = _run(forward, args, kwargs)
    _check_equal("the exported program", _run(program.module(), args, kwargs), expected)
    if suffix == ".onnx":
        return _onnx(program, str(path), args, kwargs, expected)
    if path is not None:
        torch.export.save(program, str(path))
    return program


def _inputs(model: Any, sample: tuple[tuple, dict], door: str) -> tuple[tuple, dict]:
    """Return the sample as (args, kwargs) of the call."""
    tensors = [leaf for leaf in _tree.flatten(sample)[0] if isinstance(leaf, Tensor)]
    leaves, spec = sample_leaves(sample, (door != "shared",) * len(tensors), model.n)
    args, kwargs = _tree.unflatten(leaves, spec)
    return (args, kwargs) if door != "packed" else stacked_to_packed((args, kwargs))


def _check_pure(model: Any, door: str, args: tuple, kwargs: dict) -> None:
    """Raise `UnsupportedError` for what an exported program cannot do: run Python, write state, draw."""
    tensors = model.tensors()
    placed = next((path for path, tensor in tensors.items() if memory_id(tensor) is not None), None)
    if placed is not None:
        raise UnsupportedError(f"export: {placed} is on workers; export the model before placing it there")
    with torch.no_grad():
        stacked = (args, kwargs) if door != "packed" else packed_arguments_to_stacked(args, kwargs, model.n)
        leaves, spec = _tree.flatten(stacked)
        wide = (door != "shared",) * sum(isinstance(leaf, Tensor) for leaf in leaves)
        program = model._program(Call(leaves, spec, wide, _tree.signature(stacked)))
    if isinstance(program, LoopProgram):
        raise UnsupportedError(
            f"export: the members run in a loop of their own Python, because {program.why}; "
            "there is no graph to export"
        )
    calls = sorted({f"{call.path or call.name}" for call in program.captured.calls})
    if calls:
        raise UnsupportedError(
            f"export: {', '.join(calls)} runs as Python, lane by lane (explain() says why); "
            "there is no graph of it to export"
        )
    evaluation = "; call wide.eval() first" if model.training else ""
    if program.graph.writes:
        written = ", ".join(sorted(program.graph.writes)[:3])
        raise UnsupportedError(f"export: the forward writes {written} at every call{evaluation}")
    if program.draws:
        raise UnsupportedError(f"export: the forward draws random numbers{evaluation}")


def _exported(forward: ExportedDoor, args: tuple, kwargs: dict, shapes: Any) -> Any:
    try:
        return torch.export.export(forward, args, kwargs or None, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # the exporter raises many types
        hint = "" if shapes is None else "; dynamic_batch=False exports it for this batch size alone"
        raise UnsupportedError(f"torch.export cannot export this model: {one_line(error)}{hint}") from error


def _open_batch(args: tuple, kwargs: dict, axis: int) -> torch.export.ShapesCollection:
    """Return dynamic shapes for `torch.export` in which all inputs share one batch size."""
    batched = [x for x in _tree.flatten((args, kwargs))[0] if isinstance(x, Tensor) and x.dim() > axis]
    batch, shapes = torch.export.Dim("batch"), torch.export.ShapesCollection()
    for tensor in batched:
        if tensor.shape[axis] == batched[0].shape[axis]:
            shapes[tensor] = {axis: batch}
    return shapes


def _run(module: Any, args: tuple, kwargs: dict) -> list[Tensor]:
    with torch.no_grad():
        leaves = _tree.flatten_output(module(*args, **kwargs))[0]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _check_equal(what: str, got: list[Tensor], expected: list[Tensor]) -> None:
    problem = model_difference(got, expected)
    if problem:
        raise ValidationError(f"{what} disagrees with the wide model on the sample: an output {problem}")


def _onnx(program: Any, path: str, args: tuple, kwargs: dict, expected: list[Tensor]) -> Any:
    from torch.onnx import OnnxExporterError

    try:
        with quiet_logs():  # the exporter's messages are about packages that are not installed
            made = torch.onnx.export(program, dynamo=True, verbose=False)
    except OnnxExporterError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise UnsupportedError(
            f"ONNX cannot express this model: {one_line(cause)}; a .pt2 file may"
        ) from error
    assert made is not None
    made.save(path)
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    tensors = [x for x in _tree.flatten((args, kwargs))[0] if isinstance(x, Tensor)]
    feeds = {slot.name: x.numpy(force=True) for slot, x in zip(session.get_inputs(), tensors, strict=True)}
    got = [torch.from_numpy(array) for array in session.run(None, feeds)]
    try:
        _check_equal("the ONNX program, run by onnxruntime,", got, [tensor.cpu() for tensor in expected])
    except ValidationError:
        Path(path).unlink()
        raise
    return made


def _input_names(model: Any, count: int) -> tuple[str, ...]:
    """Return the names of the first `count` parameters of the member's forward, numbered beyond them."""
    parameters = inspect.signature(type(model.example_member()).forward).parameters.values()
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD][1:]  # without self
    return tuple((names + [f"input_{i}" for i in range(len(names), count)])[:count])
