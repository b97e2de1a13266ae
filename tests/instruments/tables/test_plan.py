"""A run that several cells need is one run, and a cell says what became of its own."""

import json
from pathlib import Path
from typing import Any

import pytest

from flnl.core.errors import UserError
from flnl.instruments.tables.cost import Estimate, estimate
from flnl.instruments.tables.failed_jobs import failed_jobs, remember
from flnl.instruments.tables.identity import Composer
from flnl.instruments.tables.plan import Count, Plan, Wanted
from flnl.instruments.tables.render.sheet import footnote
from flnl.instruments.tables.scaling import Scaling
from flnl.instruments.tables.table import NEVER, Column, Metric, Number, Row, Table
from flnl.storage.paces import Pace, Paces
from flnl.sweep.ledger import Job, Ledger

BEST = Metric("best test accuracy", "best", "%", True)
LAST = Metric("last test accuracy", "last", "%", True)
SCALING = Scaling("tiny", "tiny", (), (1,), ("dataset=digits", "protocol=digits", "model=mlp"), {}, {"seed=9": "no"})
FEDAVG, FEDPROX = (Row(n, n, (f"method={n.lower()}",), None) for n in ("FedAvg", "FedProx"))
ROFL = Row("RoFL", "RoFL", (), "RoFL")


def table(*columns: Column, rows: tuple[Row, ...] = (FEDAVG, ROFL, FEDPROX), metric: Metric = BEST) -> Table:
    cells = tuple(tuple(Number(10.0 * i + j, None) for j in range(len(columns))) for i in range(len(rows)))
    return Table("t", "", "", "", metric, None, rows, columns, cells, ())


def noisy(rho: float, *more: str, label: str = "", **said: Any) -> Column:
    return Column(label or f"ρ={rho}", (f"noise.rho={rho}", *more), **said)


def plan(tmp_path: Path, *tables: Table, seeds: int | None = None) -> Plan:
    return Plan(tables, SCALING, seeds, tmp_path)


def finish(found: Plan, run: Wanted, status: str = "finished", evaluations: list[Any] = [], **said: Any) -> None:  # noqa: B006
    folder = found.at(run)
    folder.mkdir(parents=True, exist_ok=True)
    record = {"key": run.identity.key, "status": status, "device": "cpu", "config": {}, **said}
    (folder / "result.json").write_text(json.dumps(record))
    lines = [
        {"kind": "round", "round": 1, "local_memorization_clean_wrong": 0.04},
        *({"kind": "evaluation", **line} for line in evaluations),
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_that_two_tables_need_is_one_and_records_what_either_wants(tmp_path: Path) -> None:
    plain, more = table(noisy(0.4)), table(noisy(0.4, "eval.memorization=true"), noisy(0.8))
    found = plan(tmp_path, plain, more)
    assert len(found.runs) == 4
    first = next(iter(found.runs.values()))
    assert first.cells == ["t FedAvg ρ=0.4", "t FedAvg ρ=0.4"]
    assert first.overrides.count("eval.memorization=true") == 1
    assert "eval.memorization=true" not in list(found.runs.values())[-1].overrides
    assert first.command.startswith("flnl dataset=digits protocol=digits model=mlp noise.rho=0.4")


def test_a_run_records_what_tables_need_that_are_not_asked_for(tmp_path: Path) -> None:
    """A run of one table that lacked what another needs would have to be made a second time."""
    plain, other = table(noisy(0.4), noisy(0.6)), table(noisy(0.6, "eval.memorization=true"), noisy(0.8))
    found = Plan([plain], SCALING, None, tmp_path, [plain, other])
    said = {run.cells[0]: run.overrides.count("eval.memorization=true") for run in found.runs.values()}
    assert said == {"t FedAvg ρ=0.4": 0, "t FedProx ρ=0.4": 0, "t FedAvg ρ=0.6": 1, "t FedProx ρ=0.6": 1}


def test_every_seed_is_a_run(tmp_path: Path) -> None:
    found = plan(tmp_path, table(noisy(0.4), rows=(FEDAVG,)), seeds=3)
    assert [run.seed for run in found.runs.values()] == [1, 2, 3]
    assert len({run.identity.folder for run in found.runs.values()}) == 3


def test_columns_with_the_same_runs_become_one_with_each_of_the_papers_numbers(tmp_path: Path) -> None:
    a, b = noisy(0.4, "dataset=cifar10", label="A · x"), noisy(0.4, "dataset=cifar10", label="B · x")
    (filled,) = plan(tmp_path, table(a, noisy(0.8), b)).filled()
    assert filled.of_paper == ((0, 2), (1,))
    assert [c.label for c in filled.columns] == ["A/B · x", "ρ=0.8"]
    assert [cell.papers for cell in filled.cells[0]] == [(Number(0.0, None), Number(2.0, None)), (Number(1.0, None),)]


def test_columns_that_measure_other_things_in_the_same_runs_stay_apart(tmp_path: Path) -> None:
    (filled,) = plan(tmp_path, table(noisy(0.4, label="a"), noisy(0.4, label="b", key="last"))).filled()
    assert filled.of_paper == ((0,), (1,))


def test_columns_that_cannot_run_stay_apart(tmp_path: Path) -> None:
    (filled,) = plan(tmp_path, table(noisy(0.4, "seed=9"), noisy(0.8, "seed=9"))).filled()
    assert filled.of_paper == ((0,), (1,))
    assert filled.cells[0][0].state == "na"
    assert filled.cells[0][0].note == "no"


def test_states_and_counts(tmp_path: Path) -> None:
    """FedAvg: one seed of two has finished; FedProx: one has failed; the other column has not begun."""
    found = plan(tmp_path, table(noisy(0.4), noisy(0.8), noisy(0.6, missing="nobody knows")), seeds=2)
    runs = {run.cells[0]: [] for run in found.runs.values()}  # type: dict[str, list[Wanted]]
    for run in found.runs.values():
        runs[run.cells[0]].append(run)
    finish(found, runs["t FedAvg ρ=0.4"][0], metrics={"best": 0.5})
    finish(found, runs["t FedProx ρ=0.4"][0], metrics={"best": 0.6})
    finish(found, runs["t FedProx ρ=0.4"][1], "failed", error="ValueError: the loss\nis no number")
    (found.at(runs["t FedProx ρ=0.4"][1]) / "error.log").touch()
    finish(found, runs["t FedAvg ρ=0.8"][0], "interrupted")
    (filled,) = found.filled()
    states = [[cell.state for cell in row] for row in filled.cells]
    assert states == [["partly", "absent", "missing"], ["missing"] * 3, ["failed", "absent", "missing"]]
    half, failed = filled.cells[0][0], filled.cells[2][0]
    assert (half.values, half.number, half.std) == ((50.0,), 50.0, None)
    assert str(failed.runs[1].log).endswith("error.log")
    assert failed.note is None, "the footnote tells it from the runs"
    assert [run.error for run in failed.runs] == [None, "ValueError: the loss is no number"]
    assert str(Count.of([filled])) == "4 of 9 cells can run, 0 have run, 1 failed"
    assert len(found.missing) == 6


@pytest.mark.parametrize(("status", "state"), [("refused", "failed"), ("failed", "failed"), ("interrupted", "absent")])
def test_a_job_that_came_to_no_run_is_a_failed_cell(status: Any, state: str, tmp_path: Path) -> None:
    """Nothing but the sweep's ledger knows of it."""
    found = plan(tmp_path, table(noisy(0.4), rows=(FEDAVG,)))
    (run,) = found.runs.values()
    Ledger(found.folder).plan([run.overrides], [])
    Ledger(found.folder).write(Job(0, run.overrides, status, str(found.at(run)), error="no images"))
    cell = plan(tmp_path, table(noisy(0.4), rows=(FEDAVG,))).filled()[0].cells[0][0]
    assert cell.state == state
    assert cell.runs[0].error == ("no images" if state == "failed" else None)
    assert cell.runs[0].log is None, "it has written nothing"


def test_what_failed_is_remembered_when_other_tables_are_launched(tmp_path: Path) -> None:
    """A launch begins a new ledger. What is tried again is as it comes out then."""
    tables = table(noisy(0.4), noisy(0.8), rows=(FEDAVG,))
    found = plan(tmp_path, tables)
    first, second = found.runs.values()
    Ledger(found.folder).plan([first.overrides], [])
    Ledger(found.folder).write(Job(0, first.overrides, "refused", str(found.at(first)), error="no images"))

    def launched(run: Wanted, *, begun: bool = True) -> list[str]:
        remember(found.folder, [run.identity.folder])
        Ledger(found.folder).plan([run.overrides], [])
        if begun:
            Ledger(found.folder).write(Job(0, run.overrides, "interrupted", str(found.at(run))))
        return [cell.state for cell in plan(tmp_path, tables).filled()[0].cells[0]]

    assert launched(second) == ["failed", "absent"]
    assert failed_jobs(found.folder) == {first.identity.folder: "no images"}
    assert launched(second) == ["failed", "absent"]
    assert launched(first, begun=False) == ["absent", "absent"]


@pytest.mark.parametrize("text", ['{"number": 0, "overrides": [], "status": "refused", "mood": "low"}', '{"mood": 1}'])
def test_a_ledger_with_other_words_is_read_as_far_as_it_goes(tmp_path: Path, text: str) -> None:
    Ledger(tmp_path).plan([["a=1"]], [])
    (tmp_path / "jobs" / "0.json").write_text(text)
    (job,) = Ledger(tmp_path).jobs()
    assert job.status == ("refused" if "refused" in text else "waiting")


def test_the_record_of_another_run_is_none(tmp_path: Path) -> None:
    found = plan(tmp_path, table(noisy(0.4), rows=(FEDAVG,)))
    (run,) = found.runs.values()
    finish(found, run, metrics={"best": 0.99})
    record = found.at(run) / "result.json"
    record.write_text(record.read_text().replace(run.identity.key, "0" * 64))
    assert plan(tmp_path, table(noisy(0.4), rows=(FEDAVG,))).filled()[0].cells[0][0].state == "absent"


REACHED = [
    {"accuracy": 0.3, "participations": 10, "memorization_noisy_correct": 0.1},
    {"accuracy": 0.8, "participations": 20, "memorization_noisy_correct": 0.2},
    {"accuracy": 0.7, "participations": 30, "memorization_noisy_correct": 0.25},
]


@pytest.mark.parametrize(
    ("unit", "key", "expected"),
    [
        ("%", "best", 80.0),
        ("", "quality_error", 0.015),
        ("client participations", "participations_to_80", 20.0),  # at the target, not above it
        ("client participations", "participations_to_25", 10.0),
        ("client participations", "participations_to_81", NEVER),
        ("%", "memorization_noisy_correct", 25.0),  # of the last evaluation
        ("%", "local_memorization_clean_wrong", 4.0),  # of the last round
        ("%", "memorization_unheard_of", None),
    ],
)
def test_numbers_of_a_run(tmp_path: Path, unit: str, key: str, expected: float | None) -> None:
    found = plan(tmp_path, table(noisy(0.4, key=key), rows=(FEDAVG,), metric=Metric("m", "last", unit, None)))
    (run,) = found.runs.values()
    finish(found, run, evaluations=REACHED, metrics={"best": 0.8, "last": 0.7, "quality_error": 0.015})
    cell = found.filled()[0].cells[0][0]
    assert cell.state == "run"
    assert cell.number == (None if expected is None else pytest.approx(expected))
    assert (cell.note is None) == (expected is not None)


@pytest.mark.parametrize(
    ("line", "place"),
    [
        (b'{"kind": "evalu', "line 5 of metrics.jsonl"),  # not written to its end
        (b"3", "line 5 of metrics.jsonl"),
        (b'{"round": 4}', "line 5 of metrics.jsonl"),
        (b'{"kind": "evaluation", "accuracy": null, "participations": 5}', "line 5 of metrics.jsonl"),
        (b'{"kind": "evaluation", "accuracy": 0.9}', "line 5 of metrics.jsonl"),
        (b"\xff\xfe", "metrics.jsonl cannot be read"),
    ],
)
@pytest.mark.parametrize("key", ["best", "participations_to_80", "local_memorization_clean_wrong"])
def test_a_run_with_a_damaged_line_has_no_number_but_a_footnote(
    tmp_path: Path, line: bytes, place: str, key: str
) -> None:
    """What is left might say another number: participations until the second time that a target was reached, say."""
    tables = table(noisy(0.4, key=key), noisy(0.8), rows=(FEDAVG,))
    found = plan(tmp_path, tables)
    run, other = found.runs.values()
    for one in (run, other):
        finish(found, one, evaluations=REACHED, metrics={"best": 0.8})
    with (found.at(run) / "metrics.jsonl").open("ab") as file:
        file.write(line)
    (damaged, whole) = plan(tmp_path, tables).filled()[0].cells[0]
    assert (damaged.state, damaged.number) == ("run", None)
    assert damaged.note is not None
    assert damaged.note.startswith(f"{found.at(run)}: {place}")
    assert (whole.number, whole.note) == (80.0, None)


@pytest.mark.parametrize("said", [{"metrics": None}, {"metrics": [0.8]}, {}])
def test_a_record_without_metrics_is_damaged(tmp_path: Path, said: dict[str, Any]) -> None:
    found = plan(tmp_path, table(noisy(0.4), rows=(FEDAVG,)))
    (run,) = found.runs.values()
    finish(found, run, evaluations=REACHED, **said)
    (cell,) = found.filled()[0].cells[0]
    assert cell.number is None
    assert cell.note is not None
    assert "result.json has no metrics" in cell.note


def test_parts_of_a_record_that_are_something_else_are_none(tmp_path: Path) -> None:
    """Estimates and notes read them."""
    found = plan(tmp_path, table(noisy(0.4), rows=(FEDAVG,)))
    (run,) = found.runs.values()
    finish(found, run, metrics={"best": 0.8}, wall_time_s="12", participations=560, versions=None)
    assert estimate(found, gpu=False).measured == 0
    (record,) = found.records.values()
    assert record.versions == {}


@pytest.mark.parametrize("text", ['{"key": "k", "status": "finished", "metrics": {"best": 0.8}}', "{", "\x00"])
def test_a_record_without_its_configuration_is_named_and_counts_for_nothing_else(tmp_path: Path, text: str) -> None:
    """Taken for a run that has not begun, it would be written over."""
    found = plan(tmp_path, table(noisy(0.4), rows=(FEDAVG,)))
    (run,) = found.runs.values()
    finish(found, run, evaluations=REACHED, metrics={"best": 0.8})
    (found.at(run) / "result.json").write_text(text)
    with pytest.raises(UserError, match=r"its result.json cannot be read as that of a run; remove the folder and run"):
        plan(tmp_path, table(noisy(0.4), rows=(FEDAVG,))).filled()


def test_a_number_that_is_not_finite_is_none(tmp_path: Path) -> None:
    found = plan(tmp_path, table(noisy(0.4), rows=(FEDAVG,)))
    (run,) = found.runs.values()
    finish(found, run, metrics={"best": float("nan")})
    assert found.filled()[0].cells[0][0].number is None


def test_an_estimate_counts_passes_and_goes_by_runs_of_the_method(tmp_path: Path) -> None:
    """FedAvg took 1,120 s for 560 trainings of 5 epochs over a twentieth of the data each: 140 passes of 8 s."""
    tables = table(noisy(0.4), noisy(0.8), noisy(0.6, "train.epochs=1"), rows=(FEDAVG, FEDPROX))
    found = plan(tmp_path, tables)
    assert estimate(found, gpu=False) == Estimate(0.0, 0, 0.0, 0, 6, 0)
    runs = list(found.runs.values())
    assert [run.cells[0] for run in runs[:4]] == [
        "t FedAvg ρ=0.4",
        "t FedAvg ρ=0.8",
        "t FedAvg ρ=0.6",
        "t FedProx ρ=0.4",
    ]
    finish(found, runs[0], wall_time_s=1120.0, participations=560, metrics={"best": 0.5})
    # Of FedProx it is known only that a pass of FedAvg takes 8 s.
    guess = estimate(plan(tmp_path, tables), gpu=False)
    assert guess == Estimate(*approx((140 + 28) * 8.0, 2, (140 + 140 + 28) * 8.0, 3, 0, 1))
    assert estimate(plan(tmp_path, tables), gpu=True) == Estimate(0.0, 0, 0.0, 0, 5, 0)
    # FedProx: 60 trainings, or 15 passes, took 60 s on a GPU; 500 trainings, or 125 passes, are left.
    finish(found, runs[3], "interrupted", wall_time_s=60.0, participations=60, device="cuda:0")
    guess = estimate(plan(tmp_path, tables), gpu=True)
    assert guess == Estimate(*approx(4.0 * (125 + 140 + 28), 3, 4.0 * (140 + 28), 2, 0, 1))
    assert estimate(plan(tmp_path, tables), gpu=False).measured == 1


def approx(*numbers: float) -> tuple[Any, ...]:
    return tuple(map(pytest.approx, numbers))


def test_runs_of_other_tables_at_the_scale_are_measured_too(tmp_path: Path) -> None:
    """Whoever has made one table of a paper would else be told that nothing is known of its next one."""
    other = plan(tmp_path, table(noisy(0.4), rows=(FEDPROX,)))
    (run,) = other.runs.values()
    config = Composer().plain(run.overrides)
    finish(other, run, wall_time_s=1120.0, participations=560, config=config, metrics={"best": 0.5})
    damaged = other.folder / ("0" * 16)
    damaged.mkdir()
    (damaged / "result.json").write_text('{"key": "0", "status": "finished", "config": {"method": 3}}')
    guess = estimate(plan(tmp_path, table(noisy(0.8), rows=(FEDAVG, FEDPROX))), gpu=False)
    assert guess == Estimate(*approx(140 * 8.0, 1, 140 * 8.0, 1, 0, 1))


def test_what_has_never_run_takes_at_least_what_the_doctor_timed(tmp_path: Path) -> None:
    """A pass took it 2 s with batches of 10 and 1 s with 20: of 40 nothing is known, and smaller ones are no faster.

    GPUs, other networks, other precisions and other data do not count.
    """
    tables = table(noisy(0.4), noisy(0.4, "train.batch_size=20"), noisy(0.4, "train.batch_size=40"), rows=(FEDAVG,))
    found = plan(tmp_path, tables)
    first = next(iter(found.runs.values())).identity
    kind = first.dataset, first.model
    doctor = Paces(
        (
            Pace(*kind, 10, "a processor", False, 2.0),
            Pace(*kind, 20, "a processor", False, 1.0),
            Pace(*kind, 10, "a GPU", True, 0.1),
            Pace(*kind, 40, "a GPU", True, 0.05, "bf16"),
            Pace(first.dataset, "another", 40, "a processor", False, 100.0),
            Pace("another", first.model, 40, "a processor", False, 100.0),
        )
    )
    assert estimate(found, gpu=False, doctor=doctor) == Estimate(*approx(0.0, 0, 140 * (1.0 + 1.0), 2, 1, 0))
    assert estimate(found, gpu=True, doctor=doctor) == Estimate(*approx(0.0, 0, 14.0, 1, 2, 0))
    # What has run here says more.
    finish(found, next(iter(found.runs.values())), wall_time_s=1120.0, participations=560, metrics={"best": 0.5})
    assert estimate(plan(tmp_path, tables), gpu=False, doctor=doctor) == Estimate(*approx(0.0, 0, 140.0, 1, 1, 1))


@pytest.mark.parametrize(
    ("word", "runs", "least"),
    [
        ("train.batch_size=20", 0, 0),  # fewer steps
        ("train.batch_size=5", 0, 1),  # more steps
        ("model.hidden=[128]", 0, 0),  # another network
        ("dataset.train_size=500", 0, 0),  # other data
        ("noise.tau=0.3", 1, 0),
    ],
)
def test_of_another_network_or_data_set_nothing_is_concluded(tmp_path: Path, word: str, runs: int, least: int) -> None:
    tables = table(noisy(0.4), noisy(0.4, word), rows=(FEDAVG,))
    found = plan(tmp_path, tables)
    finish(found, next(iter(found.runs.values())), wall_time_s=1120.0, participations=560, metrics={"best": 0.5})
    guess = estimate(plan(tmp_path, tables), gpu=False)
    assert (guess.runs, guess.least_runs, guess.unknown) == (runs, least, 1 - runs - least)


@pytest.mark.parametrize(("begins", "metric", "told"), [(3, BEST, True), (2, BEST, False), (3, LAST, False)])
def test_a_best_accuracy_of_the_warm_up_is_told(tmp_path: Path, begins: int, metric: Metric, told: bool) -> None:
    """At the first of equal ones; what is reported at the end is no warm-up's."""
    found = plan(tmp_path, table(noisy(0.4), rows=(FEDAVG,), metric=metric))
    (run,) = found.runs.values()
    accuracies = [0.5, 0.7, 0.7, 0.2]
    metrics = {"best": 0.7, "last": 0.2, "mean_last_10": 0.525}
    evaluations = [{"round": k, "participations": k, "accuracy": a} for k, a in enumerate(accuracies, 1)]
    finish(found, run, evaluations=evaluations, metrics=metrics, acts_from=begins)
    ((cell,),) = plan(tmp_path, *found.tables).filled()[0].cells
    note = "best after round 2, before all of the method acts, from round 3 on; mean of the last 10 evaluations 52.50 %"
    assert footnote(cell) == (note if told else "")
