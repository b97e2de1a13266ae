"""What runs came to is told from their records, whatever was planned."""

import json
from pathlib import Path
from typing import Any

import pytest

from flnl.instruments.tables import load, notes, run_notes
from flnl.instruments.tables.plan import Plan
from flnl.instruments.tables.run_notes import Ended
from flnl.instruments.tables.scaling import Scaling
from flnl.instruments.tables.table import Column, Metric, Row, Table
from flnl.record.run import RunRecord

Given = dict[str, list[tuple[Ended, ...]]]


def ended(key: str, made: int = 560, planned: int = 560, loss: float = 0.5, **metrics: Any) -> Ended:
    record = {"key": key, "participations": made, "metrics": {"best": 0.5, **metrics}}
    return Ended(key, planned, RunRecord.of(record), {"accuracy": 0.5, "test_loss": loss})


def test_runs_that_ended_with_fewer_trainings_are_counted_by_row() -> None:
    """A run behind two columns counts once; so does a row whose budget was less from the start, by its own."""
    short = ended("a", 182)
    rows = {
        "CS": [(short,), (ended("b", 452), ended("c")), (short,)],
        "whole": [(ended("d"),), (), ()],
        "less": [(ended("e", 340, 360),), (ended("f", 360, 360),), ()],
    }
    assert run_notes.endings(rows) == [
        "Runs that ended with fewer local trainings than their budget: 2 of 3 of “CS” (182 to 452 of 560), "
        "1 of 2 of “less” (340 of 360)."
    ]
    assert run_notes.endings({"whole": rows["whole"]}) == []


def test_a_record_without_a_count_is_not_short_of_it() -> None:
    assert run_notes.endings({"a": [(Ended("k", 560, RunRecord.of({"key": "k"}), {}),)]}) == []


def test_the_noise_of_a_column_is_the_mean_of_its_runs_and_a_span_if_rows_have_other_data() -> None:
    rows: Given = {
        "FedAvg": [(ended("a", noise_given=0.4), ended("b", noise_given=0.5)), (ended("c", noise_given=0.25),), ()],
        "FedCorr": [(ended("d", noise_given=0.4), ended("e", noise_given=0.5)), (ended("f", noise_given=0.125),), ()],
        "not run": [(), (), (ended("g"),)],  # data whose truth is unknown
    }
    assert run_notes.realised_noise(rows) == ("45.0", "12.5 to 25.0", "")


def test_rows_that_agree_to_the_bit_are_told() -> None:
    """Of three rows two agree in both columns: one in 2^-53 of a loss is another run."""
    columns = ["x", "y"]
    rows: Given = {
        "EMD": [(ended("a"),), (ended("b", loss=0.25),)],
        "EMD and sign": [(ended("c"),), (ended("d", loss=0.25),)],
        "mean": [(ended("e", loss=0.5 + 2**-53),), (ended("f", loss=0.25, best=0.6),)],
    }
    assert run_notes.alike(columns, rows, {}) == [
        "“EMD” and “EMD and sign” are different runs that agree to the last bit in every column."
    ]
    rows["EMD and sign"][1] = (ended("d", loss=0.125),)
    assert run_notes.alike(columns, rows, {}) == [
        "“EMD” and “EMD and sign” are different runs that agree to the last bit in x."
    ]
    rows["EMD and sign"][0] = (ended("a"),)
    assert run_notes.alike(columns, rows, {}) == ["“EMD” and “EMD and sign” are the same runs in x."]


def test_every_seed_must_agree() -> None:
    rows: Given = {
        "a": [(ended("1"), ended("2"))],
        "b": [(ended("3"), ended("4", loss=0.1))],
        "c": [(ended("5"),)],
        "d": [()],
    }
    assert run_notes.alike(["x"], rows, {}) == []


def test_runs_that_recorded_no_evaluation_cannot_be_compared() -> None:
    rows = {name: [(Ended(name, 560, RunRecord.of({"key": name}), {}),)] for name in "ab"}
    assert run_notes.alike(["x"], rows, {}) == []


def test_what_explains_it_is_told() -> None:
    """No sign was negative in either: the sign had nothing to change."""
    no_effect = load.table("fedes_4").no_effect
    rows = {name: [(ended(name, negative_signs=0.0),)] for name in "ab"}
    (told,) = run_notes.alike(["x"], rows, no_effect)
    assert told == (
        "“a” and “b” are different runs that agree to the last bit in every column; "
        "in none of them was a client's sign negative."
    )
    rows = {name: [(ended(name, negative_signs=1.0),)] for name in "ab"}
    assert run_notes.alike(["x"], rows, no_effect)[0].endswith("in every column.")


def test_how_right_estimates_of_quality_were_is_told() -> None:
    rows: Given = {
        "FedES": [(ended("a", quality_rank_correlation=0.934),), (ended("b", quality_rank_correlation=-0.0526),)],
        "mean": [(ended("c", quality_rank_correlation=-0.03),), (ended("d", quality_rank_correlation=None),)],
        "again": [(ended("f", quality_rank_correlation=-0.0312),), ()],
        "FedAvg": [(ended("e"),), ()],
    }
    assert run_notes.estimates(rows) == [
        "Rank correlation of clients' estimated with their true quality, 0 by chance: −0.05 to 0.93 in “FedES”; "
        "−0.03 in “mean”, “again”."
    ]
    assert run_notes.estimates({"FedAvg": rows["FedAvg"]}) == []


def test_rows_that_were_given_the_noise_rate_are_marked() -> None:
    def run(key: str, origin: str | None) -> Ended:
        marks = {} if origin is None else {"given": {"method.local.x.rate": 0.4}, "given_origin": origin}
        return Ended(key, 560, RunRecord.of({"key": key, "participations": 560, **marks}), {})

    nominal, estimate = run("a", "nominal rate of the noise"), run("b", "estimate for clothing1m")
    rows: Given = {
        "FedAvg": [(run("c", None),), ()],
        "Co-teaching": [(nominal,), (estimate,)],
        "again": [(nominal,), ()],
    }
    assert run_notes.given(rows) == [
        "Given the noise rate, which a real federation does not know: “Co-teaching” (estimate for clothing1m); "
        "“Co-teaching”, “again” (nominal rate of the noise)."
    ]
    assert run_notes.given({"FedAvg": rows["FedAvg"]}) == []


def test_rows_that_were_given_clean_samples_are_marked() -> None:
    def run(key: str, clean: int | None) -> Ended:
        return Ended(key, 560, RunRecord(key=key, clean_samples=clean or 0), {})

    rows: Given = {
        "FedAvg": [(run("a", None),), ()],
        "Fair": [(run("b", 2000),), (run("c", 720),)],
        "S-FedAvg": [(run("d", 2000),), ()],
    }
    assert run_notes.helped(rows) == [
        "Given clean samples of the test set, on which no model of the table is tested: 720 to “Fair”; 2,000 to "
        "“Fair”, “S-FedAvg”."
    ]
    assert run_notes.helped({"FedAvg": rows["FedAvg"]}) == []


def test_images_that_are_not_the_published_files_are_told() -> None:
    """As far as records tell: whose checksums were not looked at, and a user's own folders."""
    cifar = {"_target_": "flnl.data.datasets.torchvision.Cifar", "name": "cifar10"}
    folder = {"_target_": "flnl.data.datasets.image_folder.ImageFolder", "name": "clothes"}
    every = [cifar | {"verify": True}, cifar | {"verify": False}, folder, {"name": "digits"}]
    runs = [
        Ended(str(i), 1, RunRecord.of({"config": {"dataset": one}, "data": f"{i}" * 64}), {})
        for i, one in enumerate(every)
    ]
    first, second = run_notes.sources({"a": [tuple(runs)]})
    assert first.startswith("1 of 4 runs took cifar10 from files that were not compared")
    assert first.endswith(f"The digest of these data is {'1' * 64}.")
    assert second.startswith("1 of 4 runs took clothes from a folder of images")
    assert run_notes.sources({"a": [(runs[0],)]}) == []


@pytest.mark.parametrize(("status", "told"), [("finished", True), ("interrupted", False)])
def test_a_table_is_told_from_its_finished_runs(status: str, told: bool, tmp_path: Path) -> None:
    scaling = Scaling("tiny", "", (), (1,), ("dataset=digits", "protocol=digits", "model=mlp"), {}, {})
    rows = tuple(Row(n, n, (f"method={n.lower()}",), None) for n in ("FedAvg", "FedProx"))
    columns = (Column("a", ("experiment=fedcorr/cifar10_iid",)), Column("b", ("experiment=fedcorr/cifar10_iid",)))
    table = Table("t", "", "1", "", Metric("m", "last", "", None), None, rows, columns, ((None,) * 2,) * 2, ())
    plan = Plan([table], scaling, None, tmp_path)
    assert len(plan.runs) == 2, "columns of the same runs"
    for run in plan.runs.values():
        plan.at(run).mkdir(parents=True)
        record = {"key": run.identity.key, "status": status, "participations": 400, "config": {}}
        record["metrics"] = {"best": 0.5}
        (plan.at(run) / "result.json").write_text(json.dumps(record))
        line = {"kind": "evaluation", "accuracy": 0.5, "participations": 400, "test_loss": 1 / 3}
        (plan.at(run) / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    own, *found = notes.noted(Plan([table], scaling, None, tmp_path))[0].notes
    assert own.startswith("All runs have experiment=fedcorr/cifar10_iid. ")
    expected = (
        "Runs that ended with fewer local trainings than their budget: 1 of 1 of “FedAvg” (400 of 560), "
        "1 of 1 of “FedProx” (400 of 560).",
        "“FedAvg” and “FedProx” are different runs that agree to the last bit in every column.",
    )
    assert found == ([*expected] if told else [])
