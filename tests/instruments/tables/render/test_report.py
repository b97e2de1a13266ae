"""The page and the files: nothing from elsewhere, every link leads somewhere, every number to its runs and commands."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from flnl.core.errors import UserError
from flnl.figures.curves import Curve
from flnl.figures.style import look
from flnl.instruments.tables import render as package
from flnl.instruments.tables.render import drawings, render
from flnl.instruments.tables.results import Filled
from flnl.record.run import RunRecord
from tests.instruments.tables.render.made import SMALL, recorded, table

VOID = {"meta", "img", "br", "hr", "link", "input"}
EVIL = """<b>&amp; "quoted" 'single' `x` ]]> <script>alert(1)</script>"""


class Page(HTMLParser):
    """What a page holds; open and closing tags must fit."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, Mapping[str, str | None]]] = []
        self.words: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
            self.words.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self.words[tag][-1] += data

    def all(self, attribute: str) -> list[str]:
        """Its values in the order of the page."""
        return [value for _, attrs in self.tags if (value := attrs.get(attribute)) is not None]


@pytest.fixture
def filled(tmp_path: Path) -> list[Filled]:
    """Two tables of one paper and one's own; their runs have left folders below ``tmp_path``."""
    ours = {m: [[50.0 + 10 * i + j, 51.0 + 10 * i] for j in range(5)] for i, m in enumerate(("A", "P", "C"))}
    papers: dict[str, list[float | None]] = {m: [60.0 + i] * 5 for i, m in enumerate(ours)}
    first = table(ours, papers, [f"ρ=0.{j}" for j in range(5)])
    second = table({"A": [[70.0, 71.0]], EVIL: ["not <there>"]}, {"A": [1.0], EVIL: [2.0]}, [EVIL], number="2")
    own = table({"A": [[70.0, None]]}, {"A": [None]}, ["x"], number="3")
    own = replace(own, table=replace(own.table, name="mine", paper="", number="", title=EVIL))
    found = [_moved(one, tmp_path) for one in (first, second, own)]
    for one in found:
        for row in one.cells:
            for cell in row:
                for run in cell.runs:
                    if run.state == "finished":
                        recorded(run.folder, [0.1, 0.5, (run.value or 0) / 100])
    return found


def _moved(one: Filled, top: Path) -> Filled:
    """Its runs below ``top``, with a command that needs escaping."""
    cells = tuple(
        tuple(
            replace(
                cell,
                runs=tuple(
                    replace(run, folder=top / run.folder, command=f"{run.command} 'a=<&\"b>'") for run in cell.runs
                ),
            )
            for cell in row
        )
        for row in one.cells
    )
    return replace(one, cells=cells)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "results" / "small"


@pytest.fixture
def page(filled: list[Filled], out: Path) -> Page:
    render(filled, out)
    return Page((out / "report.html").read_text())


def test_every_table_has_its_files_and_the_paper_its_diagram(filled: list[Filled], out: Path) -> None:
    found = render(filled, out)
    names = [f"{name}.{kind}" for name in ("p_1", "p_2", "mine") for kind in ("md", "tex", "csv")]
    assert sorted(path.name for path in found) == sorted(
        [*names, "ranks_p.svg", "README.md", "report.html", "runs.jsonl"]
    )
    assert sorted(path for path in out.rglob("[!.]*") if path.is_file()) == sorted(found)
    assert len((out / "runs.jsonl").read_text().splitlines()) == 33, "a line a run"
    index = (out / "README.md").read_text()
    assert "(p_1.md)" in index
    assert "![critical-difference diagram of P](ranks_p.svg)" in index
    for said in (
        "runs: 33",
        "started: 2026-11-20",
        "commit: c0ffee",
        "executor: stacked",
        "wall time, all runs: 0.33 h",
    ):
        assert f"- {said}\n" in index
    assert "Budgets are 5 % of the paper's." in index


def test_nothing_comes_from_elsewhere(page: Page, out: Path) -> None:
    text = (out / "report.html").read_text()
    addresses = [a for name in ("src", "href", "xlink:href", "action", "poster", "srcset") for a in page.all(name)]
    assert not [a for a in addresses if re.match(r"(?:[a-z]+:)?//|file:|http", a)]
    assert not re.search(r"@import|@font-face|url\((?!#)", text)
    assert not [tag for tag, _ in page.tags if tag in ("link", "iframe", "object", "embed", "base")]
    without_names = re.sub(r'xmlns(:xlink)?="[^"]*"', "", text)
    assert "http" not in without_names


def test_links_lead_somewhere(page: Page, out: Path) -> None:
    ids = Counter(page.all("id"))
    assert max(ids.values()) == 1
    hrefs = page.all("href") + page.all("xlink:href")
    assert {a[1:] for a in hrefs if a.startswith("#")} <= set(ids)
    assert set(re.findall(r"url\(#([^)]*)\)", (out / "report.html").read_text())) <= set(ids)
    files = [a for a in hrefs if not a.startswith("#")]
    assert files.count("runs.jsonl") == 33 + 1
    assert not [a for a in files if not (out / a).exists()]
    assert not [a for a in files if ".." in a], "nothing that a clone of the project lacks"


def test_every_cell_is_a_link_to_the_commands_of_its_runs(filled: list[Filled], page: Page) -> None:
    runs = [run for one in filled for row in one.cells for cell in row for run in cell.runs]
    assert [text for text in page.words["code"] if " seed=" in text] == [run.command for run in runs]
    cells = [cell for one in filled for row in one.cells for cell in row if cell.runs]
    anchors = [attrs["id"] for tag, attrs in page.tags if tag == "div" and attrs.get("class") == "made"]
    assert len(anchors) == len(cells)
    assert {f"#{anchor}" for anchor in anchors} <= set(page.all("href"))
    assert sum("best 73.00 %, last 73.00 %, mean of the last 10 44.33 %" in text for text in page.words["p"]) == 1


def test_what_names_hold_is_shown_and_not_obeyed(page: Page) -> None:
    assert len(page.words["script"]) == 1
    assert sum(f"{EVIL}, %" in text for text in page.words["th"]) == 1
    assert EVIL in page.words["h3"]


def test_every_table_says_under_which_scale_it_was_made(page: Page) -> None:
    said = "Made at scale “small” (digits): these are not the paper's conditions."
    assert page.words["strong"].count(said) == 1 + 2 + 1, "the page, each table of a paper, the ranks"
    assert page.words["strong"].count("Made at scale “small” (digits).") == 1, "the table of one's own has no paper's"
    assert page.words["li"].count("Images are digits.") == 1, "the caveats once"
    assert page.all("href").count("#conditions") == 3 + 1


def test_a_number_that_an_earlier_table_has_is_a_link_to_it(filled: list[Filled], out: Path) -> None:
    """The same runs, measured in the same way; another metric of these runs is another number."""
    first, second, own = filled
    runs = [replace(second.cells[0][0], runs=first.cells[0][3].runs)]
    last = replace(second.table, metric=replace(second.table.metric, key="last"), name="p_9", number="9")
    again = replace(second, cells=(tuple(runs), second.cells[1]))
    render([first, again, replace(again, table=last), own], out)
    page = Page((out / "report.html").read_text())
    assert page.words["a"].count("as in P 1") == 1
    assert page.all("href").count("#p_1-1-4") == 2
    listed = [str(attrs["id"]) for tag, attrs in page.tags if tag == "div" and attrs.get("class") == "made"]
    assert [one for one in listed if one.endswith(("_2-1-1", "_9-1-1"))] == ["p_9-1-1"]
    assert "52.00" in (out / "p_2.md").read_text(), "files are whole"


def test_the_contents_and_the_filter_name_every_table_and_method(filled: list[Filled], page: Page) -> None:
    tables = [attrs["data-table"] for tag, attrs in page.tags if tag == "li" and "data-table" in attrs]
    assert tables == [one.table.name for one in filled]
    assert page.words["option"] == [
        "all",
        "P",
        "Other tables",
        "all",
        *sorted(("A", "C", "P", EVIL), key=str.lower),
    ]
    rows = [attrs["data-method"] for tag, attrs in page.tags if tag == "tr" and "data-method" in attrs]
    assert rows == [row.method or row.label for one in filled for row in one.table.rows]


def test_numbers_of_another_data_set_are_not_subtracted(filled: list[Filled], out: Path) -> None:
    first, *others = filled
    cells = tuple(tuple(replace(cell, same_data=(False,)) for cell in row) for row in first.cells)
    render([replace(first, cells=cells), *others], out)
    text = (out / "p_1.md").read_text()
    assert "difference" not in text
    assert "Numbers of another data set than the paper's are not subtracted." in text
    assert "|  | difference |" in (out / "p_2.md").read_text()


def test_where_a_paper_has_no_number_nothing_is_said_of_other_data(filled: list[Filled], out: Path) -> None:
    first, *others = filled
    cells = tuple(
        tuple(replace(cell, same_data=(False,) * len(cell.papers), papers=(None,) * len(cell.papers)) for cell in row)
        for row in first.cells
    )
    render([replace(first, cells=cells), *others], out)
    assert "another data set" not in (out / "p_1.md").read_text()


def test_the_noise_of_the_runs_is_the_foot_of_a_table(filled: list[Filled], out: Path) -> None:
    first, *others = filled
    render([replace(first, noise=("44.9", "45.1", "", "", "")), *others], out)
    made = Page((out / "report.html").read_text())
    assert made.words["th"].count("wrong given labels, %") == 1
    assert [word for word in made.words["span"] if word in ("44.9", "45.1")] == ["44.9", "45.1"]


def test_it_can_be_read_without_seeing_it(page: Page) -> None:
    for tag, attrs in page.tags:
        if tag == "th":
            assert attrs.get("scope") in ("col", "row")
        if tag == "img":
            assert attrs.get("alt")
        if tag == "svg":
            assert attrs.get("aria-label") or attrs.get("aria-hidden") == "true"
    assert dict(page.tags[0][1]) == {"lang": "en"}


def test_equal_tables_give_equal_bytes(filled: list[Filled], out: Path, tmp_path: Path) -> None:
    first = {path.name: path.read_bytes() for path in render(filled, out)}
    again = {path.name: path.read_bytes() for path in render(filled, tmp_path / "again" / "small")}
    assert first == again


def test_runs_whose_folders_are_gone_cost_their_curves_alone(
    filled: list[Filled], out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(tmp_path / "runs")
    with caplog.at_level(logging.ERROR):
        render(filled, out)
    page = Page((out / "report.html").read_text())
    assert "Test accuracy over participations" not in " ".join(page.words["h4"])
    assert len([text for text in page.words["code"] if " seed=" in text]) == 34


def test_a_figure_that_cannot_be_drawn_is_named(
    filled: list[Filled], out: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: RunRecord) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(drawings, "FIGURES", {"lid": broken})
    render(filled, out)
    assert "the figure lid of" in caplog.text
    assert (out / "report.html").exists()


def test_what_the_user_can_mend(filled: list[Filled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no table to render"):
        render([], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        render(filled, tmp_path / "file" / "small")
    monkeypatch.setattr(package, "NEEDED", "no_such_module")
    with pytest.raises(UserError, match=r"rendering needs no_such_module: install .* pip install .*\[tables\]'"):
        render(filled, tmp_path)


# ---------------------------------------------------------------------------------------------------------- curves


def curve(accuracy: list[float]) -> Curve:
    x = np.arange(1.0, len(accuracy) + 1)
    return Curve({"round": x, "participations": 10 * x}, np.array(accuracy))


def test_a_line_is_the_mean_over_seeds_in_percent() -> None:
    figure = drawings.curves({0: [curve([0.1, 0.2]), curve([0.3, 0.6])], 9: [curve([0.5, 0.5])]}, (0, 100), 20)
    (axes,) = figure.axes
    several, single = axes.lines
    assert list(np.asarray(several.get_xdata())) == [10, 20]
    np.testing.assert_allclose(np.asarray(several.get_ydata()), [20, 40])
    assert len(axes.collections) == 1, "one seed has no band"
    assert [(line.get_color(), line.get_linestyle()) for line in (several, single)] == [
        look(0),
        look(9),
    ]
    assert len({look(place) for place in range(32)}) == 32


def test_a_long_curve_keeps_its_ends() -> None:
    figure = drawings.curves({0: [curve(list(np.linspace(0, 1, 1000)))]}, (0, 100), 10000)
    line = figure.axes[0].lines[0]
    x = np.asarray(line.get_xdata())
    assert (len(x), x[0], x[-1]) == (drawings.POINTS, 10, 10000)


def test_on_a_page_a_figure_has_its_colours_and_no_ids_of_others() -> None:
    def one(name: str) -> str:
        return drawings.inline(drawings.curves({0: [curve([0.1, 0.2])]}, (0, 100), 20), name, 'a "b" <c>')

    text, other = one("x"), one("y")
    assert "var(--line-0)" in text
    assert "currentColor" in text
    assert not any(colour in text for colour in drawings.VARIABLES)
    ids = set(re.findall(r' id="([^"]*)"', text))
    assert ids
    assert not ids & set(re.findall(r' id="([^"]*)"', other))
    assert "font-family" not in text
    assert """aria-label='a "b" &lt;c&gt;'""" in text


def test_the_page_of_the_papers_own_setting_claims_nothing_else(filled: list[Filled], out: Path) -> None:
    own = replace(SMALL, name="paper", title="the paper's setting", changes=(), papers=True)
    render([replace(one, scale=own) for one in filled], out)
    text = (out / "report.html").read_text()
    assert "not the paper&#39;s conditions" not in text
    assert "What differs" not in text
    assert "Made at scale “paper”" in text


def test_pages_of_tuned_tables_say_so_in_their_titles(filled: list[Filled], out: Path) -> None:
    """Beside the others in a site's contents, or in a browser's tabs, they would have the same names."""
    render(filled, out)
    assert "tuned" not in (out / "README.md").read_text()
    chosen = replace(SMALL, changes=("Chosen by `flnl tune <x>`.",), tuned=True)
    render([filled[0], replace(filled[1], scale=chosen), filled[2]], out)
    text = (out / "report.html").read_text()
    assert (out / "README.md").read_text().startswith("# Tables at scale “small”, tuned, ours beside the papers'\n")
    assert "<title>Tables at scale “small”, tuned, ours beside the papers'</title>" in text
    assert "<li>Chosen by <code>flnl tune &lt;x&gt;</code>.</li>" in text


def test_rendering_does_without_torch() -> None:
    """It takes seconds to import, and nothing is computed."""
    names = ("report", "drawings", "index", "latex", "csv", "markdown", "ranking", "agreement")
    said = "; ".join(
        ["import sys", *(f"import flnl.instruments.tables.render.{name}" for name in names), "print(*sys.modules)"]
    )
    loaded = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True).stdout.split()
    assert "flnl.instruments.tables.render.report" in loaded
    assert "torch" not in loaded
