"""Attention over N lanes: the lanes are folded into the batch.

Shapes: N lanes, B batch, H heads, L queries, S keys, E width of a head, M width of the model.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import kernels
from ..errors import ArgumentError, WrongTypeError
from ..widen.builder import Builder, Val
from ..widen.rules import ops, rule
from ._lanes import align, autocast_dtype, check_lanes, resolve
from ._module import WideModule
from .linear import wide_linear

ATTENTION_STRATEGIES = ("fused", "tensor_core", "sequential")


def wide_sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    strategy: str = "auto",
    mask_wide: bool = True,
) -> Tensor:
    """Run `F.scaled_dot_product_attention` in every lane: `[N, *, L, Ev]`.

    Args:
        q, k, v: `[N, *, L, E]`, `[N, *, S, E]`, `[N, *, S, Ev]`; `*` are the member's leading axes: none, B,
            or B and H (or more).
        attn_mask: bool or float, broadcastable to a member's `[*, L, S]`; with a lane axis in front if
            `mask_wide`, else without one and shared by all lanes.
        strategy: "fused" (one call, lanes folded into the batch), "tensor_core" (a Triton kernel on CUDA,
            without mask or dropout; falls back to "fused"), "sequential" (one call per lane), or "auto",
            which is "fused".
    """
    op = "wide_sdpa"
    n = check_lanes(op, q=q, k=k, v=v, attn_mask=attn_mask if mask_wide else None)
    options: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    options["enable_gqa"] = enable_gqa
    chosen = resolve(strategy, ATTENTION_STRATEGIES, auto="fused", op=op)
    if chosen == "sequential":
        masks = attn_mask.unbind(0) if attn_mask is not None and mask_wide else [attn_mask] * n
        lanes = zip(q.unbind(0), k.unbind(0), v.unbind(0), masks, strict=True)
        return torch.stack([F.scaled_dot_product_attention(*qkvm, **options) for qkvm in lanes])

    # torch's fused kernels take four axes [N*B, H, L, E]; three or five would run unfused.
    member_rank = max(q.dim(), k.dim(), v.dim())
    rank = max(member_rank, 4)
    q, k, v = (align(t, rank) for t in (q, k, v))
    lead = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    q, k, v = (t.expand(*lead, *t.shape[-3:]).flatten(0, -4) for t in (q, k, v))
    if attn_mask is not None:
        mask = align(attn_mask if mask_wide else attn_mask.unsqueeze(0), rank)
        if math.prod(mask.shape[:-3]) == 1:  # shared mask: broadcast in the kernel, not in memory
            attn_mask = mask.reshape(1, *mask.shape[-3:])
        else:
            attn_mask = mask.expand(*lead, *mask.shape[-3:]).flatten(0, -4)
    if chosen == "tensor_core" and tensor_core_fits(q, k, v, attn_mask, dropout_p, enable_gqa):
        from ..kernels.lane_attention import lane_attention

        y = lane_attention(q, k, v, is_causal, scale).unflatten(0, lead)
    else:
        y = F.scaled_dot_product_attention(q, k, v, attn_mask, **options).unflatten(0, lead)
    return y if member_rank == rank else y.squeeze(1)


def tensor_core_fits(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, dropout_p: float, enable_gqa: bool
) -> bool:
    """Return whether the Triton kernel supports these `[batch, H, L, E]` operands and may be faster."""
    if not q.is_cuda or enable_gqa or q.dtype != torch.float32 or autocast_dtype(q):
        return False
    if not kernels.can_run(q, k, v):
        return False
    from ..kernels.lane_attention import fits

    return q.dim() == 4 and q.shape[:2] == k.shape[:2] == v.shape[:2] and fits(q, k, v, attn_mask, dropout_p)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to the scores; True in a bool mask (key excluded) becomes -inf, False 0."""
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)
    if not mask.is_floating_point():
        raise WrongTypeError(f"WideAttention: expected a bool or floating-point mask, got {mask.dtype}")
    return mask


class WideAttention(WideModule):
    """N `nn.MultiheadAttention` layers.

    Takes and returns what `nn.MultiheadAttention` does, with a lane axis in front. A mask may omit the lane
    axis where its rank is unambiguous; it then applies to every lane.
    """

    kernel = staticmethod(wide_sdpa)
    MEMBER = nn.MultiheadAttention
    CONFIG = (
        *("embed_dim", "num_heads", "kdim", "vdim", "dropout", "batch_first", "add_zero_attn"),
        "_qkv_same_embed_dim",
    )
    STRATEGIES = ATTENTION_STRATEGIES
    DIMS = (3, 4)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Return the projected q, k and v; one matrix product if all three inputs are the same tensor."""
        w, b = self.in_proj_weight, self.in_proj_bias
        if w is not None and query is key and key is value:
            return list(wide_linear(query, w, b).chunk(3, -1))
        own = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None, None, None) if b is None else b.chunk(3, 1)
        return [*map(wide_linear, (query, key, value), own if w is None else w.chunk(3, 1), biases)]

    def _split_heads(self, t: Tensor, batched: bool) -> Tensor:
        """Reshape the member's layout with lanes in front to `[N, B, H, L, E]`, a view."""
        if not batched:
            t = t.unsqueeze(1)
        elif not self.batch_first:
            t = t.transpose(1, 2)
        return t.unflatten(-1, (self.num_heads, -1)).transpose(2, 3)

    def _attn_mask(self, mask: Tensor, batch: int, dtype: torch.dtype) -> Tensor:
        """Reshape `[L, S]`, `[N, L, S]` or `[N, B*H, L, S]` to `[N or 1, B or 1, H or 1, L, S]`."""
        mask = _additive(mask, dtype)
        if mask.dim() == 2:
            return mask[None, None, None]
        if mask.dim() == 3 and mask.shape[0] == self.n:
            return mask[:, None, None]
        if mask.dim() == 4 and tuple(mask.shape[:2]) == (self.n, batch * self.num_heads):
            return mask.unflatten(1, (batch, self.num_heads))
        raise ArgumentError(
            f"WideAttention: expected an attn_mask [L, S], [N, L, S] or [N, B*H, L, S] with N = {self.n}, "
            f"B = {batch}, H = {self.num_heads}, got {tuple(mask.shape)}"
        )

    def _key_padding_mask(self, mask: Tensor, batch: int, batched: bool, dtype: torch.dtype) -> Tensor:
        """Reshape `[N, B, S]` or `[B, S]` (unbatched: `[N, S]` or `[S]`) to `[N or 1, B, 1, 1, S]`."""
        wide = (self.n, batch) if batched else (self.n,)
        if tuple(mask.shape[:-1]) not in (wide, wide[1:]):
            axes = "[N, B, S] or [B, S]" if batched else "[N, S] or [S]"
            raise ArgumentError(
                f"WideAttention: expected a key_padding_mask {axes} with N = {self.n}, B = {batch}, "
                f"got {tuple(mask.shape)}"
            )
        lanes = self.n if tuple(mask.shape[:-1]) == wide else 1
        return _additive(mask, dtype).reshape(lanes, batch, 1, 1, mask.shape[-1])

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Run `nn.MultiheadAttention.forward` in every lane, with the same options.

        Args:
            query: `[N, B, L, M]` if batch_first, else `[N, L, B, M]`; unbatched `[N, L, M]`.
            key, value: the same with S for L and kdim, vdim for M.
            key_padding_mask: `[N, B, S]`, or `[B, S]` for all lanes (unbatched `[N, S]`, `[S]`).
            attn_mask: `[N, L, S]` or `[N, B*H, L, S]`, or `[L, S]` for all lanes.

        Returns:
            The output in the query's layout, and the weights `[N, B, L, S]` (`[N, B, H, L, S]` if not
            averaged, without B if unbatched) or None.
        """
        self.check_input(query)
        batched = query.dim() == 4
        q, k, v = (self._split_heads(t, batched) for t in self._project(query, key, value))
        batch = q.shape[1]
        if is_causal and attn_mask is None:
            raise ArgumentError("WideAttention: is_causal says attn_mask is causal; pass the attn_mask too")

        is_causal = is_causal and key_padding_mask is None and not need_weights
        masks = []
        if attn_mask is not None and not is_causal:
            masks.append(self._attn_mask(attn_mask, batch, q.dtype))
        if key_padding_mask is not None:
            masks.append(self._key_padding_mask(key_padding_mask, batch, batched, q.dtype))
        mask = sum(masks[1:], masks[0]) if masks else None

        real_keys = k.shape[-2]
        bias_k = getattr(self, "bias_k", None)  # absent unless the member has add_bias_kv
        if bias_k is not None:

            def as_key(bias: Tensor) -> Tensor:  # [N, 1, 1, M] -> [N, B, H, 1, E]
                return self._split_heads(bias, True).expand(-1, batch, -1, -1, -1)

            k, v = torch.cat([k, as_key(bias_k)], -2), torch.cat([v, as_key(self.bias_v)], -2)
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        if mask is not None:  # the appended keys are never masked
            mask = F.pad(mask, (0, k.shape[-2] - real_keys))

        dropout_p = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.mT
            weights = torch.softmax(scores if mask is None else scores + mask, -1)
            weights = F.dropout(weights, dropout_p) if dropout_p > 0 else weights
            y_NBHLE = weights @ v
            weights = weights.mean(2) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(1)
        else:
            wide = mask is not None and mask.shape[0] == self.n
            mask = mask if mask is None or wide else mask[0]
            options: Any = {"strategy": self.strategy, "mask_wide": wide}
            y_NBHLE = self.kernel(q, k, v, mask, dropout_p, is_causal, **options)
        y = wide_linear(y_NBHLE.transpose(2, 3).flatten(-2), self.out_proj.weight, self.out_proj.bias)
        if not batched:
            return y.squeeze(1), weights
        return (y if self.batch_first else y.transpose(1, 2)), weights


@rule(*ops("scaled_dot_product_attention.default"))
def sdpa_rule(
    b: Builder,
    q: Val,
    k: Val,
    v: Val,
    attn_mask=None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale=None,
    enable_gqa: bool = False,
) -> Val:
    own = q.value.is_cuda and q.value.dtype == torch.float32 and attn_mask is None and not dropout_p
    strategy = b.choose(WideAttention, "fused", None if own else ("fused", "sequential"))
    settings = (attn_mask, dropout_p, is_causal, scale, enable_gqa, strategy)
    mask_has_lanes = attn_mask is not None and attn_mask.wide
    return b.call(WideAttention.kernel, *map(b.wide, (q, k, v)), *settings, mask_has_lanes)
