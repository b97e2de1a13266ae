"""The benchmark: the rules of a version, who is better than whom, the page of some entries, and what is refused."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from itertools import combinations
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch

from flnl.commands.benchmark import benchmark as command
from flnl.commands.benchmark import check_same
from flnl.config import compose
from flnl.config.pinning import X86
from flnl.core.errors import Interrupted, UserError
from flnl.instruments.benchmark import definition, entries, figures, reruns
from flnl.instruments.benchmark.definition import Benchmark, Task
from flnl.instruments.benchmark.entries import CEILING, SCORES, Score, claims, drawn
from flnl.instruments.benchmark.leaderboard import Leaderboard
from flnl.instruments.benchmark.page import Page, pages
from flnl.instruments.benchmark.reruns import Rerun, Reruns
from flnl.record.run import RunRecord
from flnl.record.trace import Drawn, Origin, Trace
from flnl.record.tuned import Reported, Study, Trial, Tuned
from flnl.run.record import environment

BY_TORCH_ALONE = (CEILING, "fedavg", "flr")
"""Entries whose bits are those of pinned torch."""
LONGEST = 60
"""Seconds of a processor that an entry's longest run took which is made again with every change."""
SEEDS = (1, 2, 3, 4, 5)
TASKS = {name: Task(name, f"Task {name}", clean=name == "calm") for name in ("one", "two", "calm")}
RULES = Benchmark("t", "train.lr=0.1,1", (101,), 0.1, 0.2, 0.05, SEEDS, 0.01, 0.5, 3, TASKS)
NOISY = [TASKS["one"], TASKS["two"]]


def scores(of: Mapping[str, Sequence[float]]) -> dict[str, Score]:
    """By task, of accuracies by seed."""
    return {task: Score(dict(zip(SEEDS, values, strict=True)), "train.lr=1", {}) for task, values in of.items()}


def leaderboard(**entered: Mapping[str, Sequence[float]]) -> Leaderboard:
    return Leaderboard(RULES, NOISY, {name: scores(of) for name, of in entered.items()})


def flat(value: float) -> list[float]:
    return [value] * 5


def test_ranks_are_means_over_tasks_with_ties_shared() -> None:
    found = leaderboard(
        a={"one": flat(90), "two": flat(80)}, b={"one": flat(80), "two": flat(80)}, c={"one": flat(70), "two": flat(90)}
    )
    # one: 1, 2, 3; two: 2.5, 2.5, 1
    assert found.mean_ranks == {"a": 1.75, "c": 2.0, "b": 2.25}


def test_better_needs_a_small_p_and_half_a_point_and_others_share_a_place() -> None:
    """Ten differences of one sign have p = 2 / 1024 = 0.00195; of three pairs Holm's third of 0.01 is above it."""
    rising = {"one": [90.0, 91, 92, 93, 94], "two": [80.0, 81, 82, 83, 84]}
    lower = {task: [value - 2 for value in values] for task, values in rising.items()}
    hardly = {task: [value - 0.4 for value in values] for task, values in rising.items()}
    found = leaderboard(a=rising, b=hardly, c=lower)
    assert {*found.better} == {("a", "c"), ("b", "c")}, "a is 0.4 points above b, in every pair"
    assert found.better["a", "c"] == pytest.approx(3 * 2 / 1024)
    assert found.places == {"a": 1, "b": 1, "c": 3}


def test_better_is_not_shown_by_four_of_five_seeds() -> None:
    mixed = {"one": [90.0, 90, 90, 90, 70], "two": [90.0, 90, 90, 90, 70]}
    assert not leaderboard(a=mixed, b={"one": flat(80), "two": flat(80)}).better


def test_few_tasks_and_many_entries_can_show_nothing() -> None:
    """Ten pairs have p = 0.00195 at least: enough for five comparisons (of at most three entries), not for six."""
    entered = {
        name: {"one": flat(accuracy), "two": flat(accuracy)}
        for name, accuracy in zip("abcd", (90, 80, 70, 60), strict=True)
    }
    four = leaderboard(**entered)
    assert four.underpowered
    assert not four.better
    entered.pop("d")
    three = leaderboard(**entered)
    assert not three.underpowered
    assert len(three.better) == 3


def test_a_figure_has_ranks_and_intervals_by_place_and_colours_those_that_are_told_apart() -> None:
    many = {"a": flat(90), "b": flat(80), "c": [81.0, 79.2, 80.5, 78, 80]}
    held = leaderboard(**{name: {"one": values, "two": values} for name, values in many.items()})
    left, right = figures.ranks(held).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["a", "b", "c"]
    (points,) = left.lines
    assert np.asarray(points.get_xdata()).tolist() == [1, 2, 3]
    assert np.asarray(right.images[0].get_array()).tolist() == [[0, 1, 1], [-1, 0, 0], [-1, 0, 0]]


def test_comparisons_with_one_entry_are_corrected_among_themselves() -> None:
    """Of five entries that are ten pairs, of which none can differ significantly; each is one of four pairs with b."""
    entered = {
        name: {"one": flat(accuracy), "two": flat(accuracy)}
        for name, accuracy in zip("abcde", (90, 80, 70, 60, 79.8), strict=True)
    }
    five = leaderboard(**entered)
    assert not five.better
    assert {*five.better_with("b")} == {("a", "b"), ("b", "c"), ("b", "d")}, "e is 0.2 points below b"
    assert five.better_with("b")["a", "b"] == pytest.approx(4 * 2 / 1024)
    assert not five.better_with("nobody")


def test_intervals_hold_the_mean_rank_and_are_points_without_spread() -> None:
    sure = leaderboard(a={"one": flat(90), "two": flat(90)}, b={"one": flat(80), "two": flat(80)})
    assert sure.intervals == {"a": (1.0, 1.0), "b": (2.0, 2.0)}
    turned = leaderboard(a={"one": flat(90), "two": flat(80)}, b={"one": flat(80), "two": flat(90)})
    assert turned.intervals == {"a": (1.0, 2.0), "b": (1.0, 2.0)}, "either task may be drawn twice"


@pytest.mark.parametrize("version", definition.versions())
def test_every_task_and_its_ceiling_are_one_federation_with_other_labels(version: str) -> None:
    rules = definition.load(version)
    assert rules.tasks
    assert not {*rules.seeds} & {*rules.tuning_seeds}
    for task in rules.tasks.values():
        noisy, clean = (
            compose.resolved(compose.load([f"experiment={override}"])) for override in (task.override, task.ceiling)
        )
        assert clean["noise"]["_target_"].endswith(".Clean"), task.name
        assert (noisy["noise"] == clean["noise"]) == task.clean, task.name
        assert {key: noisy[key] for key in noisy if key != "noise"} == {k: clean[k] for k in clean if k != "noise"}


def trace(costs: Mapping[str, float], metrics: Mapping[str, float]) -> Trace:
    origin = Origin("c0ffee", "machine", "cpu", {"name": "stacked"}, "2.0")
    return Trace([origin], Drawn("d", "f"), metrics, {**costs}, ["noise rate"] if costs.get("bytes", 0) > 10 else [])


def enter(
    folder: Path,
    name: str,
    of: Mapping[str, float],
    costs: Mapping[str, float] = MappingProxyType({}),
    tried: Sequence[Mapping[str, str]] = ({"train.lr": "1"}, {"train.lr": "0.1"}),
    own: Sequence[str] = (),
    method: str | None = None,
) -> None:
    """Write an entry whose accuracy in a task, a share, grows by 0.01 a seed, and has fallen by twice as much."""
    studies = [
        Study(
            {"method": method or name, "experiment": experiment},
            [*own, f"method={method or name}", f"experiment={experiment}", "eval.validation=0.1"],
            [Trial(values, {101: 0.5}) for values in tried],
            Reported(
                {"mean_last_10": {seed: base + 0.01 * seed for seed in SEEDS}},
                {seed: f"multirun/{seed}" for seed in SEEDS},
                {
                    seed: trace(costs, {"mean_last_10": base + 0.01 * seed, "best_mean_10": base + 0.03 * seed})
                    for seed in SEEDS
                },
            ),
        )
        for experiment, base in of.items()
    ]
    place = folder / "t" / name
    place.mkdir(parents=True)
    Tuned(["flnl", "tune"], "validation", (101,), studies).save(place / SCORES)


def timed(machine: str, first: str | None = None, **seconds: float) -> list[Rerun]:
    """Both noisy tasks of entries, made again on a machine in so many seconds."""
    return [
        Rerun(entry, task, 1, 5, {}, first, machine, "2.0", "c0ffee", taken)
        for entry, taken in seconds.items()
        for task in ("one", "two")
    ]


def made_again(monkeypatch: pytest.MonkeyPatch, rules: Benchmark = RULES, fails: str = "") -> list[list[str]]:
    """Runs are noted here in place of being made; all but those with a word give 0.91, and 0.93 as the best."""
    made: list[list[str]] = []

    def run(words: list[str]) -> SimpleNamespace:
        if fails in words:
            raise UserError("no such data")
        made.append(words)
        folder = next(Path(word.partition("=")[2]) for word in words if word.startswith("output="))
        folder.mkdir()
        metrics = {"mean_last_10": 0.91, "best_mean_10": 0.93}
        here = environment()
        RunRecord(status="finished", key="k", metrics=metrics, machine=here.machine, commit=here.commit).write(folder)
        return SimpleNamespace(status="finished")

    monkeypatch.setattr("flnl.commands.benchmark.pin", lambda: None)  # torch is there already
    monkeypatch.setattr("flnl.commands.benchmark.definition.load", lambda _: rules)
    monkeypatch.setattr("flnl.api.runs.run", run)
    return made


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """FedAvg, a method that is better and dearer, one with a task less, a withdrawn one, and the ceiling."""
    both = ("benchmark/one", "benchmark/two", "benchmark/calm")
    costs = {"cpu_time_s": 10, "bytes": 10, "training_passes": 100, "forward_passes": 0}
    enter(tmp_path, "fedavg", dict(zip(both, (0.5, 0.6, 0.9), strict=True)), costs)
    costs = {"cpu_time_s": 30, "bytes": 20, "training_passes": 90, "forward_passes": 50}
    enter(tmp_path, "better", dict(zip(both, (0.7, 0.8, 0.85), strict=True)), costs)
    enter(tmp_path, "half", {"benchmark/one": 0.9})
    enter(tmp_path, "gone", dict(zip(both, (0.9, 0.9, 0.9), strict=True)), {"cpu_time_s": 10, "bytes": 10})
    (tmp_path / "t" / "gone" / "withdrawn.md").write_text("it read the test set")
    enter(tmp_path, CEILING, {"benchmark/clean/one": 0.9, "benchmark/clean/two": 0.9})
    return tmp_path


def test_the_page_ranks_whole_entries_names_the_others_and_keeps_withdrawn_ones(results: Path) -> None:
    page = Page(RULES, [*entries.entries(RULES, results)], results / "t")
    assert {*page.leaderboard.scores} == {"fedavg", "better"}
    text = page.markdown()
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert "| better | 1.0 (1.0 to 1.0) | 1 | **+20.0** | 73.0 ± 1.6 | 83.0 ± 1.6 | −5.0 |" in rows
    assert re.search(r"^\| \[fedavg\]\(\S+ \| 2\.0 \(2\.0 to 2\.0\) \| 2 \|  \|", text, re.MULTILINE)
    assert "~~gone~~ (it read the test set)" in text
    assert "half (two)" in text
    assert "| *clean labels* |  |  |  | 93.0 ± 1.6 | 93.0 ± 1.6 |  |" in text
    assert "| better | 0.90 | 0.50 | 2.00 | noise rate |" in rows, "costs as multiples, no times, and what it is given"


def test_a_longer_tier_has_a_page_of_those_in_it_and_leaves_the_ranking_of_the_shorter_one(tmp_path: Path) -> None:
    rules = replace(RULES, tasks={**TASKS, "long": Task("long", "Task long", tier="M")})
    for name, base in (("fedavg", 0.5), ("better", 0.7), ("short", 0.8)):
        several = ["one", "two"] if name == "short" else ["one", "two", "long"]
        enter(tmp_path, name, {f"benchmark/{task}": base for task in several})
    first, second = pages(rules, [*entries.entries(rules, tmp_path)], tmp_path / "t", Reruns())
    assert [task.name for task in first.noisy] == ["one", "two"]
    assert first.leaderboard.mean_ranks == {"short": 1, "better": 2, "fedavg": 3}
    assert "[its page](README_m.md)" in first.markdown()
    assert "### Task long" not in first.markdown()
    assert [task.name for task in second.noisy] == ["one", "two", "long"]
    assert second.leaderboard.mean_ranks == {"better": 1, "fedavg": 2}
    assert "short" not in second.markdown().replace("shorter", "")
    assert re.findall("### (.*)", second.markdown()) == ["Task long"]
    again = [*timed("here", fedavg=1), replace(timed("here", fedavg=1)[0], task="long")]
    first, second = pages(rules, [*entries.entries(rules, tmp_path)], tmp_path / "t", Reruns(again))
    assert ["| 2 | none |" in first.markdown(), "| 1 | none |" in second.markdown()] == [True, True]


def test_an_entry_with_keys_of_its_own_says_them(results: Path) -> None:
    """And has its method's card."""
    enter(results, "prox_1", {"benchmark/one": 0.9}, own=("method.mu=1",), method="fedprox")
    text = Page(RULES, [*entries.entries(RULES, results)], results / "t").markdown()
    assert "Not by the method's defaults: prox_1 has method.mu=1.\n" in text
    assert re.search(r"\| \[prox_1\]\(\S+/docs/methods/fedavg\.md\) \|", text), "FedProx is on FedAvg's"


def test_a_withdrawn_entry_decides_nothing(results: Path) -> None:
    """Not even which tasks are ranked; and of clean tasks alone there is no ranking."""
    (results / "t" / "better" / "withdrawn.md").write_text("it read the test set, too")
    shutil.rmtree(results / "t" / "fedavg")
    enter(results, "fedavg", {"benchmark/one": 0.5, "benchmark/calm": 0.9})
    page = Page(RULES, [*entries.entries(RULES, results)], results / "t")
    assert [task.name for task in page.noisy] == ["one"]
    assert {*page.leaderboard.scores} == {"fedavg", "half"}
    assert "Not yet in the ranking" not in page.markdown()
    for name in ("fedavg", "half"):
        shutil.rmtree(results / "t" / name)
        enter(results, name, {"benchmark/calm": 0.9})
    alone = Page(RULES, [*entries.entries(RULES, results)], results / "t")
    assert not alone.leaderboard.scores
    assert "### Task calm" in alone.markdown()


def test_an_entry_is_of_one_method_with_one_set_of_keys(tmp_path: Path) -> None:
    enter(tmp_path, "mine", {"benchmark/one": 0.9})
    folder = tmp_path / "t" / "mine"
    check_same(folder, "mine", ["method=mine"])
    check_same(tmp_path / "t" / "nobody", "nobody", ["method=fedavg"])
    for others in (["method=fedavg"], ["method=mine", "method.mu=1"]):
        with pytest.raises(UserError, match=r"^mine is the entry of method=mine: give this one a --name of its own$"):
            check_same(folder, "mine", others)


def test_an_entry_is_of_one_search(results: Path) -> None:
    """Another space, or more trials, would choose among more than the ruleset allows, and rulesets do not mix."""
    folder = results / "t" / "fedavg"
    search = ["flnl", "benchmark", "run", "method=fedavg", "method.mu=0.1,1", "--trials", "9", "--", "executor=stacked"]
    replace(Tuned.load(folder / SCORES), command=search).save(folder / SCORES)
    check_same(folder, "fedavg", ["method.mu=0.1,1", "method=fedavg"], 9)
    others: Sequence[tuple[list[str], int | None]] = (["method.mu=0.1,10"], 9), (["method.mu=0.1,1"], 8), ([], None)
    for overrides, trials in others:
        with pytest.raises(
            UserError, match=r"^fedavg is the entry of method=fedavg method\.mu=0\.1,1 --trials 9: give"
        ):
            check_same(folder, "fedavg", ["method=fedavg", *overrides], trials)


def test_an_entry_that_is_whole_stays_as_it_is(tmp_path: Path) -> None:
    """In a process of its own, in which torch can still be pinned."""
    version = definition.load().version
    shutil.copytree(entries.RESULTS / version / "fedavg", tmp_path / version / "fedavg")
    words = ["run", "method=fedavg", "--tasks", "digits_clean", "--results", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "flnl", "benchmark", *words], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "scores.json has all of it" in done.stdout
    assert not (tmp_path / "multirun").exists()


def test_an_entry_is_of_one_configuration(results: Path) -> None:
    """Its runs are named by their keys: a method whose file was edited since makes others of the same overrides."""
    folder = results / "t" / "fedavg"
    study = Tuned.load(folder / SCORES).studies[0]
    task = "benchmark/digits_clean"
    fixed = ["method=fedavg", f"experiment={task}", "eval.validation=0.1"]
    ran = replace(study.trials[0], runs={101: "multirun/tune/0123456789abcdef"})
    edited = replace(study, each={"method": "fedavg", "experiment": task}, fixed=fixed, trials=[ran])
    replace(Tuned.load(folder / SCORES), studies=[edited]).save(folder / SCORES)
    with pytest.raises(UserError, match=r"^fedavg has scores in benchmark/digits_clean of another .* or remove "):
        check_same(folder, "fedavg", ["method=fedavg"])


def test_the_newest_version_is_the_one_of_the_largest_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definition, "FOLDER", tmp_path)
    for name in ("2026.9", "2026.10", "2025.11"):
        (tmp_path / f"{name}.yaml").write_text("tasks: {a: [")
    assert definition.versions() == ["2025.11", "2026.9", "2026.10"]
    with pytest.raises(UserError, match=r"2026\.10\.yaml is no benchmark"):
        definition.load()


def test_a_noisy_task_says_what_fedavg_can_win_and_what_it_forgets(results: Path) -> None:
    tasks = Page(RULES, [*entries.entries(RULES, results)], results / "t").markdown().split("## By task")[1]
    lost = " points higher. With the noisy ones its last ten evaluations are 6.0 points below its"
    lost += " best ten in a row.\n"
    one, two, calm = tasks.split("### Task ")[1:]
    assert f"With right labels FedAvg's median over seeds is 40.0{lost}" in one
    assert f"With right labels FedAvg's median over seeds is 30.0{lost}" in two
    assert "FedAvg's" not in calm


def test_what_fedavg_forgets_is_told_only_where_every_run_has_recorded_it() -> None:
    traces = {seed: trace({}, {"mean_last_10": 0.5, "best_mean_10": 0.5 + 0.01 * seed}) for seed in SEEDS}
    score = Score(dict.fromkeys(SEEDS, 50.0), "", traces)
    assert score.memorised == pytest.approx(3)
    assert Score(score.accuracy, "", traces | {5: trace({}, {"mean_last_10": 0.5})}).memorised is None


def test_entries_that_searched_more_than_the_rate_are_ranked_apart(results: Path) -> None:
    searched = [{"train.lr": "1", "method.mu": mu} for mu in ("0.1", "1", "10")]
    both = ("benchmark/one", "benchmark/two", "benchmark/calm")
    enter(results, "sought", dict(zip(both, (0.8, 0.85, 0.9), strict=True)), tried=searched)
    page = Page(RULES, [*entries.entries(RULES, results)], results / "t")
    assert {*page.leaderboard.scores} == {"fedavg", "better"}
    assert {*page.leaderboard_searched.scores} == {"sought"}
    first, second = page.markdown().split("## With a search of own constants")
    assert "sought" not in first
    assert "| sought | 1.0 (1.0 to 1.0) | 1 | **+27.5** | 83.0 ± 1.6 | 88.0 ± 1.6 | 0.0 |" in second
    assert "better" not in second.partition("## Costs")[0]


@pytest.mark.parametrize(
    "tried",
    [
        pytest.param([{"train.lr": rate} for rate in ("0.01", "0.1", "1")], id="a rate more than the grid has"),
        pytest.param([{"train.lr": "1", "method.mu": mu} for mu in "1234"], id="a trial more than ruleset B has"),
    ],
)
def test_an_entry_that_tried_more_than_its_ruleset_allows_is_refused(
    tried: list[dict[str, str]], results: Path
) -> None:
    enter(results, "greedy", {"benchmark/one": 0.9}, tried=tried)
    with pytest.raises(UserError, match=r"greedy.*was not made by the rules"):
        [*entries.entries(RULES, results)]


def test_a_search_is_by_trials_where_a_choice_of_the_rate_is_by_its_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("flnl.commands.benchmark.pin", lambda: None)  # torch is there already
    monkeypatch.setattr("flnl.commands.tune.tune", lambda words, typed: asked.append(words))
    where = ["--results", str(tmp_path)]
    command(["run", "method=fedprox", *where])
    command(["run", "method=fedprox", "method.mu=0.1,1", "--trials", "20", "--name", "sought", *where])
    first, second = (" ".join(words) for words in asked)
    assert "--margin 0.05 --skip chosen" in first
    assert "--trials" not in first
    assert "method.mu=0.1,1" in second
    assert "--trials 20" in second
    assert "--margin" not in second
    assert all(definition.load().grid in words for words in (first, second))


def test_a_run_that_failed_is_told_and_does_not_lower_the_ceiling_of_the_figure(results: Path) -> None:
    page = Page(RULES, [*entries.entries(RULES, results)], results / "t")
    assert not page.failed
    accuracy = page.scores[CEILING]["one"].accuracy
    assert isinstance(accuracy, dict)
    of_withdrawn = page.scores["gone"]["one"].accuracy
    assert isinstance(of_withdrawn, dict)
    of_withdrawn[4] = 1.0  # it counts no more
    accuracy[4] = 26.4  # FedAvg has 51 to 55
    assert page.failed == ["clean_labels on one, seed 4 (26.4)"]
    assert "count as all others: clean_labels on one, seed 4 (26.4)." in page.markdown()
    collapsed = page.scores["better"]["two"].accuracy
    assert isinstance(collapsed, dict)
    collapsed.update(dict.fromkeys(SEEDS, 10.0))  # all seeds alike
    assert page.failed[0] == "better on two, seeds 1, 2, 3, 4, 5 (10.0, 10.0, 10.0, 10.0, 10.0)"
    (line,) = figures.costs(page).axes[0].lines
    assert np.asarray(line.get_ydata(), float) == pytest.approx((92 + 93) / 2)


def test_figures_are_drawn_of_the_ranked_entries(results: Path) -> None:
    page = Page(RULES, [*entries.entries(RULES, results)], results / "t")
    page = replace(page, reruns=Reruns([*timed("slow", fedavg=10, better=30), *timed("fast", fedavg=4)]))
    assert not Page(page.benchmark, page.entries, page.folder).timed
    assert page.timed
    (axes,) = figures.costs(page).axes
    points = np.asarray(axes.collections[0].get_offsets(), float)
    assert sorted(map(tuple, points.tolist())) == [(1.0, 58.0), (3.0, 78.0)]


def test_names_of_equal_entries_do_not_cover_each_other(results: Path) -> None:
    both = ("benchmark/one", "benchmark/two", "benchmark/calm")
    for name in ("as_good", "also_as_good"):
        enter(results, name, dict(zip(both, (0.7, 0.8, 0.85), strict=True)))
    reruns = Reruns(timed("here", fedavg=10, better=30, as_good=30, also_as_good=30))
    (axes,) = figures.costs(Page(RULES, [*entries.entries(RULES, results)], results / "t", reruns)).axes
    names = [text for text in axes.texts if text.get_text() in ("better", "as_good", "also_as_good")]
    assert len(names) == 3
    for one, other in combinations([name.get_window_extent() for name in names], 2):
        assert not one.overlaps(other)


def test_scores_by_other_rules_are_refused(results: Path) -> None:
    with pytest.raises(UserError, match="not made by the rules"):
        [*entries.entries(RULES.__class__(**{**vars(RULES), "tuning_seeds": (101, 102)}), results)]


def test_an_entry_without_a_seed_has_no_score(results: Path) -> None:
    more = RULES.__class__(**{**vars(RULES), "seeds": (1, 6)})
    (entry,) = (entry for entry in entries.entries(more, results) if entry.name == "half")
    assert entry.score(more, TASKS["one"]) is None


def test_a_claim_is_a_run_of_an_entry_that_stands_without_held_out_samples(results: Path) -> None:
    found = claims(RULES, [*entries.entries(RULES, results)], [*TASKS.values()])
    assert {(claim.entry, claim.task) for claim in found if claim.entry in ("half", "gone", CEILING)} == {
        ("half", "one"),
        (CEILING, "one"),
        (CEILING, "two"),
    }
    of_half = [claim for claim in found if claim.entry == "half"]
    assert [claim.seed for claim in of_half] == [*SEEDS]
    words = ["method=half", "experiment=benchmark/one", "train.lr=1", "seed=1"]
    executor = ["executor=stacked", "executor.graphs=stacks", "executor.split=1", "executor.memory_format=contiguous"]
    assert of_half[0].overrides == [*words, *executor, "executor.compile=false", "reproducible=true"]
    assert {drawn(of_half, str(day)).seed for day in range(100)} == {*SEEDS}


def test_a_run_is_made_again_with_the_files_of_its_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    enter(tmp_path, "mine", {"benchmark/one": 0.9})
    enter(tmp_path, "fedavg", {"benchmark/one": 0.9})
    made = made_again(monkeypatch, replace(RULES, seeds=(1,)))
    assert command(["verify", "--name", "mine", "--results", str(tmp_path), "--config-dir", str(tmp_path)])
    assert made[0][0] == f"hydra.searchpath=['file://{tmp_path}']"
    assert "mine, one, seed 1: 2 numbers, none different\n" in capsys.readouterr().out
    assert len(made) == 1
    assert not (tmp_path / "t" / reruns.FILE).exists()


def test_with_each_the_first_seeds_are_made_again_beside_fedavgs_and_kept_once_a_program(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a number that is another one is told, fails the command each time, and is kept."""
    made = made_again(monkeypatch)
    words = ["verify", "--name", "half", "--each", "--keep", "--results", str(results)]
    assert not command(words), "FedAvg's is another one than 0.91"
    assert [[word for word in words if word.startswith(("method", "experiment", "seed"))] for words in made] == [
        ["method=fedavg", "experiment=benchmark/one", "seed=1"],
        ["method=half", "experiment=benchmark/one", "seed=1"],
    ]
    told = capsys.readouterr().out
    assert "[1/2] fedavg, one, seed 1: flnl method=fedavg" in told
    assert "fedavg, one, seed 1: 2 numbers, 2 different\n  mean_last_10: 0.51 then, 0.91 now\n" in told
    kept = Reruns.load(results / "t")
    assert [(row.run, len(row.different)) for row in kept.values] == [
        (("fedavg", "one", 1), 2),
        (("half", "one", 1), 0),
    ]
    assert not command(words), "it is told again"
    assert "mean_last_10: 0.51 then, 0.91 now" in capsys.readouterr().out
    assert len(made) == 2
    monkeypatch.setattr("flnl.commands.benchmark._program", lambda: (environment().machine, "other"))
    command(words)
    assert len(made) == 4, "another commit"
    assert command(["verify", "--name", "half", "--each", "--results", str(results), "--", "device=cpu"])
    assert made[4][-1] == "device=cpu", "without times there is no need for FedAvg's"
    for word in ("noise.rho=0.2", "max_rounds=2", "hydra.launcher.n_jobs=2"):
        with pytest.raises(UserError, match=f"^{word}: verify makes the entries' own runs"):
            command(["verify", "--results", str(results), "--", word])
    assert len(made) == 5, "and a run that is not kept is made, whatever is kept"
    assert len(Reruns.load(results / "t").values) == 2, "another commit than that of the record would be kept apart"


def test_one_run_that_cannot_be_made_keeps_no_other_from_it(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_again(monkeypatch, fails="experiment=benchmark/one")
    with pytest.raises(UserError, match=r"^not made: fedavg, one, seed 1: no such data$"):
        command(["verify", "--name", "fedavg", "--each", "--results", str(results)])
    assert len(made) == 2, "two and calm"
    assert "failed: fedavg, one, seed 1: no such data" in capsys.readouterr().err


def test_a_run_that_was_stopped_is_not_compared(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_again(monkeypatch)
    monkeypatch.setattr("flnl.api.runs.run", lambda words: SimpleNamespace(status="interrupted"))
    with pytest.raises(Interrupted):
        command(["verify", "--name", "half", "--each", "--keep", "--results", str(results)])
    assert not Reruns.load(results / "t").values


def test_a_method_that_needs_the_noise_rate_is_not_run_where_none_is_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("flnl.commands.benchmark.pin", lambda: None)
    monkeypatch.setattr("flnl.commands.tune.tune", lambda words, typed: asked.append(words))
    tasks = ("--tasks", "digits_writers,digits_clean", "--results", str(tmp_path))
    command(["run", "method=selfie", *tasks])
    command(["run", "method=nosuch,fedavg", *tasks])  # the tuning refuses it, the next one is run
    with pytest.raises(UserError, match="selfie: no task states the noise rate"):
        command(["run", "method=selfie", "--tasks", "digits_clean", "--results", str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()
    assert [next(word for word in words if word.startswith("experiment=")) for words in asked] == [
        "experiment=benchmark/digits_writers",
        *["experiment=benchmark/digits_writers,benchmark/digits_clean"] * 2,
    ]
    assert (
        "selfie needs the noise rate; left out, since none is stated: benchmark/digits_clean" in capsys.readouterr().err
    )


def test_a_task_shows_its_worst_client_and_the_labels_found_where_an_entry_has_them(results: Path) -> None:
    found = [*entries.entries(RULES, results)]
    plain = Page(RULES, found, results / "t").markdown()
    assert "| entry | accuracy, % | difference to FedAvg | chosen |" in plain
    assert "*F1*" not in plain
    judged = {"worst_client_mean_last_10": 0.25, "detection_f1": 0.5}
    for study in next(entry for entry in found if entry.name == "better").tuned.studies:
        assert study.reported is not None
        for one in study.reported.traces.values():
            assert isinstance(one.metrics, dict)
            one.metrics.update(judged)
    tables = Page(RULES, found, results / "t").markdown().split("### ")[1:]
    assert [("worst client, %" in table, "F1 |" in table) for table in tables] == [(True, True)] * 2 + [(True, False)]
    row = next(line for line in tables[0].splitlines() if line.startswith("| better "))
    assert [cell.strip() for cell in row.split("|")][4:6] == ["25.0", "0.50"]


def test_a_method_that_needs_clean_samples_is_given_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("flnl.commands.benchmark.pin", lambda: None)
    monkeypatch.setattr("flnl.commands.tune.tune", lambda words, typed: asked.append(words))
    command(["run", "method=focus,fedavg", "--tasks", "digits_writers", "--results", str(tmp_path)])
    assert [[word for word in words if word.startswith("eval.")] for words in asked] == [["eval.benchmark=0.2"], []]


def test_a_page_needs_no_entry_of_fedavg(tmp_path: Path) -> None:
    enter(tmp_path, "mine", {"benchmark/one": 0.9, "benchmark/calm": 0.9})
    page = Page(RULES, [*entries.entries(RULES, tmp_path)], tmp_path / "t")
    assert "| mine | 1.0 (1.0 to 1.0) | 1 |" in page.markdown()


def test_a_study_with_fewer_rates_than_the_version_has_is_no_result_yet(results: Path) -> None:
    """So that a version with a larger grid may begin with the files of an earlier one."""
    enter(results, "begun", {"benchmark/one": 0.9}, tried=[{"train.lr": "1"}])
    assert "begun" not in [one.name for one in entries.entries(RULES, results)]


def test_no_entry_has_another_share_of_clean_samples(results: Path) -> None:
    entry = next(one for one in entries.entries(RULES, results) if one.name == "better")

    def given(share: str) -> None:
        studies = [replace(study, fixed=[*study.fixed, f"eval.benchmark={share}"]) for study in entry.tuned.studies]
        replace(entry.tuned, studies=studies).save(entry.folder / SCORES)

    given("0.2")
    assert next(one for one in entries.entries(RULES, results) if one.name == "better").own == entry.own
    given("0.5")
    with pytest.raises(UserError, match="was not made by the rules"):
        [*entries.entries(RULES, results)]


def test_right_labels_of_tasks_with_one_federation_are_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("flnl.commands.benchmark.pin", lambda: None)  # torch is there already
    monkeypatch.setattr("flnl.commands.tune.tune", lambda words, typed: asked.append(words))
    tasks = "digits_writers,digits_instance,mnist_writers"
    command(["run", CEILING, "--tasks", tasks, "--results", str(tmp_path)])
    assert "experiment=benchmark/clean/digits_writers,benchmark/clean/mnist_writers" in asked[0]


def test_a_rerun_tells_a_number_that_is_another_or_missing() -> None:
    first = Trace([], Drawn("d", "f"), {"best": 0.5, "last": 0.25, "changed": 3.0})
    now = Trace([Origin("c", "m", "cpu", None, "2")], Drawn("d", "f"), {"best": 0.5, "last": 0.2500000001, "more": 1.0})
    assert Rerun.of(("a", "one", 1), first, now).different == {"last": (0.25, 0.2500000001), "changed": (3.0, None)}


def test_times_are_compared_of_one_program_where_all_tasks_were_made_again() -> None:
    """Slow: 3 times FedAvg; fast: twice, later; of one entry no program has made FedAvg's, too."""
    rows = [*timed("slow", fedavg=10, better=30), *timed("fast", fedavg=4, better=8), *timed("third", better=1, lone=1)]
    kept = Reruns([*rows, *(replace(row, commit="later") for row in timed("fast", lone=1))])
    assert kept.time("better", "fedavg", ["one", "two"]) == pytest.approx(2)
    assert kept.time("better", "fedavg", ["one", "two", "three"]) is None
    assert kept.time("lone", "fedavg", ["one"]) is None, "FedAvg's is of another commit"
    assert kept.time("nobody", "fedavg", ["one"]) is None
    assert kept.time("better", "fedavg", []) is None
    seeds = [replace(row, seed=2, cpu_time_s=7 * (row.cpu_time_s or 0)) for row in rows if row.task == "one"]
    more = Reruns([*rows, *seeds])
    assert more.time("better", "fedavg", ["one", "two"]) == pytest.approx(2), "two seeds of a task are one task"
    alone = Reruns([row for row in more.values if row.task == "one"])
    assert alone.time("better", "fedavg", ["one", "two"]) is None


def test_reruns_that_are_damaged_are_refused_by_their_line(tmp_path: Path) -> None:
    first, other = timed("here", fedavg=1)
    for row in (first, other, replace(first, cpu_time_s=2)):
        Reruns.add(tmp_path, row)
    assert [row.cpu_time_s for row in Reruns.load(tmp_path).values] == [1, 2], "the same run's is now the last"
    file = tmp_path / reruns.FILE
    whole = file.read_text()
    file.write_text(whole.rstrip())
    Reruns.add(tmp_path, replace(other, seed=3))
    assert len(Reruns.load(tmp_path).values) == 3, "an editor has left out the end of the last line"
    for damaged in (
        whole[:-9],
        f'{whole}["a"]',
        f"{whole}\n",
        whole + whole[:90].replace("seed", "need"),
        f"{whole}\0",
    ):
        file.write_text(damaged)
        line = 3 if damaged == whole[:-9] else 4
        with pytest.raises(UserError, match=rf"reruns\.jsonl, line {line}, is damaged \(.*\): delete it$"):
            Reruns.load(tmp_path)
    file.write_bytes(b"\xff\n")
    with pytest.raises(UserError, match="line 1, is damaged"):
        Reruns.load(tmp_path)


def test_the_page_says_which_runs_gave_other_numbers_on_which_processors(results: Path) -> None:
    rows = [
        *timed("Linux-6, AMD EPYC, AVX2", first="Linux-6, AMD EPYC, AVX2", fedavg=10),
        *timed("Linux-7, Xeon, AVX2", first="Linux-6, AMD EPYC, AVX2", fedavg=4, better=8),
    ]
    rows[-1] = replace(rows[-1], different={"last": (0.5, 0.25)})
    rows += timed("Linux-7, Xeon, AVX2", gone=1, nobody=1)  # withdrawn, and no entry
    text = Page(RULES, [*entries.entries(RULES, results)], results / "t", Reruns(rows)).markdown()
    assert "| AMD EPYC | AMD EPYC | 2 | none |\n| AMD EPYC | Xeon | 4 | better on two, seed 1 |" in text
    assert "| better | 0.90 | 0.50 | 2.00 | 2.00 | noise rate |" in text


@pytest.mark.skipif(platform.machine() not in X86, reason="bits are those of x86 machines")
def test_a_run_of_an_entry_which_the_date_draws_gives_its_numbers_again(tmp_path: Path) -> None:
    """On data that are everywhere. A change that moves these bits moves every entry: rerun them.

    Entries that fit mixtures do so by scikit-learn, whose last bits follow the processor: three points are much there.
    """
    rules, today = definition.load(), date.today().isoformat()
    tasks = [task for task in rules.tasks.values() if task.name.startswith("digits")]
    those = {entry.name: claims(rules, [entry], tasks) for entry in entries.entries(rules)}
    short = [name for name, of in those.items() if of and max(c.trace.costs["cpu_time_s"] for c in of) < LONGEST]
    claim = drawn(those[short[date.today().toordinal() % len(short)]], today)
    if claim.trace.origins[-1].torch != torch.__version__.partition("+")[0]:
        pytest.skip("made with another version of torch")
    words = ["verify", "--name", claim.entry, "--tasks", ",".join(task.name for task in tasks), "--draw", today]
    done = subprocess.run(
        [sys.executable, "-m", "flnl", "benchmark", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    if claim.entry in BY_TORCH_ALONE:
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{claim}: {len(claim.trace.metrics)} numbers, none different" in done.stdout
    else:
        assert f"{claim}: {len(claim.trace.metrics)} numbers, " in done.stdout, done.stdout + done.stderr
        moved = re.search(r"mean_last_10: (\S+) then, (\S+) now", done.stdout)
        assert moved is None or float(moved[2]) == pytest.approx(float(moved[1]), abs=0.03), done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "needs a method"),
        (["run", "method=fedavg", "train.lr=1"], "equal for all entries"),
        (["run", "method=fedavg", "noise.rho=1"], "equal for all entries"),
        (["run", "method=fedavg", "train.epochs=20", "--name", "x"], "equal for all entries"),
        (["run", "method=fedprox", "method.mu=1"], "give it a --name"),
        (["run", "method=fedprox", "method.mu=0.1,1", "--name", "x"], "ruleset A chooses train.lr alone"),
        (["run", "method=fedprox", "method.mu=1", "--name", "x", "--trials", "9"], "give keys of the method several"),
        (["run", "method=fedavg", "--trials", "9"], "give keys of the method several"),
        (["run", "method=fedprox", "method.mu=0.1,1", "--name", "x", "--trials", "21"], "of at most 20"),
        (["render", "--trials", "9"], "takes no --trials"),
        (["run", "method=fedavg,fedprox", "--name", "x"], "names one entry"),
        (["run", "method=fedavg", "--name", "../x"], "small letters"),
        (["run", "method=fedavg", "--tasks", "digits"], "there is no such task"),
        (["run", "method=fedavg", "--tasks", "digits_clean", "--tier", "M"], "no task of digits_clean is in it"),
        (["run", "method=fedavg", "debug=fast", "--name", "x"], "equal for all entries"),
        (["run", "method=elr", "--name", "clean_labels"], "is that of another entry"),
        (["run", "method=elr", "--name", "fedavg"], "is that of another entry"),
        (["run", "method=fedprox", "method.mu=1", "--name", "fedprox"], "is that of another entry"),
        (["run", "clean_labels", "--name", "x"], "takes no override, no --name"),
        (["run", "clean_labels", "method=fedavg"], "takes no override, no --name"),
        (["run", "method=fedavg", "--tasks", ""], "there is no such task"),
        (["run", "method=fedavg", "--name", ""], "small letters"),
        (["run", "method=fedavg", "+method.stages.training.train.epochs=1", "--name", "x"], "equal for all entries"),
        (["run", "method=fedavg", "train={epochs: 9}", "--name", "x"], "keys of train one by one"),
        (["run", "method=fedavg", "+method.stages.a={train: {epochs: 9}}", "--name", "x"], "one by one"),
        (["run", "method=fedavg", "++method.stages.training.train.lr=1", "--name", "x"], "equal for all entries"),
        (["run", "clean_labels", "--tasks", "digits_clean"], "name noisy tasks"),
        (["list", "--tasks", "digits_clean"], "takes no --tasks"),
        (["render", "--config-dir", "conf"], "takes no --tasks, --tier, --config-dir"),
        (["render", "method=fedavg"], "takes no overrides"),
        (["list", "--name", "fedavg"], "takes no --name"),
        (["render", "--draw", "x"], "takes no --draw"),
        (["render", "--keep"], "takes no --draw, --each, --keep"),
        (["verify", "--draw", "x", "--each"], "give one of them"),
        (["verify", "--keep", "--", "rounds=2"], "--keep takes nothing after --"),
        (["verify", "method=fedavg"], "takes no overrides"),
        (["verify", "--name", "nobody"], "has no run of nobody"),
        (["list", "--version", "1999.1"], "there is no such version"),
    ],
)
def test_what_the_command_refuses(arguments: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        command([*arguments, "--results", str(tmp_path)])
