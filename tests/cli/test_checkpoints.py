"""Damaged, killed or told to stop: nothing is lost that was saved, and nothing is there twice."""

import functools
import json
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from PIL import Image

from flnl.commands import tune as tune
from flnl.core.errors import PartError, UserError
from flnl.core.messages import ClientTask, Fit
from flnl.core.model import Model
from flnl.core.parts import Exchange
from flnl.core.payload import Params, Payload
from flnl.run import checkpoint, session
from tests.cli.conftest import Command, Launch, lines_of, resuming_words
from tests.properties.runs import Ran, difference, run
from tests.registry import BY_NAME
from tests.toys import method, mlp, random_federation, rounds, stage

FEDAVG = BY_NAME["fedavg"].words


class Level(IntEnum):
    LOW = 1


class Kind(StrEnum):
    A = "a"


SLOW = [*(w for w in BY_NAME["fedcorr"].words if not w.startswith("train.epochs")), "train.epochs=40"]
"""FedCorr in about a second, so that there is time to interrupt it."""


def assert_complete(folder: Path, unbroken: Ran) -> None:
    """The run in ``folder`` is the unbroken one, with every round once."""
    found = Ran(folder, json.loads((folder / "result.json").read_text()))
    rounds = [line["round"] for line in found.lines if line["kind"] == "round"]
    assert rounds == list(range(1, len(rounds) + 1))
    assert found.lines == unbroken.lines
    assert found.corrections == unbroken.corrections
    assert difference(found.state, unbroken.state) is None
    assert found.record["status"] == "finished"
    assert found.record["metrics"] == unbroken.record["metrics"]


# ----------------------------------------------------------------------------------------------------------- damage


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def forget_checksum(path: Path) -> None:
    path.with_suffix(".sha256").unlink()


def swap_checksum(path: Path) -> None:
    path.with_suffix(".sha256").write_text("0" * 64)


DAMAGES = (truncate, flip, empty, forget_checksum, swap_checksum)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(FEDAVG, tmp_path_factory.mktemp("fedavg") / "unbroken")


@pytest.mark.parametrize("damage", DAMAGES)
def test_of_a_damaged_checkpoint_the_one_before_is_used(
    damage: Callable[[Path], None], unbroken: Ran, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    run(FEDAVG, folder, "checkpoint.every=1", "max_rounds=4")
    saved = sorted((folder / "checkpoints").glob("*.pt"))
    assert [p.name for p in saved] == ["round_00000003.pt", "round_00000004.pt"]
    damage(saved[1])
    caplog.clear()
    run(FEDAVG, folder, "resume=true")
    assert [r.levelname for r in caplog.records if "round_00000004.pt" in r.getMessage()] == ["WARNING"]
    assert_complete(folder, unbroken)


def test_a_damaged_checkpoint_is_named_on_the_terminal(launch: Launch, tmp_path: Path) -> None:
    run(FEDAVG, tmp_path / "run", "checkpoint.every=1", "max_rounds=4")
    flip(tmp_path / "run" / "checkpoints" / "round_00000004.pt")
    said = launch(*FEDAVG, "resume=run").wait()
    assert said.code == 0
    assert [line for line in said.err.splitlines() if "round_00000004.pt is damaged" in line]
    assert "going on after round 3" in said.err


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]


@pytest.mark.parametrize("known", ["index", "record"])
def test_a_missing_newest_checkpoint_is_said(
    known: str, unbroken: Ran, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Either the folder of checkpoints or the run's record knows of it."""
    folder = tmp_path / "run"
    run(FEDAVG, folder, "checkpoint.every=1", "max_rounds=4")
    for path in (folder / "checkpoints").glob("round_00000004.*"):
        path.unlink()
    if known == "record":
        (folder / "checkpoints" / checkpoint.NEWEST).unlink()
    else:
        record = json.loads((folder / "result.json").read_text())
        assert record.pop("checkpoint") == 4
        (folder / "result.json").write_text(json.dumps(record))
    caplog.clear()
    run(FEDAVG, folder, "resume=true")
    (line,) = warned(caplog)
    assert "round_00000004.pt, the last one saved, is missing; using the one before it" in line
    assert_complete(folder, unbroken)


def test_where_no_checkpoint_is_left_it_is_said_and_the_run_starts_again(
    unbroken: Ran, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    run(FEDAVG, folder, "max_rounds=4")
    shutil.rmtree(folder / "checkpoints")
    caplog.clear()
    run(FEDAVG, folder, "resume=true", "max_rounds=1")
    (line,) = warned(caplog)
    assert line.endswith(
        "round_00000004.pt, the last one saved, is missing; there is no earlier checkpoint; starting again"
    )
    caplog.clear()
    run(FEDAVG, folder, "resume=true")
    assert warned(caplog) == []
    assert_complete(folder, unbroken)


def killed(of: session.Session) -> NoReturn:
    raise KeyboardInterrupt


def test_nothing_is_missing_after_a_damaged_checkpoint_was_passed_over(
    unbroken: Ran, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is deleted, and with it what said that it was the newest."""
    folder = tmp_path / "run"
    run(FEDAVG, folder, "checkpoint.every=1", "max_rounds=4")
    flip(folder / "checkpoints" / "round_00000004.pt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session.Session, "results", killed)
        with pytest.raises(KeyboardInterrupt):
            run(FEDAVG, folder, "resume=true")
    caplog.clear()
    run(FEDAVG, folder, "resume=true")
    assert warned(caplog) == []
    assert_complete(folder, unbroken)


@pytest.mark.parametrize("keep", [1, 2])
def test_damaged_checkpoints_do_not_outlive_what_is_saved_later(keep: int, unbroken: Ran, tmp_path: Path) -> None:
    """With all of them damaged the run starts again, and what it then saves must not give way to the old ones."""
    folder, words = tmp_path / "run", [*FEDAVG, f"checkpoint.keep={keep}", "checkpoint.every=1"]
    run(words, folder, "max_rounds=4")
    for path in (folder / "checkpoints").glob("*.pt"):
        flip(path)
    again = run(words, folder, "max_rounds=2", "resume=true")
    assert again.state.round == 2
    assert len(list((folder / "checkpoints").glob("*.pt"))) == keep
    assert len(list((folder / "checkpoints").glob("*.sha256"))) == keep
    run(words, folder, "resume=true")
    assert_complete(folder, unbroken)


def test_what_a_killed_save_leaves_is_no_checkpoint(unbroken: Ran, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(FEDAVG, folder, "checkpoint.every=1", "max_rounds=3")
    newest = folder / "checkpoints" / "round_00000003.pt"
    (folder / "checkpoints" / ".round_00000004.pt.999").write_bytes(newest.read_bytes()[:100])
    (folder / "checkpoints" / "round_00000004.sha256").write_text("0" * 64)  # it is written before the state
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "round", "round": 4, "stage": "training", "coh')
    run(FEDAVG, folder, "resume=true")
    assert_complete(folder, unbroken)


def test_lines_after_the_checkpoint_are_written_again_not_twice(unbroken: Ran, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(FEDAVG, folder, "max_rounds=4", "checkpoint.every=2")
    for path in (folder / "checkpoints").glob("round_00000004.*"):
        path.unlink()
    assert lines_of(folder) == 8
    assert "evaluation" in (folder / "metrics.jsonl").read_text().splitlines()[-1]
    run(FEDAVG, folder, "resume=true")
    assert_complete(folder, unbroken)


@pytest.mark.parametrize("name", sorted(checkpoint.MARKS))
def test_a_part_or_parameter_may_have_any_name(name: str, tmp_path: Path) -> None:
    """Also one that tells in a checkpoint what a mapping was."""
    state = {name: torch.tensor([1.0, 2.0]), "b": {name: (1, "two"), "c": [None]}}
    torch.save(checkpoint.encode(state), tmp_path / "saved.pt")
    loaded = checkpoint.decode(torch.load(tmp_path / "saved.pt", weights_only=True))
    assert difference(loaded, state) is None


def test_a_checkpoint_needs_no_trust(tmp_path: Path) -> None:
    """It loads with ``weights_only`` and gives the same state; what names a class from elsewhere is refused."""
    ran = run(BY_NAME["fedcorr"].words, tmp_path / "run", "max_rounds=9")
    (path,) = (tmp_path / "run" / "checkpoints").glob("*.pt")
    plain = torch.load(path, weights_only=True)
    assert difference(checkpoint.decode(plain), checkpoint.load(path)) is None
    assert ran.state.clients
    with pytest.raises(ValueError, match="pathlib:Path"):
        checkpoint.decode({checkpoint.TYPE: "pathlib:Path", checkpoint.FIELDS: {}})
    with pytest.raises(TypeError, match="set"):
        checkpoint.encode({1, 2})


def test_what_was_saved_can_be_loaded(tmp_path: Path) -> None:
    """NumPy's floats and texts are kinds of Python's, and pickle names their classes, which loading refuses."""
    state = {np.int64(3): (np.float64(0.1), np.str_("a")), (1, np.str_("b")): [True, 2, None, 0.5]}
    torch.save(checkpoint.encode(state), tmp_path / "saved.pt")
    loaded = checkpoint.decode(torch.load(tmp_path / "saved.pt", weights_only=True))
    assert loaded == {3: (0.1, "a"), (1, "b"): [True, 2, None, 0.5]}
    assert [type(value) for value in (*loaded, *loaded[3], *loaded[1, "b"])] == [
        int,
        tuple,
        float,
        str,
        bool,
        int,
        type(None),
        float,
    ]


@pytest.mark.parametrize("value", [Level.LOW, Kind.A, {Kind.A: 1}, np.float32(1), np.ones(1), frozenset()])
def test_what_could_not_be_loaded_is_not_saved(value: object) -> None:
    with pytest.raises(TypeError, match="a checkpoint cannot store a"):
        checkpoint.encode(value)


@dataclass(frozen=True)
class Unsaved(Exchange):
    """Has a state, and leaves a value on clients, that cannot be saved."""

    state: Any = None
    kept: Any = None

    def init(self, clients: int, params: Params) -> Any:
        return self.state

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        return Payload(), Payload() if self.kept is None else Payload(self.kept)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (Unsaved(state={1, 2}), "the state of exchange mine cannot be saved: a checkpoint cannot store a set"),
        (Unsaved(kept=Level.LOW), "what clients keep for an exchange, Level, cannot be saved: a checkpoint cannot"),
        (Unsaved(state=Unsaved()), r"the state of exchange mine .* no stored name; decorate it with @stored"),
    ],
)
def test_a_state_that_cannot_be_saved_is_named(part: Unsaved, named: str, tmp_path: Path) -> None:
    toy = method(stage(exchange={"mine": part}, rounds=1), exchange={"mine": part})
    (result,) = rounds(toy, random_federation([4, 4]), mlp(4, 3).double())
    with pytest.raises(PartError, match=named):
        checkpoint.check(result.state)
    with pytest.raises(PartError, match=named):
        checkpoint.save(tmp_path, checkpoint.Checkpoint(result.state, "", "", 0.0))


def test_an_error_while_a_round_is_recorded_names_that_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the last one, which is over; nothing of the round counts."""

    def full(*_: Any) -> NoReturn:
        raise RuntimeError("no")

    folder = tmp_path / "run"
    monkeypatch.setattr(checkpoint, "check", full)
    with pytest.raises(RuntimeError) as caught:
        run(FEDAVG, folder)
    assert caught.value.__notes__[0].startswith("in round 1, ")
    assert json.loads((folder / "result.json").read_text())["rounds"] == 0


def test_changed_data_are_not_gone_on_with(command: Command, tmp_path: Path) -> None:
    """The key has neither the path of the files nor their contents; the fingerprint in the checkpoint has those."""
    rng = np.random.default_rng(0)
    images, labels = rng.random((60, 1, 4, 4), dtype=np.float32), np.arange(60) % 3
    np.savez(tmp_path / "a.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    words = ["dataset=arrays", f"dataset.file={tmp_path / 'a.npz'}", "model=mlp", "method=fedavg", "rounds=3"]
    words += ["partition.num_clients=3", "wandb.mode=disabled", "output=run", f"cache={tmp_path / 'cache'}"]
    assert command(*words, "max_rounds=1").code == 0
    np.savez(tmp_path / "a.npz", x_train=images, y_train=labels[::-1], x_test=images, y_test=labels)
    said = command(*words, "resume=true")
    assert said.code == 2
    assert "another federation" in said.err


def test_a_finished_run_is_not_one_of_changed_data(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither for ``resume=true`` nor for ``flnl tune``; files that are gone are told of."""
    rng = np.random.default_rng(0)
    images, labels = rng.random((60, 1, 4, 4), dtype=np.float32), np.arange(60) % 3
    path = tmp_path / "a.npz"
    save = functools.partial(np.savez, path, x_train=images, x_test=images, y_test=labels)
    words = ["dataset=arrays", f"dataset.root={tmp_path}", "dataset.file=a.npz", "model=mlp", "method=fedavg"]
    words += ["rounds=1", "partition.num_clients=3", f"cache={tmp_path / 'cache'}"]
    one = [*words, "wandb.mode=disabled", "output=run", "resume=true"]
    tuned = [*words, "train.lr=0.1,0.2", "--seeds", "7", "--", "hydra/launcher=basic"]
    save(y_train=labels)
    assert command(*one).code == 0
    tune.tune(tuned)
    assert "nothing to do" in command(*one).err
    tune.tune(tuned)
    save(y_train=labels[::-1])
    said = command(*one)
    assert (said.code, said.out) == (2, "")
    assert "run: the run is finished, of another federation than the one drawn now: the data files" in said.err
    with pytest.raises(UserError, match=r"2 of the runs are finished, of another .* rm -r multirun/tune/\w+ multirun"):
        tune.tune(tuned)
    path.unlink()
    assert command(*one).code == 0
    assert "cannot be compared with those of today: dataset.file" in caplog.text


@pytest.fixture
def pictures(tmp_path: Path) -> list[str]:
    """The overrides of a run on images in files, and these in ``tmp_path / "images"``."""
    rng = np.random.default_rng(0)
    for i in range(30):
        path = tmp_path / "images" / ("train" if i < 24 else "test") / str(i % 3) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8)).save(path)
    words = ["dataset=image_folder", f"dataset.root={tmp_path / 'images'}", "dataset.image_size=4", "model=mlp"]
    words += ["dataset.crop_from=null", "dataset.normalize=half", "partition.num_clients=3", "noise=none"]
    return [*words, "method=fedavg", "rounds=2", "figures=false", "products=false", "wandb.mode=disabled"]


def test_a_finished_run_is_that_of_files_that_are_known_by_name_now(
    pictures: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = run(pictures, tmp_path / "run", "rounds=1").record
    assert run(pictures, tmp_path / "run", "rounds=1", "resume=true", "dataset.fingerprint=names").record == record
    assert "dataset.fingerprint=names does not tell the contents" in caplog.text
    (tmp_path / "images" / "train" / "0" / "0.png").unlink()
    with pytest.raises(UserError, match="another federation"):
        run(pictures, tmp_path / "run", "rounds=1", "resume=true")


def test_other_pixels_in_a_file_of_the_same_size_are_not_gone_on_with(pictures: list[str], tmp_path: Path) -> None:
    run(pictures, tmp_path / "run", "max_rounds=1")
    path = tmp_path / "images" / "train" / "0" / "0.png"
    size = path.stat().st_size
    flip(path)
    assert path.stat().st_size == size
    with pytest.raises(UserError, match="another federation"):
        run(pictures, tmp_path / "run", "resume=true")
    flip(path)
    assert run(pictures, tmp_path / "run", "resume=true").record["status"] == "finished"


def test_where_only_names_were_known_it_goes_on_and_says_what_was_not_verified(
    pictures: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As every checkpoint of earlier versions."""
    names = "dataset.fingerprint=names"
    begun = run([*pictures, names], tmp_path / "run", "max_rounds=1")
    assert "note: files of own are identified by path and size only" in capsys.readouterr().err
    assert begun.record["config"]["dataset"]["fingerprint"] == "names"
    ran = run(pictures, tmp_path / "run", "resume=true")
    said = capsys.readouterr().err
    assert said.count("their contents were not verified") == 1
    assert "by path and size only" not in said
    assert ran.record["key"] == begun.record["key"]
    assert ran.record["federation"] != begun.record["federation"]
    assert ran.lines == run(pictures, tmp_path / "unbroken").lines
    assert "verified" not in capsys.readouterr().err

    run(pictures, tmp_path / "other", "max_rounds=1")
    with pytest.raises(UserError, match=r"begun with dataset\.fingerprint=contents$"):
        run([*pictures, names], tmp_path / "other", "resume=true")


# ------------------------------------------------------------------------------------------------ killed and stopped


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(SLOW, tmp_path_factory.mktemp("slow") / "unbroken")


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_goes_on_to_the_same_end(seed: int, slow: Ran, launch: Launch, tmp_path: Path) -> None:
    rng, folder = random.Random(seed), tmp_path / "outputs" / "run"
    words = [*SLOW, "checkpoint.every=2"]
    running = launch(*words, f"output={folder}")
    kills = 0
    while kills < 6:
        if rng.random() < 0.3:  # wherever it is, reading data or nothing at all
            time.sleep(rng.uniform(0.0, 0.6))
        else:
            there = lines_of(folder) + rng.randint(1, 5)
            while running.poll() is None and lines_of(folder) < there:
                time.sleep(0.005)
            time.sleep(rng.uniform(0.0, 0.05))
        if running.poll() is not None:
            break
        running.signal(signal.SIGKILL)
        running.wait()
        kills += 1
        text = (folder / "metrics.jsonl").read_text() if (folder / "metrics.jsonl").exists() else ""
        for line in text.split("\n")[:-1]:
            json.loads(line)
        assert not text or (folder / "result.json").exists()
        if (folder / "result.json").exists():
            assert json.loads((folder / "result.json").read_text())["status"] == "interrupted"
            running = launch(*words, "resume=true")
        else:
            running = launch(*words, f"output={folder}")
    assert kills >= 2
    said = running.wait()
    assert said.code == 0, said.err
    assert_complete(folder, slow)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_told_to_stop_it_finishes_the_round_and_prints_how_to_go_on(
    number: int, code: int, slow: Ran, launch: Launch, tmp_path: Path
) -> None:
    folder = tmp_path / "a folder"
    running = launch(*SLOW, f"output='{folder}'")
    running.until(lambda: lines_of(folder) >= 4, "round")
    running.signal(number)
    said = running.wait()
    assert said.code == code, said.err
    assert "Traceback" not in said.err
    record = json.loads((folder / "result.json").read_text())
    assert record["status"] == "interrupted"
    found = Ran(folder, record)
    assert found.state.round == record["rounds"] == found.lines[-1]["round"] >= 3
    assert "round 1/" in said.err
    assert said.err.count("to go on: ") == 1

    end = launch(*resuming_words(said)).wait()
    assert end.code == 0, end.err
    assert f"going on after round {record['rounds']}" in end.err
    assert_complete(folder, slow)


def test_told_twice_it_stops_at_once(launch: Launch, tmp_path: Path) -> None:
    """In the middle of a round that would take minutes."""
    folder = tmp_path / "run"
    running = launch(*(w for w in FEDAVG if not w.startswith("train.epochs")), "train.epochs=1000000", "output=run")
    running.until(running.catches_signals, "start")
    running.until((folder / "result.json").exists, "the first round")
    time.sleep(1)  # a signal before the round would end the run without it
    running.signal(signal.SIGINT)
    running.until(lambda: "once more" in running.err.read_text(), "answer")
    time.sleep(0.2)
    assert running.poll() is None
    before = time.monotonic()
    running.signal(signal.SIGINT)
    said = running.wait()
    assert time.monotonic() - before < 5
    assert said.code == 130
    assert "Traceback" not in said.err
    assert json.loads((folder / "result.json").read_text())["status"] == "interrupted"


def test_what_is_stopped_before_its_first_round_leaves_no_trace(launch: Launch, tmp_path: Path) -> None:
    running = launch(*FEDAVG)
    running.until(running.err.exists, "start")
    time.sleep(0.1)
    running.signal(signal.SIGINT)
    assert running.wait().code in (0, 130)
    for folder in (tmp_path / "outputs").glob("[!.]*"):
        assert (folder / "result.json").exists()
