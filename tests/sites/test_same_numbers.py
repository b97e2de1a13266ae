"""Clients that are sites give the bits of clients in the server's process, and their labels are those of the run."""

import csv
from pathlib import Path
from typing import Any

import pytest

from flnl.core.errors import UserError
from flnl.core.messages import Kept
from flnl.engine.model_file import ModelFile
from flnl.parts.messages import LastModel
from flnl.sites.traffic import Traffic
from tests.properties.reference import References
from tests.properties.runs import Ran, difference, run
from tests.registry import BY_NAME, NORMED, REGISTRY, Entry

REVEALED = (
    *("LabelCounts", "ClassLosses", "ClientCentroids", "ClassConfidence", "ClassSubspaces", "SentSampleLosses"),
    *("Energies", "Neighbours", "MeanLoss"),
)
REVEALING = f"allow=[{','.join(REVEALED)}]"
"""Everything that any method would send and that sites keep to themselves unless they are told."""
FAST = ("fedprox",)
"""Entries that are run with every change; others need something else below, or come at night."""
SECRET = ("fedpeer", "fedcorr_and_fedpeer")
"""The beginnings of names of entries whose draws are the sites' own, unlike those of a simulation."""
OF_THE_TRUTH = "by_true_rates", "of_an_oracle"


def words(entry: Entry) -> list[str]:
    """An entry's words without its executor."""
    return [word for word in entry.words if not word.startswith("executor=")]


def at_sites(run_words: list[str], folder: Path, *more: str) -> Ran:
    """A run with clients as sites that let everything out."""
    return run(run_words, folder, "executor=sites", f"executor.{REVEALING}", *more)


def rows(path: Path) -> list[dict[str, Any]]:
    """A table of labels without what only a simulation knows: the truth, and that a method has judged any client."""
    with path.open(newline="") as file:
        table = [{key: value for key, value in row.items() if key != "true"} for row in csv.DictReader(file)]
    return [{**row, "flagged": row["flagged"] == "1"} for row in table]


def labels_at_sites(folder: Path) -> list[dict[str, Any]]:
    """What all sites of a run have written, by client."""
    tables = sorted(folder.glob("sites/*/runs/*/labels.csv"), key=lambda path: int(path.relative_to(folder).parts[1]))
    return [row for table in tables for row in rows(table)]


def assert_same(there: Ran, here: Ran) -> None:
    """Equal server states, counters and metrics of training; sites' tables are the run's; nothing is left here."""
    assert difference(there.state.server, here.state.server) is None
    assert there.state.counters == here.state.counters
    there_lost, here_lost = ([line["loss"] for line in one.lines if "loss" in line] for one in (there, here))
    assert difference(there_lost, here_lost) is None
    assert labels_at_sites(there.folder) == rows(here.folder / "labels.csv")
    assert not (there.folder / "labels.csv").exists()
    weights = ModelFile.load(there.folder).weights
    for file in there.folder.glob("sites/*/runs/*/model.pt"):
        assert difference(ModelFile.load(file.parent).weights, weights) is None
    for client in there.state.clients:
        state = there.state.client(client)
        assert {type(value) for value in state.extras} <= {Kept, LastModel}
        assert not state.terms
        assert (state.labels, state.weight, state.momentum) == (None, None, None)


@pytest.mark.parametrize(
    "entry",
    [
        entry if entry.name in FAST else pytest.param(entry, marks=pytest.mark.slow)
        for entry in REGISTRY
        if not entry.testing and not entry.name.startswith(SECRET) and not entry.name.endswith(OF_THE_TRUTH)
    ],
    ids=str,
)
def test_a_method_gives_the_same_bits(entry: Entry, references: References, tmp_path: Path) -> None:
    there = at_sites(words(entry), tmp_path / "run")
    assert_same(there, references.run(entry.words))


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(
            (
                *(
                    "method=feddyn",
                    "method.stages.training.rounds=2",
                    "+method.stages.again={rounds:2,restart:true}",
                    "fraction=0.5",
                ),
                *("train.keep_momentum=true", "train.momentum=0.5", "partition=fedcorr", "partition.alpha=1.0"),
            ),
            id="a stage that restarts, momentum, unequal sites, half of them",
        ),
        pytest.param(
            ("method=dividemix", "method.T_wu=1", "method.T=1", "fraction=0.3", *NORMED),
            id="two networks with batch norm",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("method=fedpeer", "method.peer_dist=global_true", "rounds=2", "fraction=0.5"), id="labels in the clear"
        ),
    ],
)
def test_what_registry_entries_lack_gives_the_same_bits(more: tuple[str, ...], tmp_path: Path) -> None:
    entry = Entry("more", more, {})
    assert_same(at_sites(words(entry), tmp_path / "there"), run(entry.words, tmp_path / "here"))


def test_a_run_stopped_and_gone_on_with_is_the_same(references: References, tmp_path: Path) -> None:
    entry = BY_NAME["feddiv"]
    broken = tmp_path / "broken"
    at_sites(words(entry), broken, f"max_rounds={entry.cuts[0]}")
    assert_same(at_sites(words(entry), broken, "resume=true"), references.run(entry.words))


def test_changed_labels_are_counted_after_a_run_has_gone_on(references: References, tmp_path: Path) -> None:
    """Those of the clients that the next correction does not ask, too."""
    entry, names = BY_NAME["fedcorr_parallel"], ("asked", "relabelled", "changed")
    at_sites(words(entry), tmp_path / "broken", "max_rounds=1")
    there = at_sites(words(entry), tmp_path / "broken", "resume=true").corrections
    here = references.run(entry.words).corrections
    assert here[1]["asked"] < here[0]["asked"]
    assert [[line[name] for name in names] for line in there] == [[line[name] for name in names] for line in here]


def test_bytes_are_those_that_are_counted(tmp_path: Path) -> None:
    """Values as the run counts them; frames at most 3 % and 2 KB a message more. And FedCorr gives the same bits."""
    entry = Entry("fedcorr", (*BY_NAME["fedcorr_parallel"].overrides, "method.T1=1", "method.T3=1"), {})
    done = at_sites(words(entry), tmp_path / "there")
    assert_same(done, run(entry.words, tmp_path / "here"))
    assert sum(row["final"] != row["given"] for row in labels_at_sites(done.folder)) > 10
    crossed = {row[:2]: row[2:] for row in Traffic.read(done.folder / "crossed.csv").rows()}
    assert crossed["up", "LidScore"] == (8, 8 * 8)
    for direction in ("down", "up"):
        sizes = {what: size for (of, what), (_, size) in crossed.items() if of == direction}
        count, frames = crossed[direction, "frames"]
        last = sum(sizes.pop(what, 0) for what in ("last model", "LidState"))
        assert sum(sizes.values()) - frames == done.record[f"bytes_{direction}"]
        assert 0 < frames - last - done.record[f"bytes_{direction}"] < 0.03 * frames + 2048 * count


def scores(done: Ran) -> list[tuple[float | None, float | None]]:
    """Validation accuracy and loss at each evaluation."""
    lines = [line for line in done.lines if "accuracy" in line]
    return [(line.get("validation_accuracy"), line.get("validation_loss")) for line in lines]


def test_models_are_scored_on_what_sites_hold_out(tmp_path: Path) -> None:
    """As in a simulation, where the loss is a mean that is not rounded to ``2**-32``."""
    entry = Entry("held out", ("method=fedavg", "rounds=2", "partition=fedcorr", "eval.validation=0.3"), {})
    here = scores(run(entry.words, tmp_path / "here"))
    there = scores(at_sites(words(entry), tmp_path / "there", "executor.min_count=0"))
    assert len(here) == 2
    assert [accuracy for accuracy, _ in there] == [accuracy for accuracy, _ in here]
    assert [loss for _, loss in there] == [pytest.approx(loss, abs=1e-8) for _, loss in here]


def test_a_site_of_few_held_out_samples_tells_nothing_of_them(tmp_path: Path) -> None:
    entry = Entry("held out", ("method=fedavg", "rounds=1", "eval.validation=0.3"), {})
    assert scores(at_sites(words(entry), tmp_path / "there")) == [(None, None)]


def test_sites_may_keep_the_numbers_of_changed_labels_to_themselves(tmp_path: Path) -> None:
    entry = Entry("fedcorr", (*BY_NAME["fedcorr_parallel"].overrides, "method.T1=1", "max_rounds=2"), {})
    told = at_sites(words(entry), tmp_path / "told")
    silent = at_sites(words(entry), tmp_path / "silent", "executor.counts=false")
    assert difference(told.state.server, silent.state.server) is None
    (correction,) = told.corrections
    assert correction["relabelled"] > 0
    assert {"relabelled", "changed"}.isdisjoint(silent.corrections[0])
    assert told.record["metrics"]["changed"] > 0
    assert {"flagged", "changed"}.isdisjoint(silent.record["metrics"])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("co_teaching_by_true_rates", "true_noise_rates is given the true labels, and those of digits are not known"),
        (
            "judged",
            r"site 0, .* refused: the server's configuration: .*'tests\.properties\.parts\.\w+', which no config",
        ),
    ],
)
def test_a_method_that_sites_cannot_run_is_refused_by_name(name: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=why):
        at_sites(words(BY_NAME[name]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
