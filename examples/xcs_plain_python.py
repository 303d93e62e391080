"""Plain Python with loops, and `@jit` above it: waiting calls overlap, NumPy rows are scored at once."""

import time

import numpy as np

from wide_compiler.xcs import jit, module


class Model:
    """Stands in for a model behind a network: it waits, then answers."""

    def tokenize(self, text):
        return text.split()

    def encode(self, tokens):
        time.sleep(0.02)
        return np.full(64, float(len(tokens)))


@module
class TextEncoder:
    model: Model
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


model = Model()
weights = np.linspace(-1.0, 1.0, 64)


@jit
def classify_texts(texts):
    encoder = TextEncoder(model=model)
    scorer = Scorer(weights=weights)
    embeddings = [encoder(text) for text in texts]
    return [scorer(embedding) for embedding in embeddings]


if __name__ == "__main__":
    texts = ["a few words " * (1 + i % 3) for i in range(32)]
    for name, function in (("plain", classify_texts.__wrapped__), ("jit", classify_texts)):
        began = time.perf_counter()
        scores = function(texts)
        print(f"{name}: {len(scores)} texts in {1e3 * (time.perf_counter() - began):.0f} ms")
    print()
    print(classify_texts.explain())
