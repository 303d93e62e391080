"""What torch.vmap and wide_compiler do with every architecture of the zoo, against a loop over the models.

    python benchmarks/zoo.py                          # the whole zoo, a table
    python benchmarks/zoo.py --only hf_ lstm          # the cases with one of these in their name
    python benchmarks/zoo.py --out results/zoo.json   # and the verdicts as JSON

Each lane has a model and inputs of its own. Evaluation: the outputs, in float32. Training: outputs, gradients
of the parameters and updated buffers, in float64, with every dropout at 0; cases that draw other random
numbers, or that do not run in float64, are left out of training.
"""

import argparse
import copy
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import wide_compiler
from wide_compiler.benchmark.document import provenance
from zoo import CASES, Case

TOLERANCE = {"eval": 1e-5, "train": 1e-8}
SMALLEST_SCALE = 1e-6  # a tensor whose values are all smaller is held against this: it may be mere rounding
Inputs = list[tuple[tuple, dict]]


class Lane(NamedTuple):
    """What one model gives; gradients (None counts as zero) and buffers only from training."""

    outputs: Any
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]


def loss_of(outputs: Any) -> Tensor:
    """A scalar that weighs every float output differently, so that each has a gradient of its own."""
    learned = [t for t in tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]
    floats = [torch.view_as_real(t) if t.is_complex() else t for t in learned]
    return sum((t.flatten() * torch.linspace(-1, 2, t.numel()).to(t)).sum() for t in floats)


def gradients_of(loss: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor | None]:
    learned = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    gradients = torch.autograd.grad(loss, list(learned.values()), allow_unused=True)
    return dict(zip(learned, gradients, strict=True))


def loop(models: list[nn.Module], inputs: Inputs, training: bool) -> list[Lane]:
    """One model after the other: what every contender is held against."""
    lanes = []
    for model, (args, kwargs) in zip(models, inputs, strict=True):
        outputs = model(*args, **kwargs)
        gradients = gradients_of(loss_of(outputs), dict(model.named_parameters())) if training else {}
        lanes.append(Lane(outputs, gradients, dict(model.named_buffers()) if training else {}))
    return lanes


def vmap(models: list[nn.Module], inputs: Inputs, training: bool) -> list[Lane]:
    """The recipe for ensembles: stack_module_state, functional_call, vmap."""
    parameters, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0])
    flat, structure = [tree_flatten(lane)[0] for lane in inputs], tree_flatten(inputs[0])[1]
    varying = [i for i, leaf in enumerate(flat[0]) if isinstance(leaf, Tensor)]
    stacked = [torch.stack([leaves[i] for leaves in flat]) for i in varying]

    def one_lane(parameters: dict, buffers: dict, tensors: list[Tensor]) -> tuple[Any, dict]:
        given = dict(zip(varying, tensors, strict=True))
        args, kwargs = tree_unflatten([given.get(i, leaf) for i, leaf in enumerate(flat[0])], structure)
        state = {**parameters, **buffers}
        outputs = functional_call(base, state, args, kwargs)
        return outputs, {name: state[name] for name in buffers}

    outputs, buffers = torch.vmap(one_lane, randomness="different")(parameters, buffers, stacked)
    lanes = [tree_map(lambda t, lane=lane: t[lane], (outputs, buffers)) for lane in range(len(models))]
    if not training:
        return [Lane(outputs, {}, {}) for outputs, _ in lanes]
    gradients = gradients_of(sum(loss_of(outputs) for outputs, _ in lanes), parameters)
    return [
        Lane(outputs, {name: None if g is None else g[i] for name, g in gradients.items()}, buffers)
        for i, (outputs, buffers) in enumerate(lanes)
    ]


class Wide:
    """wide_compiler; `detail` says how the nodes of the last call ran."""

    detail: dict[str, Any]

    def __call__(self, models: list[nn.Module], inputs: Inputs, training: bool) -> list[Lane]:
        args, kwargs = copy.deepcopy(inputs[0])
        wide = wide_compiler.compile(models, args, sample_kwargs=kwargs)
        columns = [list(column) for column in zip(*(a for a, _ in inputs), strict=True)]
        outputs = wide.each(*columns, **{key: [k[key] for _, k in inputs] for key in inputs[0][1]})
        explanation = wide.explain(measure=False)
        self.detail = {"nodes": explanation.counts, "loop": explanation.why}
        if not training:
            return [Lane(out, {}, {}) for out in outputs]
        held, lanes = wide.tensors(), wide.wide_states
        parameters = {k: t for k, t in held.items() if isinstance(t, nn.Parameter)}
        gradients = gradients_of(sum(loss_of(out) for out in outputs), parameters)
        buffers = [name for name, _ in models[0].named_buffers() if name in held]
        return [
            Lane(
                out,
                {k: None if g is None else g[i] for k, g in gradients.items()},
                {k: held[k][i] if k in lanes else held[k] for k in buffers},
            )
            for i, out in enumerate(outputs)
        ]


Contender = Callable[[list[nn.Module], Inputs, bool], list[Lane]]
CONTENDERS: dict[str, Contender] = {"vmap": vmap, "wide_compiler": Wide()}
"""They get models and inputs that they may change, and whether to train; gradients are those of `loss_of`."""


def error_between(got: Any, wanted: Any, scale: float = 0.0) -> float:
    """The largest difference, relative to `scale` or to the largest value of its tensor; inf if unalike."""
    (ours, our_structure), (theirs, their_structure) = tree_flatten(got), tree_flatten(wanted)
    if our_structure != their_structure:
        return float("inf")
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            worst = max(worst, 0.0 if type(a) is type(b) and a == b else float("inf"))
        elif a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        elif b.is_floating_point() or b.is_complex():
            a, b = a.detach(), b.detach()
            difference = torch.where((a == b) | (a.isnan() & b.isnan()), 0, a - b).abs()
            sizes = [scale] if scale else b[b.isfinite()].abs().tolist()
            size = max(SMALLEST_SCALE, *sizes)
            worst = max(worst, *(difference.nan_to_num(nan=float("inf")).flatten() / size).tolist(), 0.0)
        elif not torch.equal(a, b):
            return float("inf")
    return worst


def lane_error(got: Lane, wanted: Lane) -> float:
    """Gradients are measured against the largest of their model: some of them are nothing but rounding."""
    sizes = [g.abs().max().item() for g in wanted.gradients.values() if g is not None and g.numel()]
    errors = [error_between(got.outputs, wanted.outputs), error_between(got.buffers, wanted.buffers)]
    for name in wanted.gradients | got.gradients:
        a, b = got.gradients.get(name), wanted.gradients.get(name)
        if a is not None or b is not None:
            a, b = torch.zeros_like(b) if a is None else a, torch.zeros_like(a) if b is None else b
            errors.append(error_between(a, b, max(sizes, default=0.0)))
    return max(errors)


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return model


def as_double(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def verdict(case: Case, mode: str, contender: Contender, options: argparse.Namespace) -> dict[str, Any]:
    """One of right, wrong, error, skipped and loop fails, with the error or its message."""
    training = mode == "train"
    if training and case.tags & {"random", "float32_only"}:
        return {"verdict": "skipped", "why": ", ".join(sorted(case.tags & {"random", "float32_only"}))}
    torch.manual_seed(options.seed)
    models = [case.make().train(training).to(options.device) for _ in range(options.models)]
    inputs = [case.inputs(options.batch) for _ in models]
    inputs = tree_map(lambda leaf: leaf.to(options.device) if isinstance(leaf, Tensor) else leaf, inputs)
    if training:
        models = [without_dropout(model).double() for model in models]
        inputs = tree_map(as_double, inputs)
    results = []
    for who in (loop, contender):
        try:
            with torch.set_grad_enabled(training):
                results.append(who(copy.deepcopy(models), copy.deepcopy(inputs), training))
        except Exception as problem:
            first_line = next(iter(str(problem).strip().splitlines()), "")
            why = f"{type(problem).__name__}: {first_line}"
            return {"verdict": "loop fails" if who is loop else "error", "why": why}
    error = max(lane_error(got, wanted) for wanted, got in zip(*results, strict=True))
    detail = getattr(contender, "detail", {})
    if error == float("inf"):
        return {"verdict": "wrong", "why": "another structure, shape or type, other integers, or not finite"}
    return {"verdict": "right" if error <= TOLERANCE[mode] else "wrong", "relative_error": error, **detail}


def described(result: dict[str, Any]) -> str:
    detail = result.get("why", f"{result.get('relative_error', 0):.0e}")
    colour = {"right": "green", "wrong": "red", "error": "yellow"}.get(result["verdict"], "dim")
    text = result["verdict"] if result["verdict"] == "right" else f"{result['verdict']} ({detail[:90]})"
    return f"[{colour}]{text.replace('[', chr(92) + '[')}[/{colour}]"


def main() -> None:
    parser = argparse.ArgumentParser(description="torch.vmap, and others, over the whole zoo")
    parser.add_argument("--contender", choices=CONTENDERS, nargs="+", default=list(CONTENDERS))
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names of cases")
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--batch", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="where to write the verdicts as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    warnings.simplefilter("ignore")
    cases = [case for case in CASES.values() if any(part in case.name for part in options.only)]
    report = {
        **provenance(torch.device(options.device)),
        "tolerance": TOLERANCE,
        "contenders": {},
    }
    console = Console()
    for name in options.contender:
        table = Table("architecture", "eval", "train", title=f"{name}, {options.models} models at once")
        verdicts = {}
        for case in cases:
            verdicts[case.name] = {mode: verdict(case, mode, CONTENDERS[name], options) for mode in TOLERANCE}
            table.add_row(case.name, *map(described, verdicts[case.name].values()))
        counts = {
            mode: Counter(result[mode]["verdict"] for result in verdicts.values()) for mode in TOLERANCE
        }
        console.print(table)
        for mode, count in counts.items():
            console.print(f"{name} {mode}: " + ", ".join(f"{n} {what}" for what, n in count.most_common()))
            if ran := [v[mode]["nodes"] for v in verdicts.values() if v[mode].get("nodes")]:
                console.print(f"  nodes: {dict(sum(map(Counter, ran), Counter()))}")
                whole = sum(not v[mode].get("loop") for v in verdicts.values() if "nodes" in v[mode])
                console.print(f"  through the wide graph: {whole} of {len(ran)}")
        report["contenders"][name] = {"counts": counts, "cases": verdicts}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
