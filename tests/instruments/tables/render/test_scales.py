"""Several scales side by side: tables read back from their CSV files, and the page over them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flnl.core.errors import UserError
from flnl.instruments.tables import load, run_record
from flnl.instruments.tables.render import csv, rendered, scales
from flnl.instruments.tables.render.agreement import agreements, coefficient, of_column
from flnl.instruments.tables.render.evidence import Evidence
from flnl.instruments.tables.render.markdown import escaped
from flnl.instruments.tables.render.ranking import papers_mean_ranks, ranking
from flnl.instruments.tables.results import Filled
from tests.cli.conftest import ROOT
from tests.instruments.tables.conftest import Tables, copied
from tests.instruments.tables.render.made import Given, recorded, run, table

OURS: Given = {
    "a": [[91.0, 93.0], [60.0, None], [10.0, 11.0]],
    "b": [[90.0, 90.0], [61.0, 62.0], "no b here"],
    "c": [[80.0, 99.0], [50.0, 52.0], None],
    "d": [[85.0, 85.0], [40.0, 41.0], [9.0, 9.0]],
}
PAPERS: dict[str, list[float | None]] = {
    "a": [90.0, 91.0, 70.0, 30.0],
    "b": [80.0, 92.0, 71.0, None],
    "c": [85.0, 80.0, None, 20.0],
    "d": [70.0, 70.0, 60.0, 10.0],
}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables that the folder ``conf/table`` would have."""
    tables = {one.table.name: one.table for one in made("1", "2")}
    monkeypatch.setattr(load, "readable", lambda: (tuple(tables.values()), []))


def made(*numbers: str) -> list[Filled]:
    """Tables whose first rendered column merges two of the paper's."""
    return [table(OURS, PAPERS, ["s", "t", "u", "v"], [[0, 1], [2], [3]], number=number) for number in numbers]


def written(folder: Path, filled: Sequence[Filled]) -> Path:
    folder.mkdir(parents=True)
    for one in filled:
        (folder / f"{one.table.name}.csv").write_text(csv.table(one, Evidence()))
    return folder


@pytest.mark.usefixtures("known")
def test_a_table_that_is_read_back_has_the_same_orders_and_ranks(tmp_path: Path) -> None:
    """Cells of some seeds, of no runs and merged columns among them."""
    filled = made("1", "2")
    found = rendered.read(written(tmp_path / "small", filled))
    assert [one.table for one in found] == [one.table for one in filled]
    for one, other in zip(found, filled, strict=True):
        assert one.of_paper == other.of_paper
        assert agreements(one) == agreements(other)
        for row, cells in zip(one.cells, other.cells, strict=True):
            for cell, of_run in zip(row, cells, strict=True):
                assert (cell.state, cell.papers, len(cell.runs)) == (of_run.state, of_run.papers, len(of_run.runs))
                assert cell.sort_key == pytest.approx(of_run.sort_key)
    ours, theirs = ranking(filled), ranking(found)
    assert ours is not None
    assert theirs is not None
    assert theirs.mean_ranks == ours.mean_ranks
    assert papers_mean_ranks(theirs) == papers_mean_ranks(ours)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda text: text.replace("table,row", "tables,row"), "p_1.csv does not fit .*; render it again"),
        (lambda text: "", "p_1.csv does not fit"),
        (lambda text: text.replace(",run,", ",ran,", 1), "p_1.csv does not fit"),
        (lambda text: text.replace("p_1,a,all,", "p_1,a,all,more,", 1), "p_1.csv does not fit"),
        (lambda text: text[: len(text) // 2], "p_1.csv does not fit"),
        (lambda text: text.replace(",92,", ",nan,", 1), "p_1.csv does not fit"),
        (lambda text: text.replace("p_1,b,", "p_1,beta,"), "p_1.csv does not fit conf/table/p_1.yaml"),
        (lambda text: text.replace(",s,small", ",z,small"), "p_1.csv does not fit conf/table/p_1.yaml"),
    ],
)
def test_what_does_not_fit_the_table_is_not_read(tmp_path: Path, changed: object, said: str) -> None:
    file = written(tmp_path / "small", made("1")) / "p_1.csv"
    file.write_text(changed(file.read_text()))  # type: ignore[operator]
    with pytest.raises(UserError, match=said):
        rendered.read(file.parent)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("records", ["[", "3"])
def test_records_that_are_no_list_do_not_fit_the_table(tmp_path: Path, records: str) -> None:
    """They are read for a metric alone."""
    file = written(tmp_path / "small", made("1")) / "p_1.csv"
    file.write_text(file.read_text().replace(",[],", f",{records},", 1))
    with pytest.raises(UserError, match=r"p_1\.csv does not fit"):
        rendered.read(file.parent, "last")


def test_the_page_has_medians_ranks_and_settings_by_hand() -> None:
    """Two scales: in the first our order is the paper's, in the second it is reversed in one of two settings."""
    theirs: dict[str, Sequence[float | None]] = {"a": [9.0, 9.0], "b": [8.0, 8.0], "c": [7.0, 7.0]}
    same = table({"a": [[3.0], [3.0]], "b": [[2.0], [2.0]], "c": [[1.0], [1.0]]}, theirs, ["s", "t"])
    other = table({"a": [[1.0], [3.0]], "b": [[2.0], [2.0]], "c": [[3.0], [1.0]]}, theirs, ["s", "t"])
    costs = replace(same, table=replace(same.table, name="p_9", metric=replace(same.table.metric, name="cost")))
    text = scales.page({"small": [same, costs], "lenet": [other]})
    assert "| P | [small](small/README.md) | 2 | 1.00 | 2 | 2 | a | a |" in text
    assert "| P | [lenet](lenet/README.md) | 2 | 0.00 | 1 | 2 | a, b, c | a |" in text, "the median of -1 and 1; ties"
    assert "| mean rank | small, ours / the paper's | lenet, ours / the paper's |" in text
    assert "| c | 3.0 / 3.0 | 2.0 / 3.0 |" in text
    assert "| Table 1: s | 1.00 (3) | −1.00 (3) |" in text
    assert "| Table 1: t | 1.00 (3) | 1.00 (3) |" in text
    assert text.startswith(f"{scales.TITLE}\n")
    assert scales.page({"small": [same]}, "mean_last_10").startswith(f"{scales.TITLE}, by mean\\_last\\_10\n")


def test_an_ablation_is_no_order_of_methods() -> None:
    order: Given = {name: [[value]] for name, value in zip("abcd", [2.0, 1.0, 4.0, 3.0], strict=True)}
    one = table(order, {name: [float(k)] for k, name in enumerate("abcd")}, ["s"])
    assert "| Table 1: s |" in scales.page({"small": [one]})
    ablation = replace(one, table=replace(one.table, ablation=True))
    assert "| P |" not in scales.page({"small": [ablation]})
    assert ranking([ablation]) is None


def test_a_coefficient_that_is_shown_as_080_counts_as_such() -> None:
    """It is 1 - 6 * 4 / 120, which is 0.7999999999999999 in floats."""
    order: Given = {name: [[value]] for name, value in zip("abcde", [2.0, 1.0, 4.0, 3.0, 5.0], strict=True)}
    same = table(order, {name: [float(k)] for k, name in enumerate("abcde")}, ["s"])
    assert "| 1 | 0.80 | 1 | 1 | e | e |" in scales.page({"small": [same]})


def test_tables_of_costs_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their file does not tell which seeds reached a target."""
    (one,) = made("1")
    costs = replace(one, table=replace(one.table, metric=replace(one.table.metric, name="cost")))
    monkeypatch.setattr(load, "readable", lambda: ((costs.table,), []))
    assert rendered.read(written(tmp_path / "small", [costs])) == []


@pytest.mark.parametrize("word", ["fedcorr_2", "seeds=3", "scale=small", "records=x"])
def test_the_command_takes_a_folder_alone(command: Tables, word: str) -> None:
    said = command("agree", word)
    assert said.code == 2
    assert "agree takes all tables below a folder and no" in said.err


def test_the_command_writes_the_page_of_all_folders(command: Tables, tmp_path: Path) -> None:
    assert "has no rendered table of a paper's accuracies" in command("agree").err
    mine: Path = copied(tmp_path)
    (tmp_path / "table" / "draft.yaml").write_text("[")  # a broken draft, and a table of one's own, do not matter
    (tmp_path / "results" / "small").mkdir(parents=True)
    (tmp_path / "results" / "small" / "mine.csv").write_text("old")
    mine.with_stem("fedcorr_99").write_text(f"paper: FedCorr\n{mine.read_text()}")
    command("run", "fedcorr_99", "--", "hydra/launcher=basic")
    command("render", "fedcorr_99")
    said = command("agree")
    assert (said.code, said.out.split()) == (0, ["results/README.md"]), said.err
    assert "| FedCorr | [small](small/README.md) |" not in (page := (tmp_path / "results/README.md").read_text())
    assert "## FedCorr" in page, "a paper of two methods has no coefficient, but settings"
    assert "fewer than 3 methods (2)" in page
    (tmp_path / "results" / "README.md").write_text("# Mine")
    refused = command("agree")
    assert (refused.code, "results/README.md is another page" in refused.err) == (2, True)


@pytest.mark.parametrize(("file", "metric"), [("README.md", None), ("by_mean_last_10.md", "mean_last_10")])
def test_the_page_in_the_repository_is_of_its_tables(file: str, metric: str | None) -> None:
    folder = ROOT / "results"
    names = [path.parent.name for path in folder.glob("*/README.md")]
    ordered = [name for scale in load.scales() for name in (scale, f"{scale}_tuned") if name in names]
    made_anew = scales.page({name: rendered.read(folder / name, metric) for name in ordered}, metric)
    assert (folder / file).read_text() == made_anew, "flnl tables agree writes it again"


@pytest.mark.usefixtures("known")
def test_a_metric_is_the_mean_of_the_runs_records(tmp_path: Path) -> None:
    (filled,) = made("1")
    folder = written(tmp_path / "small", [filled])
    lines = (folder / "p_1.csv").read_text().splitlines()
    records = json.dumps(["x", "y"]).replace('"', '""')
    lines = [line.replace(',[],"[""runs/1-a-0', f',"{records}","[""runs/1-a-0') for line in lines]
    (folder / "p_1.csv").write_text("".join(f"{line}\n" for line in lines))
    for name, last in (("x", 0.5), ("y", 0.25)):
        one = run(1, last, str(tmp_path / name))
        recorded(one.folder, [0.9, last])
        written_line = run_record.line(tmp_path / name, one.command, 1, run_record.read(one.folder))
        run_record.save(folder, {name: written_line})
    (found,) = rendered.read(folder, "last")
    assert found.cells[0][0].number == pytest.approx(37.5)
    assert found.cells[1][0].number is None, "it has no records here"
    with pytest.raises(UserError, match=r"small has no record of a run x with at_best_validation"):
        rendered.read(folder, "at_best_validation")
    file = folder / "runs.jsonl"
    file.write_text(file.read_text().replace('"last": 0.5', '"last": 0.99'))
    with pytest.raises(UserError, match=r"line 1 of .*runs\.jsonl is not as it was written"):
        rendered.read(folder, "last")


def test_orders_that_are_read_back_are_those_of_the_pages() -> None:
    """Of the repository's own tables: what a page of a table says of a column, and what its CSV file gives."""
    found = rendered.read(ROOT / "results" / "small")
    assert len(found) > 20
    for filled in found:
        page = (ROOT / "results" / "small" / f"{filled.table.name}.md").read_text()
        for one in agreements(filled):
            line = f"| {escaped(of_column(one))} | {coefficient(one)} | {len(one.methods)} |"
            assert line in page, filled.table.name
