"""Images decoded on demand make the same run as images in memory, whoever decodes them and however many at once."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flnl.engine import network
from flnl.engine.executors import stacked
from tests.properties.runs import Ran, difference, run

WORDS = (
    "method=fedavg",
    "dataset=image_folder",
    "dataset.image_size=12",
    "dataset.crop_from=14",
    "partition=iid_uniform",
    "partition.num_clients=3",
    "fraction=1.0",
    "rounds=2",
    "noise=symmetric",
    "model=cnn",
    "model.widths=[2]",
    "train.batch_size=2",
    "train.epochs=2",
    "wandb.mode=disabled",
    "figures=false",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes of JPEGs in two splits; some cannot be decoded."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 3)):
        for label in ("cat", "dog"):
            folder = tmp_path / "images" / split / label
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
                Image.fromarray(pixels).save(folder / f"{i:02}.jpg")
    (tmp_path / "images" / "train" / "cat" / "05.jpg").write_bytes(b"no image")
    return tmp_path / "images"


@pytest.mark.parametrize("executor", ["sequential", "processes", "stacked"])
def test_a_run_is_the_same_to_the_bit(
    executor: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "CHUNK_BYTES", 4 * 3 * 12 * 12 * 4)  # four images: clients are read in two parts
    monkeypatch.setattr(stacked, "POOLED", 1e-9)  # a stack holds no images

    def ran(name: str, *more: str) -> Ran:
        return run([*WORDS, f"dataset.root={root}"], tmp_path / name, f"executor={executor}", *more)

    memory = ran("memory", "dataset.in_memory=true")
    for threads in (1, 3):
        files = ran(f"files{threads}", "dataset.in_memory=false", f"dataset.threads={threads}")
        assert difference(files.state, memory.state) is None
        assert files.lines == memory.lines
