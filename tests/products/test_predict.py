"""``flnl predict``: what it prints, writes and answers."""

import shutil
from pathlib import Path

import pytest

from flnl.commands import predict
from tests.products.conftest import Commands, Own, read_csv


def test_a_folder_with_unreadable_images(own: Own, tmp_path: Path, said: Commands, monkeypatch) -> None:
    """They are named and counted, across batches, and the others keep their own answers."""
    monkeypatch.setattr(predict, "BATCH", 5)
    folder = tmp_path / "images"
    shutil.copytree(own.root / "test", folder)
    clean = said(predict, own.ran.folder, folder, "--csv", tmp_path / "clean.csv")
    (folder / "blue" / "00.jpg").write_bytes(b"no image")
    whole = (folder / "[red]" / "36.png").read_bytes()
    (folder / "[red]" / "half.png").write_bytes(whole[: len(whole) // 2])
    (folder / "notes.txt").write_text("no image either, and nobody takes it for one")
    answer = said(predict, own.ran.folder, folder, "--csv", tmp_path / "found.csv")
    assert (clean.code, answer.code) == (0, 0)
    assert clean.err == ""
    assert answer.out == clean.out
    assert (tmp_path / "found.csv").read_text() == (tmp_path / "clean.csv").read_text()
    told = answer.err.splitlines()
    assert [
        str(folder / name) in line for name, line in zip(("[red]/half.png", "blue/00.jpg"), told, strict=False)
    ] == [
        True,
        True,
    ]
    assert told[2:] == ["2 of 14 images could not be read"]


def test_the_table(own: Own, tmp_path: Path, said: Commands) -> None:
    """Sorted paths, names as the user wrote them, probabilities in order; the same in the CSV file."""
    answer = said(predict, own.ran.folder / "model.pt", own.root / "test", "--csv", tmp_path / "found.csv")
    lines = [line.split("\t") for line in answer.out.splitlines()]
    assert lines[0] == ["path", "class", "probability", "top 3"]
    assert [line[0] for line in lines[1:]] == sorted(str(path) for path in (own.root / "test").rglob("*.png"))
    rows = read_csv(tmp_path / "found.csv")
    assert [(row["path"], row["class"]) for row in rows] == [(line[0], line[1]) for line in lines[1:]]
    assert {row["class"] for row in rows} <= {"[red]", "green, dark", "blue"}
    for row in rows:
        three = [float(row[f"probability{rank}"]) for rank in ("", "_2", "_3")]
        assert three == sorted(three, reverse=True)
        assert sum(three) == pytest.approx(1, abs=1e-4)
        assert {row[f"class{rank}"] for rank in ("", "_2", "_3")} == {"[red]", "green, dark", "blue"}


def test_where_no_image_can_be_read_it_fails(own: Own, tmp_path: Path, said: Commands) -> None:
    (tmp_path / "broken.png").write_bytes(b"")
    answer = said(predict, own.ran.folder, tmp_path / "broken.png")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.endswith("1 of 1 images could not be read\n")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["RUN"], "IMAGE_OR_FOLDER"),
        (["RUN", "missing.png"], "missing.png"),
        (["RUN", "."], "."),
        (["RUN", "IMAGES", "--cvs", "found.csv"], "--cvs"),
        (["RUN", "IMAGES", "--csv", "no/such/folder/found.csv"], "no/such/folder/found.csv"),
        (["missing", "IMAGES"], "missing"),
    ],
)
def test_mistakes(words: list[str], named: str, own: Own, tmp_path: Path, said: Commands, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"RUN": own.ran.folder, "IMAGES": own.root / "test"}
    answer = said(predict, *(places.get(word, word) for word in words))
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert named in answer.err
