"""The commands of the runs behind the rendered tables give the keys that these runs have: no finished run is lost."""

import json
import shlex
from pathlib import Path

import pytest

from flnl.config import compose
from flnl.config.identity import placed_key, run_key

UNCOMPARED = "dataset.verify=false"
"""Keys of the fourth format hold where images lay whose files were not compared (ADR 13), and no record says where."""
KEPT = {
    file.parent.name: [line for line in file.read_text().splitlines() if UNCOMPARED not in line]
    for file in sorted((Path(__file__).resolve().parents[3] / "results").glob("*/runs.jsonl"))
}
FEW = 3

each_scale = pytest.mark.parametrize("scale", [scale for scale, lines in KEPT.items() if lines])


def drifted(lines: list[str]) -> list[str]:
    """The commands of the lines whose key is another today."""
    found = []
    for line in map(json.loads, lines):
        plain = compose.resolved(compose.load(shlex.split(line["command"])[1:]))
        if line["key"] not in (run_key(plain), placed_key(plain)):
            found.append(line["command"])
    return found


@each_scale
def test_some_kept_runs_have_the_keys_that_their_commands_give(scale: str) -> None:
    lines = KEPT[scale]
    assert drifted(lines[:: max(1, len(lines) // FEW)]) == []


@pytest.mark.slow
@each_scale
def test_all_kept_runs_have_the_keys_that_their_commands_give(scale: str) -> None:
    assert drifted(KEPT[scale]) == []


def test_another_value_is_another_key() -> None:
    line = json.loads(next(lines[0] for lines in KEPT.values() if lines))
    assert drifted([json.dumps({**line, "command": f"{line['command']} train.lr=0.0123"})])
