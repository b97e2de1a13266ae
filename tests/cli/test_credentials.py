"""``dataset.mirror=https://user:secret@host/``: the host is told, and nobody else: no message, record or file."""

import base64
import gzip
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from flnl.console import credentials
from flnl.console.credentials import VARIABLE, of_host, put_aside, redacted, redacted_in, separated
from flnl.core.errors import UserError
from flnl.data.datasets.download import fetch
from tests.cli.conftest import Command, Launch, resuming_words

USER, SECRET = "me", "s3cr%2Ft"  # as a URL has it; the password is s3cr/t
TOLD = "Basic " + base64.b64encode(b"me:s3cr/t").decode()
RUN = (
    "dataset=mnist",
    "dataset.root=data",
    "dataset.verify=false",
    "partition.num_clients=2",
    "model=mlp",
    "model.hidden=[4]",
    "method=fedavg",
    "rounds=2",
    "train.batch_size=10",
    "figures=false",
)


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test puts aside is forgotten with it."""
    monkeypatch.setenv(VARIABLE, "{}")


class Host:
    """A host that gives files to who knows its password, and sends others to another host where it has one."""

    def __init__(self, files: dict[str, bytes], elsewhere: str | None = None) -> None:
        self.told: list[str | None] = []
        host = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                host.told.append(self.headers.get("Authorization"))
                if elsewhere is not None:
                    self.send_response(302)
                    self.send_header("Location", elsewhere + self.path)
                    self.end_headers()
                elif host.told[-1] in (TOLD, None) and (content := files.get(self.path.strip("/"))) is not None:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                else:
                    self.send_error(401)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.name = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def mnist() -> Iterator[Host]:
    """A mirror of forty images in MNIST's form."""
    rng, files = np.random.default_rng(0), {}
    for split in ("train", "t10k"):
        pixels = rng.integers(0, 256, (40, 28, 28), np.uint8)
        images = np.array([2051, 40, 28, 28], ">i4").tobytes() + pixels.tobytes()
        labels = np.array([2049, 40], ">i4").tobytes() + bytes(i % 10 for i in range(40))
        files[f"{split}-images-idx3-ubyte.gz"] = gzip.compress(images)
        files[f"{split}-labels-idx1-ubyte.gz"] = gzip.compress(labels)
    host = Host(files)
    yield host
    host.close()


def mirror(host: Host, word: str = f"{USER}:{SECRET}") -> str:
    return f"dataset.mirror=http://{word}@{host.name}/"


def leaks(folder: Path) -> list[str]:
    """The files below a folder that hold the password, as it was written or as it is."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [str(path) for path in files if any(text in path.read_bytes() for text in (SECRET.encode(), b"s3cr/t"))]


# ------------------------------------------------------------------------------------------------------ the functions


def test_every_form_of_credentials_is_hidden() -> None:
    for name in ("me:secret", "token", "me:", "me:p%40w@x", ":secret", "me:a,b[c]"):
        assert redacted(f"see https://{name}@host:80/a?b=c, or ftp://{name}@host.") == (
            "see https://***@host:80/a?b=c, or ftp://***@host."
        )
    for text in ("https://host/a@b", "me@host", "/a folder/@x", "file:///a@b", "a://", "https://***@host/"):
        assert redacted(text) == text
    found = redacted_in({"a": [("https://me:secret@host/", 1)], "https://me:secret@host/": None})
    assert found == {"a": [("https://***@host/", 1)], "https://***@host/": None}


@pytest.mark.parametrize(
    "written",
    [
        "me:s3cr/t",
        "me:s3cr?t",
        "me:s3cr#t",
        "me:/?#@s3cr:t",
        "me@mail:s3/cr@t",
        "me:s3'cr/t",
        ":s3cr/t",
        "me:a://s3crt",
    ],
)
def test_a_password_with_any_sign_is_hidden_and_the_host_gets_it(written: str) -> None:
    """Such signs should be written %2F and so on; who pastes a password must not see it printed."""
    for host in ("host", "host:80", "[::1]:80"):
        url = f"https://{written}@{host}/a"
        assert put_aside([f"dataset.mirror=[{url},https://b:c@other]"]) == [
            f"dataset.mirror=[https://***@{host}/a,https://***@other]"
        ]
        assert (of_host(host), of_host("other")) == (written, "b:c")
        assert redacted(f"{url}: not found; see https://host:80/b@c, https://host/d:e@f, https://[::1]:80/g@h") == (
            f"https://***@{host}/a: not found; see https://host:80/b@c, https://host/d:e@f, https://[::1]:80/g@h"
        )
        assert separated(url) == (f"https://{host}/a", written)


def test_a_password_with_a_slash_is_sent_as_it_is(tmp_path: Path) -> None:
    host = Host({"a.bin": b"pixels"})
    try:
        fetch(tmp_path / "a.bin", [f"http://me:s3cr/t@{host.name}/a.bin"], 5.0)
    finally:
        host.close()
    assert host.told == [TOLD]


def test_words_lose_them_and_the_host_gets_them() -> None:
    words = ["seed=1", "dataset.mirror=https://me:a@One:8080/x", "+a=[https://b@two/,ftp://c:d@three]"]
    assert put_aside(words) == [
        "seed=1",
        "dataset.mirror=https://***@One:8080/x",
        "+a=[https://***@two/,ftp://***@three]",
    ]
    assert (of_host("one:8080"), of_host("ONE:8080"), of_host("one")) == ("me:a", "me:a", None)
    assert (of_host("two"), of_host("three")) == ("b", "c:d")
    assert put_aside(["x=https://***@two/"]) == ["x=https://***@two/"]
    assert of_host("two") == "b", "what is hidden says nothing new"


@pytest.mark.parametrize("damage", ["", "[1]", "{", "null"])
def test_a_variable_that_is_none_of_ours_is_no_trouble(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(credentials.VARIABLE, damage)
    assert of_host("host") is None


# ----------------------------------------------------------------------------------------------------------- fetching


def test_the_host_is_told_and_no_other(tmp_path: Path) -> None:
    """Neither in an address, nor where it sends us on to."""
    there = Host({"a.bin": b"pixels"})
    here = Host({}, elsewhere=f"http://{there.name}")
    try:
        fetch(tmp_path / "a.bin", [f"http://{USER}:{SECRET}@{here.name}/a.bin"], 5.0)
    finally:
        here.close()
        there.close()
    assert (tmp_path / "a.bin").read_bytes() == b"pixels"
    assert (here.told, there.told) == ([TOLD], [None])


def test_what_cannot_be_fetched_is_named_without_them(tmp_path: Path) -> None:
    for port in ("1", "x"):  # nobody listens, and no port
        with pytest.raises(UserError) as caught:
            fetch(tmp_path / "a.bin", [f"http://{USER}:{SECRET}@127.0.0.1:{port}/a.bin"], 5.0)
        assert f"http://***@127.0.0.1:{port}/a.bin" in str(caught.value)
        assert SECRET not in str(caught.value)
        assert "s3cr/t" not in str(caught.value)


def test_a_wrong_password_is_a_line(tmp_path: Path, mnist: Host, command: Command) -> None:
    said = command(*RUN, mirror(mnist, "me:n0tit"), "wandb.mode=disabled")
    assert said.code == 2
    assert said.err.endswith("yourself\n")
    assert "HTTP Error 401" in said.err
    assert "n0tit" not in said.err
    assert f"http://***@{mnist.name}/" in said.err


# --------------------------------------------------------------------------------------------------- a run, and sweeps


def test_no_file_and_no_line_of_a_run_holds_them_and_it_goes_on(mnist: Host, launch: Launch, tmp_path: Path) -> None:
    """W&B's own files included. The command that is printed goes on as long as nothing has to be fetched."""
    first = launch(*RUN, mirror(mnist), "max_rounds=1", "output=run", "wandb.mode=offline").wait()
    assert first.code == 0, first.err
    assert f"\nfetching http://***@{mnist.name}/" in f"\n{first.err}", "a download is announced"
    assert set(mnist.told) == {TOLD}
    assert SECRET not in first.err + first.out
    assert (tmp_path / "run" / "wandb").is_dir()
    assert leaks(tmp_path) == []
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert record["config"]["dataset"]["mirror"] == f"http://***@{mnist.name}/"
    assert mirror(mnist, "***") in record["overrides"]
    words = resuming_words(first)
    assert mirror(mnist, "***") in words
    asked = len(mnist.told)
    assert launch(*words).wait().code == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "finished"
    assert len(mnist.told) == asked
    assert leaks(tmp_path) == []


def test_what_was_hidden_has_to_be_written_again_where_data_are_missing(mnist: Host, command: Command) -> None:
    said = command(*RUN, mirror(mnist, "***"), "wandb.mode=disabled")
    assert said.code == 2
    assert "write them again in place of ***" in said.err
    assert mnist.told == []


def test_a_failing_run_keeps_them_to_itself(
    mnist: Host, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an error speaks of them, and a traceback."""

    def fail(*args: object, **kwargs: object) -> None:
        raise ValueError(f"cannot do http://{USER}:{SECRET}@host/")

    monkeypatch.setattr("flnl.engine.loop.rounds", fail)
    said = command(*RUN, mirror(mnist), "output=run", "wandb.mode=disabled")
    assert said.code == 1
    assert "http://***@host/" in said.err
    assert SECRET not in said.err
    assert {"result.json", "config.yaml", "error.log"} <= {path.name for path in (tmp_path / "run").iterdir()}
    assert leaks(tmp_path) == []


def test_a_run_that_is_called_as_a_function_records_none(mnist: Host, tmp_path: Path, monkeypatch) -> None:
    """No command has put them aside then."""
    from flnl.config import compose
    from flnl.run.train import train

    monkeypatch.chdir(tmp_path)
    words = [*RUN, mirror(mnist), "output=run", "wandb.mode=disabled", "rounds=1"]
    train(compose.load([*words, f"cache={tmp_path / 'cache'}"]), words)
    assert set(mnist.told) == {TOLD}
    assert leaks(tmp_path) == []


def test_no_file_of_a_sweep_holds_them(mnist: Host, command: Command, tmp_path: Path) -> None:
    """Hydra's multirun.yaml has the command, too."""
    words = (*RUN, mirror(mnist), "wandb.mode=disabled", "max_rounds=1", "hydra.sweep.dir=sweep", "seed=1,2")
    said = command("-m", *words)
    assert said.code == 0, said.err
    assert SECRET not in said.err + said.out
    assert (tmp_path / "sweep" / "multirun.yaml").is_file()
    assert mirror(mnist, "***") in json.loads((tmp_path / "sweep" / "sweep.json").read_text())["command"]
    assert leaks(tmp_path) == []


def test_a_file_of_choices_holds_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other commands hand their arguments on as well; that of the papers' tables writes them down."""
    from flnl.commands import tables as tables

    given: list[str] = []
    monkeypatch.setattr(tables, "command", given.extend)
    monkeypatch.setattr("sys.argv", ["flnl tables", "tune", "--", f"dataset.mirror=https://{USER}:{SECRET}@host/"])
    tables.main()
    assert given == ["tune", "--", "dataset.mirror=https://***@host/"]


def test_help_shows_none(command: Command) -> None:
    said = command("--help", "dataset=mnist", f"dataset.mirror=https://{USER}:{SECRET}@host/")
    assert said.code == 0
    assert "https://***@host/" in said.out
    assert SECRET not in said.out


def test_workers_of_a_sweep_inherit_them(monkeypatch: pytest.MonkeyPatch) -> None:
    put_aside(["x=https://me:secret@host/"])
    assert json.loads(os.environ[VARIABLE]) == {"host": "me:secret"}
