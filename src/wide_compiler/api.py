"""compile() and WideBuilder: from N models to one wide model.

models, sample
  -> check_models          check that all lanes have one architecture             capture/
  -> build_tree            stack the parameters under the members' names          model/
  -> export_member         export one graph of ATen ops, with per-lane scalars    capture/
  -> widen                 each node by its wide rule, else vmap, else a loop     widen/, primitives/
  -> WideModel             call, read, save and load the lanes                    model/
"""

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from . import _tree
from .config import WideConfig
from .errors import AlignmentError, ArgumentError, WrongTypeError
from .initialize import make_lanes
from .model import WideModel
from .remote_tensors import memory_id, to_local

GraphPass = Callable[[fx.Graph], fx.Graph | None]
# Calls the function that builds a wide model; `signals` replaces it, to place the lanes on workers.
build_model: Callable[[Callable[[], WideModel]], WideModel] = operator.call


def _here(x: Any) -> Any:
    return to_local(x) if isinstance(x, torch.Tensor) else x


def compile(
    models: nn.Module | Sequence[nn.Module],
    sample: Any = None,
    n: int | None = None,
    *,
    sample_input: Any = None,
    sample_kwargs: Mapping[str, Any] | None = None,
    init: str | Callable[..., Any] = "fresh",
    config: WideConfig | None = None,
    compile_model: bool | None = None,
    compile_mode: str | None = None,
    validate: bool | None = None,
    debug: bool | None = None,
    graph_passes: Sequence[GraphPass] = (),
    chunk_lanes: int | None = None,
    views: bool = False,
) -> WideModel:
    """Fuse N models of one architecture into one wide model.

    Args:
        models: a list of N models, or one model together with `n`.
        sample: one member's input: a tensor, a tuple of positional arguments or a dict of keywords. The batch
            size may vary later, as may every dim that the model does not fix.
        n: the number of lanes to make from a single model.
        sample_input: another name for `sample`.
        sample_kwargs: keyword arguments beside a tensor or tuple.
        init: with `n`: 'fresh' initialises the weights of every lane anew, 'copy' copies the model's weights,
            a callable gets (copy of the model, lane) and initialises it in place or returns another model.
        config: a `WideConfig`; the options below override its fields.
        compile_model: run the lane graph through `torch.compile`, in `compile_mode`.
        validate: compare with the loop over the models on the sample; raises `ValidationError`.
        debug: print a summary of the wide model.
        graph_passes: functions that transform the captured graph of one member before it is widened.
        chunk_lanes: run at most this many lanes at a time.
        views: make the models' tensors views of the wide model's, so that the models follow its training.

    >>> import torch
    >>> wide = compile([nn.Linear(4, 2) for _ in range(3)], torch.randn(1, 4))
    >>> wide.shared(torch.randn(5, 4)).shape
    torch.Size([3, 5, 2])
    """
    changes: dict[str, Any] = {
        "compile": compile_model,
        "compile_mode": compile_mode,
        "validate": validate,
        "verbose": debug,
        "chunk_lanes": chunk_lanes,
    }
    if config is not None and not isinstance(config, WideConfig):
        raise WrongTypeError(
            f"config must be a WideConfig, got {config!r}; WideConfig.preset(name) gives one by name"
        )
    if sample_input is not None:
        if sample is not None:
            raise ArgumentError("sample_input is another name for sample: give one of the two")
        sample = sample_input
    config = (config or WideConfig()).replace(**{k: v for k, v in changes.items() if v is not None})
    with _unchanged_on_error():
        members = _members(models, n, init)
        _refuse_elsewhere(members)
        sample, sample_kwargs = _tree.tree_map(_here, (sample, sample_kwargs))
        wide = build_model(
            lambda: WideModel(members, sample, sample_kwargs, config, views=views, graph_passes=graph_passes)
        )
    if config.verbose:
        _print_build(wide)
    if config.validate:
        wide.validate(members)
    return wide


@contextlib.contextmanager
def _unchanged_on_error() -> Iterator[None]:
    """Restore the random state if the block raises."""
    state = torch.get_rng_state()
    try:
        yield
    except BaseException:
        torch.set_rng_state(state)
        raise


def _members(models: Any, n: int | None, init: Any) -> list[nn.Module]:
    # A ModuleList is a container of models; any other single module is one model.
    if isinstance(models, nn.Module) and not isinstance(models, nn.ModuleList):
        if n is None:
            raise AlignmentError(
                "got one model; pass n= for the number of lanes to make of it, or a list of models"
            )
        return make_lanes(models, n, init)
    if isinstance(models, (str, bytes, Mapping)) or not hasattr(models, "__iter__"):
        raise AlignmentError(
            f"compile takes a list of models, or one model and n=, got {type(models).__name__}"
        )
    members = list(models)
    if n is not None and (n != len(members) or isinstance(n, bool)):
        raise AlignmentError(f"n={n} but {len(members)} models were given; n= goes with a single model")
    return members


def _refuse_elsewhere(members: list[nn.Module]) -> None:
    """Raise `AlignmentError` for members on workers: stacking would copy all of them to this process."""
    for lane, member in enumerate(members):
        tensors = (
            [*member.named_parameters(), *member.named_buffers()] if isinstance(member, nn.Module) else []
        )
        for name, x in tensors:
            if memory_id(x) is not None:
                raise AlignmentError(
                    f"lane {lane}: {name} lies on workers already; make the models outside of any signal's "
                    "context, and compile them inside it"
                )


def _print_build(wide: WideModel) -> None:
    from rich.console import Console

    console = Console()
    console.print(wide.summary(), highlight=False)
    console.print(str(wide.explain(measure=False)), highlight=False)


class WideBuilder:
    """`compile` step by step: `WideBuilder(models).with_sample(x).validate().compile().build()`."""

    def __init__(self, models: nn.Module | Sequence[nn.Module], n: int | None = None):
        self._models = models
        self._options: dict[str, Any] = {"n": n}
        self._config = WideConfig()
        self._sample: tuple[Any, Mapping[str, Any] | None] | None = None

    def with_sample(self, sample: Any, **sample_kwargs: Any) -> "WideBuilder":
        """Set the member's sample input."""
        self._sample = (sample, sample_kwargs or None)
        return self

    def with_config(self, config: WideConfig) -> "WideBuilder":
        """Set the configuration that later steps modify."""
        self._config = config
        return self

    def validate(self, rtol: float | None = None, atol: float | None = None) -> "WideBuilder":
        """Compare with the loop in `build`."""
        limits = {"validate_rtol": rtol, "validate_atol": atol}
        return self._with(validate=True, **{k: v for k, v in limits.items() if v is not None})

    def compile(self, mode: str = "default", backend: str = "inductor") -> "WideBuilder":
        """Run the lane graph through `torch.compile`."""
        return self._with(compile=True, compile_mode=mode, backend=backend)

    def debug(self, on: bool = True) -> "WideBuilder":
        """Print a summary in `build`."""
        return self._with(verbose=on)

    def with_options(self, **options: Any) -> "WideBuilder":
        """Set further options of `wide_compiler.compile`."""
        self._options.update(options)
        return self

    def build(self) -> WideModel:
        if self._sample is None:
            raise ArgumentError("WideBuilder needs a sample: call .with_sample(x) before .build()")
        sample, sample_kwargs = self._sample
        return compile(
            self._models, sample, sample_kwargs=sample_kwargs, config=self._config, **self._options
        )

    def _with(self, **changes: Any) -> "WideBuilder":
        self._config = self._config.replace(**changes)
        return self
