"""A custom `torch.autograd.Function` for all lanes at once: its forward and backward, each under vmap.

Works for functions whose Python does not depend on the lane. What they save on `ctx` gets a lane axis.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..guards.modes import no_inference_mode


class LaneContext:
    """The `ctx` of a function's forward and backward, for one lane inside vmap."""

    def __init__(self, needs_input_grad: tuple[bool, ...]):
        self.needs_input_grad = needs_input_grad
        self._lane_saved: tuple[Any, ...] = ()
        self._lane_without_gradient: list[int] = []
        self._lane_materialize = True

    def save_for_backward(self, *tensors: Any) -> None:
        self._lane_saved = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return self._lane_saved

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self._lane_without_gradient = [id(tensor) for tensor in tensors]

    def set_materialize_grads(self, value: bool) -> None:
        self._lane_materialize = value

    def mark_dirty(self, *tensors: Tensor) -> None:
        raise UnsupportedError("a function that writes its input runs lane by lane")

    def attributes(self) -> dict[str, Any]:
        """Attributes that the function itself has set on its `ctx`."""
        own = ("needs_input_grad", "_lane_saved", "_lane_without_gradient", "_lane_materialize")
        return {name: value for name, value in vars(self).items() if name not in own}


class LanesFunction(torch.autograd.Function):
    """`apply(function, wide, n, *args)`: `args[i]` has a lane axis where `wide[i]`."""

    @staticmethod
    def forward(ctx: Any, function: Any, wide: tuple[bool, ...], n: int, *args: Any) -> tuple[Tensor, ...]:
        needs = ctx.needs_input_grad[3:]
        seen: dict[str, Any] = {}

        def one_lane(*mapped: Tensor) -> tuple[Tensor, ...]:
            lane = iter(mapped)
            own = [next(lane) if w else arg for arg, w in zip(args, wide, strict=True)]
            context = LaneContext(needs)
            if function.setup_context is torch.autograd.Function.setup_context:
                out = function.forward(context, *own)
            else:
                out = function.forward(*own)
                function.setup_context(context, tuple(own), out)
            results = [out] if isinstance(out, Tensor) else list(out)
            if not all(isinstance(result, Tensor) for result in results):
                raise UnsupportedError("a function that gives more than tensors runs lane by lane")
            kept = [*context.saved_tensors, *context.attributes().values()]
            tensors = [item for item in kept if isinstance(item, Tensor)]
            seen.update(
                context=context,
                results=len(results),
                kept=[None if isinstance(item, Tensor) else (item,) for item in kept],
                without_gradient=[id(result) in context._lane_without_gradient for result in results],
            )
            return (*results, *tensors)

        with no_inference_mode():  # only tensors made without it count their writes
            args = tuple(a.clone() if isinstance(a, Tensor) and a.is_inference() else a for a in args)
        lanes = [arg for arg, w in zip(args, wide, strict=True) if w]
        versions = [arg._version for arg in args if isinstance(arg, Tensor)]
        flat = torch.vmap(one_lane, randomness="different")(*lanes)
        if versions != [arg._version for arg in args if isinstance(arg, Tensor)]:
            raise UnsupportedError("a function that writes its input runs lane by lane")
        results, tensors = flat[: seen["results"]], flat[seen["results"] :]
        ctx.function, ctx.wide, ctx.context = function, wide, seen["context"]
        ctx.kept, ctx.saved_count = seen["kept"], len(seen["context"].saved_tensors)
        ctx.names = list(seen["context"].attributes())
        ctx.shapes = [arg.shape if isinstance(arg, Tensor) else None for arg in args]
        ctx.save_for_backward(*tensors)
        pairs = zip(results, seen["without_gradient"], strict=True)
        ctx.mark_non_differentiable(*[result for result, without in pairs if without])
        ctx.set_materialize_grads(seen["context"]._lane_materialize)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """Run the function's own backward for each lane under vmap, which takes and returns tensors only."""
        present = [grad is not None for grad in grads]
        given: list[bool] = []

        def one_lane(*mapped: Tensor) -> tuple[Tensor, ...]:
            tensors = iter(mapped)
            own_grads = [next(tensors) if p else None for p in present]
            kept = [next(tensors) if item is None else item[0] for item in ctx.kept]
            context = LaneContext(ctx.needs_input_grad[3:])
            context.save_for_backward(*kept[: ctx.saved_count])
            vars(context).update(zip(ctx.names, kept[ctx.saved_count :], strict=True))
            found = ctx.function.backward(context, *own_grads)
            found = found if isinstance(found, tuple) else (found,)
            given[:] = [grad is not None for grad in found]
            return tuple(grad for grad in found if grad is not None)

        tensors = [grad for grad in grads if grad is not None]
        found = iter(torch.vmap(one_lane, randomness="different")(*tensors, *ctx.saved_tensors))
        result = [next(found) if there else None for there in given]
        return None, None, None, *map(_for_argument, result, ctx.wide, ctx.shapes)


def _for_argument(grad: Tensor | None, wide: bool, shape: Sequence[int] | None) -> Tensor | None:
    """Sum the gradient of a shared argument over lanes."""
    if grad is None or shape is None:
        return None
    grad = grad if wide else grad.sum(0)
    return grad if grad.shape == shape else grad.sum_to_size(shape)
