"""The base of every wide module: N members of one configuration, their tensors stacked by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..capture import make_skeleton
from ..errors import ArgumentError, WrongTypeError
from ..lanes import packed_to_stacked, stacked_to_packed
from ..widen.builder import Builder, Val
from ..widen.rules import ops, rule
from ._lanes import resolve


def _slots(module: nn.Module) -> Iterator[tuple[str, Tensor | None, bool]]:
    """(dotted name, tensor or None, persistent?) of every parameter and buffer, absent ones included."""
    for prefix, sub in module.named_modules():
        dot = prefix + "." if prefix else ""
        for name, p in sub._parameters.items():
            yield dot + name, p, True
        for name, b in sub._buffers.items():
            yield dot + name, b, name not in sub._non_persistent_buffers_set


def _owner(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The submodule that holds the tensor of a dotted name (made if it is missing), and the last part."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root, leaf


def _run_kernel(self: WideModule, x: Tensor) -> Tensor:
    """x: `[N, *]`, the member's input with lanes in front -> the member's output likewise."""
    self.check_input(x)
    return self.kernel(x, *[getattr(self, name) for name in self.ARGUMENTS])


def _split_arguments(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return packed_to_stacked((args, kwargs), module.n)


def _join_results(module: Any, args: tuple[Any, ...], results: Any) -> Any:
    return stacked_to_packed(results)


class WideModule(nn.Module):
    """N modules of one class and configuration as one module with a lane axis in front.

    `from_modules(modules)` stacks given members, and takes and gives `[N, B, ...]`. `WideLinear(n, 4, 8)`
    makes n fresh members of what follows n, and takes and gives `[B, N*C, ...]`, as `pack` makes it.

    Every parameter and buffer of the member exists here under the member's name, stacked to
    `[N, *member_shape]`. A subclass names its `MEMBER` class, the attributes of the member that are its
    configuration (`CONFIG`), the strategies it can run with (`STRATEGIES`) and, where the member insists
    on it, the number of axes of a wide input (`DIMS`, empty for any). Its `kernel` takes the input and the
    attributes named in `ARGUMENTS`, unless the subclass writes a `forward` of its own.
    """

    MEMBER: ClassVar[type[nn.Module] | tuple[type[nn.Module], ...]]
    kernel: ClassVar[Callable[..., Any]]
    CONFIG: ClassVar[tuple[str, ...]] = ()
    ARGUMENTS: ClassVar[tuple[str, ...]] = ()
    STRATEGIES: ClassVar[tuple[str, ...]] = ()
    DIMS: tuple[int, ...] = ()

    n: int
    strategy: str
    skeleton: nn.Module
    forward: Callable[..., Any] = _run_kernel  # subclasses take what their member takes

    if TYPE_CHECKING:  # configuration and stacked tensors are set by name

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, modules: Iterable[nn.Module] | int, *args: Any, **kwargs: Any) -> None:
        """`(modules, strategy="auto")`, as `from_modules`; or `(n, ...)`: n fresh members of the rest."""
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
            raise ArgumentError(f"{cls.__name__} may be of {kinds}: make them yourself, and use from_modules")
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
        # Past nn.Module.__setattr__: the skeleton must not become a submodule with parameters.
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
        """Stack modules of one class and configuration; their tensors are copied.

        Args:
            modules: one for each lane.
            strategy: "auto" or one of `STRATEGIES`.
        """
        return cls(modules, strategy)

    def setup(self, members: list[Any]) -> None:
        """What a subclass wants to add, or refuse, once the stacked tensors are in place."""

    def to_modules(self) -> list[nn.Module]:
        """The N lanes as ordinary modules with tensors of their own."""
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
        """Raise ValueError unless x has n lanes in front and as many axes as the member allows."""
        if x.dim() == 0 or x.shape[0] != self.n or (self.DIMS and x.dim() not in self.DIMS):
            axes = f" and {' or '.join(map(str, self.DIMS))} axes in all" if self.DIMS else ""
            raise ArgumentError(
                f"{type(self).__name__}: expected an input with {self.n} lanes as dimension 0{axes}, "
                f"got {tuple(x.shape)}"
            )

    def _facts(self, member: nn.Module) -> dict[str, object]:
        """All that must be the same in every lane: configuration, train flag, tensors."""
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
        """Refuse lanes that one wide module cannot stand for, naming the lane and what differs."""
        wide = type(self).__name__
        if not members:
            raise ArgumentError(f"{wide}: got no modules; expected one for each lane")
        kinds = self.MEMBER if isinstance(self.MEMBER, tuple) else (self.MEMBER,)
        expected = " or ".join(f"nn.{kind.__name__}" for kind in kinds)
        for lane, member in enumerate(members):
            kind = next((k for k in kinds if isinstance(member, k)), None)
            # A subclass that computes something else must not be taken for its base.
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
        """n, the members' configuration and the strategy."""
        config = [f"{name}={getattr(self, name)!r}" for name in self.CONFIG if not name.startswith("_")]
        return ", ".join([f"n={self.n}", *config, f"strategy={self.strategy!r}"])


def direct_rule(op: str, primitive: Any) -> None:
    """The rule of an op whose arguments, each with lanes, are those of the primitive's kernel."""

    (overload,) = ops(op)
    count = sum("cudnn" not in argument.name for argument in overload._schema.arguments)  # it stands last

    @rule(overload)
    def run(b: Builder, *args: Any, **kwargs: Any) -> Val:
        b.choose(primitive, "wide")
        named = {name: b.wide(value) for name, value in kwargs.items() if "cudnn" not in name}
        return b.call(primitive.kernel, *map(b.wide, args[:count]), **named)
