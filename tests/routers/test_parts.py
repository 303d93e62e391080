"""Ready towers, fusion parts, the balance report."""

import pytest
import torch
from torch import nn

from routers.towers import assert_equal_to_sequence, collective
from wide_compiler.errors import InputError
from wide_compiler.routers import (
    AttentionFusion,
    AttentionTower,
    GatedFusion,
    GatedTower,
    MeanFusion,
    PreNormTower,
    ResidualTower,
    SequentialTower,
    WeightedFusion,
    balance,
)

TOWERS = {
    "sequential": lambda name: SequentialTower(name, 6),
    "own stages": lambda name: SequentialTower(name, 0, nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 6)),
    "residual": lambda name: ResidualTower(name, 6, depth=2),
    "pre-norm": lambda name: PreNormTower(name, 6, depth=2, hidden=5),
    "gated": lambda name: GatedTower(name, 6, depth=2),
    "attention": lambda name: AttentionTower(name, 6, heads=2),
    "causal attention": lambda name: AttentionTower(name, 6, heads=3, causal=True),
}


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("kind", TOWERS)
def test_ready_towers_run_together(kind):
    router = collective(*[TOWERS[kind](str(i)) for i in range(4)])
    x = double(2, 5, 6)
    assert_equal_to_sequence(router, x)
    (row,) = router.explain().rows
    assert row.how == "together" and row.coverage == 1.0
    assert router.wide_forward(x)["0"].shape == x.shape


def test_what_attention_may_see():
    tower, x = AttentionTower("t", 6, heads=2).double(), double(2, 5, 6)
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[:, 3:] = False
    masked = tower(x, mask=mask)
    torch.testing.assert_close(masked[:, :3], tower(x[:, :3]))
    pairs = torch.ones(5, 5, dtype=torch.bool).tril().expand(2, 5, 5)
    causal = AttentionTower("c", 6, heads=2, causal=True).double()
    causal.load_state_dict(tower.state_dict())
    torch.testing.assert_close(tower(x, mask=pairs), causal(x))
    torch.testing.assert_close(causal(x, mask=torch.ones(2, 5, dtype=torch.bool)), causal(x))
    router = collective(*[AttentionTower(str(i), 6, heads=2) for i in range(3)])
    assert_equal_to_sequence(router, x, mask=mask)
    assert router.explain().together == 3


def test_dropout_draws_for_each_tower_on_its_own():
    router = collective(*[SequentialTower(str(i), 6, dropout=0.5) for i in range(4)])
    state = router["0"].state_dict()
    for tower in router.towers.values():
        tower.load_state_dict(state)
    first, second = (router.wide_forward(double(1, 6).expand(8, 6)) for _ in range(2))
    assert router.explain().together == 4
    assert not torch.equal(first["0"], first["1"]) and not torch.equal(first["0"], second["0"])
    router.eval()
    out = router.wide_forward(double(8, 6))
    torch.testing.assert_close(out["0"], out["3"])


FUSIONS = {
    "mean": MeanFusion,
    "weighted": lambda: WeightedFusion(3),
    "gated": lambda: GatedFusion(6),
    "attention": lambda: AttentionFusion(6, heads=2),
}


@pytest.mark.parametrize("kind", FUSIONS)
def test_fusions(kind):
    fusion = FUSIONS[kind]().double()
    opinions = {name: double(4, 5, 6).requires_grad_() for name in "abc"}
    fused = fusion(opinions)
    assert fused.shape == (4, 5, 6)
    torch.testing.assert_close(fusion(list(opinions.values())), fused)
    fused.square().sum().backward()
    assert all(t.grad.abs().sum() > 0 for t in (*opinions.values(), *fusion.parameters()) if t.numel() > 6)
    same = dict.fromkeys("abc", opinions["a"])
    if kind != "attention":  # that one transforms what it is told
        torch.testing.assert_close(fusion(same), opinions["a"])


def test_fusions_by_hand():
    opinions = {name: double(4, 6) for name in "abc"}
    stacked = torch.stack(list(opinions.values()))
    torch.testing.assert_close(MeanFusion()(opinions), stacked.mean(0))
    weighted = WeightedFusion(3).double()
    with torch.no_grad():
        weighted.logits.copy_(torch.tensor([0.0, 1.0, 2.0]))
    weights = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64).softmax(0)
    torch.testing.assert_close(weighted(opinions), (weights[:, None, None] * stacked).sum(0))
    attention = AttentionFusion(6).double()
    scores = torch.stack([attention.key(o) @ attention.query[0] for o in stacked]) * 6**-0.5
    values = torch.stack([attention.value(o) for o in stacked])
    torch.testing.assert_close(
        attention(opinions), attention.out((scores.softmax(0)[..., None] * values).sum(0))
    )


def test_what_cannot_be_fused():
    with pytest.raises(InputError, match="got none"):
        MeanFusion()({})
    with pytest.raises(InputError, match=r"'b' has shape \(2, 4\), 'a' has \(2, 3\)"):
        MeanFusion()({"a": double(2, 3), "b": double(2, 4)})
    with pytest.raises(InputError, match="expected 3, one per tower, got 2"):
        WeightedFusion(3)([double(2, 3), double(2, 3)])
    for make in (AttentionFusion, lambda dim, heads: AttentionTower("t", dim, heads)):
        with pytest.raises(ValueError, match="4 heads do not divide dim=6"):
            make(6, heads=4)
    with pytest.raises(ValueError, match="needs stages, or a dim"):
        SequentialTower("t")


def test_balance():
    router = collective(*[SequentialTower(str(i), 6) for i in range(6)])
    with torch.no_grad():
        router["1"][2].weight.mul_(100)  # loud
        for p in router["2"].parameters():
            p.zero_()  # silent
        router["3"][0].weight.zero_()  # gives the same for every input
    opinions = router.wide_forward(double(8, 6))
    report = balance(router, opinions)
    assert report.dominant == ["1"] and report.dead == ["2", "3"]
    assert all(tower.gradient is None for tower in report.towers)
    assert abs(sum(tower.share for tower in report.towers) - 1) < 1e-6
    sum(out.square().sum() for name, out in opinions.items() if name != "4").backward()
    report = balance(router, opinions)
    expected = torch.stack([p.grad.norm() for p in router["0"].parameters()]).norm()
    assert abs(report.towers[0].gradient - float(expected)) < 1e-4 * float(expected)
    assert report.dead == ["2", "3", "4"] and "gradient" in report.towers[4].why
    assert "dominant" in str(report) and "does not depend on its input" in str(report)
    with pytest.raises(ValueError, match="no tower 'z'"):
        balance(router, {"z": double(2, 2)})
