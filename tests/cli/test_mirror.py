"""W&B mirrors a run and never costs it: no account, no network and a broken installation all leave the run as it is."""

from pathlib import Path
from typing import Any

import pytest
import wandb
from PIL import Image

from src.config import Wandb
from src.loggers import Mirror


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
        f"W&B cannot be reached (no network); its offline folder in {tmp_path} takes the metrics"
    ]
    mirror.log({"accuracy": 0.5}, 3)
    assert runs[0].rows == [(3, {"accuracy": 0.5})]
    assert mirror.close(failed=False, summary={"last": 0.5}) == f"wandb sync {tmp_path}"
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
    assert [r.getMessage().split(" (")[0] for r in caplog.records] == ["W&B took no figures"]
    assert mirror.close(failed=False, summary={}) == f"wandb sync {tmp_path}"
