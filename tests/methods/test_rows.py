"""Rows of numbers, such as features of a frozen network: a method trains on them, or says in a line what to change."""

from pathlib import Path

import numpy as np
import pytest

import flnl
from flnl.config.folders import CONF
from flnl.core.errors import UserError

REFUSED = {
    "fedgr": "strong views are of images, not of rows of numbers: set method.local.fedgr.view=plain",
    "fedlsr": "FedLSR rotates or mirrors images, and the data set has rows of numbers: use another method",
    "fedrg": "its two views are of images, not of rows of numbers: set method.T_pre=0",
}
WAYS = {
    "fedgr": ("method.local.fedgr.view=plain",),
    "fedrg": ("method.T_pre=0", "method.local.fedrg.view=plain"),
}
METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes around centres of their own, [240, 16] and [80, 16]."""
    folder, rng = tmp_path_factory.mktemp("features"), np.random.default_rng(0)
    centres = rng.normal(0, 1, (4, 16))
    y, tested = np.arange(240) % 4, np.arange(80) % 4
    x, x_test = ((centres[of] + rng.normal(0, 1, (len(of), 16))).astype(np.float32) for of in (y, tested))
    np.savez(folder / "features.npz", x_train=x, y_train=y, x_test=x_test, y_test=tested)
    return folder


def trained(folder: Path, method: str, output: Path, *words: str) -> float:
    data = ["dataset=features", f"dataset.root={folder}", "model=mlp", "model.hidden=[8]", "partition.num_clients=6"]
    short = ["fraction=1", "train.epochs=1", "max_rounds=12", "noise=symmetric", "eval.benchmark=0.2"]
    quiet = ["wandb.mode=disabled", "figures=false", f"output={output}", *words]
    return float(flnl.run([f"method={method}", *data, *short, *quiet]).numbers["last"])


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_method_trains_on_rows_or_says_what_to_change(method: str, features: Path, tmp_path: Path) -> None:
    if method not in REFUSED:
        assert trained(features, method, tmp_path / "run") > 0.3  # of four classes
        return
    with pytest.raises(UserError) as raised:
        trained(features, method, tmp_path / "run")
    assert REFUSED[method] in str(raised.value)
    if method in WAYS:
        assert trained(features, method, tmp_path / "run", *WAYS[method]) > 0.3
