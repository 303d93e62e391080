"""The zoo run through the oracle: helpers shared by the tests."""

import copy

import torch
from torch import nn

import wide_compiler
from nightly import NIGHTLY
from zoo import Case


def make_models(
    case: Case, n: int, train: bool = False, dtype: torch.dtype = torch.float32
) -> list[nn.Module]:
    """N fresh members; for training with every dropout off, so that two runs can be compared."""
    torch.manual_seed(sum(map(ord, case.name)))
    models = [case.make().to(dtype).train(train) for _ in range(n)]
    if train:
        for model in models:
            dropout_off(model)
    return models


def dropout_off(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0


def make_inputs(
    case: Case, batch: int, n: int, dtype: torch.dtype = torch.float32
) -> list[tuple[tuple, dict]]:
    def cast(x):
        return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    return [torch.utils._pytree.tree_map(cast, case.inputs(batch)) for _ in range(n)]


def compile_case(case: Case, models: list[nn.Module], sample: tuple[tuple, dict]) -> wide_compiler.WideModel:
    """By day all lanes run through the lane graph; at night by whatever the clock finds fastest."""
    args, kwargs = copy.deepcopy(sample)
    config = wide_compiler.WideConfig(measure=NIGHTLY)
    return wide_compiler.compile(models, args, sample_kwargs=kwargs, config=config)
