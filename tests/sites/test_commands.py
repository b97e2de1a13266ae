"""``flnl federation``, ``flnl site`` and ``flnl serve``: what they make and say, and mistakes in one line."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from flnl.commands import federation, serve, site
from flnl.core.errors import UserError
from flnl.sites import flower_environment, serving, site_folder
from flnl.sites.flower_environment import VARIABLE, Flower
from tests.sites.hospitals import write_data, write_federation, write_site
from tests.sites.test_federation import PUBLIC, flower

__all__ = ["flower"]

ADDRESS = ("--address", "127.0.0.1:8443", "--sites", "north,south")


@pytest.fixture
def place(flower: Flower, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder to work in, with an environment whose keys are texts."""
    (flower.folder / "bin").mkdir(parents=True)
    (flower.folder / "bin" / "flower-superlink").touch()
    monkeypatch.setenv(VARIABLE, str(flower.folder))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_a_federation_to_its_sites(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    federation.command(["init", "lung", *ADDRESS, "--data", "dataset=arrays", "dataset.normalize=half"])
    site.command(["init", "lung-north", "--invitation", "lung/invitation.toml"])
    site.command(["init", "here", "--name", "south", "--invitation", "lung/invitation.toml"])
    said = capsys.readouterr().out
    assert "lung/invitation.toml is for the sites: north, south\n" in said
    assert "send lung-north/node.pub to the server, and nothing else of lung-north\n" in said
    federation.command(["admit", "lung", "lung-north/node.pub", "--name", "north"])
    Path("here/node.pub").write_text(PUBLIC.replace("A", "C"))
    federation.command(["admit", "lung", "here/node.pub", "--name", "south"])
    assert capsys.readouterr().out == "north is admitted; south are not yet\nsouth is admitted; all sites are\n"
    assert '  - "dataset.normalize=half"\n' in Path("lung-north/site.yaml").read_text()
    site.command(["lung-north", "--approve", "f" * 64])
    assert Path("lung-north/approved").read_text() == "f" * 64 + "\n"
    site.command(["lung-north", "--units", "flower"])
    assert "[Service]" in capsys.readouterr().out
    monkeypatch.setattr("pwd.getpwuid", dict[int, object]().__getitem__)  # nobody has a name
    with pytest.raises(UserError, match="and of this user no home is known"):
        site.command(["lung-north", "--units", "flower"])
    there = Path("lung-north/site.yaml")
    there.write_text(there.read_text().replace(f"{site_folder.ROOT}\n", "  - dataset.root=/data\n"))
    site.command(["lung-north", "--units", "flower"])
    assert f"\nUser={os.getuid()}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "words", "reason"),
    [
        (serve.command, ["nowhere", "method=fedavg"], "nowhere is no federation, it has no federation.yaml"),
        (serve.command, ["method=fedavg"], "name the federation's folder first, as in flnl serve lung method=fedavg"),
        (serve.command, ["lung", "method=fedavg"], "east, north, south: not admitted yet"),
        (serve.command, ["lung", "--rehearse", "method=fedavg"], "sites.json is not there"),
        (serve.command, ["lung", "dataset=digits"], "samples, labels and who has them are the sites'"),
        (serve.command, ["lung", "shift.level=0.5"], "samples, labels and who has them are the sites'"),
        (serve.command, [], "the following arguments are required: folder"),
        (serve.command, ["lung", "--check", "method=fedavg"], "method=fedavg: --check trains nothing"),
        (serve.command, ["lung", "--check"], "east, north, south: not admitted yet"),
        (serve.command, ["lung", "--check", "--rehearse"], "not allowed with argument"),
        (site.command, ["nowhere"], "nowhere is no site, it has no site.yaml"),
        (site.command, ["init", "n"], "flnl site init FOLDER --invitation FILE makes a site"),
        (site.command, ["n", "--invitation", "i"], "flnl site init FOLDER --invitation FILE makes a site"),
        (site.command, ["init"], "name one folder"),
        (site.command, ["a", "b"], "name one folder"),
        (site.command, ["init", "n", "--invitation", "none.toml"], "none.toml: No such file"),
        (site.command, ["lung-north", "--approve", "abc"], "should be the key of a run"),
        (site.command, ["lung-north", "--approve", ""], "should be the key of a run"),
        (site.command, ["lung-north", "--approve", "f" * 64, "--units", "flnl"], "not allowed with argument"),
        (federation.command, ["init", "f", "--address", "a", "--sites", "n"], "should be HOST:PORT"),
        (federation.command, ["admit", "lung", "key.pub"], "--name"),
        (federation.command, ["admit", "lung", "key.pub", "--name", "north"], "key.pub: No such file"),
        (federation.command, ["install-flower", "lung"], "lung is there already"),
        (federation.command, [], "are required"),
    ],
)
def test_mistakes_are_said_in_a_line(
    place: Path, command: Callable[[Sequence[str]], None], words: list[str], reason: str
) -> None:
    write_federation(Path("lung"))
    write_site(Path("lung-north"), "north", place)
    with pytest.raises(UserError) as raised:
        command(words)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value).strip()


def test_a_site_that_is_ended_leaves_no_socket(place: Path) -> None:
    write_data(place)
    write_site(Path("lung-north"), "north", place)
    words = [sys.executable, "-m", "flnl", "site", "lung-north", "--no-supernode"]
    with subprocess.Popen(
        words, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        socket, until = Path("lung-north/socket/site.sock"), time.monotonic() + 120
        while not socket.exists() and time.monotonic() < until:
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.05)
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as second:
            assert second.wait(120) == 2
            assert second.stderr is not None
            assert "another process listens there: is this one running already?" in second.stderr.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        assert process.stderr is not None
        said = process.stderr.read()
        assert "north: 90 images, 10 of 10 classes; calling 127.0.0.1:1" in said
        assert said.endswith("stopped; a run that has begun goes on once flnl site lung-north is started again\n")
    assert not socket.exists()


def test_a_server_that_is_stopped_while_it_waits_says_so(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def waits(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(serving, "serve", waits)
    with pytest.raises(KeyboardInterrupt):
        serve.command(["lung", "method=fedavg"])
    assert capsys.readouterr().err == "stopped; a run with whole rounds goes on with resume=true\n"


def test_a_review_names_its_files_a_line_each(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_site(Path("lung-north"), "north", place)
    monkeypatch.setattr(type(folder), "review", lambda *given: Path("lung-north/runs/a"))
    site.command(["lung-north", "--review", "verdicts.csv"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["lung-north/runs/a/audit/index.html", "lung-north/runs/a/corrected.csv"]


def test_an_environment_is_made_of_hashed_files_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By uv where it is there; what could not be made is removed."""
    called: list[list[str]] = []

    def run(words: list[str], **more: object) -> subprocess.CompletedProcess[str]:
        called.append(words)
        Path("env").mkdir(exist_ok=True)
        return subprocess.CompletedProcess(
            words, 1 if "install" in words and len(called) == 4 else 0, "", "no such file"
        )

    monkeypatch.setattr(subprocess, "run", run)
    for found in ("/bin/uv", None):
        monkeypatch.setattr(shutil, "which", lambda name, found=found: found)
        if found is None:
            with pytest.raises(UserError, match="no such file"):
                flower_environment.install(Path("env"))
            assert not Path("env").exists()
        else:
            flower_environment.install(Path("env"))
            Path("env").rmdir()
    for words in (called[1], called[3]):
        assert words[-3:] == ["--require-hashes", "-r", str(flower_environment.REQUIREMENTS)]
    assert called[0][:2] == ["/bin/uv", "venv"]
    assert "--compile-bytecode" in called[1], "as pip does"
    assert called[2][:3] == [sys.executable, "-m", "venv"]
