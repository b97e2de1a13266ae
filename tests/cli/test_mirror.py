"""W&B mirrors a run and never costs it: no account, no network and a broken installation all leave the run as it is."""

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import wandb
from PIL import Image
from wandb.proto.wandb_internal_pb2 import Record

from flnl.config.schema import Wandb
from flnl.run import mirror as run_mirror
from flnl.run.mirror import Mirror
from tests.cli.conftest import Launch, lines_of
from tests.registry import BY_NAME


class Run:
    """What ``wandb.init`` gives, noting what it is told."""

    def __init__(self, folder: Path, **said: Any) -> None:
        self.dir, self.said = str(folder / "files"), said
        self.rows: list[tuple[int, dict[str, Any]]] = []
        self.summary: dict[str, Any] = {}
        self.exit_code: int | None = None

    def log(self, row: dict[str, Any], step: int) -> None:
        self.rows.append((step, row))

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


def opened(
    monkeypatch: pytest.MonkeyPatch, folder: Path, mode: Any, fails: tuple[str, ...] = ()
) -> tuple[Mirror, list[Run]]:
    runs: list[Run] = []

    def init(**said: Any) -> Run:
        if said["mode"] in fails:
            raise wandb.errors.CommError("no network")
        runs.append(Run(folder, **said))
        return runs[-1]

    monkeypatch.setattr(wandb, "init", init)
    settings = Wandb(mode=mode, project="flnl", group=None, tags=["a"])
    return Mirror.open(settings, folder, "k" * 64, {"seed": 1}, group="g", job_type="fedavg"), runs


@pytest.mark.parametrize(("key", "mode"), [(None, "offline"), ("0" * 40, "online")])
def test_it_is_online_only_where_a_key_is_found(
    key: str | None, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("WANDB_API_KEY", key)
    _, runs = opened(monkeypatch, tmp_path, "auto")
    assert [run.said["mode"] for run in runs] == [mode]


@pytest.mark.parametrize(
    ("said", "key", "mode"),
    [
        ("offline", True, "offline"),
        ("dryrun", True, "offline"),
        ("online", False, "online"),
        ("disabled", True, None),
        ("nonsense", False, "offline"),
        ("", True, "online"),
    ],
)
def test_the_environment_decides_where_the_configuration_leaves_it_open(
    said: str, key: bool, mode: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("WANDB_MODE", said)
    if key:
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    _, runs = opened(monkeypatch, tmp_path, "auto")
    assert [run.said["mode"] for run in runs] == ([] if mode is None else [mode])
    _, explicit = opened(monkeypatch, tmp_path, "offline")
    assert [run.said["mode"] for run in explicit] == ["offline"]


@pytest.mark.parametrize(("host", "mode"), [("elsewhere.org", "offline"), ("api.wandb.ai", "online")])
def test_a_key_in_netrc_counts_for_its_host(
    host: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    file = tmp_path / "netrc"
    file.write_text(f"machine {host} login user password {'0' * 40}\n")
    file.chmod(0o600)
    monkeypatch.setenv("NETRC", str(file))
    _, runs = opened(monkeypatch, tmp_path, "auto")
    assert [run.said["mode"] for run in runs] == [mode]


def test_without_a_network_it_falls_back_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mirror, runs = opened(monkeypatch, tmp_path, "online", fails=("online",))
    assert [run.said["mode"] for run in runs] == ["offline"]
    assert [r.getMessage() for r in caplog.records] == [
        f"W&B cannot be reached (no network); metrics go to its offline folder in {tmp_path}"
    ]
    mirror.log({"accuracy": 0.5}, 3)
    assert runs[0].rows == [(3, {"accuracy": 0.5})]
    assert mirror.close(failed=False, summary={"last": 0.5}) == str(tmp_path)
    assert runs[0].summary == {"last": 0.5}
    assert runs[0].exit_code == 0


def test_where_nothing_works_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror, runs = opened(monkeypatch, tmp_path, "online", fails=("online", "offline"))
    mirror.log({"accuracy": 0.5}, 1)
    assert mirror.close(failed=True, summary={}) is None
    assert runs == []


def test_a_failed_run_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror, runs = opened(monkeypatch, tmp_path, "offline")
    mirror.close(failed=True, summary={})
    assert runs[0].exit_code == 1


def test_when_it_breaks_in_the_middle_it_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror, runs = opened(monkeypatch, tmp_path, "offline")

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(runs[0], "log", broken)
    mirror.log({"accuracy": 0.5}, 1)
    mirror.log({"accuracy": 0.6}, 2)
    assert mirror.close(failed=False, summary={}) is None


def test_disabled_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror, runs = opened(monkeypatch, tmp_path, "disabled")
    mirror.log({"accuracy": 0.5}, 1)
    assert mirror.close(failed=False, summary={}) is None
    assert runs == []


def test_figures_are_sent_as_images_and_cost_nothing_where_they_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "accuracy.png"
    Image.new("RGB", (4, 4)).save(file)
    mirror, runs = opened(monkeypatch, tmp_path, "offline")
    mirror.images([file], 9)
    mirror.images([], 9)
    ((step, row),) = runs[0].rows
    assert (step, list(row)) == (9, ["figures/accuracy"])
    assert isinstance(row["figures/accuracy"], wandb.Image)
    mirror.images([tmp_path / "missing.png"], 9)
    assert [r.getMessage().split(" (")[0] for r in caplog.records] == ["W&B failed to log figures"]
    assert mirror.close(failed=False, summary={}) == str(tmp_path)


# ------------------------------------------------------------------------------------------------------------ the end


@pytest.mark.parametrize("keeps_time", [True, False])
def test_it_is_not_waited_for_without_end(
    keeps_time: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither where W&B gives up in time by itself, nor where it does not."""
    monkeypatch.setattr(run_mirror, "CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(run_mirror, "GRACE_SECONDS", 0.05)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    mirror, runs = opened(monkeypatch, tmp_path, "online")
    assert runs[0].said["settings"].finish_timeout == 0.05
    assert runs[0].said["settings"].finish_timeout_raises
    free = threading.Event()

    def finish(exit_code: int) -> None:
        if keeps_time:
            raise TimeoutError
        free.wait(60)

    monkeypatch.setattr(runs[0], "finish", finish)
    before = time.monotonic()
    line = mirror.close(failed=False, summary={})
    free.set()
    assert time.monotonic() - before < 5
    assert line == str(tmp_path)
    assert [r.getMessage() for r in caplog.records] == [f"W&B did not finish within 0 s; all rows are in {tmp_path}"]


def steps(file: Path) -> list[int]:
    """The steps of the rows in a ``.wandb`` file: a header, then LevelDB's log of records in blocks of 32 KiB."""
    data, at, parts, found = file.read_bytes(), 7, b"", []
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts, at = parts + data[at + 7 : at + 7 + length], at + 7 + length
        if at > len(data):
            break
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            if record.HasField("history"):
                found.append(record.history.step.num)
    return found


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_rows_outlive_a_killed_run_and_nothing_is_written_into_the_home(
    number: int, launch: Launch, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    words = [w for w in BY_NAME["fedavg"].words if not w.startswith(("wandb", "rounds"))]
    places = {"HOME": str(home), "MPLCONFIGDIR": str(tmp_path / "fonts")}  # matplotlib keeps a list of fonts
    running = launch(*words, "rounds=100000", "wandb.mode=offline", "output=run", env=places)
    files = (tmp_path / "run" / "wandb").glob
    running.until(lambda: lines_of(tmp_path / "run") >= 40 and any(files("offline-run-*/*.wandb")), "round")
    early = lines_of(tmp_path / "run") // 2
    time.sleep(2)  # W&B flushes every second
    running.signal(number)
    running.wait()
    (file,) = files("offline-run-*/*.wandb")
    found = steps(file)
    assert found[:early] == list(range(1, early + 1))
    if number == signal.SIGTERM:
        assert found == list(range(1, lines_of(tmp_path / "run") // 2 + 1))
    assert list(home.rglob("*")) == []


def test_a_place_of_its_own_that_cannot_be_written_costs_no_run(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "a_file").write_text("")
    names = ("HOME", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DIR")
    words = [w for w in BY_NAME["fedavg"].words if not w.startswith("wandb")]
    environment = {name: str(tmp_path / "a_file" / name) for name in names}
    said = launch(*words, "wandb.mode=offline", "output=run", env=environment).wait()
    assert said.code == 0, said.err
    assert "Traceback" not in said.err
