"""Over a SuperLink and three SuperNodes on this machine: a simulation's bits, whatever is killed; closed doors.

They need an environment with Flower: ``flnl federation install-flower``, here or where ``FLNL_FLOWER`` says. Of each
kind, a process is killed once, or ``FLNL_KILLS`` times, in the order of ``FLNL_KILLS_SEED``.
"""

import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from flnl.audit.options import Options
from flnl.audit.performing import perform
from flnl.core.errors import UserError
from flnl.sites.flower.gate import CONNECTIONS, HEADS
from flnl.sites.flower_environment import FOLDER, GATE, VARIABLE, Flower, end, ends_with_parent, free_port
from flnl.sites.site_folder import NODE_PUB
from tests.properties.runs import Ran, difference
from tests.sites.hospitals import QUICK, SIZES, data_of, set_values, simulated, write_data
from tests.sites.test_served_audit import compared, samples_of

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
PLACE = os.environ.get(VARIABLE) or str(ROOT / FOLDER)


def _there() -> bool:
    try:
        Flower.found(PLACE)
    except UserError:
        return False
    return True


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _there(), reason="no environment with Flower"),
    pytest.mark.timeout(1500),
]
LONGEST = 1200.0
"""Seconds of a run; Flower starts a process for each message."""
KILLS = int(os.environ.get("FLNL_KILLS", "1"))
SEED = int(os.environ.get("FLNL_KILLS_SEED", str(random.SystemRandom().randrange(10**6))))
ALLOW = ["LabelCounts", "CountedLabels"]


@dataclass
class Hospitals:
    """A federation and its sites, as processes of their own."""

    folder: Path
    port: int
    before: tuple[str, ...] = ()  # what commands are run by
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def command(self, *words: str) -> None:
        """Run a command to its end."""
        done = subprocess.run([*FLNL, *words], cwd=self.folder, env=environment(), capture_output=True, text=True)
        assert not done.returncode, done.stderr

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a command that goes on, until this process ends at the latest; what it says is in ``NAME.log``."""
        with (self.folder / f"{name}.log").open("wb") as said:
            self.running[name] = subprocess.Popen(
                [*self.before, *FLNL, *words],
                cwd=self.folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                preexec_fn=ends_with_parent(),
            )
        return self.running[name]

    def start_site(self, name: str) -> None:
        self.start(name, "site", f"lung-{name}")

    def start_server(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        return self.start("server", "serve", "lung", *QUICK, *words)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def serve(self, output: str, words: Sequence[str]) -> Ran:
        """A whole run."""
        server = self.start_server([*words, f"output={output}"])
        assert not server.wait(LONGEST), self.said("server")
        return self.ran(output)

    def ran(self, output: str) -> Ran:
        return Ran(self.folder / output, {})

    def stop(self) -> None:
        """End all."""
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


FLNL = (sys.executable, "-m", "flnl")


def environment() -> dict[str, str]:
    return {**os.environ, VARIABLE: PLACE, "OMP_NUM_THREADS": "1"}


def made(folder: Path, before: tuple[str, ...] = ()) -> Hospitals:
    """A federation whose three sites have their keys, and are not started."""
    write_data(folder)
    one = Hospitals(folder, free_port(), before)
    address = f"127.0.0.1:{one.port}"
    one.command("federation", "init", "lung", "--address", address, "--listen", address, "--sites", ",".join(SIZES))
    for name in SIZES:
        site = f"lung-{name}"
        one.command("site", "init", site, "--invitation", "lung/invitation.toml")
        one.command("federation", "admit", "lung", f"{site}/{NODE_PUB}", "--name", name)
        allowed = {"approve": "any", "least_samples": 1, "min_count": 1, "device": "cpu", "allow": ALLOW}
        set_values(folder / site, data=data_of(folder, name), **allowed)
    return one


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hospitals]:
    """Three sites that are there for all runs."""
    one = made(tmp_path_factory.mktemp("f"))
    for name in SIZES:
        one.start_site(name)
    yield one
    one.stop()


def waited(found: Callable[[], T | None], said: Path, running: Mapping[str, subprocess.Popen[bytes]] = {}) -> T:
    """What is found in the end, while all of these run; ``said`` is shown if it is not."""
    until = time.monotonic() + LONGEST
    while (it := found()) is None:
        assert time.monotonic() < until, said.read_text(errors="replace")
        assert all(one.poll() is None for one in running.values()), (running, said.read_text(errors="replace"))
        time.sleep(0.2)
    return it


def assert_same(there: Ran, here: Ran) -> None:
    assert difference(there.state.server, here.state.server) is None
    assert there.state.counters == here.state.counters


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedavg", ("method=fedavg", "rounds=2", "fraction=1.0")),
        ("flr", ("method=flr", "rounds=2", "fraction=0.7", "train.keep_momentum=true")),
        ("fedcorr", ("method=fedcorr", "method.T1=1", "method.T2=1", "method.T3=1", "fraction=0.7")),
        ("feddiv", ("method=feddiv", "method.T_wu=1", "method.T=1", "fraction=0.7")),
        ("fedpeer", ("method=fedpeer", "method.peer_dist=global_true", "rounds=2", "fraction=0.7")),
    ],
)
def test_a_method_gives_the_same_bits(hospitals: Hospitals, name: str, words: Sequence[str], tmp_path: Path) -> None:
    assert_same(hospitals.serve(name, words), simulated(hospitals.folder, tmp_path / "here", words))


def test_an_audit_has_the_numbers_of_the_samples_in_one_place(hospitals: Hospitals, tmp_path: Path) -> None:
    """Of ``flnl audit --clients`` of the simulation: the server's file, and each site's samples."""
    words = ("method=fedavg", "rounds=2", "fraction=1.0")
    run = hospitals.serve("audited", words).folder
    hospitals.command("audit", "audited")
    here = simulated(hospitals.folder, tmp_path / "here", words).folder
    perform(here, Options(clients=True, probabilities="final"))
    told = compared(run / "audit")
    assert told == compared(here / "audit")
    assert sum(row["issues"] for row in told["by_client"]) > 20
    for name, size in SIZES.items():
        ours = samples_of(hospitals.folder / f"lung-{name}" / "runs" / (run / "sites.run").read_text() / "audit")
        assert ours == samples_of(here / "audit" / "clients" / name)
        assert len(ours) == size
    assert not list((hospitals.folder / "lung" / "flower").glob("superlink.db*"))


# ---------------------------------------------------------------------------------------------------------------- kills

FLOWERS = {
    "supernode": ("flower-supernode", "{0}/lung-{1}/node"),
    "relay": ("flwr-serverapp", "FLWR_HOME={0}/lung/flower"),
    "superlink": ("flower-superlink", "{0}/lung/flower/superlink.db"),
}
"""The program of each of Flower's processes, and an argument or variable that no other one of it has."""


def process(program: str, has: str) -> int | None:
    """The number of a running process."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_text(errors="replace").split("\0")
            if program in map(os.path.basename, words):
                words += (folder / "environ").read_text(errors="replace").split("\0")
                if has in words:
                    return int(folder.name)
    return None


def kill(one: Hospitals, kind: str, site: str, again: Sequence[str]) -> None:
    """Kill a process, as soon as there is one, and start again what nobody else does."""
    if kind in FLOWERS:
        program, has = FLOWERS[kind]
        there = waited(lambda: process(program, has.format(one.folder, site)), one.folder / "server.log", one.running)
        os.kill(there, signal.SIGKILL)
        return
    name = site if kind == "site" else kind
    one.running[name].kill()
    one.running[name].wait()
    if kind == "site":
        one.start_site(site)
    else:
        one.start_server([*again, "resume=true"])


def round_after(one: Hospitals, before: int) -> int:
    """Wait until the run has a later round behind it; its number. Meanwhile no site does a job twice."""

    def later() -> int | None:
        assert_done_once(one.folder)
        checkpoints = (one.folder / "killed" / "checkpoints").glob(
            "round_*.pt"
        )  # lines of rounds come half a minute apart
        last = max((int(path.stem.removeprefix("round_")) for path in checkpoints), default=0)
        return last if last > before else None

    return waited(later, one.folder / "server.log", one.running)


def assert_done_once(folder: Path) -> None:
    """Of what sites still keep of their jobs; they forget what no server may ask for again."""
    for named in folder.glob("killed/sites.run"):
        for index in folder.glob(f"lung-*/runs/{named.read_text()}/index.json"):
            done = [(entry["round"], entry["job"]) for entry in json.loads(index.read_text())]
            assert len(done) == len(set(done)), f"{index}: {done}"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found in /proc")
@pytest.mark.timeout(LONGEST * (2 + KILLS))
def test_a_run_in_which_everything_is_killed_has_the_same_bits(hospitals: Hospitals, tmp_path: Path) -> None:
    """In a drawn order, each at a drawn moment of the round after one that was come through since the last kill."""
    rng, kinds, started = random.Random(SEED), KILLS * [*FLOWERS, "site", "server"], time.monotonic()
    rng.shuffle(kinds)
    words = ["method=flr", "train.keep_momentum=true", "fraction=0.7", f"rounds={3 + 3 * len(kinds)}"]
    words += ["eval.every=10"]  # participations: a Python starts for each message
    served = [*words, "checkpoint.every=1", "output=killed"]
    hospitals.start_server(served)
    print(f"\n{len(kinds)} kills, FLNL_KILLS_SEED={SEED}")
    first, begun = round_after(hospitals, 0), time.monotonic()
    done = round_after(hospitals, first)
    length = (time.monotonic() - begun) / (done - first)
    for kind in kinds:
        site, wait = rng.choice([*SIZES]), rng.uniform(0, length)
        time.sleep(wait)
        kill(hospitals, kind, site, served)
        at = f"{wait:.1f} of {length:.1f} s after round {done}"
        print(f"{time.monotonic() - started:5.0f} s: {kind} ({site}), {at}", flush=True)
        done = round_after(hospitals, done)
    round_after(hospitals, done)  # or the run had ended before the last one was killed
    assert not hospitals.running["server"].wait(LONGEST), hospitals.said("server")
    assert_same(hospitals.ran("killed"), simulated(hospitals.folder, tmp_path / "here", words))


# -------------------------------------------------------------------------------------------------------- closed doors

STRACE = shutil.which("strace")


def test_doors_are_closed(tmp_path: Path) -> None:
    """The other interfaces are not there, another key is not let in, and nobody calls but this machine."""
    traced = (
        ()
        if STRACE is None
        else (STRACE, "-D", "-f", "-qq", "-e", "trace=connect", "-o", str(tmp_path / "calls"), "-A")
    )
    one = made(tmp_path, traced)
    try:
        for name in SIZES:
            one.start_site(name)
        server = one.start_server(["method=fedavg", "rounds=1", "fraction=0.4", "output=run"])
        waited(lambda: "is there" in one.said("server") or None, tmp_path / "server.log", one.running)
        trusted = ssl.create_default_context(cafile=str(tmp_path / "lung" / "ca.crt"))
        for path, status in (
            ("control/start-run", 404),
            ("control/list-runs", 404),
            ("runtime/acquire-task", 404),
            ("fleet/../control/start-run", 404),
            ("fleet/pull-messages", 401),
        ):
            assert answered(f"https://127.0.0.1:{one.port}/v1/{path}", trusted) == status
        assert_stranger_stays_out(one, tmp_path)
        assert not server.wait(LONGEST), one.said("server")
    finally:
        one.stop()
    assert not list((tmp_path / "lung" / "flower").glob("superlink.db*"))
    if STRACE is not None:
        calls = (tmp_path / "calls").read_text(errors="replace")
        addresses = set(re.findall(r'inet_addr\("([^"]+)"\)', calls)) | set(re.findall(r'AF_INET6, "([^"]+)"', calls))
        assert "127.0.0.1" in addresses
        assert addresses <= {"127.0.0.1", "::1"}


def test_connections_without_a_request_are_closed(tmp_path: Path) -> None:
    """Or a stranger who opens as many as the gate serves keeps all sites out; before TLS as after it."""
    flower, port, log = Flower.found(PLACE), free_port(), tmp_path / "gate.log"
    words = ["init", "lung", "--address", f"127.0.0.1:{port}", "--sites", "north"]
    subprocess.run([*FLNL, "federation", *words], cwd=tmp_path, env=environment(), check=True, capture_output=True)
    lung = tmp_path / "lung"
    given = [f"--{name}={lung / file}" for name, file in (("ca", "ca.crt"), ("certificate", "server.crt"))]
    given += [f"--key={lung / 'server.key'}", f"--listen=127.0.0.1:{port}", f"--to=127.0.0.1:{free_port()}"]
    running = flower.start(tmp_path, log, flower.program("python"), str(GATE), *given)
    trusted = ssl.create_default_context(cafile=str(lung / "ca.crt"))

    def connected() -> socket.socket | None:
        with suppress(OSError):
            return socket.create_connection(("127.0.0.1", port), 5)
        return None

    try:
        with waited(connected, log) as one, trusted.wrap_socket(one, server_hostname="127.0.0.1") as stranger:
            stranger.settimeout(3 * HEADS)
            stranger.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\n")
            with suppress(ConnectionResetError):  # closed, too
                assert stranger.recv(100) == b""
        bare = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(2 * CONNECTIONS)]
        elsewhere = socket.create_connection(("127.0.0.1", port), 5, source_address=("127.0.0.2", 0))
        with elsewhere, trusted.wrap_socket(elsewhere, server_hostname="127.0.0.1") as other:
            assert other.version()
        for connection in bare:
            connection.close()
    finally:
        end(running)


def answered(url: str, trusted: ssl.SSLContext) -> int:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, b"", {"Content-Type": "application/protobuf"}, method="POST"),
            context=trusted,
            timeout=20,
        ) as one:
            return int(one.status)
    except urllib.error.HTTPError as error:
        return error.code


def assert_stranger_stays_out(one: Hospitals, folder: Path) -> None:
    """A SuperNode whose key nobody has admitted is refused."""
    flower, home = Flower.found(PLACE), folder / "stranger"
    home.mkdir()
    flower.keys(home, "node", str(home))
    words = [
        *(flower.program("flower-supernode"), "--superlink", f"127.0.0.1:{one.port}"),
        *("--root-certificates", str(folder / "lung" / "ca.crt"), "--auth-supernode-private-key", str(home / "node")),
        *("--host", "127.0.0.1", "--port", str(free_port()), "--max-retries", "1"),
    ]
    node, refused = flower.start(home, home / "log", *words), "No SuperNode found with the given public key"
    said = folder / "lung" / "flower" / "superlink.log"
    try:
        waited(lambda: refused in said.read_text(errors="replace") or None, home / "log")
    finally:
        end(node)
