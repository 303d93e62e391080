"""WideModule, the base class of wide modules: N members of one configuration, tensors stacked by name."""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..capture import make_skeleton
from ..errors import ArgumentError, WrongTypeError
from ..lanes import packed_arguments_to_stacked, stacked_to_packed
from ..widen.builder import Builder, Val
from ..widen.rules import ops, rule
from ._lanes import resolve


def _slots(module: nn.Module) -> Iterator[tuple[str, Tensor | None, bool]]:
    """Yield (dotted name, tensor or None, persistent?) for every parameter and buffer, also absent ones."""
    for prefix, sub in module.named_modules():
        dot = prefix + "." if prefix else ""
        for name, p in sub._parameters.items():
            yield dot + name, p, True
        for name, b in sub._buffers.items():
            yield dot + name, b, name not in sub._non_persistent_buffers_set


def _owner(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the submodule that holds tensor `name` (created if missing) and the last part of the name."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root, leaf


def _run_kernel(self: "WideModule", x: Tensor) -> Tensor:
    """Run `kernel` on x `[N, *]`, the member's input with lanes in front; returns `[N, *]`."""
    self.check_input(x)
    return self.kernel(x, *self.arguments())


def _split_arguments(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return packed_arguments_to_stacked(args, kwargs, module.n)


def _join_results(module: Any, args: tuple[Any, ...], results: Any) -> Any:
    return stacked_to_packed(results)


class WideModule(nn.Module):
    """N modules of one class and configuration as one module with a lane axis in front.

    `from_modules(modules)` stacks existing members; inputs and outputs are `[N, B, ...]`.
    `WideLinear(n, 4, 8)` creates n new members from the arguments after n; inputs and outputs are
    channel-packed `[B, N*C, ...]`, as made by `pack`.

    Every parameter and buffer of the member exists here under the same name, stacked to `[N, *member_shape]`.
    A subclass defines `MEMBER` (the member's class), `CONFIG` (the member's attributes that must be equal in
    all lanes), `STRATEGIES` (the strategies it can run with) and `DIMS` (allowed numbers of axes of a wide
    input; empty allows any). `kernel` takes the input and the attributes named in `ARGUMENTS`; a subclass may
    override `forward` instead.
    """

    MEMBER: ClassVar[type[nn.Module] | tuple[type[nn.Module], ...]]
    kernel: ClassVar[Callable[..., Any]]
    CONFIG: ClassVar[tuple[str, ...]] = ()
    ARGUMENTS: ClassVar[tuple[str, ...]] = ()
    STRATEGIES: ClassVar[tuple[str, ...]] = ("wide",)
    DIMS: tuple[int, ...] = ()

    n: int
    strategy: str
    skeleton: nn.Module
    forward: Callable[..., Any] = _run_kernel  # subclasses with other arguments override it

    if TYPE_CHECKING:  # configuration and stacked tensors are set by name

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, modules: Iterable[nn.Module] | int, *args: Any, **kwargs: Any) -> None:
        """Take `(modules, strategy="auto")` as `from_modules`, or `(n, ...)` for n new members."""
        super().__init__()
        packed = isinstance(modules, int)
        if packed:
            strategy = kwargs.pop("strategy", "auto")
            modules = self._fresh(modules, args, kwargs)  # type: ignore[arg-type]
        else:
            (strategy,) = args or (kwargs.pop("strategy", "auto"),)
        self._stack(modules, strategy)  # type: ignore[arg-type]
        if packed:
            self.register_forward_pre_hook(_split_arguments, with_kwargs=True)
            self.register_forward_hook(_join_results)

    @classmethod
    def _fresh(cls, n: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[nn.Module]:
        if isinstance(n, bool) or n < 1:
            raise ArgumentError(f"{cls.__name__}: the number of lanes must be a positive integer, got {n!r}")
        if isinstance(cls.MEMBER, tuple):
            kinds = ", ".join(f"nn.{kind.__name__}" for kind in cls.MEMBER)
            raise ArgumentError(
                f"{cls.__name__} has members of several kinds ({kinds}): "
                f"make them yourself, and call from_modules"
            )
        return [cls.MEMBER(*args, **kwargs) for _ in range(n)]

    def _stack(self, modules: Iterable[nn.Module], strategy: str) -> None:
        if isinstance(modules, nn.Module) and not isinstance(modules, nn.ModuleList):
            raise WrongTypeError(
                f"{type(self).__name__}: expected a sequence of modules, one for each lane, "
                f"got a single {type(modules).__name__}; pass [module]"
            )
        members = list(modules)
        resolve(strategy, self.STRATEGIES, auto="auto", op=type(self).__name__)
        self._check(members)
        self.n = len(members)
        self.strategy = strategy
        # Bypasses nn.Module.__setattr__: the skeleton must not become a submodule with parameters.
        self.__dict__["skeleton"] = make_skeleton(members[0])
        for name in self.CONFIG:
            setattr(self, name, getattr(members[0], name))
        lanes: list[dict[str, Any]] = [{name: t for name, t, _ in _slots(m)} for m in members]
        for name, first, persistent in _slots(members[0]):
            owner, leaf = _owner(self, name)
            wide = None if first is None else torch.stack([lane[name].detach() for lane in lanes])
            if leaf not in _owner(members[0], name)[0]._parameters:
                owner.register_buffer(leaf, wide, persistent)
            elif first is None or wide is None:
                owner.register_parameter(leaf, None)
            else:
                owner.register_parameter(leaf, nn.Parameter(wide, first.requires_grad))
        self.setup(members)
        self.train(members[0].training)

    @classmethod
    def from_modules(cls, modules: Iterable[nn.Module], strategy: str = "auto") -> Self:
        """Stack modules of one class and configuration, one for each lane; their tensors are copied.

        `strategy` is "auto" or one of `STRATEGIES`. Raises `WrongTypeError` for a lane of another class, and
        `ArgumentError` for one that differs from lane 0 in configuration, shape, dtype, device or mode.
        """
        return cls(modules, strategy)

    def setup(self, members: list[Any]) -> None:
        """Hook for subclasses, called once the stacked tensors are registered; may add state or raise."""

    def arguments(self) -> list[Any]:
        """Return the kernel's arguments after the input."""
        return [getattr(self, name) for name in self.ARGUMENTS]

    def to_modules(self) -> list[nn.Module]:
        """Return the N lanes as ordinary modules with their own tensors."""
        mine = {name: t for name, t, _ in _slots(self)}
        out = []
        for lane in range(self.n):
            member = copy.deepcopy(self.skeleton)
            for name, hollow, _ in list(_slots(member)):
                wide = mine[name]
                if hollow is None or wide is None:
                    continue
                t = wide.detach()[lane].clone()
                owner, leaf = _owner(member, name)
                is_parameter = isinstance(hollow, nn.Parameter)
                setattr(owner, leaf, nn.Parameter(t, wide.requires_grad) if is_parameter else t)
            out.append(member.train(self.training))
        return out

    def check_input(self, x: Tensor) -> None:
        """Raise ArgumentError unless x has n lanes in front and one of the `DIMS` numbers of axes."""
        if x.dim() == 0 or x.shape[0] != self.n or (self.DIMS and x.dim() not in self.DIMS):
            axes = f" and {' or '.join(map(str, self.DIMS))} axes in all" if self.DIMS else ""
            raise ArgumentError(
                f"{type(self).__name__}: expected an input with {self.n} lanes as dimension 0{axes}, "
                f"got {tuple(x.shape)}"
            )

    def _facts(self, member: nn.Module) -> dict[str, object]:
        """Return what must be equal in all lanes: configuration, tensor metadata, training mode."""
        facts: dict[str, object] = {name: getattr(member, name, None) for name in self.CONFIG}
        for name, t, _ in _slots(member):
            if t is not None:
                facts[f"{name}.shape"] = tuple(t.shape)
                facts[f"{name}.dtype"] = t.dtype
                facts[f"{name}.device"] = str(t.device)
                facts[f"{name}.requires_grad"] = t.requires_grad
        facts["training"] = member.training
        return facts

    def _check(self, members: list[nn.Module]) -> None:
        """Raise unless all members can be stacked; the error names the lane and the difference."""
        wide = type(self).__name__
        if not members:
            raise ArgumentError(f"{wide}: got no modules; expected one for each lane")
        kinds = self.MEMBER if isinstance(self.MEMBER, tuple) else (self.MEMBER,)
        expected = " or ".join(f"nn.{kind.__name__}" for kind in kinds)
        for lane, member in enumerate(members):
            kind = next((k for k in kinds if isinstance(member, k)), None)
            # A subclass with its own forward computes something else than its base class.
            if kind is None or type(member).forward is not kind.forward:
                raise WrongTypeError(f"{wide}: lane {lane}: expected {expected}, got {type(member).__name__}")
            if not isinstance(members[0], kind):
                raise WrongTypeError(
                    f"{wide}: lane {lane} is {type(member).__name__}, lane 0 is {type(members[0]).__name__}; "
                    "all lanes must be of one class"
                )
            if any(t is not None and nn.parameter.is_lazy(t) for _, t, _ in _slots(member)):
                raise ArgumentError(
                    f"{wide}: lane {lane}: the parameters of {type(member).__name__} are not initialised; "
                    "run it once on an input first"
                )
            kinds_of_hooks = ("forward", "forward_pre", "backward", "backward_pre")
            hooks = [hook for kind in kinds_of_hooks for hook in getattr(member, f"_{kind}_hooks")]
            if nn.utils.parametrize.is_parametrized(member) or hooks:
                raise ArgumentError(
                    f"{wide}: lane {lane}: this {type(member).__name__} has hooks or parametrizations, which "
                    "a wide module would lose; remove them first"
                )
        first = self._facts(members[0])
        for lane, member in enumerate(members):
            facts = self._facts(member)
            for key in {**first, **facts}:
                got, want = facts.get(key), first.get(key)
                if got != want:
                    raise ArgumentError(
                        f"{wide}: lane {lane}: {key} is {got!r}, lane 0 has {want!r}; "
                        "all lanes must have the same configuration"
                    )

    def extra_repr(self) -> str:
        """Return n, the members' configuration and the strategy."""
        config = [f"{name}={getattr(self, name)!r}" for name in self.CONFIG if not name.startswith("_")]
        return ", ".join([f"n={self.n}", *config, f"strategy={self.strategy!r}"])


def direct_rule(op: str, primitive: Any) -> None:
    """Register the rule of an op whose arguments match those of `primitive.kernel`, each widened."""

    (overload,) = ops(op)
    count = sum("cudnn" not in argument.name for argument in overload._schema.arguments)  # cudnn flag: last

    @rule(overload)
    def run(b: Builder, *args: Any, **kwargs: Any) -> Val:
        b.choose(primitive, "wide")
        named = {name: b.wide(value) for name, value in kwargs.items() if "cudnn" not in name}
        return b.call(primitive.kernel, *map(b.wide, args[:count]), **named)
