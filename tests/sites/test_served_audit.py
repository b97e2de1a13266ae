"""The audit of a run of ``flnl serve``: its numbers are those of sites in one process, and of pooled labels."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from flnl.audit.options import Options
from flnl.audit.performing import perform as perform_pooled
from flnl.commands import site as site_command
from flnl.core.errors import UserError
from flnl.sites import audit, greeting, link, relayed, sockets
from flnl.sites.audit import federation_of, over_transport
from flnl.sites.federation import SOCKET
from flnl.sites.policy import Ledger
from flnl.sites.relayed import Relayed
from tests.properties.runs import run
from tests.sites.hospitals import DATA, QUICK, SIZES, set_values, write_data
from tests.sites.relay_here import Node, RelayHere
from tests.sites.test_audit import numbers, rows
from tests.sites.test_site import Sites

WORDS = ("method=fedavg", "rounds=3", "fraction=1.0")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module, name in ((relayed, "ASKS"), (relayed, "AGAIN"), (relayed, "LOOKS"), (greeting, "WAITS")):
        monkeypatch.setattr(module, name, 0.0)
    monkeypatch.setattr(link, "WAITS", 0.001)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Served(Sites):
    """A run of ``flnl serve``, and its audits over the same transport."""

    output: Path

    def audit(self, options: Options, nodes: dict[str, Node] | None = None, patience: float | None = None) -> Path:
        federation = federation_of(self.output, options)
        path = federation.folder / SOCKET
        transport = Relayed(sockets.listening(path, 0o600))
        RelayHere(path, self.nodes() if nodes is None else nodes).start()
        try:
            over_transport(transport, federation, self.output, options, patience)
        finally:
            transport.close()
            path.unlink()
        return self.output / "audit"

    def run_of(self, name: str) -> Path:
        (found,) = (self.folders[name].folder / "runs").iterdir()
        return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Served:
    """Finished, at sites that allow an audit."""
    folder = tmp_path_factory.mktemp("served")
    sites = Served(folder, data, allow=["CountedLabels"])
    sites.output = folder / "run"
    sites.serve(sites.output, WORDS)
    return sites


OF_TEST = (
    "federation",
    "measured",
    "options",
    "notes",
    "source",
    "expected_precision",
    "wrong_labels",
    "dataset",
    "key",
)
"""What tells of the test set, which the server of a simulation has, or of files."""


def compared(folder: Path) -> dict[str, Any]:
    found = {key: one for key, one in numbers(folder).items() if key not in OF_TEST}
    return {**found, "by_client": [{**row, "wrong_labels": None} for row in found["by_client"]]}


def samples_of(folder: Path) -> list[list[str]]:
    """What an audit says of each of a site's samples, whatever they are called."""
    kept = ("given_label", "predicted_label", "suspicion_score", "is_label_issue", "rank")
    return [[row[key] for key in kept] for row in rows(folder / "audit.csv")]


def test_numbers_are_those_of_the_same_samples_here(served: Served, data: Path, tmp_path: Path) -> None:
    """Pooled, and at sites in one process; the server has no sample, and each site a page of its own."""
    words = [*DATA, f"dataset.root={data}", "dataset.file=all.npz", "partition=file", "noise=none", *QUICK, *WORDS]
    here = run(words, tmp_path / "here", "executor=sequential").folder
    perform_pooled(here, Options(clients=True, probabilities="final"))
    apart = run(words, tmp_path / "apart", "executor=sites", "executor.allow=[CountedLabels]").folder
    audit.perform(apart, Options(clients=True))
    folder = served.audit(Options(force=True))
    told = compared(folder)
    assert told == compared(apart / "audit") == compared(here / "audit")
    assert sum(row["issues"] for row in told["by_client"]) > 20
    assert not {"audit.csv", "corrected.csv", "clients"} & {path.name for path in folder.iterdir()}
    assert not any("data:image" in path.read_text() for path in folder.rglob("*.js"))
    for name in SIZES:
        mine, pooled = served.run_of(name) / "audit", here / "audit" / "clients" / name
        assert samples_of(mine) == samples_of(pooled)
        assert len(samples_of(mine)) == SIZES[name]
        assert any("data:image" in path.read_text() for path in mine.rglob("*.js")) or SIZES[name] == 1
        releases = Ledger(served.folders[name].folder / "ledger.jsonl", b"").releases
        assert [(one.type, one.epsilon) for one in releases] == [("CountedLabels", None)]


def test_from_suggestions_over_a_review_to_a_second_training(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Suggested labels replace suggested ones, never those that the site has reviewed without the server."""
    served.start_again()  # the sites know the run from their folders
    folder, name = served.folders["north"].folder, served.run_of("north").name
    served.audit(Options(force=True, corrections="suggested"))
    issue = next(row for row in rows(served.run_of("north") / "audit" / "audit.csv") if row["is_label_issue"] == "True")
    given = {row["sample"]: row["given_label"] for row in rows(served.run_of("north") / "audit" / "audit.csv")}
    corrected = served.run_of("north") / "corrected.csv"
    assert {row["id"]: row["label"] for row in rows(corrected)} != given
    verdicts = tmp_path / "verdicts.csv"
    verdicts.write_text(f"client,sample,verdict,label\nnorth,{issue['sample']},wrong,{issue['predicted_label']}\n")
    site_command.command([str(folder), "--review", str(verdicts), name[:6]])
    site_command.command([str(folder), "--review", str(verdicts)])
    said = capsys.readouterr().out
    assert f"{corrected}\n" in said
    assert f"dataset.labels={corrected.absolute()}" in said
    reviewed = {row["id"]: row["label"] for row in rows(corrected)}
    assert {one for one, label in reviewed.items() if label != given[one]} == {issue["sample"]}
    served.audit(Options(force=True, corrections="suggested"))
    assert {row["id"]: row["label"] for row in rows(corrected)} == reviewed
    assert not (served.run_of("north") / "audit" / "corrected.csv").exists()

    before = served.folders["north"]
    try:
        served.folders["north"] = set_values(folder, data=[*before.data, f"dataset.labels={corrected.absolute()}"])
        served.start_again()
        labels = served.doors["north"].data.dataset.given
        assert labels is not None
        assert [str(one) for one in labels.tolist()] == [reviewed[str(i)] for i in range(SIZES["north"])]
        assert served.serve(tmp_path / "second", WORDS).record["status"] == "finished"
        with pytest.raises(UserError, match=r"^site north refused: the site's samples or labels have changed since"):
            served.audit(Options(force=True))
    finally:
        served.folders["north"] = set_values(folder, data=[*before.data])
        served.start_again()
        shutil.rmtree(next(path for path in (folder / "runs").iterdir() if path.name != name))
        for other in ("east", "south"):
            runs = served.folders[other].folder / "runs"
            shutil.rmtree(next(path for path in runs.iterdir() if path.name != name))


def test_what_is_in_the_way_is_said_in_a_line(served: Served) -> None:
    away = dict(served.nodes())
    away["south"].there = False
    with pytest.raises(UserError, match=r"^site south is not there after executor\.patience=0\.0003 hours"):
        served.audit(Options(force=True), away, 0.0003)
    with pytest.raises(UserError, match=r"^--min-precision compares with test samples, and the server has none"):
        served.audit(Options(force=True, min_precision=0.5))
    with pytest.raises(UserError, match=r"flnl site FOLDER --review verdicts\.csv"):
        audit.perform(served.output, Options(force=True, reviewed=(Path("verdicts.csv"),)))
    with pytest.raises(UserError, match=r"^executor\.allow: what leaves a site is said there"):
        audit.perform(served.output, Options(force=True, data=("executor.allow=[CountedLabels]",)))
    with pytest.raises(UserError, match=r"^executor\.patience=soon: should be a number of hours"):
        audit.perform(served.output, Options(force=True, data=("executor.patience=soon",)))
    with pytest.raises(UserError, match=r"its federation is not at .*nowhere: add dataset\.root=FOLDER"):
        audit.perform(served.output, Options(force=True, data=("dataset.root=nowhere",)))
    with pytest.raises(UserError, match=r"has no probabilities\.npz; leave it out"):
        served.audit(Options(force=True, probabilities="window"))
    named = (served.output / "sites.run").read_text()
    (served.output / "sites.run").unlink()
    with pytest.raises(UserError, match=r"has no sites\.run, by which its sites know the run"):
        audit.perform(served.output, Options(force=True))
    (served.output / "sites.run").write_text("a" * 32)
    with pytest.raises(UserError, match="the server has not opened this run here"):
        served.audit(Options(force=True))
    (served.output / "sites.run").write_text(named)
    served.folders["east"] = set_values(served.folders["east"].folder, allow=[])
    served.start_again()
    with pytest.raises(
        UserError, match=r"^site east refused: an audit sends CountedLabels, .* add CountedLabels to allow in site"
    ):
        served.audit(Options(force=True))
    with pytest.raises(UserError, match=r"^--review zzz: no run of this name was audited here"):
        site_command.command([str(served.folders["east"].folder), "--review", "verdicts.csv", "zzz"])


def test_the_record_or_an_option_says_where_the_federation_is(served: Served, tmp_path: Path) -> None:
    federation = federation_of(served.output, Options())
    assert federation.folder == served.federation.folder
    moved = tmp_path / "moved"
    shutil.copytree(federation.folder, moved)
    assert federation_of(served.output, Options(data=(f"dataset.root={moved}",))).folder == moved
