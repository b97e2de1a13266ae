"""``flnl compare`` finds the runs, counts each seed once and shows their numbers as they are."""

import copy
import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from flnl.commands import compare as program
from flnl.config.compose import load, resolved
from flnl.instruments.compare.runs import find, grouped
from flnl.instruments.compare.table import Table
from flnl.record.tuned import Reported, Study, Trial, Tuned
from tests.products.conftest import Commands, Said
from tests.properties.runs import Ran

ROOT = Path(__file__).resolve().parents[2]
MODULE = SimpleNamespace(main=program.main, __name__="flnl.instruments.compare")


@cache
def _composed(words: tuple[str, ...]) -> dict[str, Any]:
    return resolved(load(words))


def composed(words: Sequence[str]) -> dict[str, Any]:
    """The configuration, in which seeds change nothing but themselves."""
    seeds = {"seed": 1} | {key: int(n) for key, n in (word.split("=") for word in words) if key.endswith("seed")}
    rest = tuple(word for word in words if not word.split("=")[0].endswith("seed"))
    return copy.deepcopy(_composed(rest)) | {"data_seed": seeds["seed"]} | seeds


def made(folder: Path, words: str = "", /, curve: tuple[float, ...] = (0.5,), **result: Any) -> Path:
    """A run's folder, as a run with these words would leave it; ``metrics`` may be given in part."""
    folder.mkdir(parents=True)
    metrics = {"last": 0.5, "best": 0.6, "mean_last_10": 0.55, "noise_final": 0.4} | result.pop("metrics", {})
    found = {
        "status": "finished",
        "key": "k",
        "config": composed(words.split()),
        "overrides": words.split(),
        "started": 1000.0,
        "rounds": 56,
        "participations": 560,
        "bytes": 3 * 2**20,
        "wall_time_s": 12.5,
        "metrics": metrics,
    } | result
    (folder / "result.json").write_text(json.dumps(found))
    rows = [{"kind": "evaluation", "round": i, "participations": 10 * i, "accuracy": a} for i, a in enumerate(curve, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def compared(said: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The command in ``tmp_path``, without a figure unless one is asked for."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: said(MODULE, *words, *([] if "--figure" in words else ["--figure", "none"]))


def cells(answer: Said) -> list[dict[str, str]]:
    """The text's lines by heading; columns are two blanks apart at least."""
    assert answer.code == 0, answer.err
    head, *lines = (re.split(r" {2,}", line.strip()) for line in answer.out.splitlines())
    return [dict(zip(head, line, strict=True)) for line in lines]


def names(answer: Said) -> list[str]:
    return [line["run"] for line in cells(answer)]


def table(*folders: Path, **options: Any) -> Table:
    return Table.of(grouped(find([str(folder) for folder in folders], **options)))


# --------------------------------------------------------------------------------------------------------- numbers


def test_numbers_are_means_and_sample_deviations_over_seeds(compared: Commands, tmp_path: Path) -> None:
    for seed, accuracy in ((1, 0.90), (2, 0.96), (3, 0.93)):
        metrics = {"last": accuracy, "best": 0.97, "mean_last_10": accuracy - 0.01, "noise_final": 0.1 * seed}
        made(
            tmp_path / f"a{seed}",
            f"method=fedavg seed={seed}",
            metrics=metrics,
            participations=500 + seed,
            bytes=(seed * 2 + 1) * 2**19,
            wall_time_s=10.0 * seed,
        )
    made(tmp_path / "b", "method=fedprox", metrics={"last": 0.5})
    averaged, alone = cells(compared(tmp_path))
    assert averaged == {
        "run": "method=fedavg",
        "seeds": "3",
        "last, %": "93.00 ± 3.00",  # deviations -3, 3, 0: sqrt(18 / (3 - 1))
        "best, %": "97.00 ± 0.00",
        "mean of last 10, %": "92.00 ± 3.00",
        "wrong at the end, %": "20.00 ± 10.00",
        "rounds": "56",
        "participations": "502",
        "communication, MiB": "2.5",
        "wall time, s": "20.0",
    }
    assert alone["seeds"] == "1"
    assert alone["last, %"] == "50.00"


def test_costs_stand_in_the_place_of_accuracies(compared: Commands, tmp_path: Path) -> None:
    """Means over the seeds that have them; a run of an early version has none."""
    for seed in (1, 2):
        costs: dict[str, Any] = {
            "training_passes": 1000 * seed,
            "forward_passes": 30 * seed,
            "optimizer_steps": 50,
            "cpu_time_s": 7.5,
        }
        made(tmp_path / f"a{seed}", f"method=fedavg seed={seed}", peak_memory=3 * 2**30, peak_gpu_memory=None, **costs)
    made(tmp_path / "b", "method=fedprox")
    known, early = cells(compared(tmp_path, "--cost"))
    assert known == {
        "run": "method=fedavg",
        "seeds": "2",
        "last, %": "50.00 ± 0.00",
        "participations": "560",
        "training passes": "1500",
        "forward passes": "45",
        "optimiser steps": "50",
        "communication, MiB": "3",
        "wall time, s": "12.5",
        "CPU time, s": "7.5",
        "peak memory, MiB": "3072",
    }
    assert [early[name] for name in ("training passes", "optimiser steps", "CPU time, s", "peak memory, MiB")] == [
        "–"
    ] * 4
    assert early["wall time, s"] == "12.5"
    crossed = compared(tmp_path, "--rows", "method", "--measure", "passes")
    assert re.search(r"^fedavg +1500", crossed.out, re.MULTILINE), crossed.out + crossed.err
    assert "--measure participations, passes" in compared(tmp_path, "--cost", "--rows", "method").err


def test_csv_has_unrounded_numbers_and_their_deviations_apart(compared: Commands, tmp_path: Path) -> None:
    made(tmp_path / "a", "method=fedavg seed=1", metrics={"last": 1 / 3}, bytes=2**19)
    made(tmp_path / "b", "method=fedavg seed=2", metrics={"last": 2 / 3}, bytes=2**19)
    made(tmp_path / "c", "method=fedprox", metrics={"last": 0.25})
    assert compared(tmp_path, "--csv", "t.csv", "--sort", "name").code == 0
    many, one = csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text()))
    assert many["run"] == "method=fedavg"
    assert float(many["accuracy_last_percent"]) == pytest.approx(50)
    assert float(many["accuracy_last_percent_std"]) == pytest.approx(100 / 3 / 2**0.5, rel=1e-9)
    assert float(many["communication_mib"]) == 0.5
    assert one["accuracy_last_percent_std"] == ""


def test_accuracy_at_the_best_validation_is_shown_where_there_is_one(compared: Commands, tmp_path: Path) -> None:
    made(tmp_path / "a", "method=fedavg", metrics={"at_best_validation": 0.875})
    made(tmp_path / "b", "method=fedprox")
    found = {line["run"]: line["at best validation, %"] for line in cells(compared(tmp_path))}
    assert found == {"method=fedavg": "87.50", "method=fedprox": "–"}


@pytest.mark.parametrize("gap", [None, float("nan"), float("inf"), "broken"])
def test_a_missing_number_is_a_dash_and_never_nan(compared: Commands, tmp_path: Path, gap: object) -> None:
    made(tmp_path / "a", "method=fedavg", metrics={"last": gap, "mean_last_10": gap, "noise_final": gap}, bytes=gap)
    made(tmp_path / "b", "method=fedprox")
    answer = compared(tmp_path, "--csv", "t.csv", "--markdown", "t.md", "--latex", "t.tex")
    whole, gone = cells(answer)
    assert whole["run"] == "method=fedprox", "gaps come last"
    assert [gone[k] for k in ("last, %", "mean of last 10, %", "wrong at the end, %", "communication, MiB")] == [
        "–"
    ] * 4
    assert gone["best, %"] == "60.00"
    for text in (answer.out, *((tmp_path / f"t.{kind}").read_text() for kind in ("csv", "md", "tex"))):
        assert not re.search(r"nan|inf\b|None|broken", text)
    assert "| – |" in (tmp_path / "t.md").read_text()
    assert "& -- &" in (tmp_path / "t.tex").read_text()
    assert ",,," in (tmp_path / "t.csv").read_text()


def test_a_number_that_only_some_seeds_have_is_said_to_be_so(compared: Commands, tmp_path: Path) -> None:
    made(tmp_path / "a", "method=fedavg seed=1", metrics={"last": None})
    made(tmp_path / "b", "method=fedavg seed=2", metrics={"last": 0.75})
    answer = compared(tmp_path)
    assert cells(answer)[0]["last, %"] == "75.00"
    assert answer.err == "method=fedavg: last, % is of 1 of 2 seeds; the others have none\n"


# ---------------------------------------------------------------------------------------------------------- groups


def test_a_file_of_tuning_stands_for_the_runs_that_it_reports(
    compared: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "multirun/jobs").mkdir(parents=True)
    (tmp_path / "multirun/jobs/0.json").write_text("{}")
    for seed in (1, 2, 7):
        made(tmp_path / f"multirun/r{seed}", f"seed={seed}", metrics={"last": seed / 10})
    trial = Trial({"train.lr": "0.1"}, {7: 0.7}, {7: "multirun/r7"})
    reported = Reported({"last": {1: 0.1, 2: 0.2, 3: None}}, {1: "multirun/r1", 2: "multirun/r2", 3: "multirun/none"})
    for name, results in (("with", reported), ("without", None)):
        Tuned([], "last", [7], [Study({}, [], [trial], results)]).save(tmp_path / f"{name}.json")
    (row,) = cells(compared("with.json"))
    assert (row["seeds"], row["last, %"]) == ("2", "15.00 ± 7.07")  # the run that tuning scored is not among them
    assert "multirun/none is left out" in compared("with.json").err
    (pattern,) = cells(compared("multirun/**", "--sort", "mean"))  # other JSON files
    assert pattern["seeds"] == "3"
    monkeypatch.chdir(tmp_path / "multirun")
    answer = compared("../with.json")
    assert answer.code == 2
    assert "names runs that are not here, such as multirun/r1" in answer.err
    monkeypatch.chdir(tmp_path)
    answer = compared("without.json")
    assert answer.code == 2
    assert "--report" in answer.err
    (tmp_path / "other.json").write_text("{}")
    answer = compared("other.json")
    assert answer.code == 2
    assert "no file of flnl tune" in answer.err


def test_runs_that_differ_in_their_seed_only_are_one_row(compared: Commands, tmp_path: Path) -> None:
    made(tmp_path / "a", "method=fedavg seed=1 figures=false")
    made(tmp_path / "b", "method=fedavg seed=2 device=cpu output_root=elsewhere threads=2")
    made(tmp_path / "c", "method=fedavg seed=3 rounds=7")
    found = {line["run"]: line["seeds"] for line in cells(compared(tmp_path))}
    assert found == {"method=fedavg": "2", "method=fedavg rounds=7": "1"}


def test_data_that_stay_while_the_seed_changes_are_another_row(tmp_path: Path) -> None:
    following = [made(tmp_path / f"f{s}", f"method=fedavg seed={s}") for s in (1, 2, 3)]
    staying = [made(tmp_path / f"s{s}", f"method=fedavg seed={s} data_seed=2") for s in (1, 2, 3)]
    rows = grouped(find([str(tmp_path)]))
    assert {row.data_seed: [run.folder for run in row.runs] for row in rows} == {None: following, 2: staying}


def test_a_default_run_is_of_those_whose_data_stay_if_nothing_else_follows(tmp_path: Path) -> None:
    made(tmp_path / "a", "method=fedavg seed=1")
    made(tmp_path / "b", "method=fedavg seed=2 data_seed=1")
    assert [[run.seed for run in row.runs] for row in grouped(find([str(tmp_path)]))] == [[1, 2]]


def test_only_the_same_draws_of_data_are_compared(tmp_path: Path) -> None:
    """A method is not better because another draw is easier."""
    for draw, method, last in ((7, "fedavg", 0.8), (8, "fedavg", 0.6), (8, "fedprox", 0.7)):
        for seed in (1, 2):
            words = f"method={method} seed={seed} data_seed={draw}"
            made(tmp_path / f"{method}{draw}{seed}", words, metrics={"last": last})
    found = table(tmp_path)
    (column,) = (one for one in found.columns if one.key == "last")
    best = {(line.row.data_seed, line.row.config["method"]["name"]): found.best(line, column) for line in found.lines}
    assert best == {(7, "fedavg"): False, (8, "fedavg"): False, (8, "fedprox"): True}


@pytest.mark.parametrize("harder", ["shift.level=0.5", "fault.share=0.5"])
def test_a_method_is_not_compared_with_one_whose_clients_are_worse(tmp_path: Path, harder: str) -> None:
    for words, last in (("method=fedavg", 0.8), (f"method=fedavg {harder}", 0.6), (f"method=fedprox {harder}", 0.7)):
        for seed in (1, 2):
            made(tmp_path / f"{words} {seed}", f"{words} seed={seed}", metrics={"last": last})
    found = table(tmp_path)
    (column,) = (one for one in found.columns if one.key == "last")
    assert [line.row.config["method"]["name"] for line in found.lines if found.best(line, column)] == ["fedprox"]


def test_runs_of_files_that_have_changed_are_told_of(compared: Commands, tmp_path: Path) -> None:
    """Their settings are the same; the record has a digest of what they held."""
    made(tmp_path / "a", "method=fedavg seed=1", data="aa")
    made(tmp_path / "b", "method=fedprox seed=1", data="aa")
    made(tmp_path / "old", "method=fedavg seed=2")
    made(tmp_path / "other", "method=fedavg dataset.test_size=40", data="bb")
    made(tmp_path / "shifted", "method=fedavg shift.level=0.5 seed=1", data="dd")
    made(tmp_path / "shifted otherwise", "method=fedavg shift.level=0.5 seed=2", data="ee")
    assert "files have changed" not in compared(tmp_path).err
    made(tmp_path / "c", "method=fedavg seed=3", data="cc")
    said = compared(tmp_path).err
    assert "files have changed between them" in said
    assert "c name the same data and had others" in said or "c and" in said


def test_of_equal_runs_the_newest_counts(compared: Commands, tmp_path: Path) -> None:
    for name, started, last in (("x", 5.0, 0.1), ("y", 30.0, 0.2), ("z", 20.0, 0.3)):
        made(tmp_path / name, "method=fedavg seed=4", started=started, metrics={"last": last})
    made(tmp_path / "other", "method=fedavg seed=5", metrics={"last": 0.2})
    answer = compared(tmp_path)
    (line,) = cells(answer)
    assert (line["seeds"], line["last, %"]) == ("2", "20.00 ± 0.00")
    assert answer.err == "y is used for seed 4; repeated runs are left out: z, x\n"


def test_of_equal_runs_the_newest_is_that_with_the_highest_number(compared: Commands, tmp_path: Path) -> None:
    """Whatever clocks said; those of earlier versions have none."""
    for name, order, started in (("x", 2, 5.0), ("y", 1, 30.0), ("z", None, 99.0)):
        made(tmp_path / name, "method=fedavg seed=4", started=started, order=order)
    answer = compared(tmp_path)
    assert answer.err == "x is used for seed 4; repeated runs are left out: y, z\n"


def test_of_equal_runs_a_finished_one_counts_before_a_newer_one(tmp_path: Path) -> None:
    made(tmp_path / "done", "method=fedavg", started=1.0)
    made(tmp_path / "new", "method=fedavg", started=2.0, status="interrupted")
    (row,) = grouped(find([str(tmp_path)], unfinished=True))
    assert [run.folder.name for run in row.runs] == ["done"]


# ------------------------------------------------------------------------------------------------------------ find


def test_rows_are_marked_with_what_their_methods_were_given(compared: Commands, tmp_path: Path) -> None:
    made(tmp_path / "a", "method=fedavg")
    made(tmp_path / "b", "method=fedprox", given={"method.local.fedprox.mu": 0.4})
    made(tmp_path / "c", "method=rofl", given={"method.local.rofl.forget_rate": 0.4}, clean_samples=72)
    made(tmp_path / "d", "method=fair", clean_samples=72)
    answer = compared("a", "b", "c", "d", "--markdown", "table.md")
    assert sorted(names(answer)) == [
        "method=fair (given clean samples)",
        "method=fedavg",
        "method=fedprox (given the noise rate)",
        "method=rofl (given the noise rate and clean samples)",
    ]
    assert "| `method=fedprox (given the noise rate)` |" in (tmp_path / "table.md").read_text()


def test_unfinished_runs_are_named_and_left_out(compared: Commands, tmp_path: Path) -> None:
    made(tmp_path / "a", "method=fedavg seed=1")
    made(tmp_path / "b", "method=fedavg seed=2", status="stopped", rounds=12)
    answer = compared(tmp_path)
    assert cells(answer)[0]["seeds"] == "1"
    assert answer.err == "b is left out: stopped after round 12\n"
    answer = compared(tmp_path, "--unfinished")
    assert (cells(answer)[0]["seeds"], cells(answer)[0]["status"]) == ("2", "1 finished, 1 stopped")
    assert answer.err == ""


def test_nothing_but_unfinished_runs(compared: Commands, tmp_path: Path) -> None:
    made(tmp_path / "b", "method=fedavg", status="failed", metrics={"last": None})
    answer = compared("b")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.splitlines()[-1] == "error: no run is finished in or below b; --unfinished includes the others"


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"key": "k"}', '{"key": "k", "config": {"seed": "one"}}', "\x00"])
def test_a_result_that_cannot_be_read_keeps_no_other_back(compared: Commands, tmp_path: Path, text: str) -> None:
    made(tmp_path / "a", "method=fedavg")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "result.json").write_text(text)
    answer = compared(tmp_path)
    assert names(answer) == ["method=fedavg"]
    assert answer.err == "broken is left out: its result.json cannot be read as that of a run\n"


@pytest.mark.parametrize(
    "words",
    [
        ["."],
        ["multirun", "outputs"],
        ["outputs/*", "multirun/**"],
        ["outputs/x", "outputs/x/", "outputs/../outputs/x", "**/result.json"],
        ["multi*/*/*/[01]", "outputs/x/result.json"],
    ],
)
def test_every_run_below_is_found_once(compared: Commands, tmp_path: Path, words: list[str]) -> None:
    made(tmp_path / "outputs" / "x", "method=fedavg seed=1")
    for seed in (2, 3):
        made(tmp_path / "multirun" / "2026-01-01" / "10-00-00" / str(seed - 2), f"method=fedavg seed={seed}")
    (tmp_path / "outputs" / "notes.txt").write_text("mine")
    answer = compared(*words)
    assert cells(answer)[0]["seeds"] == "3"
    assert answer.err == ""


def test_a_part_of_what_was_named_may_hold_no_run(compared: Commands, tmp_path: Path) -> None:
    made(tmp_path / "a", "method=fedavg")
    (tmp_path / "empty").mkdir()
    answer = compared("a", "empty", "nothing*")
    assert names(answer) == ["method=fedavg"]
    assert answer.err == "".join(f"{word}: no run is recorded in or below it\n" for word in ("empty", "nothing*"))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["gone"], "gone does not exist"),
        (["a", "gone"], "gone does not exist"),
        (["empty"], "no run is recorded in or below empty"),
        (["no*"], "no run is recorded in or below no*"),
        ([], "the following arguments are required: RUN_DIR_OR_PATTERN; see flnl compare --help"),
        (["a", "--sort", "colour"], "argument --sort: invalid choice: 'colour'"),
        (["a", "--unfin"], "unrecognized arguments: --unfin"),
        (["a", "--csv", "gone/t.csv"], "--csv gone/t.csv: there is no folder gone"),
        (["a", "--ranks", "none"], "--ranks none: its name should end in .png, .svg, .pdf"),
        (["a", "--figure", "curves.gif"], "--figure curves.gif: its name should end in .png, .svg, .pdf, or be none"),
        (["a", "--figure", "gone/c.png"], "--figure gone/c.png: there is no folder gone"),
    ],
)
def test_refusals_are_one_line(compared: Commands, tmp_path: Path, words: list[str], complaint: str) -> None:
    made(tmp_path / "a", "method=fedavg")
    (tmp_path / "empty").mkdir()
    answer = compared(*words)
    assert answer.code == 2
    assert answer.err.startswith(f"error: {complaint}")
    assert answer.err.count("\n") == 1


# ----------------------------------------------------------------------------------------------------------- order


def test_the_order_is_of_the_numbers(compared: Commands, tmp_path: Path) -> None:
    for method, mean, last, seconds in (("fedavg", 0.095, 0.3, 9), ("fedprox", 0.8, 0.2, 10), ("fedcorr", 0.7, 0.1, 8)):
        metrics = {"mean_last_10": mean, "last": last}
        made(tmp_path / method, f"method={method}", metrics=metrics, wall_time_s=seconds)

    def order(*words: str) -> list[str]:
        return [name.removeprefix("method=") for name in names(compared(tmp_path, *words))]

    assert order() == ["fedprox", "fedcorr", "fedavg"], "9.5 is less than 80, whatever their first digits"
    assert order("--sort", "last") == ["fedavg", "fedprox", "fedcorr"]
    assert order("--sort", "time") == ["fedcorr", "fedavg", "fedprox"]
    assert order("--sort", "name") == ["fedavg", "fedcorr", "fedprox"]


def test_the_best_is_bold_by_its_number_on_its_data_set(tmp_path: Path) -> None:
    made(tmp_path / "a", "method=fedavg", metrics={"last": 0.99001, "best": 0.095, "mean_last_10": 0.7})
    made(tmp_path / "b", "method=fedprox", metrics={"last": 0.99002, "best": 0.8, "mean_last_10": 0.7})
    made(tmp_path / "c", "method=fedavg dataset=mnist", metrics={"last": 0.999, "best": 0.999, "mean_last_10": 0.999})
    found = table(tmp_path)
    by_name = {line.name: [c.key for c in found.columns if found.best(line, c)] for line in found.lines}
    assert by_name == {
        "method=fedavg dataset=digits": ["mean"],
        "method=fedprox dataset=digits": ["last", "best", "mean"],
        "method=fedavg dataset=mnist": [],  # alone on its data set
    }
    line = next(row for row in found.markdown().splitlines() if "fedprox" in row)
    assert line.split(" | ")[:6] == [
        "| `method=fedprox dataset=digits`",
        "1",
        "**99.00**",
        "**80.00**",
        "**70.00**",
        "40.00",
    ]
    assert r"\texttt{method=fedprox dataset=digits} & 1 & \textbf{99.00} & \textbf{80.00}" in found.latex()
    assert r"\textbf{99.90}" not in found.latex()


def test_each_noise_and_partition_has_a_best_of_its_own(tmp_path: Path) -> None:
    """The less noise, the better everything is: the best of all would be bold at the easiest noise alone."""
    numbers = {("fedavg", "0.2"): 0.95, ("fedprox", "0.2"): 0.94, ("fedavg", "0.6"): 0.7, ("fedprox", "0.6"): 0.9}
    for i, ((method, rho), accuracy) in enumerate(numbers.items()):
        made(tmp_path / str(i), f"method={method} noise.rho={rho}", metrics={"last": accuracy})
    made(tmp_path / "alone", "method=fedavg noise.rho=0.6 partition=shards", metrics={"last": 0.1})
    found = table(tmp_path)
    (last,) = (column for column in found.columns if column.key == "last")
    best = [line.numbers["last"] for line in found.lines if found.best(line, last)]
    assert [number.mean for number in best if number is not None] == [95.0, 90.0]


def test_other_training_is_the_same_setting(tmp_path: Path) -> None:
    made(tmp_path / "a", "method=fedavg train.lr=0.1", metrics={"last": 0.5})
    made(tmp_path / "b", "method=fedavg train.lr=0.01 model=mlp", metrics={"last": 0.6})
    found = table(tmp_path)
    (last,) = (column for column in found.columns if column.key == "last")
    assert [found.best(line, last) for line in found.lines] == [True, False]


@pytest.mark.parametrize(
    ("key", "compared"),
    [
        *((word, True) for word in ("dataset.train_size=100", "dataset.test_size=50", "partition.num_clients=7")),
        *((word, True) for word in ("noise.rho=0.2", "noise.tau=0.1", "eval.benchmark=0.2")),
        *((word, False) for word in ("eval.validation=0.1", "eval.every=3", "rounds=7", "fraction=0.2")),
        *((word, False) for word in ("train.epochs=9", "model.dropout=0.1", "precision=64", "on_nonfinite=stop")),
        ("centralized=true", False),
    ],
)
def test_what_is_tested_on_and_trained_from_is_the_setting(key: str, compared: bool, tmp_path: Path) -> None:
    """Numbers on another test set, or of other data, are of another setting; other training is of the same one."""
    for name, words in (("a", ""), ("b", key)):
        made(tmp_path / name, f"method=fedavg {words}".strip())
    one, other = grouped(find([str(tmp_path)]))
    assert (one.setting != other.setting) == compared
    assert key.partition("=")[0] in {*one.identity, *other.identity}, "it counts"


def test_a_draw_of_data_is_the_setting(tmp_path: Path) -> None:
    for seed in (1, 2):
        made(tmp_path / f"a{seed}", f"method=fedavg seed={seed} data_seed=2")
        made(tmp_path / f"b{seed}", f"method=fedprox seed={seed} data_seed=3")
    settings = [row.setting for row in grouped(find([str(tmp_path)]))]
    assert sorted(setting["data_seed"] for setting in settings) == [2, 3]


def test_means_of_equal_sums_are_both_bold(tmp_path: Path) -> None:
    for method, right in (("fedavg", (330, 341, 324)), ("fedprox", (331, 340, 324))):  # 995 of 3 times 360
        for seed, number in enumerate(right, 1):
            made(tmp_path / f"{method}{seed}", f"method={method} seed={seed}", metrics={"last": number / 360})
    found = table(tmp_path)
    (last,) = (column for column in found.columns if column.key == "last")
    assert [line.name for line in found.lines if found.best(line, last)] == ["method=fedavg", "method=fedprox"]


def test_what_markdown_and_latex_would_take_for_their_own_is_escaped(tmp_path: Path) -> None:
    for seed in (1, 2):
        made(tmp_path / f"a{seed}", f"method=fedavg seed={seed}")
    record = json.loads((tmp_path / "a1" / "result.json").read_text())
    record["config"]["train"]["note"] = r"50%|a_b$c\d"
    (made(tmp_path / "c") / "result.json").write_text(json.dumps(record))
    found = table(tmp_path)
    assert r"| `method=fedavg train.note=50%\|a_b$c\d` |" in found.markdown()
    assert r"\texttt{method=fedavg train.note=50\%\textbar{}a\_b\$c\textbackslash{}d} & 1 &" in found.latex()
    assert r"\texttt{method=fedavg} & 2 & 50.00 $\pm$ 0.00 &" in found.latex(), "of other seeds: not bold"
    assert r"last, \% &" in found.latex()


# -------------------------------------------------------------------------------------------------------- terminal


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_terminal_shows_every_number_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    for seed, last in ((1, 0.91), (2, 0.93)):
        made(tmp_path / f"a{seed}", f"method=fedavg seed={seed}", metrics={"last": last}, participations=12345)
    made(tmp_path / "b", "method=fedcorr method.correction=false", metrics={"last": 0.09})
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=width, markup=False, highlight=False)
    monkeypatch.setattr("rich.console.Console", lambda **_: terminal)
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stdout", printed)
    program.show(table(tmp_path))
    text = out.getvalue()
    if width == 60:
        assert text == ""
        assert printed.getvalue() == table(tmp_path).text()
        return
    assert "\x1b[1m50.00 ± 0.00" not in text, "seeds are unequal"
    plain = re.sub(r"\x1b\[\d+m", "", text)
    assert max(map(len, plain.splitlines())) <= width
    assert all(number in plain for number in (" 9.00", "12345", "560", "40.00", "12.5"))
    assert "…" not in plain
    points = {
        line.index(mean) + len(mean) for line in plain.splitlines() for mean in (" 92", "  9") if f"{mean}." in line
    }
    assert len(points) == 1, "points are below each other"


def test_a_terminal_shows_the_best_bold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for method, last in (("fedavg", 0.91), ("fedprox", 0.5)):
        made(tmp_path / method, f"method={method}", metrics={"last": last})
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=200, markup=False, highlight=False)
    monkeypatch.setattr("rich.console.Console", lambda **_: terminal)
    program.show(table(tmp_path))
    assert "\x1b[1m91.00\x1b[0m" in out.getvalue()
    assert "\x1b[1m50.00\x1b[0m" not in out.getvalue()


def test_of_unequal_seeds_none_is_bold(compared: Commands, tmp_path: Path) -> None:
    """The mean over an easier seed alone is no better."""
    for name, words in (("a1", "fedavg seed=1"), ("a2", "fedavg seed=2"), ("b1", "fedprox seed=1")):
        made(tmp_path / name, f"method={words}", metrics={"last": 0.9 if name == "b1" else 0.8})
    answer = compared(tmp_path, "--markdown", "t.md")
    assert "**" not in (tmp_path / "t.md").read_text()
    assert "unequal seeds, so none of them is bold" in answer.err
    answer = compared(tmp_path, "--markdown", "t.md", "--where", "seed=1")
    assert "**90.00**" in (tmp_path / "t.md").read_text()
    assert answer.err == "markdown: t.md\n"


# --------------------------------------------------------------------------------------------------------- program


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_figure_is_where_it_was_asked_for(compared: Commands, tmp_path: Path, suffix: str) -> None:
    made(tmp_path / "a", "method=fedavg", curve=(0.1, 0.2))
    answer = compared("a", "--figure", f"curves.{suffix}")
    assert answer.err == f"figure: curves.{suffix}\n"
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert (tmp_path / f"curves.{suffix}").read_bytes().startswith(start)


def test_no_figure_of_runs_without_an_evaluation(compared: Commands, tmp_path: Path) -> None:
    made(tmp_path / "a", "method=fedavg", curve=())
    answer = compared("a", "--figure", "curves.png")
    assert answer.code == 0
    assert answer.err.endswith("no figure: no run has recorded an evaluation\n")
    assert not (tmp_path / "curves.png").exists()


def test_what_takes_seconds_to_import_is_left_alone(tmp_path: Path) -> None:
    made(tmp_path / "a", "method=fedavg")
    script = (
        "import sys, flnl.commands.compare as c; sys.argv = ['', sys.argv[1], '--figure', 'none']; c.main();"
        "print({'torch', 'numpy', 'matplotlib'} & {*sys.modules})"
    )
    words = [sys.executable, "-c", script, str(tmp_path)]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "set()"


def test_help_names_every_option(compared: Commands) -> None:
    answer = compared("--help")
    assert answer.code == 0
    for option in ("--unfinished", "--sort", "--csv", "--markdown", "--latex", "--figure", "mean, validation, wrong"):
        assert option in " ".join(answer.out.split())


def test_real_runs_side_by_side(compared: Commands, tmp_path: Path, fedavg: Ran, fedcorr: Ran) -> None:
    answer = compared(fedavg.folder, fedcorr.folder, "--figure", "both.png")
    assert (tmp_path / "both.png").stat().st_size > 10_000
    for line in cells(answer):
        ran = fedavg if "method=fedavg" in line["run"] else fedcorr
        metrics = ran.record["metrics"]
        shown = [line[k] for k in ("last, %", "best, %", "mean of last 10, %", "wrong at the end, %")]
        assert shown == [f"{100 * metrics[k]:.2f}" for k in ("last", "best", "mean_last_10", "noise_final")]
        assert int(line["rounds"]) == ran.record["rounds"]
        assert int(line["participations"]) == ran.record["participations"]
        assert float(line["communication, MiB"]) == pytest.approx(ran.record["bytes"] / 2**20, abs=0.051)


# ----------------------------------------------------------------------------------------------------------- sweeps


def planned(sweep: Path, folders: Sequence[str | None]) -> Path:
    """A sweep's folder whose jobs have these runs."""
    (sweep / "jobs").mkdir(parents=True)
    (sweep / "sweep.json").write_text(json.dumps({"command": [], "jobs": [["seed=1"]] * len(folders)}))
    for number, folder in enumerate(folders):
        if folder is not None:
            (sweep / "jobs" / f"{number}.json").write_text(json.dumps({"number": number, "folder": folder}))
    return sweep


def test_a_sweep_that_continued_runs_elsewhere_shows_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its jobs name them, relative to where the command was started; from there and from elsewhere."""
    first, second = tmp_path / "multirun" / "a" / "1", tmp_path / "multirun" / "a" / "2"
    for number in range(2):
        made(first / str(number), f"method=fedavg seed={number + 1}")
    made(second / "2", "method=fedavg seed=3")
    planned(first, [str(first / "0"), str(first / "1"), None])
    planned(second, ["multirun/a/1/0", "multirun/a/1/1", str(second / "2")])
    for here in (tmp_path, second, tmp_path.parent):
        monkeypatch.chdir(here)
        (row,) = grouped(find([str(second)]))
        assert [run.seed for run in row.runs] == [1, 2, 3]
        assert capsys.readouterr().err == ""
    (row,) = grouped(find([str(first)]))
    assert [run.seed for run in row.runs] == [1, 2]
    assert "1 of its 3 jobs has no run here; if another sweep continued this one" in capsys.readouterr().err
    (row,) = grouped(find([str(first), str(second)]))
    assert [run.seed for run in row.runs] == [1, 2, 3], "each once"


@pytest.mark.parametrize("text", ["", "[1]", '{"jobs": 3}', '{"jobs": [["seed=1"]]}'])
def test_a_broken_plan_hides_no_run(text: str, tmp_path: Path) -> None:
    made(tmp_path / "sweep" / "0", "method=fedavg seed=1")
    (tmp_path / "sweep" / "sweep.json").write_text(text)
    (tmp_path / "sweep" / "jobs").mkdir()
    (tmp_path / "sweep" / "jobs" / "0.json").write_text("{")
    assert [run.seed for run in find([str(tmp_path / "sweep")])] == [1]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_figure_is_titled_by_its_data_sets(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of their names, whatever that of the rows; more than two are counted."""
    titles: list[str] = []
    monkeypatch.setattr("flnl.figures.curves.read", lambda rows: rows)
    monkeypatch.setattr("flnl.figures.curves.draw", lambda _, title: titles.append(title))
    found = list(permutations(["cifar10", "clothing1m", "digits", "mnist", "fashion_mnist"], count))
    for names in found:
        program.draw([("", [("x", [])])], sorted(names), tmp_path / "none.png")
    assert titles == [" and ".join(sorted(names)) if count <= 2 else "3 data sets" for names in found]
