"""Verdicts and a run's labels as they are read back: what is refused, and by which line."""

import csv
import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from flnl.audit.corrections import corrected_labels
from flnl.audit.recorded_labels import read_labels
from flnl.audit.samples import LabelledSamples
from flnl.audit.verdicts import Verdict, read_verdicts
from flnl.core.errors import UserError
from flnl.storage.csv_lines import CsvLines
from tests.audit.pages import audit

CLASSES = ("ant", "bee")
SAMPLES = LabelledSamples(np.array([0, 0, 1]), ["a.png", "two\nlines.png", "c.png"], np.array([0, 1, 0]))


def verdicts_of(folder: Path, lines: str) -> dict[int, Verdict]:
    """The verdicts that a file with these lines after its header says."""
    (folder / "verdicts.csv").write_text("client,sample,verdict,label\n" + lines)
    return read_verdicts([folder / "verdicts.csv"], SAMPLES, CLASSES)


def test_a_wrong_label_cannot_be_the_right_one(tmp_path: Path) -> None:
    assert verdicts_of(tmp_path, "0,a.png,wrong,bee\n1,c.png,right,ant\n") == {
        0: Verdict("wrong", 1),
        2: Verdict("right", 0),
    }
    with pytest.raises(UserError, match=r"line 3 of .*'ant' is the given label of sample 'c.png'.*make the verdict un"):
        verdicts_of(tmp_path, "0,a.png,wrong,bee\n1,c.png,wrong,ant\n")


def test_all_of_two_classes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'cat' is none of the classes \(ant, bee\)$"):
        verdicts_of(tmp_path, "0,a.png,wrong,cat\n")


def test_messages_name_the_line_of_the_file(tmp_path: Path) -> None:
    """Empty lines count, and so do all lines of a name that goes over several."""
    lines = '\n\n0,"two\nlines.png",right,bee\n\n'
    assert verdicts_of(tmp_path, lines) == {1: Verdict("right", 1)}
    with pytest.raises(UserError, match=r"line 7 of .* has no sample 'd.png'"):
        verdicts_of(tmp_path, lines + "1,d.png,right,ant\n")
    with pytest.raises(UserError, match=r"line 7 of .* has another number of values"):
        verdicts_of(tmp_path, lines + "1,c.png,right\n")


def test_the_same_verdict_twice_is_one(tmp_path: Path) -> None:
    """As where a client's file was joined to all others' already; right is right, whether it names the label or not."""
    files = [tmp_path / "one.csv", tmp_path / "other.csv"]
    files[0].write_text("client,sample,verdict,label\n0,a.png,wrong,bee\n1,c.png,right,ant\n")
    files[1].write_text("client,sample,verdict,label\n1,c.png,right,\n0,a.png,wrong,bee\n")
    assert read_verdicts(files, SAMPLES, CLASSES) == {0: Verdict("wrong", 1), 2: Verdict("right", 0)}
    for other in ("unsure,", "wrong,"):
        files[1].write_text(f"client,sample,verdict,label\n0,a.png,{other}\n")
        with pytest.raises(UserError, match=r"line 2 of .*other.csv: .*'a.png' .* another .* line 2 of .*one.csv"):
            read_verdicts(files, SAMPLES, CLASSES)


def test_a_class_is_known_in_either_unicode_form(tmp_path: Path) -> None:
    forms = [unicodedata.normalize(form, "été") for form in ("NFC", "NFD")]
    file = tmp_path / "verdicts.csv"
    for ours, theirs in (forms, forms[::-1]):
        file.write_text(f"client,sample,verdict,label\n0,a.png,wrong,{theirs}\n")
        assert read_verdicts([file], SAMPLES, ("ant", ours)) == {0: Verdict("wrong", 1)}
    assert read_verdicts([file], SAMPLES, ("ant", *forms)) == {0: Verdict("wrong", 1 + forms.index(theirs))}


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_spreadsheets_separators_are_taken(tmp_path: Path, separator: str) -> None:
    """Also where a value has a comma: a spreadsheet that writes semicolons puts no quotes around it."""
    samples = LabelledSamples(np.array([0]), ["a,b.png"], np.array([0]))
    file = tmp_path / "verdicts.csv"
    lines = (["client", "sample", "verdict", "label"], ["0", "a,b.png", "wrong", "bee"])
    file.write_text("".join(separator.join(line) + "\n" for line in lines))
    assert read_verdicts([file], samples, CLASSES) == {0: Verdict("wrong", 1)}
    file.write_text(file.read_text() + separator.join(["0", "d.png", "right"]) + "\n")
    with pytest.raises(UserError, match=r"line 3 of .* has another number of values"):
        read_verdicts([file], samples, CLASSES)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_file_in_utf_16_is_read(tmp_path: Path, encoding: str) -> None:
    """As some spreadsheets save text."""
    begin = "" if encoding == "utf-16" else "\ufeff"
    (tmp_path / "verdicts.csv").write_text(
        f"{begin}client\tsample\tverdict\tlabel\n0\ta.png\tunsure\t\n", encoding=encoding
    )
    assert read_verdicts([tmp_path / "verdicts.csv"], SAMPLES, CLASSES) == {0: Verdict("unsure", None)}


def test_the_line_of_a_runs_labels_is_named(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    header = "client,sample,given,final,flagged\n"
    file.write_text(header + '0,a.png,ant,bee,1\n0,"two\nlines.png",bee,bee,0\n1,c.png,ant,ant,0\n')
    labels = read_labels(file, SAMPLES, CLASSES)
    assert labels.final.tolist() == [1, 1, 0]
    assert labels.flagged is not None
    assert labels.flagged.tolist() == [True, False, False]
    for last, message in (
        ("1,c.png,bee,ant,0\n", "disagree at line 5: sample c.png of client 1 with label bee"),
        ("1,c.png,ant,cat,0\n", "line 5 has the label 'cat'"),
        ("1,c.png,ant\n", "line 5 has another number of values"),
        ("1,c.png,ant,ant,0\n1,d.png,ant,ant,0\n", "disagree at line 6: 1, d.png in the file, no more samples"),
    ):
        file.write_text(header + '0,a.png,ant,bee,1\n0,"two\nlines.png",bee,bee,0\n' + last)
        with pytest.raises(UserError, match=message):
            read_labels(file, SAMPLES, CLASSES)
    file.write_text(header.replace(",final", ""))
    with pytest.raises(UserError, match="it has no column final"):
        read_labels(file, SAMPLES, CLASSES)


def test_lines_are_counted_as_an_editor_counts_them() -> None:
    lines = CsvLines(["a,b\n", "\n", '1,"x\n', 'y"\n', "\n", "2,z\n"])
    assert lines.header == ["a", "b"]
    assert list(lines) == [(3, {"a": "1", "b": "x\ny"}), (6, {"a": "2", "b": "z"})]
    assert CsvLines([]).header == []


def test_a_column_is_there_once_if_it_has_a_name() -> None:
    assert [row for _, row in CsvLines(["a,b,,\n", "1,2,,\n"])] == [{"a": "1", "b": "2"}]
    with pytest.raises(csv.Error, match="it has the column 'b' twice"):
        CsvLines(["a,b,b\n"])


def test_verdicts_with_two_columns_of_labels_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "verdicts.csv"
    file.write_text("client,sample,verdict,label,label\n0,a.png,wrong,bee,ant\n")
    with pytest.raises(UserError, match="it has the column 'label' twice"):
        read_verdicts([file], SAMPLES, CLASSES)


def test_a_wrong_label_that_the_audit_would_suggest_needs_another() -> None:
    """Of 6 samples, the last 2 by number are issues; here the audit suggests the given label of the others."""
    found = audit(6, issues=2, corrections="reviewed", reviewed="verdicts.csv")
    found.samples.predicted[:4] = found.samples.given[:4]
    labels = corrected_labels(found, {5: Verdict("wrong", None), 0: Verdict("wrong", 2), 1: Verdict("unsure", None)})
    assert labels.tolist() == [2, 1, 2, 0, 1, 0]
    with pytest.raises(UserError, match=r"client 0, sample 2 is wrong by its verdict.*name the right class"):
        corrected_labels(found, {2: Verdict("wrong", None)})


def test_what_a_reviewer_has_decided_counts_more_than_what_the_audit_suggests() -> None:
    """Of 6 samples, given 0, 1, 2, 0, 1, 2, the last 3 are issues, and the next class is suggested."""
    found = audit(6, issues=3, corrections="suggested", reviewed="verdicts.csv")
    assert corrected_labels(found, {}).tolist() == [0, 1, 2, 1, 2, 0]
    decided = {2: Verdict("wrong", 0), 3: Verdict("right", None), 4: Verdict("wrong", 0), 5: Verdict("unsure", None)}
    assert corrected_labels(found, decided).tolist() == [0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("path", ["/dev/zero", "pipe"])
def test_what_may_never_end_is_refused(path: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        UserError, match=r"cannot be read .it is a device, a pipe or a socket, not a file.; it should be"
    ):
        read_verdicts([tmp_path / path], SAMPLES, CLASSES)


def test_accents_may_be_composed_otherwise_unless_two_samples_differ_in_nothing_else(tmp_path: Path) -> None:
    apart, one = "cafe\u0301", "caf\u00e9"
    file = tmp_path / "verdicts.csv"
    header = "client,sample,verdict,label\n"
    alone = LabelledSamples(np.array([0]), ["1.png"], np.array([0]), (one,))
    file.write_text(f"{header}{apart},1.png,unsure,\n", encoding="utf-8")
    assert read_verdicts([file], alone, CLASSES) == {0: Verdict("unsure", None)}
    two = LabelledSamples(np.array([0, 0]), [one, apart], np.array([0, 1]))
    file.write_text(f"{header}0,{apart},unsure,\n", encoding="utf-8")
    assert read_verdicts([file], two, CLASSES) == {1: Verdict("unsure", None)}
    file.write_text(f"{header}0,{one},unsure,\n0,{apart},unsure,\n", encoding="utf-8")
    assert set(read_verdicts([file], two, CLASSES)) == {0, 1}


def test_each_client_may_save_its_own(tmp_path: Path) -> None:
    header = "client,sample,verdict,label\n"
    one, other = tmp_path / "one.csv", tmp_path / "other.csv"
    one.write_text(header + "0,a.png,wrong,bee\n")
    other.write_text(header + "1,c.png,right,\n")
    assert read_verdicts([one, other], SAMPLES, CLASSES) == {0: Verdict("wrong", 1), 2: Verdict("right", None)}
    other.write_text(header + "1,c.png,right,\n0,a.png,unsure,\n")
    with pytest.raises(UserError, match=r"line 3 of .*other.csv: sample 'a.png' of client 0 has another verdict"):
        read_verdicts([one, other], SAMPLES, CLASSES)
