"""Which files a server and its sites open, as Python tells its audit hooks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sites.hospitals import QUICK, SIZES
from tests.sites.test_canary import FEDAVG, Marked

ROOT = Path(__file__).resolve().parents[2]


def python(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not done.returncode, done.stderr


def opened(folder: Path, by: str) -> list[tuple[str, Path]]:
    """Of each file that a process has opened: ``w`` or ``r``, and where it is."""
    lines = (folder / f"{by}.opened").read_text().splitlines()
    return [(line[0], Path(line[2:]).resolve()) for line in lines]


def trespasses(folder: Path, by: str) -> list[tuple[str, Path]]:
    """What the server has opened of a site's, or a site of another's, or to write where nothing is its own."""
    of_sites = {name: (folder / f"lung-{name}", folder / f"d{name}") for name in SIZES}
    others = [place for name, places in of_sites.items() if name != by for place in places]
    others += [folder / "lung", folder / "there"] if by in SIZES else []
    return [
        (kind, path)
        for kind, path in opened(folder, by)
        if any(path.is_relative_to(place) for place in others)
        or (by in SIZES and kind == "w" and not path.is_relative_to(of_sites[by][0]) and path != Path(os.devnull))
    ]


def test_a_server_opens_no_file_of_a_site_and_a_site_writes_its_own_alone(tmp_path: Path) -> None:
    Marked(tmp_path)
    python("-m", "tests.sites.watched", str(tmp_path), *QUICK, *FEDAVG, "fraction=1.0")
    assert {by: trespasses(tmp_path, by) for by in ("server", *SIZES)} == {by: [] for by in ("server", *SIZES)}
    assert ("w", "there") in {(kind, path.parent.name) for kind, path in opened(tmp_path, "server")}
    for name in SIZES:
        found = opened(tmp_path, name)
        assert len({path for _, path in found if path.is_relative_to(tmp_path / f"d{name}")}) >= 24  # its images
        assert any(kind == "w" and "audit.csv" in str(path) for kind, path in found)


@pytest.mark.parametrize(
    ("by", "does", "found"),
    [
        ("server", "open(r'{}/dnorth/a.png')", [("r", "a.png")]),
        ("server", "os.close(os.open(r'{}/dnorth/a.png', os.O_RDONLY))", [("r", "a.png")]),
        ("server", "open(r'{}/lung-east/secret.key', 'rb')", [("r", "secret.key")]),
        ("east", "open(r'{}/dnorth/a.png')", [("r", "a.png")]),
        ("east", "pathlib.Path(r'{}/out.txt').write_text('')", [("w", "out.txt")]),
        ("east", "os.close(os.open(r'{}/out.txt', os.O_CREAT))", [("w", "out.txt")]),
        ("east", "pathlib.Path(r'{}/lung-east/secret.key').write_text('')", []),
    ],
)
def test_what_is_opened_is_seen(tmp_path: Path, by: str, does: str, found: list[tuple[str, str]]) -> None:
    for folder in ("dnorth", "lung-east"):
        (tmp_path / folder).mkdir()
    for file in ("dnorth/a.png", "lung-east/secret.key"):
        (tmp_path / file).touch()
    says = f"from tests.sites.watched import watch; import os, pathlib; watch(pathlib.Path(r'{tmp_path}/{by}.opened'))"
    python("-c", f"{says}; {does.format(tmp_path)}")
    assert [(kind, path.name) for kind, path in trespasses(tmp_path, by)] == found
