"""The bench: the floor is honest, its arithmetic is right, and what fails is told and stops nothing."""

import csv
import io
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import __main__ as command
from bench import figure, hand, ours, report
from bench.centralised import CentralisedLoop
from bench.machine import Machine
from bench.measure import Measured, Spread, alternate, prepared, ratios
from bench.memory import Sampler, cpu_seconds, tree
from bench.report import Results
from bench.round_cost import SHOWN
from bench.ways import HAND, PEERS, Running, Way, ways
from bench.workloads import WORKLOADS, Job, Workload, cohort
from flnl.console import cores

SMALL = replace(WORKLOADS["mlp"], clients=7, cohort=4, samples=23, test=50, epochs=2, double=True)

# -------------------------------------------------------------------------------------------------- the same training


@pytest.mark.parametrize(
    "workload",
    [SMALL, replace(SMALL, model="cnn"), replace(SMALL, model="lenet5", data="pixels", crop=True)],
    ids=["mlp", "cnn", "lenet5, crop and flip"],
)
def test_the_hand_written_loop_and_our_executor_train_the_same_model(workload: Workload, tmp_path: Path) -> None:
    job = Job.load(prepared(workload, tmp_path))
    loop = hand.HandLoop(job)
    with ours.opened(job, "sequential", tmp_path / "run") as run:
        for number, result in zip(range(2), run.results(), strict=False):
            assert list(result.cohort) == cohort(workload, number)
            assert result.evaluation is not None
            assert loop.round() == pytest.approx(result.evaluation["accuracy"], abs=1e-12)
            for name, value in result.state.server.params.items():
                torch.testing.assert_close(loop.state[name], value, rtol=0, atol=1e-9)


@pytest.mark.parametrize("amx", [True, False])
def test_all_executors_and_frameworks_are_found(amx: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And bf16 where the CPU has units for it."""
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: fpu {'amx_bf16 ' * amx}avx512_bf16\n")
    monkeypatch.setattr(cores, "CPUINFO", tmp_path / "cpuinfo")
    for name in ("stacked", "sequential"):
        (tmp_path / f"{name}.yaml").touch()
    assert list(ways(tmp_path)) == [
        *("hand", "centralised", "sequential", "stacked", "workers-stack"),
        *(["bf16"] if amx else []),
        *("flower", "pfl", "fluke"),
    ]


def test_the_way_in_bf16_trains_in_it(tmp_path: Path) -> None:
    """The last of two values for a key counts."""
    job = Job.load(prepared(replace(SMALL, double=False), tmp_path))
    with ours.opened(job, "auto", tmp_path / "run", "precision=bf16") as run:
        assert run.evaluator.network.placement.precision == "bf16-mixed"


@pytest.mark.parametrize("there", [True, False])
def test_ray_is_left_out_with_a_line_where_it_is_not(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: object() if there else None)
    said: list[str] = []
    assert ("ray" in command._selected(None, said.append)) == there
    assert len(said) == (not there)
    assert "ray" in command._selected(["ray"], said.append)  # who asks for it is told that it fails


# --------------------------------------------------------------------------------------------------------- arithmetic


def test_ratios_are_taken_within_a_repeat() -> None:
    floor = Measured("hand", "hand", [1.0, 2.0, 4.0])
    other = Measured("stacked", "ours", [0.5, 4.0, 1.0])
    assert ratios(floor.seconds, other.seconds) == [2.0, 0.5, 4.0]
    assert other.ratio(floor) == Spread(2.0, 0.5, 4.0)
    assert other.spread == Spread(1.0, 0.5, 4.0)


def test_a_repeat_that_either_lacks_is_left_out() -> None:
    floor = Measured("hand", "hand", [1.0, None, 4.0])
    assert Measured("a", "ours", [1.0, 1.0, None]).ratio(floor) == Spread(1.0, 1.0, 1.0)
    assert Measured("a", "ours", [None, 1.0, None]).ratio(floor) is None


def test_memory_and_cpu_time_of_a_tree_are_seen() -> None:
    import os

    held = bytearray(b"x") * 50_000_000
    before = cpu_seconds([os.getpid()])
    sampler = Sampler(os.getpid(), every=1.0)
    sampler.look()
    assert sampler.peak > len(held)
    assert os.getpid() in tree(os.getppid())
    assert before > 0


# ----------------------------------------------------------------------------------------------------------- failures

GOOD = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    rounds = json.loads(line)["rounds"]
    if not rounds:
        break
    print(json.dumps({"seconds": SECONDS * rounds, "rounds": rounds, "accuracy": 0.5}), flush=True)
"""
FAKES = {
    "hand": GOOD.replace("SECONDS", "3"),
    "fast": GOOD.replace("SECONDS", "1"),
    "absent": "import no_such_framework",
    "mute": "import time; print('not yet', file=__import__('sys').stderr); time.sleep(60)",
    "dying": "print('{}', flush=True); input(); raise RuntimeError('lost a client')",
}


def _fakes() -> dict[str, Way]:
    return {
        name: Way(name, "hand" if name == "hand" else "peer", (sys.executable, "-c", script), start_timeout=3.0)
        for name, script in ((n, s.replace("{", "{{").replace("}", "}}")) for n, s in FAKES.items())
    }


def test_ways_that_fail_are_reported_and_stop_nothing(tmp_path: Path) -> None:
    chosen = {**_fakes(), "nowhere": Way("nowhere", "peer", (str(tmp_path / "python"),))}
    said: list[str] = []
    found = {m.way: m for m in alternate(SMALL, tmp_path / "job.json", tmp_path, chosen, 2, 6, said.append)}
    assert found["hand"].seconds == pytest.approx([3.0, 3.0])
    assert found["fast"].ratio(found["hand"]) == Spread(3.0, 3.0, 3.0)
    failures = {name: m.failure for name, m in found.items() if m.failure is not None}
    assert set(failures) == {"absent", "mute", "dying", "nowhere"}
    assert "no_such_framework" in failures["absent"]
    assert "no answer" in failures["mute"]
    assert "lost a client" in failures["dying"]
    assert "could not be started" in failures["nowhere"]
    assert all(found[name].seconds == [None, None] for name in failures)
    assert sum("failed" in line for line in said) == 4


def test_a_way_and_its_children_are_stopped_while_others_have_their_turn(tmp_path: Path) -> None:
    """A child that counts all the time, as servers of a framework do: in its way's turns alone."""
    file = tmp_path / "count"
    child = f"import time\nwhile True:\n    time.sleep(0.01)\n    open({str(file)!r}, 'a').write('.')"
    turns = GOOD.replace("SECONDS", "1").replace("    print(", "    time.sleep(0.5)\n    print(")
    script = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\n{turns}"
    way = Way("busy", "peer", (sys.executable, "-c", script.replace("{", "{{").replace("}", "}}")))

    def counted() -> int:
        return len(file.read_text()) if file.exists() else 0

    def stands_still() -> bool:
        time.sleep(0.1)  # for a count that had begun
        before = counted()
        time.sleep(0.3)
        return counted() == before

    process = Running(way, tmp_path / "job.json", tmp_path)
    try:
        process.ready()
        assert stands_still()
        before = counted()
        process.turn(1, 30.0)
        assert counted() > before
        assert stands_still()
    finally:
        process.close()


# ------------------------------------------------------------------------------------------------------------- report

MACHINE = Machine("A CPU", 2, 8.0, (0.0, 0.1, 0.2), "3.11", "torch 1", "not installed", "abc")


def _results() -> Results:
    return Results(
        MACHINE,
        "python -m bench",
        {"mlp": WORKLOADS["mlp"], "mlp-100": WORKLOADS["mlp-100"]},
        {
            "mlp": [
                Measured("hand", "hand", [2.0, 4.0], peak=2**30, accuracy=0.9, start=3.0),
                Measured("sequential", "ours", [2.0, 8.0]),
                Measured("pfl", "peer", [None, None], failure="ended by itself: ImportError"),
            ],
            "mlp-100": [Measured("sequential", "ours", [1.0])],
        },
    )


def test_the_report_renders_with_missing_ways(tmp_path: Path) -> None:
    results = _results()
    text = report.markdown(results, "x.png")
    assert "| sequential | 5 s | 2 s to 8 s | 0.75 (0.50 to 1.00) |" in text
    assert "pfl failed: ended by itself: ImportError" in text
    assert "not idle" not in text
    rows = list(csv.DictReader(io.StringIO(report.csv_text(results))))
    assert [r["times_as_fast_as_hand"] for r in rows] == ["1", "1", "1", "0.5", "", "", ""]
    short = report.short(results).splitlines()
    assert short[1].split() == ["mlp", "3", "s", "0.75x", "failed"]
    assert short[2].split() == ["mlp-100", "-", "-"]
    figure.draw(results, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_a_round_is_split_into_shares() -> None:
    results = _results()
    results.round_cost = {"local training": 0.9, "evaluation": 0.08, "rest": 0.02}
    text = report.markdown(results, None)
    assert "| evaluation | 80 ms | 8.000 % |" in text
    assert "| all but local training | 100 ms | 10.00 % |" in text


@pytest.mark.slow
def test_every_part_of_a_round_is_timed(tmp_path: Path) -> None:
    """In a process of its own, since what is timed is replaced."""
    job = Job.load(prepared(SMALL, tmp_path)).save(tmp_path / "job.json")
    words = ["-m", "bench.round_cost", str(job), str(tmp_path / "run"), "1"]
    ran = subprocess.run([sys.executable, *words], cwd=Path(report.__file__).parents[1], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert all(json.loads(ran.stdout)[label] > 0 for label in SHOWN)


def test_crop_and_flip_are_compared_where_both_were_measured() -> None:
    results = _results()
    assert "crop and flip cost" not in report.markdown(results, None)
    for name, seconds in (("lenet5", 2.0), ("lenet5-crop", 3.0)):
        results.workloads[name] = WORKLOADS[name]
        results.measured[name] = [Measured("sequential", "ours", [seconds]), Measured("ray", "ours", [None])]
    assert "| sequential | 2 s | 3 s | +50.0 % |" in report.markdown(results, None)


def test_the_floor_and_the_frameworks_are_what_they_are_called() -> None:
    assert HAND.kind == "hand"
    assert [way.name for way in PEERS] == ["flower", "pfl", "fluke"]


def test_a_centralised_loop_takes_the_steps_of_a_round_in_epochs_of_all_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sample once before any comes again, and crops where the round has them."""
    for workload in (SMALL, replace(SMALL, model="lenet5", data="pixels", crop=True)):
        loop = CentralisedLoop(Job.load(prepared(workload, tmp_path)))
        seen = [int(i) for _ in range(workload.clients) for i in loop._positions(workload.samples)]
        assert sorted(seen) == list(range(workload.clients * workload.samples))
        batches, before = list(loop._batches()), [p.clone() for p in loop.network.parameters()]
        assert len(batches) == workload.steps
        assert all(inputs.shape[1:] == workload.shape for inputs, _ in batches)
        assert 0 <= loop.round() <= 1
        assert all(not torch.equal(p, old) for p, old in zip(loop.network.parameters(), before, strict=True))


def test_a_share_is_of_the_centralised_loop() -> None:
    results = _results()
    results.measured["mlp"].append(Measured("centralised", "centralised", [2.0, 4.0]))
    sequential = next(m for m in results.measured["mlp"] if m.way == "sequential")
    expected = ratios([2.0, 4.0], sequential.seconds)
    assert results.share("mlp", sequential) == Spread.of(expected)
    assert results.share("mlp-100", sequential) is None


def test_the_public_setting_has_the_same_bits_for_any_number_of_workers(tmp_path: Path) -> None:
    """Its network has dropout, which draws from a client's own stream."""
    workload = replace(WORKLOADS["public"], clients=7, cohort=6, samples=12, test=10)
    assert workload.steps == 12
    job, models = Job.load(prepared(workload, tmp_path)), []
    for number, words in enumerate((["sequential"], ["processes", "executor.workers=2"])):
        with ours.opened(job, words[0], tmp_path / str(number), *words[1:]) as run:
            models.append(next(iter(run.results())).state.server.params)
    assert sum(p.numel() for p in models[0].values()) == 1_626_442
    assert all(torch.equal(models[0][name], value) for name, value in models[1].items())
