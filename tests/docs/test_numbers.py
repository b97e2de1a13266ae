"""Numbers on pages are those of the records that they come from."""

import csv
import json
import re
from itertools import chain
from pathlib import Path
from statistics import fmean, median, stdev

import pytest
import yaml
from scipy.stats import ttest_rel

from bench import noisy_photos
from bench.whole_runs import read_rows
from flnl.config import compose
from flnl.data.federation.build import from_config
from flnl.instruments.benchmark import definition
from flnl.instruments.benchmark.reruns import Reruns
from flnl.instruments.tables import run_record
from flnl.record.tuned import Tuned

ROOT = Path(__file__).resolve().parents[2]
COMPARISON = ROOT / "docs" / "comparison.md"
SMALL = ROOT / "results" / "small"
EXPERIMENTS = {
    "a": ("digits_iid", "mnist_iid"),
    "b": ("digits_noniid", "mnist_noniid"),
    "c": ("digits_dirichlet", "mnist_dirichlet"),
    "d": ("digits_openset", "mnist_openset"),
}
"""The experiments of each setting of the comparison, on digits and on MNIST."""


def prose(path: Path) -> str:
    """The text of a page, its lines run together."""
    return " ".join(path.read_text().split())


def rows(text: str, first: str) -> list[list[str]]:
    """The lines of the table whose first heading is ``first``, without its head."""
    of = text.split(f"\n| {first} |", 1)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in of]


KINDS = {"table": "on a table", "features": "on features", "text": "on texts"}
"""Files of own data of other kinds than images, and the first headings of their tables."""


@pytest.mark.parametrize("kind", KINDS)
def test_own_data_has_the_accuracies_and_rates_of_its_file(kind: str) -> None:
    path = ROOT / "docs" / "own_data_measured.md"
    told = rows(path.read_text(), KINDS[kind])
    found, scores = [], {}
    files = sorted((ROOT / "docs").glob(f"own_data_{kind}*.json"), key=lambda file: len(file.name))
    for study in chain.from_iterable(Tuned.load(file).studies for file in files):
        assert study.reported is not None
        assert study.chosen is not None
        of = [100 * (score or 0.0) for _, score in sorted(study.reported.scores["mean_last_10"].items())]
        scores[study.each["method"]] = of
        found.append([study.each["method"], f"{fmean(of):.1f} ± {stdev(of):.1f}", study.chosen.values["train.lr"]])
    assert told == found
    p = {method: float(ttest_rel(of, scores["fedavg"]).pvalue) for method, of in scores.items() if method != "fedavg"}
    apart = ", ".join(method for method in p if p[method] < 0.05) or "none"
    after = path.read_text().split(f"\n| {KINDS[kind]} |")[1]
    assert f"(p below 0.05, not corrected): {apart}." in " ".join(after.split("\n## ")[0].split())


def studies(name: str = "comparison", measure: str = "mean_last_10") -> dict[tuple[str, str], list[float]]:
    """Accuracies in percent, by default the means of the last ten, of every experiment and method, by seed."""
    found = {}
    for study in Tuned.load(ROOT / "docs" / f"{name}.json").studies:
        assert study.reported is not None
        scores = [100 * (score or 0.0) for _, score in sorted(study.reported.scores[measure].items())]
        found[study.each["experiment"].removeprefix("comparison/"), study.each["method"]] = scores
    return found


def test_the_comparison_says_which_methods_are_not_significantly_different_from_the_first() -> None:
    told = {row[0].strip("`"): row[1:] for row in rows(COMPARISON.read_text(), "column")}
    results = studies()
    assert {*told} == {experiment for experiment, _ in results}
    for column, (count, first, beside) in told.items():
        of = {method: scores for (experiment, method), scores in results.items() if experiment == column}
        best = max(of, key=lambda method: fmean(of[method]))
        assert (int(count), first) == (len(of), f"{best} {fmean(of[best]):.1f}")
        p = {method: float(ttest_rel(of[best], of[method]).pvalue) for method in of if method != best}
        near = sorted((method for method in p if p[method] >= 0.05), key=lambda method: -fmean(of[method]))
        assert beside == (", ".join(f"{method} {p[method]:.2f}" for method in near) or "none")


def test_the_comparison_has_the_distances_from_fedavg() -> None:
    table = rows(COMPARISON.read_text(), "method | setting")
    benchmark = studies("comparison_benchmark")
    results = benchmark | studies()
    named = {method.replace("_", ""): method for _, method in results}
    assert len(table) == len(named) - 3, "all but FedAvg, FedProx and ARFL"
    for name, setting, *shown, note in table:
        method = named[re.sub(r"\W", "", name.lower().replace("+", "plus"))]
        for place, cell in enumerate(shown):
            of = [EXPERIMENTS[letter][place] for letter in re.findall(r"\(([a-d])\)", setting)]
            base = benchmark if (of[0], method) in benchmark else results
            pairs = [
                (results[experiment, method], base[experiment, "fedavg"])
                for experiment in of
                if (experiment, method) in results
            ]
            found = [fmean(ours) - fmean(fedavg) for ours, fedavg in pairs]
            assert cell.replace("−", "-") == ", ".join(signed(value) for value in found), (name, cell)
            apart = all(float(ttest_rel(*pair).pvalue) < 0.05 for pair in pairs)
            assert apart or "not significant" in note, (name, cell)


def test_the_comparison_says_whose_rates_on_mnist_are_all_the_lowest() -> None:
    lowest: dict[str, list[bool]] = {}
    for study in Tuned.load(ROOT / "docs" / "comparison.json").studies:
        if study.each["experiment"].startswith("comparison/mnist_"):
            rates = [float(trial.values["train.lr"]) for trial in study.trials]
            assert study.chosen is not None
            chosen = float(study.chosen.values["train.lr"]) == min(rates)
            lowest.setdefault(study.each["method"], []).append(chosen)
    told = re.search(r"the lowest, those of ([\w, ]+) in all four settings", prose(COMPARISON))
    assert told is not None
    named = {name.lower() for name in re.split(", | and ", told[1])}
    assert named == {method for method, found in lowest.items() if len(found) == 4 and all(found)}


def test_the_observations_have_accuracies_of_the_tables_above_them() -> None:
    before, section = COMPARISON.read_text().split("\n## Observations\n")
    told = {*re.findall(ONE_DIGIT, section.split("\n### ")[0])}
    cards = (COMPARISON.parent / name for name in re.findall(r"\]\((methods/\w+\.md)#measurements\)", section))
    shown = {
        number for text in (before, *(card.read_text() for card in cards)) for number in re.findall(ONE_DIGIT, text)
    }
    assert told
    assert told <= shown


def signed(value: float) -> str:
    """One decimal with its sign; none of zero."""
    return f"{value:+.1f}" if f"{value:.1f}" not in ("0.0", "-0.0") else "0.0"


def edges(*files: Path) -> tuple[int, int, int]:
    """How many choices there are, and how many are the lowest and the highest rate of their grid."""
    found = []
    for study in chain.from_iterable(Tuned.load(file).studies for file in files):
        rates = [float(trial.values["train.lr"]) for trial in study.trials]
        assert study.chosen is not None
        rate = float(study.chosen.values["train.lr"])
        found.append((rate == min(rates), rate == max(rates)))
    return len(found), sum(low for low, _ in found), sum(high for _, high in found)


def test_pages_say_how_many_rates_lie_at_an_edge_of_their_grid() -> None:
    count, low, high = edges(ROOT / "docs" / "comparison.json")
    assert f"Of {count} choices {low} are the lowest rate and {high} the highest" in prose(COMPARISON)
    small, lenet = (edges(*(ROOT / "conf" / "scale" / "tuned" / name).glob("*.json")) for name in ("small", "lenet"))
    tables = prose(ROOT / "docs" / "tables.md")
    assert f"In `small` {small[1]} of {small[0]} are the lowest rate of their grid and {small[2]} the highest" in tables
    assert f"{lenet[1]} and {lenet[2]} of {lenet[0]}" in tables


def test_the_benchmarks_have_the_ratios_to_other_frameworks() -> None:
    seconds: dict[tuple[str, str], list[float]] = {}
    for row in numbers(ROOT / "bench" / "results" / "peers.csv"):
        seconds.setdefault((row["workload"], row["way"]), []).append(float(row["seconds_a_round"]))
    text = (ROOT / "docs" / "benchmarks.md").read_text().split("## Beside other frameworks")[1]
    told = rows(text, "workload | hand")
    assert {name.strip("`") for name, *_ in told} == {workload for workload, _ in seconds}
    for name, *cells in told:
        pairs = [zip(seconds[name.strip("`"), way], seconds[name.strip("`"), "auto"], strict=True) for way in PEERS]
        assert cells == [f"{median(theirs / ours for theirs, ours in turns):.1f}" for turns in pairs], name


def test_runs_of_the_benchmark_have_the_same_bits_on_two_kinds_of_processors() -> None:
    version = definition.load().version
    kept = Reruns.load(ROOT / "results" / "benchmark" / version)
    moved = [
        row for row in kept.values if row.first_machine and "EPYC" in row.first_machine and "Xeon" in str(row.machine)
    ]
    assert {row.entry for row in moved if not row.different} >= {"fedcorr", "fednoro", "fedelc", "fedavg", "flr"}
    assert [row.entry for row in moved if row.different] == []
    told = "Of runs made on an AMD EPYC and again on an Intel Xeon (a table on the page) none has other numbers."
    assert told in prose(ROOT / "docs" / "benchmark.md")


PEERS = ("hand", "flower", "pfl", "fluke")


def test_the_readme_counts_what_there_is() -> None:
    readme = prose(ROOT / "README.md")
    assert f"{len({method for _, method in studies()})} methods in four settings" in readme
    tables = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "conf" / "table").glob("*.yaml")}
    papers = [name for name, table in tables.items() if "paper" in table and not table.get("by_name")]
    assert f"{len(papers)} tables of five papers" in readme
    run = [name for name in papers if any(row["state"] == "run" for row in numbers(SMALL / f"{name}.csv"))]
    assert f"has {len(run)} of them on digits" in readme


def numbers(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_the_comparison_says_how_much_fedcorr_trains_under_its_protocol() -> None:
    runs = []
    for scale in (SMALL, ROOT / "results" / "small_tuned"):
        lines = chain.from_iterable(numbers(file) for file in scale.glob("f*_[0-9]*.csv"))
        chosen = {*chain.from_iterable(json.loads(row["records"]) for row in lines if is_fedcorr(row["row"]))}
        runs += [run for name, run in run_record.load(scale).items() if name in chosen]
    trainings = [run.record.participations or 0 for run in runs]
    times = [len(run.evaluations) for run in runs]
    text = prose(COMPARISON)
    assert f"under this protocol {min(trainings)} to {max(trainings)} trainings" in text
    assert f"FedCorr and FLR+ {min(times)} to {max(times)} there" in text


def is_fedcorr(row: str) -> bool:
    """Whether a row is FedCorr, with any network, or FLR+; not without one of its parts."""
    return row == "FLR+" or re.fullmatch(r"FedCorr( with .*)?", row) is not None


def test_the_comparison_says_whom_a_high_rate_costs_most() -> None:
    digits, mnist = falls("comparison/digits_iid"), falls("comparison/mnist_iid")
    assert max(digits, key=lambda method: digits[method]) == "fedavg"
    assert max(mnist, key=lambda method: mnist[method]) == "co_teaching_plus"
    text = prose(COMPARISON)
    assert f"FedAvg falls most in (a) on digits, by {digits['fedavg']:.0f} points" in text
    of_mnist = f"by {mnist['co_teaching_plus']:.0f} (one seed), and FedAvg falls by {mnist['fedavg']:.0f}"
    assert f"on MNIST Co-teaching+ does, {of_mnist}" in text


def falls(experiment: str) -> dict[str, float]:
    """By how many points each method's accuracy falls from the rate 0.01 to 0.1, over the seeds that have both."""
    found = {}
    for study in Tuned.load(ROOT / "docs" / "comparison.json").studies:
        if study.each["experiment"] == experiment:
            scores = {trial.values["train.lr"]: trial.scores for trial in study.trials}
            low, high = scores["0.01"], scores["0.1"]
            both = sorted(low.keys() & high.keys())
            found[study.each["method"]] = 100 * fmean((low[seed] or 0.0) - (high[seed] or 0.0) for seed in both)
    return found


def test_evidence_names_the_methods_whose_constants_are_set_by_the_noise() -> None:
    """Those of which a row of a table of methods has other overrides in some columns."""
    found: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for file in SMALL.glob("*_[0-9]*.csv"):
        for line in numbers(file):
            if line["state"] == "run" and file.stem != "fedpeer_3":  # an ablation over ε
                of = tuple(re.findall(r"method\.\w+=\S+", json.loads(line["commands"])[0]))
                found.setdefault((file.stem, line["row"]), set()).add(of)
    set_by_noise = {(table == "flr_3", row) for (table, row), overrides in found.items() if len(overrides) > 1}
    assert {row for of_flr, row in set_by_noise if not of_flr} == {
        "DivideMix",
        "DivideMix (centralized)",
        "JointOpt (centralized)",
    }
    text = prose(ROOT / "docs" / "evidence.md")
    assert "DivideMix's λ_u and centralised JointOpt's β are set by the level of the noise" in text


def walls(method: str, scale: str = "lenet", tables: str = "*_[0-9]*") -> list[float]:
    """How long the runs of a row of the papers' tables at a scale took, in seconds."""
    folder = ROOT / "results" / scale
    rows = chain.from_iterable(numbers(file) for file in folder.glob(f"{tables}.csv"))
    names = {*chain.from_iterable(json.loads(row["records"] or "[]") for row in rows if row["row"] == method)}
    runs = run_record.load(folder)
    return [runs[name].record.wall_time_s or 0.0 for name in names]


def test_pages_have_the_times_of_the_runs_on_real_images() -> None:
    fedavg = walls("FedAvg")
    assert f"such runs took {min(fedavg):.0f} to {max(fedavg):.0f} s" in prose(ROOT / "docs" / "benchmarks.md")
    both = walls("Co-teaching") + walls("Fed-Coteaching")
    cards = ROOT / "docs" / "methods"
    assert f"it took {min(both) / 60:.0f} to {max(both) / 60:.0f} minutes" in prose(cards / "co_teaching.md")
    dividemix = walls("DivideMix")
    assert f"took {min(dividemix) / 60:.0f} to {max(dividemix) / 60:.0f} minutes" in prose(cards / "dividemix.md")


def test_pages_have_the_times_of_the_runs_on_digits() -> None:
    tables, cards = prose(ROOT / "docs" / "tables.md"), ROOT / "docs" / "methods"
    times = [run.record.wall_time_s or 0.0 for run in run_record.load(SMALL).values()]
    assert f"every table at scale=small: {sum(times) / 2 / 60:.0f} minutes on two cores" in tables
    slower = {}
    for method, paper in (("DivideMix", "fedcorr"), ("Co-teaching", "fedpeer")):
        of = (walls(row, "small", f"{paper}_[0-9]*") for row in (method, "FedAvg"))
        slower[method] = median(next(of)) / median(next(of))
    told = "DivideMix took {DivideMix:.0f} times as long as FedAvg in FedCorr's tables, Co-teaching {Co-teaching:.1f}"
    assert told.format(**slower) in tables
    dividemix, fedavg = (walls(row, "small", "fedcorr_2") for row in ("DivideMix", "FedAvg"))
    told = (
        f"took {min(dividemix):.0f} to {max(dividemix):.0f} s where FedAvg's, which stacks, took {median(fedavg):.1f} s"
    )
    assert told in prose(cards / "dividemix.md")
    co_teaching, fedavg = (walls(row, "small", "fedpeer_1") for row in ("Co-teaching", "FedAvg"))
    told = f"{min(co_teaching):.1f} to {max(co_teaching):.1f} s, FedAvg's {min(fedavg):.1f} to {max(fedavg):.1f} s"
    assert told in prose(cards / "co_teaching.md")


def test_pages_have_the_times_of_runs_at_the_papers_scale_and_of_the_benchmark() -> None:
    hours = sum(walls("FedCorr with LeNet-5", "paper")) / 3600
    assert f"(../results/paper/fedcorr_10.md) took {hours:.0f} hours on a CPU" in prose(ROOT / "docs" / "tables.md")
    benchmark, times = definition.load(), dict[str, list[float]]()
    for name in ("fedavg", "clean_labels"):
        held = json.loads((ROOT / "results" / "benchmark" / benchmark.version / name / "scores.json").read_text())
        for study in held["studies"]:
            task = benchmark.tasks[study["each"]["experiment"].rpartition("/")[2]]
            found = re.findall(r'"cpu_time_s": ([\d.]+)', json.dumps(study))
            times.setdefault(task.tier, []).extend(map(float, found))
    short, longer = (f"{min(of):.0f} to {max(of):.0f}" for of in (times["S"], times["M"]))
    told = f"A run of tier S has taken FedAvg {short} seconds of a core, of tier M {longer}."
    assert told in prose(ROOT / "docs" / "benchmark.md")


ONE_DIGIT = r"(?<![\d.])\d\d\.\d(?!\d)"
TWO_DIGITS = r"(?<![\d.])\d\d\.\d\d(?!\d)"
NUMBER = r"(?<![\d.])\d\d\.\d{1,2}(?!\d)"
CARDS = [path for path in sorted((ROOT / "docs" / "methods").glob("*.md")) if "](../../results/" in path.read_text()]


def measurements(card: Path) -> str:
    """A card's section of them, without the lines that ``test_cards`` holds to the runs; empty if it has none."""
    section = re.split(r"\n## Measure(?:ments|d)\n", card.read_text() + "\n## Measurements\n")[1].split("\n## ")[0]
    kept = "](../../bench/results/card_runs.csv)" in section
    return re.sub(r"(?m)^\| `method=.*", "", section) if kept else section


@pytest.mark.parametrize("card", CARDS, ids=lambda path: path.stem)
def test_a_card_has_the_numbers_of_the_tables_that_it_links_to(card: Path) -> None:
    """What its measurements show with two digits, as tables on images do."""
    section = measurements(card)
    linked = re.findall(r"\(\.\./\.\./(results/[\w/.]+\.md)\)", section)
    found = {number for name in linked for number in re.findall(TWO_DIGITS, (ROOT / name).read_text())}
    assert {*re.findall(TWO_DIGITS, section)} <= found


@pytest.mark.parametrize("card", sorted((ROOT / "docs" / "methods").glob("*.md")), ids=lambda path: path.stem)
def test_a_card_has_no_accuracy_without_a_record(card: Path) -> None:
    """All are in a linked table, a row of the method or of FedAvg in a comparison, or its file."""
    section = measurements(card)
    linked = re.findall(r"\(\.\./\.\./(results/[\w/.]+\.md)\)", section)
    both = "\n".join(page.read_text() for page in (COMPARISON, ROOT / "docs" / "comparison_newer.md"))
    own = re.findall(rf"(?m)^\| (?:{card.stem}|fedavg) \|.*", both)
    audits = ["docs/audit_measured.md"] if "](../audit_measured.md#on-cifar-10)" in section else []
    texts = [*own, *((ROOT / one).read_text() for one in [*linked, *audits])]
    kept = {*chain.from_iterable(re.findall(NUMBER, text) for text in texts)}
    if "](../comparison.json)" in section:
        kept |= {
            f"{score:.1f}" for (_, method), of in studies(measure="last").items() if method == card.stem for score in of
        }
    shown = {*re.findall(rf"(?<![+−]){NUMBER}(?! points)", section)}
    assert shown <= kept


def short(values: list[float]) -> str:
    """The mean with three digits, without the zero before the point; ``none`` of no value."""
    return f"{fmean(values):.3f}".removeprefix("0") if values else "none"


@pytest.mark.parametrize(
    ("file", "first", "of_noise"),
    [
        ("label_audit", "noise (wrong of 10,000)", ("symmetric", "fedcorr", "fedes", "worst")),
        ("label_audit_writers", "noise (wrong of 1,437)", ("fedcorr",)),
        ("label_audit_texts", "noise (wrong of 2,400)", ("fedcorr",)),
    ],
)
def test_the_page_of_the_audit_has_its_records_on_images(file: str, first: str, of_noise: tuple[str, ...]) -> None:
    """Means over seeds, and the range for the window; precision and recall of the issues and of the strict ones."""
    page = (ROOT / "docs" / "audit_measured.md").read_text()
    kept: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in numbers(ROOT / "bench" / "results" / f"{file}.csv"):
        if row["prior"] == "0.25":
            key = (row["noise"], row["method"], row["probabilities"], row["score"])
            kept[key] = [*kept.get(key, []), row]
    noises, noise = iter(of_noise), ""
    for name, label, *shown in rows(page, first):
        noise = next(noises) if name else noise
        method = label.split(",")[0].lower().replace("-", "_")
        window, final = (kept[noise, method, which, "self_confidence"] for which in ("window", "final"))
        margin = kept[noise, method, "window", "normalized_margin"]
        ranked = values(window, "average_precision")
        assert len(ranked) == 3
        strict = [short(values(window, f"strict_{of}")) for of in ("precision", "recall")]
        assert label.endswith(f", {100 * fmean(values(window, 'test_accuracy')):.1f} %")
        assert shown == [
            f"{short(ranked)} ({short([min(ranked)])} to {short([max(ranked)])})",
            short(values(final, "average_precision")),
            short(values(margin, "average_precision")),
            " / ".join(short(values(window, f"issues_{of}")) for of in ("precision", "recall")),
            " / ".join(strict),
        ]


def test_what_to_expect_of_an_audit_is_in_its_records() -> None:
    """Of a run of FedAvg, by the window: means over seeds."""
    bench = ROOT / "bench" / "results"
    of_window = {"method": "fedavg", "probabilities": "window", "score": "self_confidence", "prior": "0.25"}
    found = []
    for name, noise, labels in (
        ("label_audit_writers", "fedcorr", 1437),
        ("noisy_photos", "anywhere", None),
        ("label_audit", "symmetric", 10_000),
        ("label_audit_texts", "fedcorr", 2400),
    ):
        wanted = of_window | {"noise": noise}
        kept = [
            row
            for row in numbers(bench / f"{name}.csv")
            if all(row.get(key, value) == value for key, value in wanted.items())
        ]
        wrong = fmean(values(kept, "errors")) / labels if labels else fmean(values(kept, "wrong_given"))
        right = fmean(values(kept, "test_accuracy" if labels else "accuracy"))
        ranked = (short(values(kept, key)) for key in ("average_precision", "issues_precision", "issues_recall"))
        found.append([f"{100 * wrong:.0f} %", f"{100 * right:.0f} %", *ranked])
    assert [row[1:] for row in rows((ROOT / "docs" / "audit.md").read_text(), "data")] == found


def values(records: list[dict[str, str]], column: str) -> list[float]:
    """The numbers that a column has."""
    return [float(row[column]) for row in records if row[column]]


def test_commands_that_measure_variants_ask_for_test_accuracy() -> None:
    """Without ``--measure last`` they would hold samples out, and give other numbers than the pages have."""
    pages = {page: page.read_text().replace("\\\n", " ") for page in (ROOT / "docs").rglob("*.md")}
    measured = [
        (page.name, command)
        for page, text in pages.items()
        for command in re.findall(r"(?m)^flnl tune .*", text)
        if "--seeds 1,2,3,4,5" in command
    ]
    assert len(measured) > 10, "commands under the seeds of results"
    assert [one for one in measured if "--measure last" not in one[1]] == []


def test_own_data_has_the_tables_of_its_record_on_photos() -> None:
    rows = read_rows(ROOT / "bench" / "results" / "noisy_photos.csv", noisy_photos.Row)
    page = (ROOT / "docs" / "own_data_measured.md").read_text()
    tables = noisy_photos.report(rows).strip().split("\n\n")[1::2]
    assert len(tables) == 2
    assert [table for table in tables if table.strip() not in page] == []


def test_the_page_of_noise_counts_the_images_of_the_people_who_wrote_the_digits() -> None:
    federation = from_config(compose.load(["partition=writers", "noise=none"]))
    sizes = federation.sizes.values()
    told = f"{len(sizes)} people, {min(sizes)} to {max(sizes)} training images each"
    assert told in (ROOT / "docs" / "noise.md").read_text()
