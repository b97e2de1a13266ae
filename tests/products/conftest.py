"""Runs whose products are looked at, each made once; and the commands, in this process."""

import contextlib
import csv
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.methods.fedcorr.entry import THREE_STAGES
from tests.properties.runs import Ran, run
from tests.registry import ONE_STAGE, TINY

Commands = Callable[..., "Said"]


@dataclass(frozen=True)
class Said:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


PLUGIN = Path(__file__).resolve().parents[2] / "examples" / "plugin"


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The parts of ``examples/plugin`` can be imported, afresh in each test."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "my_parts"]:
        del sys.modules[name]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The ``main`` of a module with these words."""

    def ran(module: Any, *words: object) -> Said:
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, words)])
        out, err, code = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                module.main()
            except SystemExit as left:
                code = left.code if isinstance(left.code, int) else int(left.code is not None)
        return Said(code, out.getvalue(), err.getvalue())

    return ran


@pytest.fixture(scope="session")
def fedcorr(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """FedCorr on the digits, through its three stages, a fifth of the samples held out."""
    folder = tmp_path_factory.mktemp("fedcorr") / "run"
    return run([*TINY, "method=fedcorr", *THREE_STAGES, "eval.validation=0.2"], folder)


@pytest.fixture(scope="session")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """FedAvg on the digits, in double precision."""
    folder = tmp_path_factory.mktemp("fedavg") / "run"
    return run([*TINY, "method=fedavg", *ONE_STAGE, "precision=64"], folder)


@dataclass(frozen=True)
class Own:
    """A run on a user's images, whose true labels nobody has told."""

    root: Path
    labels: dict[str, str]  # as the user gave them, by path
    ran: Ran


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Own:
    """FedAvg with batch norm on coloured squares of 12x10, a third of their labels wrong."""
    top = tmp_path_factory.mktemp("own")
    root, labels, rng = top / "images", {}, np.random.default_rng(5)
    for i in range(48):
        kind = ("[red]", "green, dark", "blue")[i % 3]  # what rich and CSV would take for their own
        split, folder = ("train", "all") if i < 36 else ("test", kind)
        pixels = rng.integers(0, 90, (10, 12, 3), np.uint8)
        pixels[..., i % 3] += 120
        (root / split / folder).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / split / folder / f"{i:02d}.png")
        if split == "train":
            labels[f"{folder}/{i:02d}.png"] = "blue" if i < 18 else kind
    with (root / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        writer.writerows(labels.items())
    words = (
        "dataset=image_folder",
        f"dataset.root={root}",
        "dataset.labels=labels.csv",
        "dataset.truth=none",
        "dataset.image_size=8",
        "dataset.crop_from=9",
        "noise=none",
        "model=resnet8",
        "model.width=4",
        "model.blocks=[1]",
        "method=fedavg",
        "partition.num_clients=3",
        "rounds=3",
        "train.epochs=2",
        "train.lr=0.1",
        "wandb.mode=disabled",
    )
    return Own(root, labels, run(words, top / "run"))


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
