"""DivideMix beside its authors' loop: the data, and that a command goes on where it stopped."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from bench import dividemix
from bench.whole_runs import read_rows


@pytest.mark.slow
def test_all_ways_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, data, folder = np.random.default_rng(0), tmp_path / "data", tmp_path / "runs"
    (data / "cifar-10-batches-py").mkdir(parents=True)
    for name in ("data_batch_1", "test_batch"):
        pixels = rng.integers(0, 256, (80, 3072), dtype=np.uint8)
        batch = {"data": pixels, "labels": [*range(10)] * 8}
        (data / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(batch))
    for name, value in {"TRAIN": 60, "TEST": 20, "WARM_UP": 1, "EPOCHS": 2, "DROP": 1, "BATCH": 16}.items():
        monkeypatch.setattr(dividemix, name, value)
    words = [str(folder), "--data", str(data), "--seeds", "3"]
    dividemix.main([*words, "--ways", "authors,mixed"])
    first = read_rows(folder / "dividemix.csv", dividemix.Row)
    dividemix.main(words)
    rows = read_rows(folder / "dividemix.csv", dividemix.Row)
    assert rows[:2] == first
    assert [row.way for row in rows] == ["authors", "mixed", "all"]
    assert all(0 <= row.accuracy <= 1 and 0 < row.auc < 1 for row in rows)
    arrays = np.load(folder / "3.npz")
    assert np.bincount(arrays["y_train"]).tolist() == [6] * 10
    assert int((arrays["y_given"] != arrays["y_train"]).sum()) == 27
    assert arrays["x_test"].shape == (20, 16, 16, 3)
    green = pixels[0].reshape(3, 32, 32)[1]  # of the first test image, which is of the first class
    assert int(arrays["x_test"][0, 2, 3, 1]) == pytest.approx(green[4:6, 6:8].mean(), abs=0.5)
