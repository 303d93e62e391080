"""Check that a registered class equals its members run one by one, whenever a lane graph is built.

The check uses copies of the members with different trainable weights and arguments in every lane, because
equal lanes would hide that the class mixes them up.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..capture import OpaqueCall
from ..errors import ValidationError, WrongTypeError, one_line
from ..widen import LAYOUTS, run_in_layout
from .registered_compare import Outcome, RegisteredMismatch, Twins, compare


def build_wide(builder: Any, members: Sequence[nn.Module]) -> nn.Module:
    """Build the wide module of `members` with their device, train flag and requires_grad."""
    module = builder.from_modules(members)
    if not isinstance(module, nn.Module):
        name = getattr(builder, "__name__", builder)
        raise WrongTypeError(f"{name}.from_modules gave {type(module).__name__}, expected an nn.Module")
    devices = {t.device for member in members for t in tensors_of(member).values()}
    if len(devices) == 1:  # the class may have created its tensors on the CPU
        module.to(devices.pop())
    module.train(members[0].training)
    own = dict(module.named_parameters())
    for name, parameter in members[0].named_parameters():
        if name in own and own[name].shape == (len(members), *parameter.shape):
            own[name].requires_grad_(parameter.requires_grad)
    return module


class Trial:
    """A registered class and its members on one call; `note` says what was not compared."""

    def __init__(
        self, builder: Any, instances: Sequence[nn.Module], training: bool, call: OpaqueCall, sizes: list[int]
    ):
        self.builder, self.instances = builder, instances
        self.training, self.call, self.sizes = training, call, sizes
        self.n = len(instances)
        self.note = ""

    def agreeing_layout(self, tensors: Sequence[Tensor]) -> tuple[str, str]:
        """Return the first of `LAYOUTS` in which the class equals its members, and the note.

        `tensors` are the call's arguments with a lane axis, for one or more lanes. Raises `ValidationError`
        if no layout agrees.
        """
        path, member = self.call.path, type(self.instances[0]).__name__
        wide = getattr(self.builder, "__name__", str(self.builder))
        try:
            self.expect(tensors)
        except RegisteredMismatch as refusal:
            why = f"{path}: {member} cannot be run by {wide}, registered for it: {refusal}"
            raise ValidationError(why) from refusal
        problems: list[str] = []
        for layout, words in LAYOUTS.items():
            problem = self.problem(layout)
            if problem is None:
                return layout, self.note
            problems.append(f"{words}: {problem}")
        raise ValidationError(
            f"{path}: {wide}, registered for {member}, does not give what {self.n} of them give one by one. "
            f"{'; '.join(problems)}. Correct {wide} in one of these two layouts, or remove it with "
            f"wide_compiler.REGISTRY.unregister({member!r})"
        )

    def expect(self, tensors: Sequence[Tensor]) -> None:
        """Run the members, with values that differ in every lane unless the members reject those."""
        self.devices = list({t.device for t in tensors if t.device.type == "cuda"})
        self.vary, self.tensors = True, [_spread(t, self.n, vary=True) for t in tensors]
        try:
            self.expected = self._run_members()
        except RegisteredMismatch:
            raise
        except Exception:
            self.vary, self.tensors = False, [_spread(t, self.n, vary=False) for t in tensors]
            self.expected = self._run_members()
        if self.expected.drew and self.training:
            self.note = "compared in eval, because it draws random numbers in training"
            self.training = False
            self.expected = self._run_members()
        if self.expected.drew:
            self.note = "its numbers are random in eval too: only shapes were compared"

    def problem(self, layout: str) -> str | None:
        """Return why the class is wrong in `layout`, or None."""
        members = self._members()
        before = _stacked(members)
        try:
            with torch.random.fork_rng(self.devices), torch.enable_grad():
                wide = build_wide(self.builder, members)
                held = {name: t.detach().clone() for name, t in tensors_of(wide).items()}
                got = self._run_wide(wide, layout)
            if not self.expected.drew:
                compare(self.expected, got, Twins(before, held), wide, members[0])
        except (RegisteredMismatch, ValidationError) as difference:
            return str(difference)
        except Exception as error:
            return f"it raises {one_line(error)}"
        return None

    def _members(self) -> list[nn.Module]:
        """Copy the instances; objects they share stay shared."""
        members = copy.deepcopy(list(self.instances))
        for member in members:
            if member.training != self.training:
                member.train(self.training)
        if self.vary:
            generator = torch.Generator().manual_seed(0)
            # Frozen weights may be equal in all lanes and stored once by the class, so they are not varied.
            for p in {id(p): p for m in members for p in m.parameters() if p.requires_grad}.values():
                p.data.copy_(_varied(p.data, generator))
        return members

    def _run_members(self) -> Outcome:
        members = self._members()
        rows = []
        with torch.random.fork_rng(self.devices), torch.enable_grad():
            before = self._random_state()
            for lane, member in enumerate(members):
                run = functools.partial(self.call.run, member)
                rows.append(_run(run, [t[lane] for t in self.tensors], self.sizes, member, lanes=False))
            drew = self._random_state() != before
        outputs, inputs, parameters = zip(*rows, strict=True)
        names = [name for name, _ in members[0].named_parameters()]
        stacked = _stacked(members)
        return Outcome(
            [_stack(column) for column in zip(*outputs, strict=True)],  # type: ignore[misc]
            [_stack(column) for column in zip(*inputs, strict=True)],
            {name: _stack(column) for name, column in zip(names, zip(*parameters, strict=True), strict=True)},
            {name: stacked[name] for name, _ in members[0].named_buffers()},
            drew,
        )

    def _run_wide(self, wide: nn.Module, layout: str) -> Outcome:
        run = functools.partial(run_in_layout, self.call, wide, layout, self.n)
        outputs, inputs, gradients = _run(run, self.tensors, self.sizes, wide, lanes=True)
        got, expected = ([tuple(o.shape) for o in some] for some in (outputs, self.expected.outputs))
        if got != expected:
            raise RegisteredMismatch(f"its outputs are {got} as [N, B, ...], the members' are {expected}")
        names = [name for name, _ in wide.named_parameters()]
        buffers = {name: b.detach() for name, b in wide.named_buffers()}
        return Outcome(outputs, inputs, dict(zip(names, gradients, strict=True)), buffers)

    def _random_state(self) -> list[bytes]:
        states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self.devices)]
        return [state.numpy().tobytes() for state in states]


def _run(
    run: Callable[[list[Tensor], list[int]], Iterable[Tensor]],
    tensors: Sequence[Tensor],
    sizes: list[int],
    module: nn.Module,
    lanes: bool,
) -> tuple[list[Tensor], list[Tensor | None], list[Tensor | None]]:
    """Return outputs, gradients of the tensors, and gradients of the parameters. `lanes`: axis 0 is lanes."""
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point() or t.is_complex()) for t in tensors]
    given = [leaf.clone() for leaf in leaves]  # non-leaves, so that in-place writes are detected by version
    versions = [t._version for t in given]
    parameters = list(module.parameters())
    outputs = list(run(given, sizes))
    if [t._version for t in given] != versions:
        raise RegisteredMismatch("it writes into its input, which the graph around it would not see")
    ends = [o for o in outputs if o.requires_grad]
    roots = [t for t in (*leaves, *parameters) if t.requires_grad]
    found: Mapping[int, Tensor | None] = {}
    if ends and roots:
        seeds = [_direction(o, lanes) for o in ends]
        gradients = torch.autograd.grad(ends, roots, seeds, allow_unused=True)
        found = {id(root): gradient for root, gradient in zip(roots, gradients, strict=True)}
    detached = [o.detach() for o in outputs]
    return detached, [found.get(id(t)) for t in leaves], [found.get(id(p)) for p in parameters]


def _direction(output: Tensor, lanes: bool) -> Tensor:
    """Return the initial gradient: equal in every lane, different for each element."""
    shape = output.shape[1:] if lanes else output.shape
    weights = torch.linspace(0.5, 1.5, shape.numel(), device=output.device).to(output.dtype).view(shape)
    return weights.expand(output.shape)


def _spread(x: Tensor, n: int, vary: bool) -> Tensor:
    """Repeat the lanes of `[P, ...]` to `[n, ...]`; with `vary`, make all lanes different."""
    lanes = x.detach()[torch.arange(n, device=x.device) % x.shape[0]]
    if not vary:
        return lanes
    if x.is_floating_point() or x.is_complex():
        return _varied(lanes, torch.Generator().manual_seed(1))
    # Integers may be indices, lengths or masks: each lane keeps its values, in rotated order.
    return torch.stack([lane.flatten().roll(i).view(lane.shape) for i, lane in enumerate(lanes)])


def _varied(x: Tensor, generator: torch.Generator) -> Tensor:
    """Scale each element by a random factor in [0.5, 1], which keeps signs; zeros become small."""
    noise = torch.rand(x.shape, generator=generator).to(x.device, x.real.dtype if x.is_complex() else x.dtype)
    return torch.where(x == 0, 0.1 * noise, x * (1 - 0.5 * noise))


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _stacked(members: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Return the members' tensors by name, `[N, ...]`."""
    each = [tensors_of(member) for member in members]
    return {name: torch.stack([tensors[name].detach() for tensors in each]) for name in each[0]}


def _stack(column: Sequence[Tensor | None]) -> Tensor | None:
    """Stack tensors, with zeros for None; None if all are None."""
    some = next((t for t in column if t is not None), None)
    return None if some is None else torch.stack([torch.zeros_like(some) if t is None else t for t in column])
