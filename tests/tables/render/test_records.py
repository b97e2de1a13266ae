"""A record is small, and has every number that a cell can be made of."""

import json
from dataclasses import replace
from pathlib import Path

from flnl.tables import metric_values, run_record
from flnl.tables.render import records, render
from flnl.tables.render.evidence import Evidence
from flnl.tables.table import Column, Metric
from tests.tables.render.made import recorded, run, table


def test_the_record_has_what_cells_are_made_of(tmp_path: Path) -> None:
    one = run(1, 50.0, str(tmp_path / "r"))
    recorded(one.folder, [0.1, 0.25, 0.5, 0.45], key="k", participations=40)
    with (one.folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "round", "round": 4, "local_memorization": 0.125, "cohort": [1, 2]}) + "\n")
    whole = run_record.read(one.folder)
    found = json.loads(records.text(one, whole))
    assert found["evaluations"] == {
        "None": {"round": [1, 2, 3, 4], "participations": [10, 20, 30, 40], "accuracy": [0.1, 0.25, 0.5, 0.45]}
    }
    assert found["evaluation"] == {"round": 4, "participations": 40, "accuracy": 0.45}
    assert found["round"] == {"round": 4, "local_memorization": 0.125}
    assert found["command"] == one.command
    assert found["metrics"]["best"] == 0.5
    for key, where in (("best", "metrics"), ("local_memorization", "round"), ("accuracy", "evaluation")):
        metric = Metric("m", "", None, key)
        value = metric_values.value(whole, metric, Column("c", ()))
        assert value == found[where][key]


def test_a_slip_in_the_name_of_a_metric_is_told_of(tmp_path: Path) -> None:
    one = run(1, 50.0, str(tmp_path / "r"))
    recorded(one.folder, [0.1, 0.25])
    whole = run_record.read(one.folder)
    for key, told in (("bset", "the run recorded no bset, but best: name that"), ("lid", "no lid; if it was made for")):
        assert told in metric_values.without(whole, Metric("m", "", None, key), Column("c", ()))


def test_a_resumed_run_tells_of_every_process(tmp_path: Path) -> None:
    """A run that two commits computed is no run of the last one alone; made again of its record, it tells the same."""
    one = run(1, 50.0, str(tmp_path / "r"))
    before = {"rounds": 2, "commit": "a" * 40, "device": "cpu", "versions": {"torch": "2.0"}, "key": "k", "threads": 1}
    now = {"commit": "b" * 40, "device": "cpu", "versions": {"torch": "2.1"}, "threads": 1}
    recorded(one.folder, [0.5], **now, earlier=[before, {**before, **now, "rounds": 3}])
    table_of = replace(
        filled := table({"A": [[1.0]]}, {"A": [1.0]}, ["x"]),
        cells=((replace(filled.cells[0][0], runs=(one,)),),),
    )
    told = json.loads(records.text(one, run_record.read(one.folder)))["earlier"]
    assert told == [{"rounds": 2, "commit": "a" * 40, "versions": {"torch": "2.0"}}, {"rounds": 3}]
    summary = Evidence().provenance([table_of])
    assert summary["commit"] == f"{'a' * 40} (1 run), {'b' * 40} (1 run)"
    assert (summary["runs"], summary["device"], summary["versions"]) == ("1", "cpu", "torch 2.0, torch 2.1")
    recorded(one.folder, [0.5], **now, earlier=told)
    assert json.loads(records.text(one, run_record.read(one.folder)))["earlier"] == told
    assert Evidence().provenance([table_of]) == summary


def test_only_finished_runs_have_one_and_each_once(tmp_path: Path) -> None:
    filled = table({"A": [[1.0, None]]}, {"A": [1.0]}, ["x"])
    assert records.files([filled], Evidence()) == {}, "a folder that is gone"
    top = tmp_path / "runs"
    runs = tuple(run(seed, value, str(top / "a")) for seed, value in ((1, 1.0), (2, None)))
    recorded(runs[0].folder, [0.5])
    recorded(runs[1].folder, [0.5])
    cell = type(filled.cells[0][0])((None,), runs, "partly", None)
    both = type(filled)(**{**vars(filled), "cells": ((cell,),)})
    assert list(records.files([both, both], Evidence())) == ["runs/a-1.json"]


def test_a_damaged_run_leaves_no_record(tmp_path: Path) -> None:
    filled = table({"A": [[1.0, 2.0]]}, {"A": [1.0]}, ["x"])
    runs = tuple(run(seed, value, str(tmp_path / "a")) for seed, value in ((1, 1.0), (2, None)))
    runs = (runs[0], replace(runs[1], state="finished"))
    for one in runs:
        recorded(one.folder, [0.5])
    (runs[1].folder / "metrics.jsonl").write_text("3\n")
    (cells,) = filled.cells
    filled = replace(filled, cells=((replace(cells[0], runs=runs),),))
    assert list(records.files([filled], Evidence())) == ["runs/a-1.json"]


def test_records_of_runs_that_are_no_longer_used_are_removed(tmp_path: Path) -> None:
    """Those of tables that are not rendered this time stay, and so does what is no record, beside any CSV file."""
    kept, gone, foreign = (tmp_path / "runs" / f"{name}.json" for name in ("0" * 16, "a" * 16, "mine"))
    kept.parent.mkdir()
    for file in (kept, gone, foreign):
        file.write_text("{}")
    (tmp_path / "other.csv").write_text('"[""runs/0000000000000000.json""]"')
    (tmp_path / "costs.csv").write_bytes("Grün;1\n".encode("latin-1"))
    render([table({"A": [[1.0]]}, {"A": [1.0]}, ["x"])], tmp_path)
    assert sorted(kept.parent.iterdir()) == [kept, foreign]
