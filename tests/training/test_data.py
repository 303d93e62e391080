"""Batches: the same for all lanes, each lane's own, and folds."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from wide_compiler import InputError
from wide_compiler.training import PerLane, Shared, Stacked, fold_batches
from wide_compiler.training.data import as_source, make_batch, split_batch

CPU = torch.device("cpu")


def numbers(size=10):
    return TensorDataset(torch.arange(size).float(), torch.arange(size).float() * 10)


class Squares(Dataset):
    """Not a TensorDataset, and with a dict for a sample."""

    def __len__(self):
        return 7

    def __getitem__(self, i):
        return {"x": torch.tensor(float(i)), "y": i * i}


def test_folds_part_the_samples():
    train, validation = fold_batches(numbers(), k=5, batch_size=4)
    held = torch.cat([x for x, _ in validation], 1)
    kept = torch.cat([x for x, _ in train], 1)
    assert held.shape == (5, 2) and kept.shape == (5, 8)
    assert sorted(held.flatten().tolist()) == list(range(10))
    for lane in range(5):
        assert sorted([*held[lane].tolist(), *kept[lane].tolist()]) == list(range(10))
    x, y = next(iter(train))
    assert y.equal(x * 10)
    assert len(train) == 2 == len(list(train)) and len(validation) == 1


def test_folds_that_do_not_come_out_even_and_settings_beside_folds():
    train, validation = fold_batches(Squares(), k=3, batch_size=10, n=6, shuffle=False)
    (held,), (kept,) = list(validation), list(train)
    assert held["x"].shape == (6, 2) and kept["x"].shape == (6, 5)
    assert held["x"][:3].equal(held["x"][3:]) and kept["y"].equal(kept["x"].long() ** 2)
    for lane in range(6):
        assert not set(held["x"][lane].tolist()) & set(kept["x"][lane].tolist())


def test_folds_are_shuffled_for_each_lane_and_epoch():
    train, _ = fold_batches(numbers(40), k=2, batch_size=20)
    first, second = (next(iter(train))[0] for _ in range(2))
    assert not first.equal(second)
    torch.manual_seed(3)
    again = next(iter(train))[0]
    torch.manual_seed(3)
    assert again.equal(next(iter(train))[0])


def test_folds_of_the_wrong_number():
    for options, says in [
        ({"k": 1}, "between 2 and 10 folds"),
        ({"k": 11}, "got 11"),
        ({"k": 3, "n": 4}, "4 lanes cannot have 3 folds"),
        ({"k": 3, "batch_size": 0}, "batch_size must be positive"),
    ]:
        with pytest.raises(ValueError, match=says):
            fold_batches(numbers(), **{"batch_size": 4, **options})


def test_one_source_for_each_lane():
    source = PerLane([DataLoader(numbers(), 4) for _ in range(3)])
    assert [x.shape for x, _ in source] == [(3, 4), (3, 4), (3, 2)] and len(source) == 3
    with pytest.raises(InputError, match="lane 1: data must be an iterable, got int"):
        PerLane([[], 5])
    uneven = PerLane([[torch.zeros(2)], [torch.zeros(3)]])
    with pytest.raises(InputError, match=r"lane 1 is \(3,\)"):
        list(uneven)


def test_what_a_batch_is_made_of():
    x, y = torch.zeros(5, 2), torch.ones(5)
    whole = make_batch((x, y), split_batch, CPU, "shared")
    assert len(whole.args) == 1 and len(whole.targets) == 1 and whole.size == 5 and not whole.kwargs
    assert make_batch(x, split_batch, CPU, "shared").targets == ()
    assert len(make_batch(((x, x), y), split_batch, CPU, "shared").args) == 2
    named = make_batch({"a": x, "b": 3}, split_batch, CPU, "shared")
    assert named.kwargs.keys() == {"a", "b"} and named.targets[0]["b"] == 3
    assert make_batch((torch.zeros(3, 7, 2), y), split_batch, CPU, "stacked").size == 7
    with pytest.raises(InputError, match="no tensor among its inputs"):
        make_batch(("text", y), split_batch, CPU, "shared")


def test_samplers_are_told_the_epoch_and_generators_found():
    sampler = DistributedSampler(numbers(), num_replicas=2, rank=0)
    source = as_source(DataLoader(numbers(), 2, sampler=sampler), 3)
    source.begin_epoch(4)
    assert sampler.epoch == 4
    generator = torch.Generator()
    loader = DataLoader(numbers(), 2, shuffle=True, generator=generator)
    assert Shared(loader).generators() == [generator]
    assert PerLane([loader, loader]).generators() == [generator]
    assert type(as_source([1], 3)) is Shared and as_source(Stacked([]), 3).door == "stacked"
