"""The options of an audit: values that they do not have, and options that exclude each other, are refused at once."""

from pathlib import Path
from typing import Any

import pytest

from flnl.audit import audit
from flnl.audit.options import Options
from flnl.commands.audit import options_of
from flnl.core.errors import UserError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"probabilities": "windw"}, "--probabilities windw: there are window, all, final, folds, and .npz files"),
        ({"probabilities": 3}, "--probabilities 3: there are"),
        ({"score": "margin"}, "--score margin: there are self_confidence, normalized_margin, confidence_weighted_"),
        ({"issues": "prune"}, "--issues prune: there are predicted_neq_given, "),
        ({"prior": None}, "--prior None: there are client, none"),
        ({"by": "labels"}, "--by labels: there are samples, clients"),
        ({"corrections": "all"}, "--corrections all: there are suggested, reviewed"),
        ({"folds": 1}, "--folds 1: should be a whole number from 2"),
        ({"folds": 2.0}, "--folds 2.0: should be a whole number"),
        ({"top": 0}, "--top 0: should be a whole number from 1"),
        ({"top": None}, "--top None: should be a whole number from 1"),
        ({"per_page": True}, "--per-page True: should be a whole number from 1"),
        ({"min_client": -1}, "--min-client -1: should be a whole number from 0"),
        ({"thumbnails": -1}, "--thumbnails -1: should be a whole number from 0"),
        ({"prior_weight": 1.5}, "--prior-weight 1.5: should be a number from 0 to 1"),
        ({"prior_weight": None}, "--prior-weight None: should be a number from 0 to 1"),
        ({"min_precision": 2}, "--min-precision 2: should be a number from 0 to 1"),
        ({"min_precision": float("nan")}, "--min-precision nan: should be a number from 0 to 1"),
        ({"label_privacy": 0.0}, "--label-privacy 0.0: should be a number from 1e-12 to 700"),
        ({"formats": "csv"}, "--formats csv: should be a tuple, each one of html, csv, json"),
        ({"formats": ("pdf",)}, "--formats ('pdf',): should be a tuple"),
        ({"formats": None}, "--formats None: should be a tuple"),
        ({"force": "yes"}, "--force 'yes': should be True or False"),
        ({"probabilities": "own.npz", "folds": 5}, "--folds 5 would not read own.npz"),
        ({"out_of_sample": True}, "--out-of-sample is about a file of your own"),
        ({"by": "clients"}, "--by clients tells what folds divide: add --folds 5"),
        ({"adjust": True, "score": "confidence_weighted_entropy"}, "--adjust has no effect on confidence_weighted_"),
        ({"prior": "none", "prior_weight": 0.5}, "--prior-weight 0.5 has no effect with --prior none"),
        ({"prior": "none", "prior_weight": None}, "--prior-weight None: should be a number from 0 to 1"),
        ({"prior": "none", "prior_weight": "0.5"}, "--prior-weight '0.5': should be a number from 0 to 1"),
        ({"label_privacy": 1.0, "clients": True, "min_precision": 0.9}, "leave it out, or --clients"),
        ({"label_privacy": 1.0, "issues": "both"}, "choose predicted_neq_given or confident_learning"),
        ({"corrections": "reviewed"}, "add --reviewed verdicts.csv"),
    ],
)
def test_wrong_values_and_options_that_exclude_each_other_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refusal:
        Options(**values)
    assert str(refusal.value).startswith(message) or message in str(refusal.value)


@pytest.mark.parametrize(
    "words",
    [
        "--probabilities own.npz --folds 5",
        "--adjust --score confidence_weighted_entropy",
        "--by clients",
        "--out-of-sample",
        "--label-privacy 1 --issues prune_by_class",
        "--probabilities windw",
    ],
)
def test_the_command_refuses_them_too(words: str) -> None:
    with pytest.raises(UserError):
        options_of(["run", *words.split()])


@pytest.mark.parametrize(
    "values",
    [
        {"probabilities": "folds", "by": "clients"},
        {"probabilities": "all", "folds": 3, "by": "clients"},
        {"probabilities": "own.npz", "out_of_sample": True},
        {"folds": None, "thumbnails": None, "min_precision": 1, "label_privacy": 700},
        {"formats": ()},
        {"adjust": True, "score": "self_confidence"},
    ],
)
def test_what_goes_together_is_taken(values: dict[str, Any]) -> None:
    assert {name: getattr(Options(**values), name) for name in values} == values | (
        {"probabilities": Path("own.npz")} if values.get("probabilities") == "own.npz" else {}
    )


@pytest.mark.parametrize("name", ["reviewed", "out", "secret"])
def test_an_empty_path_is_refused(name: str) -> None:
    """As of a variable that a script has not set; it would be the current folder."""
    given: Any = {name: ""}
    with pytest.raises(UserError, match=f"--{name} '': should be a path"):
        Options(**given)
    with pytest.raises(UserError, match=f"--{name} '': should be a path"):
        options_of(["run", f"--{name}", ""])


def test_a_second_file_of_verdicts_takes_an_option_of_its_own() -> None:
    """As where the shell has put all files in place of a pattern."""
    with pytest.raises(UserError, match=r"^b.csv: each file of verdicts takes its own --reviewed"):
        options_of(["run", "--reviewed", "a.csv", "b.csv"])
    _, taken, _ = options_of(["run", "--reviewed", "a.csv", "--reviewed", "b.csv", "dataset.root=/data"])
    assert (taken.reviewed, taken.data) == ((Path("a.csv"), Path("b.csv")), ("dataset.root=/data",))


def test_options_that_are_none_are_refused() -> None:
    wrong: Any = {"issues": "both"}
    with pytest.raises(UserError, match=r"should be flnl\.audit\.Options"):
        audit("run", wrong)


def test_paths_may_be_text_and_begin_with_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    given: Any = {"probabilities": "~/p.npz", "reviewed": "~/v.csv", "out": "~/x", "config_dir": "~/conf"}
    chosen, home = Options(**given), Path("/home/somebody")
    assert (chosen.probabilities, chosen.reviewed, chosen.out) == (home / "p.npz", (home / "v.csv",), home / "x")
    assert chosen.config_dir == (home / "conf",)
    run, by_command, _ = options_of(["~/run", "--out=~/x", "--reviewed=~/v.csv", "--probabilities=~/p.npz"])
    assert (run, by_command.out, by_command.reviewed) == (home / "run", home / "x", (home / "v.csv",))
    assert by_command.probabilities == home / "p.npz"
