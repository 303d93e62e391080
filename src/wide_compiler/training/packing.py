"""Conversion of a nested state to named tensors and JSON, and back, without pickle."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError
from ..remote_tensors import address

_PLAIN = (bool, int, float, str, type(None))
# Encoding of values that JSON lacks: {"$tensor": name}, {"$tuple": [...]}, ...
_TENSOR, _ARRAY, _TUPLE, _ITEMS, _COUNTER = "$tensor", "$array", "$tuple", "$items", "$counter"


def pack_state(tree: Any) -> tuple[dict[str, Tensor], str]:
    """Return the tensors by their path in `tree`, and the rest as JSON that refers to them.

    >>> tensors, text = pack_state({"step": 3, "state": {0: {"momentum": torch.ones(2)}}})
    >>> list(tensors), unpack_state(tensors, text)["state"][0]["momentum"].shape
    (['state.0.momentum'], torch.Size([2]))
    """
    packer = _Packer()
    skeleton = packer.walk(tree, "")
    return packer.tensors, json.dumps(skeleton)


def unpack_state(tensors: Mapping[str, Tensor], text: str) -> Any:
    """Return the state given to `pack_state`."""
    return _unwalk(json.loads(text), tensors)


class _Packer:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.seen: dict[tuple[Any, ...], str] = {}  # tied tensors are written once
        self.storages: set[int] = set()

    def walk(self, value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            return {_TENSOR: self._keep(value, path)}
        if isinstance(value, np.ndarray):
            return {_ARRAY: self._keep(torch.from_numpy(value), path)}
        if isinstance(value, np.generic):
            return self.walk(value.item(), path)
        if type(value) in _PLAIN:
            return value
        if isinstance(value, Counter):
            return {_COUNTER: [[self.walk(k, path), n] for k, n in value.items()]}
        if isinstance(value, Mapping):
            if all(isinstance(k, str) and not k.startswith("$") for k in value):
                return {k: self.walk(v, _below(path, k)) for k, v in value.items()}
            pairs = [(_below(path, k), k, v) for k, v in value.items()]
            return {_ITEMS: [[self.walk(k, below), self.walk(v, below)] for below, k, v in pairs]}
        if isinstance(value, (list, tuple)):
            items = [self.walk(v, _below(path, i)) for i, v in enumerate(value)]
            return {_TUPLE: items} if isinstance(value, tuple) else items
        raise CheckpointError(
            f"{path} is a {type(value).__name__}, which a checkpoint cannot hold; "
            f"it takes tensors, arrays, numbers, strings, None, and dicts, lists and tuples of these"
        )

    def _keep(self, tensor: Tensor, path: str) -> str:
        tensor = tensor.detach()
        whole = address(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device
        if tensor.numel() and whole in self.seen:
            return self.seen[whole]
        while path in self.tensors:  # {"a.b": x, "a": {"b": y}}
            path += "'"
        self.seen[whole] = path
        kept = tensor.cpu().contiguous()
        if kept.untyped_storage().data_ptr() in self.storages:  # safetensors rejects shared storages
            kept = kept.clone()
        self.storages.add(kept.untyped_storage().data_ptr())
        self.tensors[path] = kept
        return path


def _below(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _unwalk(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unwalk(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((kind, inside),) = value.items()
        if kind == _TENSOR:
            return tensors[inside]
        if kind == _ARRAY:
            return tensors[inside].numpy()
        if kind == _TUPLE:
            return tuple(_unwalk(v, tensors) for v in inside)
        if kind == _ITEMS:
            return {_unwalk(k, tensors): _unwalk(v, tensors) for k, v in inside}
        if kind == _COUNTER:
            return Counter({_unwalk(k, tensors): n for k, n in inside})
    return {k: _unwalk(v, tensors) for k, v in value.items()}
