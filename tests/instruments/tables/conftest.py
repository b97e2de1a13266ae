"""``flnl tables`` in a folder of its own, with tiny scales."""

import io
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from flnl.commands import tables as tables
from flnl.instruments.tables import load
from tests.cli.conftest import Said
from tests.registry import TINY

Tables = Callable[..., Said]

SCALE = f"""\
title: tiny
changes: [All is tiny.]
seeds: [1]
overrides: [{", ".join(f'"{word}"' for word in ("dataset=digits", "protocol=digits", *TINY, "rounds=3"))}]
"""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tables:
    """The command in a folder with tiny scales and the tables of the project to copy from."""
    shutil.copytree(load.TABLES, tmp_path / "table")
    (tmp_path / "scale").mkdir()
    for scale in ("small", "lenet"):  # that the project's tables name
        (tmp_path / "scale" / f"{scale}.yaml").write_text(SCALE)
    monkeypatch.setattr(load, "TABLES", tmp_path / "table")
    monkeypatch.setattr(load, "SCALES", tmp_path / "scale")
    monkeypatch.setattr(load, "CONF", tmp_path / "conf")
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Said:
        load.table.cache_clear()
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        monkeypatch.setattr(sys, "argv", ["src/flnl/commands/tables.py", *words])
        out, err, code = io.StringIO(), io.StringIO(), 0
        with redirect_stdout(out), redirect_stderr(err):
            try:
                tables.main()
            except SystemExit as left:
                code = left.code if isinstance(left.code, int) else 1
        return Said(code, out.getvalue(), err.getvalue())

    return run


def copied(tmp_path: Path) -> Path:
    """A table of one's own as docs/tables.md has it: ``fedcorr_9`` renamed, without the paper, with two rows."""
    written = (tmp_path / "table" / "fedcorr_9.yaml").read_text()
    rows = re.findall(r"  - label: Fed(?:Avg|Prox)\n(?:    .*\n)+?(?=  - |notes)", written)
    head = written[: written.index("rows:")].replace("paper: FedCorr\n", "").replace("title: ", "title: My ")
    file = tmp_path / "table" / "mine.yaml"
    file.write_text(head + "rows:\n" + "".join(rows))
    return file
