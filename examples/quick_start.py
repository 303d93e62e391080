"""A hundred networks at once: compile, run, train, take one out.

python examples/quick_start.py
"""

import torch
from torch import nn

import wide_compiler


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


models = [MLP() for _ in range(100)]
wide = wide_compiler.compile(models, torch.randn(1, 64), validate=True)

x = torch.randn(32, 64)
out = wide.shared(x)
loop = torch.stack([model(x) for model in models])
print(f"one pass for all: {tuple(out.shape)}, largest difference to the loop {(out - loop).abs().max():.1e}")

optimizer = torch.optim.AdamW(wide.parameters(), lr=1e-3)
for _ in range(20):
    optimizer.zero_grad()
    losses = (wide.shared(x) - x).square().mean(dim=(1, 2))  # [100], one per lane
    losses.sum().backward()
    optimizer.step()
best = int(losses.argmin())
print(f"after 20 steps: best lane {best} with loss {losses[best]:.3f}, worst {losses.max():.3f}")
print(f"lane {best} is an ordinary model again: {wide.lane(best)}")
