"""The example of the spec, as written but for its names."""

import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from wide_compiler.xcs import Config, jit, module
from xcs import oracle

trained_weights = np.linspace(-1.0, 1.0, 8)


class WaitingModel:
    """Stands in for a model behind a network: it waits, then answers."""

    def tokenize(self, text):
        return text.split()

    def encode(self, tokens):
        time.sleep(0.02)
        return np.full(8, float(len(tokens)))


class SmallModel:
    """A real one: an average of hashed embeddings."""

    def __init__(self):
        self.table = torch.nn.Embedding(64, 8, _weight=torch.linspace(0, 1, 512).view(64, 8))

    def tokenize(self, text):
        return [len(word) % 64 for word in text.split()]

    def encode(self, tokens):
        with torch.no_grad():
            return self.table(torch.tensor(tokens)).mean(0).double().numpy()


bert_model = WaitingModel()


@module
class TextEncoder:
    model: Any
    max_length: int = 512

    def __call__(self, text: str) -> np.ndarray:
        tokens = self.model.tokenize(text)[: self.max_length]
        return self.model.encode(tokens)


@module
class Scorer:
    weights: np.ndarray
    bias: float = 0.0

    def __call__(self, embedding: np.ndarray) -> float:
        return float(embedding @ self.weights + self.bias)


def classify_texts(texts: list[str]) -> list[float]:
    encoder = TextEncoder(model=bert_model)
    scorer = Scorer(weights=trained_weights)

    embeddings = [encoder(text) for text in texts]

    scores = [scorer(emb) for emb in embeddings]

    return scores


def test_with_a_model_that_waits(monkeypatch):
    fast = jit(classify_texts)
    texts = [f"some words {'more ' * i}" for i in range(48)]
    fast(texts)  # the analysis is paid from the time of plain loops
    got, wanted = fast(texts), classify_texts(texts)
    assert np.allclose(got, wanted) and type(got[0]) is float
    rows = {row.text: row for row in fast.explain().rows}
    encoding = rows["[encoder(text) for text in texts]"]
    assert "threads" in encoding.how and encoding.effect == "IO"
    at_once = jit(classify_texts, config=Config(measure=False))
    at_once(texts)
    assert [row.effect for row in at_once.explain().rows if row.op == "list"] == ["IO", "PURE"]


def test_with_a_small_real_model(monkeypatch):
    monkeypatch.setitem(globals(), "bert_model", SmallModel())
    fast = jit(classify_texts, config=Config(measure=False))
    texts = [f"some words {'more ' * i}" for i in range(24)]
    for _ in range(3):
        assert np.allclose(fast(texts), classify_texts(texts))
    encoding = next(row for row in fast.explain().rows if "encoder(text)" in row.text)
    assert encoding.effect == "PURE" and not encoding.wide
    assert "nothing to vectorise" in encoding.why  # said, not guessed


def test_with_a_real_tokenizer_and_a_real_encoder():
    """In the steps of benchmarks/xcs_classify_texts.py, whose encoder is proven and vectorised."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("transformers")
    path = Path(__file__).parents[2] / "benchmarks" / "xcs_classify_texts.py"
    spec = importlib.util.spec_from_file_location("xcs_classify_texts", path)
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    torch.manual_seed(0)
    tokenizer = page.trained_tokenizer()
    model = page.Model(tokenizer, page.WrittenOut(tokenizer.get_vocab_size()))
    texts = page.sentences(12)
    for program in (page.as_the_document_has_it, page.in_steps):
        fast = jit(program, config=Config(measure=False))
        for _ in range(2):
            assert oracle.same(fast(model, texts), program(model, texts), rtol=1e-5)
        how = {row.text: row.how for row in fast.explain().rows}
        assert "numpy lanes" in [*how.values()][-1]
        if program is page.in_steps:
            assert "torch vmap" in how["[network(tensor) for tensor in tensors]"]
        else:
            assert how["[encoder(text) for text in texts]"] == "loop"
