"""A training loop placed by a YAML file, a checkpoint, and the loss beside one process.

python examples/signals_from_yaml.py
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("GT_CONFIG", str(Path(__file__).parent / "signals_training.yaml"))

import torch

import wide_compiler.signals as gt
from wide_compiler.signals.nn import SGD, Linear, Module


class Model(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def main() -> None:
    torch.manual_seed(0)
    model, alone = Model(), Model()
    alone.load_state_dict(model.state_dict())
    X, y = torch.randn(64, 16), torch.randn(64, 4)
    X_train, y_train = gt.tensor(X), gt.tensor(y)
    optimizer, reference = SGD(model.parameters(), lr=0.05), SGD(alone.parameters(), lr=0.05)

    for epoch in range(20):
        with gt.signal.context("forward_pass"):
            loss = ((model(X_train) - y_train) ** 2).mean()
        loss.backward()
        with gt.signal.context("parameter_updates"):
            optimizer.step()
            optimizer.zero_grad()

        expected = ((alone(X) - y) ** 2).mean()
        expected.backward()
        reference.step()
        reference.zero_grad()
        if epoch % 5 == 0:
            print(f"epoch {epoch:2d}: {loss.item():.6f} on two workers, {expected.item():.6f} in one process")

    with tempfile.TemporaryDirectory() as folder:
        gt.checkpoint(folder, model=model, optimizer=optimizer)
        before = model.layer.weight.detach().cpu()
        gt.restart(folder, model=model, optimizer=optimizer)
        after = model.layer.weight.detach().cpu()
        print("equal after a restart from the checkpoint:", torch.equal(before, after))
    gt.shutdown()


if __name__ == "__main__":
    main()
