"""Human labels: the right set, aligned one by one, and a message that says where to get what is missing."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flnl.core.errors import UserError
from flnl.data.noise.human import Human
from tests.data.noise_sets import balanced, labelled, share

KEYS = {
    "aggregate": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
    "worst": "worse_label",
}


@pytest.fixture
def cifar(tmp_path: Path) -> Any:
    """A data set and a file in CIFAR-10N's layout, with another number of wrong labels in each set."""
    data = balanced(20, 10, "cifar10")
    content = {"clean_label": data.truth.copy()}
    for wrong, key in enumerate(KEYS.values(), start=1):
        content[key] = data.truth.copy()
        content[key][:wrong] = (content[key][:wrong] + 1) % 10
    torch.save(content, tmp_path / "CIFAR-10_human.pt")
    return data


@pytest.mark.parametrize(("source", "wrong"), [(source, i) for i, source in enumerate(KEYS, start=1)])
def test_each_source_is_its_own_set(cifar, tmp_path, source, wrong):
    labels = Human(source, str(tmp_path), None)(cifar, 1)
    assert labels.dtype == np.int64
    assert (labels != cifar.truth).sum() == wrong
    assert (Human(source, None, str(tmp_path / "CIFAR-10_human.pt"))(cifar, 1) == labels).all()


def test_cifar100_fine(tmp_path):
    data = balanced(2, 100, "cifar100")
    noisy = np.roll(data.truth, 1)
    coarse = [0] * 200  # lists, as in the published file
    content = {
        "clean_label": data.truth,
        "noisy_label": noisy,
        "clean_coarse_label": coarse,
        "noisy_coarse_label": coarse,
    }
    torch.save(content, tmp_path / "CIFAR-100_human.pt")
    assert (Human("fine", str(tmp_path), None)(data, 1) == noisy).all()
    with pytest.raises(UserError, match=r"noise\.source=worst .* noise\.source=fine"):
        Human("worst", str(tmp_path), None)(data, 1)


def test_alignment_is_checked_one_by_one(cifar, tmp_path):
    """Two labels exchanged: sums and counts agree, and yet it is another order."""
    i, j = 0, int(np.flatnonzero(cifar.truth != cifar.truth[0])[0])
    truth = cifar.truth.copy()
    truth[[i, j]] = truth[[j, i]]
    with pytest.raises(UserError, match=r"another order .* 2 of its true labels differ, first at image 0"):
        Human("worst", str(tmp_path), None)(labelled(truth, 10, "cifar10"), 1)


def test_a_training_set_that_was_cut(cifar, tmp_path):
    """Found by the positions in the ids; without them the lengths give it away."""
    keep = np.arange(0, 200, 3)
    full = Human("worst", str(tmp_path), None)(cifar, 1)
    cut = labelled(cifar.truth[keep], 10, "cifar10", ids=[str(i) for i in keep])
    assert (Human("worst", str(tmp_path), None)(cut, 1) == full[keep]).all()
    assert 0 < share(full[keep], cut.truth) < 0.1
    with pytest.raises(UserError, match="labels 200 images, and cifar10 has 67"):
        Human("worst", str(tmp_path), None)(labelled(cifar.truth[keep], 10, "cifar10"), 1)


def test_missing_file_says_where_to_put_it(cifar, tmp_path):
    with pytest.raises(UserError, match=r"nowhere/CIFAR-10_human\.pt.*https://.*noise\.path"):
        Human("worst", str(tmp_path / "nowhere"), None)(cifar, 1)


def test_another_data_set(tmp_path):
    with pytest.raises(UserError, match=r"noise\.source=worst .* dataset=cifar10, not of digits"):
        Human("worst", str(tmp_path), None)(balanced(2, 10, "digits"), 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"clean_label": np.zeros(3, np.int64)}, "has no worse_label; it has clean_label"),
        ([1, 2], "holds a list"),
    ],
)
def test_other_content(cifar, tmp_path, content, message):
    torch.save(content, tmp_path / "CIFAR-10_human.pt")
    with pytest.raises(UserError, match=message):
        Human("worst", str(tmp_path), None)(cifar, 1)


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>"])
def test_what_is_no_label_file(cifar, tmp_path, content):
    (tmp_path / "CIFAR-10_human.pt").write_bytes(content)
    with pytest.raises(UserError, match="is not a CIFAR-N label file"):
        Human("worst", str(tmp_path), None)(cifar, 1)


class Malice:
    """What a pickle can do when it is trusted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_file_cannot_run_code(cifar, tmp_path):
    torch.save({"clean_label": Malice(tmp_path / "ran")}, tmp_path / "CIFAR-10_human.pt")
    with pytest.raises(UserError, match="is not a CIFAR-N label file"):
        Human("worst", str(tmp_path), None)(cifar, 1)
    assert not (tmp_path / "ran").exists()


def test_checksum_is_reported(cifar, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        Human("worst", str(tmp_path), None)(cifar, 1)
    assert "is not a published CIFAR-N file (sha256 " in caplog.text
