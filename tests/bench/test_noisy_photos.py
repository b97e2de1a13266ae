"""The measurement of methods by noise: its images are what it says, and its table has the means of the runs."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import flnl
from bench import noisy_photos
from bench.noisy_photos import METHODS, NOISE, PHOTOS, Case, Row, report, write_photos
from flnl.config import compose
from flnl.config.check import check_config


def test_the_jpegs_are_the_digits(tmp_path: Path) -> None:
    write_photos(tmp_path)
    train, test = (sorted((tmp_path / split).rglob("*.jpg")) for split in ("train", "test"))
    assert len(train) == 600
    assert [len(list((tmp_path / "train" / str(label)).iterdir())) for label in range(10)] == [60] * 10
    digits = load_digits()
    assert len(train) + len(test) == len(digits.images)
    seventh = digits.images[np.flatnonzero(digits.target == 3)[7]]
    with Image.open(tmp_path / "train" / "3" / "0007.jpg") as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "L", (32, 32))
        small = np.asarray(image.resize((8, 8), Image.Resampling.BOX), np.float64) / 255 * 16
    assert np.corrcoef(small.ravel(), seventh.ravel())[0, 1] > 0.95


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("method", METHODS)
def test_every_run_can_be_configured(noise: str, method: str, tmp_path: Path) -> None:
    cfg = compose.load(Case(noise, method, 2).overrides(tmp_path))
    check_config(cfg)
    assert (cfg.seed, cfg.dataset.root) == (2, str(tmp_path / PHOTOS))


def test_the_table_has_means_and_leaves_out_what_is_not_defined() -> None:
    rows = [
        Row("anywhere", "fedavg", seed, accuracy, 0.9, 0.25, 0.25, None, None, 0.5 + seed / 10, 0.8, 0.6)
        for seed, accuracy in ((1, 0.7), (2, 0.8))
    ]
    rows.append(Row("clients", "fedcorr", 1, 0.5, 0.5, 0.3, 0.1, 0.9, 0.7, None, 1.0, 0.25))
    text = report(rows)
    anywhere, clients = text.split("### clients")
    assert "| `fedavg` | 2 | 75.0 % (70.0 to 80.0) | 25.0 % | 25.0 % |  | 0.650 | 0.800 / 0.600 |" in anywhere
    assert "| `fedcorr` | 1 | 50.0 % (50.0 to 50.0) | 30.0 % | 10.0 % | 0.900 / 0.700 |  | 1.000 / 0.250 |" in clients


def test_a_run_that_is_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[str]] = []

    def run(overrides: list[str]) -> SimpleNamespace:
        made.append(overrides)
        return SimpleNamespace(status="finished")

    monkeypatch.setattr(flnl, "run", run)
    case = Case("clients", "flr", 1)
    noisy_photos.make(case, tmp_path)
    assert made == [case.overrides(tmp_path)]
    (tmp_path / case.folder).mkdir(parents=True)
    (tmp_path / case.folder / "result.json").write_text('{"status": "finished", "key": "k", "config": {}}')
    noisy_photos.make(case, tmp_path)
    assert len(made) == 1
    assert list(noisy_photos.made(tmp_path)) == [case]


def test_an_interruption_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flnl, "run", lambda _: SimpleNamespace(status="interrupted"))
    with pytest.raises(KeyboardInterrupt):
        noisy_photos.make(Case("clients", "flr", 1), tmp_path)
