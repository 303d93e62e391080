"""The whole models by name, with the sizes that are compared with other libraries as defaults."""

from torch import nn

from .nets import VOCABULARY, Block, ConvNet, DeepMlp, Gpt, Mlp, Recurrent, ResBlock
from .resnet import ResNet18
from .workload import Workload, floats, token_ids

_ALL = (
    Workload(
        name="mlp",
        about="two linear layers, 64-128-64",
        make=Mlp,
        inputs=floats(64),
        n=100,
        batch=32,
        sweep=(1, 2, 4, 10, 32, 100, 1000),
        few=(4, 100),
    ),
    Workload(
        name="deep_mlp",
        about="eight linear layers of width 64, gelu",
        make=DeepMlp,
        inputs=floats(64),
        n=20,
        batch=32,
        sweep=(1, 2, 4, 8, 20, 64),
        few=(4, 20),
    ),
    Workload(
        name="big_mlp",
        about="two large linear layers, 1024-4096-1024",
        make=lambda: Mlp(1024, 4096, 1024),
        inputs=floats(1024),
        n=32,
        batch=256,
        sweep=(1, 2, 8, 32),
        few=(2, 4),
        train_tolerance=1e-2,  # one ReLU of millions that rounds to the other side changes a gradient by 3e-3
    ),
    Workload(
        name="resblock",
        about="two 64-channel convolutions, BatchNorm, skip, 16x16",
        make=ResBlock,
        inputs=floats(64, 16, 16),
        n=20,
        batch=8,
        sweep=(1, 2, 4, 8, 20, 64),
        few=(4, 20),
    ),
    Workload(
        name="convnet",
        about="small CNN 3-32-64-64 with pools, 32x32",
        make=ConvNet,
        inputs=floats(3, 32, 32),
        n=64,
        batch=32,
        sweep=(1, 2, 4, 8, 16, 64),
        few=(4, 16),
    ),
    Workload(
        name="resnet18",
        about="ResNet18 on 64x64 pictures",
        make=ResNet18,
        inputs=floats(3, 64, 64),
        n=10,
        batch=8,
        sweep=(1, 2, 4, 10),
        few=(2, 4),
        train_tolerance=5e-2,  # one ReLU of many that rounds to the other side changes a gradient by as much
    ),
    Workload(
        name="gpt",
        about="four transformer blocks of width 256, 128 tokens",
        make=Gpt,
        inputs=token_ids(VOCABULARY, 128),
        n=8,
        batch=4,
        sweep=(1, 2, 4, 8, 32),
        few=(2, 8),
    ),
    Workload(
        name="block",
        about="one transformer block of width 256, 128 tokens",
        make=Block,
        inputs=floats(128, 256),
        n=32,
        batch=8,
        sweep=(1, 2, 4, 8, 32),
        few=(2, 8),
    ),
    Workload(
        name="lstm",
        about="LSTM 64-128 over 32 steps, the last one classified",
        make=lambda: Recurrent(nn.LSTM),
        inputs=floats(32, 64),
        n=32,
        batch=4,
        sweep=(1, 2, 4, 8, 32, 100),
        few=(4, 32),
    ),
    Workload(
        name="gru",
        about="GRU 64-128 over 32 steps, the last one classified",
        make=lambda: Recurrent(nn.GRU),
        inputs=floats(32, 64),
        n=32,
        batch=4,
        sweep=(1, 2, 4, 8, 32, 100),
        few=(4, 32),
    ),
)

MODELS: dict[str, Workload] = {workload.name: workload for workload in _ALL}
