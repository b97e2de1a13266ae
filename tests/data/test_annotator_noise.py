"""Noise by annotator: each client has a confusion matrix of its own, drawn or given."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flnl.commands.card import show
from flnl.config import compose
from flnl.core.errors import UserError
from flnl.core.streams import stream
from flnl.data.federation.build import from_config
from flnl.data.noise import corrupt
from flnl.data.noise.annotators import Annotators, habits
from tests.data.noise_sets import labelled, transition


def part(**changes: Any) -> Annotators:
    return Annotators(**{"low": 0.2, "high": 0.6, "concentration": 0.3, "path": None, **changes})


def test_a_persons_matrix():
    """Right with probability 1 - r; wrong labels are few classes' where the concentration is small."""
    few = habits(10, 0.4, 0.05, stream(1, "test"))
    assert np.allclose(few.sum(axis=1), 1)
    assert np.allclose(np.diagonal(few), 0.6)
    largest = np.sort(few - 0.6 * np.eye(10), axis=1)[:, -1] / 0.4
    assert largest.mean() > 0.7  # most of a class's mistakes are one class
    many = habits(10, 0.4, 1e6, stream(1, "test"))
    assert np.allclose(many[~np.eye(10, dtype=bool)], 0.4 / 9, atol=1e-3)
    assert np.allclose(habits(2, 0.3, 0.3, stream(1, "test")), [[0.7, 0.3], [0.3, 0.7]])
    assert np.isfinite(habits(5, 0.4, 1e-300, stream(1, "test"))).all()


def test_each_client_confuses_other_classes():
    truth = np.tile(np.arange(5), 4000)
    clients = np.split(np.arange(len(truth)), 2)
    given, rates = corrupt(part(), labelled(truth, 5), truth, clients, 1)
    assert ((rates >= 0.2) & (rates <= 0.6)).all()
    one, other = (transition(given[index], truth[index], 5) for index in clients)
    for rate, share in zip(rates, (one, other), strict=True):
        assert np.allclose(np.diagonal(share), 1 - rate, atol=0.05)
    assert abs(one - other).max() > 0.15
    again, _ = corrupt(part(), labelled(truth, 5), truth, clients, 1)
    assert np.array_equal(given, again)
    alone, _ = corrupt(part(), labelled(truth, 5), truth, clients[:1], 1)
    assert np.array_equal(alone[clients[0]], given[clients[0]])  # no client's labels depend on another's


def test_matrices_may_be_given(tmp_path: Path):
    swap, keep = np.array([[0.0, 1.0], [1.0, 0.0]]), np.eye(2)
    path = tmp_path / "T.npy"
    np.save(path, np.stack([swap, keep]))
    noise = part(path=str(path))
    truth = np.tile([0, 1], 10)
    given, rates = corrupt(noise, labelled(truth, 2), truth, [np.arange(10), np.arange(10, 20)], 1)
    assert rates.tolist() == [1, 0]
    assert given.tolist() == [*(1 - truth[:10]), *truth[10:]]
    assert (noise.nominal, noise.expected, noise.files()) == (None, 0.5, (path,))
    with pytest.raises(UserError, match=r"T\.npy has the matrices of 2 clients; there are 1$"):
        corrupt(noise, labelled(truth, 2), truth, [np.arange(20)], 1)
    with pytest.raises(UserError, match=r"T\.npy has matrices of 2 classes; the data set has 3$"):
        corrupt(noise, labelled(truth, 3), truth, [np.arange(10), np.arange(10, 20)], 1)
    for wrong, reason in (
        (np.ones((2, 2)), r"holds float64 \[2, 2\]; numbers \[clients, classes, classes\] are needed"),
        (np.stack([keep, np.array([[1, 0], [0.5, 0.4]])]), "row 1 of client 1 is no distribution"),
        (np.stack([np.array([[1.5, -0.5], [0, 1]])]), "row 0 of client 0 is no distribution"),
    ):
        np.save(path, wrong)
        with pytest.raises(UserError, match=reason):
            noise.rates(2, 1)
    with pytest.raises(UserError, match=r"cannot be read .*; a \.npy file is needed"):
        part(path=str(tmp_path / "nowhere.npy")).rates(2, 1)
    with pytest.raises(UserError, match=r"^noise\.low=0\.7 is above noise\.high=0\.6"):
        part(low=0.7)


def test_writers_are_annotators_of_their_own_digits():
    federation = from_config(compose.load(["partition=writers", "noise=annotators"]))
    assert federation.nominal is not None
    assert len({*federation.nominal}) == 14
    assert federation.truth is not None
    wrong = [float((federation.given != federation.truth)[index].double().mean()) for index in federation.clients]
    assert np.corrcoef(wrong, federation.nominal)[0, 1] > 0.9


def test_matrices_of_clients_may_be_taken_from_labels(tmp_path: Path):
    """What ``flnl card --matrices`` writes is what made the labels, as far as samples tell, and can be given again."""
    words = ["partition=iid_uniform", "partition.num_clients=2", "noise=annotators"]
    path = tmp_path / "T.npy"
    show([*words, f"output={tmp_path}"], path)
    federation = from_config(compose.load(words))
    assert federation.truth is not None
    matrices = np.load(path)
    whole = transition(federation.given.numpy(), federation.truth.numpy(), 10)
    for k, index in enumerate(federation.clients):
        true, given = federation.truth.numpy()[index], federation.given.numpy()[index]
        n = np.bincount(true, minlength=10)[:, None]
        assert np.allclose(matrices[k], (transition(given, true, 10) * n + whole) / (n + 1))
    drawn = from_config(
        compose.load(["partition=writers", "partition.num_clients=2", *words[2:], f"noise.path={path}"])
    )
    assert drawn.nominal == pytest.approx([1 - np.diagonal(T).mean() for T in matrices])


def test_a_class_that_a_client_lacks_is_as_others_give_it(tmp_path: Path):
    words = ["partition=labels_per_client", "partition.labels=3", "partition.num_clients=4", "noise=annotators"]
    show([*words, f"output={tmp_path}"], tmp_path / "T.npy")
    matrices = np.load(tmp_path / "T.npy")
    assert np.allclose(matrices.sum(axis=2), 1)
    federation = from_config(compose.load(words))
    assert federation.truth is not None
    held = np.concatenate(federation.clients)
    true, given = federation.truth.numpy(), federation.given.numpy()
    everywhere, here = ({*true[index].tolist()} for index in (held, federation.clients[0]))
    assert here < everywhere < {*range(10)}
    for c in everywhere - here:
        shares = np.bincount(given[held][true[held] == c], minlength=10) / (true[held] == c).sum()
        assert np.allclose(matrices[0, c], shares)
    for c in {*range(10)} - everywhere:
        assert matrices[:, c, c].tolist() == [1.0] * 4
