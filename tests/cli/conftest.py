"""How these tests start runs: by ``flnl.commands.run`` in this process, or in one that was forked."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra

from flnl.commands import run as main

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0


@dataclass(frozen=True)
class Said:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """The entry point with these words, in this process."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Said:
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        monkeypatch.setattr(sys, "argv", ["flnl", *words])
        GlobalHydra.instance().clear()
        out, err, code = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main.main()
            except SystemExit as left:
                code = left.code if isinstance(left.code, int) else 1
        return Said(code, out.getvalue(), err.getvalue())

    return run


class Zygote:
    """The process that forks runs; see ``tests.cli.zygote``."""

    def __init__(self) -> None:
        inherited = {name: value for name, value in os.environ.items() if name != "HYDRA_FULL_ERROR"}  # a test's own
        environment = {
            **inherited,
            "PYTHONPATH": str(ROOT / "src"),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        assert self._answer() == "ready"

    def ask(self, **request: Any) -> Any:
        """Send a request, give the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._process.stdout.close()


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """One for all tests of a worker."""
    found = Zygote()
    yield found
    found.close()


@dataclass
class Running:
    """A run in a process of its own."""

    zygote: Zygote
    pid: int
    out: Path
    err: Path
    code: int | None = None

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        if self.code is None:
            self.code = self.zygote.ask(do="poll", pid=self.pid)
        return self.code

    def wait(self) -> Said:
        """Until it ends."""
        self.until(lambda: self.poll() is not None, "the end")
        assert self.code is not None
        return Said(self.code, self.out.read_text(), self.err.read_text())

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something; an ended process is no excuse for waiting on."""
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end or (self.poll() is not None and not condition()):
                pytest.fail(f"no {what}; code {self.code}\n{self.err.read_text()}")
            time.sleep(0.005)

    def catches_signals(self) -> bool:
        """Whether the loop's handler of SIGTERM is in place, which nothing else of ours catches."""
        found = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{self.pid}/status").read_text())
        return found is not None and bool(int(found.group(1), 16) >> (signal.SIGTERM - 1) & 1)

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


Launch = Callable[..., Running]


@pytest.fixture
def launch(zygote: Zygote, tmp_path: Path) -> Iterator[Launch]:
    """Starts runs in ``tmp_path``; those still going at the end of the test are ended."""
    started: list[Running] = []

    def start(*words: str, cwd: Path = tmp_path, env: Mapping[str, str] | None = None) -> Running:
        out, err = (tmp_path / f"{kind}-{len(started)}.txt" for kind in ("out", "err"))
        environment = {"FLNL_CACHE": os.environ["FLNL_CACHE"], **(env or {})}
        request = {"words": words, "cwd": str(cwd), "out": str(out), "err": str(err), "env": environment}
        started.append(Running(zygote, zygote.ask(do="start", **request), out, err))
        return started[-1]

    yield start
    for running in started:
        running.signal(signal.SIGKILL)
        running.wait()


def lines_of(folder: Path) -> int:
    """How many lines ``metrics.jsonl`` has so far."""
    try:
        return (folder / "metrics.jsonl").read_text().count("\n")
    except OSError:
        return 0


def resuming_words(said: Said) -> Sequence[str]:
    """The overrides of the command that a stopped run has printed."""
    import shlex

    match = re.search(r"to go on: flnl (.*)", said.err)
    assert match, said.err
    return shlex.split(match.group(1))
