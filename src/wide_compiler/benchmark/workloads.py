"""The whole models by name, in the sizes used to compare libraries; workloads by command-line name."""

import re
from functools import partial

from torch import nn

from ..errors import UnknownNameError
from .nets import VOCABULARY, ConvNet, DeepMlp, Gpt, Mlp, Recurrent, ResBlock, ResNet18, TransformerBlock
from .primitive_cases import PRIMITIVE_CASES
from .workload import Workload, floats, token_ids

# Name, description, member, input; lanes and batch to quote; lanes of the full and of the quick preset.
_ALL = (
    Workload(
        *("mlp", "two linear layers, 64-128-64", Mlp, floats(64)),
        *(100, 32, (1, 2, 4, 10, 32, 100, 1000), (4, 100)),
    ),
    Workload(
        *("deep_mlp", "eight linear layers of width 64, gelu", DeepMlp, floats(64)),
        *(20, 32, (1, 2, 4, 8, 20, 64), (4, 20)),
    ),
    Workload(
        *("big_mlp", "two large linear layers, 1024-4096-1024", lambda: Mlp(1024, 4096, 1024), floats(1024)),
        *(32, 256, (1, 2, 8, 32), (2, 4)),
        train_tolerance=1e-2,  # rounding may flip one ReLU of millions, which changes a gradient by 3e-3
    ),
    Workload(
        *("resblock", "two 64-channel convolutions, BatchNorm, skip, 16x16", ResBlock, floats(64, 16, 16)),
        *(20, 8, (1, 2, 4, 8, 20, 64), (4, 20)),
    ),
    Workload(
        *("convnet", "small CNN 3-32-64-64 with pools, 32x32", ConvNet, floats(3, 32, 32)),
        *(64, 32, (1, 2, 4, 8, 16, 64), (4, 16)),
    ),
    Workload(
        *("resnet18", "ResNet18 on 64x64 pictures", ResNet18, floats(3, 64, 64)),
        *(10, 8, (1, 2, 4, 10), (2, 4)),
        train_tolerance=5e-2,  # rounding may flip a ReLU, which changes a gradient by this much
    ),
    Workload(
        *("gpt", "four transformer blocks of width 256, 128 tokens", Gpt, token_ids(VOCABULARY, 128)),
        *(8, 4, (1, 2, 4, 8, 32), (2, 8)),
    ),
    Workload(
        *("block", "one transformer block of width 256, 128 tokens", TransformerBlock, floats(128, 256)),
        *(32, 8, (1, 2, 4, 8, 32), (2, 8)),
    ),
    *(
        Workload(
            name=kind.__name__.lower(),
            about=f"{kind.__name__} 64-128 over 32 steps, the last one classified",
            make=partial(Recurrent, kind),
            inputs=floats(32, 64),
            n=32,
            batch=4,
            sweep=(1, 2, 4, 8, 32, 100),
            few=(4, 32),
        )
        for kind in (nn.LSTM, nn.GRU)
    ),
)

MODELS: dict[str, Workload] = {workload.name: workload for workload in _ALL}


def families() -> dict[str, list[str]]:
    """Families of primitives: `batchnorm` -> `batchnorm1d`, `batchnorm2d`, `batchnorm3d`."""
    found: dict[str, list[str]] = {}
    for name in PRIMITIVE_CASES:
        if family := re.fullmatch(r"(.*)\dd", name):
            found.setdefault(family[1], []).append(name)
    return found


def choices() -> list[str]:
    """Every name that `find` accepts."""
    return list(dict.fromkeys(["all", "models", *PRIMITIVE_CASES, *families(), *MODELS]))


def find(name: str) -> list[Workload]:
    """Return the workloads of a name; raises `UnknownNameError` if there are none.

    `all` is every primitive, `models` every model. A name that a primitive and a model share (lstm, gru)
    selects both; `primitive:lstm` and `model:lstm` select one of them.
    """
    kind, _, bare = name.rpartition(":")
    if name == "all":
        return list(PRIMITIVE_CASES.values())
    if name == "models":
        return list(MODELS.values())
    found = [PRIMITIVE_CASES[each] for each in families().get(bare, [])]
    found += [table[bare] for table in (PRIMITIVE_CASES, MODELS) if bare in table]
    found = [workload for workload in found if kind in ("", workload.kind)]
    if not found:
        raise UnknownNameError(f"unknown workload {name!r}; choose one of {', '.join(choices())}")
    return found
