"""The notebooks of ``examples/`` run from the first cell to the last, as they are."""

import os
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("FLNL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # the kernel is another process
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert all(cell.execution_count is None and not cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    where = {"metadata": {"path": str(tmp_path)}}
    done = nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3", resources=where).execute()
    shown = [output for cell in done.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in shown), "the curve is drawn"
    assert any("finished" in output.get("data", {}).get("text/plain", "") for output in shown)


def test_there_is_a_first_run() -> None:
    assert "first_run" in [path.stem for path in EXAMPLES]
