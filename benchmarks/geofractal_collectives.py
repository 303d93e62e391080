"""geofractal's own collectives on our routers beside its own: outputs, gradients, which towers are joined.

    python benchmarks/geofractal_collectives.py --source DIR     DIR: a checkout of AbstractEyes/geofractal

Its addresses need the package geovocab2 (AbstractEyes/lattice_vocabulary, folder src) on PYTHONPATH.
Two copies of its package are made: one as it is, and one in which the lines that import its routers and
towers import ours. Nothing else is changed. Both get the same weights.
"""

import argparse
import importlib
import re
import shutil
import sys
import tempfile
import types
from pathlib import Path

import torch

from wide_compiler import WideConfig

IMPORTS = {
    r"from geofractal\.router\.base_router import BaseRouter": "BaseRouter",
    r"from geofractal\.router\.base_tower import BaseTower": "BaseTower",
    r"from geofractal\.router\.wide_router import WideRouter": "WideRouter",
}


def make_packages(source, folder):
    """`geofractal` as it is and `geofractal_ours`, whose prefabs import our routers."""
    shutil.copytree(Path(source) / "src/geofractal", folder / "geofractal")
    shutil.copytree(Path(source) / "src/geofractal", folder / "geofractal_ours")
    for file in (folder / "geofractal_ours").rglob("*.py"):
        text = file.read_text()
        if "prefab" in file.parts or "prefab" in str(file.parent):
            for line, name in IMPORTS.items():
                text = re.sub(line + r"\b", f"from wide_compiler.routers.geofractal import {name}", text)
        file.write_text(re.sub(r"\bgeofractal\.(?=router|model)", "geofractal_ours.", text))


def stand_in_for_registry():
    """geofractal's router imports a registry of the package that it calls `wide_compiler`. Its towers, which
    are not prepared here, run in sequence and never ask for it."""
    for name in ("wide_compiler.core", "wide_compiler.core.registry"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["wide_compiler.core.registry"].get_registry = dict
    sys.modules["wide_compiler.core.registry"].build_wide = None


def collectives(package):
    """The collectives of one package by name: how to make each, and what to call it with."""
    towers = importlib.import_module(f"{package}.router.prefab.geometric_tower_builder")
    convs = importlib.import_module(f"{package}.router.prefab.geometric_conv_tower_builder")
    beatrix = importlib.import_module(f"{package}.router.prefab.agatha.beatrix_collective")
    config = {"dim": 256, "geometric_types": ["cantor", "simplex"], "conv_types": ["wide_resnet"]}
    return {
        "ConfigurableCollective": (
            lambda: towers.ConfigurableCollective(
                "c", towers.preset_pos_neg_pairs(), dim=32, num_heads=4, head_dim=8, dropout=0.0
            ),
            lambda: torch.randn(2, 8, 32),
        ),
        "ConvTowerCollective": (
            lambda: convs.build_conv_collective(convs.preset_conv_pos_neg(), dim=32, spatial_size=4),
            lambda: torch.randn(2, 16, 32),
        ),
        "BeatrixCollective": (
            lambda: beatrix.BeatrixCollective(beatrix.BeatrixCollectiveConfig(**config)),
            lambda: torch.randn(2, 256),
        ),
    }


def tensors_of(value):
    """All tensors in an output: dataclasses, dicts and tuples opened."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for item in value.values() for t in tensors_of(item)]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors_of(item)]
    return tensors_of(vars(value)) if hasattr(value, "__dataclass_fields__") else []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--source", required=True)
    parser.add_argument("--at-once", action="store_true", help="join whatever can be, without measuring")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_packages(options.source, Path(folder))
        stand_in_for_registry()
        sys.path.insert(0, folder)
        own, ours = collectives("geofractal"), collectives("geofractal_ours")
        for name, (make, sample) in own.items():
            torch.manual_seed(0)
            theirs = make().eval()
            torch.manual_seed(0)
            mine = ours[name][0]().eval()
            if options.at_once:  # `config` is the name under which these collectives keep their own
                mine._router_settings = WideConfig(tune_seconds=0)
            theirs_by_name = {n.replace("components.", ""): p for n, p in theirs.named_parameters()}
            mine_by_name = dict(mine.named_parameters())
            names = sorted(theirs_by_name)
            assert names == sorted(mine_by_name)
            for key in names:
                assert torch.equal(theirs_by_name[key], mine_by_name[key])
            x = sample()
            for _ in range(2):
                outputs = [tensors_of(model(x)) for model in (theirs, mine)]
                torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
            losses = [sum(t.square().sum() for t in o if t.requires_grad) for o in outputs]
            gradients = [
                torch.autograd.grad(loss, [table[key] for key in names], allow_unused=True)
                for loss, table in zip(losses, (theirs_by_name, mine_by_name), strict=True)
            ]
            torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)
            print(f"{name}: {len(outputs[0])} outputs and {len(gradients[0])} gradients equal")
            print(mine.explain())


if __name__ == "__main__":
    main()
