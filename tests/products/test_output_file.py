"""``--csv FILE`` and the like: devices, pipes and links get what is written, and stay what they are."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from flnl.commands import audit as audit_program
from flnl.commands import card, predict
from flnl.commands import compare as program
from flnl.commands import tune as tune_program
from flnl.core.errors import DiskFullError, UserError
from flnl.core.special import is_special
from flnl.storage.output_file import check_folder, check_output, save_output, write_output
from tests.products.conftest import Commands, Own
from tests.products.test_compare import made
from tests.properties.runs import Ran

ROOT = Path(__file__).resolve().parents[2]
COMPARE = SimpleNamespace(main=program.main, __name__="flnl.instruments.compare")


class Reader:
    """Reads a pipe to its end, in a thread: opening one for writing waits for it."""

    def __init__(self, pipe: Path) -> None:
        os.mkfifo(pipe)
        self.content = b""
        self._thread = threading.Thread(target=lambda: setattr(self, "content", pipe.read_bytes()), daemon=True)
        self._thread.start()

    def all(self) -> bytes:
        self._thread.join(20)
        assert not self._thread.is_alive(), "nobody has written"
        return self.content


def test_a_file_is_written_whole_and_a_folder_is_refused(tmp_path: Path) -> None:
    write_output(tmp_path / "a.csv", b"one")
    write_output(tmp_path / "a.csv", b"2")
    assert (tmp_path / "a.csv").read_bytes() == b"2"
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    with pytest.raises(OSError, match="directory"):
        write_output(tmp_path, b"3")
    with pytest.raises(FileNotFoundError):
        write_output(tmp_path / "gone" / "a.csv", b"3")


def test_a_file_that_cannot_be_written_is_named_and_a_full_disk_is_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path, tmp_path / "gone" / "a.csv", tmp_path / ("x" * 300) / "a.csv"):
        with pytest.raises(UserError, match="--csv it"):
            save_output("--csv it", path, b"3")
        with pytest.raises(UserError, match="--csv it"):
            check_output("--csv it", path)
    check_output("--csv it", tmp_path / "a.csv")
    assert not list(tmp_path.iterdir())

    def full(path: Path, data: bytes) -> None:
        raise DiskFullError(28, "no space")

    monkeypatch.setattr("flnl.storage.output_file.write_output", full)
    with pytest.raises(DiskFullError):
        save_output("--csv it", tmp_path / "a.csv", b"3")


def test_what_is_written_through_needs_no_place_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link's target may be written where the link lies in a read-only folder, and so may redirected output."""
    held, fixed = tmp_path / "held", tmp_path / "fixed"
    held.mkdir()
    fixed.mkdir()
    (fixed / "link").symlink_to(held / "a.csv")
    (fixed / "lost").symlink_to(tmp_path / "gone" / "a.csv")
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != fixed)
    check_output("--csv it", fixed / "link")
    for name in ("lost", "own"):
        with pytest.raises(UserError, match="--csv it"):
            check_output("--csv it", fixed / name)
    script = (
        "import os; from pathlib import Path; from flnl.storage.output_file import check_output;"
        "os.access = lambda *_: False; check_output('--csv it', Path('/dev/stdout')); print('as it should')"
    )
    with (held / "printed").open("w") as file:
        subprocess.run([sys.executable, "-c", script], stdout=file, cwd=ROOT, check=True)
    assert (held / "printed").read_text() == "as it should\n"


@pytest.mark.parametrize("option", ["--csv", "--markdown", "--latex", "--figure"])
def test_where_a_file_cannot_be_written_compare_reads_nothing(
    option: str, said: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = said(COMPARE, "no run", option, "gone/t.png")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"error: {option} gone/t.png: there is no folder gone\n"


def test_where_the_table_cannot_be_written_predict_reads_nothing(
    said: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = said(predict, "no run", "no image.jpg", "--csv", "gone/t.csv")
    assert (answer.code, answer.err) == (2, "error: --csv gone/t.csv: there is no folder gone\n")


def test_a_pipe_gets_everything_and_stays_a_pipe(tmp_path: Path) -> None:
    reader, data = Reader(tmp_path / "pipe"), os.urandom(300_000)  # more than a pipe holds
    write_output(tmp_path / "pipe", data)
    assert reader.all() == data
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert is_special(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices, and only root could replace one")
def test_a_device_stays_a_device(tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no devices can be made here")
    write_output(tmp_path / "null", b"one")
    assert stat.S_ISCHR((tmp_path / "null").stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["null"]


def test_the_system_s_devices() -> None:
    """A link to one, too: nothing is renamed in /dev."""
    before = Path("/dev/null").stat()
    write_output(Path("/dev/null"), b"one")
    assert os.path.samestat(before, Path("/dev/null").stat())
    with pytest.raises(DiskFullError, match="the disk is full"):
        write_output(Path("/dev/full"), b"one")


def test_a_link_stays_and_the_file_behind_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "there.csv").write_bytes(b"before")
    for name in ("there.csv", "not yet.csv"):
        (tmp_path / f"to {name}").symlink_to(Path("folder") / name)
        (tmp_path / f"to to {name}").symlink_to(f"to {name}")
        write_output(tmp_path / f"to to {name}", b"after")
        assert (tmp_path / "folder" / name).read_bytes() == b"after"
        assert (tmp_path / f"to {name}").is_symlink()
        assert (tmp_path / f"to to {name}").is_symlink()
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["not yet.csv", "there.csv"]
    (tmp_path / "null.csv").symlink_to("/dev/null")
    write_output(tmp_path / "null.csv", b"after")
    assert (tmp_path / "null.csv").is_symlink()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        write_output(tmp_path / "loop", b"after")


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("to_a_file", [False, True])
def test_what_the_process_prints_to_gets_it_in_order(number: int, to_a_file: bool, tmp_path: Path) -> None:
    """Also where the shell has sent it to a file, which must not be replaced, emptied or written over."""
    stream, name = {1: "stdout", 2: "stderr"}[number], {1: "/dev/stdout", 2: "/dev/stderr"}[number]
    code = (
        f"from sys import {stream} as stream; from pathlib import Path; "
        f"from flnl.storage.output_file import write_output; "
        f"print('before', file=stream); write_output(Path('{name}'), b'table\\n'); print('after', file=stream)"
    )
    environment: dict[str, Any] = {"env": {**os.environ, "PYTHONPATH": str(ROOT / "src")}, "cwd": tmp_path}
    if to_a_file:
        with (tmp_path / "all").open("wb") as file:
            environment[stream] = file
            subprocess.run([sys.executable, "-c", code], check=True, **environment)
        found = (tmp_path / "all").read_bytes()
    else:
        found = getattr(subprocess.run([sys.executable, "-c", code], capture_output=True, **environment), stream)
    assert found == b"before\ntable\nafter\n"


# ---------------------------------------------------------------------------------------------------- the commands


def test_predict_writes_its_table_to_a_pipe(own: Own, tmp_path: Path, said: Commands) -> None:
    reader = Reader(tmp_path / "pipe.csv")
    image = own.root / "test" / "blue"
    assert said(predict, own.ran.folder, image, "--csv", tmp_path / "pipe.csv").code == 0
    assert said(predict, own.ran.folder, image, "--csv", tmp_path / "file.csv").code == 0
    assert reader.all() == (tmp_path / "file.csv").read_bytes() != b""


@pytest.mark.parametrize("option", ["csv", "markdown", "latex"])
def test_compare_writes_tables_to_pipes_and_through_links(
    option: str, tmp_path: Path, said: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "a")
    reader = Reader(tmp_path / "pipe")
    Path("link").symlink_to("file")
    for name in ("pipe", "link", "/dev/null"):
        assert said(COMPARE, "a", f"--{option}", name, "--figure", "none").code == 0
    assert reader.all() == Path("file").read_bytes() != b""
    assert Path("link").is_symlink()


def test_compare_draws_into_a_pipe(tmp_path: Path, said: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """One needs no suffix and gets PNG; a file needs one."""
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "a", curve=(0.2, 0.4))
    plain, vector = Reader(tmp_path / "pipe"), Reader(tmp_path / "pipe.svg")
    assert said(COMPARE, "a", "--figure", "pipe").code == 0
    assert said(COMPARE, "a", "--figure", "pipe.svg").code == 0
    assert plain.all().startswith(b"\x89PNG")
    assert plain.all().endswith(b"IEND\xaeB`\x82")
    assert b"</svg>" in vector.all()
    assert said(COMPARE, "a", "--figure", "file").code == 2
    assert said(COMPARE, "a", "--figure", "/dev/null").code == 0


def test_the_card_of_a_federation(tmp_path: Path, said: Commands) -> None:
    """Written through links in its folder; a folder that is none is refused in one line."""
    module = SimpleNamespace(main=card.main, __name__="flnl.data.federation.build")
    folder = tmp_path / "card"
    folder.mkdir()
    (folder / "card.json").symlink_to(tmp_path / "elsewhere.json")
    (folder / "card.md").symlink_to("/dev/null")
    reader = Reader(folder / "federation.png")
    assert said(module, "dataset.train_size=100", f"output={folder}", f"cache={tmp_path / 'cache'}").code == 0
    assert (tmp_path / "elsewhere.json").read_text().startswith('{"dataset": "digits"')
    assert (folder / "card.json").is_symlink()
    assert (folder / "card.md").is_symlink()
    assert reader.all().startswith(b"\x89PNG")
    for place in ("/dev/null", tmp_path / "elsewhere.json"):
        answer = said(module, "dataset.train_size=100", f"output={place}", f"cache={tmp_path / 'cache'}")
        assert answer.code == 2
        assert answer.err == f"error: output={place}: {place} is no folder\n"
    assert Path("/dev/null").is_char_device()


def test_an_image_that_is_none_of_these_is_read_as_ever(own: Own, tmp_path: Path, said: Commands) -> None:
    """Links to images are images."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "b.png").symlink_to("a.png")
    answer = said(predict, own.ran.folder, tmp_path)
    assert (answer.code, answer.err) == (0, "")
    assert [line.split("\t")[0] for line in answer.out.splitlines()[1:]] == [str(tmp_path / f"{n}.png") for n in "ab"]


@pytest.mark.parametrize("words", [("tune", "--out"), ("tune", "--markdown"), ("audit",), ("card",)])
def test_a_folder_that_takes_no_files_is_noticed_before_the_work(
    words: tuple[str, ...], fedavg: Ran, tmp_path: Path, said: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everywhere by its permissions; the system's own folders take no file nevertheless."""
    monkeypatch.chdir(tmp_path)
    arguments = {
        "tune": ("method=fedavg", "train.lr=0.1,0.2", words[-1], "/proc/x.json"),
        "audit": (fedavg.folder, "--out", "/proc/x"),
        "card": ("dataset.train_size=100", "output=/proc/x"),
    }
    programs = {
        "tune": SimpleNamespace(main=tune_program.main, __name__="flnl.instruments.tune"),
        "audit": SimpleNamespace(main=audit_program.main, __name__="flnl.audit"),
        "card": SimpleNamespace(main=card.main, __name__="flnl.data.federation.build"),
    }
    for work in (
        "flnl.instruments.tune.runs.Runs.grids",
        "flnl.audit.performing.examine",
        "flnl.data.federation.build.from_config",
    ):
        monkeypatch.setattr(work, lambda *_, **__: pytest.fail("it has begun"))
    answer = said(programs[words[0]], *arguments[words[0]])
    assert answer.code == 2
    assert "/proc/x" in answer.err
    assert "cannot be written" in answer.err
    assert answer.err.count("\n") == 1


def test_a_folder_that_can_be_made_is_left_as_it_was(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "a" / "b"):
        check_folder("out=it", folder)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"out=it: .*file is no folder"):
        check_folder("out=it", tmp_path / "file" / "b")
