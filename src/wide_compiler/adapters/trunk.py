"""Trunk: the tensors of the base, once for all lanes and without a copy."""

import copy
from typing import Any

from torch import Tensor, nn

from ..errors import InputError


class Trunk:
    """A frozen alias of a base model.

    Its parameters share memory with the base's but are separate tensors, so freezing them does not freeze the
    base. Buffers are copied, because a forward in training mode may write them.

    Args:
        base: the model under the adapters; it is not changed.
    """

    def __init__(self, base: nn.Module):
        aliases: dict[int, nn.Parameter] = {}
        for path, parameter in base.named_parameters():
            if nn.parameter.is_lazy(parameter):
                raise InputError(f"{path} is not initialised yet (a lazy module); run the base once first")
            aliases[id(parameter)] = alias(parameter)
        self.model: nn.Module = copy.deepcopy(base, dict(aliases))
        self._name_parameters()
        # Version counters of the base's own tensors, to detect writes.
        self.versions = [(path, p, p._version) for path, p in base.named_parameters()]

    def _name_parameters(self) -> None:
        self.parameters = {id(p): path for path, p in self.model.named_parameters()}

    def __getstate__(self) -> dict[str, Any]:
        # A copied tensor begins to count its writes anew: what is kept is how many were not accepted.
        written = [(path, p, p._version - version) for path, p, version in self.versions]
        return {**self.__dict__, "versions": written}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.versions = [(path, p, p._version - writes) for path, p, writes in self.versions]
        self._name_parameters()

    def copy(self) -> nn.Module:
        """Return a model with its own Python state and buffers over the same parameters."""
        return copy.deepcopy(self.model, {id(p): p for p in self.model.parameters()})

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor is one of the trunk's parameters."""
        return id(tensor) in self.parameters

    def check_unchanged(self) -> None:
        """Raise `InputError` if the base was written since the adapters were compiled."""
        for path, parameter, version in self.versions:
            if parameter._version != version:
                raise InputError(
                    f"{path} of the base was written to after the adapters were compiled over it: they would "
                    f"run on other weights than they were trained on; put the old weights back and call "
                    f"accept_base(), or call accept_base() to go on with the new ones, or give "
                    f"adapters.compile a copy of the base (copy.deepcopy)"
                )

    def accept(self) -> None:
        """Accept the base's current weights."""
        self.versions = [(path, p, p._version) for path, p, _ in self.versions]


def alias(parameter: nn.Parameter) -> nn.Parameter:
    """Return a frozen parameter over the same memory; quantised and wrapped ones are returned as they are."""
    return nn.Parameter(parameter.data, requires_grad=False) if type(parameter) is nn.Parameter else parameter


def adapter_tensors(model: nn.Module, trunk: Trunk) -> dict[str, Tensor]:
    """Return path -> parameters and buffers of a model that are not the trunk's; tied ones once."""
    own = [*model.named_parameters(), *model.named_buffers()]
    return {path: tensor for path, tensor in own if not trunk.holds(tensor)}


def copy_flags(target: nn.Module, source: nn.Module) -> None:
    """Copy train flags by path; modules that `source` lacks get the flag of `source` itself."""
    flags = {path: module.training for path, module in source.named_modules()}
    for path, module in target.named_modules():
        module.training = flags.get(path, source.training)
