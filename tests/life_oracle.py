"""A model's life in one line: helpers shared by the tests."""

import torch
from torch import Tensor

import wide_compiler
from wide_compiler import oracle

FEATURES = 4


def inputs(batch: int) -> Tensor:
    return torch.randn(batch, FEATURES, dtype=torch.float64)


def live(make, n=3, make_inputs=inputs, **options) -> oracle.Life:
    """Make n members, compile them, and check a life of theirs; in double precision."""
    torch.manual_seed(0)
    models = [make().double() for _ in range(n)]
    for model in models:
        model.eval()
    batches = [[((make_inputs(batch),), {}) for _ in models] for batch in (3, 3, 2)]
    config = wide_compiler.WideConfig(tune_seconds=0)  # the lane graph, whatever would be faster
    wide = wide_compiler.compile(models, batches[0][0][0], config=config)
    return oracle.life(models, wide, batches, **options)


def looped(life: oracle.Life) -> set[str]:
    """The phases in which members ran as Python."""
    return {phase.name for phase in life.phases if phase.why}
