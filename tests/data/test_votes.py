"""Of several labels of a sample one is given: the first, the most frequent, or a drawn one; the card tells of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flnl.config import compose, identity
from flnl.core.errors import UserError
from flnl.data.datasets.label_file import NOBODY, counted, read_label_file, voted
from flnl.data.federation.build import from_config
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
    with pytest.raises(UserError, match=r"line 2 .*: label '' is none of the classes"):  # one person labels all
        read_label_file(write(tmp_path, ["0,,b,b"]), "id", ["0"], ["a", "b"])


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
    (tmp_path / "labels.csv").write_text("id,label\n0,0\n1,1\n2,0\n3,1\n")
    (agreement, _), page = shown(tmp_path)
    assert agreement is None
    assert "most people" not in page


def test_keys_of_runs_stay():
    def key(*words: str) -> str:
        return identity.run_key(compose.resolved(compose.load(["dataset=arrays", *words])))

    assert key() == key("dataset.vote=first") != key("dataset.vote=majority")
