"""Federations: what is drawn, in what order, from which stream; kept on disk; and shown truly on its card."""

import json
import logging
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from rich.console import Console

from flnl.commands import card as command
from flnl.config import compose
from flnl.config.check import check_config
from flnl.config.folders import CONF
from flnl.core.errors import UserError
from flnl.core.images import Labels
from flnl.data import partition as P
from flnl.data.dataset import Dataset
from flnl.data.federation import build as federation_build
from flnl.data.federation.build import Federation, build
from flnl.data.noise import Noise
from flnl.data.noise.client import FedCorr, FedES
from flnl.data.noise.human import Human
from flnl.data.noise.transition import Asymmetric, Clean, Matrix, Symmetric
from flnl.instruments.card.card import card, markdown, tables
from flnl.instruments.card.figure import draw
from tests.data.noise_sets import balanced, labelled

IID = P.IIDUniform(5)
FEDCORR = FedCorr(0.6, 0.3, "bernoulli", "all")
SYMMETRIC = Symmetric(0.4, False, "bernoulli")
BY_GIVEN = P.Openset(5, 0.5, "uniform", "largest_remainder", "drop", "given")


def indices(federation: Federation) -> list[list[int]]:
    return [index.tolist() for index in federation.clients]


# ----------------------------------------------------------------------------------------------------- building


def test_clients_see_their_images_and_given_labels_and_no_truth():
    data = balanced(20)
    federation = build(data, IID, FEDCORR, 1)
    for k in range(5):
        samples = federation.samples(k)
        assert samples.images is data.train  # shared, not copied
        assert samples.index.tolist() == federation.clients[k].tolist()
        assert torch.equal(samples.given, federation.given[samples.index])
    assert federation.truth is not None
    assert federation.truth.tolist() == data.truth.tolist()
    assert federation.dataset.truth is None
    assert federation.dataset.labels.tolist() == federation.given.tolist()
    assert federation.dataset.test_labels is data.test_labels
    assert federation.given.dtype == federation.truth.dtype == torch.int64


def test_ten_thousand_clients():
    federation = build(balanced(2000), P.IIDUniform(10_000), FEDCORR, 1)
    assert federation.num_clients == len(federation.with_data) == 10_000
    assert set(federation.sizes.values()) == {2}
    assert federation.samples(9_999).images is federation.samples(0).images


def test_seed_decides_partition_and_noise():
    data = balanced(40)
    first, again, other = (build(data, IID, FEDCORR, seed) for seed in (1, 1, 2))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert indices(first) != indices(other)
    assert not torch.equal(first.given, other.given)


def test_noise_and_partition_have_streams_of_their_own():
    """Another noise leaves the partition as it is, and another partition the noise of the set."""
    data = balanced(40)
    assert indices(build(data, IID, FEDCORR, 1)) == indices(build(data, IID, Clean(), 1))
    a = build(data, IID, SYMMETRIC, 1).given
    assert torch.equal(a, build(data, P.Shards(4, 2, "truth"), SYMMETRIC, 1).given)


def test_fingerprint_covers_everything():
    data = balanced(40)
    prints = {
        build(data, IID, FEDCORR, 1).fingerprint,
        build(data, IID, FEDCORR, 1, validation=0.1).fingerprint,
        build(data, IID, Clean(), 1).fingerprint,
        build(data, P.IIDUniform(6), FEDCORR, 1).fingerprint,
        build(replace(data, fingerprint="other"), IID, FEDCORR, 1).fingerprint,
    }
    assert len(prints) == 5


# -------------------------------------------------------------------------------------------------------- order


def test_partition_by_given_labels_follows_the_noise():
    data = balanced(200)
    federation = build(data, P.Shards(10, 1, "given"), SYMMETRIC, 1)
    for k in range(10):  # ten shards of ten classes of nearly equal size: few given classes a client, all true ones
        assert len(federation.samples(k).given.unique()) <= 3
        assert federation.truth is not None
        assert len(federation.truth[federation.samples(k).index].unique()) == 10


def test_partition_by_true_labels_with_noise_of_the_set():
    federation = build(balanced(200), P.Shards(10, 1, "truth"), SYMMETRIC, 1)
    assert federation.truth is not None
    assert all(len(federation.truth[federation.samples(k).index].unique()) == 1 for k in range(10))


def test_openset_drops_are_reported():
    found = [build(balanced(50, 4), replace(BY_GIVEN, num_clients=2), SYMMETRIC, s).dropped for s in range(10)]
    assert any(len(d) for d in found)


@pytest.mark.parametrize(
    ("partition", "noise", "more", "message"),
    [
        (BY_GIVEN, FEDCORR, {}, r"partition\.by=given .* Set partition\.by=truth, or noise of the whole set"),
        (IID, SYMMETRIC, {"given": np.zeros(100, np.int64)}, "set noise=none"),
        (IID, FEDCORR, {"given": np.zeros(100, np.int64)}, "set noise=none"),
        (IID, FEDCORR, {"given": np.zeros(100, np.int64), "truth": None}, "set noise=none"),
        (
            P.IIDClass(5, "truth"),
            Clean(),
            {"given": np.zeros(100, np.int64), "truth": None},
            r"set partition\.by=given",
        ),
    ],
)
def test_parts_that_do_not_fit(partition, noise, more, message):
    with pytest.raises(UserError, match=message):
        build(replace(balanced(10), **more), partition, noise, 1)


@dataclass(frozen=True)
class Returning:
    """A partition or noise of one's own that returns ``value``."""

    value: Any
    each: Any = None  # of clients' noise: the labels of a client

    def __call__(self, *given: Any) -> Any:
        return self.value if self.each is None else self.each(given[0])


class ReturningOfClients(Returning):
    def rates(self, num_clients: int, seed: int) -> Any:
        return self.value


RATES = np.zeros(5)


@pytest.mark.parametrize(
    ("partition", "noise", "message"),
    [
        (IID, Returning([0] * 100), r"noise \(Returning\) returned a list; should be labels from 0 to 9"),
        (IID, Returning(np.zeros(99, np.int64)), r"returned int64 \[99\]; should be .* \[100\]"),
        (IID, Returning(np.zeros(100)), r"returned float64 \[100\]"),
        (IID, Returning(np.full(100, 13)), "returned label 13 for sample 0"),
        (
            IID,
            ReturningOfClients(0.3),
            r"\(ReturningOfClients\)\.rates returned a float; should be numbers \[5\]",
        ),
        (IID, ReturningOfClients(RATES, lambda labels: labels - 1), r"client 0, returned label -1 for sample"),
        (IID, ReturningOfClients(RATES, lambda labels: labels[1:]), r"client 0, returned int64 \[19\]"),
        (Returning([0] * 100), Clean(), r"partition \(Returning\) returned a list; should be a Split"),
        (
            Returning(P.Split(np.full(100, 5), 5)),
            Clean(),
            "client 5 for sample 0; should be clients from -1 to 4",
        ),
        (Returning(P.Split(np.zeros(99, np.int64), 5)), Clean(), r"returned int64 \[99\]"),
    ],
)
def test_what_parts_of_ones_own_return_is_checked(partition: Any, noise: Any, message: str):
    with pytest.raises(UserError, match=message):
        build(balanced(10), partition, noise, 1)


def test_integers_of_another_width_are_labels(tmp_path):
    noise: Any = Returning(np.full(100, 3, np.int8))
    assert build(balanced(10), IID, noise, 1).given.tolist() == [3] * 100


def test_labels_that_came_with_the_data():
    given = np.arange(100) % 10
    data = replace(balanced(10), given=given, truth=None)
    federation = build(data, P.IIDClass(5, "given"), Clean(), 1)
    assert federation.given.tolist() == given.tolist()
    assert federation.truth is None
    assert federation.nominal is None  # nobody knows
    assert build(balanced(10), IID, Clean(), 1).nominal == (0.0,) * 5


def test_nominal_rates():
    assert build(balanced(10), IID, SYMMETRIC, 1).nominal == (0.4,) * 5
    rates = build(balanced(10), IID, FedES(0.3, 0.2, "symmetric", "global", "auto"), 1).nominal
    assert rates == tuple(FedES(0.3, 0.2, "symmetric", "global", "auto").rates(5, 1).tolist())


# --------------------------------------------------------------------------------------------------- validation


def test_validation_takes_its_share_of_every_client():
    data = balanced(41)
    whole, held = build(data, IID, FEDCORR, 1), build(data, IID, FEDCORR, 1, validation=0.1)
    assert torch.equal(whole.given, held.given)  # a stream of its own; held-out labels are noisy as well
    validation = set(held.validation.tolist())
    for full, kept in zip(indices(whole), indices(held), strict=True):
        taken = set(full) - set(kept)
        assert len(taken) == int(0.1 * len(full)) == 8
        assert taken <= validation
    assert len(validation) == 40


def test_validation_is_not_drawn_from_the_noise():
    """From the same stream, the first samples to be held out would be those whose labels change."""
    federation = build(balanced(400), IID, FedES(0.5, 0.0, "symmetric", "global", "auto"), 1, validation=0.1)
    assert federation.truth is not None
    wrong = (federation.given != federation.truth)[torch.from_numpy(federation.validation)].double().mean()
    assert abs(wrong - 0.5) < 4 * 0.5 / np.sqrt(400)


@pytest.mark.parametrize("share", [0.9, 1 - 1e-12])
def test_validation_leaves_every_client_a_sample(share):
    federation = build(balanced(10), P.IIDUniform(100), FEDCORR, 1, validation=share)
    assert len(federation.with_data) == 100
    assert len(federation.validation) == 0


def test_validation_of_a_client_does_not_depend_on_the_others():
    natural = np.arange(100) % 2
    first = build(replace(balanced(10), clients=natural), P.File(None, None), Clean(), 1, validation=0.2)
    other = np.where((np.arange(100) % 2 == 1) & (np.arange(100) > 50), 2, natural)
    second = build(replace(balanced(10), clients=other), P.File(None, None), Clean(), 1, validation=0.2)
    assert indices(first)[0] == indices(second)[0]


# ---------------------------------------------------------------------------------------------------- clean samples


def test_the_server_holds_a_share_of_each_class_of_the_test_set_whatever_the_seed():
    data = replace(
        balanced(40), test_labels=np.repeat([0, 3, 7], [50, 7, 30])[np.random.default_rng(0).permutation(87)]
    )
    one, other, none = (build(data, IID, FEDCORR, s, benchmark=b) for s, b in ((1, 0.2), (2, 0.2), (1, 0.0)))
    assert np.bincount(data.test_labels[one.benchmark]).tolist() == [10, 0, 0, 1, 0, 0, 0, 6]
    assert one.benchmark.tolist() == other.benchmark.tolist() == sorted(set(one.benchmark.tolist()))
    assert sorted([*one.benchmark, *one.tested]) == list(range(87))
    assert none.tested.tolist() == list(range(87))
    firsts = [
        index for c, count in ((0, 10), (3, 1), (7, 6)) for index in np.flatnonzero(data.test_labels == c)[:count]
    ]
    assert set(one.benchmark.tolist()) != set(firsts)
    assert one.fingerprint == none.fingerprint
    assert torch.equal(one.given, none.given)


# -------------------------------------------------------------------------------------------------------- cache


def test_cache_gives_the_same_federation(tmp_path, monkeypatch):
    data = balanced(40)
    for noise in (FEDCORR, Clean(), Matrix(np.eye(10).tolist(), None)):
        fresh = build(data, IID, noise, 1, 0.1, tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(federation_build, "draw", lambda *_: pytest.fail("drawn again"))
            kept = build(data, IID, noise, 1, 0.1, tmp_path)
        assert kept.fingerprint == fresh.fingerprint
        assert indices(kept) == indices(fresh)
        assert torch.equal(kept.given, fresh.given)
        assert kept.validation.tolist() == fresh.validation.tolist()
        assert kept.nominal == fresh.nominal
    assert len(list(tmp_path.iterdir())) == 3  # no remains of writing


def test_cache_is_named_by_all_that_decides(tmp_path):
    data, matrix = balanced(40), tmp_path / "T.npy"
    cache = tmp_path / "cache"
    np.save(matrix, np.eye(10))
    build(data, IID, FEDCORR, 1, 0.0, cache)
    build(data, IID, FEDCORR, 2, 0.0, cache)
    build(data, IID, FEDCORR, 1, 0.1, cache)
    build(data, P.IIDUniform(6), FEDCORR, 1, 0.0, cache)
    build(data, IID, replace(FEDCORR, rho=0.7), 1, 0.0, cache)
    build(replace(data, fingerprint="other"), IID, FEDCORR, 1, 0.0, cache)
    build(replace(data, name="mnist"), IID, FEDCORR, 1, 0.0, cache)  # chooses the classes that are mistaken
    build(replace(data, classes=(*data.classes, "unseen")), IID, FEDCORR, 1, 0.0, cache)
    build(replace(data, ids=[f"{i}.png" for i in range(len(data.labels))]), IID, FEDCORR, 1, 0.0, cache)
    brighter = replace(data.transform, mean=tuple(m + 0.1 for m in data.transform.mean))  # noise=instance reads it
    build(replace(data, transform=brighter), IID, FEDCORR, 1, 0.0, cache)
    assert len(list(cache.iterdir())) == 10
    assert (build(data, IID, Matrix(None, str(matrix)), 1, 0.0, cache).given.numpy() == data.truth).all()
    np.save(matrix, np.roll(np.eye(10), 1, axis=1))  # the same path, another content
    assert (build(data, IID, Matrix(None, str(matrix)), 1, 0.0, cache).given.numpy() != data.truth).all()


def test_cache_is_named_by_the_code_that_reads_what_a_draw_depends_on(tmp_path, monkeypatch):
    (tmp_path / "owners.csv").write_text("client\n" + "0\n1\n" * 50)
    read, original = set[str](), Path.read_bytes

    def recorded(path: Path) -> bytes:
        read.add(path.name)
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", recorded)
    build(balanced(10), P.File(None, str(tmp_path / "owners.csv")), Clean(), 1, 0.0, tmp_path / "cache")
    assert {"owner_file.py", "csv_lines.py", "spreadsheet.py", "array_pickle.py", "transforms.py"} <= read
    assert {"label_flips.py", "rounding.py"} <= read


class Rolled:
    """Noise of one's own, with no more than its call."""

    def __call__(self, dataset: Dataset, seed: int, /) -> Labels:
        assert dataset.truth is not None
        return np.roll(dataset.truth, 1)


def test_nothing_is_cached_of_parts_of_ones_own_whose_code_may_change(tmp_path, monkeypatch):
    data, own = balanced(40), cast(Any, Rolled())  # whose rate nobody has said
    assert (build(data, IID, own, 1, 0.0, tmp_path).given.numpy() == np.roll(data.truth, 1)).all()
    monkeypatch.setattr(Rolled, "__call__", lambda self, dataset, seed: dataset.truth)
    assert (build(data, IID, own, 1, 0.0, tmp_path).given.numpy() == data.truth).all()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "foreign", "pickled"])
def test_damaged_cache_is_drawn_again(tmp_path, caplog, damage):
    data = balanced(40)
    fresh = build(data, IID, FEDCORR, 1, 0.0, tmp_path)
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    if damage == "flipped":
        with np.load(file) as kept:
            arrays = dict(kept)
        arrays["given"][0] = (arrays["given"][0] + 1) % 10
        np.savez(file, **arrays)
    elif damage == "pickled":
        objects: dict[str, Any] = {name: np.array([object()]) for name in ("owner", "num_clients", "held_out", "given")}
        np.savez(file, **objects)
    else:
        file.write_bytes({"truncated": content[: len(content) // 2], "emptied": b"", "foreign": b"hello"}[damage])
    with caplog.at_level(logging.WARNING):
        again = build(data, IID, FEDCORR, 1, 0.0, tmp_path)
    assert again.fingerprint == fresh.fingerprint
    assert "is damaged; the federation is drawn again" in caplog.text
    caplog.clear()
    build(data, IID, FEDCORR, 1, 0.0, tmp_path)
    assert not caplog.text  # mended


def test_no_changed_byte_of_a_cache_changes_the_federation(tmp_path):
    data = balanced(10)
    fresh = build(data, IID, FEDCORR, 1, 0.0, tmp_path)
    (file,) = tmp_path.iterdir()
    content, rng = file.read_bytes(), np.random.default_rng(0)
    for position in rng.integers(0, len(content), 150):
        damaged = bytearray(content)
        damaged[position] ^= int(rng.integers(1, 256))
        file.write_bytes(damaged)
        assert build(data, IID, FEDCORR, 1, 0.0, tmp_path).fingerprint == fresh.fingerprint


def test_cache_that_cannot_be_written_costs_no_run(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    build(balanced(10), IID, FEDCORR, 1, 0.0, tmp_path / "file" / "cache")
    assert "could not be cached" in caplog.text


def test_nothing_is_cached_of_a_data_set_without_fingerprint(tmp_path):
    build(replace(balanced(10), fingerprint=""), IID, FEDCORR, 1, 0.0, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_said_by_the_part(tmp_path):
    with pytest.raises(UserError, match=r"CIFAR-10_human\.pt"):
        build(balanced(10, 10, "cifar10"), IID, Human("worst", str(tmp_path), None), 1, 0.0, tmp_path)


# --------------------------------------------------------------------------------------------------------- card


def with_empty_client() -> Federation:
    data = labelled(np.array([0, 0, 1, 1, 2, 2]), 4, clients=np.array([0, 0, 2, 2, -1, -1]))
    return build(data, P.File(None, None), Asymmetric(1.0, "pair", "exact"), 1)


def test_card_counts():
    found = card(with_empty_client())
    assert json.loads(json.dumps(found)) == found
    assert found["samples"] == 6
    assert found["training"] == 4
    assert found["dropped"] == 2
    assert found["empty"] == [1]
    assert found["unallocated"] == [0, 3]  # in given labels, 0 became 1 and 1 became 2
    assert found["size"] == {"min": 0, "median": 2.0, "max": 2}
    assert found["noise"] == 1.0
    assert found["nominal"] == 1.0
    assert found["transition"] == [[0, 2, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert found["per_client"][1] == {
        "client": 1, "name": "1", "samples": 0, "noise": None, "nominal": 1.0, "given": [0] * 4, "true": [0] * 4,
    }  # fmt: skip
    assert found["per_client"][0]["given"] == [0, 2, 0, 0]
    assert found["per_client"][0]["true"] == [2, 0, 0, 0]


def test_card_agrees_with_the_labels():
    federation = build(balanced(100), IID, FEDCORR, 1)
    found = card(federation)
    assert federation.truth is not None
    assert found["noise"] == pytest.approx(float((federation.given != federation.truth).double().mean()))
    for k, client in enumerate(found["per_client"]):
        index = federation.samples(k).index
        assert client["noise"] == pytest.approx(float((federation.given != federation.truth)[index].double().mean()))


def every_card() -> dict[str, Federation]:
    unknown = replace(balanced(30), given=np.zeros(300, np.int64), truth=None)
    return {
        "few": build(balanced(30), IID, FEDCORR, 1, 0.1),
        "many": build(balanced(30), P.IIDUniform(150), FEDCORR, 1),
        "classes": build(balanced(5, 100), IID, FEDCORR, 1),
        "clean": build(balanced(30), IID, Clean(), 1),
        "unknown": build(unknown, IID, Clean(), 1),
        "empty": with_empty_client(),
    }


@pytest.mark.parametrize("name", every_card())
def test_card_can_be_read(name):

    federation = every_card()[name]
    found = card(federation)
    console = Console(width=80, record=True, file=StringIO())
    for table in tables(found, 80):
        console.print(table)
    text, page = console.export_text(), markdown(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text  # nothing cut off
    assert page.count("\n| ") > federation.num_clients  # every client has its line
    for shown in (text, page):
        assert (("wrong" in shown) and ("True class" in shown or "confusions" in shown)) or federation.truth is None
    if federation.truth is None:
        assert found["noise"] is found["transition"] is None


PAGE = """\
# synthetic, 3 clients

## Federation of synthetic

|  |  |
| ---: | ---: |
| samples | 6 |
| clients | 3 |
| samples a client | 0 / 2 / 2 (min / median / max) |
| dropped (of no client) | 2 |
| clients without samples | 1: 1 |
| classes of no client | 2: 0, 3 |
| labels that are wrong | 100.00 % |
| nominal rate | 100.00 % (set by the noise model) |
| fingerprint | FINGERPRINT |

## Clients

| client | samples | wrong % | rate % | 0 | 1 | 2 | 3 |
| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| 0 | 2 | 100.00 | 100.00 | 0 | 2 | 0 | 0 |
| 1 | 0 |  | 100.00 | 0 | 0 | 0 | 0 |
| 2 | 2 | 100.00 | 100.00 | 0 | 0 | 2 | 0 |

Classes are counted by given label.

## True class (row) given as (column), %

|  | 0 | 1 | 2 | 3 |
| ---: | ---: | ---: | ---: | ---: |
| 0 | . | 100.0 | . | . |
| 1 | . | . | 100.0 | . |
| 2 | . | . | . | . |
| 3 | . | . | . | . |
"""


def test_card_word_for_word():
    found = card(with_empty_client())
    assert markdown(found) == PAGE.replace("FINGERPRINT", found["fingerprint"])


@pytest.mark.parametrize("name", every_card())
def test_figure_can_be_drawn(name, tmp_path):
    federation = every_card()[name]
    figure = draw(federation)
    figure.savefig(tmp_path / "f.png", dpi=40)
    shown = {axes.get_ylabel() for axes in figure.findobj(Axes) if isinstance(axes, Axes)}
    assert {"given class", "samples"} <= shown
    assert ({"noise", "true class", "clients"} <= shown) == (federation.truth is not None)


def test_names_of_classes_are_drawn_as_they_stand(tmp_path):
    """Between two dollars Matplotlib reads mathematics, and may not understand them."""
    data = balanced(40)
    names = ("a_$_$b", "$5-$10", *data.classes[2:])
    figure = draw(build(replace(data, classes=names), IID, FEDCORR, 1))
    figure.savefig(tmp_path / "f.svg")
    shown = {text.get_text() for axes in figure.axes for text in axes.get_xticklabels()}
    assert {r"a_\$_\$b", r"\$5-\$10"} <= shown


# ------------------------------------------------------------------------------------------------ configuration


def owned(numbers: list[int], names: tuple[str, ...]) -> Federation:
    """Six samples of natural clients with names."""
    set_ = labelled(np.arange(6) % 2, 2)
    return build(replace(set_, clients=np.array(numbers), client_names=names), P.File(None, None), Clean(), 1)


def test_clients_are_called_by_their_names_on_card_and_figure():
    federation = owned([0, 0, 1, 1, 1, 1], ("north $a_b$ clinic", "\x1b[2Jwest"))
    assert federation.client_names == ("north $a_b$ clinic", "\x1b[2Jwest")
    found = card(federation)
    assert [client["name"] for client in found["per_client"]] == list(federation.client_names)
    for text in (markdown(found), _terminal(found)):
        assert "north $a_b$ clinic" in text
        assert "\\x1b[2Jwest" in text.replace("\\\\", "\\")
    figure = draw(federation)
    shown = [label.get_text() for axes in figure.axes for label in axes.get_xticklabels()]
    assert {r"north \$a_b\$ clinic"} <= set(shown)


def test_names_change_nothing_but_what_clients_are_called(tmp_path):
    """So runs keep their federation; a cached draw has the names, and is another if they change."""
    plain, named = (owned([1, 0, 1, 0, 0, 1], names) for names in (("0", "1"), ("east", "west")))
    assert plain.fingerprint == named.fingerprint
    set_ = replace(labelled(np.arange(6) % 2, 2), clients=np.array([1, 0, 1, 0, 0, 1]), fingerprint="x")
    for names in (("east", "west"), ("caf\u00e9", "\udcff")):
        for _ in range(2):
            built = build(replace(set_, client_names=names), P.File(None, None), Clean(), 1, cache=tmp_path)
            assert built.client_names == names
    assert len(list(tmp_path.iterdir())) == 2
    pooled = build(replace(set_, client_names=names), P.File(None, None), Clean(), 1, cache=tmp_path, centralized=True)
    assert pooled.client_names is None
    assert pooled.called(0) == "0"


def test_clients_that_the_partition_does_not_use_are_told(tmp_path, caplog):
    x, y = np.zeros((12, 4, 4), np.uint8), np.arange(12) % 2
    owners = np.array(["east", "west"])[y]
    np.savez(tmp_path / "arrays.npz", x_train=x, x_test=x, y_train=y, y_test=y, clients=owners)
    words = ["dataset=arrays", f"dataset.root={tmp_path}", "noise=none", "model=mlp", "partition.num_clients=2"]
    for more, told in ((["partition=iid_uniform"], True), (["partition=file"], False), (["centralized=true"], False)):
        caplog.clear()
        federation_build.from_config(compose.load([*words, *more]))
        assert ("partition=file does" in caplog.text) == told


def _terminal(found: dict[str, Any]) -> str:
    console = Console(file=StringIO(), width=200)
    for table in tables(found, 200):
        console.print(table)
    return cast("StringIO", console.file).getvalue()


def test_the_command_writes_card_and_figure(tmp_path, capsys):
    words = [f"output={tmp_path / 'out'}", f"cache={tmp_path / 'cache'}", "dataset=digits", "noise=fedcorr"]
    folder = command.show([*words, "noise.rho=1", "noise.tau=1", "partition=iid_uniform", "partition.num_clients=4"])
    assert sorted(p.name for p in folder.iterdir()) == ["card.json", "card.md", "federation.png"]
    found = json.loads((folder / "card.json").read_text())
    assert found["clients"] == 4
    assert abs(found["noise"] - 0.9) < 4 * np.sqrt(0.09 / found["samples"])
    assert found["fingerprint"][:40] in capsys.readouterr().out


def test_data_seed_alone_decides(tmp_path):
    words = ["dataset=digits", f"cache={tmp_path}"]
    first, other, third = (
        federation_build.from_config(compose.load([*words, *more])).fingerprint
        for more in (["seed=1", "data_seed=7"], ["seed=2", "data_seed=7"], ["seed=1", "data_seed=8"])
    )
    assert first == other != third


@pytest.mark.parametrize("group", ["partition", "noise"])
def test_every_file_names_every_field_of_its_part(group):
    files = sorted((CONF / group).glob("*.yaml"))
    assert files
    for file in files:
        cfg = compose.load([f"{group}={file.stem}"])
        check_config(cfg)
        if file.stem != "matrix":  # its values are the user's
            compose.build(cfg[group])


# -------------------------------------------------------------------------------------------------- centralized


@pytest.mark.parametrize(("noise", "partition"), [(FEDCORR, IID), (SYMMETRIC, P.Shards(4, 2, "given"))])
def test_centralized_holds_the_labels_of_the_federation(noise: Noise, partition: P.Partition) -> None:
    """Sample by sample: one client with all that the clients hold, in the order of the data set."""
    data = balanced(40)
    many, one = (build(data, partition, noise, 3, validation=0.1, centralized=c) for c in (False, True))
    assert one.num_clients == 1
    assert one.clients[0].tolist() == sorted(np.concatenate(many.clients).tolist())
    assert torch.equal(one.given, many.given)
    assert one.truth is not None
    assert not torch.equal(one.given, one.truth)
    assert one.validation.tolist() == many.validation.tolist()
    assert one.dropped.tolist() == many.dropped.tolist()
    assert one.fingerprint != many.fingerprint
    assert many.nominal is not None
    assert one.nominal is not None
    weights = [len(index) for index in build(data, partition, noise, 3).clients]
    assert list(one.nominal) == [pytest.approx(np.average(many.nominal, weights=weights))]


def test_centralized_leaves_out_what_the_partition_dropped() -> None:
    """Two clients with half of four classes each need not cover all of them."""
    dropped = 0
    for seed in range(10):
        split = replace(BY_GIVEN, num_clients=2)
        many, one = (build(balanced(50, 4), split, SYMMETRIC, seed, centralized=c) for c in (False, True))
        assert one.dropped.tolist() == many.dropped.tolist()
        assert not set(one.dropped) & set(one.clients[0])
        dropped += len(one.dropped)
    assert dropped
