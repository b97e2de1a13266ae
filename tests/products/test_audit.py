"""``flnl audit``: its files against what the run holds, what it refuses, and what it never shows."""

import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
import threadpoolctl
import torch
from cleanlab import filter, rank
from omegaconf import DictConfig
from PIL import Image

from flnl.audit import audit, audited_run, choice, examination, folds, performing, pooling, source, writing
from flnl.audit.audited_run import AuditedRun
from flnl.audit.corrections import Corrections
from flnl.audit.files import write_csv
from flnl.audit.label_privacy import PURPOSE, RandomisedSums
from flnl.audit.options import Options
from flnl.audit.result import WrongLabels
from flnl.audit.verdicts import Verdict
from flnl.audit.wrong_labels import Estimate
from flnl.commands import audit as program
from flnl.config import compose
from flnl.core.errors import UserError
from flnl.core.streams import stream
from flnl.data.datasets.label_file import read_label_file
from flnl.data.federation import build
from flnl.data.federation.build import Federation
from flnl.data.federation.recorded import recorded_federation
from flnl.data.images import ImageFiles, TensorImages
from flnl.data.owner_file import read_owners
from flnl.engine import loop
from flnl.engine.executors import auto
from flnl.evaluation.probabilities import NAME, Probabilities
from flnl.numerics.randomised_response import RandomisedResponse
from flnl.record.run import RunRecord
from flnl.storage.whole_folder import written_whole
from tests.products.conftest import Commands, Own, read_csv
from tests.properties.runs import Ran, run
from tests.registry import BY_NAME, ONE_STAGE, TINY

ROOT = Path(__file__).resolve().parents[2]
PLAIN = ("--formats", "csv,json")

Changed = Callable[..., Path]


@pytest.fixture
def copied(tmp_path: Path) -> Changed:
    """A copy of a run's folder."""

    def copy(ran: Ran) -> Path:
        shutil.copytree(ran.folder, tmp_path / "run", ignore=shutil.ignore_patterns("audit", "folds", "checkpoints"))
        return tmp_path / "run"

    return copy


def numbers_of(folder: Path) -> dict[str, Any]:
    """``audit.json``."""
    found: dict[str, Any] = json.loads((folder / "audit.json").read_text())
    return found


# -------------------------------------------------------------------------------------------------------------- files


def test_audit_csv_is_a_table_of_the_runs_labels(fedcorr: Ran, said: Commands, tmp_path: Path) -> None:
    answer = said(program, fedcorr.folder, *PLAIN, "--out", tmp_path / "out")
    few = "note: 50 test samples (below 200): too few for an expected precision to rely on; review a sample\n"
    untold = "note: how many labels are wrong is not told: it takes 200 test samples, and there are 50 test samples\n"
    assert (answer.code, answer.err) == (0, few + untold)
    table = pandas.read_csv(tmp_path / "out" / "audit.csv")
    labels = pandas.read_csv(fedcorr.folder / "labels.csv")
    kinds = {name: str(kind) for name, kind in table.dtypes.items()}
    assert {
        name: kinds[name] for name in ("is_label_issue", "method_flagged", "label_score", "suspicion_score", "rank")
    } == {
        "is_label_issue": "bool",
        "method_flagged": "bool",
        "label_score": "float64",
        "suspicion_score": "float64",
        "rank": "int64",
    }
    for ours, theirs in (
        ("client", "client"),
        ("sample", "sample"),
        ("given_label", "given"),
        ("final_label", "final"),
    ):
        assert table[ours].tolist() == labels[theirs].tolist()
    assert table.method_flagged.tolist() == (labels.flagged == 1).tolist()
    assert table.true_label.tolist() == labels.true.tolist()
    assert sorted(table["rank"]) == list(range(len(table)))
    order = table.sort_values("rank")
    assert order.suspicion_score.is_monotonic_increasing
    held = np.load(fedcorr.folder / NAME, allow_pickle=False)
    assert table.predicted_label.tolist() == held["window"].argmax(1).tolist()
    given = held["window"][np.arange(len(table)), table.given_label]
    assert (
        table.is_label_issue == ((table.predicted_label != table.given_label) & (held["window"].max(1) > given + 1e-6))
    ).all()


def test_audit_json_adds_up(fedcorr: Ran, said: Commands, tmp_path: Path) -> None:
    said(program, fedcorr.folder, *PLAIN, "--out", tmp_path / "out", "--min-client", "0")
    found, rows = numbers_of(tmp_path / "out"), read_csv(tmp_path / "out" / "audit.csv")
    issues = [row for row in rows if row["is_label_issue"] == "True"]
    assert found["schema"] == 1
    assert found["key"] == fedcorr.record["key"]
    assert found["federation"] == fedcorr.record["federation"]
    assert found["samples"] == len(rows) == sum(found["n"]) == np.sum(found["calibrated_joint"])
    assert found["issues"]["is_label_issue"] == len(issues) > 5
    for table in ("by_client", "by_pair"):
        assert sum(row["issues"] for row in found[table]) == len(issues)
    for row in found["by_client"]:
        assert row["samples"] == sum(one["client"] == row["client"] for one in rows)
        pair = row["most_frequent_pair"]
        of_client = [(i["given_label"], i["predicted_label"]) for i in issues if i["client"] == row["client"]]
        assert pair is None if not of_client else of_client.count(tuple(pair)) == max(map(of_client.count, of_client))
    curve = found["expected_precision"]
    assert [len(curve[name]) for name in ("cuts", "below", "expected")] == [101] * 3
    assert curve["below"][50] == sum(float(row["suspicion_score"]) < 0.5 for row in rows)
    assert (curve["below"][0], curve["expected"][0]) == (0, None)
    assert found["source"]["in_sample"] is True
    assert found["source"]["rounds"] == np.load(fedcorr.folder / NAME)["window_rounds"].tolist()
    wrong = {i for i, row in enumerate(rows) if row["given_label"] != row["true_label"]}
    assert found["measured"]["errors"] == len(wrong)
    marked = {i for i, row in enumerate(rows) if row["is_label_issue"] == "True"}
    assert found["measured"]["issues_precision"] == pytest.approx(len(wrong & marked) / len(marked))
    assert found["measured"]["issues_recall"] == pytest.approx(len(wrong & marked) / len(wrong))


def test_the_page_shows_images_as_they_are_in_their_files(own: Own, said: Commands, tmp_path: Path) -> None:
    """The run decoded images of 12x10 pixels to 8x8, and kept those in memory."""
    assert isinstance(recorded_federation(RunRecord.open(own.ran.folder)).dataset.train, TensorImages)
    assert said(program, own.ran.folder, "--out", tmp_path / "out").code == 0
    encoded = re.findall(r"data:image/\w+;base64,([\w+/=]+)", (tmp_path / "out" / "pages" / "0000.js").read_text())
    assert encoded
    assert {Image.open(io.BytesIO(base64.b64decode(one))).size for one in encoded} == {(12, 10)}


def test_folds_train_on_images_that_are_where_training_had_them(own: Own) -> None:
    opened = AuditedRun.open(own.ran.folder)
    trained = opened.as_trained()
    assert isinstance(opened.federation.dataset.train, ImageFiles)
    assert isinstance(trained.federation.dataset.train, TensorImages)
    assert trained.federation.fingerprint == opened.federation.fingerprint
    everything = torch.arange(len(opened.position))
    pixels = (run.federation.dataset.train.read(everything) for run in (opened, trained))
    assert torch.equal(*pixels)


def test_a_data_set_that_has_no_files_is_not_drawn_again_for_folds(fedavg: Ran) -> None:
    opened = AuditedRun.open(fedavg.folder)
    assert opened.as_trained() is opened


def test_the_truth_changes_nothing_but_what_is_named_after_it(
    fedcorr: Ran, said: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--thumbnails", "none", "--clients", "--corrections", "suggested", "--min-precision", "0.3")
    said(program, fedcorr.folder, *words, "--out", tmp_path / "one")

    def other(*arguments: Any) -> Federation:
        federation = recorded_federation(*arguments)
        assert federation.truth is not None
        return replace(federation, truth=federation.truth.flip(0))

    monkeypatch.setattr(audited_run, "recorded_federation", other)
    said(program, fedcorr.folder, *words, "--out", tmp_path / "other")
    files = sorted(file.relative_to(tmp_path / "one") for file in (tmp_path / "one").rglob("*") if file.is_file())
    assert {file.name for file in files} == {
        "audit.csv",
        "audit.json",
        "corrected.csv",
        "index.html",
        "0000.js",
        "0001.js",
    }
    assert len(files) == 6 + 4 * 8
    differing = set()
    for file in files:
        one, two = (tmp_path / name / file for name in ("one", "other"))
        if file.suffix == ".json":
            first, second = json.loads(one.read_text()), json.loads(two.read_text())
            differing.add(first.pop("measured") != second.pop("measured"))
            assert json.dumps(first) == json.dumps(second)
        elif file.name == "audit.csv":
            first, second = read_csv(one), read_csv(two)
            differing.add([row.pop("true_label") for row in first] != [row.pop("true_label") for row in second])
            assert first == second
        else:
            assert one.read_bytes() == two.read_bytes()
    assert True in differing


def test_it_stands_beside_cleanlab(fedavg: Ran, said: Commands, tmp_path: Path) -> None:
    """What pandas reads of ``audit.csv`` has the order of cleanlab's answers, which are the same."""
    held = np.load(fedavg.folder / NAME, allow_pickle=False)
    for name in ("predicted_neq_given", "confident_learning", "prune_by_class", "prune_by_noise_rate", "both"):
        words = ("--formats", "csv", "--issues", name, "--score", "normalized_margin")
        said(program, fedavg.folder, *words, "--out", tmp_path / name)
        table = pandas.read_csv(tmp_path / name / "audit.csv")
        theirs = filter.find_label_issues(
            table.given_label.to_numpy(), held["window"].astype(float), filter_by=name, n_jobs=1
        )
        assert table.is_label_issue.tolist() == theirs.tolist(), name
        scores = rank.get_normalized_margin_for_each_label(table.given_label.to_numpy(), held["window"].astype(float))
        assert np.allclose(table.label_score, scores, atol=1e-8)


def test_names_are_verbatim_for_machines_and_marked_for_spreadsheets(own: Own, said: Commands, tmp_path: Path) -> None:
    said(program, own.ran.folder, "--formats", "csv", "--out", tmp_path / "one")
    rows = read_csv(tmp_path / "one" / "audit.csv")
    assert {row["sample"]: row["given_label"] for row in rows} == own.labels
    assert "true_label" not in rows[0]
    assert {row["method_flagged"] for row in rows} == {""}
    assert b"\r" not in (tmp_path / "one" / "audit.csv").read_bytes()
    found = audit(own.ran.folder, Options(formats=()))
    nasty = ("=1+1", 'a,"b"\r\n', "\udce9\ud800")
    for spreadsheet in (False, True):
        changed = replace(found, classes=nasty, options=replace(found.options, spreadsheet=spreadsheet))
        write_csv(changed, tmp_path / "nasty.csv")
        text = (tmp_path / "nasty.csv").read_bytes().decode("utf-8", errors="surrogateescape")
        read = [row["given_label"] for row in csv.DictReader(io.StringIO(text, newline=""))]
        names = ["'=1+1" if spreadsheet else "=1+1", nasty[1], "\udce9\\ud800"]
        assert read == [names[k] for k in found.samples.given]


def test_other_clients_are_pooled_in_a_clients_own_audit(fedcorr: Ran, said: Commands, tmp_path: Path) -> None:
    said(program, fedcorr.folder, *PLAIN, "--clients", "--out", tmp_path / "out")
    rows = read_csv(tmp_path / "out" / "audit.csv")
    whole = numbers_of(tmp_path / "out")
    of_issues = set()
    for client in range(8):
        folder = tmp_path / "out" / "clients" / f"{client:04d}"
        own, found = read_csv(folder / "audit.csv"), numbers_of(folder)
        mine = [row for row in rows if row["client"] == str(client)]
        assert [row | {"rank": ""} for row in own] == [row | {"rank": ""} for row in mine]
        assert [int(row["rank"]) for row in own] == np.argsort(np.argsort([int(row["rank"]) for row in mine])).tolist()
        assert [row["client"] for row in found["by_client"]] == [str(client), "other clients"]
        assert sum(row["samples"] for row in found["by_client"]) == len(rows)
        assert found["confident_joint"] == whole["confident_joint"]
        curve = found["expected_precision"]
        assert curve["below"][50] == sum(float(row["suspicion_score"]) < 0.5 for row in mine)
        assert [value is None for value in curve["expected"]] == [not below for below in curve["below"]]
        of_issues.add(curve["of_issues"])
    assert len(of_issues) > 3, "each has the expected precision of its own issues"


def test_a_clients_own_audit_names_no_sample_of_another(own: Own, said: Commands, tmp_path: Path) -> None:
    said(program, own.ran.folder, "--clients", "--out", tmp_path / "out")
    client_of = {row["sample"]: row["client"] for row in read_csv(tmp_path / "out" / "audit.csv")}
    for client in set(client_of.values()):
        folder = tmp_path / "out" / "clients" / f"{int(client):04d}"
        names = {file.name for file in folder.rglob("*") if file.is_file()}
        text = "".join(file.read_text() for file in folder.rglob("*") if file.is_file())
        assert names == {"audit.csv", "audit.json", "index.html", "0000.js"}
        assert {sample for sample in client_of if sample in text} == {s for s, c in client_of.items() if c == client}


def test_under_label_privacy_the_others_have_no_row(fedcorr: Ran, said: Commands, tmp_path: Path) -> None:
    """Their issues and disagreements would be counted from the labels that privacy is to hide."""
    words = ("--label-privacy", "3", "--clients", "--thumbnails", "none", "--out", tmp_path / "out")
    assert said(program, fedcorr.folder, *words).code == 0
    for client in range(8):
        folder = tmp_path / "out" / "clients" / f"{client:04d}"
        assert [row["client"] for row in numbers_of(folder)["by_client"]] == [str(client)]
        assert "other clients" not in (folder / "index.html").read_text()


def test_small_clients_are_one_row(fedcorr: Ran, said: Commands, tmp_path: Path) -> None:
    sizes = [len(part) for part in AuditedRun.open(fedcorr.folder).federation.clients]
    least = max(sizes)
    small = [c for c, size in enumerate(sizes) if size < least]
    said(program, fedcorr.folder, *PLAIN, "--min-client", least, "--out", tmp_path / "out")
    rows = numbers_of(tmp_path / "out")["by_client"]
    assert [row["client"] for row in rows] == [str(c) for c in range(8) if c not in small] + ["small clients"]
    assert rows[-1]["clients"] == small
    assert rows[-1]["samples"] == sum(sizes[c] for c in small)


def test_what_is_printed(fedcorr: Ran, said: Commands, tmp_path: Path) -> None:
    answer = said(program, fedcorr.folder, *PLAIN, "--out", tmp_path / "out")
    lines = [line.split("\t") for line in answer.out.splitlines()]
    assert ["samples", "138"] in lines
    assert lines[-2:] == [[str(tmp_path / "out" / "audit.csv")], [str(tmp_path / "out" / "audit.json")]]
    quiet = said(program, fedcorr.folder, *PLAIN, "--out", tmp_path / "quiet", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert (tmp_path / "quiet" / "audit.csv").read_bytes() == (tmp_path / "out" / "audit.csv").read_bytes()


def test_how_many_labels_are_wrong_is_told_everywhere(
    fedcorr: Ran, said: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "ENOUGH_TEST_SAMPLES", 50)
    answer = said(program, fedcorr.folder, "--thumbnails", "none", "--clients", "--out", tmp_path / "out")
    found = numbers_of(tmp_path / "out")
    every, rows = found["wrong_labels"], found["by_client"]
    assert every["judged"] == 0
    for name in ("expected", "low", "high"):
        assert every[name] == pytest.approx(sum(row["wrong_labels"][name] for row in rows))
    told = f"{round(every['expected'])} ({every['low']} to {every['high']})"
    lines = [line.split("\t") for line in answer.out.splitlines()]
    assert ["wrong labels, expected", told] in lines
    assert ["client", "samples", "wrong, expected", "issues", "most frequent (given → predicted)"] in lines
    for row in rows:
        wrong = row["wrong_labels"]
        assert 0 <= wrong["low"] <= wrong["expected"] <= wrong["high"] <= row["samples"]
        folder = tmp_path / "out" / "clients" / f"{row['clients'][0]:04d}"
        own = numbers_of(folder)
        assert own["wrong_labels"] == own["by_client"][0]["wrong_labels"] == wrong
        others = sum(one["wrong_labels"]["expected"] for one in rows if one is not row)
        assert own["by_client"][1]["wrong_labels"]["expected"] == pytest.approx(others)
        about = f"About {round(wrong['expected'])} of {row['samples']} labels are wrong"
        assert about in (folder / "index.html").read_text()
        assert about in (tmp_path / "out" / "index.html").read_text()


def test_label_privacy_covers_no_number_of_wrong_labels(
    fedcorr: Ran, said: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is computed from a client's own labels, not the drawn ones, and with what all clients' scores have told."""
    monkeypatch.setattr(examination, "ENOUGH_TEST_SAMPLES", 50)
    words = ("--label-privacy", "3", "--clients", "--thumbnails", "none", "--out", tmp_path / "out")
    assert "how many labels are wrong is not told: it takes messages that" in said(program, fedcorr.folder, *words).err
    for folder in (tmp_path / "out", *(tmp_path / "out" / "clients").iterdir()):
        found = numbers_of(folder)
        assert found["wrong_labels"] is None
        assert {row["wrong_labels"] for row in found["by_client"]} == {None}
        assert "labels are wrong (" not in (folder / "index.html").read_text()


def test_a_review_tells_how_many_labels_are_wrong(
    fedcorr: Ran, said: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "ENOUGH_TEST_SAMPLES", 50)
    said(program, fedcorr.folder, *PLAIN, "--out", tmp_path / "first")
    rows = read_csv(tmp_path / "first" / "audit.csv")
    issues = [row for row in rows if row["is_label_issue"] == "True"]
    with (tmp_path / "verdicts.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["client", "sample", "verdict", "label"])
        for row in issues:
            wrong = row["given_label"] != row["true_label"]
            lines.writerow([row["client"], row["sample"], "wrong" if wrong else "right", ""])
    words = ("--reviewed", tmp_path / "verdicts.csv", "--out", tmp_path / "second")
    answer = said(program, fedcorr.folder, *PLAIN, *words)
    before, found = numbers_of(tmp_path / "first"), numbers_of(tmp_path / "second")
    assert found["wrong_labels"]["judged"] == len(issues)
    assert ", by review)" in answer.out
    for old, row in zip(before["by_client"], found["by_client"], strict=True):
        mine = [one for one in issues if one["client"] == row["client"]]
        listed = sum(one["given_label"] != one["true_label"] for one in mine)
        assert row["wrong_labels"]["judged"] == len(mine), "all of each client's issues"
        assert listed <= row["wrong_labels"]["low"]
        assert row["wrong_labels"]["high"] <= row["samples"] - (len(mine) - listed)
        if mine:
            assert row["wrong_labels"] != old["wrong_labels"]
    for name in ("expected", "low", "high"):
        assert found["wrong_labels"][name] == pytest.approx(
            sum(row["wrong_labels"][name] for row in found["by_client"])
        )


def test_who_has_judged_every_label_is_told_their_number(fedcorr: Ran, said: Commands, tmp_path: Path) -> None:
    """However few the test samples are; of other clients it is said what is lacking."""
    few = "note: how many labels are wrong is not told: it takes 200 test samples, and there are 50 test samples\n"
    assert few in said(program, fedcorr.folder, *PLAIN, "--out", tmp_path / "first").err
    rows = read_csv(tmp_path / "first" / "audit.csv")
    for name, judged in (("one", [row for row in rows if row["client"] == "0"]), ("all", rows)):
        wrong = [row["given_label"] != row["true_label"] for row in judged]
        lines = [
            f"{row['client']},{row['sample']},{'wrong' if is_wrong else 'right'},\n"
            for row, is_wrong in zip(judged, wrong, strict=True)
        ]
        (tmp_path / "verdicts.csv").write_text("".join(["client,sample,verdict,label\n", *lines]))
        words = ("--reviewed", tmp_path / "verdicts.csv", "--min-client", "0", "--out", tmp_path / name)
        answer, number = said(program, fedcorr.folder, *PLAIN, *words), sum(wrong)
        found, exact = numbers_of(tmp_path / name), {"expected": number, "low": number, "high": number}
        whole = name == "all"
        assert (few in answer.err) is not whole
        if whole:
            assert found["wrong_labels"] == exact | {"judged": len(rows)}
        else:
            assert found["wrong_labels"] is None
            assert found["by_client"][0]["wrong_labels"] == exact | {"judged": len(judged)}


@pytest.mark.parametrize(("kind", "advised"), [("window", False), ("final", True)])
def test_where_the_number_is_not_told_the_advice_was_not_followed_yet(
    kind: str, advised: bool, fedcorr: Ran, said: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "ENOUGH_TEST_SAMPLES", 50)
    monkeypatch.setattr(examination, "wrong_labels", lambda *_, **__: None)
    told = said(program, fedcorr.folder, *PLAIN, "--probabilities", kind, "--out", tmp_path / kind).err
    assert "is not told: the models are surer of test samples than right" in told
    assert "(--folds 5) may tell" in told
    assert ("--probabilities window" in told) is advised


def test_where_an_interval_is_wide_a_note_says_what_tells_more(
    fedcorr: Ran, said: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "ENOUGH_TEST_SAMPLES", 50)

    def estimates(samples: Any, *_: Any, **__: Any) -> list[Estimate]:
        ends = [(0, size // 2 + (c == 1)) for c, size in enumerate(samples.sizes.tolist())]
        return [Estimate(WrongLabels(1, *end), WrongLabels(0, 0, 0)) for end in ends]

    monkeypatch.setattr(examination, "wrong_labels", estimates)
    count = len(AuditedRun.open(fedcorr.folder).samples.clients)
    told = said(program, fedcorr.folder, *PLAIN, "--out", tmp_path / "out").err
    assert f"how many labels are wrong is hardly known at 1 of {count} clients: the models have seen" in told
    assert "(--folds 5) or a review" in told


def test_a_least_precision_cuts_the_issues_or_leaves_none(fedcorr: Ran, said: Commands, tmp_path: Path) -> None:
    for least in ("0", "1"):
        words = ("--score", "normalized_margin", "--min-precision", least)
        answer = said(program, fedcorr.folder, *PLAIN, "--out", tmp_path / least, *words)
        rows, cut = read_csv(tmp_path / least / "audit.csv"), numbers_of(tmp_path / least)["expected_precision"]["cut"]
        issues = [row for row in rows if row["is_label_issue"] == "True"]
        assert all(float(row["suspicion_score"]) < cut for row in issues)
        assert ("nothing stands out" in answer.out) == (not issues) == (least == "1")


# -------------------------------------------------------------------------------------------------------- corrections


def test_corrected_labels_start_a_run(own: Own, said: Commands, tmp_path: Path) -> None:
    answer = said(program, own.ran.folder, *PLAIN, "--corrections", "suggested", "--out", tmp_path / "out")
    (line,) = [line for line in answer.out.splitlines() if line.startswith("to train on the corrected labels: ")]
    overrides = line.partition(": ")[2].split()
    assert overrides == [f"dataset.labels={tmp_path / 'out' / 'corrected.csv'}", "partition=file"]
    assert "and leave out of the run's command: partition.num_clients=3\n" in answer.out
    rows = read_csv(tmp_path / "out" / "audit.csv")
    corrected = read_csv(tmp_path / "out" / "corrected.csv")
    assert list(corrected[0]) == ["path", "label", "client"]
    expected = {
        row["sample"]: row["predicted_label" if row["is_label_issue"] == "True" else "given_label"] for row in rows
    }
    assert {row["path"]: row["label"] for row in corrected} == expected
    assert expected != own.labels
    words = [word for word in own.ran.record["overrides"] if word.split("=")[0] not in OF_THE_FIRST]
    again = run([*words, *overrides, "rounds=1"], tmp_path / "again")
    labels = read_csv(again.folder / "labels.csv")
    assert {row["sample"]: row["given"] for row in labels} == expected
    assert {row["sample"]: row["client"] for row in labels} == {row["sample"]: row["client"] for row in rows}


OF_THE_FIRST = ("output", "cache", "dataset.labels", "partition.num_clients", "rounds")


def test_held_out_samples_have_a_line_and_their_client(fedcorr: Ran, said: Commands, tmp_path: Path) -> None:
    answer = said(program, fedcorr.folder, *PLAIN, "--corrections", "suggested", "--out", tmp_path / "out")
    assert "digits reads no labels from a file" in answer.out
    corrected = read_csv(tmp_path / "out" / "corrected.csv")
    federation = AuditedRun.open(fedcorr.folder).federation
    assert [row["id"] for row in corrected] == list(federation.dataset.ids or ())
    owner = [int(row["client"]) for row in corrected]
    assert len(federation.validation) == 32
    for client, positions in enumerate(federation.clients):
        assert {owner[i] for i in positions} == {client}
    sizes = np.bincount(owner)
    assert [int(0.2 * n + 1e-9) for n in sizes] == [
        n - len(part) for n, part in zip(sizes, federation.clients, strict=True)
    ]
    assert [int(corrected[i]["label"]) for i in federation.validation] == federation.given[
        federation.validation
    ].tolist()


def test_samples_of_no_client_are_left_out_by_a_file_of_clients(tmp_path: Path) -> None:
    found = Corrections(["a", "b", "c"], "path", np.array([0, 1, 1]), np.array([2, -1, 0]), 3, None)
    overrides = found.save(tmp_path, ("x", "=y"), spreadsheet=True)
    assert (tmp_path / "corrected.csv").read_text() == "path,label\na,x\nb,'=y\nc,'=y\n"
    assert (tmp_path / "clients.csv").read_text() == "client\n2\n-1\n0\n"
    assert overrides[-2:] == ["partition.path={folder}/clients.csv", "partition.num_clients=3"]


def test_samples_of_no_client_are_left_out_beside_clients_with_names(tmp_path: Path) -> None:
    names, samples = ("=east", "north, clinic", "west"), ["a", "b", "c", "d"]
    found = Corrections(samples, "path", np.array([0, 1, 1, 0]), np.array([2, -1, 1, 0]), 3, names)
    overrides = found.save(tmp_path, ("x", "y"), spreadsheet=True)
    assert (tmp_path / "clients.csv").read_text() == 'client\nwest\n-1\n"north, clinic"\n\'=east\n'
    assert overrides[-1] == "partition.path={folder}/clients.csv"
    owners = read_owners(tmp_path / "clients.csv", samples)
    assert (owners.names, owners.number.tolist()) == (names, [2, -1, 1, 0])
    empty = replace(found, clients=4, names=(*names, "3"))  # by partition.num_clients
    assert empty.save(tmp_path, ("x", "y"), spreadsheet=True)[-1] == "partition.num_clients=4"
    whole = replace(found, owner=np.array([2, 0, 1, 0]))
    whole.save(tmp_path, ("x", "y"), spreadsheet=True)
    corrected = read_label_file(tmp_path / "corrected.csv", "path", samples, ["x", "y"]).owners
    assert corrected is not None
    assert corrected.names == names


def test_verdicts_are_read_back(own: Own, said: Commands, tmp_path: Path) -> None:
    said(program, own.ran.folder, "--formats", "csv", "--out", tmp_path / "first")
    rows = read_csv(tmp_path / "first" / "audit.csv")
    issues = [row for row in rows if row["is_label_issue"] == "True"]
    others = [row for row in rows if row["is_label_issue"] == "False"]
    chosen = next(name for name in ("[red]", "green, dark", "blue") if name not in (issues[0]["given_label"],))
    verdicts = [
        (issues[0], "wrong", chosen),
        (issues[1], "wrong", ""),
        (issues[2], "right", issues[2]["given_label"]),
        (others[0], "unsure", ""),
    ]
    with (tmp_path / "verdicts.csv").open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["client", "sample", "verdict", "label"])
        lines.writerows([row["client"], row["sample"], verdict, label] for row, verdict, label in verdicts)
    words = ("--reviewed", tmp_path / "verdicts.csv", "--corrections", "reviewed", "--out", tmp_path / "second")
    assert said(program, own.ran.folder, *PLAIN, *words).code == 0
    labels = {row["path"]: row["label"] for row in read_csv(tmp_path / "second" / "corrected.csv")}
    changed = {name: label for name, label in labels.items() if label != own.labels[name]}
    assert changed == {issues[0]["sample"]: chosen, issues[1]["sample"]: issues[1]["predicted_label"]}
    review = numbers_of(tmp_path / "second")["review"]
    assert (review["right"], review["wrong"], review["unsure"]) == (1, 2, 1)
    assert (review["drawn"], review["judged"], review["sampled"]) == (len(issues), 3, 3)
    assert (review["precision"], review["interval"]) == (None, None), (
        "who has judged the first alone knows no precision"
    )
    with (tmp_path / "verdicts.csv").open("a", newline="") as file:
        csv.writer(file).writerows([row["client"], row["sample"], "unsure", ""] for row in issues[3:])
    answer = said(program, own.ran.folder, *PLAIN, *words, "--force")
    review = numbers_of(tmp_path / "second")["review"]
    assert (review["judged"], review["sampled"], review["precision"]) == (len(issues), 3, pytest.approx(2 / 3))
    assert review["interval"] == [pytest.approx(0.2077, abs=1e-3), pytest.approx(0.9385, abs=1e-3)]
    assert "precision by review\t0.667 (0.21 to 0.94, 3 samples)" in answer.out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0,none.png,right,blue", "line 2 of * client 0 has no sample 'none.png'"),
        ("{client},{sample},wrong,violet", "line 2 of * 'violet' is none of the classes"),
        ("{client},{sample},right,{other}", "line 2 of * is called right: the verdicts are of other labels"),
        ("{client},{sample},maybe,blue", "line 2 of * 'maybe' is no verdict; there are right, wrong, unsure"),
        ("{client},{sample},unsure,\n{client},{sample},wrong,{other}", "line 3 of * has another verdict in line 2"),
        ("{client},{sample},right", "line 2 of * has another number of values"),
    ],
)
def test_wrong_verdicts_are_refused(own: Own, said: Commands, tmp_path: Path, line: str, message: str) -> None:
    row = read_csv(own.ran.folder / "labels.csv")[0]
    row["other"] = "[red]" if row["given"] == "blue" else "blue"
    (tmp_path / "v.csv").write_text("client,sample,verdict,label\n" + line.format(**row) + "\n")
    refused(
        said(program, own.ran.folder, *PLAIN, "--out", tmp_path / "out", "--reviewed", tmp_path / "v.csv"),
        *message.split(" * "),
    )
    assert not (tmp_path / "out").exists()


# ----------------------------------------------------------------------------------------------------------- refusals


def refused(answer: Any, *parts: str) -> None:
    """It ended with 2, in one line that has these parts."""
    assert answer.code == 2, answer.err
    assert answer.out == ""
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert [part for part in parts if part not in answer.err] == []


def with_record(folder: Path, **changes: Any) -> None:
    """Changes ``result.json``."""
    record = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(record | changes))


def test_what_is_no_finished_run_is_refused(fedavg: Ran, said: Commands, tmp_path: Path, copied: Changed) -> None:
    refused(said(program, tmp_path / "nowhere"), "no run is recorded there")
    folder = copied(fedavg)
    with_record(folder, status="stopped", rounds=3)
    refused(said(program, folder), "not finished (stopped after round 3)", f"resume={folder}")
    with_record(folder, status="finished", federation="another")
    refused(said(program, folder), "differs from the run's")


def test_without_recording_the_final_model_is_used_and_said(fedavg: Ran, said: Commands, copied: Changed) -> None:
    folder = copied(fedavg)
    recorded = Probabilities.load(folder / NAME)
    (folder / NAME).unlink()
    answer = said(program, folder, *PLAIN)
    assert answer.code == 0
    (note,) = [line for line in answer.err.splitlines() if "no probabilities" in line]
    assert "audit.record=true" in note
    assert numbers_of(folder / "audit")["source"]["name"] == "final"
    scores = [float(row["label_score"]) for row in read_csv(folder / "audit" / "audit.csv")]
    given = np.array([int(row["given_label"]) for row in read_csv(folder / "audit" / "audit.csv")])
    assert np.allclose(scores, recorded.final[np.arange(len(given)), given], atol=1e-6)
    refused(said(program, folder, "--force", "--probabilities", "window"), "audit.record=true")
    with_record(folder, rounds=4)
    refused(said(program, folder, "--force"), "model.pt was written after round 5, and the run has 4")
    (folder / "model.pt").unlink()
    refused(said(program, folder, "--force"), "neither probabilities.npz nor model.pt", "products=true")


def test_labels_that_are_not_the_federations_are_refused(fedavg: Ran, said: Commands, copied: Changed) -> None:
    folder = copied(fedavg)
    text = (folder / "labels.csv").read_text()
    lines = text.splitlines()
    client, sample, given, *rest = lines[5].split(",")
    other = ",".join([client, sample, str((int(given) + 1) % 10), *rest])
    (folder / "labels.csv").write_text("\n".join([*lines[:5], other, *lines[6:]]) + "\n")
    refused(said(program, folder), "disagree at line 6", f"sample {sample} of client {client} with label {given}")
    (folder / "labels.csv").write_text("\n".join(lines[:-1]) + "\n")
    refused(said(program, folder), f"disagree at line {len(lines)}: no more samples")
    (folder / "labels.csv").write_text(text + lines[-1] + "\n")
    refused(said(program, folder), "no more samples in the federation")
    (folder / "labels.csv").unlink()
    assert said(program, folder, *PLAIN).code == 0, "it is known without the method's labels"
    assert {row["final_label"] for row in read_csv(folder / "audit" / "audit.csv")} == {""}


@pytest.mark.parametrize("column", ["final", "confidence", "flagged"])
def test_another_verdict_of_the_run_is_refused(column: str, fedcorr: Ran, said: Commands, copied: Changed) -> None:
    """Samples and given labels are those of the federation; only the run knows the rest."""
    folder = copied(fedcorr)
    lines = (folder / "labels.csv").read_text().splitlines()
    place = lines[0].split(",").index(column)
    cells = lines[7].split(",")
    cells[place] = {"0": "1", "1": "0"}.get(cells[place], "1")
    (folder / "labels.csv").write_text("\n".join([*lines[:7], ",".join(cells), *lines[8:]]) + "\n")
    refused(said(program, folder), "labels.csv is not what the run wrote", "put back a copy")


def test_an_existing_folder_is_replaced_only_if_asked_and_only_an_audit(
    fedavg: Ran, said: Commands, copied: Changed
) -> None:
    folder = copied(fedavg)
    assert said(program, folder, *PLAIN).code == 0
    (folder / "audit" / "audit.csv").write_text("mine")
    refused(said(program, folder, *PLAIN), "--force")
    assert (folder / "audit" / "audit.csv").read_text() == "mine"
    (folder / "audit" / "verdicts.csv").write_text("hours of work")
    refused(said(program, folder, *PLAIN, "--force"), "holds verdicts.csv, which no audit has written")
    (folder / "audit" / "verdicts.csv").unlink()
    for place in ("clients/0003/verdicts.csv", "clients/notes.txt", "pages/notes.txt", "clients/0003/pages/mine.js"):
        (folder / "audit" / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / "audit" / place).write_text("hours of work")
        refused(said(program, folder, *PLAIN, "--force"), f"holds {place}, which no audit has written")
        (folder / "audit" / place).unlink()
    (folder / "audit" / "corrected.csv").write_text("what another run reads")
    refused(said(program, folder, *PLAIN, "--force"), "corrected.csv, which a run may read", "--corrections")
    (folder / "audit" / "corrected.csv").unlink()
    assert said(program, folder, "--formats", "json", "--force").code == 0
    assert [file.name for file in (folder / "audit").iterdir()] == ["audit.json"]
    assert [file.name for file in folder.glob(".audit*")] == []


def a_file(path: Path, ran: Ran, **changes: Any) -> Path:
    """Probabilities of one's own, from the run's recording."""
    held = Probabilities.load(ran.folder / NAME)
    arrays: dict[str, Any] = {"pred_probs": held.all, "client": held.client, "sample": held.sample}
    np.savez(path, **{name: value for name, value in {**arrays, **changes}.items() if value is not None})
    return path


def test_a_file_of_ones_own(fedavg: Ran, said: Commands, tmp_path: Path) -> None:
    held = Probabilities.load(fedavg.folder / NAME)
    said(program, fedavg.folder, *PLAIN, "--probabilities", "all", "--out", tmp_path / "all")
    order = np.random.default_rng(0).permutation(len(held.client))
    shuffled = {"pred_probs": held.all[order], "client": held.client[order], "sample": held.sample[order]}
    file = a_file(tmp_path / "own.npz", fedavg, **shuffled, test_pred_probs=held.test_all)
    words = ("--probabilities", file, "--out-of-sample", "--out", tmp_path / "own")
    assert said(program, fedavg.folder, *PLAIN, *words).code == 0
    assert (tmp_path / "own" / "audit.csv").read_bytes() == (tmp_path / "all" / "audit.csv").read_bytes()
    one, other = numbers_of(tmp_path / "own"), numbers_of(tmp_path / "all")
    assert one["expected_precision"] == other["expected_precision"]
    assert (one["source"]["in_sample"], other["source"]["in_sample"]) == (False, True)
    plain = a_file(tmp_path / "plain.npz", fedavg)
    assert said(program, fedavg.folder, *PLAIN, "--probabilities", plain, "--out", tmp_path / "plain").code == 0
    assert set(numbers_of(tmp_path / "plain")["expected_precision"]["expected"]) == {None}
    refused(
        said(program, fedavg.folder, "--probabilities", plain, "--min-precision", "0.5", "--out", tmp_path / "x"),
        "test_pred_probs",
    )


def test_wrong_probabilities_are_refused(fedavg: Ran, said: Commands, tmp_path: Path) -> None:
    held = Probabilities.load(fedavg.folder / NAME)

    def changed(at: tuple[int, int], value: float) -> Any:
        values = held.all.astype(np.float64)
        values[at] = value
        return values

    name, client = held.sample[3], held.client[3]
    for changes, parts in (
        ({"pred_probs": changed((3, 0), np.nan)}, (f"client {client}, sample {name}: a probability is nan",)),
        ({"pred_probs": changed((3, 0), 1.1)}, (f"client {client}, sample {name}: a probability is 1.1",)),
        ({"pred_probs": changed((3, 0), -0.1)}, (f"client {client}, sample {name}: a probability is -0.1",)),
        ({"pred_probs": held.all * 0.9}, ("sum to 0.9",)),
        ({"pred_probs": held.all[:-1]}, ("169 rows for 170 samples",)),
        ({"pred_probs": held.all[:, :9] / held.all[:, :9].sum(1, keepdims=True)}, ("9 classes", "10")),
        ({"pred_probs": np.ones((170, 1))}, ("1 classes",)),
        ({"pred_probs": held.all.astype(object)}, ("float [samples, classes]",)),
        ({"pred_probs": None}, ("pred_probs",)),
        ({"client": None}, ("no array 'client'",)),
        (
            {"sample": np.where(np.arange(170) == 3, held.sample[4], held.sample), "client": np.zeros(170, int)},
            ("twice",),
        ),
        ({"sample": np.arange(170) + 1}, ("which the run has not",)),
        ({"test_pred_probs": held.test_all[:-1]}, ("[49, 10]", "[50, 10]")),
    ):
        file = a_file(tmp_path / "own.npz", fedavg, **changes)
        refused(said(program, fedavg.folder, "--probabilities", file, "--out", tmp_path / "out"), *parts)
    (tmp_path / "own.npz").write_bytes(b"no archive")
    refused(said(program, fedavg.folder, "--probabilities", tmp_path / "own.npz"), "cannot be read (it is no archive)")
    np.save(tmp_path / "array.npy", held.all)
    (tmp_path / "array.npy").rename(tmp_path / "own.npz")
    refused(said(program, fedavg.folder, "--probabilities", tmp_path / "own.npz"), "cannot be read (it is no archive)")
    refused(said(program, fedavg.folder, "--probabilities", "windw"), "there are window, all, final, folds")


def test_a_damaged_recording_is_refused(fedavg: Ran, said: Commands, copied: Changed) -> None:
    folder = copied(fedavg)
    data = bytearray((folder / NAME).read_bytes())
    with zipfile.ZipFile(folder / NAME) as archive:
        start = archive.getinfo("window.npy").header_offset + 1000
    data[start] ^= 255
    (folder / NAME).write_bytes(bytes(data))
    refused(said(program, folder), "Bad CRC")
    with np.load(fedavg.folder / NAME) as held:
        np.savez(folder / NAME, **{**held, "round": np.array([5, 5])})
    refused(said(program, folder), "lacks arrays of a recording")
    shutil.copy(fedavg.folder / NAME, folder)
    with_record(folder, rounds=4)
    refused(said(program, folder), "written after round 5")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--folds", "1"], "from 2"),
        (["--min-precision", "80"], "from 0 to 1"),
        (["--label-privacy", "0"], "a number from 1e-12"),
        (["--formats", "pdf"], "there are html, csv, json"),
        (["--corrections", "reviewed"], "--reviewed verdicts.csv"),
        (["--label-privacy", "1", "--issues", "prune_by_class"], "predicted_neq_given or confident_learning"),
        (["--folds", "9", "--by", "clients"], "take at most as many as clients, 8"),
        (["--folds", "171"], "take at most as many as samples, 170"),
    ],
)
def test_wrong_options_are_refused(fedavg: Ran, said: Commands, words: list[str], part: str) -> None:
    refused(said(program, fedavg.folder, *words), part)


@pytest.fixture
def no_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for probabilities, which folds take hours to make, has not checked the options."""

    def asked(*_: Any) -> None:
        raise AssertionError("probabilities were asked for")

    monkeypatch.setattr(source, "find", asked)


@pytest.mark.usefixtures("no_probabilities")
@pytest.mark.parametrize("key", ["train_size", "train_sample"])
def test_a_part_of_a_data_set_has_no_corrected_labels(
    key: str, own: Own, said: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = AuditedRun.open(own.ran.folder)
    config = {**opened.record.config, "dataset": {**opened.record.config["dataset"], key: 30}}
    part = replace(opened, record=replace(opened.record, config=config))
    monkeypatch.setattr(AuditedRun, "open", lambda *_: part)
    refused(said(program, own.ran.folder, "--corrections", "suggested", "--out", tmp_path / "o"), f"dataset.{key}=30")


@pytest.mark.usefixtures("no_probabilities")
def test_images_that_a_page_cannot_show_are_refused_at_once(
    fedavg: Ran, said: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = AuditedRun.open(fedavg.folder)
    images = replace(opened.federation.dataset, train=TensorImages(torch.zeros(2, 2, 8, 8)))
    odd = replace(opened, federation=replace(opened.federation, dataset=images))
    monkeypatch.setattr(AuditedRun, "open", lambda *_: odd)
    refused(said(program, fedavg.folder, "--out", tmp_path / "o", "--folds", "2"), "images of 2 channels")
    for words in (("--formats", "csv,json"), ("--thumbnails", "none")):
        answer = said(program, fedavg.folder, "--out", tmp_path / "o", *words)
        assert "probabilities were asked for" in answer.err


def test_files_of_a_desktop_do_not_keep_an_audit_from_being_replaced(
    fedavg: Ran, said: Commands, copied: Changed
) -> None:
    folder = copied(fedavg)
    assert said(program, folder, *PLAIN).code == 0
    (folder / "audit" / ".DS_Store").touch()
    assert said(program, folder, *PLAIN, "--force").code == 0
    assert sorted(file.name for file in (folder / "audit").iterdir()) == ["audit.csv", "audit.json"]


# -------------------------------------------------------------------------------------------------------------- folds


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ({"_target_": "ResNet18ImageNet", "pretrained": "imagenet"}, "model.pretrained=imagenet"),
        ({"_target_": "ResNet50", "pretrained": "/weights.pth"}, "model.pretrained=/weights.pth"),
        ({"_target_": "TorchvisionClassifier", "name": "resnet18", "weights": "DEFAULT"}, "model.weights=DEFAULT"),
        ({"_target_": "ResNet18ImageNet", "pretrained": "none"}, None),
        ({"_target_": "TorchvisionClassifier", "name": "resnet18", "weights": None}, None),
    ],
)
def test_folds_of_a_run_from_pretrained_weights_are_refused(
    model: dict[str, Any], key: str | None, fedavg: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an earlier audit has kept folds, which may have been trained from scratch."""
    opened = AuditedRun.open(fedavg.folder)
    changed = replace(opened, record=replace(opened.record, config={**opened.record.config, "model": model}))
    kept = Probabilities.load(fedavg.folder / NAME)
    monkeypatch.setattr(folds, "_kept", lambda *_: kept)
    if key is None:
        assert len(folds.out_of_fold(changed, 2, "samples", print)) == 2
        return
    with pytest.raises(UserError, match=re.escape(key) + ".*use --probabilities window, all or final"):
        folds.out_of_fold(changed, 2, "samples", print)


def test_a_fold_that_learned_nothing_is_not_kept(fedavg: Ran, tmp_path: Path) -> None:
    opened = AuditedRun.open(fedavg.folder)
    config = {**opened.record.config, "on_nonfinite": "drop", "train": {**opened.record.config["train"], "lr": 1e300}}
    diverging = replace(opened, folder=tmp_path, record=replace(opened.record, config=config))
    with pytest.raises(loop.NonFiniteError, match=r"all \d+ local trainings of a fold .* learned nothing"):
        folds.out_of_fold(diverging, 2, "samples", print)
    assert not (tmp_path / "folds").exists()


def test_a_fold_leaves_threads_and_processes_as_they_were(
    fedavg: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    seen: list[int] = []

    class Watched:
        def close(self) -> None:
            seen.append(-1)

    def fails(*_: Any, **__: Any) -> None:
        seen.append(torch.get_num_threads())
        raise ValueError("no settings")

    monkeypatch.setattr(auto, "settled", lambda *_: (Watched(), ""))
    monkeypatch.setattr(loop, "Settings", fails)
    torch.set_num_threads(before + 1)
    pools = threadpoolctl.threadpool_info()
    try:
        opened = replace(AuditedRun.open(fedavg.folder), folder=tmp_path)
        with pytest.raises(ValueError, match="no settings"):
            folds.out_of_fold(opened, 2, "samples", print)
        assert seen == [opened.record.config["threads"], -1], "the executor is closed, whatever fails"
        assert torch.get_num_threads() == before + 1
        assert threadpoolctl.threadpool_info() == pools
    finally:
        torch.set_num_threads(before)


def test_a_fold_without_a_sample_is_refused_and_as_many_as_are_advised_are_not() -> None:
    federation: Any = SimpleNamespace(with_data=[0, 3], counts=[2, 2])
    with pytest.raises(UserError, match=r"--folds 4: 1 of them would have no sample.* 2; take at most that many"):
        folds.assignment(federation, 1, 4, "samples")
    assert sorted(folds.assignment(federation, 1, 2, "samples")) == [0, 0, 1, 1]


def test_the_rounds_of_all_folds_are_told(fedavg: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds may be evaluated after different rounds, where clients have lost all of their samples."""
    opened = AuditedRun.open(fedavg.folder)
    held, middle = Probabilities.load(fedavg.folder / NAME), len(opened.samples) // 2
    given = [
        folds.Fold(part, replace(held, window=held.window[part], window_rounds=np.array(rounds)))
        for part, rounds in (
            (np.arange(middle), [1, 2]),
            (np.arange(middle, len(opened.samples)), [1, 2, 4]),
        )
    ]
    monkeypatch.setattr(folds, "out_of_fold", lambda *_: given)
    where, _, _ = source.of_folds(opened, Options(folds=2), print)
    assert where.rounds == (1, 2, 4)
    assert "average of 2 early rounds or average of 3 early rounds;" in where.description


def told_by(kind: str, ran: Ran) -> dict[str, Any]:
    """Fields of a recording by which one kind is right on every test sample, and the others know nothing."""
    recorded = Probabilities.load(ran.folder / NAME)
    tested = AuditedRun.open(ran.folder).federation.dataset.test_labels[recorded.tested]
    right = np.eye(10, dtype=np.float32)[tested]
    return {f"test_{name}": right if name == kind else np.full_like(right, 0.1) for name in ("window", "all", "final")}


@pytest.mark.parametrize("kind", ["window", "all", "final"])
def test_the_test_set_chooses_between_what_the_run_recorded(
    kind: str, fedavg: Ran, said: Commands, copied: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(fedavg)
    recorded = replace(Probabilities.load(folder / NAME), **told_by(kind, fedavg))
    recorded.save(folder / NAME)
    few = said(program, folder, *PLAIN, "--out", folder / "few")
    assert "why these\twindow by default: 50 test samples are too few to compare it with others\n" in few.out
    assert numbers_of(folder / "few")["source"]["choice"]["compared"] == []
    monkeypatch.setattr(choice, "ENOUGH", 50)
    answer = said(program, folder)
    found = numbers_of(folder / "audit")["source"]
    assert (found["name"], found["choice"]["taken"]) == (kind, kind)
    assert [one["name"] for one in found["choice"]["compared"]] == ["window", "all", "final"]
    rounds = {"window": recorded.window_rounds, "all": recorded.rounds, "final": np.array([5])}[kind]
    assert found["rounds"] == rounds.tolist()
    assert f"why these\ton the test set {kind} finds labels that were spoiled on purpose best: " in answer.out
    assert f"<p>{found['choice']['reason'].capitalize()[:30]}" in (folder / "audit" / "index.html").read_text()
    scores = [float(row["label_score"]) for row in read_csv(folder / "audit" / "audit.csv")]
    given = AuditedRun.open(folder).samples.given
    assert np.allclose(scores, getattr(recorded, kind)[np.arange(len(given)), given], atol=1e-6)
    for asked in ("window", "final"):
        forced = said(program, folder, *PLAIN, "--probabilities", asked, "--out", folder / asked)
        assert "why these" not in forced.out
        source_of = numbers_of(folder / asked)["source"]
        assert (source_of["name"], source_of["choice"]) == (asked, None)


@pytest.mark.parametrize("kind", ["window", "all", "final"])
def test_the_test_set_chooses_between_what_folds_recorded(
    kind: str, fedavg: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = AuditedRun.open(fedavg.folder)
    held = replace(Probabilities.load(fedavg.folder / NAME), **told_by(kind, fedavg))
    parts = np.array_split(np.arange(len(opened.samples)), 5)
    given = [
        folds.Fold(part, replace(held, **{name: getattr(held, name)[part] for name in ("window", "all", "final")}))
        for part in parts
    ]
    monkeypatch.setattr(folds, "out_of_fold", lambda *_: given)
    where, _, _ = source.of_folds(opened, Options(folds=5), print)
    assert where.choice is not None
    assert where.choice.taken == "window", "50 test samples, though each is scored by five models, are few"
    monkeypatch.setattr(choice, "ENOUGH", 50)
    where, table, test = source.of_folds(opened, Options(folds=5), print)
    assert (where.name, where.choice.taken if where.choice else None) == ("folds", kind)
    assert np.array_equal(next(table.blocks()), getattr(held, kind).astype(np.float64))
    assert test is not None
    assert (test.probabilities.argmax(1) == test.labels).all()
    assert test.model is not None
    assert [np.flatnonzero(test.model == place).tolist() for place in range(5)] == [part.tolist() for part in parts]
    forced, _, _ = source.of_folds(opened, Options(folds=5, probabilities="all"), print)
    assert forced.choice is None


def spied(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The positions that are in tasks of clients, by fold."""
    trained: list[set[int]] = []
    without, tasks = folds.train_without, loop._Round.tasks

    def begun(*arguments: Any) -> Any:
        trained.append(set())
        return without(*arguments)

    def seen(self: Any, *arguments: Any) -> Any:
        found = tasks(self, *arguments)
        trained[-1].update(position for task in found for position in task.samples.index.tolist())
        return found

    monkeypatch.setattr(folds, "train_without", begun)
    monkeypatch.setattr(loop._Round, "tasks", seen)
    return trained


def test_folds_repeat_a_method_with_short_keys(tmp_path: Path) -> None:
    """Its record holds the keys as values, no longer as what they stand for."""
    ran = run([*TINY, "method=forward_correction", "method.T_wu=1", "method.T=1"], tmp_path / "run")
    assert not audit(ran.folder, Options(folds=2, by="samples", formats=())).source.in_sample


@pytest.mark.parametrize("by", ["samples", "clients"])
def test_no_sample_is_scored_by_a_model_that_saw_it(
    by: Any, fedavg: Ran, copied: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(fedavg)
    trained = spied(monkeypatch)
    first = audit(folder, Options(folds=3, by=by, formats=()))
    opened = AuditedRun.open(folder)
    assigned = folds.assignment(opened.federation, opened.record.data_seed, 3, by)
    assert len(trained) == 3
    everything = set(opened.position.tolist())
    for number in range(3):
        held_out = set(opened.position[assigned == number].tolist())
        assert held_out
        assert trained[number] <= everything - held_out
        assert len(trained[number]) > len(everything - held_out) / 2
        kept = Probabilities.load(folder / "folds" / f"3-{by}" / f"{number}.npz")
        names = [opened.samples.name[i] for i in np.flatnonzero(assigned == number).tolist()]
        assert kept.sample.tolist() == names
    if by == "clients":
        assert [len(set(assigned[opened.samples.client == c])) for c in range(8)] == [1] * 8
    else:
        counts = [np.bincount(assigned[opened.samples.client == c], minlength=3) for c in range(8)]
        assert all(np.ptp(count) <= 1 for count in counts)
    assert not first.source.in_sample
    assert first.precision.test_samples == 50
    again = audit(folder, Options(folds=3, by=by, formats=(), score="self_confidence"))
    assert len(trained) == 3, "what folds have given is kept for audits with other options"
    assert np.array_equal(again.samples.predicted, first.samples.predicted)


def test_a_class_may_be_absent_from_a_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*TINY, "method=fedavg", *ONE_STAGE, "partition=shards", "partition.shards=1", "partition.num_clients=6"]
    ran = run(words, tmp_path / "run")
    trained = spied(monkeypatch)
    found = audit(
        ran.folder,
        Options(probabilities="folds", folds=3, by="clients"),
    )
    federation = AuditedRun.open(ran.folder).federation
    present = [len(torch.unique(federation.given[sorted(seen)])) for seen in trained]
    assert min(present) < federation.num_classes
    assert np.isfinite(found.samples.suspicion_score).all()


def test_a_fold_trains_a_stage_with_its_own_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*BY_NAME["forward_correction"].words, "+train/optimizer@method.stages.usual.train=adamw"]
    ran = run(words, tmp_path / "run")
    used: list[str] = []

    def noted(cfg: DictConfig, *arguments: Any) -> Any:
        used.append(type(compose.build(cfg.method.stages.usual.train.optimizer)).__name__)
        return train_without(cfg, *arguments)

    train_without = folds.train_without
    monkeypatch.setattr(folds, "train_without", noted)
    audit(ran.folder, Options(probabilities="folds", folds=2, formats=()))
    assert used == ["AdamW"] * 2


@pytest.mark.parametrize(
    ("place", "value", "part"),
    [
        (("method", "sampler", "_target_"), "os.system", "os.system"),
        (("method", "local", "cross_entropy", "_target_"), "flnl.parts.samplers.uniform.Uniform", "Uniform"),
        (("method", "sampler", "fraction"), "${oc.env:HOME}", "interpolations are for the command line"),
        (("train", "lr"), "${oc.env:HOME}", "train.lr"),
        (("train", "optimizer", "_target_"), "os.system", "os.system"),
        (("threads",), 10**6, "threads"),
        (("method",), "fedavg", "method is no mapping"),
    ],
)
def test_a_record_has_no_other_code_run_in_a_fold(place: tuple[str, ...], value: Any, part: str, fedavg: Ran) -> None:
    opened = AuditedRun.open(fedavg.folder)
    config = json.loads(json.dumps(opened.record.config))
    *above, last = place
    node = config
    for key in above:
        node = node[key]
    node[last] = value
    with pytest.raises(UserError, match=re.escape(part)):
        folds.out_of_fold(
            replace(opened, folder=Path("nowhere"), record=replace(opened.record, config=config)), 2, "samples", print
        )


# ------------------------------------------------------------------------------------------------------ label privacy


def test_labels_are_drawn_once_for_each_client(
    fedavg: Ran, said: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    randomised = RandomisedResponse.randomised

    def counted(self: RandomisedResponse, labels: Any, rng: Any) -> Any:
        drawn.append(len(labels))
        return randomised(self, labels, rng)

    monkeypatch.setattr(RandomisedResponse, "randomised", counted)
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    secret.chmod(0o600)
    for words in ([], ["--issues", "confident_learning", "--adjust", "--clients"]):
        drawn.clear()
        out = tmp_path / str(len(words))
        private = ("--label-privacy", "9", "--secret", secret, "--out", out)
        assert said(program, fedavg.folder, *PLAIN, *private, *words).code == 0
        assert len(drawn) == 8
        assert sum(drawn) == 170
    plain = audit(fedavg.folder, Options(formats=()))
    found = numbers_of(tmp_path / "0")
    assert found["source"]["label_privacy"] == 9.0
    assert np.abs(np.array(found["thresholds"]) - plain.joint.thresholds).max() < 0.1
    rough = audit(fedavg.folder, Options(formats=(), label_privacy=1.0, secret=secret))
    assert np.abs(rough.joint.thresholds - plain.joint.thresholds).max() > 0.01
    assert np.array_equal(rough.samples.label_score, plain.samples.label_score), "scores are each client's own"
    assert PURPOSE == "audit label privacy"


def what_a_client_gets(folder: Path, client: int) -> dict[str, str]:
    """The files of a client's own audit."""
    below = folder / "clients" / f"{client:04d}"
    return {file.relative_to(below).as_posix(): file.read_text() for file in below.rglob("*") if file.is_file()}


@pytest.mark.parametrize("words", [(), ("--label-privacy", "0.1")])
def test_no_client_gets_a_digest_of_the_labels_of_others(
    words: tuple[str, ...], fedavg: Ran, said: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacker tries each class for a label of another client, and looks for the fingerprint that would have.

    In the audit of all, which has the fingerprint, it finds every label that it is after.
    """
    seen: list[Any] = []
    fingerprint = build._fingerprint

    def spied(dataset: str, drawn: Any) -> str:
        seen.append((dataset, drawn))
        return fingerprint(dataset, drawn)

    monkeypatch.setattr(build, "_fingerprint", spied)
    out = tmp_path / "out"
    assert said(program, fedavg.folder, "--clients", "--thumbnails", "none", "--out", out, *words).code == 0
    dataset, drawn = seen[-1]
    of_all = (out / "audit.json").read_text() + (out / "index.html").read_text()
    of_one = "".join(what_a_client_gets(out, 0).values())
    for victim in np.flatnonzero(drawn.owner == 3)[:5]:
        found: dict[str, list[int]] = {of_all: [], of_one: []}
        for k in range(10):
            given = np.where(np.arange(len(drawn.given)) == victim, k, drawn.given)
            digest = fingerprint(dataset, replace(drawn, given=given))
            for text, classes in found.items():
                if digest[:8] in text:
                    classes.append(k)
        assert found == {of_all: [drawn.given[victim]], of_one: []}


def test_what_a_client_gets_depends_on_what_others_draw_alone(
    fedavg: Ran, said: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All labels of the others change, but not what they draw: not a byte of what the client gets does."""
    opened = AuditedRun.open(fedavg.folder)
    others = opened.samples.client != 0
    changed = replace(opened.samples, given=np.where(others, (opened.samples.given + 1) % 10, opened.samples.given))
    digest = hashlib.sha256(b"of the other labels").hexdigest()
    runs = (opened, replace(opened, samples=changed, federation=replace(opened.federation, fingerprint=digest)))
    draw = np.random.default_rng(0).integers(0, 10, len(others))
    monkeypatch.setattr(pooling, "drawn_labels", lambda *_: draw)
    recording = source.of_recording(opened, fedavg.folder / NAME, Options())
    monkeypatch.setattr(source, "find", lambda *_: recording)
    got = []
    for number, one in enumerate(runs):
        monkeypatch.setattr(AuditedRun, "open", lambda *_, one=one: one)
        out = tmp_path / str(number)
        words = ("--label-privacy", "2", "--clients", "--thumbnails", "none", "--issues", "confident_learning")
        assert said(program, fedavg.folder, "--out", out, *words).code == 0
        got.append(out)
    assert what_a_client_gets(got[0], 0) == what_a_client_gets(got[1], 0)
    assert what_a_client_gets(got[0], 1) != what_a_client_gets(got[1], 1)


def test_an_audit_draws_the_same_again_and_nobody_can_from_the_seed(
    fedavg: Ran, said: Commands, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    answers = []
    for number in range(2):
        out = tmp_path / str(number)
        words = ("--label-privacy", "0.5", "--clients", "--secret", secret, "--out", out)
        answers.append(said(program, fedavg.folder, *PLAIN, *words))
        assert answers[-1].code == 0
    assert [f"made {secret}" in answer.err for answer in answers] == [True, False]
    assert numbers_of(tmp_path / "0") == numbers_of(tmp_path / "1")
    found = numbers_of(tmp_path / "0" / "clients" / "0003")
    text = "".join(file.read_text() for file in (tmp_path / "0").rglob("*") if file.is_file())
    assert secret.read_bytes().hex() not in text
    assert str(secret) not in text
    samples = AuditedRun.open(fedavg.folder).samples
    response = RandomisedResponse(0.5, 10)
    parts = [samples.given[samples.client == c] for c in samples.clients]
    again = [
        response.randomised(own, stream(found["seed"], PURPOSE, c))
        for c, own in zip(samples.clients, parts, strict=True)
    ]
    counts = RandomisedSums.of(np.concatenate(again), np.full((len(samples), 10), 0.1)).recovered_counts(response)
    assert np.abs(counts - found["n"]).max() > 1
    refused(said(program, fedavg.folder, "--secret", secret), "--secret", "add --label-privacy")
    inside = fedavg.folder / "secret"
    refused(said(program, fedavg.folder, "--label-privacy", "1", "--secret", inside), "which others may get")
    assert not inside.exists()


# ------------------------------------------------------------------------------------------------------------ stopped


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_writing_leaves_the_old_folder(
    number: signal.Signals, code: int, fedavg: Ran, said: Commands, copied: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(fedavg)
    said(program, folder, *PLAIN)
    before = {file.name: file.read_bytes() for file in (folder / "audit").iterdir()}

    def stopped(*_: Any) -> None:
        signal.raise_signal(number)

    handler = signal.getsignal(signal.SIGTERM)
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
    monkeypatch.setattr(writing, "write_json", stopped)
    try:
        answer = said(program, folder, *PLAIN, "--force", "--score", "self_confidence")
    finally:
        signal.signal(signal.SIGINT, interrupt)
    assert answer.code == code
    assert signal.getsignal(signal.SIGTERM) == handler
    assert {file.name: file.read_bytes() for file in (folder / "audit").iterdir()} == before
    assert [file.name for file in folder.glob(".audit*")] == []


def killed(folder: Path, at: str) -> None:
    """Let another process replace the folder, and kill it there."""
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom flnl.storage import whole_folder\n"
        "def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"if {at!r} == 'exchange': whole_folder._exchange = die\n"
        f"if {at!r} == 'delete': whole_folder.shutil.rmtree = die\n"
        "with whole_folder.written_whole(Path(sys.argv[1])) as fresh:\n"
        "    (fresh / 'a').write_text('new')\n"
        f"    if {at!r} == 'write': die()\n"
        "    (fresh / 'b').write_text('new')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code, str(folder)], env=environment)
    assert done.returncode == -signal.SIGKILL


def test_a_killed_process_leaves_the_old_folder_or_the_new_one(tmp_path: Path) -> None:
    folder = tmp_path / "audit[1]"
    for at, expected in (("write", "old"), ("exchange", "old"), ("delete", "new")):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name in "ab":
            (folder / name).write_text("old")
        killed(folder, at)
        assert {file.name: file.read_text() for file in folder.iterdir()} == dict.fromkeys("ab", expected)
        assert len(list(tmp_path.iterdir())) == 2, "and what it was writing"
        with written_whole(folder) as fresh:
            (fresh / "c").write_text("next")
            with written_whole(folder.with_name("audit")):
                pass
            assert fresh.exists(), "what another process is writing stays"
        assert [file.name for file in folder.iterdir()] == ["c"]
        shutil.rmtree(folder.with_name("audit"))
        assert [path.name for path in tmp_path.iterdir()] == [folder.name], "what was left over is gone"


def test_a_folder_that_cannot_be_exchanged_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "audit"
    folder.mkdir()
    (folder / "old").touch()
    monkeypatch.setattr("sys.platform", "another")
    with written_whole(folder) as fresh:
        (fresh / "new").touch()
    assert [file.name for file in folder.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["audit"]


def test_it_is_called_at_the_root_like_a_run() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    for words, code, start in ((["--help"], 0, "usage: flnl audit"), (["nowhere"], 2, "error: nowhere: no run is")):
        command = [sys.executable, "-m", "src.audit", *words]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert (done.returncode, (done.stdout + done.stderr).startswith(start)) == (code, True)


def test_the_function_writes_what_the_command_writes(fedavg: Ran, said: Commands, tmp_path: Path) -> None:
    found = audit(fedavg.folder, Options(out=tmp_path / "one", formats=("csv", "json")))
    said(program, fedavg.folder, *PLAIN, "--out", tmp_path / "two")
    for name in ("audit.csv", "audit.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert len(found.detailed) == 170
    best = np.argsort(-Probabilities.load(fedavg.folder / NAME).window[found.detailed], axis=1, kind="stable")[:, :3]
    assert found.likeliest.tolist() == best.tolist()
    with pytest.raises(UserError, match="--force"):
        performing.perform(fedavg.folder, Options(out=tmp_path / "one", formats=("csv",)))
    assert (
        audit(fedavg.folder, Options(out=tmp_path / "one", formats=())).samples.rank.tolist()
        == found.samples.rank.tolist()
    )
    assert Verdict("wrong", None).label is None
