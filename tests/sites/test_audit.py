"""The audit of labels at sites: sums cross, and every number is that of the audit of pooled labels."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flnl.audit.options import Options
from flnl.audit.performing import perform as perform_pooled
from flnl.core.errors import UserError
from flnl.sites.audit import perform
from flnl.sites.audit_messages import CountedLabels, Question
from flnl.sites.link import Link
from flnl.sites.policy import Ledger
from flnl.sites.traffic import Traffic
from tests.properties.runs import run
from tests.registry import TINY

WORDS = (
    *(word for word in TINY if not word.startswith(("executor=", "dataset.test_size"))),
    *("dataset.test_size=250", "method=fedavg", "rounds=3", "noise=symmetric", "noise.eta=0.3", "audit.record=false"),
)
ALLOW = "executor.allow=[CountedLabels]"
ELSEWHERE = ("federation", "measured", "options", "notes")
"""What an audit without the truth and with other options has otherwise, or is no number."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulation."""
    return run(WORDS, tmp_path_factory.mktemp("here") / "run", "executor=sequential").folder


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with sites."""
    return run(WORDS, tmp_path_factory.mktemp("there") / "run", "executor=sites", ALLOW).folder


@pytest.fixture(autouse=True)
def _nothing_was_asked_before(there: Path) -> None:
    """The sites of a module's run answer few audits; a site's operator may delete what it has noted of them."""
    for path in there.glob("sites/*/runs/*/asked.json"):
        path.unlink()


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [{key: value for key, value in row.items() if key != "true_label"} for row in csv.DictReader(file)]


def numbers(folder: Path) -> dict[str, Any]:
    return {key: one for key, one in json.loads((folder / "audit.json").read_text()).items() if key not in ELSEWHERE}


def page(path: Path) -> dict[str, Any]:
    """What the script of a page knows."""
    text = path.read_text()
    start = text.index('type="application/json"')
    return json.JSONDecoder().raw_decode(text[text.index("{", start) :])[0]  # type: ignore[no-any-return]


def site(folder: Path, client: int) -> Path:
    (found,) = (folder / "sites" / str(client) / "runs").iterdir()
    return found / "audit"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"min_precision": 0.4, "score": "normalized_margin", "adjust": True},
        {"issues": "confident_learning", "prior_weight": 0.5, "min_client": 22},
        {"prior": "none"},
    ],
    ids=str,
)
def test_every_number_is_that_of_pooled_labels(more: dict[str, Any], here: Path, there: Path, tmp_path: Path) -> None:
    perform_pooled(here, Options(out=tmp_path / "pooled", clients=True, **more))
    perform(there, Options(out=tmp_path / "server", clients=True, **more))
    pooled = tmp_path / "pooled"
    assert numbers(tmp_path / "server") == numbers(pooled)
    assert not (tmp_path / "server" / "audit.csv").exists()
    for client in range(8):
        one, other = pooled / "clients" / f"{client:04d}", site(there, client)
        assert numbers(other) == numbers(one)
        assert rows(other / "audit.csv") == rows(one / "audit.csv")
        shown, expected = page(other / "index.html"), page(one / "index.html")
        assert {**shown, "key": ""} == {**expected, "key": ""}


def test_numbers_of_interest_are_there(here: Path, tmp_path: Path) -> None:
    """Or the comparison would say little: wrong labels are told, labels stand out, and a cut is chosen."""
    found = [
        perform_pooled(here, Options(formats=("json",), out=tmp_path / str(least), min_precision=least))[0].audit
        for least in (None, 0.4)
    ]
    issues = [one.issues for one in found]
    assert 0 < issues[1] < issues[0] < found[0].size
    assert found[1].cut is not None
    assert 0 < found[1].cut < 1
    assert found[0].wrong is not None
    assert found[0].wrong.expected > 10


def test_a_site_takes_part_if_it_has_allowed_that(tmp_path: Path) -> None:
    """And what it has sent is in its ledger; nothing of single samples crosses."""
    folder = run(WORDS, tmp_path / "run", "executor=sites").folder
    with pytest.raises(
        UserError, match=r"site 0, 1, .* refused: an audit sends CountedLabels, .*allow=\[CountedLabels\]"
    ):
        perform(folder, Options())
    assert not (folder / "audit").exists()
    perform(folder, Options(data=(ALLOW,)))
    releases = Ledger(folder / "sites" / "3" / "ledger.jsonl", b"").releases
    assert [(one.type, one.epsilon) for one in releases] == [("CountedLabels", None)]
    crossed = {row[:2]: row[2:] for row in Traffic.read(folder / "crossed.csv").rows()}
    sent = {what: messages for (direction, what), (messages, _) in crossed.items() if direction == "up"}
    audit = ("CountedLabels", "CountedJoint", "CountedMarks", "CountedIssues", "AuditWritten")
    assert {name: sent[name] for name in audit} == dict.fromkeys(audit, 8)
    assert sum(crossed["up", name][1] for name in audit) < 8 * (2 * 80 + 2 * 800 + 101 * 8 + 301 * 8 + 200)


def test_each_site_corrects_its_own_labels(here: Path, there: Path, tmp_path: Path) -> None:
    """Joined, the suggested labels are those of the pooled audit; a review needs no server."""
    perform_pooled(here, Options(out=tmp_path / "pooled", corrections="suggested"))
    perform(there, Options(out=tmp_path / "server", corrections="suggested"))
    pooled = {row["id"]: row["label"] for row in rows(tmp_path / "pooled" / "corrected.csv")}
    own = [rows(site(there, client).parent / "corrected.csv") for client in range(8)]
    assert {row["id"]: row["label"] for part in own for row in part} == pooled
    assert not (tmp_path / "server" / "corrected.csv").exists()


def test_a_review_changes_the_labels_of_its_site(there: Path, tmp_path: Path) -> None:
    perform(there, Options(out=tmp_path / "server"))
    first = next(row for row in rows(site(there, 3) / "audit.csv") if row["is_label_issue"] == "True")
    (tmp_path / "verdicts.csv").write_text(
        f"client,sample,verdict,label\n3,{first['sample']},wrong,{first['predicted_label']}\n"
    )
    options = Options(
        out=tmp_path / "server", force=True, reviewed=(tmp_path / "verdicts.csv",), corrections="reviewed"
    )
    perform(there, options)
    given = {row["sample"]: row["given_label"] for row in rows(site(there, 3) / "audit.csv")}
    corrected = {row["id"]: row["label"] for row in rows(site(there, 3).parent / "corrected.csv")}
    assert {name for name, label in corrected.items() if label != given[name]} == {first["sample"]}
    assert corrected[first["sample"]] == first["predicted_label"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (Options(issues="both"), "--issues both needs cuts across sites: choose predicted_neq_given or"),
        (Options(folds=5), "score them by models of the run: choose window, all, final"),
        (Options(probabilities="window"), "has no probabilities.npz"),
        (Options(label_privacy=1.0), "--label-privacy"),
    ],
    ids=["issues", "folds", "window", "privacy"],
)
def test_what_takes_more_than_sums_is_refused(options: Options, why: str, there: Path) -> None:
    with pytest.raises(UserError, match=why):
        perform(there, options)
    with pytest.raises(UserError, match="the labels of this run are at its sites; the command flnl audit asks"):
        perform_pooled(there, options)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"step": "tell"}, "an audit has no such step"),
        ({"step": "join", "thresholds": None}, "without what is known before it"),
        ({"step": "write"}, "without what is known before it"),
        ({"options": {"score": "self_confidence"}}, "other options of an audit than there are"),
    ],
    ids=str,
)
def test_a_question_that_is_none_is_refused(change: dict[str, Any], why: str, there: Path, tmp_path: Path) -> None:
    seen = list[Question]()

    class NotedError(Exception):
        pass

    def ask(link: Link, questions: Any, kind: type) -> Any:
        seen.extend(questions.values())
        link_.append(link)
        raise NotedError

    link_ = list[Link]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Link, "audit", ask)
        with pytest.raises(NotedError):
            perform(there, Options(out=tmp_path / "server"))
    asked = replace(seen[0], **change)
    with pytest.raises(UserError, match=f"site 0, 1, 2, .* refused: .*{why}"):
        link_[0].audit(dict.fromkeys(link_[0].sites, asked), CountedLabels)


def test_few_questions_that_count_other_samples_are_answered(
    there: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Or thresholds that move a little at a time would tell single labels; what a page shows is no such question."""
    shutil.copytree(there, run_ := tmp_path / "run")
    for top in range(5, 12):
        perform(run_, Options(out=tmp_path / str(top), top=top))
    seen = list[tuple[Link, Mapping[int, Question], type]]()
    answered = Link.audit

    def note(link: Link, questions: Mapping[int, Question], kind: type) -> Any:
        seen.append((link, questions, kind))
        return answered(link, questions, kind)

    monkeypatch.setattr(Link, "audit", note)
    perform(run_, Options(out=tmp_path / "noted"))
    link, questions, kind = next(one for one in seen if next(iter(one[1].values())).step == "join")

    def moved(by: float) -> Mapping[int, Question]:
        known = {c: one.thresholds for c, one in questions.items() if one.thresholds is not None}
        return {c: replace(questions[c], thresholds=one + by) for c, one in known.items()}

    for number in range(1, 5):
        answered(link, moved(number / 100), kind)
    why = r"^site 0, .* refused: the server has sent 5 other questions of an audit \(join\) before$"
    with pytest.raises(UserError, match=why):
        answered(link, moved(0.05), kind)


def test_what_sites_have_recorded_is_audited(tmp_path: Path) -> None:
    """Through a stop and a server that goes on with its last but one checkpoint.

    A simulation scores all clients' samples in common batches, so that last bits may differ.
    """
    words = (*(word for word in WORDS if word != "audit.record=false"), "audit.record=true", "rounds=4")
    more = ("executor=sites", ALLOW, "checkpoint.every=1")
    here = run(words, tmp_path / "here", "executor=sequential").folder
    there = run(words, tmp_path / "there", *more, "max_rounds=3").folder
    (there / "checkpoints" / "round_00000003.pt").unlink()
    run(words, there, *more, "resume=true")
    perform_pooled(here, Options(out=tmp_path / "pooled", probabilities="window"))
    perform(there, Options(out=tmp_path / "server", probabilities="window"))
    one, other = numbers(tmp_path / "server"), numbers(tmp_path / "pooled")
    assert one["source"] == other["source"]
    assert one["thresholds"] == pytest.approx(other["thresholds"], abs=1e-6)
    assert one["confident_joint"] == other["confident_joint"]
    pooled = {(row["client"], row["sample"]): row for row in rows(tmp_path / "pooled" / "audit.csv")}
    for client in range(8):
        for row in rows(site(there, client) / "audit.csv"):
            same = pooled[row["client"], row["sample"]]
            assert float(row["suspicion_score"]) == pytest.approx(float(same["suspicion_score"]), abs=1e-6)
            assert row["is_label_issue"] == same["is_label_issue"]
    kept = [path.name for path in site(there, 3).parent.glob("probabilities/*")]
    assert sorted(kept) == [f"{number:08d}.npy" for number in (2, 3, 4)]  # the window's, and of two checkpoints
