"""Groups that a data set comes with are clients, whole; who wrote the digits of two data sets is known."""

import hashlib
import logging
import lzma
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from flnl.config import compose, identity
from flnl.core.errors import UserError
from flnl.core.streams import stream
from flnl.data.datasets import torchvision
from flnl.data.datasets.assemble import assemble, drawn
from flnl.data.datasets.digits import STARTS, Digits
from flnl.data.datasets.torchvision import Mnist
from flnl.data.federation.build import from_config
from flnl.data.images import TensorImages
from flnl.data.natural import Annotators, Natural, balanced, dealt
from flnl.data.owners import Owners
from flnl.data.partition import Pool, Split
from flnl.data.transforms import Transform
from flnl.instruments.card.card import card, markdown

VALUES: dict[str, Any] = {"num_clients": None, "join": "balanced", "choose": None, "chosen": "drawn", "minimum": 1}
VALUES |= {"small": "keep"}
SIZES = [19, 116, 131, 46, 53, 120, 90, 110, 99]


def natural(**changes: Any) -> Natural:
    return Natural(groups="writers", **VALUES | changes)


def pool(groups: list[int], names: tuple[str, ...] | None = None) -> Pool:
    return Pool(np.zeros(len(groups), np.int64), 2, clients=np.array(groups), client_names=names)


def split(part: Natural, of: Pool, seed: int = 1) -> Split:
    return part(of, stream(seed, "partition"))


def test_clients_are_numbered_by_the_order_of_the_names_that_occur():
    owners = Owners.of([*map(str, [2154, 0, 2232, 0, 7, 2154, 7, 2349])], "file")
    found = split(natural(), Pool(np.zeros(8, np.int64), 2, clients=owners.number, client_names=owners.names))
    assert found.owner.tolist() == [2, 0, 3, 0, 1, 2, 1, 4]
    assert (found.num_clients, found.names) == (5, ("0", "7", "2154", "2232", "2349"))
    numbered = split(natural(), pool([2154, 0, 2232, 0, -1]))  # by numbers alone, and one of nobody
    assert (numbered.owner.tolist(), numbered.num_clients) == ([1, 0, 2, 0, -1], 3)


def test_whole_groups_are_joined():
    """The largest first, each to the client with the fewest samples; or a random order in runs."""
    expected = [1, 2, 0, 0, 1, 1, 2, 3, 3]
    assert balanced(SIZES, 4).tolist() == expected
    assert np.bincount(expected, weights=SIZES).tolist() == [177, 192, 206, 209]
    order = np.array([4, 0, 8, 2, 6, 1, 7, 5, 3])
    assert dealt(order, 4).tolist() == [0, 2, 1, 3, 0, 3, 1, 2, 0]
    groups = np.repeat(np.arange(9), SIZES)
    found = split(natural(num_clients=4), pool(groups.tolist()))
    assert found.owner.tolist() == [expected[group] for group in groups]
    assert found.names is None
    many = [split(natural(num_clients=4, join="dealt"), pool(groups.tolist()), seed).owner for seed in (1, 1, 2)]
    assert np.array_equal(many[0], many[1])
    assert not np.array_equal(many[0], many[2])
    assert all(len({*many[0][groups == group].tolist()}) == 1 for group in range(9))
    with pytest.raises(
        UserError,
        match=r"^partition\.num_clients=10, but there are 9 groups, and none is cut; null is a client for each$",
    ):
        split(natural(num_clients=10), pool(groups.tolist()))
    assert split(natural(num_clients=9), pool(groups.tolist())).names == tuple("012345678")  # nothing is joined


def test_small_groups_are_kept_dropped_or_joined_with_each_other(caplog: pytest.LogCaptureFixture):
    groups = pool([0] * 10 + [1] * 5 + [2] * 5 + [3] * 2, ("a", "b", "c", "d"))
    assert split(natural(minimum=6), groups).num_clients == 4
    assert caplog.messages == ["partition.minimum=6 does nothing with partition.small=keep"]
    dropped = split(natural(minimum=6, small="drop"), groups)
    assert (dropped.num_clients, dropped.dropped.tolist()) == (1, [*range(10, 22)])
    joined = split(natural(minimum=6, small="join"), groups)  # 12 samples: two clients, b + d and c
    assert joined.owner.tolist() == [0] * 10 + [1] * 5 + [2] * 5 + [1] * 2
    assert split(natural(minimum=13, small="join"), groups).num_clients == 1  # 22 samples: one client
    few = split(natural(minimum=3, small="join"), groups)  # 2 are too few for a client
    assert (few.num_clients, few.names, len(few.dropped)) == (3, ("a", "b", "c"), 2)
    with pytest.raises(UserError, match=r"^partition\.minimum=30 leaves no group: the largest of 4 has 10 samples$"):
        split(natural(minimum=30, small="drop"), groups)


def test_some_groups_are_chosen_by_the_seed():
    groups = pool(np.repeat(np.arange(9), SIZES).tolist())
    found = [split(natural(choose=3), groups, seed) for seed in (1, 1, 2)]
    assert found[0].names == found[1].names != found[2].names
    names = [int(name) for name in found[0].names or ()]
    assert names == sorted(names)
    assert [len(i) for i in found[0].clients] == [SIZES[name] for name in names]
    largest = split(natural(choose=3, chosen="largest"), pool([2, 0, 0, 1, 1, 3, 3, 3]))
    assert largest.names == ("0", "1", "3")
    assert split(natural(choose=2, chosen="largest"), pool([2, 0, 0, 1, 1, 3, 3, 3])).names == ("0", "3")  # ties
    with pytest.raises(UserError, match=r"^partition\.choose=10, but there are 9 groups$"):
        split(natural(choose=10), groups)


def test_a_data_set_without_groups_is_refused():
    with pytest.raises(
        UserError, match=r"^partition=writers takes the groups .* this one has none.* that dataset\.client names$"
    ):
        split(natural(), Pool(np.zeros(4, np.int64), 2))


# -------------------------------------------------------------------------------------------------------------- digits


def digits(**changes: Any) -> Any:
    return Digits(**{"name": "digits", "train_size": None, "test_size": None, **changes})()


def test_the_digits_of_14_writers():
    data = digits(groups="writers")
    assert data.client_names == tuple(map(str, range(14)))
    sizes = [130, 126, 130, 130, 130, 130, 139, 114, 128, 130, 128, 130, 122, 130]
    tested = [27, 25, 26, 25, 27, 26, 27, 24, 24, 28, 24, 26, 24, 27]
    assert np.bincount(data.test_clients).tolist() == tested
    assert (np.bincount(data.clients) + tested).tolist() == sizes
    plain = digits()
    assert (plain.clients, plain.test_clients) == (None, None)
    assert plain.fingerprint != data.fingerprint  # what partition=writers draws from is told from the plain set
    assert plain.fingerprint.startswith("782c3a8789fc")  # as in records of runs of before writers were known


def test_all_writers_have_copied_one_sheet():
    """Which is how the blocks are known: the whole sheet, or all of it but a few digits."""
    target = "".join(map(str, load_digits().target.tolist()))
    blocks = [target[start:end] for start, end in zip(STARTS, [*STARTS[1:], None], strict=True)]
    sheet = blocks[0]
    assert len(sheet) == 130
    assert sum(block == sheet for block in blocks) == 7
    alike = [SequenceMatcher(None, sheet, block, autojunk=False).ratio() for block in blocks]
    assert min(alike) > 0.93


def test_writers_whom_nobody_trained_on():
    data = digits(test_writers=[11, 12, 13], groups="writers")
    assert (len(data.train), len(data.test)) == (1415, 382)
    assert np.bincount(data.test_labels).tolist() == [38, 39, 37, 39, 39, 39, 39, 38, 35, 39]
    assert np.bincount(digits(test_writers=[12]).test_labels).tolist() == [12, 13, 11, 13, 13, 13, 13, 12, 9, 13]
    assert data.client_names == tuple(map(str, range(11)))
    assert (data.test_clients == -1).all()
    middle = digits(test_writers=[3], groups="writers")
    assert middle.client_names == ("0", "1", "2", *map(str, range(4, 14)))
    for wrong in ([], [14], [-1], [*range(14)]):
        with pytest.raises(UserError, match=r"^dataset\.test_writers=.*: some of the writers 0\.\.13 are needed"):
            digits(test_writers=wrong)


def test_a_part_of_the_digits_is_drawn_from_all_writers():
    """The first samples are of the first two writers."""
    first = digits(train_size=200)
    writer = digits(groups="writers").clients
    assert np.bincount(writer[[int(i) for i in first.ids]]).tolist() == [103, 97]
    data = digits(train_sample=200, groups="writers")
    assert np.bincount(data.truth).tolist() == [20] * 10
    assert len(np.unique(data.clients)) == 14
    assert np.array_equal(writer[[int(i) for i in data.ids]], data.clients)
    assert data.fingerprint == digits(train_sample=200, groups="writers").fingerprint
    with pytest.raises(
        UserError, match=r"^dataset\.train_size=200 takes the first .* partition\.choose .*train_sample"
    ):
        digits(train_size=200, groups="writers")
    with pytest.raises(UserError, match=r"^dataset\.train_size=20 and dataset\.train_sample=30: set one"):
        digits(train_size=20, train_sample=30)
    with pytest.raises(UserError, match=r"^dataset\.train_sample=2000: the data set has only 1437 samples$"):
        digits(train_sample=2000)


def test_samples_are_drawn_evenly_from_the_whole_file():
    labels = np.array([0] * 500 + [1] * 500 + [2] * 3)
    keep = drawn(labels, 103, "dataset.train_sample")
    assert np.bincount(labels[keep]).tolist() == [50, 50, 3]
    assert keep.tolist() == sorted({*keep.tolist()})
    assert abs(keep[:50].mean() - 249.5) < 4 * 500 / np.sqrt(12 * 50)


def test_a_part_that_loses_clients_is_told(caplog: pytest.LogCaptureFixture):
    labels = np.array([0, 1] * 4)
    images = TensorImages(torch.zeros(8, 1, 2, 2, dtype=torch.uint8))
    with caplog.at_level(logging.WARNING):
        assemble(
            name="own",
            classes=("a", "b"),
            train=images,
            test=images,
            test_labels=labels,
            transform=Transform((2, 2), (0.0,), (1.0,)),
            truth=labels,
            owners=Owners.of([*"aaaabbcc"], "file"),
            train_size=4,
            test_size=None,
        )
    assert (
        "dataset.train_size=4 takes the first samples of each class: 2 of the data set's 3 clients have none"
        in caplog.text
    )


# --------------------------------------------------------------------------------------------------------------- mnist


def test_the_writers_of_mnist():
    numbers = np.frombuffer(lzma.decompress(torchvision.WRITERS.read_bytes()), "<u2")
    assert numbers.shape == (60000,)
    assert numbers[:10].tolist() == [2154, 0, 2232, 0, 2168, 0, 2109, 0, 2124, 0]
    sizes = np.unique(numbers, return_counts=True)[1]
    assert (len(sizes), numbers.min(), numbers.max()) == (539, 0, 2349)
    assert np.quantile(sizes, (0, 0.5, 1)).tolist() == [19, 116, 131]
    assert ((sizes < 50).sum(), (sizes < 100).sum()) == (2, 99)
    joined = np.bincount(balanced(sizes.tolist(), 100), weights=sizes)
    assert (joined.min(), joined.max()) == (572, 648)


def small_mnist(root: Path) -> Path:
    """Files of MNIST's form with three images each."""
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for split_name in ("train", "t10k"):
        images = np.array([0, 0, 8, 3], np.uint8).tobytes() + np.array([3, 28, 28], ">u4").tobytes() + bytes(3 * 784)
        labels = np.array([0, 0, 8, 1], np.uint8).tobytes() + np.array([3], ">u4").tobytes() + bytes([0, 1, 2])
        (folder / f"{split_name}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{split_name}-labels-idx1-ubyte").write_bytes(labels)
    return folder / "train-labels-idx1-ubyte"


def mnist(root: Path, name: Any = "mnist", **changes: Any) -> Any:
    values: dict[str, Any] = {"download": False, "mirror": None, "verify": False, "timeout": 1.0}
    return Mnist(**{"name": name, "root": str(root), **values, "train_size": None, "test_size": None, **changes})()


def test_writers_are_of_the_published_order_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    labels = small_mnist(tmp_path)
    with pytest.raises(UserError, match=rf"^dataset\.groups=writers .* {labels} is not the published file$"):
        mnist(tmp_path, groups="writers")
    with pytest.raises(UserError, match=r"^dataset\.groups=writers: fashion_mnist comes without writers"):
        mnist(tmp_path, "fashion_mnist", groups="writers")
    with pytest.raises(UserError, match=r"^dataset\.train_size=2 takes the first"):
        mnist(tmp_path, groups="writers", train_size=2)
    monkeypatch.setitem(
        torchvision.MNIST_CONTENTS, torchvision.TRAIN_LABELS, hashlib.md5(labels.read_bytes()).hexdigest()
    )
    column = tmp_path / "writers.xz"
    column.write_bytes(lzma.compress(np.array([2154, 0, 2154], "<u2").tobytes()))
    monkeypatch.setattr(torchvision, "WRITERS", column)
    data = mnist(tmp_path, groups="writers")
    assert (data.clients.tolist(), data.client_names) == ([1, 0, 1], ("0", "2154"))
    assert data.test_clients.tolist() == [-1, -1, -1]
    assert mnist(tmp_path).clients is None


# ---------------------------------------------------------------------------------------------------------- annotators

ROWS = [("0--4", "7"), ("5--9", "2"), ("10--14", "7"), ("15--19", "9")]


def side_file(
    folder: Path, rows: list[tuple[str, str]] = ROWS, header: str = "Image-batch,Worker-id,Work-time"
) -> Path:
    path = folder / "side.csv"
    path.write_text("\n".join([header, *(f"{batch},{worker},88" for batch, worker in rows)]) + "\n")
    return path


def annotators(path: Path, **changes: Any) -> Annotators:
    return Annotators(path=str(path), **VALUES | {"minimum": 6, "small": "drop"} | changes)


def hundred(n: int = 20, ids: list[str] | None = None) -> Pool:
    return Pool(np.zeros(n, np.int64), 100, ids=ids)


def test_batches_of_annotators_are_named_by_first_and_last(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = side_file(tmp_path)
    mixed = side_file(tmp_path, [ROWS[2], ROWS[0], ROWS[3], ROWS[1]])  # lines in any order
    for part in (annotators(path), annotators(mixed)):
        found = part(hundred(), stream(1, "partition"))
        assert found.owner.tolist() == [0] * 5 + [-1] * 5 + [0] * 5 + [-1] * 5
        assert found.names == ("7",)
    every = annotators(path, minimum=5)(hundred(), stream(1, "partition"))
    assert every.owner.tolist() == [1] * 5 + [0] * 5 + [1] * 5 + [2] * 5
    joined = annotators(path, small="join")(hundred(), stream(1, "partition"))
    assert joined.owner.tolist() == [0] * 5 + [1] * 5 + [0] * 5 + [1] * 5
    assert annotators(path).files() == (path,)
    assert "side.csv is not the published side_info_cifar100N.csv (sha256" in caplog.text


def test_a_reduced_set_finds_its_annotators_by_its_ids(tmp_path: Path):
    part = annotators(side_file(tmp_path), minimum=1)
    assert part(hundred(3, ["0", "7", "19"]), stream(1, "partition")).owner.tolist() == [1, 0, 2]
    with pytest.raises(UserError, match=r"side\.csv is of 20 images, and the data set has 19$"):
        part(hundred(19), stream(1, "partition"))
    with pytest.raises(UserError, match=r"side\.csv is of 20 images, and the data set has one 20$"):
        part(hundred(1, ["20"]), stream(1, "partition"))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([("0--4", "7"), ("4--9", "2")], "image 4 is named twice"),
        ([("0--4", "7"), ("6--9", "2")], "image 5 is missing"),
        ([("0-4", "7")], r"line 2: Image-batch is '0-4'; it should be FIRST--LAST"),
        ([("4--0", "7")], r"line 2: Image-batch is '4--0'"),
        ([("0--4", "nan")], "the client is 'nan', a missing value"),
    ],
)
def test_side_files_that_do_not_name_every_image_once_are_refused(tmp_path: Path, rows: Any, reason: str):
    with pytest.raises(UserError, match=rf"^partition\.path=.*{reason}"):
        annotators(side_file(tmp_path, rows))(hundred(), stream(1, "partition"))


def test_other_side_files_are_refused(tmp_path: Path):
    three = side_file(tmp_path, [("0--9", "1,2,3")], "Image-batch,Worker1-id,Worker2-id,Worker3-id,Work-time")
    with pytest.raises(UserError, match=r"several workers a batch, as CIFAR-10N's: .* no known order of the images"):
        annotators(three)(hundred(), stream(1, "partition"))
    with pytest.raises(UserError, match=r"has no column Worker-id; it should be side_info_cifar100N\.csv"):
        annotators(side_file(tmp_path, header="Image-batch,a,b"))(hundred(), stream(1, "partition"))
    with pytest.raises(
        UserError,
        match=r"nowhere\.csv: no such file; get side_info_cifar100N\.csv from https://github\S*cifar-10-100n$",
    ):
        annotators(tmp_path / "nowhere.csv")(hundred(), stream(1, "partition"))


# ------------------------------------------------------------------------------------------------------- whole command


def test_partition_writers_asks_for_the_groups_and_nothing_else_does():
    assert compose.load(["partition=writers"]).dataset.groups == "writers"
    assert compose.load(["dataset=mnist", "partition=writers"]).dataset.groups == "writers"
    assert compose.load([]).dataset.groups is None
    federation = from_config(compose.load(["partition=writers", "noise=none", "partition.num_clients=5"]))
    assert federation.num_clients == 5
    assert federation.client_names is None
    words = [f"dataset.{key}=null" for key in ("groups", "train_sample", "test_writers")]
    keys = [
        identity.run_key(compose.resolved(compose.load(some))) for some in ([], words, ["dataset.train_sample=200"])
    ]
    assert keys[0] == keys[1] != keys[2]


def test_the_card_tells_whose_samples_are_tested():
    def shown(*words: str) -> tuple[float | None, str]:
        found = card(from_config(compose.load(["partition=writers", "noise=none", *words])))
        return found["tested_of_clients"], markdown(found)

    share, page = shown()
    assert share == 1
    assert "| test samples | 360, all of groups that are trained on |" in page
    share, page = shown("dataset.test_writers=[0,1]")
    assert share == 0
    assert "| test samples | 256, none of groups that are trained on |" in page
    share, _ = shown("partition.choose=7")
    assert share is not None
    assert 0.4 < share < 0.6
    assert shown("partition=iid_uniform")[0] is None
