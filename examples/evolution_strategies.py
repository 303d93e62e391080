"""Evolution strategies: 64 lanes balance a pole, and one policy learns from how long they last. No gradients.

python examples/evolution_strategies.py          writes evolution_strategies.png
"""

import sys

import matplotlib
import torch
from torch import Tensor, nn

import wide_compiler
from wide_compiler.training import EvolutionStrategy

matplotlib.use("Agg")
import matplotlib.pyplot as plt

QUICK = "--quick" in sys.argv
LANES, GENERATIONS, STEPS, TRIES = (16, 3, 40, 4) if QUICK else (64, 40, 200, 8)


def move(state: Tensor, push: Tensor) -> Tensor:
    """A cart and its pole 0.02 s later: place and speed of the cart, angle and speed of the pole, `[4]`."""
    place, speed, angle, turn = state.unbind(-1)
    inward = (10 * push + 0.05 * turn.square() * angle.sin()) / 1.1
    pole = (9.8 * angle.sin() - angle.cos() * inward) / (0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1))
    cart = inward - 0.05 * pole * angle.cos() / 1.1
    return torch.stack(
        [place + 0.02 * speed, speed + 0.02 * cart, angle + 0.02 * turn, turn + 0.02 * pole], -1
    )


@torch.no_grad()
def play(wide, start: Tensor) -> tuple[Tensor, Tensor]:
    """How long each lane keeps its poles up, `[N]`, and the angles of its first pole, `[STEPS, N]`."""
    state = start.expand(wide.n, *start.shape)
    up = torch.ones(state.shape[:2], dtype=torch.bool)
    lasted, angles = torch.zeros(state.shape[:2]), []
    for _ in range(STEPS):
        push = torch.tanh(wide.stacked(state)).squeeze(-1)
        state = torch.where(up.unsqueeze(-1), move(state, push), state)
        up &= (state[..., 0].abs() < 2.4) & (state[..., 2].abs() < 0.21)
        lasted += up
        angles.append(state[:, 0, 2])
    return lasted.mean(1), torch.stack(angles)


torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
wide = wide_compiler.compile(policy, torch.randn(2, 4), n=LANES, init="copy")
strategy = EvolutionStrategy(wide, sigma=0.2, lr=0.3)
history = []
for generation in range(GENERATIONS):
    strategy.ask()
    lasted, angles = play(wide, 0.1 * torch.randn(TRIES, 4))
    strategy.tell(-lasted)  # lower is better
    history.append(lasted)
    if generation == 0:
        first = angles
    if generation % 10 == 0 or generation + 1 == GENERATIONS:
        print(f"gen. {generation:2d}: up for {lasted.mean():.0f} steps, best {lasted.max():.0f} of {STEPS}")
strategy.settle()
lasted, angles = play(wide, 0.1 * torch.randn(TRIES, 4))
print(f"the policy itself: {lasted[0]:.0f} of {STEPS} steps")

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
table = torch.stack(history)
left.plot(table, color="#c9d0fa", linewidth=0.6)
left.plot(table.mean(1), color="#4c5fd5", linewidth=2, label=f"mean of {LANES} lanes")
left.set(xlabel="generation", ylabel=f"steps of {STEPS} that the pole stays up", title="The policy learns")
left.legend(frameon=False)
right.plot(first, color="#fbe3c6", linewidth=0.8)
right.plot(first[:, 0], color="#e8833a", label="the first generation")
right.plot(angles[:, 0], color="#4c5fd5", label="the policy in the end")
right.set(xlabel="step", ylabel="angle of the pole", title="to hold the pole", ylim=(-0.25, 0.25))
right.legend(frameon=False, loc=(0.56, 0.66))
figure.savefig("evolution_strategies.png", dpi=120)
print("written to evolution_strategies.png")
