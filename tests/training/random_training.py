"""Random trainings: an optimiser with settings per lane beside one stock optimiser per member.

python tests/training/random_training.py 1000 200      # seeds 1000 to 1199
"""

import copy
import io
import random
import sys
from collections import Counter

import torch
from torch import Tensor, nn

import wide_compiler
from wide_compiler.training import SGD, Adagrad, Adam, AdamW, Population, RMSprop, clip_lane_norms_, lift

KINDS = {
    "sgd": (SGD, torch.optim.SGD, {"lr": 0.05, "momentum": 0.8, "weight_decay": 0.01}),
    "nesterov": (SGD, torch.optim.SGD, {"lr": 0.05, "momentum": 0.8, "nesterov": True}),
    "plain": (SGD, torch.optim.SGD, {"lr": 0.05}),
    "dampened": (SGD, torch.optim.SGD, {"lr": 0.05, "momentum": 0.8, "dampening": 0.1}),
    "adam": (Adam, torch.optim.Adam, {"lr": 0.01, "eps": 1e-2, "betas": (0.8, 0.9), "weight_decay": 0.01}),
    "amsgrad": (Adam, torch.optim.Adam, {"lr": 0.01, "eps": 1e-2, "amsgrad": True}),
    "adamw": (AdamW, torch.optim.AdamW, {"lr": 0.01, "eps": 1e-2, "weight_decay": 0.1}),
    "rmsprop": (RMSprop, torch.optim.RMSprop, {"lr": 0.01, "eps": 1e-2, "momentum": 0.5, "centered": True}),
    "adagrad": (Adagrad, torch.optim.Adagrad, {"lr": 0.05, "eps": 1e-2, "lr_decay": 0.01}),
}
LIFTED = {
    "nadam": (torch.optim.NAdam, {"lr": 0.01, "eps": 1e-2, "weight_decay": 0.01}),
    "radam": (torch.optim.RAdam, {"lr": 0.01, "eps": 1e-2}),
    "adadelta": (torch.optim.Adadelta, {"lr": 0.5, "eps": 1e-2}),
    "lifted adamw": (torch.optim.AdamW, {"lr": 0.01, "eps": 1e-2, "weight_decay": 0.1}),
}
KINDS |= {name: (lift(kind), kind, settings) for name, (kind, settings) in LIFTED.items()}
BY_LANE = {"lr": (0.5, 1.5), "weight_decay": (0.5, 1.5)}


class Wrong(AssertionError):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 5), nn.Linear(5, 5, bias=False), nn.Linear(5, 3)

    def forward(self, x):
        return self.c(self.b(self.a(x).tanh()).tanh())


class Training:
    def __init__(self, seed: int):
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.n = self.random.choice([1, 2, 3, 4])
        self.kind = self.random.choice(list(KINDS))
        wide_class, self.stock, self.settings = KINDS[self.kind]
        self.members = [Net().double() for _ in range(self.n)]
        config = wide_compiler.WideConfig(tune_seconds=0)
        sample = torch.randn(2, 4, dtype=torch.float64)
        self.wide = wide_compiler.compile(copy.deepcopy(self.members), sample, config=config)
        self.groups = self.random.choice([[["a", "b", "c"]], [["a", "b"], ["c"]], [["a"], ["b"], ["c"]]])
        self.later = self.groups[1:] if self.random.random() < 0.3 else []
        self.groups = [group for group in self.groups if group not in self.later]
        self.alone = [self.stock(self.of(m), **self.settings) for m in self.members]
        self.optimizer = wide_class(self.of(self.wide), **self.settings)
        self.population = Population(self.wide, self.optimizer)
        self.masked: set[int] = set()
        self.missing: set[str] = set()
        self.events = [f"{self.kind}, {self.n} lanes, groups {self.groups}, then {self.later}"]
        self.counts: Counter = Counter()

    def of(self, model: nn.Module, groups: list | None = None) -> list[dict]:
        return [
            {"params": [p for part in group for p in model.get_submodule(part).parameters()]}
            for group in groups or self.groups
        ]

    # Events.

    def steps(self) -> None:
        clip = self.random.choice([None, None, 0.5])
        passes = self.random.choice([1, 1, 2])
        to_none = self.random.random() < 0.5
        self.events.append(f"steps, clip {clip}, {passes} passes, without {sorted(self.missing)}")
        for _ in range(self.random.choice([1, 2, 3])):
            for model in (*self.members, self.wide):
                model.zero_grad(set_to_none=to_none)
            for _ in range(passes):
                x = torch.randn(3, 4, dtype=torch.float64)
                for member in self.members:
                    member(x).square().mean().backward()
                self.wide.shared(x).square().mean((1, 2)).sum().backward()
            for model in (*self.members, self.wide):
                for name in self.missing:
                    model.get_parameter(name).grad = None
            if clip:
                for member in self.members:
                    torch.nn.utils.clip_grad_norm_(member.parameters(), clip)
                clip_lane_norms_(self.wide.parameters(), clip)
            for lane, optimizer in enumerate(self.alone):
                if lane not in self.masked:
                    optimizer.step()
            self.optimizer.step()
        self.counts["steps"] += 1

    def miss(self) -> None:
        name = self.random.choice([name for name, _ in self.members[0].named_parameters()])
        self.missing ^= {name}

    def set_values(self) -> None:
        name = self.random.choice([n for n in BY_LANE if n in self.optimizer.limits and n in self.settings])
        lanes = self.random.sample(range(self.n), self.random.randint(1, self.n))
        group = self.random.choice([None, self.random.randrange(len(self.optimizer.param_groups))])
        values = [self.settings[name] * self.random.uniform(*BY_LANE[name]) for _ in lanes]
        self.events.append(f"{name} of lanes {lanes}, group {group}: {values}")
        self.optimizer.set_lane_values(name, values, lanes, group)
        for lane, value in zip(lanes, values, strict=True):
            for index, own in enumerate(self.alone[lane].param_groups):
                if group in (None, index):
                    own[name] = value

    def schedule(self) -> None:
        factor = self.random.choice([0.5, 0.9, 1.2])
        self.events.append(f"lr * {factor}")
        for optimizer in (*self.alone, self.optimizer):
            for group in optimizer.param_groups:
                group["lr"] *= factor

    def mask(self) -> None:
        self.masked = set(self.random.sample(range(self.n), self.random.randint(0, self.n)))
        self.events.append(f"mask {sorted(self.masked)}")
        self.population.unmask()
        if self.masked:
            self.population.mask(sorted(self.masked))

    def reload(self) -> None:
        self.events.append("load_state_dict")
        file = io.BytesIO()
        torch.save(self.optimizer.state_dict(), file)
        file.seek(0)
        self.optimizer.load_state_dict(torch.load(file, weights_only=False))

    def to_stock_and_back(self) -> None:
        lane, to = self.random.randrange(self.n), self.random.randrange(self.n)
        self.events.append(f"lane_state({lane}) loaded by a stock optimiser, and into lane {to}")
        state = self.optimizer.lane_state(lane)
        self.alone[lane].load_state_dict(copy.deepcopy(state))
        self.optimizer.load_lane_state(to, self.alone[lane].state_dict())
        self.alone[to].load_state_dict(copy.deepcopy(self.alone[lane].state_dict()))

    def copy(self) -> None:
        source, target = self.random.randrange(self.n), self.random.randrange(self.n)
        self.events.append(f"copy {source} to {target}")
        self.population.copy([source], [target])
        self.members[target].load_state_dict(self.members[source].state_dict())
        self.alone[target].load_state_dict(copy.deepcopy(self.alone[source].state_dict()))

    def refill(self) -> None:
        lane = self.random.randrange(self.n)
        self.events.append(f"refill {lane}")
        fresh = Net().double()
        for name, p in self.wide.named_parameters():
            fresh.get_parameter(name).requires_grad_(p.requires_grad)
        self.population.refill([lane], init=lambda model, lane: fresh)
        self.members[lane] = copy.deepcopy(fresh)
        before = self.alone[lane]
        self.alone[lane] = self.stock(self.of(self.members[lane]), **self.settings)
        for group, old in zip(self.alone[lane].param_groups, before.param_groups, strict=True):
            group.update({name: value for name, value in old.items() if name != "params"})
        self.masked.discard(lane)

    def select(self) -> None:
        count = self.random.choice([self.n, max(1, self.n - 1), self.n + 1])
        lanes = [self.random.randrange(self.n) for _ in range(count)]
        self.events.append(f"select {lanes}")
        self.population.select(lanes)
        old = list(zip(self.members, self.alone, strict=True))
        self.members = [copy.deepcopy(old[lane][0]) for lane in lanes]
        self.alone = [self.stock(self.of(member), **self.settings) for member in self.members]
        for optimizer, lane in zip(self.alone, lanes, strict=True):
            optimizer.load_state_dict(copy.deepcopy(old[lane][1].state_dict()))
        self.masked = {i for i, lane in enumerate(lanes) if lane in self.masked}
        self.n = count

    def freeze(self) -> None:
        name = self.random.choice([name for name, _ in self.members[0].named_parameters()])
        on = self.random.random() < 0.5
        self.events.append(f"requires_grad_({on}) of {name}")
        for model in (*self.members, self.wide):
            parameter = model.get_parameter(name)
            parameter.requires_grad_(on)
            parameter.grad = None

    def add_group(self) -> None:
        if not self.later:
            return
        group = self.later.pop(0)
        self.events.append(f"add_param_group {group}")
        self.groups.append(group)
        for model, optimizer in zip(self.members, self.alone, strict=True):
            optimizer.add_param_group(self.of(model, [group])[0])
        self.optimizer.add_param_group(self.of(self.wide, [group])[0])

    def copy_all(self) -> None:
        self.events.append("go on with deep copies")
        self.wide, self.optimizer = copy.deepcopy((self.wide, self.optimizer))
        self.population = Population(self.wide, self.optimizer)

    EVENTS = (
        *("steps", "steps", "steps", "miss", "set_values", "schedule", "mask", "reload", "to_stock_and_back"),
        *("copy", "refill", "select", "freeze", "add_group", "copy_all"),
    )

    # Lifted optimisers count the steps of all lanes together.
    events_of = (EVENTS, [e for e in EVENTS if e not in ("mask", "refill", "to_stock_and_back")])

    # Comparing.

    def compare(self) -> None:
        for lane, (member, alone) in enumerate(zip(self.members, self.alone, strict=True)):
            for name, p in member.named_parameters():
                self.check(f"{name} of lane {lane}", self.wide.lane_state(lane, name), p.detach())
            state = self.optimizer.lane_state(lane)["state"]
            for index, own in alone.state_dict()["state"].items():
                for name, value in own.items():
                    if isinstance(value, Tensor) and index in state and name in state[index]:
                        what = f"{name} of parameter {index} of lane {lane}"
                        self.check(what, state[index][name].double(), value.double())

    def check(self, what: str, got: Tensor, want: Tensor) -> None:
        error = (got - want).abs().max().item()
        # Loading a state dict turns numbers that NAdam keeps in float32 to float64.
        rtol = 1e-6 if self.kind == "nadam" else 1e-9
        if not error <= rtol * max(1.0, want.abs().max().item()):
            raise Wrong(f"{what}: off by {error:.2g}")

    def live(self, events: int) -> None:
        for _ in range(events):
            getattr(self, self.random.choice(self.events_of[self.kind in LIFTED]))()
            self.compare()
        self.steps()
        self.compare()


def train(seed: int, events: int = 20) -> int:
    """Return how many times steps were made; raise `Wrong` with the events at the first difference."""
    training = Training(seed)
    try:
        training.live(events)
    except Exception as error:
        story = "\n".join(training.events)
        raise Wrong(f"seed {seed}\n{story}\n{type(error).__name__}: {error}") from error
    assert training.wide.explain(measure=False).coverage == 1
    return training.counts["steps"]


def main() -> None:
    first, count = (int(a) for a in sys.argv[1:3])
    steps, wrong = 0, 0
    for seed in range(first, first + count):
        try:
            steps += train(seed)
        except Wrong as error:
            wrong += 1
            print("=" * 80, error, sep="\n", flush=True)
    print(f"{count} trainings, {wrong} wrong; {steps} events of steps, all lanes at once")


if __name__ == "__main__":
    main()
