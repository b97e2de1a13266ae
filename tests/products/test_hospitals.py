"""The page of the four hospitals: its commands as they stand, from folders of photos to a second model."""

import csv
import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from hydra.core.global_hydra import GlobalHydra
from PIL import Image

from flnl import __main__ as program
from tests.products.conftest import read_csv

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "hospitals.md").read_text()
SITES = ("east", "north clinic", "St. Mary's", "Vall\u00e9e")
CLASSES = ("airplane", "frog", "ship")
DIRTY = SITES[:2]
ROUNDS = ("rounds=6", "wandb.mode=disabled", "figures=false")
"""What is added to the page's trainings, which are long for a test."""


def commands() -> list[list[str]]:
    blocks = re.findall(r"^```\n(flnl .*?)^```", PAGE, re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line.replace("$PWD", str(Path.cwd())))[1:] for line in lines]


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Photos of three colours in the page's folders; the first of each class in the folder of another at two sites."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for s, site in enumerate((*SITES, "test")):
        for c, name in enumerate(CLASSES):
            for i in range(70 if site == "test" else 8):
                label = CLASSES[(c + 1) % 3] if site in DIRTY and i == 0 else name
                folder = tmp_path / "photos" / (f"test/{name}" if site == "test" else f"train/{site}/{label}")
                folder.mkdir(parents=True, exist_ok=True)
                pixels = rng.integers(0, 120, (8, 8, 3))
                pixels[..., c] += 130
                Image.fromarray(pixels.astype("uint8")).save(folder / f"{s}{c}{i}.jpg")
    return tmp_path


def told(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr(sys, "argv", ["flnl", *words])
    GlobalHydra.instance().clear()
    code: object = None
    try:
        program.main()
    except SystemExit as left:
        code = left.code
    said = capsys.readouterr()
    assert not code, said.err
    return said.out


def test_the_page(photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    card, first, audit, review, second, compare = commands()
    shown = told(card, monkeypatch, capsys)
    assert all(site in shown for site in SITES)
    told([*first, *ROUNDS], monkeypatch, capsys)
    shown = told(audit, monkeypatch, capsys)
    assert "wrong, expected" in shown
    assert json.loads(Path("outputs/first/audit/audit.json").read_text())["wrong_labels"]

    Path("verdicts").mkdir()
    judged = 0
    for site, folder in zip(DIRTY, ("east", "north_clinic"), strict=True):
        rows = read_csv(photos / "outputs/first/audit/clients" / folder / "audit.csv")
        assert {row["client"] for row in rows} == {site}
        with (photos / "verdicts" / f"{site}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["client", "sample", "verdict", "label"])
            for row in rows:
                right = CLASSES[int(Path(row["sample"]).stem[1])]
                wrong = right != row["given_label"]
                writer.writerow([site, row["sample"], "wrong" if wrong else "right", right if wrong else ""])
                judged += wrong
    assert judged == 2 * len(CLASSES)
    assert "dataset.labels=" in told(review, monkeypatch, capsys)
    corrected = read_csv(photos / "outputs/corrected/corrected.csv")
    assert {row["client"] for row in corrected} == set(SITES)
    changed = [row for row in corrected if Path(row["path"]).parent.name != row["label"]]
    assert len(changed) == judged
    assert all(row["label"] == CLASSES[int(Path(row["path"]).stem[1])] for row in corrected)

    told([*second, *ROUNDS], monkeypatch, capsys)
    given = {row["sample"]: row["given"] for row in read_csv(photos / "outputs/second/labels.csv")}
    assert given == {row["path"]: row["label"] for row in corrected}
    assert json.loads(Path("outputs/second/result.json").read_text())["client_names"] == sorted(SITES)
    lines = [line for line in told(compare, monkeypatch, capsys).splitlines() if line.startswith("method=fedavg")]
    assert len(lines) == 2, "both runs have a row"
    assert sum("corrected.csv" in line for line in lines) == 1
    assert not any("dataset.labels=null" in line for line in lines)
