"""The networks of the benchmarks and commands, by default in the sizes used to compare libraries."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 1024


class Mlp(nn.Module):
    def __init__(self, inputs: int = 64, hidden: int = 128, outputs: int = 64) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(x)))


class DeepMlp(nn.Module):
    def __init__(self, width: int = 64, depth: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x


class ResBlock(nn.Module):
    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + x)


class ConvNet(nn.Module):
    """Three convolutions, each followed by a pool: 32x32 becomes 4x4."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.conv3 = nn.Conv2d(64, 64, 3, padding=1)
        self.fc = nn.Linear(64 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.conv1, self.conv2, self.conv3):
            x = F.max_pool2d(F.relu(conv(x)), 2)
        return self.fc(x.flatten(1))


class TransformerBlock(nn.Module):
    """A causal transformer block with pre-norm."""

    def __init__(self, width: int = 256, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    places: Tensor

    def __init__(
        self, width: int = 256, heads: int = 8, depth: int = 4, longest: int = 128, words: int = VOCABULARY
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.positions = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words)
        self.register_buffer("places", torch.arange(longest))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(self.places[: ids.shape[1]])
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    """An LSTM or GRU with a linear classifier on the last step."""

    def __init__(
        self, kind: type[nn.LSTM] | type[nn.GRU], inputs: int = 64, hidden: int = 128, layers: int = 1
    ) -> None:
        super().__init__()
        self.rnn = kind(inputs, hidden, layers, batch_first=True)
        self.fc = nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0][:, -1])


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            shrink = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shrink, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet18(nn.Module):
    """The ResNet18 of torchvision, layer for layer, so that the workload needs only PyTorch."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.stages = nn.Sequential(
            *(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1)),
            *(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1)),
            *(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1)),
            *(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1)),
        )
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1)
        return self.fc(F.adaptive_avg_pool2d(self.stages(x), 1).flatten(1))
