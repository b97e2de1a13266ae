"""The commands of the runs behind the rendered tables give the keys that these runs have: no finished run is lost."""

import json
import shlex
from pathlib import Path

import pytest

from flnl.config import compose
from flnl.config.identity import placed_key, run_key

FILES = sorted((Path(__file__).resolve().parents[3] / "results").glob("*/runs.jsonl"))
LAY = "/work/data"
"""Where the images of these runs lay, unless their files were compared with the published ones. It names their folders,
and is in the keys of the fourth format (ADR 13)."""
FEW = 3

each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)


def drifted(lines: list[str]) -> list[str]:
    """The commands of the lines whose key or folder is another today."""
    found = []
    for line in map(json.loads, lines):
        plain = compose.resolved(compose.load(shlex.split(line["command"])[1:]))
        placed = placed_key(plain)
        if line["key"] not in (run_key(plain), placed) or not placed.startswith(Path(line["folder"]).name):
            found.append(line["command"])
    return found


@pytest.fixture(autouse=True)
def where_data_lay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLNL_DATA", LAY)


@each_file
def test_some_kept_runs_have_the_keys_that_their_commands_give(file: Path) -> None:
    lines = file.read_text().splitlines()
    assert drifted(lines[:: len(lines) // FEW]) == []


@pytest.mark.slow
@each_file
def test_all_kept_runs_have_the_keys_that_their_commands_give(file: Path) -> None:
    assert drifted(file.read_text().splitlines()) == []


def test_another_value_is_another_key() -> None:
    line = json.loads(FILES[0].read_text().splitlines()[0])
    assert drifted([json.dumps({**line, "command": f"{line['command']} train.lr=0.0123"})])
