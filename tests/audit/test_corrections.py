"""The overrides that come with corrected labels: for every data set of one's own, they make the same federation."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flnl.audit.audited_run import AuditedRun
from flnl.audit.examination import Examined
from flnl.audit.samples import LabelledSamples
from flnl.audit.writing import write
from flnl.config import compose
from flnl.data.federation.build import from_config
from flnl.record.run import RunRecord
from tests.audit.pages import audit

N = 24
CLASSES = ("ant", "bee", "cat")


def begins_again(folder: Path, words: Sequence[str], partition: Sequence[str]) -> list[str]:
    """Write corrections of a run of these overrides, check what a run of the printed ones learns, return these."""
    cfg = compose.load([*words, *partition])
    federation = from_config(cfg)
    position, given = federation.held, federation.given.numpy()
    samples = LabelledSamples(federation.holders, federation.names, given[position])
    run = AuditedRun(folder / "run", RunRecord(config=compose.resolved(cfg)), federation, samples, position, None)
    classes = federation.dataset.classes
    plain = audit(len(position), classes=classes, corrections="suggested", formats=(), out=folder / "audit")
    found = replace(
        plain,
        samples=replace(
            plain.samples,
            client=samples.client,
            name=samples.name,
            position=position,
            given=samples.given,
            predicted=(samples.given + 1) % len(classes),
            is_issue=np.arange(len(position)) % 3 == 0,
        ),
    )
    overrides = write(Examined(found, {}, run, {})).overrides
    assert overrides is not None
    again = from_config(compose.load([*words, *overrides]))
    expected = given.copy()
    expected[position] = np.where(found.samples.is_issue, found.samples.predicted, found.samples.given)
    assert again.given.tolist() == expected.tolist()
    assert (expected != given).any()
    assert [part.tolist() for part in again.clients] == [part.tolist() for part in federation.clients]
    return [override.partition("=")[0] for override in overrides]


@pytest.fixture
def arrays(tmp_path: Path) -> list[str]:
    """A data set of one's own whose file has true and given labels, and clients."""
    rng = np.random.default_rng(0)
    content: dict[str, Any] = {
        "x_train": rng.integers(0, 255, (N, 4, 4), np.uint8),
        "y_train": np.arange(N) % 3,
        "y_given": (np.arange(N) // 2) % 3,
        "clients": np.array(["ward b", "ward a", "ward c", "ward a"] * (N // 4)),
        "classes": np.array(CLASSES),
    }
    np.savez(tmp_path / "data.npz", **content, x_test=content["x_train"][:6], y_test=content["y_train"][:6])
    return ["dataset=arrays", f"dataset.root={tmp_path}", "dataset.file=data.npz", "noise=none"]


LABELS = ["dataset.labels", "partition"]


def test_arrays_with_given_labels_and_clients(arrays: list[str], tmp_path: Path) -> None:
    assert begins_again(tmp_path, [*arrays, "dataset.truth=none"], ["partition=file"]) == LABELS


def test_arrays_whose_clients_were_drawn(arrays: list[str], tmp_path: Path) -> None:
    drawn = ["partition=iid_uniform", "partition.num_clients=4"]
    assert begins_again(tmp_path, [*arrays, "dataset.truth=y_train"], drawn) == LABELS


def test_arrays_whose_samples_have_names(arrays: list[str], tmp_path: Path) -> None:
    with np.load(tmp_path / "data.npz") as content:
        np.savez(tmp_path / "named.npz", **content, ids=np.array([f"scan {i}" for i in range(N)]))
    words = [*arrays, "dataset.file=named.npz", "dataset.truth=none"]
    assert begins_again(tmp_path, words, ["partition=file"]) == LABELS


@pytest.mark.parametrize("vote", ["majority", "random"])
def test_labels_that_were_chosen_among_several(vote: str, arrays: list[str], tmp_path: Path) -> None:
    """The corrected file has one label a sample, among which nothing is chosen."""
    lines = [f"{i},{i % 3},{i % 4},{5 - i % 4},{i % 5}\n" for i in range(N)]
    (tmp_path / "votes.csv").write_text("id,count_ant,count_bee,count_cat,client\n" + "".join(lines))
    words = [*arrays, "dataset.labels=votes.csv", f"dataset.vote={vote}", "dataset.truth=none"]
    assert begins_again(tmp_path, words, ["partition=file"]) == [*LABELS, "dataset.vote"]


def test_a_label_file_that_knows_the_truth(arrays: list[str], tmp_path: Path) -> None:
    lines = [f"{i},{CLASSES[i % 2]},{CLASSES[i % 3]},{i % 5}\n" for i in range(N)]
    (tmp_path / "labels.csv").write_text("id,label,true,client\n" + "".join(lines))
    words = [*arrays, "dataset.labels=labels.csv", "dataset.truth=csv"]
    assert begins_again(tmp_path, words, ["partition=file"]) == [*LABELS, "dataset.truth"]
    assert "true" not in (tmp_path / "audit" / "corrected.csv").read_text().splitlines()[0], "it reads no truth"


def test_clients_without_samples_keep_their_numbers(arrays: list[str], tmp_path: Path) -> None:
    """Client 1 and clients 4 to 6 hold no sample, and sample 0 has no client."""
    owner = np.array([0, 2, 3] * (N // 3))
    owner[0] = -1
    np.save(tmp_path / "owner.npy", owner)
    partition = ["partition=file", f"partition.path={tmp_path / 'owner.npy'}", "partition.num_clients=7"]
    expected = [*LABELS, "partition.path", "partition.num_clients"]
    assert begins_again(tmp_path, [*arrays, "dataset.truth=none"], partition) == expected


def test_a_client_in_the_middle_without_samples(arrays: list[str], tmp_path: Path) -> None:
    np.save(tmp_path / "owner.npy", np.array([0, 2, 3] * (N // 3)))
    partition = ["partition=file", f"partition.path={tmp_path / 'owner.npy'}", "partition.num_clients=4"]
    keys = [*LABELS, "partition.path", "partition.num_clients"]
    assert begins_again(tmp_path, [*arrays, "dataset.truth=none"], partition) == keys


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are Unicode")
def test_images_whose_names_are_no_utf8(tmp_path: Path) -> None:
    for i in range(12):
        for split in (b"train", b"test"):
            folder = os.fsencode(tmp_path) + b"/images/" + split + (b"/ant", b"/b\xe9e")[i % 2]
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103 (pathlib has no bytes)
            with open(folder + b"/caf\xe9 %d.png" % i, "wb") as file:  # noqa: PTH123
                Image.new("RGB", (8, 8), (20 * i, 0, 0)).save(file, "png")
    words = [
        *("dataset=image_folder", f"dataset.root={tmp_path / 'images'}", "dataset.image_size=8", "noise=none"),
        "dataset.truth=none",
    ]
    assert begins_again(tmp_path, words, ["partition=iid_uniform", "partition.num_clients=3"]) == LABELS
