"""A federation without its clients' samples: numbers are there, and whatever asks for a sample or label fails."""

from pathlib import Path

import pytest
import torch

from flnl.config import compose
from flnl.data.federation.build import from_config
from flnl.data.federation.elsewhere import ElsewhereError, without_samples
from tests.registry import TINY


def test_numbers_are_there_and_nothing_of_a_sample(tmp_path: Path) -> None:
    here = from_config(compose.load([*TINY, "eval.validation=0.2", "partition=fedcorr"]), tmp_path)
    server = without_samples(here)
    assert (server.sizes, server.with_data, server.fingerprint) == (here.sizes, here.with_data, here.fingerprint)
    assert [len(server.samples(client)) for client in server.with_data] == here.counts
    assert server.dataset.classes == here.dataset.classes
    assert server.dataset.train.shape == here.dataset.train.shape
    assert server.tested.tolist() == here.tested.tolist()
    samples = server.samples(server.with_data[0])
    with pytest.raises(ElsewhereError):
        samples.read()
    with pytest.raises(ElsewhereError):
        list(samples.read_each([torch.tensor([0])], augmented=True))
    for read in (samples.given.tolist, samples.given.numpy, lambda: int(server.given.sum())):
        with pytest.raises((RuntimeError, TypeError, NotImplementedError)):
            read()
    data = server.dataset
    assert [*map(type, (server.truth, server.nominal, data.truth, data.given, data.ids))] == [type(None)] * 5
    assert not len(server.validation)


def test_an_empty_batch_has_the_form_of_samples(tmp_path: Path) -> None:
    here = from_config(compose.load(TINY), tmp_path)
    nobody = torch.zeros(0, dtype=torch.int64)
    read = without_samples(here).dataset.train.read(nobody)
    assert (read.shape, read.dtype) == (here.dataset.train.read(nobody).shape, here.dataset.train.read(nobody).dtype)
