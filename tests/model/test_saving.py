"""Lanes to files and state dicts and back; what does not fit is refused before anything is written."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import wide_compiler
from untouched import refused
from wide_compiler import InputError, oracle
from wide_compiler.model import saving

N = 3
x = torch.randint(0, 7, (2, 5))


class Net(nn.Module):
    """Tied weights, a norm with buffers, a constant buffer that lanes share."""

    def __init__(self, out=7):
        super().__init__()
        self.embed, self.norm = nn.Embedding(7, 4), nn.BatchNorm1d(4)
        self.extra, self.head = nn.Linear(4, out), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        h = self.norm(self.embed(x).flatten(0, 1)) * self.scale
        return self.head(h) + self.extra(h).sum(-1, keepdim=True)


def make(out=7):
    models = [Net(out) for _ in range(N)]
    for model in models:
        model(torch.randint(0, 7, (6, 5)))  # the norms' buffers begin to differ
    return models, wide_compiler.compile(models, x)


def same_state(a, b):
    a, b = a.state_dict(), b.state_dict()
    assert list(a) == list(b)
    return all(torch.equal(a[k], b[k]) for k in a)


def agree(models, wide):
    inputs = [((torch.randint(0, 7, (4, 5)),), {}) for _ in models]
    oracle.compare(models, wide, inputs, gradients=True, learning_rate=0.1).check(rtol=1e-4)


def test_all_lanes_to_a_file_and_back(tmp_path):
    models, wide = make()
    wide.save(tmp_path / "all.safetensors")
    written = load_file(tmp_path / "all.safetensors")
    assert ("embed.weight" in written) != ("head.weight" in written)
    assert written["norm.running_mean"].shape == (N, 4)
    _, other = make()
    assert not same_state(wide, other)
    other.load(str(tmp_path / "all.safetensors"))
    assert same_state(wide, other)
    lane = other.lane(1)
    assert lane.head.weight is lane.embed.weight
    agree(models, other)


def test_one_lane_is_an_ordinary_models_state(tmp_path):
    models, wide = make()
    wide.save(tmp_path / "lane.safetensors", lane=1)
    _, other = make()
    before = [copy.deepcopy(lane.state_dict()) for lane in other.lanes()]
    other.load(tmp_path / "lane.safetensors", lane=2)
    for i, lane in enumerate(other.lanes()):
        expected = models[1].state_dict() if i == 2 else before[i]
        assert all(torch.equal(v, expected[k]) for k, v in lane.state_dict().items())
    plain = Net()
    missing, unexpected = plain.load_state_dict(load_file(tmp_path / "lane.safetensors"), strict=False)
    assert set(missing) <= {"embed.weight", "head.weight"} and len(missing) == 1 and not unexpected


def test_state_dict_round_trip_also_inside_a_larger_module():
    models, wide = make()
    _, other = make()
    other.load_state_dict(wide.state_dict())
    assert same_state(wide, other)
    agree(models, other)
    outer, holder = nn.Sequential(nn.Identity(), wide), nn.Sequential(nn.Identity(), make()[1])
    assert holder.load_state_dict(outer.state_dict()).missing_keys == []
    assert same_state(wide, holder[1])


@pytest.mark.parametrize("nested", [False, True])
def test_a_shared_buffer_that_became_per_lane(nested):
    models, wide = make()
    assert wide.tensors()["scale"].shape == (4,)
    changed = copy.deepcopy(models[1])
    changed.scale *= 3.0
    wide.load_lane(1, changed)
    assert wide.tensors()["scale"].shape == (N, 4)
    assert wide.tensors()["scale"][:, 0].tolist() == [1.0, 3.0, 1.0]
    expected = [models[0], changed, models[2]]
    agree(expected, wide)
    _, other = make()
    if nested:
        nn.ModuleList([other]).load_state_dict({f"0.{k}": v for k, v in wide.state_dict().items()})
    else:
        other.load_state_dict(wide.state_dict())
    assert same_state(wide, other)
    agree(expected, other)
    wide.load_state_dict(make()[1].state_dict())  # and back: one value for all lanes
    assert (wide.tensors()["scale"] == 1).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.pop("norm.running_mean"), ["lacks", "'norm.running_mean'"]),
        (lambda s: (s.pop("embed.weight"), s.pop("head.weight")), ["lacks", ".weight'"]),
        (lambda s: s.update(bogus=torch.zeros(2)), ["'bogus'", "do not have"]),
        (lambda s: s.update({"extra.bias": torch.zeros(3)}), ["extra.bias", "(3,)", "(7,)"]),
        (
            lambda s: s.update({"norm.num_batches_tracked": torch.zeros(1)}),
            ["num_batches_tracked", "(1,)", "()"],
        ),
        (lambda s: s.update({"extra.weight": [1, 2]}), ["extra.weight", "list"]),
    ],
)
def test_a_state_that_does_not_fit_a_lane_is_not_written(change, says):
    _, wide = make()
    state = Net().state_dict()
    change(state)
    with refused(InputError, *says, of=wide):
        wide.load_lane(1, state)


def test_a_shared_trunk_cannot_differ_and_nothing_before_it_is_written():
    trunk, other = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    models = [nn.Sequential(nn.Linear(4, 4), trunk) for _ in range(N)]
    wide = wide_compiler.compile(models, torch.randn(2, 4))
    assert wide.tensors()["1.weight"].shape == (4, 4)
    with refused(InputError, "1.weight", "shared", of=[wide, *models]):
        wide.load_lane(1, other)


@pytest.mark.parametrize("lane", [N, -N - 1, 99])
def test_a_lane_out_of_range(lane, tmp_path):
    (model, *_), wide = make()
    file = tmp_path / "lane.safetensors"
    wide.save(file, lane=0)
    old = file.read_bytes()
    calls = {
        wide.lane: (lane,),
        wide.load_lane: (lane, model),
        wide.save: (file, lane),
        wide.load: (file, lane),
    }
    for call, arguments in calls.items():
        with refused(IndexError, str(lane), f"{N} lanes", of=wide):
            call(*arguments)
    assert file.read_bytes() == old


@pytest.mark.parametrize("kind", ["one lane", "another width", "two lanes"])
def test_a_file_that_does_not_fit_all_lanes_is_not_written(kind, tmp_path):
    _, wide = make()
    file = tmp_path / "w.safetensors"
    if kind == "one lane":
        wide.save(file, lane=1)
    elif kind == "another width":
        make(out=6)[1].save(file)
    else:
        wide_compiler.compile([Net() for _ in range(2)], x).save(file)
    with refused(InputError, ".weight" if kind == "another width" else "lane", of=wide):
        wide.load(file)


def test_a_file_that_is_not_there(tmp_path):
    _, wide = make()
    with refused(FileNotFoundError, "nothing.safetensors", of=wide):
        wide.load(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize("lane", [None, 1])
def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch, lane):
    _, wide = make()
    wide.save(tmp_path / "w.safetensors", lane)
    old = (tmp_path / "w.safetensors").read_bytes()

    def half(tensors, path, **options):
        path.write_bytes(old[: len(old) // 2])
        raise OSError("no space left on device")

    monkeypatch.setattr(saving, "save_file", half)
    with refused(OSError, "no space left", of=wide):
        wide.save(tmp_path / "w.safetensors", lane)
    assert (tmp_path / "w.safetensors").read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]
