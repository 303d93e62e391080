"""Cross-validation: 5 folds of 8 learning rates are 40 lanes, trained by one `fit`, each on its own fold.

The data is scikit-learn's table of breast tumours: 569 samples, 30 numbers each, benign or malignant.

python examples/cross_validation.py          writes cross_validation.png (needs: pip install scikit-learn)
"""

import sys

import matplotlib
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import TensorDataset

import wide_compiler
from wide_compiler.training import AdamW, EarlyStop, fit, fold_batches, lane_losses

matplotlib.use("Agg")
import matplotlib.pyplot as plt

EPOCHS = 3 if "--quick" in sys.argv else 40
FOLDS, RATES = 5, [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1]

torch.manual_seed(0)
x, y = load_breast_cancer(return_X_y=True)
x, y = torch.tensor((x - x.mean(0)) / x.std(0)).float(), torch.tensor(y)
train, left_out = fold_batches(TensorDataset(x, y), FOLDS, batch_size=65, n=FOLDS * len(RATES))

net = nn.Sequential(nn.Linear(30, 32), nn.Tanh(), nn.Linear(32, 2))
wide = wide_compiler.compile(net, x[:2], n=FOLDS * len(RATES), init="copy")  # all from the same weights


def accuracy(out, target):
    return (out.argmax(-1) == target).float().mean(-1)


history = fit(
    wide,
    AdamW(wide.parameters(), lr=[rate for rate in RATES for _ in range(FOLDS)]),  # lane = (rate, fold)
    lane_losses.cross_entropy,
    train,
    epochs=EPOCHS,
    validation=left_out,
    metric={"loss": lane_losses.cross_entropy, "accuracy": accuracy},
    early_stop=EarlyStop(patience=5),  # by the first metric, the loss
)
print(f"{len(history.stopped)} of {history.n} lanes stopped early; {history.ended}")
best = history.best.view(len(RATES), FOLDS)
epochs = (history.best_step / len(train)).view(len(RATES), FOLDS)
for rate, losses, at in zip(RATES, best, epochs, strict=True):
    print(f"rate {rate:7.4f}: loss on left-out folds {losses.mean():.3f} +- {losses.std() / FOLDS**0.5:.3f}, "
          f"best after {at.mean():.0f} epochs")  # fmt: skip

figure, (curves, summary) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
for lane in range(history.n):
    colour = plt.get_cmap("viridis")(lane // FOLDS / len(RATES))
    curves.plot(
        range(1, len(history.validation) + 1), history.validation[:, lane], color=colour, linewidth=0.8
    )
curves.set(xlabel="epoch", ylabel="loss on the left-out fold", yscale="log", title="40 lanes, one training")
summary.plot(RATES, best, color="#c9d0fa", linewidth=0.8)
summary.errorbar(RATES, best.mean(1), best.std(1) / FOLDS**0.5, color="#4c5fd5", linewidth=2, capsize=3)
summary.set(xscale="log", xlabel="learning rate", title="best of each lane, mean over 5 folds")
figure.savefig("cross_validation.png", dpi=120)
print("written to cross_validation.png")
