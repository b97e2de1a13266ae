"""What a table's or a scale's file says is taken as it stands, or refused in a sentence that names the place."""

from pathlib import Path

import pytest

from flnl.core.errors import UserError
from flnl.instruments.tables import load
from flnl.instruments.tables.scaling import Scaling
from flnl.instruments.tables.table import Number

OWN = """\
title: mine
metric: {name: best test accuracy, unit: "%", key: best}
overrides: [dataset=digits]
columns:
  - {label: a, overrides: [noise.rho=0.0]}
  - {label: b, key: last}
rows:
  - {label: FedAvg, overrides: [method=fedavg], cells: [[1.5, 0.5], 2]}
  - {label: Other, missing: Other, cells: [null, [3.0, null]]}
  - {label: FedProx, method: Prox, overrides: [method=fedprox]}
"""


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of a table of one's own, in a folder that stands for ``conf/table``."""
    monkeypatch.setattr(load, "TABLES", tmp_path)
    monkeypatch.setattr(load, "CONF", tmp_path / "conf")  # of which files are shown relative to the parent
    load.table.cache_clear()
    (tmp_path / "own_table.yaml").write_text(OWN)
    return tmp_path / "own_table.yaml"


def test_a_table_is_read_as_it_stands(own: Path) -> None:
    table = load.table("own_table")
    assert (table.paper, table.number, table.trials) == ("", "", None)
    assert [c.overrides for c in table.columns] == [("dataset=digits", "noise.rho=0.0"), ("dataset=digits",)]
    assert [c.key for c in table.columns] == [None, "last"]
    assert [(r.label, r.method, r.missing) for r in table.rows] == [
        ("FedAvg", "FedAvg", None),
        ("Other", "Other", "Other"),
        ("FedProx", "Prox", None),
    ]
    assert table.cells == ((Number(1.5, 0.5), Number(2.0, None)), (None, Number(3.0, None)), (None, None))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("cells: [[1.5, 0.5], 2]", "cells: [2]", "FedAvg has 1 cells for 2 columns"),
        (
            "overrides: [method=fedavg]",
            "override: [method=fedavg]",
            "rows.0: override is not a key; did you mean overrides",
        ),
        ("title: mine\n", "", "own_table.yaml: title is missing"),
        ("[method=fedavg]", "[method=fedavg, seed=3]", "own_table.yaml: seed=3: a cell has a run for each seed"),
        ("[dataset=digits]", "[dataset=digits, max_rounds=1]", "own_table.yaml: max_rounds=1: .*; set rounds"),
        ("[method=fedprox]", "[method=fedprox], where: {dataset=digits: [+output=x]}", "output=x: .* after its key"),
        ("{label: b, key: last}", "{label: a, key: last}", "two columns are called a"),
        ("{label: Other,", "{label: FedAvg,", "two rows are called FedAvg"),
        ("[[1.5, 0.5], 2]", "[[1.5, 0.5], .nan]", "rows.0.cells.1: nan: .*a number, .mean, std., never or null"),
        ("[[1.5, 0.5], 2]", "[[1.5, .inf], 2]", "rows.0.cells.0: "),
        ("[[1.5, 0.5], 2]", "[[1.5, 0.5, 3], 2]", "rows.0.cells.0: "),
        ("[[1.5, 0.5], 2]", "[[1.5, 0.5], true]", "rows.0.cells.1: "),
        ("[[1.5, 0.5], 2]", "[[1.5, 0.5], '2']", "rows.0.cells.1: "),
        ("title: mine\n", "title: mine\ntitle: yours\n", "line 2 says title again"),
        ("key: last}", "key: last, key: best}", "line 6 says key again"),
        ("overrides: [dataset=digits]", "overrides: dataset=digits", "overrides must be a list"),
        ("[method=fedavg]", "[method=fedavg, 3]", "rows.0.overrides.1: 3: must be a text"),
        ('{name: best test accuracy, unit: "%", key: best}', "best", "metric must have its keys"),
        ("title: mine\n", "title: mine\nscales: [smal]\n", "own_table.yaml: scales: smal is not a scale; .*mean small"),
        ("title: mine\n", "title: mine\nscales: small\n", "scales must be a list"),
        (
            "title: mine\n",
            "title: mine\nseeds: [1, 1]\n",
            r"seeds: \[1, 1\]: must be distinct numbers, as in \[1, 2\]$",
        ),
        ("title: mine\n", "title: mine\nseeds: trials\n", "own_table.yaml: seeds: trials: must be distinct numbers"),
        ("title: mine\n", "title: mine\ntrials: x\n", "trials: x: must be a whole number"),
        ('unit: "%"', "higher_is_better: maybe", "metric.higher_is_better: maybe: must be true, false or null"),
        ("[method=fedprox]", "[method=fedprox], where: 3", "rows.2.where must have its keys"),
        (OWN, "[]", "own_table.yaml must have its keys"),
        (OWN, "", "own_table.yaml must have its keys"),
        (OWN, "{1: 2}", "own_table.yaml: "),
        (OWN[OWN.index("rows:") :], "rows: []", "rows must not be empty"),
        ("title: mine\n", "title: mine\ntrials: 0\n", "trials: 0: must be greater than or equal to 1"),
        ("unit:", "units:", "metric: units is not a key; did you mean unit"),
        ("[dataset=digits]", "[dataset=digits", "is no YAML"),
        ("cells: [[1.5, 0.5], 2]", "cells: [1.5, never]", "FedAvg has a cell “never”"),
        ("unit:", "over: lowest, unit:", "metric.over is lowest, which only a metric where lower is better can have"),
        (
            "[method=fedprox]",
            "[method=fedprox], where: {noise.rho=0.1: [a=1]}",
            "where names noise.rho=0.1, which no column has",
        ),
        (
            "[method=fedprox]",
            "[method=fedprox], where: {noise.rho=0.0 noise.tau=0.5: [a=1]}",
            "where names noise.rho=0.0 noise.tau=0.5, which no column has",
        ),
    ],
)
def test_what_is_wrong_is_named(own: Path, before: str, after: str, said: str) -> None:
    own.write_text(OWN.replace(before, after))
    with pytest.raises(UserError, match=said):
        load.table("own_table")


@pytest.mark.parametrize("name", ["README", "readme", "my table", "a(b)"])
def test_a_table_that_would_have_no_page_of_its_own_is_refused(own: Path, name: str) -> None:
    own.rename(own.with_stem(name))
    with pytest.raises(UserError, match=r"\.yaml: rename it, with letters, digits, _ and - alone"):
        load.table(name)


def test_a_name_that_is_not_there_gets_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean fedcorr_2"):
        load.table("fedcor_2")
    with pytest.raises(UserError, match="did you mean small"):
        load.scaling("smal")


def test_tables_come_by_paper_and_number() -> None:
    names = load.names()
    assert names.index("fedcorr_9") < names.index("fedcorr_10") < names.index("feddiv_1") < names.index("fedes_5")
    assert load.scales() == ["small", "mnist", "lenet", "cifar", "paper"]


def test_a_scale_says_what_it_changes() -> None:
    for name in load.scales():
        scaling = load.scaling(name)
        assert bool(scaling.changes) != scaling.papers, name  # who is not the paper says what differs
        assert all(change.endswith(".") for change in scaling.changes), name


def test_a_table_may_have_seeds_of_its_own(own: Path) -> None:
    scale = Scaling("s", "", (), (1,), (), {}, {})
    assert scale.of(load.table("own_table")).seeds == (1,)
    own.write_text("seeds: [7, 5]\n" + OWN)
    load.table.cache_clear()
    table = load.table("own_table")
    assert [scale.of(table, seeds).seeds for seeds in (None, 1, 3)] == [(7, 5), (7,), (7, 5, 8)]


def test_seeds_are_the_scales_or_the_papers_trials_or_as_many_as_asked() -> None:
    table = load.table("fedpeer_3")
    assert load.scaling("small").of(table).seeds == (1,)
    assert load.scaling("paper").of(table).seeds == tuple(range(1, 11))
    assert load.scaling("paper").of(load.table("fedcorr_11")).seeds == (1,)
    assert load.scaling("small").of(table, 3).seeds == (1, 2, 3)


@pytest.mark.parametrize("seeds", ["[]", "[1, 1]", "[1.5]", "[-1]", "trial", "3"])
def test_seeds_of_a_scale_are_distinct_numbers(own: Path, monkeypatch: pytest.MonkeyPatch, seeds: str) -> None:
    """An empty list would silently be the paper's trials."""
    monkeypatch.setattr(load, "SCALES", own.parent / "scale")
    (own.parent / "scale").mkdir()
    (own.parent / "scale" / "tiny.yaml").write_text(f"title: t\nchanges: []\nseeds: {seeds}\n")
    with pytest.raises(UserError, match=r"tiny.yaml: seeds: .* must be distinct numbers, as in \[1, 2\], or trials"):
        load.scaling("tiny")


@pytest.mark.parametrize(
    ("more", "idle"),
    [
        ("instead: {method=fedprox: [], method=fedporx: []}", "method=fedporx"),
        ("unavailable: {noise.rho=*: why, experiment=*/clothing2m: why}", r"experiment=\*/clothing2m"),
    ],
)
def test_a_scale_that_speaks_of_what_no_table_says_is_refused(
    own: Path, monkeypatch: pytest.MonkeyPatch, more: str, idle: str
) -> None:
    monkeypatch.setattr(load, "SCALES", own.parent / "scale")
    (own.parent / "scale").mkdir()
    file = own.parent / "scale" / "tiny.yaml"
    file.write_text(f"title: t\nchanges: []\nseeds: [1]\n{more}\n")
    with pytest.raises(UserError, match=rf"tiny.yaml: no table says {idle};"):
        load.scaling("tiny")
