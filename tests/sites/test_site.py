"""A site's process greets, waits for approval, comes back; a run over sockets has a simulation's bits."""

import json
import os
import re
import signal
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from flnl import __version__
from flnl.commands import serve
from flnl.config import compose
from flnl.console.terminal import print_rows
from flnl.core.errors import UserError
from flnl.data.datasets.elsewhere import Inputs, Told
from flnl.data.preparations import Rows, described
from flnl.engine.model_file import ModelFile
from flnl.evaluation.recording import Sums
from flnl.run import checkpoint
from flnl.run.train import train
from flnl.sites import greeting, link, messages, recorded, relayed, serving, site, sockets, wire
from flnl.sites.federation import SOCKET, FederationFolder
from flnl.sites.flower_environment import Flower
from flnl.sites.greeting import HELD, HELLO, agreed
from flnl.sites.messages import OPEN, REFUSED, Parts, RefusedError
from flnl.sites.relayed import Relayed
from flnl.sites.serving import over_transport
from flnl.sites.shared import key_of
from flnl.sites.site import Door, attend
from flnl.sites.site_folder import SiteFolder
from flnl.sites.superlink import SuperLink
from tests.properties.runs import Ran, difference
from tests.sites.hospitals import QUICK, SIZES, set_values, simulated, write_data, write_federation, write_site
from tests.sites.relay_here import LostError, Node, RelayHere
from tests.sites.test_same_numbers import rows

FEDCORR = ("method=fedcorr", "method.T1=1", "method.T2=1", "method.T3=1", "fraction=0.7")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((relayed, "ASKS"), (relayed, "AGAIN"), (relayed, "LOOKS"), (greeting, "WAITS")):
        monkeypatch.setattr(module, name, 0.0)
    monkeypatch.setattr(link, "WAITS", 0.001)
    monkeypatch.setattr(link, "APPROVES", 0.02)


def door_of(folder: SiteFolder, said: list[str] | None = None) -> Door:
    return Door(folder, folder.site_data(), (lambda line: None) if said is None else said.append)


class Sites:
    """All sites, each behind a socket pair, and the relay."""

    def __init__(self, tmp_path: Path, data: Path, **values: object) -> None:
        self.federation = write_federation(tmp_path / "lung")
        self.said: dict[str, list[str]] = {name: [] for name in SIZES}
        self.folders = {name: write_site(tmp_path / f"lung-{name}", name, data, **values) for name in SIZES}
        self.doors: dict[str, Door] = {}
        self.start_again()

    def start_again(self) -> None:
        self.doors = {name: door_of(folder, self.said[name]) for name, folder in self.folders.items()}

    def handle(self, name: str, parts: Parts) -> Parts:
        """As the relay at a site hands a message over."""
        here, there = socket.socketpair()
        with here, there:
            thread = threading.Thread(target=lambda: sockets.send(here, {}, parts))
            thread.start()
            answer: list[bytes] = []
            reads = threading.Thread(target=lambda: answer.extend(sockets.receive(here)[1]))
            reads.start()
            attend(there, self.doors[name])
            thread.join()
            reads.join()
        return answer

    def nodes(self) -> Mapping[str, Node]:
        return {name: Node(lambda parts, name=name: self.handle(name, parts)) for name in SIZES}  # type: ignore[misc]

    def serve(self, output: Path, words: tuple[str, ...], nodes: Mapping[str, Node] | None = None) -> Ran:
        path = self.federation.folder / SOCKET
        transport = Relayed(sockets.listening(path, 0o600))
        RelayHere(path, self.nodes() if nodes is None else nodes).start()
        try:
            outcome = over_transport(transport, self.federation, [*QUICK, *words, f"output={output}"])
        finally:
            transport.close()
            path.unlink()
        return Ran(output, outcome.record.raw)


@pytest.fixture
def sites(tmp_path: Path, data: Path) -> Sites:
    return Sites(tmp_path, data)


def assert_same(there: Ran, here: Ran) -> None:
    assert difference(there.state.server, here.state.server) is None
    assert there.state.counters == here.state.counters


def test_a_run_over_sockets_has_the_bits_of_a_simulation(sites: Sites, data: Path, tmp_path: Path) -> None:
    """FedCorr, where every third message gets lost on its way to a site or back, until its node is started again."""
    nodes, calls = sites.nodes(), []

    def losing(name: str) -> Any:
        def handle(parts: Parts) -> Parts:
            calls.append(name)
            if len(calls) % 6 == 3:
                nodes[name].activated += "again"
                raise LostError
            answer = sites.handle(name, parts)
            if len(calls) % 6 == 0:
                nodes[name].activated += "again"
                raise LostError
            return answer

        return handle

    for name, node in nodes.items():
        node.handle = losing(name)
    there = sites.serve(tmp_path / "there", FEDCORR, nodes)
    here = simulated(data, tmp_path / "here", FEDCORR)
    assert_same(there, here)
    assert len(calls) > 12
    tables = [path for name in SIZES for path in (tmp_path / f"lung-{name}").glob("runs/*/labels.csv")]
    columns = ("given", "final", "flagged")
    told, known = (
        [[row[key] for key in columns] for row in table]
        for table in ([row for path in tables for row in rows(path)], rows(here.folder / "labels.csv"))
    )
    assert told == known
    assert not (there.folder / "labels.csv").exists()
    (model,) = (tmp_path / "lung-north").glob("runs/*/model.pt")
    assert difference(ModelFile.load(model.parent).weights, ModelFile.load(there.folder).weights) is None


def test_a_run_goes_on_with_sites_and_a_server_that_were_started_again(
    sites: Sites, data: Path, tmp_path: Path
) -> None:
    words = ("method=fedprox", "rounds=3", "fraction=0.7", "checkpoint.every=1")
    sites.serve(tmp_path / "there", (*words, "max_rounds=2"))
    sites.start_again()
    there = sites.serve(tmp_path / "there", (*words, "resume=true"))
    assert_same(there, simulated(data, tmp_path / "here", words))


def test_a_site_that_was_away_in_a_run_goes_on(sites: Sites, data: Path, tmp_path: Path) -> None:
    nodes, calls = sites.nodes(), []

    def handle(parts: Parts) -> Parts:
        calls.append(1)
        if len(calls) == 5:
            sites.start_again()
        return sites.handle("north", parts)

    nodes["north"].handle = handle
    words = ("method=fedavg", "rounds=3", "fraction=1.0")
    assert_same(sites.serve(tmp_path / "there", words, nodes), simulated(data, tmp_path / "here", words))
    assert len(calls) > 5


@pytest.mark.parametrize(
    ("kind", "at", "done"),
    [("task", 1, 1), ("record", 2, 1), ("evaluate", 2, 1), ("finish", 2, 2)],
    ids=["task", "record", "evaluate", "finish"],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_waits_ends_at_a_signal_and_goes_on(
    sites: Sites, data: Path, tmp_path: Path, kind: str, at: int, done: int, number: signal.Signals
) -> None:
    """A site is away in a round, when the last one is recorded or evaluated, or the run closed; done rounds are kept.

    Without a signal the server would wait for ``patience``.
    """
    nodes, sent = sites.nodes(), list[float]()

    def signalled() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    def handle(parts: Parts) -> Parts:
        about = site.glimpse(parts)
        if (about.get("kind"), about.get("round")) == (kind, at):
            nodes["north"].there = False
            threading.Timer(0.2, signalled).start()
            raise LostError
        return sites.handle("north", parts)

    nodes["north"].handle = handle
    words = ("method=fedprox", "rounds=2", "fraction=1.0", "checkpoint.every=10", "audit.record=true")
    there = sites.serve(tmp_path / "there", (*words, "executor.patience=0.002"), nodes)
    assert time.monotonic() - sent[0] < 4
    assert (there.record["status"], there.record["rounds"]) == ("interrupted", done)
    again = sites.serve(tmp_path / "there", (*words, "resume=true"))
    assert again.record["status"] == "finished"
    here = simulated(data, tmp_path / "here", words)
    assert_same(again, here)
    assert len([*tmp_path.glob("lung-*/runs/*/model.pt")]) == len(SIZES)
    assert recorded_in(again).rounds == (1, 2)
    sums = [recorded.sums(run / recorded.FOLDER, 2) for name in SIZES for run in tmp_path.glob(f"lung-{name}/runs/*")]
    torch.testing.assert_close(torch.cat(sums), recorded_in(here).all)  # each evaluated model once


def recorded_in(ran: Ran) -> Sums:
    found = checkpoint.newest(ran.folder / "checkpoints")
    assert found is not None
    assert found.recorded is not None
    return found.recorded


@pytest.mark.parametrize("kind", ["task", "evaluate"])
def test_a_site_whose_answer_is_too_large_is_named(
    sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Of a visit, it is as one whose model is not finite."""
    monkeypatch.setattr(messages, "LARGEST", 2 * 2**20)
    nodes = sites.nodes()

    def handle(parts: Parts) -> Parts:
        answer = list(sites.handle("north", parts))
        if site.glimpse(parts).get("kind") == kind:
            answer[-1] += bytes(2 * 2**20)
        return answer

    nodes["north"].handle = handle
    words = ("method=fedavg", "rounds=1", "fraction=1.0")
    told = "site north sent a part of 2,[0-9]{3},[0-9]{3} bytes, of which [0-9,]* are expected at most"
    if kind == "task":
        done = sites.serve(tmp_path / "there", words, nodes)
        assert re.search(f"{told}: its visit of round 1 is left out", caplog.text)
        assert (done.record["status"], done.record["left_out"]) == ("finished", 1)
    else:
        with pytest.raises(UserError, match=f"^{told}"):
            sites.serve(tmp_path / "there", words, nodes)


def test_the_server_knows_how_the_model_does_at_sites(sites: Sites, data: Path, tmp_path: Path) -> None:
    """Each site's test set is a third of the simulation's."""
    words = ("method=fedavg", "rounds=2", "fraction=1.0")
    there, here = sites.serve(tmp_path / "there", words), simulated(data, tmp_path / "here", words)
    ours, theirs = ([line for line in ran.lines if "accuracy" in line] for ran in (there, here))
    assert [line["accuracy"] for line in ours] == pytest.approx([line["accuracy"] for line in theirs])
    assert [line["test_loss"] for line in ours] == pytest.approx([line["test_loss"] for line in theirs], abs=1e-6)


def test_a_run_without_any_test_sample_is_finished(tmp_path: Path, data: Path) -> None:
    sites = Sites(tmp_path, data, min_count=1000)
    done = sites.serve(tmp_path / "there", ("method=fedavg", "rounds=1", "figures=true"))
    assert done.record["status"] == "finished"
    assert "best" not in done.record


def test_a_rehearsal_needs_no_site(sites: Sites, tmp_path: Path) -> None:
    words = ["method=fedavg", "rounds=1", *QUICK, f"output={tmp_path / 'rehearsal'}"]
    with pytest.raises(UserError, match=r"sites\.json is not there: flnl serve .* --check connects the sites"):
        serving.rehearse(sites.federation.folder, words)
    held = {name: greeting.Held.read(sites.handle(name, hello(name)), name) for name in SIZES}
    greeting.save(agreed(held, ()), sites.federation.folder)
    done = serving.rehearse(sites.federation.folder, words)
    assert done.status == "finished"
    assert done.record.raw["executor"]["name"] == "sites"


def test_a_rehearsal_lies_apart_from_runs_and_shows_no_accuracy(
    sites: Sites, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = {name: greeting.Held.read(sites.handle(name, hello(name)), name) for name in SIZES}
    greeting.save(agreed(held, ()), sites.federation.folder)
    monkeypatch.chdir(tmp_path)
    serving.rehearse(sites.federation.folder, ["method=fedavg", "rounds=1", *QUICK])
    assert next(Path("outputs").rglob("result.json")).parent.parent == Path("outputs/rehearsals")
    assert "round 1/1  no test samples" in capsys.readouterr().err


def test_sites_that_refuse_a_run_are_all_named(tmp_path: Path, data: Path) -> None:
    """Once in one line, also where one of them would have asked somebody first, who is not waited for."""
    sites = Sites(tmp_path, data, allow=["ClassLosses"])
    for name in ("north", "east"):
        sites.folders[name] = set_values(sites.folders[name].folder, allow=[])
    sites.folders["south"] = set_values(sites.folders["south"].folder, approve="ask")
    sites.start_again()
    with pytest.raises(UserError) as raised:
        sites.serve(tmp_path / "run", ("method=fednoro", "max_rounds=1"))
    assert str(raised.value) == (
        "site east, north refused: fednoro sends ClassLosses, which is not allowed there: add ClassLosses to allow in "
        "site.yaml, and start flnl site again"
    )


@pytest.mark.parametrize("word", ["dataset=digits", "partition.path=a", "executor=sequential", "noise=symmetric", "-m"])
def test_what_is_the_sites_is_not_set_at_the_server(sites: Sites, word: str) -> None:
    with pytest.raises(UserError, match=f"^{word}: "):
        serving.rehearse(sites.federation.folder, [word])


def test_a_method_that_cannot_run_is_told_before_anybody_waits(sites: Sites) -> None:
    with pytest.raises(UserError, match=r"^rounds is for methods of one stage"):
        serving.serve(sites.federation.folder, ["method=fedcorr", "rounds=60"], "nowhere")


def test_what_the_page_says_to_serve_can_run(sites: Sites) -> None:
    page = Path("docs/three_hospitals.md").read_text()
    lines = [line.partition("#")[0].split()[2:] for line in page.splitlines() if line.startswith("flnl serve ")]
    assert {"--check", "--rehearse"} < {line[0] for line in lines}
    for line in lines:
        words = [str(sites.federation.folder) if word == "lung" else word for word in line if word != "--rehearse"]
        with pytest.raises(UserError, match="not admitted yet"):
            serve.command(words)


def test_other_commands_do_not_connect_sites(sites: Sites, tmp_path: Path) -> None:
    held = {name: greeting.Held.read(sites.handle(name, hello(name)), name) for name in SIZES}
    greeting.save(agreed(held, ()), sites.federation.folder)
    words = ["dataset=sites", f"dataset.root={sites.federation.folder}", "partition=file", "noise=none"]
    cfg = compose.load([*words, "executor=served", *QUICK, f"output={tmp_path / 'run'}"])
    with pytest.raises(UserError, match="the sites are connected by flnl serve FOLDER"):
        train(cfg)
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------------------------------------------------- greeting


def hello(name: str, **other: Any) -> list[bytes]:
    about = {"wire": wire.VERSION, "flnl": __version__, "federation": "lung", "site": name, **other}
    return [messages.written(HELLO, kind="hello", **about)]


def why(parts: Parts) -> str:
    return str(messages.read_header(parts, {"refused": REFUSED, "failed": REFUSED})["why"])


def test_a_site_tells_numbers_and_form_alone(tmp_path: Path, data: Path) -> None:
    said: list[str] = []
    door = door_of(write_site(tmp_path / "n", "north", data, min_count=20), said)
    header = messages.read_header(door.handle(hello("north")), {"held": HELD})
    assert (header["size"], header["held_out"], header["classes"]) == (90, 60, tuple("0123456789"))
    assert '"shape": [1, 8, 8]' in header["inputs"]
    assert said == ["connected as north; 90 images, 10 of 10 classes; waiting for a run"]
    few = door_of(set_values(tmp_path / "n", min_count=61))
    assert messages.read_header(few.handle(hello("north")), {"held": HELD})["held_out"] == 0


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"wire": 99}, "the server has wire 99, and the site"),
        ({"flnl": "0.1"}, "the server has flnl 0.1, and the site"),
        ({"site": "south"}, "this is lung/north, not lung/south"),
        ({"federation": "skin"}, "this is lung/north, not skin/north"),
    ],
)
def test_a_site_refuses_another_server(tmp_path: Path, data: Path, other: dict[str, Any], reason: str) -> None:
    door = door_of(write_site(tmp_path / "n", "north", data))
    assert reason in why(door.handle(hello("north", **other)))


@pytest.mark.parametrize(
    "parts", [[], [b""], [b"nonsense"], [wire.written({"kind": "hello"})], [wire.written(3), b"x"]]
)
def test_what_is_no_message_is_refused(tmp_path: Path, data: Path, parts: list[bytes]) -> None:
    assert why(door_of(write_site(tmp_path / "n", "north", data)).handle(parts))


@pytest.mark.parametrize("first", [b"", b"x"])
def test_who_sends_a_header_that_is_too_large_is_named(tmp_path: Path, data: Path, first: bytes) -> None:
    """At the site the server, at the server the site; a header that is there, and one that is only said to be."""
    length = 14 * 2**20
    parts = [wire.MAGIC + length.to_bytes(8, "little") + first * length]
    said: list[str] = []
    answer = why(door_of(write_site(tmp_path / "n", "north", data), said).handle(parts))
    assert answer == "the server sent a header of 14,680,064 bytes, of which 1,048,576 are expected at most"
    assert said == [f"refused: {answer}"]
    with pytest.raises(UserError, match=r"^site north sent a header of 14,680,064 bytes"):
        greeting.Held.read(parts, "north")


@pytest.mark.parametrize(
    ("name", "sizes", "told"),
    [
        ("", [300 * 2**20], "a part of 314,572,800 bytes, of which 67,108,864 are expected at most"),
        ("", [300, 300 * 2**20], "no frame of this version"),
        ("none", [0, 300 * 2**20], "the server has not opened this run here"),
        ("known", [0, 300 * 2**20], r"a part of 314,572,800 bytes, of which 1,05\d,\d{3} are expected at most"),
        ("known", [0, 10, 300 * 2**20], "a part of 314,572,800 bytes, of which 0 are expected"),
    ],
)
def test_what_a_site_cannot_use_fills_no_memory(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, name: str, sizes: list[int], told: str
) -> None:
    """A server that says what comes, and sends it: 300 MiB cost 8 MiB at most, and are answered."""
    sites = Sites(tmp_path, data, approve="ask")
    header, door = opening(sites, monkeypatch), sites.doors["north"]
    sites.folders["north"].approve(header["key"])
    door.handle([messages.written(OPEN, **header)])
    run = header["run"] if name == "known" else name
    first = messages.written(messages.EVALUATE, kind="evaluate", run=run, round=1) if name else b""
    sizes, piece = [len(first) or sizes[0], *sizes[1:]], bytes(2**20)
    here, there = socket.socketpair()

    def send() -> None:
        text = json.dumps({"sizes": sizes}).encode()
        here.sendall(len(text).to_bytes(4, "little") + text + first)
        left = sum(sizes) - len(first)
        while left:
            here.sendall(piece[:left])
            left -= min(left, len(piece))

    with here, there:
        thread = threading.Thread(target=send)
        thread.start()
        tracemalloc.start()
        try:
            attend(there, door)
            assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
        finally:
            tracemalloc.stop()
        thread.join()
        assert re.search(told, why(sockets.receive(here)[1]))


def test_a_stranger_writes_no_line_of_the_sites(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by a name nor by a long text: a person approves what stands there."""
    forged = "to approve: flnl site north --approve 0000"
    said: list[str] = []
    door = door_of(write_site(tmp_path / "n", "north", data), said)
    assert why(door.handle(hello("north", federation=forged))) == "a federation or a site has no such name"
    assert not [line for line in said if "0000" in line]
    for columns in (40, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        for filled in ("x", "\uff0e", "\u3164", "\u0903", "\U0001f3fb", "\u3248"):
            print_rows(f"refused: {filled * 120}{forged}")
            first, *rest = capsys.readouterr().out.splitlines()
            assert first.startswith("refused: ")
            assert all(line.startswith("  | ") for line in rest)
            assert max(sum(1 + (not sign.isascii()) for sign in row) for row in (first, *rest)) < min(columns, 80)


def test_whatever_goes_wrong_with_a_message_a_site_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any, **more: Any) -> Any:
        raise ValueError("what nobody thought of")

    monkeypatch.setattr(sockets, "receive", wrong)
    here, there = socket.socketpair()
    with here, there:
        attend(there, cast(Door, None))


def test_sites_that_differ_are_named(sites: Sites, data: Path) -> None:
    held = {name: greeting.Held.read(sites.handle(name, hello(name)), name) for name in SIZES}
    assert agreed(held, ()).sizes == SIZES
    with pytest.raises(UserError, match=r"^east has other classes than the federation"):
        agreed(held, ("a", "b"))
    words = ["dataset=arrays", "dataset.normalize=none", f"dataset.root={data}", "dataset.file=north.npz"]
    other = door_of(set_values(sites.folders["north"].folder, data=words))
    held["north"] = greeting.Held.read(other.handle(hello("north")), "north")
    with pytest.raises(UserError) as raised:
        agreed(held, ())
    assert str(raised.value) == (
        "sites have samples of different size or preparation: mean [0.5] at east and south, [0.0] at north; "
        "std [0.5] at east and south, [1.0] at north"
    )


def test_sites_that_differ_in_one_of_many_columns_differ() -> None:
    """Also where that is not among the digits that a message shows."""
    means = [[0.5] * 100, [*[0.5] * 40, 0.25, *[0.5] * 59]]
    rows = [Rows(100, tuple(mean), (1.0,) * 100) for mean in means]
    held = {
        name: greeting.Held(9, 0, ("a", "b"), Inputs([100], [], "float32", described(one)))
        for name, one in zip(("east", "north"), rows, strict=True)
    }
    with pytest.raises(UserError, match=r"different size or preparation: mean \[.* at east, \[.* at north"):
        agreed(held, ())


def test_a_check_connects_sites_and_keeps_what_they_have(
    sites: Sites, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def connected(superlink: SuperLink) -> Iterator[Relayed]:
        path = sites.federation.folder / SOCKET
        transport = Relayed(sockets.listening(path, 0o600))
        RelayHere(path, sites.nodes()).start()
        yield transport
        transport.close()

    monkeypatch.setattr(SuperLink, "connected", connected)
    monkeypatch.setattr(FederationFolder, "demand_all", lambda federation: None)
    monkeypatch.setattr(Flower, "found", lambda given: None)
    serving.check(sites.federation.folder)
    assert Told.read(sites.federation.folder).sizes == SIZES
    said = capsys.readouterr()
    assert "sites: east 40, north 90, south 1\n" in said.err
    assert said.out == (
        "10 classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9\n"
        "samples of shape 1 x 8 x 8\n"
        "test samples that sites score models on: 180\n"
    )


def test_classes_are_found_by_name(tmp_path: Path, data: Path) -> None:
    names = [*"9876543210", "other"]
    site = write_site(tmp_path / "n", "north", data, classes=names)
    ours, theirs = site.site_data().dataset, write_site(tmp_path / "m", "north", data).site_data().dataset
    assert ours.classes == tuple(names)
    assert ours.given is not None
    assert theirs.given is not None
    assert (ours.given == 9 - theirs.given).all()
    with pytest.raises(UserError, match="classes has no '9', which is a class of the data"):
        set_values(site.folder, classes=[*"012345678"]).site_data()


def test_data_that_cannot_be_read_are_named(tmp_path: Path, data: Path) -> None:
    site = write_site(tmp_path / "n", "north", data)
    with pytest.raises(UserError, match=r"n/site\.yaml: data: .*none\.npz"):
        set_values(site.folder, data=["dataset=arrays", f"dataset.root={data}", "dataset.file=none.npz"]).site_data()
    with pytest.raises(UserError, match=r"n/site\.yaml: data: .*dataset\.root"):
        set_values(site.folder, data=["dataset=image_folder"]).site_data()


# ------------------------------------------------------------------------------------------------------------- approval


def test_a_run_waits_until_somebody_approves_it(tmp_path: Path, data: Path) -> None:
    """And what it would send is said before; once approved, it is for good."""
    sites = Sites(tmp_path, data, approve="ask", allow=["ClassLosses"])
    approving = {name: threading.Thread(target=approve, args=(sites, name)) for name in SIZES}
    for thread in approving.values():
        thread.start()
    words = ("method=fednoro", "max_rounds=1")
    done = sites.serve(tmp_path / "there", words)
    assert done.record["status"] == "stopped"
    for name, thread in approving.items():
        thread.join()
        lines = sites.said[name]
        begins = lines.index(next(line for line in lines if line.startswith("lung asks for fednoro, ")))
        assert any("ClassLosses" in line and "(may tell of labels" in line for line in lines[begins:])
        assert "  sites: 3, of which 3 hold samples" in lines[begins:]
        assert "approved" in lines[begins:]
    sites.start_again()
    before = {name: len(said) for name, said in sites.said.items()}
    assert sites.serve(tmp_path / "there", (*words[:1], "resume=true", "max_rounds=2")).record["rounds"] == 2
    assert not [line for name, said in sites.said.items() for line in said[before[name] :] if "to approve" in line]


def approve(sites: Sites, name: str) -> None:
    """As ``flnl site FOLDER --approve KEY`` in another terminal, once the key is known."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for line in sites.said[name]:
            if line.startswith("to approve: "):
                sites.folders[name].approve(line.split()[-1])
                return
        time.sleep(0.01)


def test_a_run_that_nobody_approves_is_refused(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "APPROVES", 0.05)
    sites = Sites(tmp_path, data, approve="ask")
    with pytest.raises(UserError, match=r"^site .*east.* refused: this run is not approved; its key is [0-9a-f]{64}"):
        sites.serve(tmp_path / "there", ("method=fedavg", "rounds=1"))
    assert not (tmp_path / "there").exists()


def test_another_configuration_waits_again(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "APPROVES", 0.05)
    sites = Sites(tmp_path, data, approve="ask")
    for folder in sites.folders.values():
        folder.approve("a" * 64)
    with pytest.raises(UserError, match="is not approved"):
        sites.serve(tmp_path / "there", ("method=fedavg", "rounds=1"))


def refuse() -> None:
    raise RefusedError("this run is not approved")


def opening(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The message with which a server opens a run at north, where nobody approves it."""
    door, seen = sites.doors["north"], list[dict[str, Any]]()

    def look(header: Mapping[str, Any]) -> None:
        seen.append(dict(header))
        refuse()

    for other in ("east", "south"):
        monkeypatch.setattr(sites.doors[other], "_ask", lambda header: refuse())
    with monkeypatch.context() as within:
        within.setattr(door, "_ask", look)
        with pytest.raises(UserError, match="is not approved"):
            sites.serve(sites.federation.folder.parent / "there", ("method=fedavg", "rounds=1"))
    return seen[0]


def test_a_key_is_shown_with_its_own_configuration_alone(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or who approves what is shown approves another run."""
    sites = Sites(tmp_path, data, approve="ask")
    header = opening(sites, monkeypatch)
    sites.said["north"].clear()
    answer = sites.doors["north"].handle([messages.written(OPEN, **{**header, "key": "b" * 64})])
    assert why(answer) == "the key is not that of the configuration"
    assert not [line for line in sites.said["north"] if "to approve" in line or "asks for" in line]


def test_a_configuration_that_cannot_be_built_ends_no_site(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a network that no machine can hold, and that is not made before it is approved.

    The server is told the kind of error alone; meanwhile the site answers others.
    """
    sites = Sites(tmp_path, data, approve="ask")
    header = opening(sites, monkeypatch)
    config = json.loads(header["config"])
    config["model"]["hidden"] = [2**40, 2**40]
    text = json.dumps(config)
    header |= {"config": text, "key": key_of(text, header["classes"], header["clients"], header["holders"])}
    for _ in range(2):
        answer = sites.doors["north"].handle([messages.written(OPEN, **header)])
        waiting = messages.read_header(answer, {"waiting": REFUSED})["why"]
        assert waiting == f"this run is not approved; its key is {header['key']}"
        assert messages.read_header(sites.doors["north"].handle(hello("north")), {"held": HELD})
    assert sum("to approve" in line for line in sites.said["north"]) == 1
    assert any(str(2**40) in line for line in sites.said["north"])
    sites.folders["north"].approve(header["key"][:12])
    answer = sites.doors["north"].handle([messages.written(OPEN, **header)])
    assert messages.read_header(answer, {"failed": REFUSED})["why"] in ("RuntimeError", "MemoryError")


@pytest.mark.parametrize(
    "values",
    [{"size": 2**39}, {"held_out": 2**39}, {"inputs": "[]"}, {"inputs": "3"}, {"inputs": "{}"}, {"inputs": "null"}]
    + [
        {"inputs": json.dumps({"shape": [1, 8, 8], "larger": 3, "stored": "uint8", "preparation": what})}
        for what in ({}, {"a": 1}, {"size": None}, 1)
    ],
    ids=str,
)
def test_what_a_site_has_in_place_of_samples_is_told_with_its_name(sites: Sites, values: dict[str, Any]) -> None:
    said = messages.read_header(sites.handle("north", hello("north")), {"held": HELD})
    with pytest.raises(UserError, match=r"^site north sent "):
        greeting.Held.read([messages.written(HELD, **{**said, **values})], "north")


@pytest.mark.parametrize("threads", ["many", 5000])
def test_a_wrong_number_of_threads_ends_no_site(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, threads: object
) -> None:
    """Nor is it used."""
    sites, before = Sites(tmp_path, data, approve="ask"), torch.get_num_threads()
    header = opening(sites, monkeypatch)
    sites.folders["north"] = set_values(sites.folders["north"].folder, approve="any")
    sites.start_again()
    text = json.dumps({**json.loads(header["config"]), "threads": threads})
    header |= {"config": text, "key": key_of(text, header["classes"], header["clients"], header["holders"])}
    for _ in range(2):
        assert "threads" in why(sites.handle("north", [messages.written(OPEN, **header)]))
    assert torch.get_num_threads() == before


def test_a_server_that_begins_anew_has_its_run_shown_again(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half hour is that of the server that waits, not of one that was stopped before."""
    sites = Sites(tmp_path, data, approve="ask")
    header, seconds = opening(sites, monkeypatch), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])

    def asks(after: float) -> str:
        seconds[0] += after
        answer = sites.doors["north"].handle([messages.written(OPEN, **header)])
        return str(messages.read_header(answer, {"waiting": REFUSED, "refused": REFUSED})["kind"])

    sites.said["north"].clear()
    assert [asks(0.0), *(asks(site.GONE / 2) for _ in range(20))] == ["waiting"] * 21
    assert sum("to approve" in line for line in sites.said["north"]) == 1
    assert asks(site.APPROVES) == "waiting"
    assert sum("to approve" in line for line in sites.said["north"]) == 2
    assert [asks(site.GONE / 2) for _ in range(32)] == ["waiting"] * 30 + ["refused", "waiting"]


@pytest.fixture(autouse=True)
def _threads_of_before() -> Iterator[None]:
    """A site takes the number of threads from the run."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
