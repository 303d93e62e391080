"""Many adapters on one frozen base: the base is one object in all lanes, so it runs once for all of them.

python examples/adapters_on_one_base.py
"""

import torch
from torch import nn

import wide_compiler

base = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU()).requires_grad_(False)
models = [nn.Sequential(base, nn.Linear(256, 4)) for _ in range(64)]
wide = wide_compiler.compile(models, torch.randn(1, 32))

x, targets = torch.randn(128, 32), torch.randint(0, 4, (64, 128))
optimizer = torch.optim.Adam([p for p in wide.parameters() if p.requires_grad], lr=1e-2)
for step in range(30):
    optimizer.zero_grad()
    out = wide.shared(x)  # [64, 128, 4]
    losses = (
        nn.functional.cross_entropy(out.flatten(0, 1), targets.flatten(), reduction="none")
        .view(64, -1)
        .mean(1)
    )
    losses.sum().backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step + 1}: mean loss of 64 adapters {losses.mean():.3f}")
print(wide.explain())
