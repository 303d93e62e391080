"""LoraLayer: a frozen linear, embedding or convolution layer plus a trained low-rank product."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ArgumentError

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class LoraLayer(nn.Module):
    """Compute `base_layer(x) + scaling * B(A(dropout(x)))`, with the names and shapes of PEFT's LoRA layers.

    Args:
        base_layer: `nn.Linear`, `nn.Embedding` or a convolution.
        rank: inner size of the product; A is random at first, B zero (for an embedding the reverse).
        scaling: alpha / rank.
        dropout: dropout rate of the input of A.
        path: path of the module, for errors.
    """

    base_layer: Any
    scaling: Any  # {adapter: number}
    use_dora: Mapping[str, bool] = MappingProxyType({})  # as in PEFT; here no adapter does

    def __init__(self, base_layer: nn.Module, rank: int, scaling: float, dropout: float, path: str):
        super().__init__()
        self.base_layer, self.r = base_layer, {"default": rank}
        self.scaling = {"default": scaling}
        self.lora_dropout = nn.ModuleDict({"default": nn.Dropout(dropout)})
        if isinstance(base_layer, nn.Embedding):
            weight = base_layer.weight
            own: Any = {"dtype": weight.dtype, "device": weight.device}
            a = torch.zeros(rank, base_layer.num_embeddings, **own)
            b = torch.empty(base_layer.embedding_dim, rank, **own)
            self.lora_embedding_A = nn.ParameterDict({"default": nn.Parameter(a)})
            self.lora_embedding_B = nn.ParameterDict({"default": nn.Parameter(nn.init.normal_(b))})
            return
        down, up = _factors(base_layer, rank, path)
        nn.init.kaiming_uniform_(down.weight, a=math.sqrt(5))
        nn.init.zeros_(up.weight)
        self.lora_A = nn.ModuleDict({"default": down})
        self.lora_B = nn.ModuleDict({"default": up})

    def get_base_layer(self) -> nn.Module:
        return self.base_layer

    def forward(self, x: Tensor) -> Tensor:
        out = self.base_layer(x)
        if isinstance(self.base_layer, nn.Embedding):
            inner = F.embedding(x, self.lora_embedding_A["default"].T, self.base_layer.padding_idx)
            return out + inner @ self.lora_embedding_B["default"].T * self.scaling["default"]
        inner = self.lora_A["default"](self.lora_dropout["default"](x))
        return out + self.lora_B["default"](inner) * self.scaling["default"]

    def delta(self) -> Tensor:
        """Return the change that the adapter adds to the base's weight."""
        if isinstance(self.base_layer, nn.Embedding):
            product = (self.lora_embedding_B["default"] @ self.lora_embedding_A["default"]).T
        else:
            down: Any = self.lora_A["default"].weight
            up: Any = self.lora_B["default"].weight
            product = (up.flatten(1) @ down.flatten(1)).reshape(self.base_layer.weight.shape)
        return product * self.scaling["default"]


def _factors(module: Any, rank: int, path: str) -> tuple[Any, Any]:
    """Create A and B on the device and in the dtype of the module."""
    own: Any = {"bias": False}
    if isinstance(module, (nn.Linear, *CONVS)):
        own |= {"dtype": module.weight.dtype, "device": module.weight.device}
    if isinstance(module, nn.Linear):
        return nn.Linear(module.in_features, rank, **own), nn.Linear(rank, module.out_features, **own)
    if isinstance(module, CONVS) and module.groups == 1:
        shape: Any = (module.kernel_size, module.stride, module.padding, module.dilation)
        kind: Any = type(module)
        down = kind(module.in_channels, rank, *shape, padding_mode=module.padding_mode, **own)
        return down, kind(rank, module.out_channels, 1, **own)
    raise ArgumentError(
        f"{path} is {type(module).__name__}, LoRA adapts nn.Linear, nn.Embedding and convolutions without "
        f"groups; for other modules install the extra 'peft' and use its configs"
    )
