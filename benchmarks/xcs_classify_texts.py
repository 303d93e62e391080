"""`classify_texts` of spec 003 with a real tokenizer and real, tiny encoders: what becomes of each loop.

    python benchmarks/xcs_classify_texts.py

The tokenizer is a WordPiece of the `tokenizers` library, trained here on the words of this file. The encoders
have random weights: one is written out (embedding, attention, feed-forward), one is `BertModel` of
`transformers`. Each program runs as the document has it, and once more in steps: token ids, tensors of one
length, embeddings, scores. Plain and jitted runs are timed in turns; ratios count. Writes
benchmarks/results/xcs_classify_texts.json.
"""

import itertools
import json
import sys
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn
from transformers import BertConfig, BertModel

from wide_compiler.benchmark.document import provenance
from wide_compiler.measure import interleaved
from wide_compiler.xcs import jit, module

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from xcs import oracle

RESULTS = Path(__file__).with_name("results") / "xcs_classify_texts.json"
WIDTH, HEADS, LENGTH, PAD = 32, 4, 24, 0
CALLS = 40


def trained_tokenizer() -> Tokenizer:
    """A small WordPiece, trained on this file: no download."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(Path(__file__).read_text().splitlines(), trainer)
    return tokenizer


class Block(nn.Module):
    """Attention and feed-forward over one text, `[tokens, WIDTH]`."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def heads(self, x):
        return x.view(x.shape[0], HEADS, WIDTH // HEADS).transpose(0, 1)

    def forward(self, x, mask):
        query, key, value = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = self.first(x + self.out(seen.transpose(0, 1).reshape(x.shape[0], WIDTH)))
        return self.second(x + self.down(F.gelu(self.up(x))))


class WrittenOut(nn.Module):
    """Token ids `[tokens]` to an embedding `[WIDTH]`; padding is not looked at."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.one, self.two = Block(), Block()

    def forward(self, ids):
        mask = ids != PAD
        x = self.words(ids) + self.places(torch.arange(ids.shape[0]))
        x = self.two(self.one(x, mask), mask)
        kept = mask.unsqueeze(1).float()
        return (x * kept).sum(0) / kept.sum()


class Bert(nn.Module):
    """The same by `transformers`."""

    def __init__(self, words: int) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=words,
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            intermediate_size=64,
            max_position_embeddings=LENGTH,
        )
        self.model = BertModel(config)

    def forward(self, ids):
        mask = ids != PAD
        found = self.model(ids.unsqueeze(0), attention_mask=mask.unsqueeze(0)).last_hidden_state[0]
        kept = mask.unsqueeze(1).float()
        return (found * kept).sum(0) / kept.sum()


class Model:
    """What the document calls `bert_model`."""

    def __init__(self, tokenizer: Tokenizer, network: nn.Module):
        self.tokenizer, self.network = tokenizer, network.eval()

    def tokenize(self, text):
        return self.tokenizer.encode(text).ids

    def encode(self, tokens):
        with torch.no_grad():
            return self.network(torch.tensor(tokens)).numpy()


@module
class TextEncoder:
    model: Any
    max_length: int = LENGTH

    def __call__(self, text: str) -> np.ndarray:
        tokens = self.model.tokenize(text)[: self.max_length]
        return self.model.encode(tokens)


@module
class Scorer:
    weights: np.ndarray
    bias: float = 0.0

    def __call__(self, embedding: np.ndarray) -> float:
        return float(embedding @ self.weights + self.bias)


trained_weights = np.linspace(-1.0, 1.0, WIDTH)


def as_the_document_has_it(bert_model, texts):
    encoder = TextEncoder(model=bert_model)
    scorer = Scorer(weights=trained_weights)
    embeddings = [encoder(text) for text in texts]
    scores = [scorer(emb) for emb in embeddings]
    return scores


def in_steps(bert_model, texts):
    tokenizer, network = bert_model.tokenizer, bert_model.network
    scorer = Scorer(weights=trained_weights)
    ids = [tokenizer.encode(text).ids[:LENGTH] for text in texts]
    tensors = [F.pad(torch.tensor(row), (0, LENGTH - len(row))) for row in ids]
    with torch.no_grad():
        embeddings = [network(tensor) for tensor in tensors]
    rows = [embedding.numpy() for embedding in embeddings]
    return [scorer(row) for row in rows]


def sentences(count: int) -> list[str]:
    words = sorted({w.strip("`'\".,:()[]") for w in Path(__file__).read_text().split()} - {""})
    endless = itertools.cycle(words)
    return [" ".join(itertools.islice(endless, 4 + i % 9)) for i in range(count)]


def milliseconds(call) -> float:
    began = perf_counter()
    call()
    return round(1e3 * (perf_counter() - began), 3)


def measured(name, plain, model, texts):
    fast = jit(plain)
    wanted = plain(model, texts)
    ways = {"plain": partial(plain, model, texts), "jit": partial(fast, model, texts)}
    took = [{way: milliseconds(call) for way, call in ways.items()} for _ in range(CALLS)]
    times = interleaved(ways, seconds=4.0, rounds_at_least=7)
    row = {
        "case": name,
        "texts": len(texts),
        "equal": oracle.same(wanted, fast(model, texts), rtol=1e-5),
        "first call, ms": took[0],
        "40 calls, x plain": round(sum(t["plain"] for t in took) / sum(t["jit"] for t in took), 2),
        "ms": {way: round(1e3 * seconds, 3) for way, seconds in times.items()},
        "x plain": round(times["plain"] / times["jit"], 2),
        "loops": {r.text: f"{r.how}: {r.why}".rstrip(": ") for r in fast.explain().rows},
    }
    print(json.dumps(row, indent=1), flush=True)
    print(fast.explain(), end="\n\n", flush=True)
    return row


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = trained_tokenizer()
    words, texts = tokenizer.get_vocab_size(), sentences(64)
    rows = [
        measured(f"{encoder.__name__}, {plain.__name__}", plain, Model(tokenizer, encoder(words)), texts)
        for encoder in (WrittenOut, Bert)
        for plain in (as_the_document_has_it, in_steps)
    ]
    RESULTS.write_text(json.dumps({**provenance(torch.device("cpu")), "rows": rows}, indent=1) + "\n")
    print(f"wrote {RESULTS}")


if __name__ == "__main__":
    main()
