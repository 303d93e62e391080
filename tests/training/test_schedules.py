"""Schedules by lane are the schedules of models alone."""

import pytest
import torch
from torch.optim import lr_scheduler

from training.loops import Both, N
from wide_compiler.training import SGD, AdamW, LaneLambdaLR, LaneSchedulers, Population

LRS = [1e-3 * (lane + 1) for lane in range(N)]


def test_a_function_of_step_and_lane(tmp_path):
    def factor(step, lane):
        return (1 - 0.05 * lane) ** step * (0.0 if step == lane else 1.0)

    both = Both(AdamW, torch.optim.AdamW, {"lr": LRS})
    schedule = LaneLambdaLR(both.optimizer, lambda step: [factor(step, lane) for lane in range(N)])
    own = [
        lr_scheduler.LambdaLR(o, lambda step, lane=lane: factor(step, lane))
        for lane, o in enumerate(both.own)
    ]
    for _ in range(10):
        both.run(1)
        for scheduler in (schedule, *own):
            scheduler.step()
        expected = torch.tensor([o.param_groups[0]["lr"] for o in both.own]).double()
        torch.testing.assert_close(both.optimizer.lane_values("lr"), expected)
    both.check()
    torch.save(schedule.state_dict(), tmp_path / "schedule.pt")
    again = LaneLambdaLR(both.optimizer, schedule.factors)
    again.load_state_dict(torch.load(tmp_path / "schedule.pt"))
    for scheduler in (again, *own):
        scheduler.step()
    expected = torch.tensor([o.param_groups[0]["lr"] for o in both.own]).double()
    torch.testing.assert_close(both.optimizer.lane_values("lr"), expected)


KINDS = {
    "cosine with floors": lambda o, lane: lr_scheduler.CosineAnnealingLR(o, 5 + lane, eta_min=1e-4 * lane),
    "steps": lambda o, lane: lr_scheduler.StepLR(o, 1 + lane, 0.5),
    "one cycle": lambda o, lane: lr_scheduler.OneCycleLR(
        o, 1e-2 / (1 + lane), total_steps=20 + lane, base_momentum=0.8 + 0.01 * lane
    ),
    "a mixture": lambda o, lane: (
        lr_scheduler.ExponentialLR(o, 0.9) if lane % 2 else lr_scheduler.LinearLR(o, 0.1, 1.0, 4)
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ours", [AdamW, SGD])
def test_a_stock_scheduler_for_each_lane(kind, ours):
    options = {"lr": LRS} if ours is AdamW else {"lr": LRS, "momentum": 0.9}
    both = Both(ours, getattr(torch.optim, ours.__name__), options)
    schedule = LaneSchedulers(both.optimizer, KINDS[kind])
    own = [KINDS[kind](o, lane) for lane, o in enumerate(both.own)]
    for count in range(10):
        both.run(1)
        for scheduler in (schedule, *own):
            scheduler.step()
        if count == 5:
            state = schedule.state_dict()
            schedule = LaneSchedulers(both.optimizer, KINDS[kind])
            schedule.load_state_dict(state)
    both.check()


def test_lanes_that_watch_their_own_plateau():
    both = Both(AdamW, torch.optim.AdamW, {"lr": LRS})
    schedule = LaneSchedulers(
        both.optimizer, lambda o, lane: lr_scheduler.ReduceLROnPlateau(o, patience=lane % 3)
    )
    own = [lr_scheduler.ReduceLROnPlateau(o, patience=lane % 3) for lane, o in enumerate(both.own)]
    for count in range(8):
        both.run(1)
        metrics = torch.tensor([1.0 if lane < 4 else 1.0 - count for lane in range(N)])
        schedule.step(metrics)
        for scheduler, metric in zip(own, metrics.tolist(), strict=True):
            scheduler.step(metric)
    both.check()
    assert both.optimizer.lane_values("lr")[0] < LRS[0]
    assert float(both.optimizer.lane_values("lr")[7]) == pytest.approx(LRS[7])
    with pytest.raises(ValueError, match="expected 8 metrics, one per lane, got 3"):
        schedule.step(torch.ones(3))


def test_a_schedule_belongs_to_its_lanes():
    both = Both(AdamW, torch.optim.AdamW, {"lr": LRS})
    with pytest.raises(ValueError, match=r"a factor or 8, one per lane, at step 0, got a shape of \(3,\)"):
        LaneLambdaLR(both.optimizer, lambda step: [1.0, 2.0, 3.0])
    schedule = LaneLambdaLR(both.optimizer, lambda step: 0.9**step)
    each = LaneSchedulers(both.optimizer, lambda o, lane: lr_scheduler.ExponentialLR(o, 0.9))
    Population(both.wide, both.optimizer).select([0, 1])
    for stale in (schedule, each):
        with pytest.raises(ValueError, match="made for 8 lanes, the optimiser now has 2"):
            stale.step()
