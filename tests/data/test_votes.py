"""Of several labels of a sample one is given: the first, the most frequent, or a drawn one; the card tells of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flnl.config import compose, identity
from flnl.core.errors import UserError
from flnl.data.datasets.label_file import LabelFile, read_label_file
from flnl.data.federation.build import from_config
from flnl.data.votes import NOBODY, Vote, counted, dealt, voted
from flnl.instruments.card.card import card, markdown

PEOPLE = np.array([[0, 1, 2, 0], [1, 2, 2, NOBODY], [1, 0, NOBODY, NOBODY]])
"""Labels of four samples by three people."""


def test_which_label_is_given():
    assert voted(PEOPLE, "first").tolist() == [0, 1, 2, 0]
    assert voted(PEOPLE, "majority").tolist() == [1, 1, 2, 0]  # of three different ones the first
    drawn = voted(np.repeat(PEOPLE, 3000, axis=1), "random")
    shares: Any = [np.bincount(part, minlength=3) / 3000 for part in np.split(drawn, 4)]
    wanted: Any = [[1 / 3, 2 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 0, 1], [1, 0, 0]]
    assert np.allclose(shares, wanted, atol=0.04)
    assert np.array_equal(drawn, voted(np.repeat(PEOPLE, 3000, axis=1), "random"))  # the same every time


def write(folder: Path, lines: list[str]) -> Path:
    path = folder / "labels.csv"
    path.write_text("\n".join(["id,label,label_2,label_3", *lines]) + "\n")
    return path


def test_a_file_has_a_column_for_each_person(tmp_path: Path):
    path = write(tmp_path, ["2,c,c,", "0,a,b,b", "1,b,c,a"])
    table = read_label_file(path, "id", ["0", "1", "2"], ["a", "b", "c"], "majority")
    assert table.given.tolist() == [1, 1, 2]
    assert table.people is not None
    assert table.people.tolist() == [[0, 1, 2], [1, 2, 2], [1, 0, NOBODY]]
    assert counted(table.people, 3).tolist() == [[1, 2, 0], [1, 1, 1], [0, 0, 2]]
    assert read_label_file(path, "id", ["0", "1", "2"], ["a", "b", "c"]).given.tolist() == [0, 1, 2]
    with pytest.raises(UserError, match=r"line 2 .*: label_3 'x' is none of the classes"):
        read_label_file(write(tmp_path, ["0,a,b,x"]), "id", ["0"], ["a", "b"])
    with pytest.raises(UserError, match=r"line 2 .*: label is empty$"):  # one person labels all
        read_label_file(write(tmp_path, ["0,,b,b"]), "id", ["0"], ["a", "b"])


def test_nobody_has_to_label_all_if_votes_decide(tmp_path: Path):
    path = write(tmp_path, ["0,,b,b", "1,a,,", "2,,,c"])
    votes: tuple[Vote, ...] = ("majority", "random")
    for vote in votes:
        table = read_label_file(path, "id", ["0", "1", "2"], ["a", "b", "c"], vote)
        assert table.given.tolist() == [1, 0, 2]
        assert table.people is not None
        assert table.people[0].tolist() == [NOBODY, 0, NOBODY]
    with pytest.raises(UserError, match=r"line 2 of .*: '0' has no label$"):
        read_label_file(write(tmp_path, ["0,,,"]), "id", ["0"], ["a", "b"], "majority")


COUNTS = "id,true,count_b,count_a,count_c\n2,c,,1,1\n0,a,2,0,1\n1,b,1,2,0\n"
"""Of classes a, b, c; sample 2 has one label each of a and c."""


def counts(folder: Path, text: str = COUNTS, vote: Any = "majority") -> LabelFile:
    path = folder / "labels.csv"
    path.write_text(text)
    return read_label_file(path, "id", ["0", "1", "2"], ["a", "b", "c"], vote)


def test_a_file_counts_the_labels_of_each_class(tmp_path: Path):
    table = counts(tmp_path)
    wanted = [[0, 2, 1], [2, 1, 0], [1, 0, 1]]
    assert table.true is not None
    assert table.given.tolist() == [1, 0, 0]  # of a and c the first class
    assert table.true.tolist() == [0, 1, 2]
    assert table.people is not None
    assert counted(table.people, 3).tolist() == wanted
    drawn = counts(tmp_path, vote="random").given
    assert all(row[label] for row, label in zip(wanted, drawn, strict=True))
    lines = ["id,label,count_b,count_a", "2,b,,1", "0,c,2,0", "1,c,1,2"]
    assert counts(tmp_path, "\n".join(lines), "first").given.tolist() == [2, 2, 1]


def test_no_column_of_counted_labels_stands_for_a_class():
    """Nobody knows who gave which, so that all columns must agree with others equally often."""
    people = dealt(np.tile([[6, 3]], (3000, 1)))
    assert (people == 0).mean(axis=1) == pytest.approx(6 / 9, abs=0.04)


@pytest.mark.parametrize(
    ("text", "vote", "says"),
    [
        (COUNTS, "first", "vote=first takes the column 'label', and .* has counts alone: set it to majority or random"),
        (COUNTS.replace("count_c", "count_x"), "majority", "has a column 'count_x', and 'x' is no class"),
        (COUNTS.replace("count_c", "count_1"), "majority", "two columns of counts of '1'"),
        (COUNTS.replace("a,2", "a,-2"), "majority", "line 3 of .*: count_b is '-2'; it should be how many"),
        (COUNTS.replace("a,2,0,1", "a,,0,"), "majority", "line 3 of .*: '0' has 0 labels; it should have 1 to 1000"),
        (COUNTS.replace("a,2", "a,1000"), "majority", "'0' has 1001 labels"),
        ("id,label,label_2,count_a\n0,a,a,1\n", "majority", "both people's labels and counts"),
        ("id,label\n0,a\n1,b\n2,c\n", "majority", "chooses among labels by several people, and .* has one a sample"),
        ("id,true\n0,a\n", "majority", "has no column 'label'"),
    ],
)
def test_counts_that_cannot_be_read_are_refused(text: str, vote: str, says: str, tmp_path: Path):
    with pytest.raises(UserError, match=says):
        counts(tmp_path, text, vote)


def arrays(folder: Path, lines: list[str]) -> None:
    x = np.zeros((4, 8, 8), np.uint8)
    np.savez(folder / "arrays.npz", x_train=x, y_train=np.arange(4) % 2, x_test=x, y_test=np.arange(4) % 2)
    write(folder, lines)


def shown(folder: Path, *words: str) -> tuple[Any, str]:
    usual = ["dataset=arrays", f"dataset.root={folder}", "dataset.labels=labels.csv", "noise=none"]
    federation = from_config(compose.load([*usual, "partition.num_clients=2", *words]))
    found = card(federation)
    return (found["agreement"], federation.given.tolist()), markdown(found)


def test_the_card_tells_how_far_people_agree(tmp_path: Path):
    arrays(tmp_path, ["0,0,1,1", "1,1,1,1", "2,0,0,", "3,1,0,"])  # 2 of 3, 3 of 3, 2 of 2, 1 of 2
    (agreement, given), page = shown(tmp_path, "dataset.vote=majority")
    assert agreement == pytest.approx(8 / 10)
    assert given == [1, 1, 0, 1]
    assert "| labels as most people gave | 80.00 % |" in page
    (_, given), _ = shown(tmp_path)
    assert given == [0, 1, 0, 1]
    with pytest.raises(UserError, match=r"dataset\.vote=majority chooses among .*: set dataset\.labels to their file"):
        shown(tmp_path, "dataset.labels=null", "dataset.vote=majority")
    (tmp_path / "labels.csv").write_text("id,label\n0,0\n1,1\n2,0\n3,1\n")
    (agreement, _), page = shown(tmp_path)
    assert agreement is None
    assert "most people" not in page


def test_all_labels_are_in_the_fingerprint_not_only_those_that_are_given(tmp_path: Path):
    """Soft targets and audits read them, so that a run must not go on with others."""
    words = ["dataset=arrays", f"dataset.root={tmp_path}", "dataset.labels=labels.csv", "noise=none"]
    arrays(tmp_path, ["0,0,1,1", "1,1,1,1", "2,0,0,", "3,1,0,"])
    one = from_config(compose.load([*words, "partition.num_clients=2"]))
    arrays(tmp_path, ["0,0,1,1", "1,1,1,1", "2,0,0,", "3,1,0,1"])
    other = from_config(compose.load([*words, "partition.num_clients=2"]))
    assert one.given.tolist() == other.given.tolist()
    assert one.dataset.fingerprint != other.dataset.fingerprint
    assert one.fingerprint != other.fingerprint


def test_keys_of_runs_stay():
    def key(*words: str) -> str:
        return identity.run_key(compose.resolved(compose.load(["dataset=arrays", *words])))

    assert key() == key("dataset.vote=first") != key("dataset.vote=majority")
