"""The wheel carries all that a run needs, and what it says of itself is said once."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import flnl

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_one() -> None:
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert PROJECT["version"] == flnl.__version__ == cited.group(1)


def test_the_license_is_one() -> None:
    cited = re.search(r"^license: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert PROJECT["license"] == cited.group(1) == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``make wheel`` builds it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_holds_the_package_its_configuration_and_the_license(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {*archive.namelist()}
    written = (path for end in ("py", "j2") for path in (ROOT / "src" / "flnl").rglob(f"*.{end}"))
    ours = {path.relative_to(ROOT / "src").as_posix() for path in written}
    conf = {f"flnl/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert ours | conf <= held
    assert {f"flnl/data/datasets/mnist_writers.{end}" for end in ("u16.xz", "LICENSE")} <= set(held)
    assert {f"flnl/sites/flower/{name}" for name in ("requirements.txt", "relay/pyproject.toml")} <= held
    assert [name for name in held if name.endswith("licenses/LICENSE")]
    assert {name.split("/")[0] for name in held} == {"flnl", f"flnl-{flnl.__version__}.dist-info"}


@pytest.mark.slow
def test_the_wheel_trains_in_a_folder_with_a_src_and_a_conf_of_its_own(wheel: Path, tmp_path: Path) -> None:
    uv = shutil.which("uv") or str(Path(sys.prefix).parent / ".uv" / "bin" / "uv")
    python = tmp_path / "venv" / "bin" / "python"
    for words in (
        ["venv", "--python", sys.executable, str(tmp_path / "venv")],
        ["pip", "install", "--no-deps", "--python", str(python), str(wheel)],
    ):
        subprocess.run([uv, *words, "--offline"], check=True, capture_output=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its own .pth files are not followed

    place = tmp_path / "theirs"
    for file in ("src/__init__.py", "src/main.py", "conf/__init__.py"):
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_text("raise SystemExit('not ours')\n")
    (place / "conf" / "config.yaml").write_text("seed: theirs\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"OMP_NUM_THREADS": "1"}

    def said(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(python.with_name("flnl")), *words]
        return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=200)

    words = ["debug=fast", "output=run", "cache=cache", "wandb.mode=disabled"]
    trained = said(*words)
    assert trained.returncode == 0, trained.stderr
    record = json.loads((place / "run" / "result.json").read_text())
    assert record["status"] == "finished"
    assert record["versions"]["flnl"] == flnl.__version__
    assert record["commit"] is None
    assert "model.pt" in {file.name for file in (place / "run").iterdir()}

    spawned = said(
        *words[:1], "output=again", *words[2:], "executor=processes", "executor.workers=1", "executor.start=spawn"
    )
    assert spawned.returncode == 0, spawned.stderr
    assert "\nmethod=fedavg" in said("list", "method").stdout
    compared = said("compare", "run", "again")
    assert compared.returncode == 0, compared.stderr
