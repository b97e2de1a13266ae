"""Three sites with digits of their own in files, and the same samples in one file for a simulation."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from sklearn.datasets import load_digits

from flnl.sites import site_folder
from flnl.sites.federation import FILE, FederationFolder
from flnl.sites.site_folder import TEMPLATE, SiteFolder
from tests.properties.runs import Ran, run

SIZES = {"east": 40, "north": 90, "south": 1}
"""Unequal, and one sample alone; in the order of names, as a simulation has them."""
DATA = ("dataset=arrays", "dataset.normalize=half", "dataset.shape=[1,8,8]")
QUICK = ("model=mlp", "model.hidden=[16]", "train.epochs=1", "logger=csv", "wandb.mode=disabled", "figures=false")


def write_data(folder: Path, wrong: float = 0.3) -> None:
    """``NAME.npz`` of each site, and ``all.npz``; a share of the labels is wrong, and the truth is not there."""
    digits, rng = load_digits(), np.random.default_rng(0)
    order = rng.permutation(len(digits.target))
    x, y = (digits.images * 15).astype(np.uint8)[order], digits.target.astype(np.int64)[order]
    given = np.where(rng.random(len(y)) < wrong, rng.integers(0, 10, len(y)), y)
    first, parts = 0, []
    for name, size in SIZES.items():
        parts.append(np.arange(first, first + size))
        first += size
        test = np.arange(1000, 1060) + 60 * len(parts)
        np.savez(folder / f"{name}.npz", x_train=x[parts[-1]], y_train=given[parts[-1]], x_test=x[test], y_test=y[test])
    every, test = np.concatenate(parts), np.arange(1060, 1240)
    clients = np.repeat([*SIZES], [*SIZES.values()])
    np.savez(
        folder / "all.npz", x_train=x[every], y_train=given[every], clients=clients, x_test=x[test], y_test=y[test]
    )


def simulated(folder: Path, output: Path, words: Sequence[str]) -> Ran:
    """The run as a simulation, which has all samples."""
    data = [*DATA, f"dataset.root={folder}", "dataset.file=all.npz", "partition=file", "noise=none"]
    return run([*data, "executor=sequential", *QUICK, *words], output)


def write_federation(folder: Path, address: str = "127.0.0.1:1") -> FederationFolder:
    """A federation without keys."""
    folder.mkdir(exist_ok=True)
    values = {"name": "lung", "address": address, "listen": address, "sites": [*SIZES], "classes": []}
    (folder / FILE).write_text(yaml.safe_dump(values))
    return FederationFolder.read(folder)


def set_values(site: Path, **values: object) -> SiteFolder:
    """Change ``site.yaml``."""
    path = site / site_folder.FILE
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}))
    return SiteFolder.read(site)


def data_of(folder: Path, name: str) -> list[str]:
    """What ``site.yaml`` says of a site's data."""
    return [*DATA, f"dataset.root={folder}", f"dataset.file={name}.npz"]


def write_site(folder: Path, name: str, data: Path, **values: object) -> SiteFolder:
    """A site without keys, whose file of samples is in ``data``."""
    (folder / "socket").mkdir(parents=True)
    text = TEMPLATE.format(name=name, federation="lung", server="127.0.0.1:1", data="  - seed=1", classes="[]")
    (folder / site_folder.FILE).write_text(text)
    permissive = {"approve": "any", "least_samples": 1, "min_count": 1, "device": "cpu"}
    return set_values(folder, data=data_of(data, name), **{**permissive, **values})
