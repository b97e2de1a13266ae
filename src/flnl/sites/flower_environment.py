"""Flower's own environment: where it is, how it is made, and how its programs are run.

Flower and this package need other versions of the same libraries, so it is installed apart.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flnl.console.terminal import print_line
from flnl.core.errors import UserError, one_line, shortened

HERE = Path(__file__).parent / "flower"
REQUIREMENTS, KEYS, GATE, RELAY = HERE / "requirements.txt", HERE / "keys.py", HERE / "gate.py", HERE / "relay"
VARIABLE, FOLDER = "FLNL_FLOWER", ".venv-flower"
INSTALL = "flnl federation install-flower"
PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "SYSTEMROOT", "OMP_NUM_THREADS")
"""The variables that Flower's programs see: what a server ships runs with them, so no credentials."""
ENDS = 10.0
"""Seconds that a program has to end when it is asked to."""


@dataclass(frozen=True)
class Flower:
    """An environment with Flower."""

    folder: Path

    @classmethod
    def found(cls, given: str | None = None) -> Flower:
        """The environment ``given``, or that of the variable ``FLNL_FLOWER``, or ``.venv-flower`` here.

        Raises:
            UserError: if there is none.
        """
        named = given or os.environ.get(VARIABLE)
        folder = Path(named or FOLDER).expanduser().absolute()
        if folder.name == "bin":
            folder = folder.parent
        if not (folder / "bin" / "flower-superlink").exists():
            there = "" if given is None else " or name another with --flower"
            raise UserError(f"{folder} has no Flower: make it with {INSTALL}{there}, or set {VARIABLE} to one")
        return cls(folder)

    def program(self, name: str) -> str:
        """The path of one of its programs."""
        return str(self.folder / "bin" / name)

    def variables(self, home: Path) -> dict[str, str]:
        """The whole environment of its programs: what they write goes below ``home``, and they call nobody else."""
        seen = {name: os.environ[name] for name in PASSED if name in os.environ}
        return {
            **seen,
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{seen.get('PATH', os.defpath)}",
            "HOME": str(home),
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, home: Path, *words: str, seconds: float = 120.0) -> str:
        """Run a program of it to its end; what it has printed.

        Raises:
            UserError: with the end of what it has said, if it fails.
        """
        home.mkdir(parents=True, exist_ok=True)
        try:
            done = subprocess.run(
                words, env=self.variables(home), capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"{Path(words[0]).name} has not ended after {seconds:g} s") from None
        if done.returncode:
            said = one_line(shortened((done.stderr.strip() or done.stdout.strip())[-400:]))
            raise UserError(f"{Path(words[0]).name} {words[1] if len(words) > 1 else ''}: {said}")
        return done.stdout

    def keys(self, home: Path, *words: str) -> None:
        """Make keys and certificates: see ``flower/keys.py``."""
        self.run(home, self.program("python"), str(KEYS), *words)

    def start(self, home: Path, log: Path, *words: str) -> subprocess.Popen[bytes]:
        """Start a program, which ends with this process; what it says is added to the file ``log``."""
        home.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as said:
            return subprocess.Popen(
                words,
                env=self.variables(home),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for this process
                preexec_fn=ends_with_parent(),
            )


def ends_with_parent() -> Callable[[], None] | None:
    """What makes Linux end a child when the thread that started it ends."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl

    def ends() -> None:
        prctl(1, signal.SIGTERM)

    return ends


def end(*processes: subprocess.Popen[bytes] | None, seconds: float = ENDS) -> None:
    """End programs and the processes that they have started; kill those that have not ended after some seconds."""
    running = [process for process in processes if process is not None]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        until = time.monotonic() + seconds
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens to now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def install(folder: Path) -> None:
    """Make an environment with Flower, of exactly the files that ``requirements.txt`` has the sha256 of.

    Raises:
        UserError: if there is something already, or it cannot be made.
    """
    if folder.exists():
        raise UserError(f"{folder} is there already: delete it to make it anew")
    print_line(f"making {folder}, some 220 MB", to=sys.stderr)
    python, uv = folder / "bin" / "python", shutil.which("uv")
    wanted = ["--require-hashes", "-r", str(REQUIREMENTS)]
    steps = [[sys.executable, "-m", "venv", str(folder)], [str(python), "-m", "pip", "install", "--quiet", *wanted]]
    if uv is not None:
        steps = [
            [uv, "venv", "--quiet", "--python", sys.executable, str(folder)],
            # a Python starts for each message, and its programs write no bytecode
            [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), *wanted],
        ]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            raise UserError(f"{' '.join(step[:3])}: {one_line(shortened(done.stderr.strip()[-400:]))}")
