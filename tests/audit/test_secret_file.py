"""The secret of label privacy: made once, whole, and read only where nobody else can know it."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flnl.audit.label_privacy import secret_in
from flnl.core.errors import UserError
from flnl.storage import secret_file


def test_it_is_made_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    told: list[str] = []
    first = secret_in(None, [], told.append)
    (file,) = (tmp_path / "state" / "flnl").iterdir()
    assert (len(first), file.read_bytes(), secret_in(None, [], told.append)) == (32, first, first)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(told) == 1
    assert str(file) in told[0]
    assert secret_in(tmp_path / "other", [], told.append) != first


def test_of_many_that_make_it_at_once_one_does(tmp_path: Path) -> None:
    for number in range(20):
        file = tmp_path / str(number)
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda _: (secret_file.made_once(file), secret_file.read(file)), range(8)))  # noqa: B023
        assert sum(one for one, _ in made) == 1
        assert {held for _, held in made} == {file.read_bytes()}
    assert len(list(tmp_path.iterdir())) == 20


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o666])
def test_what_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_bytes(bytes(32))
    file.chmod(mode)
    with pytest.raises(UserError, match=f"{file} may be known to others, by its mode {mode:o}"):
        secret_file.read(file)
    file.chmod(0o400)
    assert secret_file.read(file) == bytes(32)


def test_another_users_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret_file.made_once(tmp_path / "secret")
    monkeypatch.setattr(os, "geteuid", lambda: (tmp_path / "secret").stat().st_uid + 1)
    with pytest.raises(UserError, match="or owner"):
        secret_file.read(tmp_path / "secret")


def test_what_is_no_secret_is_refused(tmp_path: Path) -> None:
    for size in (0, 31, 33):
        file = tmp_path / f"of_{size}"
        file.write_bytes(bytes(size))
        file.chmod(0o600)
        with pytest.raises(UserError, match="should be a file of 32 random bytes"):
            secret_in(file, [], print)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for file in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(UserError, match=r"should be a file of 32|cannot be read"):
            secret_in(file, [], print)
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    with pytest.raises(UserError, match="cannot be read"):
        secret_in(tmp_path / "broken", [], print)
    with pytest.raises(UserError, match="no secret can be made there"):
        secret_in(tmp_path / "of_31" / "secret", [], print)


def test_it_does_not_lie_where_others_get_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for file in (tmp_path / "run" / "deep" / "secret", tmp_path / "link" / "secret", tmp_path / "run"):
        with pytest.raises(UserError, match="which others may get"):
            secret_in(file, [tmp_path / "out", tmp_path / "run"], print)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_without_a_home_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert secret_file.state_folder() == tmp_path / ".local" / "state" / "flnl"
    for home in ("", "somewhere"):
        monkeypatch.setenv("HOME", home)
        with pytest.raises(UserError, match="--secret FILE"):
            secret_in(None, [], print)
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_STATE_HOME")
    with pytest.raises(UserError, match="neither XDG_STATE_HOME nor HOME"):
        secret_in(None, [], print)
