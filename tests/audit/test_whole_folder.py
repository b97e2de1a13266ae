"""A folder that is written whole: what stays when a step fails or a process is killed, and which paths it takes."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from flnl.audit.options import Options
from flnl.audit.writing import refuse_existing
from flnl.core.errors import UserError
from flnl.storage import whole_folder
from flnl.storage.whole_folder import ASIDE, written_whole


def contents(folder: Path) -> dict[str, str]:
    """The files of a folder."""
    return {file.name: file.read_text() for file in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an old file."""
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "a").write_text("old")
    return tmp_path / "audit"


@pytest.mark.parametrize("at_once", [True, False])
def test_an_old_folder_that_cannot_be_deleted_is_no_failure(
    at_once: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(path: Any, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(path)

    if not at_once:
        monkeypatch.setattr(whole_folder, "_swapped", lambda *_: False)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", stuck)
        with written_whole(folder) as fresh:
            (fresh / "a").write_text("new")
    assert contents(folder) == {"a": "new"}
    assert len(list(folder.parent.iterdir())) == 2
    with written_whole(folder) as fresh:
        (fresh / "a").write_text("newer")
    assert contents(folder) == {"a": "newer"}
    assert [path.name for path in folder.parent.iterdir()] == ["audit"], "the next call removes it"


@pytest.mark.parametrize("fails", [True, False])
def test_a_folder_that_a_killed_process_put_aside_is_put_back(fails: bool, folder: Path) -> None:
    """It was killed after the first of two renames, where the system cannot exchange folders."""
    fresh = folder.with_name(".audit.12345678")
    fresh.mkdir()
    folder.rename(fresh.with_name(fresh.name + ASIDE))

    def write() -> None:
        with written_whole(folder) as new:
            assert contents(folder) == {"a": "old"}
            (new / "a").write_text("new")
            if fails:
                raise ValueError("no more")

    if fails:
        with pytest.raises(ValueError, match="no more"):
            write()
    else:
        write()
    assert contents(folder) == {"a": "old" if fails else "new"}
    assert [path.name for path in folder.parent.iterdir()] == ["audit"]


def test_what_another_process_is_exchanging_stays(folder: Path) -> None:
    """Between its two renames, the folder that it has put aside is told by the one that it writes."""
    with written_whole(folder) as fresh:
        aside = fresh.with_name(fresh.name + ASIDE)
        folder.rename(aside)
        with written_whole(folder.with_name("other")):
            pass
        whole_folder._clear_up(folder)
        assert contents(aside) == {"a": "old"}
        aside.rename(folder)


def test_a_failing_rename_brings_the_old_folder_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if target == folder and not self.name.endswith(ASIDE):
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(whole_folder, "_swapped", lambda *_: False)
    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="no"), written_whole(folder) as fresh:
        (fresh / "a").write_text("new")
    assert contents(folder) == {"a": "old"}
    assert [path.name for path in folder.parent.iterdir()] == ["audit"]


def test_relative_paths_have_a_name_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, path in ((folder, "."), (folder.parent, "audit/../audit"), (folder.parent, "audit")):
        monkeypatch.chdir(place)
        with written_whole(Path(path)) as fresh:
            (fresh / "a").write_text(path)
        assert contents(folder) == {"a": path}


def test_the_working_directory_is_no_place_for_an_audit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for path in (Path(), folder):
        with pytest.raises(UserError, match=r"is the folder that you are in.*name a folder in it with --out"):
            refuse_existing(path, Options(force=True))
    refuse_existing(Path("below"), Options(force=False))


def test_files_of_desktops_are_nobodys_work(tmp_path: Path) -> None:
    for name in (".DS_Store", "Thumbs.db"):
        (tmp_path / name).touch()
    refuse_existing(tmp_path, Options(force=False))
    (tmp_path / "audit.csv").touch()
    refuse_existing(tmp_path, Options(force=True))
    with pytest.raises(UserError, match="holds an audit already"):
        refuse_existing(tmp_path, Options(force=False))
    (tmp_path / ".notes").touch()
    with pytest.raises(UserError, match=r"holds .notes, which no audit has written"):
        refuse_existing(tmp_path, Options(force=True))
