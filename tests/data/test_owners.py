"""What clients are called: names as they are written in files, numbers among them, and what is no name."""

from pathlib import Path

import numpy as np
import pytest

from flnl.core.errors import UserError
from flnl.data.owner_file import read_owners
from flnl.data.owners import LEFT_OUT, Owners


def test_names_are_in_order_and_numbers_in_theirs():
    owners = Owners.of(["10023456", "7", "10023456", "30"], "file")
    assert owners.names == ("7", "30", "10023456")
    assert owners.number.tolist() == [2, 0, 2, 1]
    owners = Owners.of(["ward b", "10", "ward b", "9"], "file")
    assert owners.names == ("10", "9", "ward b")
    assert owners.number.tolist() == [2, 0, 2, 1]


def test_spellings_of_one_name_are_one_client_and_a_line_says_so(caplog: pytest.LogCaptureFixture):
    owners = Owners.of(["east", " east", "caf\u00e9", "cafe\u0301", "west"], "partition.path=own.csv")
    assert owners.names == ("caf\u00e9", "east", "west")
    assert owners.number.tolist() == [1, 1, 0, 0, 2]
    assert [record.getMessage() for record in caplog.records] == [
        "partition.path=own.csv: 'east' and ' east' are read as one client",
        "partition.path=own.csv: 'caf\u00e9' and 'cafe\u0301' are read as one client",
    ]


@pytest.mark.parametrize("written", ["1_0", "+1", "-2", "-1", "", "  ", "nan", "NaN"])
def test_what_is_no_name_is_refused(written: str):
    with pytest.raises(ValueError, match=r"the client is"):
        Owners.of(["2", written], "file")


def test_minus_one_leaves_out_where_it_may():
    owners = Owners.of(["b", "-1", "a"], "file", leaves_out=True)
    assert owners.number.tolist() == [1, LEFT_OUT, 0]
    assert owners.names == ("a", "b")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("client\n1_0\n10\n2\n", "the client is '1_0'"),
        (",client\n0,a\n2,b\n1,a\n", "the first column has no name and is not 0, 1, 2"),
        ("a,b\nb,c\n", "one client a line"),
        ("", "one client a line"),
        ("id,client\n0,a\n1,b\n2,b\n0,a\n", "'0' is listed twice"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, reason: str):
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(UserError, match=rf"^partition\.path=.*{reason}"):
        read_owners(tmp_path / "own.csv", ["0", "1", "2"])


@pytest.mark.parametrize(
    "text",
    [
        "west\neast\nwest\n",
        "client\nwest\neast\nwest\n",
        ",client\n0,west\n1,east\n2,west\n",  # pandas.DataFrame.to_csv
        "Unnamed: 0,client\n0,west\n1,east\n2,west\n",  # read and written again
        "sep=;\nclient;id\nwest;train\\c.jpg\nwest;a.jpg\neast;./b.jpg\n",
        "id,client,,\nc.jpg,west,,\na.jpg,west,,\nb.jpg,east,,\n,,,\n",
    ],
)
def test_files_that_are_read(tmp_path: Path, text: str):
    (tmp_path / "own.csv").write_text(text)
    owners = read_owners(tmp_path / "own.csv", ["a.jpg", "b.jpg", "c.jpg"])
    assert owners.names == ("east", "west")
    assert owners.number.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("array", "names"),
    [
        (np.array([7, 10023456, 7]), ("7", "10023456")),
        (np.array(["north clinic", "east", "north clinic"]), ("east", "north clinic")),
        (np.array(["caf\u00e9".encode(), b"b", b"b"]), ("b", "caf\u00e9")),
    ],
)
def test_arrays_of_names_and_numbers(tmp_path: Path, array: np.ndarray, names: tuple[str, ...]):
    np.save(tmp_path / "own.npy", array)
    assert read_owners(tmp_path / "own.npy", ["0", "1", "2"]).names == names
