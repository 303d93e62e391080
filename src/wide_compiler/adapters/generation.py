"""Forward and generation for batches whose rows use different adapters."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .. import _tree
from ..errors import ArgumentError, InputError, UnsupportedError
from .row_model import Arrangement, row_model


def rows(wide: Any, lanes: list[int], args: tuple, kwargs: dict[str, Any]) -> Any:
    """Return the base's output for a batch in which row i uses the adapter of `lanes[i]`."""
    if kwargs.get("labels") is not None or kwargs.get("use_cache"):
        name = "use_cache" if kwargs.get("use_cache") else "labels"
        raise ArgumentError(
            f"rows: with {name} the model returns outputs without one entry per row; leave {name} out"
        )
    arrangement = Arrangement(lanes)
    model = row_model(wide, arrangement.lanes)
    if hasattr(getattr(model, "config", None), "use_cache"):
        kwargs = {**kwargs, "use_cache": False}
    args, kwargs = arrangement.enter((args, kwargs), "rows: ")
    leaves, spec = _tree.flatten(model(*args, **kwargs))
    leaves = [arrangement.leave(x) if isinstance(x, Tensor) and x.dim() else x for x in leaves]
    return _tree.unflatten(leaves, spec)


def generate_rows(wide: Any, ids: Tensor, lanes: list[int], options: dict[str, Any]) -> Tensor:
    """Generate tokens `[rows, T]`; row i uses the adapter of `lanes[i]`."""
    arrangement = Arrangement(lanes)
    model = row_model(wide, arrangement.lanes)
    _check_generates(model)
    options = dict(options)
    seeds = options.pop("seeds", None)
    if options.get("return_dict_in_generate"):
        raise UnsupportedError("generate gives token ids alone; leave return_dict_in_generate out")
    by_row = {k: v for k, v in options.items() if isinstance(v, Tensor) and v.dim() and len(v) == len(lanes)}
    ids, by_row = arrangement.enter((ids, by_row), "generate: ")
    draws = _Draws(seeds, arrangement, wide) if seeds is not None else contextlib.nullcontext()
    with torch.no_grad(), draws:
        out = model.generate(ids, **{**options, **by_row})  # type: ignore[operator]
    out = arrangement.leave(out)
    return out[:, : max(_ends(model, out, ids.shape[1], options), default=out.shape[1])]


def generate_by_lane(wide: Any, inputs: Any, options: dict[str, Any]) -> list[Tensor]:
    """Return for each lane the tokens `[B, T]` that it would generate alone."""
    base = wide.room.model.get_base_model()
    _check_generates(base)
    prompts = _by_lane(inputs, wide.n, "inputs")
    options = dict(options)
    masks = options.pop("attention_mask", None)
    encodes = bool(getattr(base.config, "is_encoder_decoder", False))
    longest = max(prompt.shape[1] for prompt in prompts)
    padded = any(prompt.shape[1] < longest for prompt in prompts)
    if padded and not encodes and options.get("max_new_tokens") is None:
        raise InputError("prompts of different lengths: say how many tokens to add by max_new_tokens=")
    if padded or masks is not None:
        given = [torch.ones_like(prompt) for prompt in prompts]
        given = given if masks is None else _by_lane(masks, wide.n, "attention_mask")
        options["attention_mask"] = torch.cat([_pad(mask, longest, 0, not encodes) for mask in given])
    fill = _number(base, "pad_token_id", options, 0)
    ids = torch.cat([_pad(prompt, longest, fill, not encodes) for prompt in prompts])
    lanes = [lane for lane, prompt in enumerate(prompts) for _ in range(len(prompt))]
    out = generate_rows(wide, ids, lanes, options)
    times = len(out) // len(ids)
    found = []
    for prompt, block in zip(prompts, out.split([len(p) * times for p in prompts]), strict=True):
        begin = 0 if encodes else longest - prompt.shape[1]
        end = max(_ends(base, block, 1 if encodes else longest, options), default=block.shape[1])
        found.append(block[:, begin:end])
    return found


def _check_generates(model: Any) -> None:
    if not hasattr(model, "generate"):
        raise UnsupportedError(
            f"generate: {type(model).__name__} has no generate(), as models of Hugging Face have; "
            "call the wide model instead"
        )


def _by_lane(given: Any, n: int, what: str) -> list[Tensor]:
    if isinstance(given, Tensor):
        return list(given) if given.dim() == 3 and len(given) == n else [given] * n
    if len(given) != n or not all(isinstance(x, Tensor) and x.dim() == 2 for x in given):
        got = [tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__ for x in given]
        raise InputError(
            f"{what}: expected {n} tensors [B, T], one for each lane, or one tensor for all, got {got}"
        )
    return list(given)


def _pad(tensor: Tensor, length: int, value: int, left: bool) -> Tensor:
    missing = length - tensor.shape[1]
    return torch.nn.functional.pad(tensor, (missing, 0) if left else (0, missing), value=value)


def _number(model: Any, name: str, options: dict[str, Any], default: Any) -> Any:
    config = options.get("generation_config") or getattr(model, "generation_config", None)
    found = options.get(name, getattr(config, name, None))
    return default if found is None else found


def _ends(model: Any, tokens: Tensor, prompt: int, options: dict[str, Any]) -> Iterator[int]:
    """Yield for each row the position after its first end token."""
    ends = _number(model, "eos_token_id", options, [])
    ends = torch.as_tensor(ends, device=tokens.device).reshape(-1)
    for row in tokens:
        hits = torch.isin(row[prompt:], ends).nonzero()
        yield prompt + int(hits[0]) + 1 if len(hits) else len(row)


class _Draws(TorchFunctionMode):
    """Makes `torch.multinomial` use one generator per lane, as if each lane ran alone."""

    def __init__(self, seeds: Sequence[int], arrangement: Arrangement, wide: Any):
        super().__init__()
        if len(seeds) != wide.n:
            raise ArgumentError(f"seeds: expected one for each of {wide.n} lanes, got {len(seeds)}")
        device = wide._device()
        self.arrangement = arrangement
        self.generators = [torch.Generator(device).manual_seed(seeds[lane]) for lane in arrangement.lanes]

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function not in (torch.multinomial, Tensor.multinomial) or kwargs.get("generator") is not None:
            return function(*args, **kwargs)
        weights, *rest = args
        drawn = []
        each = len(weights) // len(self.generators)
        own = [count * each // self.arrangement.each for count in self.arrangement.counts]
        for part, generator, count in zip(weights.split(each), self.generators, own, strict=True):
            real = function(part[:count], *rest, **{**kwargs, "generator": generator})
            drawn.append(torch.cat([real, real[:1].expand(each - count, *real.shape[1:])]))
        return torch.cat(drawn)
