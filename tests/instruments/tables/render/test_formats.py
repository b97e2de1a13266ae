"""A table says the same in Markdown, LaTeX and CSV: ours, the paper's, the difference, and why a number lacks."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from flnl.instruments.compare.latex import escaped
from flnl.instruments.tables.render import csv as render_csv
from flnl.instruments.tables.render import latex, markdown
from flnl.instruments.tables.render.agreement import agreements
from flnl.instruments.tables.render.evidence import Evidence
from flnl.instruments.tables.render.ranking import ranking
from flnl.instruments.tables.render.sheet import Sheet
from flnl.instruments.tables.results import Filled
from flnl.instruments.tables.table import NEVER, Metric, Number
from tests.instruments.tables.render.made import PAPER, Given, cell, run, table

COLUMNS = ["ρ=0.6", "CIFAR-10", "CIFAR-100"]


def small() -> Filled:
    """Two seeds; the last two columns are one; every kind of cell."""
    filled = table(
        {
            "FedAvg": [[80.0, 82.0], [70.0, 70.0]],
            "FedCorr": [[90.0, None], [60.0, 61.0]],
            "RoFL": ["RoFL does not exist here", "RoFL does not exist here"],
            "FedX": [[None, None], None],
        },
        {
            "FedAvg": [81.5, 60.0, 30.25],
            "FedCorr": [92.0, 70.0, 40.0],
            "RoFL": [85.0, 50.0, 20.0],
            "FedX": [1, None, 2],
        },
        COLUMNS,
        [[0], [1, 2]],
    )
    dead = run(1, None, state="failed", error="it diverged", log=Path("runs/r-1/error.log"))
    broken = replace(cell([1.0], [None, None]), state="failed", runs=(dead, run(2, None)))
    rows = list(filled.cells)
    rows[3] = (broken, rows[3][1])
    return replace(filled, cells=tuple(rows))


def md(filled: Filled) -> str:
    return markdown.table(Sheet(filled), agreements(filled), "Made of 4 runs.")


def tex(filled: Filled) -> str:
    return latex.table(Sheet(filled), agreements(filled))


def csv_rows(filled: Filled) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(render_csv.table(filled, Evidence()))))


EXPECTED = """\
# P, Table 1: things

**Made at scale “small” (digits): these are not the paper's conditions.**

Best test accuracy, % (the maximum over a run's evaluations, an oracle over the test set); higher is better. \
Ours: 2 seeds (1, 2) a cell, mean ± sample standard deviation. The paper: 5 trials. \
The difference is ours − the paper's in percentage points. The best of ours in a column is bold.

|  |  | ρ=0.6, % | all, % |
| --- | --- | ---: | ---: |
| FedAvg | ours | 81.00 ± 1.41 | **70.00 ± 0.00** |
|  | paper | 81.50 ± 0.50 | 60.00 ± 0.50 / 30.25 ± 0.50 |
|  | difference | −0.50 | +10.00 / +39.75 |
| FedCorr | ours | 90.00 (1 of 2 seeds) | 60.50 ± 0.71 |
|  | paper | 92.00 ± 0.50 | 70.00 ± 0.50 / 40.00 ± 0.50 |
|  | difference | −2.00 | −9.50 / +20.50 |
| RoFL | ours | missing<sup>1</sup> | missing<sup>1</sup> |
|  | paper | 85.00 ± 0.50 | 50.00 ± 0.50 / 20.00 ± 0.50 |
| FedX | ours | failed<sup>2</sup> | n/a<sup>3</sup> |
|  | paper | 1.00 ± 0.50 | – / 2.00 ± 0.50 |

1. RoFL does not exist here
2. seed 1 failed (it diverged), see runs/r-1/error.log
3. needs images

> **Made at scale “small” (digits): these are not the paper's conditions.**
>
> What differs from the paper:
>
> - Images are digits.
> - Budgets are 5 % of the paper's.

Notes:

- Columns of the paper that this scale cannot tell apart are one, with the paper's numbers, and the differences from \
them, in this order: “all” is “CIFAR-10” and “CIFAR-100”.
- Cells that have run with some of the seeds alone are in no order, rank or bold: 1.

Our order of the methods beside the paper's:

| column | Spearman | methods | pairs of opposite order (the paper has the first ahead) |
| --- | ---: | ---: | --- |
| all, the paper's CIFAR-10 | fewer than 3 methods | 2 | 1 of 1: FedCorr / FedAvg |
| all, the paper's CIFAR-100 | fewer than 3 methods | 2 | 1 of 1: FedCorr / FedAvg |

Made of 4 runs. The runs and the commands behind every number of ours are in [p_1.csv](p_1.csv), \
their records in [runs](runs.jsonl).
"""


def test_markdown_word_for_word() -> None:
    assert md(small()) == EXPECTED


def test_a_table_of_which_nothing_can_run_refers_to_no_run() -> None:
    nothing = table({"FedAvg": ["not here"], "FedX": [None]}, {"FedAvg": [81.5], "FedX": [None]}, COLUMNS[:1])
    origin = Evidence().origin([nothing])
    assert origin == "Nothing of it can run at this scale."
    assert markdown.table(Sheet(nothing), [], origin).endswith(f"\n\n{origin}\n")
    waiting = table({"FedAvg": [[None]]}, {"FedAvg": [81.5]}, COLUMNS[:1])
    assert Evidence().origin([waiting]) == "None of its runs has come to its end yet."


def test_latex_has_the_same_cells() -> None:
    """What is between ``\\midrule`` and ``\\bottomrule``, against Markdown's."""
    body = tex(small()).split("\\midrule\n")[1].split("\\bottomrule")[0]
    rows = [line.removesuffix(r" \\").split(" & ") for line in body.splitlines() if line != r"\addlinespace"]
    plain = {r"$\pm$": "±", "$-$": "−", "--": "–", r"\textsuperscript": "<sup>", r"\%": "%"}
    shown = []
    for row in rows:
        text = " | ".join(row)
        for word, sign in plain.items():
            text = text.replace(word, sign)
        text = re.sub(r"\\textbf\{([^}]*)\}", r"**\1**", text)
        shown.append("| " + re.sub(r"<sup>\{(\d)\}", r"<sup>\1</sup>", text).strip() + " |")
    tables = EXPECTED.split("\n\n")[3].splitlines()[2:]
    assert [re.sub(r" +", " ", row) for row in shown] == [re.sub(r" +", " ", row) for row in tables]


def test_a_table_without_numbers_of_a_paper_does_not_speak_of_one() -> None:
    filled = table(
        {"FedAvg": [[80.0, 82.0]], "FedCorr": [[90.0, 91.0]]}, {"FedAvg": [None], "FedCorr": [None]}, ["ρ=0.4"]
    )
    assert "| FedAvg | ours | 81.00 ± 1.41 |\n| FedCorr | ours | **90.50 ± 0.71** |\n\n" in md(filled)
    for text in (md(filled), tex(filled)):
        assert "trials" not in text
        assert "paper &" not in text
        assert "| paper |" not in text


def test_the_noise_of_the_runs_is_the_last_row() -> None:
    filled = replace(small(), noise=("44.9", ""))
    assert "| *wrong given labels, %* | ours | 44.9 | – |\n\n" in md(filled)
    assert "\\midrule\nwrong given labels, \\% & ours & 44.9 & -- \\\\\n\\bottomrule" in tex(filled)
    assert "wrong given labels" not in md(replace(small(), noise=("", "")))


def test_latex_says_the_scale_and_what_it_changes() -> None:
    text = tex(small())
    assert r"\textbf{Made at scale ``small'' (digits): these are not the paper's conditions.}" in text
    assert r"Budgets are 5 \% of the paper's." in text
    assert "the paper's conditions" not in tex(replace(small(), scale=PAPER))


def test_a_command_that_a_change_names_is_printed_as_it_is_typed() -> None:
    filled = small()
    filled = replace(filled, scale=replace(filled.scale, changes=("Chosen by `flnl tune a_b x=*`, a_b.",)))
    assert r"> - Chosen by `flnl tune a_b x=*`, a\_b." in md(filled)
    assert r"Chosen by \texttt{flnl tune a\_b x={*}}, a\_b." in tex(filled)


SPECIAL = r"50% of A&B_1 #2 $x$ {y} [z] ~^\ <b> |p| *s* `c` ρ²≤τ"


def test_what_formats_would_take_for_their_own_is_escaped() -> None:
    """In a name that rows, columns, titles and notes have; the number of cells in a row stays."""
    filled = table({SPECIAL: [[50.0, 50.0]]}, {SPECIAL: [50.0]}, [SPECIAL])
    filled = replace(filled, table=replace(filled.table, title=SPECIAL), notes=(SPECIAL,))
    text = tex(filled)
    for opening, closing in ("{}", "[]"):
        free = re.sub(r"\\[{}]", "", text)
        assert free.count(opening) == free.count(closing)
    body = text.split(r"\toprule")[1].split(r"\bottomrule")[0]
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 4
    assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {2}
    assert not re.search(r"(?<!\\)[#_]|(?<!\\)%(?! needs)", text)
    assert "\n[" not in text, "an option of the line before"
    assert len(re.findall(r"(?<!\\)\$", text)) % 2 == 0
    assert not re.search("[ρτ²≤±−“”–]", text)
    assert r"50\% of A\&B\_1 \#2 \$x\$ \{y\} {[}z{]} \textasciitilde{}\textasciicircum{}\textbackslash{}" in text
    grid = next(part for part in md(filled).split("\n\n") if part.startswith("|"))
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in grid.splitlines()} == {4}
    assert r"50% of A&amp;B\_1 \#2 \$x\$" in grid
    assert r"\<b\> \|p\| \*s\* \`c\`" in grid
    assert next(iter(csv_rows(filled)))["row"] == SPECIAL


def test_latex_prints_commands_and_small_digits_as_they_stand() -> None:
    """Two hyphens would be joined to a dash and a backtick turned to a quotation mark; pdflatex stops at ₁."""
    assert escaped("`flnl tune --each method ---`") == r"\`{}flnl tune -{}-each method -{}-{}-\`{}"
    assert escaped("a – b — c") == "a -- b --- c"
    assert escaped("β₁ ≠ 10³") == r"$\beta$$_1$ $\neq$ 10$^3$"


def test_csv_is_a_line_a_number_of_the_papers_with_our_runs() -> None:
    rows = csv_rows(small())
    assert len(rows) == 12
    first = rows[0]
    assert (first["row"], first["column"], first["scale"], first["unit"]) == ("FedAvg", "ρ=0.6", "small", "%")
    assert float(first["ours"]) == 81
    assert float(first["ours_std"]) == pytest.approx(2**0.5, rel=1e-9)
    assert (first["seeds"], first["paper"], first["paper_std"], first["difference"]) == (
        "2",
        "81.5",
        "0.5",
        "-0.5",
    )
    assert json.loads(first["folders"]) == ["runs/1-FedAvg-0-1", "runs/1-FedAvg-0-2"]
    assert json.loads(first["commands"])[1] == "flnl 'x=runs/1-FedAvg-0' seed=2"
    keys = ("column", "paper_column", "ours", "paper", "paper_std", "difference")
    assert [tuple(row[key] for key in keys) for row in rows[:3]] == [
        ("ρ=0.6", "ρ=0.6", "81", "81.5", "0.5", "-0.5"),
        ("all", "CIFAR-10", "70", "60", "0.5", "10"),
        ("all", "CIFAR-100", "70", "30.25", "0.5", "39.75"),
    ]
    assert rows[1]["folders"] == rows[2]["folders"]
    assert [row["paper"] for row in rows[10:]] == ["", "2"]
    partly, missing, failed = rows[3], rows[6], rows[9]
    assert (partly["state"], partly["seeds"], partly["ours_std"]) == ("partly", "1", "")
    assert (missing["state"], missing["ours"], missing["note"]) == ("missing", "", "RoFL does not exist here")
    assert (failed["state"], failed["note"]) == ("failed", "seed 1 failed (it diverged), see runs/r-1/error.log")


def test_the_best_is_the_smallest_where_lower_is_better_and_ties_share_it() -> None:
    ours: Given = {"a": [[5.0], [3.0]], "b": [[4.0], [3.0]], "c": ["not here", [7.0]]}
    numbers = {"a": [5.0, 3.0], "b": [4.0, 3.0], "c": [1.0, 7.0]}
    metric = Metric("participations to reach 80 %", "reach", "", False)
    found = [[entry.best for entry in row] for row in Sheet(table(ours, numbers, ["x", "y"], metric=metric)).entries]
    assert found == [[False, True], [True, True], [False, False]]
    unranked = Sheet(table(ours, numbers, ["x", "y"], metric=replace(metric, higher_is_better=None)))
    assert not any(entry.best for row in unranked.entries for entry in row)


def test_means_of_equal_sums_are_tied_in_bold_orders_and_ranks() -> None:
    """Over three seeds two methods are right on 995 of 3 times 360 samples; their means differ in the last bit."""
    right = {"a": (330, 341, 324), "b": (331, 340, 324), "c": (300, 300, 300)}
    ours: Given = {name: [[100.0 * (n / 360) for n in numbers]] for name, numbers in right.items()}
    filled = table(ours, {"a": [3.0], "b": [2.0], "c": [1.0]}, ["x"])
    assert filled.cells[0][0].number != filled.cells[1][0].number
    assert [row[0].best for row in Sheet(filled).entries] == [True, True, False]
    (order,) = agreements(filled)
    assert order.reversed == ()
    assert order.coefficient == pytest.approx(1.5 / (2 * 1.5) ** 0.5)  # of ranks 1.5, 1.5, 3 and 1, 2, 3
    found = ranking([filled])
    assert found is not None
    assert found.mean_ranks == {"a": 1.5, "b": 1.5, "c": 3.0}


def test_what_stands_alone_is_not_the_best() -> None:
    (entry,) = Sheet(table({"a": [[5.0]]}, {"a": [5.0]}, ["x"])).entries[0]
    assert not entry.best


@pytest.mark.parametrize(
    ("unit", "printed", "ours", "text"),
    [
        ("%", 93.0, [93.0, 94.0], "93.50 ± 0.71"),
        ("", 370.0, [355.0, 355.0, 356.0], "355 ± 1"),  # counts are whole
        ("", 0.0, [0.0], "0"),
        ("", 0.05, [0.0123], "0.0123"),  # three digits of 0.05
        ("", 0.0, [1e-9], "0.000000"),
    ],
)
def test_decimals_follow_what_is_measured(unit: str, printed: float, ours: list[float], text: str) -> None:
    filled = table({"a": [ours]}, {"a": [printed]}, ["x"], metric=Metric("m", "m", unit, None))
    assert Sheet(filled).entries[0][0].ours == text


def test_a_run_that_came_to_its_end_without_a_number_is_a_dash() -> None:
    filled = table({"a": [[None]]}, {"a": [5.0]}, ["x"])
    done = replace(
        filled.cells[0][0], state="run", runs=(replace(run(1, None), state="finished"),), note="never reached"
    )
    (entry,) = Sheet(replace(filled, cells=((done,),))).entries[0]
    assert (entry.ours, entry.difference, entry.mark) == ("–", "", 1)


def test_a_paper_that_prints_no_deviation() -> None:
    filled = table({"a": [[4.0]]}, {"a": [5.0]}, ["x"])
    alone = replace(filled.cells[0][0], papers=(Number(5.0, None),))
    assert Sheet(replace(filled, cells=((alone,),))).entries[0][0].paper == "5.0"


def test_a_paper_has_the_digits_that_it_prints() -> None:
    """0.07 and 0.1 were printed as 0.07 and 0.10: ours have two digits more."""
    metric = Metric("error", "error", "", False)
    filled = table({"a": [[0.0712], [0.0911]]}, {"a": [0.07, 0.1]}, ["x", "y"], metric=metric)
    printed = (Number(0.07, None), Number(0.1, None))
    cells = tuple(replace(cell, papers=(one,)) for cell, one in zip(filled.cells[0], printed, strict=True))
    own = replace(filled.table, cells=(printed,))
    found = Sheet(replace(filled, table=own, cells=(cells,))).entries[0]
    assert [entry.paper for entry in found] == ["0.07", "0.10"]
    assert [entry.ours for entry in found] == ["0.0712", "0.0911"]


def test_failed_runs_are_told_once_with_their_reasons() -> None:
    """Seeds that failed of the same are told together; where nothing is known, the folder is all there is."""
    dead = [run(seed, None, state="failed", error="no images") for seed in (1, 2)]
    dead += [run(3, None, state="failed", error=None, log=Path("x/job.log")), run(4, None, state="failed")]
    filled = table({"a": [[None]]}, {"a": [5.0]}, ["x"])
    sheet = Sheet(replace(filled, cells=((replace(filled.cells[0][0], state="failed", runs=tuple(dead)),),)))
    assert sheet.footnotes == ["seeds 1, 2 failed (no images); seeds 3, 4 failed, see x/job.log, runs/r-4"]


def test_a_target_that_one_of_the_papers_columns_does_not_reach_is_told() -> None:
    reach = Metric("participations to reach 80 %", "participations_to_80", "", False)
    sheet = Sheet(table({"a": [[10.0]]}, {"a": [12.5, NEVER]}, ["x", "y"], [[0, 1]], metric=reach))
    ((entry,),) = sheet.entries
    assert (entry.paper, entry.difference) == ("12.5 ± 0.5 / not reached", "−2.5 / –")
    assert "not reached ranks last" in sheet.reading
    own = Sheet(table({"a": [[10.0]]}, {"a": [None, None]}, ["x", "y"], [[0, 1]], metric=reach))
    assert (own.entries[0][0].paper, own.entries[0][0].difference) == ("–", ""), "a table of one's own"


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ({"CE (centralized)": ""}, [False, True, False]),  # a reference in another setting does not compete
        ({"CE (centralized)": "", "FLR": "", "FedAvg": ""}, [True, False, False]),  # nothing here is a method
    ],
)
def test_the_best_is_sought_among_methods(methods: dict[str, str], expected: list[bool]) -> None:
    ours: Given = {"CE (centralized)": [[99.0]], "FLR": [[90.0]], "FedAvg": [[80.0]]}
    filled = table(ours, {label: [50.0] for label in ours}, ["ρ=0.6"], methods=methods)
    assert [row[0].best for row in Sheet(filled).entries] == expected


def test_a_target_that_is_not_reached_says_so() -> None:
    reach = Metric("participations to reach 80 %", "participations_to_80", "", False)
    ours: Given = {"a": [[10.0, NEVER, 20.0]], "b": [[NEVER] * 3], "c": [[30.0, 40.0, 50.0]]}
    filled = table(ours, {"a": [NEVER], "b": [7.0], "c": [50.0]}, ["x"], metric=reach)
    rows = {line.split(" | ")[0].strip("| "): line for line in md(filled).splitlines() if "| ours |" in line}
    assert "2 of 3 reached<sup>1</sup>" in rows["a"]
    assert "not reached" in rows["b"]
    assert "**40 ± 10**" in rows["c"]
    assert "1. reached at 10 by seed 1, at 20 by seed 3" in md(filled)
    assert "|  | paper | not reached |" in md(filled)
    assert "not reached ranks last" in md(filled)
    assert [row["difference"] for row in csv_rows(filled)] == ["", "", "-10"]
    assert [row["ours"] for row in csv_rows(filled)] == ["inf", "inf", "40"]
    assert "2 of 3 reached" in tex(filled)
    none: Given = {"a": [[NEVER]], "b": [[NEVER]]}
    assert (
        "**" not in md(table(none, {"a": [1.0], "b": [2.0]}, ["x"], metric=reach)).split("| --- |")[1].split("\n\n")[0]
    )


def test_the_lowest_of_a_cells_seeds_is_shown_compared_and_has_no_deviation() -> None:
    reach = Metric("participations to reach 80 %", "participations_to_80", "", False, over="lowest")
    ours: Given = {"a": [[10.0, NEVER, 20.0]], "b": [[NEVER] * 3], "c": [[12.0, 40.0, 50.0]]}
    filled = table(ours, {"a": [15.0], "b": [7.0], "c": [50.0]}, ["x"], metric=reach)
    rows = {line.split(" | ")[0].strip("| "): line for line in md(filled).splitlines() if "| ours |" in line}
    assert ["| **10** |" in rows["a"], "| not reached |" in rows["b"], "| 12 |" in rows["c"]] == [True] * 3
    assert "a cell, the lowest value." in md(filled)
    written = [(row["over"], row["ours"], row["ours_std"], row["difference"]) for row in csv_rows(filled)]
    assert written == [("lowest", "10", "", "-5"), ("lowest", "inf", "", ""), ("lowest", "12", "", "-38")]


def test_csv_has_no_formula_in_its_texts_and_its_numbers_are_numbers() -> None:
    filled = small()
    rows = tuple(replace(row, label="=1+1") if row.label == "FedAvg" else row for row in filled.table.rows)
    first, *others = csv_rows(replace(filled, table=replace(filled.table, rows=rows)))
    assert first["row"] == "'=1+1"
    assert float(first["difference"]) == pytest.approx(-0.5)
    assert all("'" not in row[name] for row in others for name in ("ours", "paper", "difference"))
