"""Networks as people train them, tiny, in float64: each with its data, its loss and how it is trained."""

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

WORDS, LENGTH, WIDTH = 24, 8, 16


class Block(nn.Module):
    """A pre-norm transformer block, causal."""

    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, 4, c // 4).transpose(1, 2) for part in self.qkv(self.norm_1(x)).split(c, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class NanoGpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv_1, self.conv_2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm_1, self.norm_2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        y = F.relu(self.norm_1(self.conv_1(x)))
        return F.relu(x + self.norm_2(self.conv_2(y)))


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def resnet():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), Residual(8), Pooled())


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.lstm = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        return self.head(self.lstm(self.words(ids))[0])


def _transformers(kind, **settings):
    import transformers

    config = getattr(transformers, kind[0])(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2 * WIDTH,
        attn_implementation="sdpa",
        **settings,
    )
    return getattr(transformers, kind[1])(config)


def bert():
    return _transformers(
        ("BertConfig", "BertForMaskedLM"),
        vocab_size=WORDS,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def llama():
    return _transformers(
        ("LlamaConfig", "LlamaForCausalLM"),
        vocab_size=WORDS,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )


def vit():
    return _transformers(
        ("ViTConfig", "ViTForImageClassification"),
        image_size=8,
        patch_size=4,
        num_labels=5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(6, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, 4))
        self.critic = nn.Sequential(nn.Linear(4, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, 1))


def words(rows):
    ids = torch.randint(0, WORDS, (rows, LENGTH + 1))
    return ids[:, :-1], ids[:, 1:]


def masked_words(rows):
    ids, wanted = words(rows)
    return ids, torch.where(torch.rand(ids.shape) < 0.4, wanted, -100)


def pictures(rows):
    return torch.randn(rows, 3, 8, 8, dtype=torch.float64), torch.randint(0, 5, (rows,))


def pairs(rows):
    return torch.randn(rows, 6, dtype=torch.float64), torch.randn(rows, 4, dtype=torch.float64)


def of_logits(model, x, y):
    out = model(x)
    return F.cross_entropy(out.flatten(0, -2), y.flatten())


def of_labels(model, x, y):
    return model(x, labels=y).loss


def adamw(model):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    # A gradient of nothing but rounding errors, divided by its own size, would move a weight at random.
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others}], lr=1e-2, eps=1e-4
    )


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


@dataclasses.dataclass
class Case:
    """second: the submodule that is the pipeline's second stage. weight: one that is cut where parameters
    are. mark: an op of the forward pass. tolerance: of losses and weights, in float64."""

    build: Callable
    data: Callable
    loss: Callable
    optimizer: Callable
    second: str
    weight: str
    mark: str
    tolerance: float = 1e-9


CASES = {
    "nanogpt": Case(NanoGpt, words, of_logits, adamw, "blocks.1", "blocks.0.up.weight", "aten.gelu.default"),
    "bert": Case(
        bert,
        masked_words,
        of_labels,
        adamw,
        "bert.encoder.layer.1",
        "bert.encoder.layer.0.output.dense.weight",
        "aten.gelu.default",
    ),
    "llama": Case(
        llama,
        words,
        of_labels,
        adamw,
        "model.layers.1",
        "model.layers.0.mlp.down_proj.weight",
        "aten.silu.default",
        1e-5,  # its norms, softmax and loss compute in float32 whatever its dtype
    ),
    "vit": Case(
        vit,
        pictures,
        of_labels,
        adamw,
        "vit.layernorm",
        "vit.embeddings.patch_embeddings.projection.weight",
        "aten.gelu.default",
    ),
    "resnet": Case(resnet, pictures, of_logits, momentum, "3", "3.conv_1.weight", "aten.convolution.default"),
    "lstm": Case(Lstm, words, of_logits, momentum, "head", "lstm.weight_hh_l0", "aten.embedding.default"),
    "gan": Case(Gan, pairs, None, None, "critic", "maker.0.weight", "aten.leaky_relu.default"),
}
