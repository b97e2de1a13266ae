"""Which folder a run gets and which earlier run it goes on from; what is in use or another's is left alone."""

import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from flnl.config.identity import FORMAT
from flnl.record import order
from flnl.record.run import RunRecord
from flnl.run.folder import WRITTEN, open_folder
from flnl.run.loggers import tensorboard
from flnl.sites import executor, traffic
from tests.cli.conftest import Command, Launch, lines_of, resuming_words
from tests.properties.runs import Ran, difference, run
from tests.registry import BY_NAME

FEDAVG = BY_NAME["fedavg"].words


def folders(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "outputs").glob("[!.]*"))


def status(folder: Path) -> str:
    found: str = json.loads((folder / "result.json").read_text())["status"]
    return found


def test_a_folder_with_a_run_is_refused_unless_it_is_to_go_on(command: Command, tmp_path: Path) -> None:
    first = command(*FEDAVG, "output=run", "max_rounds=2")
    assert first.code == 0
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    again = command(*FEDAVG, "output=run")
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "output=run already holds a run (stopped)" in again.err
    assert "resume=true" in again.err
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before
    assert command(*FEDAVG, "output=run", "resume=true").code == 0
    assert status(tmp_path / "run") == "finished"


def test_files_of_ones_own_are_not_replaced(command: Command, tmp_path: Path) -> None:
    """Such as the labels of the images that the run is to learn from, in the folder that holds them."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "labels.csv").write_text("a.png,cat")
    said = command(*FEDAVG, "output=photos")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "output=photos has labels.csv, which the run would replace" in said.err
    assert (tmp_path / "photos" / "labels.csv").read_text() == "a.png,cat"
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "slurm.out").write_text("begins")
    assert command(*FEDAVG, "output=logs").code == 0, "what a run does not write is in nobody's way"
    named = {path.name for path in (tmp_path / "logs").glob("[!.]*")} - {"slurm.out"}
    assert named <= set(WRITTEN)
    assert {"labels.csv", "model.pt", "checkpoints"} <= named
    assert {tensorboard.FOLDER, traffic.NAME, executor.NAMED} <= set(WRITTEN), "of loggers and of what crossed to sites"


def test_a_finished_run_is_not_run_again(command: Command, tmp_path: Path) -> None:
    command(*FEDAVG, "output=run")
    kept = ("metrics.jsonl", "result.json", "checkpoints/round_00000005.pt")
    before = [(tmp_path / "run" / name).read_bytes() for name in kept]
    for words in (["output=run", "resume=true"], ["resume=run"], ["resume=true", "output_root=."]):
        said = command(*FEDAVG, *words)
        assert said.code == 0
        assert "finished" in said.err + said.out
        assert [(tmp_path / "run" / name).read_bytes() for name in kept] == before
    assert command(*FEDAVG, "output=run").code == 2
    assert not folders(tmp_path)


def test_resume_takes_the_newest_unfinished_run_of_the_same_key(command: Command, tmp_path: Path) -> None:
    for number, words in enumerate((["max_rounds=2"], ["max_rounds=1"], [], ["max_rounds=1", "seed=2"])):
        assert command(*FEDAVG, *words, f"output=outputs/{number}").code == 0
    older, newer, finished, other = folders(tmp_path)
    done = (finished / "result.json").read_bytes()

    said = command(*FEDAVG, "resume=true")
    assert "outputs/1 goes on" in said.err
    assert "after round 1" in said.err
    assert [status(f) for f in (older, newer, finished, other)] == ["stopped", "finished", "finished", "stopped"]

    assert "outputs/0 goes on" in command(*FEDAVG, "resume=true").err
    assert status(older) == "finished"
    assert command(*FEDAVG, "resume=true").code == 0
    assert len(folders(tmp_path)) == 4
    assert status(other) == "stopped"
    assert (finished / "result.json").read_bytes() == done
    ran = [Ran(f, {}) for f in (older, newer, finished)]
    assert ran[0].lines == ran[1].lines == ran[2].lines


def test_the_newest_run_is_that_which_began_last_whatever_the_clock_said(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of a sweep and runs of another ``output_root`` are in one order with the others."""
    clock = time.time
    for number, words in enumerate((["output_root=outputs"], ["-m"], ["output_root=elsewhere"])):
        with monkeypatch.context() as patch:  # set back, each time further
            patch.setattr("flnl.run.opening.time.time", lambda by=1e6 * number: clock() - by)
            assert command(*words, *FEDAVG, "max_rounds=1").code == 0
    (first,), (second,), (third,) = (
        tmp_path.glob(f"{pattern}/result.json") for pattern in ("outputs/*", "multirun/*/*/*", "elsewhere/*")
    )
    numbers = [json.loads(path.read_text())["order"] for path in (first, second, third)]
    assert numbers == [1, 2, 3]
    said = command(*FEDAVG, "resume=true", "max_rounds=2")
    assert f"{second.parent.relative_to(tmp_path)} goes on" in said.err
    assert json.loads(second.read_text())["order"] == 2, "a run keeps its number"
    assert (
        f"{third.parent.relative_to(tmp_path)} goes on" in command(*FEDAVG, "resume=true", "output_root=elsewhere").err
    )


def test_runs_without_a_number_are_older_and_among_themselves_in_the_order_of_their_clocks(tmp_path: Path) -> None:
    records = {"a": {"started": 9e9}, "b": {"started": 8e9}, "c": {"order": 1, "started": 1.0}, "d": {"started": 9e9}}
    whole = {"key": "k", "key_format": FORMAT, "config": {}}
    for name, record in records.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps({**whole, **record}))
    found = []
    while records:
        newest, _ = open_folder(
            output=None,
            output_root=str(tmp_path),
            resume=True,
            key="k",
            plain={},
            job=None,
            same=lambda record: True,
        )
        newest.lock.release()
        found.append(newest.path.name)
        (newest.path / "result.json").unlink()
        del records[newest.path.name]
    assert found == ["c", "d", "a", "b"]


def test_with_nothing_to_go_on_from_it_starts_afresh_and_says_so(command: Command, tmp_path: Path) -> None:
    command(*FEDAVG, "seed=2", "max_rounds=1")
    said = command(*FEDAVG, "resume=true")
    assert said.code == 0
    assert re.search(r"no unfinished run .* starting afresh", said.err)
    assert len(folders(tmp_path)) == 2
    named = command(*FEDAVG, "resume=true", "output=named")
    assert "starting afresh" in named.err
    assert status(tmp_path / "named") == "finished"


def test_a_failed_run_is_unfinished(command: Command, tmp_path: Path) -> None:
    words = [*FEDAVG, "on_nonfinite=stop", "train.lr=1e30"]
    assert command(*words).code == 1
    (folder,) = folders(tmp_path)
    record = json.loads((folder / "result.json").read_text())
    assert record["status"] == "failed"
    assert "non-finite" in record["error"]
    assert "Traceback" in (folder / "error.log").read_text()
    assert "goes on" in command(*words, "resume=true").err
    assert len(folders(tmp_path)) == 1


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


@pytest.mark.usefixtures("two_cores")
def test_another_configuration_is_refused_with_the_keys_that_differ(command: Command, tmp_path: Path) -> None:
    command(*FEDAVG, "output=run", "max_rounds=1")
    before = (tmp_path / "run" / "result.json").read_bytes()
    for words in (["resume=run"], ["output=run", "resume=true"]):
        said = command(*FEDAVG, "noise.rho=0.3", "train.epochs=1", "threads=2", "wandb.project=x", *words)
        assert (said.code, said.err.count("\n")) == (2, 1)
        assert set(re.findall(r"([\w.]+) \(\S+ there, \S+ here\)", said.err)) == {"noise.rho", "train.epochs"}
        assert "noise.rho (0.6 there, 0.3 here)" in said.err
        assert (tmp_path / "run" / "result.json").read_bytes() == before
    assert command(*FEDAVG, "resume=run").code == 0  # the refusal has let go of the folder


def test_a_number_may_be_written_in_another_way(command: Command, tmp_path: Path) -> None:
    command(*FEDAVG, "noise.tau=0.0", "output=run", "max_rounds=1")
    assert command(*FEDAVG, "noise.tau=0", "resume=run").code == 0


@pytest.mark.usefixtures("two_cores")
def test_other_threads_are_allowed_with_one_line(command: Command, tmp_path: Path) -> None:
    command(*FEDAVG, "output=run", "max_rounds=2")
    assert "may differ" not in command(*FEDAVG, "resume=run", "max_rounds=3").err
    said = command(*FEDAVG, "resume=run", "threads=2")
    torch.set_num_threads(1)
    assert said.code == 0
    notes = [line for line in said.err.splitlines() if "may differ" in line]
    assert len(notes) == 1
    assert "threads 1 then, 2 now" in notes[0]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["threads"] == 2


def test_max_rounds_stops_and_a_larger_one_goes_on(command: Command, tmp_path: Path) -> None:
    said = command(*FEDAVG, "max_rounds=2", "output=run")
    assert (said.code, status(tmp_path / "run")) == (0, "stopped")
    words = resuming_words(said)
    assert not any(w.startswith(("max_rounds", "output=")) for w in words)
    for rounds, then in ((2, "stopped"), (1, "stopped"), (4, "stopped"), (5, "finished")):
        assert command(*FEDAVG, f"max_rounds={rounds}", "resume=run").code == 0
        assert status(tmp_path / "run") == then
    unbroken = run(FEDAVG, tmp_path / "unbroken")
    assert Ran(tmp_path / "run", {}).lines == unbroken.lines


def test_a_folder_in_use_is_refused_and_a_dead_process_holds_nothing(
    command: Command, launch: Launch, tmp_path: Path
) -> None:
    words = [*FEDAVG, "rounds=3000", "output=run", "checkpoint.every=1"]
    running = launch(*words)
    running.until(lambda: lines_of(tmp_path / "run") > 4, "round")
    for more in (["resume=true"], []):
        said = command(*words, *more)
        assert (said.code, said.err.count("\n")) == (2, 1)
        assert "run" in said.err
        assert ("in use" in said.err) or not more
    running.signal(9)
    assert running.wait().code == 137
    assert command(*words, "resume=true", "max_rounds=2").code == 0


def test_two_runs_of_the_same_second_have_folders_of_their_own(launch: Launch, tmp_path: Path) -> None:
    both = [launch(*FEDAVG, "max_rounds=1") for _ in range(2)]
    assert [r.wait().code for r in both] == [0, 0]
    assert len(folders(tmp_path)) == 2
    one, other = (Ran(f, {}) for f in folders(tmp_path))
    assert difference(one.state, other.state) is None


@pytest.mark.parametrize("place", ["result.json", "nothing"])
def test_a_path_without_a_record_is_no_run(place: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "result.json").write_text('{"status": "fini')
    said = command(*FEDAVG, f"resume={'empty' if place == 'result.json' else 'nowhere'}")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "no run is recorded there" in said.err


def test_the_users_home_is_understood(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert command(*FEDAVG, "output='~/run'", "max_rounds=1").code == 0
    assert status(tmp_path / "home" / "run") == "stopped"
    assert command(*FEDAVG, "resume='~/run'").code == 0


def test_the_printed_command_works_for_a_folder_of_any_name(command: Command, tmp_path: Path) -> None:
    """Commas, brackets and quotes mean something to the shell or to Hydra; a folder may be named after overrides."""
    said = command(*FEDAVG, """output="lr=0.1,seed=[1] (it's)" """.strip(), "max_rounds=1")
    folder = tmp_path / "lr=0.1,seed=[1] (it's)"
    assert (said.code, status(folder)) == (0, "stopped"), said.err
    again = command(*resuming_words(said))
    assert again.code == 0, again.err
    assert status(folder) == "finished"


@pytest.mark.parametrize("place", [["--config-dir", "own"], ["hydra.searchpath=[own]"]])
@pytest.mark.parametrize("first", [True, False])
def test_the_printed_command_names_the_folder_of_ones_own_files(
    place: list[str], first: bool, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "own" / "method").mkdir(parents=True)
    (tmp_path / "own" / "method" / "mine.yaml").write_text("defaults: [fedavg@_here_, _self_]\nname: mine\n")
    words = ["method=mine", *FEDAVG[1:], "output=run", "max_rounds=1"]
    said = command(*place, *words) if first else command(*words, *place)
    assert (said.code, status(tmp_path / "run")) == (0, "stopped"), said.err
    again = command(*resuming_words(said))
    assert (again.code, status(tmp_path / "run")) == (0, "finished"), again.err


# ------------------------------------------------------------------------------------------------------------- order


def test_numbers_rise_over_all_folders(tmp_path: Path) -> None:
    one, other, absent = (tmp_path / name for name in ("one", "other", "absent"))
    one.mkdir()
    other.mkdir()
    asked: list[Path] = []

    def highest(root: Path) -> int:
        asked.append(root)
        return 6 if root == one else 0

    assert order.take([one, absent], highest) == 7
    assert [order.take([one], highest) for _ in range(2)] == [8, 9]
    assert order.take([absent, other, one], highest) == 10
    assert order.take([other], highest) == 11
    assert asked == [one, other], "the runs are looked at where there is no counter"
    assert not absent.exists()
    (one / order.COUNTER).write_text("no number")
    assert order.take([one, other], highest) == 12
    assert order.take([absent], highest) == 1


def test_runs_that_begin_at_once_have_numbers_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        taken = list(threads.map(lambda _: order.take([tmp_path], lambda root: 0), range(40)))
    assert sorted(taken) == list(range(1, 41))


@pytest.mark.parametrize("held", [None, 0, -1, 2.5, True, "7"])
def test_what_is_no_number_is_none(held: object) -> None:
    assert RunRecord.of({"order": held, "started": None}).age == (0, 0.0)
