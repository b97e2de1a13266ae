"""Features and tables: rows of numbers are stored as they are, scaled column by column, and refused with a reason."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import flnl
from flnl.core.errors import UserError
from flnl.core.streams import stream
from flnl.data.datasets.features import Features
from flnl.data.datasets.rows import RowTexts, prepared, stored
from flnl.data.datasets.sheet import every
from flnl.data.datasets.table import Bundled, Table
from flnl.data.preparations import Rows, Tokens, described, restored
from flnl.data.transforms import Transform

TRAIN = np.array([[1.0, 200.0, 5.0], [2.0, 180.0, 5.0], [4.0, 260.0, 5.0], [5.0, 240.0, 5.0]])
TEST = np.array([[3.0, 300.0, 6.0]])


def test_columns_are_standardised_by_the_training_rows():
    """Each by its own mean and deviation over all rows; a constant one is divided by 1."""
    rows = prepared(stored(TRAIN, "x"), "column")
    assert rows.mean == (3.0, 220.0, 5.0)
    assert rows.std == pytest.approx((1.58113883008, 31.6227766017, 1.0), abs=1e-9)
    expected: Any = [[-1.26491106407, -0.632455532034, 0], [-0.632455532034, -1.26491106407, 0]]
    expected += [[0.632455532034, 1.26491106407, 0], [1.26491106407, 0.632455532034, 0]]
    found = rows.normalize(torch.from_numpy(TRAIN), torch.float64)
    assert np.allclose(found, expected, atol=1e-9)
    assert np.allclose(rows.normalize(torch.from_numpy(TEST), torch.float64), [[0, 2.52982212813, 1]], atol=1e-9)


def test_rows_have_length_one():
    half = torch.tensor([[0.0999755859375, 3.0], [-2.5, 4.0], [0.0, 0.0]], dtype=torch.float16)
    kept = stored(half.numpy(), "x")
    assert kept.pixels.dtype == torch.float16  # stored as it is
    found = prepared(kept, "unit").normalize(kept.pixels)
    assert found.dtype == torch.float32
    expected: Any = [[0.0333067057531, 0.999445177762], [-0.529998940003, 0.847998304005], [0, 0]]
    assert np.allclose(found, expected, atol=1e-6)
    assert torch.equal(prepared(kept, "none").normalize(kept.pixels), half.float())
    assert torch.equal(kept.pixels, half)  # inputs are copies


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (np.array([[0.0, 1.0], [np.nan, 0.0]]), r"not finite as float32, first in row 1, column 0: fill in missing"),
        (np.array([[1e300, 0.0]]), r"not finite as float32, first in row 0, column 0"),
        (np.array([["a"]]), r"is <U1 \[1, 1\]; it should be numbers \[N, D\]"),
        (np.zeros(3), r"is float64 \[3\]; it should be numbers"),
        (np.zeros((0, 3)), r"is float64 \[0, 3\]; it should be numbers"),
    ],
)
def test_rows_that_are_no_numbers_are_refused(rows: Any, reason: str):
    with pytest.raises(UserError, match=rf"^x .*{reason}"):
        stored(rows, "x")


def test_preparations_are_described_and_made_again():
    transform = Transform((2, 2), (0.5,), (0.25,), padding=1, flip=True)
    for one in (transform, Rows(2, (0.0, 1.0), (1.0, 2.0)), Rows(3, unit=True), Tokens(9, 4)):
        assert restored(described(one)) == one
    assert "kind" not in described(transform)  # as in models of before there were others
    for strange in ({"kind": "sound"}, {"kind": "vector", "width": 2, "height": 3}):
        with pytest.raises(ValueError, match="describes no inputs"):
            restored(strange)


# ------------------------------------------------------------------------------------------------------------ features


def arrays(**changes: Any) -> dict[str, Any]:
    rng = stream(1, "features")
    values: dict[str, Any] = {"x_train": rng.normal(size=(60, 5)).astype(np.float32), "y_train": np.arange(60) % 3}
    values |= {"x_test": rng.normal(size=(30, 5)).astype(np.float32), "y_test": np.arange(30) % 3}
    return values | changes


def features(root: Path, **changes: Any) -> Any:
    values: dict[str, Any] = {"name": "own", "root": str(root), "file": "features.npz", "labels": None, "texts": None}
    values |= {"truth": "y_train", "normalize": "none", "train_size": None, "train_sample": None, "test_size": None}
    values["vote"] = "first"
    return Features(**values | changes)()


def test_features_have_owners_columns_and_texts(tmp_path: Path):
    clients = np.array(["b", "a", "b"] * 20)
    np.savez(tmp_path / "features.npz", **arrays(clients=clients, columns=np.array(["v", "w", "x", "y", "z"])))
    data = features(tmp_path)
    assert data.train.shape == (5,)
    assert data.client_names == ("a", "b")
    assert data.transform == Rows(5)
    row = arrays()["x_train"][7]
    assert data.texts[7] == ", ".join(f"{name} {value:.4g}" for name, value in zip("vwxyz", row, strict=True))
    (tmp_path / "texts.csv").write_text('id,text\n1,"one, two"\n0,zero\n')
    assert [*features(tmp_path, texts="texts.csv").texts[:3]] == ["zero", "one, two", ""]
    some = features(tmp_path, texts="texts.csv", train_sample=12)
    assert [some.texts[i] for i, name in enumerate(some.ids) if name in ("0", "1")] == [
        {"0": "zero", "1": "one, two"}[name] for name in some.ids if name in ("0", "1")
    ]


def test_features_that_do_not_fit_are_refused(tmp_path: Path):
    file = tmp_path / "features.npz"
    np.savez(file, **arrays(x_test=np.zeros((30, 4))))
    with pytest.raises(UserError, match=r"have 5 and 4 columns; they must agree$"):
        features(tmp_path)
    np.savez(file, **arrays(columns=np.array(["a"])))
    with pytest.raises(UserError, match=r"names 1 columns of 5$"):
        features(tmp_path)
    np.savez(file, **arrays())
    for text, reason in (("id,text\n60,a\n", "line 2 .* '60' is none of 0 .. 59"), ("id\n1\n", "no column 'text'")):
        (tmp_path / "texts.csv").write_text(text)
        with pytest.raises(UserError, match=rf"^dataset\.texts: .*{reason}"):
            features(tmp_path, texts="texts.csv")
    (tmp_path / "texts.csv").write_text("id,text\n1,a\n1,b\n")
    with pytest.raises(UserError, match=r"line 3 .* id '1' stands there twice"):
        features(tmp_path, texts="texts.csv")


def parquet(path: Path, **columns: Any) -> None:
    pq.write_table(pa.table(columns), path)


def of_samples(values: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The arrays as a table of one row a sample, those for testing among the others."""
    order = [*range(0, 30), *range(60, 90), *range(30, 60)]
    x = np.concatenate([values["x_train"], values["x_test"]])[order]
    y = np.concatenate([values["y_train"], values["y_test"]])[order]
    split = np.array(["train"] * 60 + ["test"] * 30)[order]
    return {"x": [*x], "y": y, "split": split} | changes


def test_features_of_a_parquet_file_are_those_of_arrays(tmp_path: Path):
    """Rows of either split are in the file's order; precision is kept; a fixed length makes no difference."""
    values = arrays(clients=np.array(["b", "a", "b"] * 20), y_given=np.arange(60) % 2)
    np.savez(tmp_path / "features.npz", **values)
    one, owners = features(tmp_path), ["b", "a", "b"] * 10
    rows = of_samples(
        values, owners=owners + [None] * 30 + owners, y_given=[*([0, 1] * 15), *[None] * 30, *([0, 1] * 15)]
    )
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(np.concatenate(rows["x"])), 5)
    halves = pa.array([row.astype(np.float16) for row in rows["x"]])
    for x in (rows["x"], fixed, halves):
        parquet(tmp_path / "F.PARQUET", **rows | {"x": x})
        other = features(tmp_path, file="F.PARQUET")
        if x is halves:
            assert other.train.pixels.dtype == torch.float16
            continue
        assert other.fingerprint == one.fingerprint
        assert other.client_names == ("a", "b")
        assert other.given.tolist() == values["y_given"].tolist()


def test_labels_of_a_parquet_file_may_be_names(tmp_path: Path):
    rows = of_samples(arrays())
    names = np.array(["cat", "dog", "ant"])[rows["y"]]
    for y in (pa.array(names), pa.array(names).dictionary_encode()):
        parquet(tmp_path / "f.parquet", **rows | {"y": y})
        data = features(tmp_path, file="f.parquet")
        assert data.classes == ("ant", "cat", "dog")
        assert [data.classes[i] for i in data.truth[:4]] == ["cat", "dog", "ant", "cat"]
    unknown = [None if split == "train" else y for y, split in zip(names, rows["split"], strict=True)]
    parquet(tmp_path / "f.parquet", **rows | {"y": unknown, "y_given": names})
    data = features(tmp_path, file="f.parquet", truth="none")
    assert data.truth is None
    assert data.classes == ("ant", "cat", "dog")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"split": ["dev"] * 90}, r"split 'dev' is neither train nor test"),
        ({"split": ["train"] * 90}, r"has no rows of split test"),
        ({"x": [[1.0]] * 89 + [[1.0, 2.0]]}, r"column x has 1 numbers in row 0 and 2 in row 89"),
        ({"x": [[1.0]] * 89 + [None]}, r"column x has nothing in row 89"),
        ({"x": [[1.0, None]] * 90}, r"column x has nothing for some of its numbers"),
        ({"x": ["a"] * 90}, r"column x is string, and should be lists of numbers"),
        ({"y": [None] * 90}, r"column y has no values in rows of split test"),
        ({"y": [None] + [1] * 89}, r"column y has values in some rows of split train alone"),
        ({"y": [0.5] * 90}, r"column y is double, and should be whole numbers or names"),
        ({"y": [["a"]] * 90}, r"column y is list<.*>, and should be whole numbers or names"),
        ({"owners": [1] * 90, "clients": [1] * 90}, r"has both owners and clients"),
    ],
)
def test_parquet_files_that_are_no_features_are_refused(tmp_path: Path, changes: Any, reason: str):
    parquet(tmp_path / "f.parquet", **of_samples(arrays()) | changes)
    with pytest.raises(UserError, match=rf"^dataset\.file: .*f\.parquet.*{reason}"):
        features(tmp_path, file="f.parquet")


def test_a_parquet_file_that_lacks_a_column_or_is_none_is_refused(tmp_path: Path):
    rows = of_samples(arrays())
    del rows["split"]
    parquet(tmp_path / "f.parquet", **rows)
    with pytest.raises(UserError, match=r"f\.parquet has no column 'split', only x, y"):
        features(tmp_path, file="f.parquet")
    (tmp_path / "f.parquet").write_bytes((tmp_path / "f.parquet").read_bytes()[:-20])
    with pytest.raises(UserError, match=r"f\.parquet cannot be read .*; it should be a parquet file$"):
        features(tmp_path, file="f.parquet")
    with pytest.raises(UserError, match=r"none\.parquet cannot be read .*; a relative path begins at dataset\.root$"):
        features(tmp_path, file="none.parquet")


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_samples_have_the_names_of_their_ids(tmp_path: Path, kind: str):
    """In label files and texts, too, in place of positions."""
    ids = [f"doc {i}" for i in range(60)]
    if kind == "npz":
        np.savez(tmp_path / "f.npz", **arrays(ids=np.array(ids)))
    else:
        parquet(tmp_path / "f.parquet", **of_samples(arrays(), ids=ids[:30] + [""] * 30 + ids[30:]))
    (tmp_path / "texts.csv").write_text("id,text\ndoc 1,one\n")
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"doc {i},{i % 2}\n" for i in reversed(range(60))))
    data = features(tmp_path, file=f"f.{kind}", texts="texts.csv", labels="labels.csv")
    assert data.ids == tuple(ids)
    assert data.texts[:2] == ["", "one"]
    assert data.given.tolist() == [i % 2 for i in range(60)]
    if kind == "npz":
        np.savez(tmp_path / "f.npz", **arrays(ids=np.array([*ids[:59], "doc 1"])))
        with pytest.raises(UserError, match=r"two samples have the id 'doc 1'"):
            features(tmp_path, file="f.npz")


def test_owners_are_another_name_of_clients(tmp_path: Path):
    owners = np.array(["b", "a", "b"] * 20)
    np.savez(tmp_path / "features.npz", **arrays(owners=owners))
    assert features(tmp_path).client_names == ("a", "b")
    np.savez(tmp_path / "features.npz", **arrays(owners=owners, clients=owners))
    with pytest.raises(UserError, match=r"has both owners and clients, which are two names of one thing"):
        features(tmp_path)


def test_long_rows_are_cut():
    texts = RowTexts(np.arange(28).reshape(2, 14), [f"c{i}" for i in range(14)])
    assert texts[1].endswith("c11 25, and 2 more")
    assert len(texts) == 2


# -------------------------------------------------------------------------------------------------------------- tables


def table(root: Path, **changes: Any) -> Any:
    values: dict[str, Any] = {"name": "t", "root": str(root), "file": "table.csv", "test": None, "test_every": 5}
    values |= {"label": "label", "truth": "label", "client": None, "leave_out": [], "normalize": "none"}
    return Table(**values | {"train_sample": None, "test_size": None} | changes)()


def write(path: Path, header: str, rows: list[str]) -> None:
    path.write_text("\n".join([header, *rows]) + "\n")


def test_a_table_has_a_label_an_owner_and_numbers(tmp_path: Path):
    rows = [f"{i},{2 * i}.5,{'ab'[i % 2]},{'ba'[i % 2]},h{i % 3},n{i}" for i in range(20)]
    write(tmp_path / "table.csv", "x,y,label,right,clinic,name", rows)
    data = table(tmp_path, client="clinic", leave_out=["name", "right"])
    tested = [0, 10, 1, 11]  # of the samples by class, every fifth
    assert sorted(tested) == every(np.arange(20) % 2, 5).tolist()
    train = [i for i in range(20) if i not in tested]
    assert data.train.pixels.tolist() == [[i, 2 * i + 0.5] for i in train]
    assert data.test.pixels[:, 0].tolist() == sorted(tested)
    assert (data.classes, data.given) == (("a", "b"), None)
    assert data.truth.tolist() == [i % 2 for i in train]
    assert data.clients.tolist() == [i % 3 for i in train]
    assert data.test_clients.tolist() == [i % 3 for i in sorted(tested)]
    assert data.texts[0] == "x 2, y 4.5"
    noisy = table(tmp_path, truth="right", leave_out=["name", "clinic"])
    assert noisy.given.tolist() == [1 - y for y in noisy.truth.tolist()]
    assert noisy.test_labels.tolist() == [1 - i % 2 for i in every(1 - np.arange(20) % 2, 5)]
    unknown = table(tmp_path, truth=None, leave_out=["name", "clinic", "right"])
    assert unknown.truth is None
    assert unknown.given is not None


def test_test_rows_may_be_in_a_file_of_their_own(tmp_path: Path):
    write(tmp_path / "table.csv", "x;label;clinic", ["1;10;a", "2;9;a", "3;10;b"])
    write(tmp_path / "test.csv", "clinic,x,label", ["c,4,9", "b,5,10"])
    data = table(tmp_path, test="test.csv", client="clinic")
    assert data.classes == ("9", "10")  # numbers are in their order
    assert (data.truth.tolist(), data.test_labels.tolist()) == ([1, 0, 1], [0, 1])
    assert data.test_clients.tolist() == [-1, 1]  # nobody trains on what c has


@pytest.mark.parametrize(
    ("header", "row", "changes", "reason"),
    [
        ("x,label", "1,a", {"label": "y"}, r"label: .*table\.csv has no column 'y'; it has x, label$"),
        (
            "x,label",
            "1,a",
            {"label": "x", "truth": "y"},
            r"truth: .* no column 'y'; it has x, label; null if there is none$",
        ),
        ("x,label", "1,a", {"client": "y"}, r"client: .* no column 'y'; it has x, label$"),
        ("x,label", "1,a", {"leave_out": ["y"]}, r"leave_out: .* no column 'y'; it has x, label$"),
        ("x,label", ",a", {"client": "x", "leave_out": ["x"]}, r"file: .*table\.csv: column 'x': the client is empty"),
        ("x,label", "red,a", {}, r"column 'x' has 'red', which is no number: write categories as numbers"),
        ("x,label", ",a", {}, r"column 'x' has '', which is no number"),
        ("x,label", "nan,a", {}, r"column 'x' has 'nan', which is no number"),
        ("x,label", '"2,5",a', {}, r"column 'x' has '2,5': write decimals with a point$"),
        ("x,label", '"1,000",a', {}, r"column 'x' has '1,000': if the comma separates thousands, leave it out"),
        ("x,label", '"-1,234,567.5",a', {}, r"'-1,234,567\.5': leave the commas out$"),
        ("x,label", '"0,123",a', {}, r"'0,123': write decimals with a point$"),
        ("x,label", "1e99,a", {}, r"file: .*column 'x' has '1e99', which is not finite as float32$"),
        ("x,label", "-inf,a", {}, r"column 'x' has '-inf', which is not finite as float32$"),
        ("x,label", "1_0,a", {}, r"column 'x' has '1_0', which is no number"),
        ("x,label", "1,NaN", {}, r"row 1 has no label, but 'NaN'$"),
        ("x,label", "1,1.0\n1,1", {}, r"the labels '1' and '1\.0' are one number; write them alike$"),
        ("x,label", b"1,\xe4", {}, r"cannot be read \(line 3 is not encoded as UTF-8\)"),
        ("Unnamed: 0,x,label", "1,2,a", {}, r"has a column 'Unnamed: 0', as of row numbers that are no longer 0, 1, 2"),
        ("x,label", "1,", {}, r"row 1 has no label"),
        ("label", "a", {}, r"has no column of numbers beside those of label and client"),
        ("x,label", "1,b", {}, r"column 'label' has 1 class"),
        (
            "x,label",
            "\n".join(f"1,{i / 8}" for i in range(21)),
            {},
            r"column 'label' has 22 values \('0\.0', '0\.125', '0\.25', \.\.\.\) in 22 training rows, and labels are",
        ),
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path: Path, header: str, row: str | bytes, changes: Any, reason: str):
    usual = ",".join([*"1" * header.count(","), "b"])
    text = "\n".join([header, usual, "ROW", *[usual] * 6]).encode()
    (tmp_path / "table.csv").write_bytes(text.replace(b"ROW", row if isinstance(row, bytes) else row.encode()))
    with pytest.raises(UserError, match=rf"^dataset\..*{reason}"):
        table(tmp_path, **changes)


def test_who_holds_rows_for_testing_alone_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write(
        tmp_path / "table.csv", "x,label,clinic", [f"{i},{'ab'[i % 2]},{'one' if i == 10 else 'h'}" for i in range(20)]
    )
    assert table(tmp_path, client="clinic").client_names == ("h",)  # every fifth row of a class is for testing
    assert "table.csv: all rows of one are for testing, so that no client is called so" in caplog.text
    caplog.clear()
    write(tmp_path / "test.csv", "x,label,clinic", ["1,a,new"])
    assert table(tmp_path, client="clinic", test="test.csv").client_names == ("h", "one")
    assert "for testing" not in caplog.text


def test_labels_of_a_file_are_given_in_place_of_the_columns(tmp_path: Path):
    """Their samples are called by the rows of the sheet, from 0, as those of the run's files are."""
    write(tmp_path / "table.csv", "x,label,clinic", [f"{i},{'ab'[i % 2]},h{i % 3}" for i in range(20)])
    train = [i for i in range(20) if i not in (0, 10, 1, 11)]
    write(tmp_path / "labels.csv", "id,label,label_2", [f"{i},,{'ba'[i % 2]}" for i in reversed(train)])
    data = table(tmp_path, client="clinic", labels="labels.csv", vote="majority")
    assert list(map(int, data.ids)) == data.train.pixels[:, 0].tolist() == train
    assert data.given.tolist() == [1 - i % 2 for i in train] == (1 - data.truth).tolist()
    assert data.people.shape == (2, 16)
    assert data.clients.tolist() == [i % 3 for i in train]
    write(tmp_path / "labels.csv", "id,label,label_2", [f"{i},,{'ba'[i % 2]}" for i in range(20)])
    assert table(tmp_path, client="clinic", labels="labels.csv", vote="majority").given.tolist() == data.given.tolist()
    write(tmp_path / "labels.csv", "id,label", [f"{i},a" for i in range(21)])  # there is no row 20
    with pytest.raises(UserError, match=r"line 22 of .*labels\.csv: there is no training sample '20'"):
        table(tmp_path, client="clinic", labels="labels.csv")
    write(tmp_path / "labels.csv", "id,label,client", [f"{i},b,n" for i in train])
    unknown = table(tmp_path, client="clinic", labels="labels.csv", truth=None)
    assert (unknown.truth, {*unknown.given.tolist()}, unknown.client_names) == (None, {1}, ("n",))
    some = table(tmp_path, train_sample=4, leave_out=["clinic"])
    assert list(map(int, some.ids)) == some.train.pixels[:, 0].tolist()
    with pytest.raises(UserError, match=r"^dataset\.vote=random chooses among labels by several people"):
        table(tmp_path, vote="random", leave_out=["clinic"])


def test_the_index_of_a_frame_is_no_input(tmp_path: Path):
    """Where rows are sorted by label, it would tell the label."""
    for header, leave_out in ((",x,label", []), ("Unnamed: 0,x,label", []), ("Unnamed: 0,x,label", ["Unnamed: 0"])):
        write(tmp_path / "table.csv", header, [f"{i},{i % 3},{'aabb'[i % 4]}" for i in range(20)])
        assert table(tmp_path, leave_out=leave_out).train.shape == (1,)


def test_labels_that_look_equal_are_one_class(tmp_path: Path):
    write(tmp_path / "table.csv", "x,label", ["1,caf\u00e9", "1,cafe\u0301", "1,b"])
    write(tmp_path / "test.csv", "x,label", ["1,cafe\u0301"])
    assert table(tmp_path, test="test.csv").classes == ("b", "caf\u00e9")


def test_other_kinds_of_files_are_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"a\.xlsx is an Excel file: write it as a CSV or parquet file"):
        table(tmp_path, file="a.xlsx")
    with pytest.raises(UserError, match=r"A\.XLSX is an Excel file: write it as a CSV or parquet file"):
        table(tmp_path, file="A.XLSX")
    with pytest.raises(UserError, match=r"nowhere\.csv cannot be read .*; a relative path begins at dataset\.root$"):
        table(tmp_path, file="nowhere.csv")


def test_tables_of_parquet_are_those_of_csv(tmp_path: Path):
    """Whole numbers, numbers with decimals, and names; the index of a frame is no input, wherever it stands."""
    x, y = stream(1, "x").normal(size=40), np.arange(40) % 7
    label, clinic = np.array(["a", "b"])[y % 2], np.array(["north", "south"])[y % 3 // 2]
    write(tmp_path / "t.csv", "x,y,label,clinic", [f"{float(x[i])!r},{y[i]},{label[i]},{clinic[i]}" for i in range(40)])
    columns = {"x": x, "y": y, "label": pa.array(label).dictionary_encode(), "clinic": clinic}
    for index in ({}, {"__index_level_0__": np.arange(40)}):
        parquet(tmp_path / "t.parquet", **columns, **index)
        one, other = (table(tmp_path, file=f"t.{kind}", client="clinic") for kind in ("csv", "parquet"))
        assert other.fingerprint == one.fingerprint
        assert other.client_names == one.client_names == ("north", "south")
    parquet(tmp_path / "T.PARQUET", **columns)
    assert table(tmp_path, file="T.PARQUET", client="clinic").fingerprint == one.fingerprint
    parquet(tmp_path / "t.parquet", **columns | {"x": [None, *x[1:]]})
    with pytest.raises(UserError, match=r"column 'x' has '', which is no number"):
        table(tmp_path, file="t.parquet", client="clinic")
    parquet(tmp_path / "t.parquet", **columns | {"x": [[1.0]] * 40})
    with pytest.raises(UserError, match=r"column 'x' is list<.*>, and should be numbers or texts"):
        table(tmp_path, file="t.parquet", client="clinic")


def bundled(name: Any, root: str = "/nowhere") -> Any:
    return Bundled(name, root, False, "column", None, None)()


@pytest.mark.parametrize(
    ("name", "sizes", "classes"), [("breast_cancer", (455, 114, 30), 2), ("wine", (142, 36, 13), 3)]
)
def test_tables_of_scikit_learn(name: str, sizes: tuple[int, int, int], classes: int):
    data = bundled(name)
    assert (len(data.train), len(data.test), *data.train.shape) == sizes
    assert len(data.classes) == classes
    inputs = data.transform.normalize(data.train.pixels, torch.float64)
    assert abs(inputs.mean(0)).max() < 1e-6
    assert abs(inputs.std(0, correction=0) - 1).max() < 1e-6


def test_a_table_that_is_not_there_is_not_fetched_unasked(tmp_path: Path):
    with pytest.raises(UserError, match=r"^dataset\.root=.*: covertype is not there .* dataset\.download=true$"):
        bundled("covertype", str(tmp_path))


# ---------------------------------------------------------------------------------------------------------- whole runs


def run(tmp_path: Path, name: str, *words: str) -> Path:
    usual = ["debug=fast", "protocol=digits", f"dataset.root={tmp_path}", "logger=[]", "figures=false"]
    flnl.run([*usual, *words, f"output={tmp_path / name}"])
    return tmp_path / name


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_row_is_trained_as_an_image_of_one_line(tmp_path: Path, executor: str):
    """To the bit, where nothing is scaled."""
    for file in ("features.npz", "arrays.npz"):
        np.savez(tmp_path / file, **arrays())
    words = ["method=fedcorr", "model=mlp", f"executor={executor}", "partition.num_clients=4"]
    row = run(tmp_path, "row", *words, "dataset=features")
    image = run(tmp_path, "image", *words, "dataset=arrays", "dataset.shape=[1,1,5]", "dataset.normalize=none")
    one, other = (torch.load(folder / "model.pt") for folder in (row, image))
    assert one["shape"] == [5]
    assert one["normalisation"]["kind"] == "vector"
    assert all(torch.equal(one["weights"][name], tensor) for name, tensor in other["weights"].items())
    model = flnl.load_model(row)
    x = torch.from_numpy(arrays()["x_test"])
    assert torch.equal(model(model.transform(x)), model(x))
    assert model.transform(x[0]).shape == (5,)
    with pytest.raises(UserError, match=r"a tensor of shape \[4\]: this model takes \[5\] or \[B, 5\]"):
        model.transform(torch.zeros(4))
    with pytest.raises(UserError, match="this model takes inputs of 5, which are not images"):
        model.transform("cat.png")


def test_what_needs_images_refuses_rows(tmp_path: Path):
    words = ["dataset=wine", "partition.num_clients=4"]
    with pytest.raises(UserError, match=r"^method\.local\.fedlsr: FedLSR rotates .* the data set has rows of numbers"):
        run(tmp_path, "a", *words, "method=fedlsr")
    for model, name in (("cnn", "CNN"), ("resnet8", "ResNet"), ("wrn40_2", "PreActResNet"), ("resnet50", "ResNet50")):
        with pytest.raises(UserError, match=rf"^model \({name}\) takes images, and wine has rows of numbers: "):
            run(tmp_path, "b", *words, "method=fedavg", f"model={model}")
