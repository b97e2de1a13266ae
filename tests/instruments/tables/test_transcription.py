"""Every number that a paper prints is in ``conf/table``, in its place, and nothing else is."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from flnl.instruments.tables import load
from flnl.instruments.tables.table import NEVER, Number, Table

PAPER = {
    found["id"].replace("_t", "_"): found
    for found in yaml.safe_load((Path(__file__).parent / "paper_tables.yaml").read_text())["tables"]
}
OURS = [name for name in load.names() if load.table(name).paper and not load.table(name).by_name]
BOTH_SETS = ("fedpeer_1", "fedpeer_5", "fedpeer_6")
"""The paper stacks two data sets as rows; here they are columns side by side, so that a column is one setting."""

WORDS = {
    "rho": "noise.rho",
    "tau": "noise.tau",
    "p": "partition.p",
    "alpha_dir": "partition.alpha",
    "eta": "noise.eta",
    "mu": "noise.mu",
    "epsilon": "method.epsilon",
}
NAMES = {"FLR local only (ELR)": "FLR local only (ELR)", "none": "FedAvg", "SeGD+NaAgg": "SeGD and NaAgg"}
"""Rows that are called otherwise here."""


def printed(found: dict[str, Any]) -> list[list[Any]]:
    """The paper's cells as this project lays them out."""
    cells = [row["cells"] for row in found["rows"]]
    if found.get("orientation") == "columns_are_methods":
        return [list(column) for column in zip(*cells, strict=True)]
    if found["id"].replace("_t", "_") in BOTH_SETS:
        half = len(cells) // 2
        return [first + second for first, second in zip(cells[:half], cells[half:], strict=True)]
    return cells


def columns(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The parameters of each column as this project lays them out."""
    if found.get("orientation") == "columns_are_methods":
        return [{} for _ in found["rows"]]
    if found["id"].replace("_t", "_") in BOTH_SETS:
        return [{**column, "dataset": name} for name in ("CIFAR-10", "CIFAR-100") for column in found["columns"]]
    return list(found["columns"])


def methods(found: dict[str, Any]) -> list[str]:
    """The method of each row as this project lays them out."""
    if found.get("orientation") == "columns_are_methods":
        return [column["method"] for column in found["columns"]]
    names = [row["method"] for row in found["rows"]]
    return names[: len(names) // 2] if found["id"].replace("_t", "_") in BOTH_SETS else names


def as_printed(number: Number | None, *, target: bool) -> list[float | None] | None:
    """An empty cell of a table of targets is one that was never reached."""
    if target and number is not None and number.mean == NEVER:
        return None
    assert not (target and number is None)
    return None if number is None else [number.mean, number.std]


def test_no_table_is_lost_and_none_is_made_up() -> None:
    assert sorted(OURS) == sorted(PAPER)
    assert len(OURS) == 30
    assert sum(len(row["cells"]) for found in PAPER.values() for row in found["rows"]) == 1069


@pytest.mark.parametrize("name", OURS)
def test_every_number_is_the_papers(name: str) -> None:
    table, expected, target = load.table(name), printed(PAPER[name]), "target_accuracy" in PAPER[name]
    assert [[as_printed(cell, target=target) for cell in row] for row in table.cells] == expected
    assert table.trials == PAPER[name]["n_trials"]
    assert (table.paper.lower(), table.number) == tuple(name.split("_"))


@pytest.mark.parametrize("name", OURS)
def test_rows_are_the_papers_methods_in_its_order(name: str) -> None:
    for row, method in zip(load.table(name).rows, methods(PAPER[name]), strict=True):
        if name == "fedes_4":
            continue  # rows are indicators there, whose names differ
        assert NAMES.get(method, method) in row.label
        if row.missing is not None:
            assert row.missing == method


@pytest.mark.parametrize("name", OURS)
def test_columns_say_the_papers_parameters(name: str) -> None:
    table = load.table(name)
    for column, parameters in zip(table.columns, columns(PAPER[name]), strict=True):
        said = dict(word.split("=", 1) for word in column.overrides)
        experiment = said.get("experiment", "")
        for key, value in parameters.items():
            if key in WORDS and value is not None and WORDS[key] in said:
                assert float(said[WORDS[key]]) == value, column.label
            elif key == "noise_type" and "fedes" in experiment:
                assert said["noise.kind"] == value
            elif key == "noise_type":
                assert (value == "symmetric") != ("asymmetric" in experiment or "random" in experiment)
            elif key == "dataset":
                assert experiment.split("/")[1].startswith(value.lower().replace("-", "")), column.label
            elif key == "partition":
                assert experiment.endswith("_iid") == (value == "iid")


def test_metrics_are_what_the_papers_measure() -> None:
    keys = {
        "best_test_accuracy_percent": ("best", "%"),
        "last_test_accuracy_percent": ("last", "%"),
        "mse_estimated_vs_true_quality": ("quality_error", ""),
    }
    for name in OURS:
        metric, said = load.table(name).metric, PAPER[name]
        if "target_accuracy" in said:
            assert metric.key == f"participations_to_{said['target_accuracy']:.0f}"
            assert metric.higher_is_better is False
        elif said["metric"] != "memorization_percent":
            assert (metric.key, metric.unit) == keys[said["metric"]]


def test_what_is_memorised_is_in_its_column() -> None:
    table = load.table("flr_1")
    for column, said in zip(table.columns, PAPER["flr_1"]["columns"], strict=True):
        side, _, what = said["metric"].partition("_")
        if side == "global":
            assert column.key == f"memorization_{what}"
        elif side == "local":
            assert column.key == f"local_memorization_{what}"
        else:
            assert column.key == "last"


def test_every_row_has_its_method() -> None:
    tables: list[Table] = [load.table(name) for name in OURS]
    assert [(table.name, row.label) for table in tables for row in table.rows if row.missing] == []
