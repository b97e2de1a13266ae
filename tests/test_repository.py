"""What the repository says of itself: hooks, workflows, the links of rendered tables, what pages show of files."""

import csv
import json
import re
import subprocess
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from flnl.storage.tuned import Tuned, overrides_of
from flnl.tables import load
from flnl.tables.choices import deciding
from flnl.tables.load import PAPERS
from flnl.tables.render.agreement import spearman
from flnl.tune.markdown import markdown

ROOT = Path(__file__).resolve().parents[1]


def read(path: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / path).read_text())  # type: ignore[no-any-return]


def test_a_hook_does_what_make_check_does() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local", "nothing is fetched"
    assert [hook["entry"] for hook in repository["hooks"]] == ["make check"]
    changed = re.compile(repository["hooks"][0]["files"])
    assert all(changed.search(name) for name in ("src/flnl/main.py", "tests/conftest.py", "pyproject.toml"))
    assert not changed.search("README.md")


def test_workflows_run_every_python_that_is_promised_and_every_test() -> None:
    promised = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = [found[1] for line in promised if (found := re.search(r":: (3\.\d+)$", line))]
    tests, nightly = (read(f".github/workflows/{name}.yml") for name in ("tests", "nightly"))
    job = tests["jobs"]["tests"]
    assert job["strategy"]["matrix"]["python"] == versions
    assert job["steps"][-1] == {"run": ".ci/run"}
    assert nightly["jobs"]["test-all"]["steps"][-1] == {"run": "make test-all"}
    assert "make --silent mutants" in nightly["jobs"]["mutants"]["steps"][-1]["run"]
    for workflow in (tests, nightly):
        assert workflow["permissions"] == {"contents": "read"}


def test_what_rendered_tables_link_to_is_in_git() -> None:
    found = subprocess.run(["git", "ls-files", "results"], cwd=ROOT, capture_output=True, text=True)
    kept = {ROOT / name for name in found.stdout.splitlines()}
    if not kept:
        pytest.skip("no checkout")
    for file in sorted(path for path in kept if path.suffix == ".md"):
        for link in re.findall(r"\]\(([^)#]+)\)", file.read_text()):
            if "://" not in link:
                target = file.parent / link
                assert target in kept or any(target in path.parents for path in kept), f"{file.name}: {link}"


@pytest.mark.parametrize("name", ["comparison", "comparison_benchmark"])
def test_the_comparison_shows_what_its_files_hold(name: str) -> None:
    tables = markdown(Tuned.load(ROOT / "docs" / f"{name}.json")).strip().split("\n\n")
    of = {heading.rstrip(":"): table for heading, table in zip(tables[::2], tables[1::2], strict=True)}
    shown = (ROOT / "docs" / "comparison.md").read_text()
    for heading in ("last, %", "last, % at train.lr = 0.003 / 0.01 / 0.03 / 0.1"):
        assert of[heading] in shown, heading


def prose(page: str) -> str:
    """The text of a page, its lines run together."""
    return " ".join((ROOT / page).read_text().split())


def cells(text: str) -> list[list[str]]:
    """The cells of all lines of tables."""
    lines = (line for line in text.splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_evidence_has_the_numbers_of_the_results() -> None:
    """Ranks, first methods, medians and numbers of settings as in results/README.md, which is made of the tables."""
    evidence, results = ((ROOT / name).read_text() for name in ("docs/evidence.md", "results/README.md"))
    told = {row[0]: row for row in cells(evidence) if row[0] in PAPERS and len(row) == 8}
    assert [*told] == [*PAPERS]
    for paper, (_, own, *scales) in told.items():
        method, theirs, of = re.match(r"(.+), ([\d.]+) of (\d+)$", own).groups()  # type: ignore[union-attr]
        ranks = cells(results.split(f"\n## {paper}\n")[1].split("| *settings* |")[0])
        ranked_methods = {row[0]: row[1:] for row in ranks[2:]}
        assert sum(bool(row[0]) for row in ranked_methods.values()) == int(of), paper
        for scale, (rank, first, median) in zip(("small", "lenet"), (scales[:3], scales[3:]), strict=True):
            summary = [row for row in cells(results) if row[0] == paper and row[1].startswith(f"[{scale}]")]
            if not summary:
                assert (rank, first, median) == ("", "", ""), f"{paper} at {scale}"
                continue
            ((_, _, settings, spearmans, _, ranked, best, theirs_first),) = summary
            assert median == f"{spearmans} ({settings})", paper
            assert (first.partition(" (")[0], method) == (best, theirs_first), paper
            place = next(i for i, name in enumerate(ranks[0][1:]) if name.startswith(f"{scale},"))
            rank, _, there = rank.partition(", there ")  # where it is another than over all of the paper's settings
            ours, count = rank.split(" of ")
            assert f"{ours} / {there or theirs}" == ranked_methods[method][place], f"{paper} at {scale}"
            assert count == f"{sum(bool(row[place]) for row in ranked_methods.values())} ({ranked})", (
                f"{paper} at {scale}"
            )


def test_the_evidence_has_what_the_methods_of_papers_lead_by_on_real_images() -> None:
    evidence = prose("docs/evidence.md")
    fedcorr = leads("fedcorr_2", "FedCorr") | leads("fedcorr_4", "FedCorr")
    del fedcorr["ρ=0.0 τ=0.0"]
    few = fedcorr.pop("p=0.3 α=10")
    assert all(place == 1 for place, _ in fedcorr.values())
    least, most = (f"{pick(lead for _, lead in fedcorr.values()):.1f}" for pick in (min, max))
    assert f"first with noise, by {least} to {most} points" in evidence
    assert (few[0], len(load.table("fedcorr_4").rows)) == (6, 7), "next to last"
    rows = rows_of("results/lenet/fedcorr_2.csv")
    clean = {row["row"]: float(row["ours"]) for row in rows if row["column"] == "ρ=0.0 τ=0.0" and row["ours"]}
    assert f"{clean['FedAvg'] - clean['FedCorr']:.0f} behind FedAvg without noise" in evidence
    fedes = leads("fedes_1", "FedES")
    (iid,) = (found for column, found in fedes.items() if column.startswith("IID"))
    assert iid[0] == 1
    assert f"first by {iid[1]:.0f} points with IID clients, and behind with others" in evidence
    assert [place for column, (place, _) in fedes.items() if column.startswith("non-IID")] == [7, 5]


def leads(name: str, method: str) -> dict[str, tuple[int, float]]:
    """The place of a method in every column that has run at ``lenet``, and its distance to the best other one."""
    run = [row for row in rows_of(f"results/lenet/{name}.csv") if row["state"] == "run"]
    found = {}
    for column in dict.fromkeys(row["column"] for row in run):
        of = {row["row"]: float(row["ours"]) for row in run if row["column"] == column}
        own = of.pop(method)
        found[column] = sum(value > own for value in of.values()) + 1, own - max(of.values())
    return found


def setting(column: str) -> str:
    """A column's label, as the evidence writes it: ρ=0.6 τ=0.5 as ρ = 0.6, τ = 0.5."""
    return column.replace("=", " = ").replace(" τ", ", τ")


def test_the_evidence_has_the_cells_of_the_papers_scale() -> None:
    """Every setting that has run, with the number of its table."""
    found = rows_of("results/paper/fedcorr_10.csv")
    run = {setting(row["column"]): row for row in found if row["state"] == "run"}
    every = cells((ROOT / "docs" / "evidence.md").read_text())
    told = {row[0]: row for row in every if row[0].startswith("ρ") and len(row) == 4}
    assert {*told} == {*run}
    for name, (_, paper, ours, command) in told.items():
        row = run[name]
        assert ours == f"**{float(row['ours']):.2f}**"
        assert paper == f"{float(row['paper']):.2f} ± {float(row['paper_std']):.2f}"
        assert f"columns='{row['column']}'" in command


def test_the_evidence_has_the_baselines_at_the_papers_scale() -> None:
    text = prose("docs/evidence.md")
    found = [row for row in rows_of("results/paper/lenet5_baselines.csv") if row["state"] == "run"]
    assert found
    for row in found:
        if row["row"] != "FedCorr":
            assert f"at {setting(row['column'])} {row['row']} has {float(row['ours']):.2f}" in text


def test_the_experiments_have_every_cell_on_real_images() -> None:
    """Of each table, every column and row that has run; a column of CIFAR-100 has CIFAR-10's images at this scale."""
    text = (ROOT / "docs" / "experiments.md").read_text()
    section = text.split("\n## On real images\n")[1].split("\n## ")[0]
    told: dict[str, dict[tuple[str, str], str]] = {}
    for row in cells(section):
        if link := re.match(r"\[\w+, Table \d+\]\(\.\./results/lenet/(\w+)\.md\)$", row[0]):
            name, methods = link[1], row[1:]
            told[name] = {}
        elif not row[0].startswith("---"):
            told[name] |= {(row[0], method): cell for method, cell in zip(methods, row[1:], strict=True) if cell}
    assert {*told} == {path.stem for path in (ROOT / "results/lenet").glob("*.csv") if load.table(path.stem).paper}
    for name, found in told.items():
        run = [row for row in rows_of(f"results/lenet/{name}.csv") if row["state"] == "run"]
        assert found == {
            (row["column"], row["row"]): f"{float(row['ours']):.2f} / {float(row['paper']):.2f}"
            for row in run
            if not row["paper_column"].startswith("CIFAR-100 ")
        }


def test_the_reasons_have_the_numbers_of_their_tables() -> None:
    """On images with two digits, as the paper's; on handwritten digits, of 360 test images, with one."""
    section = (ROOT / "docs/experiments.md").read_text().split("\n## Reasons\n")[1].split("\n## ")[0]
    printed = chain(*load.table("fedcorr_2").cells, *load.table("fedcorr_3").cells)
    papers = {f"{number.mean:.2f}" for number in printed if number}
    linked = set()
    for _, experiment, finding in cells(section):
        for scale, name in re.findall(r"\(\.\./results/(\w+)/(reasons_\w+)\.md\)", experiment):
            linked.add(f"{scale}/{name}")
            shown = {"lenet": 2, "small": 1}[scale]
            found = {f"{float(row['ours']):.{shown}f}" for row in rows_of(f"results/{scale}/{name}.csv") if row["ours"]}
            told = re.findall(rf"(?<![\d.])\d\d\.\d{{{shown}}}(?!\d)", finding)
            assert found & {*told}, name
            assert {*told} <= found | papers, name
    tables = ROOT.glob("results/*/reasons_*.csv")
    assert linked == {f"{path.parent.name}/{path.stem}" for path in tables if not path.parent.name.endswith("_tuned")}


def test_the_experiments_have_fedcorrs_orders_on_real_images_and_on_digits() -> None:
    text = prose("docs/experiments.md")
    lenet, small = (rows_of(f"results/{scale}/fedcorr_2.csv") for scale in ("lenet", "small"))
    run = {(row["column"], row["row"]): float(row["paper"]) for row in lenet if row["state"] == "run"}
    orders = []
    for rows in (lenet, small):
        ours = {(row["column"], row["row"]): row["ours"] for row in rows}
        of = {column: [(float(ours[key]), run[key]) for key in run if key[0] == column] for column, _ in run}
        orders.append([f"{spearman(*map(list, zip(*pairs, strict=True))):.2f}" for pairs in of.values()])
    here, there = (f"{', '.join(order[:-1])} and {order[-1]}" for order in orders)
    assert f"Spearman is {here} here, and {there} for the same methods at `small`".replace("-", "−") in text


def test_the_experiments_have_the_wrong_labels_that_people_gave() -> None:
    text = prose("docs/experiments.md")
    (row,) = (row for row in cells((ROOT / "results/lenet/fedpeer_2.md").read_text()) if "wrong given labels" in row[0])
    assert f"of the worst, random and aggregate ones {row[2]}, {row[3]} and {row[4]} % are wrong" in text


def test_the_experiments_have_fedcorrs_wrong_labels_where_clients_have_few_classes() -> None:
    text = prose("docs/experiments.md")
    found = {row["column"]: row for row in rows_of("results/lenet/feddiv_2.csv") if row["row"] == "FedCorr"}
    shares = []
    for column in ("p=0.7 α=10", "p=0.7 α=1", "p=0.3 α=10"):
        (record,) = json.loads(found[column]["records"])
        metrics = json.loads((ROOT / "results" / "lenet" / record).read_text())["metrics"]
        shares.append(" to ".join(f"{100 * metrics[f'noise_{when}']:.1f}" for when in ("given", "final")))
    assert f"lowers the wrong labels from {shares[0]} % and from {shares[1]} % of" in text
    assert f"raises them, from {shares[2]} %" in text


def test_the_experiments_have_the_ranks_at_tuned_rates() -> None:
    """Mean ranks and medians of Spearman at the scale's one rate and at tuned ones, as in results/README.md."""
    results = (ROOT / "results" / "README.md").read_text()
    section = (ROOT / "docs" / "experiments.md").read_text().split("\n## Learning rates\n")[1]
    told = {row[0]: row[1:] for row in cells(section) if row[0] in PAPERS}
    kept = {path.stem for path in (ROOT / "conf" / "scale" / "tuned" / "small").glob("*.json")}
    assert {paper.lower() for paper in told} == kept
    for paper, (settings, method, *ranks, best, medians) in told.items():
        head, *of = cells(results.split(f"\n## {paper}\n")[1].split("| *settings* |")[0])
        places = [
            next(i for i, cell in enumerate(head) if cell.startswith(name)) for name in ("small,", "small\\_tuned,")
        ]
        (found,) = ([row[place].split(" / ") for place in places] for row in of if row[0] == method)
        assert ranks == [found[0][0], found[1][0], found[0][1]], paper
        summary = {row[1].partition("]")[0][1:]: row[2:] for row in cells(results) if row[0] == paper and len(row) == 8}
        once, tuned = summary["small"], summary["small\\_tuned"]
        assert (once[0], once[3]) == (tuned[0], tuned[3]), "the same settings"
        assert settings == tuned[3]
        assert best == tuned[4]
        assert medians == f"{once[1]}, {tuned[1]} ({tuned[0]})"


TUNED_ON_IMAGES = (
    ("fedcorr", "fedcorr_2", "ρ=0.6 τ=0.5"),
    ("feddiv", "feddiv_2", "p=0.7 α=10"),
    ("flr", "flr_3", "symmetric τ=0.5 ρ=0.6"),
    ("fedpeer", "fedpeer_1", "CIFAR-10 · random η=0.4"),
    ("fedes", "fedes_1", "non-IID · symmetric μ=0.5"),
)


def test_the_experiments_have_the_columns_at_tuned_rates_on_real_images() -> None:
    text = (ROOT / "docs" / "experiments.md").read_text().split("\n## Learning rates\n")[1]
    gaining = []
    for paper, table, column in TUNED_ON_IMAGES:
        (line,) = (row for row in cells(text) if f"(../results/lenet_tuned/{table}.md)" in row[0])
        of = load.table(table)
        at_one, chosen = (
            {row["row"]: row for row in rows_of(f"results/{folder}/{table}.csv") if row["paper_column"] == column}
            for folder in ("lenet", "lenet_tuned")
        )
        run = [row.label for row in of.rows if row.method and chosen[row.label]["state"] == "run"]
        assert line[2] == ", ".join(f"{row} {float(chosen[row]['ours']):.2f}" for row in run)
        papers = [float(chosen[row]["paper"]) for row in run]
        agreement = [spearman([float(ours[row]["ours"]) for row in run], papers) for ours in (at_one, chosen)]
        assert line[3] == ", ".join(f"{one:.2f}".replace("-", "−") for one in agreement)
        other, labels = [], {frozenset(deciding(row.overrides)): row.label for row in of.rows}
        for study in Tuned.load(ROOT / "conf/scale/tuned/lenet" / f"{paper}.json").studies:
            assert study.chosen is not None
            scores = {float(trial.values["train.lr"]): trial.mean or 0.0 for trial in study.trials}
            label, rate = labels[frozenset(overrides_of(study.each))], float(study.chosen.values["train.lr"])
            if rate != 0.01:
                other.append(f"{label} {rate}")
            if scores[rate] - scores[0.01] >= 0.01:
                gaining.append(label)
            assert rate < 0.1
        assert line[1] == ", ".join(other)
    assert f"a point more for {', '.join(dict.fromkeys(gaining))}" in " ".join(text.split())


def rows_of(name: str) -> list[dict[str, str]]:
    with (ROOT / name).open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_the_papers_disagree_as_the_experiments_say() -> None:
    """Of the same data, noise and methods, by the numbers that the papers print."""

    def printed(name: str, label: str) -> dict[str, float]:
        table = load.table(name)
        column = [one.label for one in table.columns].index(label)
        cells = ((row, cells[column]) for row, cells in zip(table.rows, table.cells, strict=True) if row.method)
        return {row.method: cell.mean for row, cell in cells if cell is not None}

    found = []
    for rho in ("0.6", "0.8"):
        one, other = printed("fedcorr_3", f"ρ={rho} τ=0.5"), printed("flr_3", f"symmetric τ=0.5 ρ={rho}")
        both = [method for method in one if method in other]
        assert len(both) == 5
        found.append(spearman([one[m] for m in both], [other[m] for m in both]))
        ours, copied = printed("fedcorr_2", f"ρ={rho} τ=0.5"), printed("feddiv_1", f"ρ={rho} τ=0.5")
        assert all(ours[method] == copied[method] for method in ours if method in copied)
    assert found == pytest.approx([-0.4, -0.2])
    assert "Spearman −0.4 and −0.2" in (ROOT / "docs" / "experiments.md").read_text()


@pytest.mark.parametrize("group", ["noise", "partition"])
def test_the_page_of_noise_and_partitions_has_every_choice_and_parameter(group: str) -> None:
    page = (ROOT / "docs" / "noise.md").read_text()
    for file in sorted((ROOT / "conf" / group).glob("*.yaml")):
        assert f"`{file.stem}`" in page, file.name
        for parameter in yaml.safe_load(file.read_text()):
            if parameter != "_target_":
                assert re.search(rf"`{parameter}[`=]", page), f"{file.name}: {parameter}"
