"""Sites with names: from their folders of images to corrected labels that are read again, with names everywhere."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flnl.commands import audit as audit
from flnl.commands import card as card
from flnl.record.label_table import NAME
from tests.products.conftest import Commands, read_csv
from tests.properties.runs import run

SITES = ("Charit\u00e9", "St. Mary's", "north clinic", "west")
FOLDERS = {"Charit\u00e9", "St_Mary_s", "north_clinic", "west"}
CLASSES = ("frog", "horse", "ship")
WRONG = 3
"""Images in the folder of another class, of the 18 of each site but the last."""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Images of three colours."""
    rng = np.random.default_rng(0)
    for s, site in enumerate(SITES):
        for c, name in enumerate(CLASSES):
            for i in range(7):
                wrong = i == 0 and s < len(SITES) - 1
                folder = f"train/{site}/{CLASSES[(c + 1) % 3] if wrong else name}" if i < 6 else f"test/{name}"
                pixels = rng.integers(0, 90, (8, 8, 3))
                pixels[..., c] += 150
                (tmp_path / folder).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype("uint8")).save(tmp_path / folder / f"{s}{c}{i}.png")
    return tmp_path


def test_four_sites(photos: Path, said: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [
        *("method=fedavg", "dataset=image_folder", f"dataset.root={photos}", "dataset.truth=none", "noise=none"),
        *("partition=file", "model=mlp", "model.hidden=[16]", "dataset.image_size=8", "dataset.crop_from=null"),
        *("dataset.flip=false", "rounds=20", "fraction=1.0", "train.lr=0.05", "train.epochs=2", "train.batch_size=6"),
        *("executor=sequential", "logger=csv", "figures=false"),
    ]
    shown = said(card, *words, f"output={photos / 'card'}").out
    assert all(site in shown for site in SITES)
    first = run(words, photos / "run")
    assert first.record["client_names"] == list(SITES)
    assert {row["client"] for row in read_csv(photos / "run" / NAME)} == set(SITES)

    told = said(audit, photos / "run", "--clients", "--corrections", "suggested", "--thumbnails", "0")
    assert told.code == 0, told.err
    folder = photos / "run" / "audit"
    assert {path.name for path in (folder / "clients").iterdir()} == FOLDERS
    assert [row["client"] for row in json.loads((folder / "audit.json").read_text())["by_client"]] == list(SITES)
    page = (folder / "index.html").read_text()
    assert all(site.replace("'", "&#39;") in page or site.replace("'", "&#x27;") in page for site in SITES)
    assert "north clinic" not in page.partition("</h1>")[0]
    its_own = (folder / "clients" / "north_clinic" / "index.html").read_text()
    assert its_own.partition("</h1>")[0].count("own · fedavg · client north clinic") == 2  # in the title, too
    assert '"sizes":[18,54]' in its_own.replace(" ", ""), "each row's share is of its own labels"
    alone = read_csv(folder / "clients" / "north_clinic" / "audit.csv")
    assert {row["client"] for row in alone} == {"north clinic"}
    assert len(alone) == 18
    corrected = read_csv(folder / "corrected.csv")
    assert {
        row["client"]: sum(1 for one in corrected if one["client"] == row["client"]) for row in corrected
    } == dict.fromkeys(SITES, 18)
    right = sum(row["label"] == CLASSES[int(Path(row["path"]).stem[1])] for row in corrected)
    assert right > len(corrected) - 2 * WRONG, "the audit corrects what stands out here"

    verdicts = photos / "verdicts.csv"
    verdicts.write_text(f"client;sample;verdict;label\nnorth clinic;{alone[0]['sample']};unsure;\n", encoding="utf-16")
    again = said(audit, photos / "run", "--reviewed", verdicts, "--out", photos / "second", "--formats", "json")
    assert again.code == 0, again.err
    assert json.loads((photos / "second" / "audit.json").read_text())["review"]["unsure"] == 1

    command = next(line for line in told.out.splitlines() + told.err.splitlines() if "dataset.labels=" in line)
    overrides = [word for word in shlex.split(command) if word.startswith(("dataset.labels=", "partition=file"))]
    second = run([*words, *overrides], photos / "again")
    assert second.record["client_names"] == list(SITES)
    given = {row["sample"]: row["given"] for row in read_csv(photos / "again" / NAME)}
    assert given == {row["path"]: row["label"] for row in corrected}
