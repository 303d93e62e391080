"""A training for others to kill: it prints every step and leaves its result in a file."""

import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from training.fits import adam, everything, lane_loss, make_models, make_set, make_wide
from wide_compiler import WideConfig
from wide_compiler.training import EarlyStop, fit


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    # Ways are measured, as they are by default: a resumed process must find the same ones.
    wide = make_wide(make_models(dropout=0.3), config=WideConfig())
    optimizer = adam(wide.parameters())
    history = fit(
        wide,
        optimizer,
        lane_loss,
        DataLoader(make_set(40), 6, shuffle=True),
        epochs=6,
        validation=DataLoader(make_set(10, seed=9), 4),
        early_stop=EarlyStop(patience=1, min_delta=0.005),
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 42),
        clip=1.0,
        seed=11,
        checkpoint=folder,
        checkpoint_every=2,
        resume="auto",
        callbacks=[lambda moment: print(moment.event, moment.step, flush=True)],
    )
    torch.save(everything(wide, optimizer, history), folder.with_suffix(".result"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
