"""Plain Python with loops, and `@jit` above it: waiting calls overlap, NumPy rows are scored at once.

python examples/xcs_plain_python.py          writes xcs_plain_python.png
"""

import time

import matplotlib
import numpy as np

from wide_compiler.xcs import jit, module

matplotlib.use("Agg")
import matplotlib.pyplot as plt


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
    counts = (1, 2, 4, 8, 16, 32)
    times = {"plain Python": [], "with @jit": []}
    for count in counts:
        texts = ["a few words " * (1 + i % 3) for i in range(count)]
        classify_texts(texts)  # what is measured are warm calls
        for name, function in (("plain Python", classify_texts.__wrapped__), ("with @jit", classify_texts)):
            began = time.perf_counter()
            scores = function(texts)
            times[name].append(1e3 * (time.perf_counter() - began))
            print(f"{name}: {len(scores)} texts in {times[name][-1]:.0f} ms")
    print()
    print(classify_texts.explain())

    figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
    for (name, values), colour in zip(times.items(), ("#e8833a", "#4c5fd5"), strict=True):
        axes.plot(counts, values, "o-", color=colour, label=name)
    axes.set(xscale="log", yscale="log", xlabel="texts", ylabel="milliseconds of one call")
    axes.set_xticks(counts, counts)
    axes.set_title("Each text waits 20 ms for an answer")
    axes.legend(frameon=False)
    figure.savefig("xcs_plain_python.png", dpi=110)
    print("written to xcs_plain_python.png")
