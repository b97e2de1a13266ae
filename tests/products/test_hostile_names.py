"""Names from files: none moves the cursor, adds a line, changes a table's colours or becomes a formula."""

import csv
import io
import json
import logging
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from flnl.commands import compare as program
from flnl.commands import guard, predict
from flnl.commands.predict import Prediction
from flnl.console.terminal import LineFormatter, cell, print_line, visible
from flnl.core.errors import UserError
from flnl.data.datasets.label_file import read_label_file
from flnl.instruments.card import card as cards
from flnl.record.label_table import LabelTable
from flnl.storage.spreadsheet import text_cell, text_of
from flnl.sweep import table as jobs
from flnl.sweep.ledger import Job
from tests.products.conftest import Commands, Own, read_csv
from tests.products.test_compare import made

COMPARE = SimpleNamespace(main=program.main, __name__="flnl.instruments.compare")

NASTY = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08 \u202egnp.\u2066x\u2028[red]:smile:"
"""Sets the terminal's title, empties it, turns the text around and begins a line; and what rich takes for its own."""
OBEYED = "\x1b\x07\x9b\r\x08\u202e\u2066\u2028"
WRITTEN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08 \u202egnp.\u2066x\u2028[red]:smile:"
FORMULAS = ("=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "=cmd|'/c calc'!A0", "-x")


def harmless(text: str, lines: int | None = None) -> bool:
    """Whether a terminal obeys none of it."""
    return not any(letter in text for letter in OBEYED) and (lines is None or text.count("\n") == lines)


# ------------------------------------------------------------------------------------------------------ the functions


def test_every_character_that_is_obeyed_is_written_out() -> None:
    assert visible(NASTY) == WRITTEN
    for code in (*range(32), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)):
        assert visible(chr(code)).isascii()
        assert visible(chr(code)).isprintable()
    plain = "päth with spaces/ÿ 猫 🐈 'quoted' \\x1b.png"
    assert visible(plain) == plain


def test_a_name_that_is_no_text_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Python holds its bytes as lone surrogates, which no stream takes."""
    print_line(os.fsdecode(b"caf\xe9.png"))
    assert capsys.readouterr().out == "caf\\xe9.png\n"


def test_rich_takes_nothing_in_a_cell_for_its_own() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    console.print(cell(NASTY))
    assert console.file.getvalue() == WRITTEN + "\n"  # type: ignore[attr-defined]


def test_warnings_are_one_line_and_tracebacks_keep_theirs() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        failure = sys.exc_info()
    record = logging.LogRecord("a", logging.WARNING, "", 0, "%s is left out", (NASTY + "\n",), None)
    assert LineFormatter("%(message)s").format(record) == f"WARNING: {WRITTEN}\\n is left out"
    record.exc_info = failure
    assert LineFormatter("%(message)s").format(record).count("\n") > 2


def test_an_error_names_a_file_in_one_line(said: Commands) -> None:
    def fail() -> None:
        raise UserError(f"{NASTY}\n is not there")

    def crash() -> None:
        raise ValueError(NASTY)

    for raised, code in ((fail, 2), (crash, 1)):
        module = SimpleNamespace(main=lambda raised=raised: guard.guarded(raised, overrides=False), __name__="x")
        answer = said(module)
        assert answer.code == code
        assert harmless(answer.err, lines=1)
        assert WRITTEN.split("\\r")[0] in answer.err


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_a_text_and_comes_back(text: str) -> None:
    for name in (text, f"'{text}", f"''{text}"):
        assert text_cell(name) == f"'{name}"
        assert text_of(text_cell(name)) == name


@pytest.mark.parametrize("text", ["frog", "a=b", "", "'quoted'", "1-1", "-1", "+0.5", "''", "é"])
def test_what_is_no_formula_is_left_alone(text: str) -> None:
    assert text_cell(text) == text_of(text) == text


# ------------------------------------------------------------------------------------------------------- the commands


@pytest.fixture
def nasty(own: Own, tmp_path: Path) -> Path:
    """A folder of images whose names are all that a file system takes."""
    folder = tmp_path / "images"
    folder.mkdir()
    whole = next((own.root / "test" / "blue").iterdir())
    for name in (f"{NASTY}.png", "=1+1.png", os.fsdecode(b"caf\xe9.png"), "line\nbreak.png"):
        shutil.copy(whole, folder / name)
    (folder / f"{NASTY} broken.png").write_bytes(b"no image")
    return folder


def test_predict_prints_and_writes_nasty_paths(own: Own, nasty: Path, said: Commands, monkeypatch) -> None:
    monkeypatch.chdir(nasty)
    names = sorted(path.name for path in nasty.iterdir())
    answer = said(predict, own.ran.folder, *names, "--csv", nasty.parent / "found.csv")
    assert answer.code == 0
    assert harmless(answer.out, lines=5)
    assert harmless(answer.err, lines=2)
    assert f"{WRITTEN} broken.png cannot be read" in answer.err
    assert {"=1+1.png", "caf\\xe9.png", "line\\nbreak.png"} < {line.split("\t")[0] for line in answer.out.splitlines()}
    with (nasty.parent / "found.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        paths = [row["path"] for row in csv.DictReader(file)]
    assert "'=1+1.png" in paths
    assert sorted(map(text_of, paths)) == [name for name in names if "broken" not in name]


def test_predict_writes_classes_as_text_and_numbers_as_numbers(tmp_path: Path) -> None:
    found = Prediction("-a.png", (("@SUM(A1)", 0.75), ("frog", 1e-9)))
    predict.save([found], tmp_path / "found.csv")
    (row,) = read_csv(tmp_path / "found.csv")
    assert row == {
        "path": "'-a.png",
        "class": "'@SUM(A1)",
        "probability": "0.75",
        "class_2": "frog",
        "probability_2": "1e-09",
    }


def test_predict_s_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")
    predict.show([Prediction(NASTY, ((NASTY, 1.0),))])
    shown = capsys.readouterr().out
    assert shown.count(WRITTEN) == 3  # path, class, and the likeliest classes
    assert "\x1b[2J" not in shown
    assert "\x9b" not in shown


def test_predict_skips_what_is_no_file(own: Own, tmp_path: Path, said: Commands) -> None:
    """A pipe would be waited for, a device read until the memory ends; each is named, and the others are answered."""
    folder = tmp_path / "images"
    (folder / "folder.png").mkdir(parents=True)
    shutil.copy(next((own.root / "test" / "blue").iterdir()), folder / "a.png")
    os.mkfifo(folder / "pipe.png")
    (folder / "endless.png").symlink_to("/dev/zero")
    (folder / "nothing.png").symlink_to("gone")
    with (folder / "vast.png").open("wb") as file:
        file.truncate(257 * 2**20)  # takes no room on the disk
    answer = said(predict, own.ran.folder, folder, folder / "pipe.png", "/dev/zero")
    assert answer.code == 0
    assert [line.split("\t")[0] for line in answer.out.splitlines()[1:]] == [str(folder / "a.png")]
    reasons = {
        "endless.png": "it is a device, a pipe or a socket, not a file",
        "nothing.png": "No such file or directory",
        "pipe.png": "it is a device, a pipe or a socket, not a file",
        "vast.png": "it has 257 MiB; up to 256 are read",
    }
    lines = [f"{folder / name} cannot be read ({reason})" for name, reason in reasons.items()]
    lines += [f"{path} cannot be read ({reasons['pipe.png']})" for path in (folder / "pipe.png", "/dev/zero")]
    assert answer.err.splitlines() == [*lines, "6 of 7 images could not be read"]


def test_predict_says_why_pixels_are_refused(own: Own, tmp_path: Path, said: Commands) -> None:
    Image.fromarray(np.zeros((8, 8), np.float32)).save(tmp_path / "float.tiff")
    answer = said(predict, own.ran.folder, tmp_path / "float.tiff")
    assert answer.code == 1
    assert answer.err.splitlines()[0] == (
        f"{tmp_path / 'float.tiff'} cannot be read (its pixels are floating-point numbers, which have no range: store 8"
        " or 16 bits)"
    )


def test_predict_s_help_states_the_limits(said: Commands) -> None:
    text = " ".join(said(predict, "--help").out.split())
    assert "files of more than 256 MiB and images of more than 134,217,728 pixels are reported and skipped" in text


def test_compare_names_foreign_runs(tmp_path: Path, said: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is a file that somebody else may have written: its values and its status are names, too."""
    monkeypatch.chdir(tmp_path)
    for number, value in enumerate(("=1+1", NASTY)):
        folder = made(tmp_path / f"run{number}", status=f"=failed {NASTY}")
        record = json.loads((folder / "result.json").read_text())
        record["config"]["train"] = {f"={value}": number, "seed": 1}
        (folder / "result.json").write_text(json.dumps(record))
    (tmp_path / f"{NASTY} left").mkdir()
    (tmp_path / f"{NASTY} left" / "result.json").write_text('{"key": 1}')
    files = ("--csv", "t.csv", "--markdown", "t.md", "--latex", "t.tex", "--figure", "none")
    answer = said(COMPARE, ".", "--unfinished", *files)
    assert answer.code == 0, answer.err
    assert harmless(answer.out, lines=3)
    assert harmless(answer.err)
    assert WRITTEN in answer.err
    assert all(harmless(Path(f"t.{kind}").read_text()) for kind in ("csv", "md", "tex"))
    rows = read_csv(Path("t.csv"))
    assert all(row["status"].startswith("'=failed") for row in rows)
    assert all(row[name][0] not in "=+-@" for row in rows for name in ("run", "status"))
    assert rows[0]["accuracy_last_percent"] == "50"


def test_a_sweep_s_table_shows_overrides_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """``[cross_entropy]`` is a list, no colour."""
    overrides = ["method/local=[cross_entropy]", f"dataset.root={NASTY}"]
    jobs.show(Path(NASTY), [Job(0, overrides, "failed", folder=NASTY, error=NASTY)])
    shown = capsys.readouterr().out
    assert harmless(shown)
    assert "method/local=[cross_entropy]" in shown


def test_the_card_of_a_federation_with_nasty_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "FEW", 2)  # classes by name, too
    client = {
        "client": 0,
        "name": NASTY,
        "samples": 4,
        "noise": 0.5,
        "nominal": None,
        "given": [2, 2, 0],
        "true": [2, 1, 1],
    }
    found: dict[str, Any] = {
        "dataset": NASTY,
        "classes": [NASTY, "b|c", r"d\|e"],
        "samples": 4,
        "training": 4,
        "validation": 0,
        "dropped": 0,
        "clients": 1,
        "empty": [],
        "unallocated": [0],
        "size": {"min": 4, "median": 4.0, "max": 4},
        "noise": 0.5,
        "nominal": None,
        "transition": [[1, 1, 0], [0, 1, 0], [0, 1, 0]],
        "agreement": None,
        "tested_of_clients": None,
        "fingerprint": "0",
        "per_client": [client],
    }
    assert harmless(cards.markdown(found))
    assert WRITTEN in cards.markdown(found)
    assert r"b\|c" in cards.markdown(found)
    assert r"d\\\|e" in cards.markdown(found)
    console = Console(file=io.StringIO(), width=300)
    for table in cards.tables(found, 300):
        console.print(table)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert harmless(shown)
    assert shown.count(WRITTEN) >= 3  # the title, the class of no client, a confusion


# ----------------------------------------------------------------------------------------------------------- labels.csv


def labelled(path: Path) -> LabelTable:
    found = LabelTable(
        classes=["=1+1", "frog", "-x", "-1"],
        client=["0", "0", "=1", "1"],
        sample=["=a.png", "b.png", "'-c.png", "@d.png"],
        given=[0, 1, 2, 3],
        final=[1, 0, 2, 3],
        confidence=torch.tensor([1e-9, 0.5, 0.25, 1.0], dtype=torch.float64),
        self_confidence=torch.tensor([0.75, 0.125, 0.25, 1.0], dtype=torch.float64),
        flagged=None,
        true=[2, 2, 0, 1],
    )
    found.save(path)
    return found


def test_labels_csv_has_no_formula(tmp_path: Path) -> None:
    labelled(tmp_path / "labels.csv")
    rows = read_csv(tmp_path / "labels.csv")
    assert [row["sample"] for row in rows] == ["'=a.png", "b.png", "''-c.png", "'@d.png"]
    assert [row["given"] for row in rows] == ["'=1+1", "frog", "'-x", "-1"]
    assert [row["true"] for row in rows] == ["'-x", "'-x", "'=1+1", "frog"]
    assert [row["confidence"] for row in rows] == ["1e-09", "0.5", "0.25", "1"]
    assert [row["self_confidence"] for row in rows] == ["0.75", "0.125", "0.25", "1"]
    assert [row["client"] for row in rows] == ["0", "0", "'=1", "1"]


@pytest.mark.parametrize("marked", [True, False])
def test_labels_read_back_with_their_marks_or_without(marked: bool, tmp_path: Path) -> None:
    """A label file made from ``labels.csv``, and one whose names were never marked."""
    made_of = labelled(tmp_path / "labels.csv")
    rows = read_csv(tmp_path / "labels.csv")
    for row in rows:
        row.update({} if marked else {name: text_of(row[name]) for name in ("sample", "final", "true")})
    with (tmp_path / "again.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "true"])
        writer.writerows([row["sample"], row["final"], row["true"]] for row in rows)
    samples = [str(name) for name in made_of.sample]
    found = read_label_file(tmp_path / "again.csv", "path", samples, made_of.classes)
    assert found.given.tolist() == list(made_of.final)
    assert found.true is not None
    assert found.true.tolist() == made_of.true
