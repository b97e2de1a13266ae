"""Notes under a table say what its runs' settings and records say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flnl.core.errors import UserError
from flnl.instruments.tables import load, notes
from flnl.instruments.tables.identity import Identity
from flnl.instruments.tables.plan import Plan
from flnl.instruments.tables.scaling import Scaling
from flnl.instruments.tables.table import Column, Metric, Row, Table


def identity(**said: Any) -> Identity:
    settings = {key.replace("__", "."): value for key, value in said.pop("settings", {}).items()}
    return Identity(
        **{**dict.fromkeys(("method", "dataset", "model", "precision"), "x"), **COST, **said},
        key="a" * 64,
        folder="a" * 16,
        settings=settings,
    )


COST = {"trainings": 560, "epochs": 5, "batch": 10, "clients": 20}


def test_settings_that_differ_are_told_once_and_with_the_papers() -> None:
    here = identity(settings={"method__mu": 0.01, "method__local__prox__mu": 0.01, "train__lr": 0.05, "method__a": 1})
    there = [
        identity(settings={"method__mu": mu, "method__local__prox__mu": mu, "train__lr": 0.03, "method__a": 1})
        for mu in (1.0, 0.001)
    ]
    plain = identity(settings={"train__lr": 0.05}), identity(settings={"train__lr": 0.03})
    (told,) = notes.constants({"P": [(here, there[0]), (here, there[1])], "A": [plain], "B": [plain]})
    assert told == (
        "Settings that differ, in brackets those of scale=paper: in every row train.lr 0.05 (0.03); "
        "P: mu 0.01 (1 or 0.001)."
    )
    assert notes.constants({"A": [(there[0], there[0])]}) == []
    assert notes.constants({"A": [(here, None)]}) == []


def test_rows_that_go_over_the_data_less_often_are_named() -> None:
    one = identity(trainings=56, epochs=1, clients=1)
    rows = {"A": [(identity(), None)], "central": [(one, None)], "B": [(identity(), None)]}
    assert notes.passes(rows) == [
        "By their budgets rows differ in how often local training goes over the data: 56 in central; 140 in the others."
    ]
    assert notes.passes({"A": rows["A"], "B": rows["B"]}) == []


def test_what_the_paper_leaves_open_has_its_value() -> None:
    here, there = (
        identity(settings={"partition__num_clients": 20, "q": 1}),
        identity(settings={"partition__num_clients": 100}),
    )
    keys = ("partition.num_clients",)
    assert notes.unstated(keys, {"A": [(here, there)]}) == [
        "The paper does not state partition.num_clients (20; 100 at scale=paper)."
    ]
    assert notes.unstated(keys, {"A": [(there, None)]}) == ["The paper does not state partition.num_clients (100)."]
    assert notes.unstated((), {"A": [(here, there)]}) == []
    assert notes.unstated(("train.momentum",), {}) == []
    with pytest.raises(UserError, match=r"unstated names train\.momentum"):
        notes.unstated(("train.momentum",), {"A": [(here, there)]})


@pytest.mark.parametrize("name", [pytest.param("fedpeer_1", marks=pytest.mark.slow), "flr_3"])
def test_what_papers_leave_open_are_settings_that_their_runs_have(name: str, tmp_path: Path) -> None:
    """A slip in a key would be a note that is never seen."""
    table = load.table(name)
    plan = Plan([table], load.scaling("small"), None, tmp_path)
    known = {key for run in plan.runs.values() for key in run.identity.settings}
    assert table.unstated
    assert set(table.unstated) <= known


def test_a_table_of_one_s_own_tells_what_its_labels_do_not(tmp_path: Path) -> None:
    """A table of three rounds would otherwise seem to have the scale's budget."""
    scaling = Scaling("tiny", "", (), (1,), ("dataset=digits", "protocol=digits", "model=mlp"), {}, {})
    columns = tuple(Column(f"ρ={rho}", ("rounds=3", f"noise.rho={rho}")) for rho in (0.2, 0.4))
    rows = (Row("FedAvg", "", ("method=fedavg",), None), Row("FedProx", "", ("method=fedprox",), None))
    table = Table("t", "", "", "", Metric("m", "last", "", None), None, rows, columns, ((None,) * 2,) * 2, ())
    said = "All runs have rounds=3. Where these or a label differ from the scale, they hold."
    assert notes.noted(Plan([table], scaling, None, tmp_path))[0].notes[0] == said
    other = replace(table, name="u", columns=(Column("c", ("noise.rho=0.2", "rounds=3.0e+0")),), cells=((None,),) * 2)
    assert notes.noted(Plan([other, table], scaling, None, tmp_path))[1].notes[0] == said, "runs that are shared"


def test_a_table_of_a_paper_is_told_from_the_runs_and_the_papers_setting(tmp_path: Path) -> None:
    scaling = Scaling("tiny", "", (), (1,), ("dataset=digits", "protocol=digits", "model=mlp"), {}, {})
    column = Column("c", ("experiment=fedcorr/cifar10_iid",))
    rows = (Row("FedProx", "FedProx", ("method=fedprox",), None), Row("X", "X", (), "X"))
    table = Table("t", "P", "1", "", Metric("m", "last", "", None), None, rows, (column,), ((None,), (None,)), ())
    plan = Plan([table], scaling, None, tmp_path)
    (told,) = notes.noted(plan)[0].notes
    assert "mu 0.01 (1)" in told
    (run,) = plan.runs.values()
    plan.at(run).mkdir(parents=True)
    config = {"dataset": {"name": "d", "verify": False}}
    record = {"key": run.identity.key, "status": "finished", "config": config, "metrics": {}}
    (plan.at(run) / "result.json").write_text(json.dumps(record))
    (plan.at(run) / "metrics.jsonl").touch()
    assert len(notes.noted(Plan([table], scaling, None, tmp_path))[0].notes) == 2
