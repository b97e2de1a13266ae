"""What holds for every data set: its configuration, the digits, and cutting to a size."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import get_class
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from flnl.core.errors import UserError
from flnl.data.datasets.assemble import balanced
from flnl.data.datasets.digits import Digits

CONF = Path(__file__).parents[2] / "conf" / "dataset"
FILES = sorted(CONF.glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_field_has_its_default_in_yaml(path: Path, monkeypatch: pytest.MonkeyPatch):
    """A default in the class would be a second home; a key without a field, a setting that does nothing."""
    monkeypatch.setenv("FLNL_DATA", "/somewhere")
    loaded: Any = OmegaConf.load(path)
    loaded.cache = "/cache"  # a key of the run
    config: Any = OmegaConf.to_container(loaded, resolve=True)
    assert set(config) == {"defaults", "dataset", "cache"}
    target = config["dataset"].pop("_target_")
    part = get_class(target)
    assert set(config["dataset"]) == {field.name for field in fields(part)}
    part(**config["dataset"])
    assert (config["dataset"].get("root") or "/somewhere").startswith("/somewhere")


def test_data_lies_in_the_home_folder_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("FLNL_DATA", raising=False)
    assert OmegaConf.load(CONF / "cifar10.yaml").dataset.root == "~/.cache/flnl/data"


def test_digits_split_by_rule():
    data = Digits("digits", None, None)()
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert data.train.shape == (1, 8, 8)
    assert data.truth is not None
    shares = np.bincount(data.test_labels) / (np.bincount(data.truth) + np.bincount(data.test_labels))
    assert abs(shares - 0.2).max() < 0.01
    assert data.fingerprint == Digits("digits", None, None)().fingerprint


def test_digits_hold_every_sample_once_and_exactly():
    from sklearn.datasets import load_digits

    source = load_digits()
    data = Digits("digits", None, None)()
    assert data.truth is not None
    train, test = data.train.read(torch.arange(1437)), data.test.read(torch.arange(360))
    assert train.dtype == torch.uint8
    ours = np.concatenate([train.numpy(), test.numpy()]).reshape(1797, 64)
    labels = np.concatenate([data.truth, data.test_labels])
    ours = np.column_stack([ours, labels])
    theirs = np.column_stack([source.data, source.target])
    assert np.array_equal(ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)])
    inputs = data.transform.normalize(torch.cat([train, test]))
    assert abs(inputs.mean().item()) < 1e-3
    assert abs(inputs.std().item() - 1) < 1e-3


@settings(max_examples=200, deadline=None)
@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=40), data=st.data())
def test_a_cut_takes_the_first_of_each_class_as_equally_as_there_are(labels: list[int], data: st.DataObject):
    size = data.draw(st.integers(1, len(labels)))
    keep = balanced(np.array(labels), size, "dataset.train_size")
    assert len(keep) == size
    assert (np.diff(keep) > 0).all()
    kept = [labels[i] for i in keep]
    most = max(kept.count(label) for label in set(labels))
    for label in set(labels):
        positions = [i for i, value in enumerate(labels) if value == label]
        assert [i for i in keep if labels[i] == label] == positions[: kept.count(label)]
        assert kept.count(label) >= min(len(positions), most - 1)


def test_a_cut_larger_than_the_set_is_refused():
    with pytest.raises(UserError, match=r"^dataset\.test_size=361: the data set has only 360 samples$"):
        Digits("digits", None, 361)()
