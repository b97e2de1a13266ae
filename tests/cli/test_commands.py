"""``flnl`` and its commands: which there are, what each imports before it is needed, and where they can be called."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flnl import __main__ as program
from flnl.commands import list as listing
from flnl.run.train import command

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "lightning", "sklearn", "scipy", "matplotlib", "wandb", "ray")


def called(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr(sys, "argv", ["flnl", *words])
    program.main()


def test_help_names_every_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    called(monkeypatch, "--help")
    lines = capsys.readouterr().out.splitlines()
    assert [name for name in program.COMMANDS if not any(line.startswith(f"  flnl {name} ") for line in lines)] == []
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("name", program.COMMANDS)
def test_every_command_is_there(name: str) -> None:
    module = importlib.import_module(program.COMMANDS[name][0])
    assert callable(module.main)


def test_a_command_is_what_its_module_does(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    called(monkeypatch, "list", "method/server")
    found = capsys.readouterr().out
    listing.show(["method/server"])
    assert found == capsys.readouterr().out != ""


@pytest.mark.parametrize("words", [("run", "--cfg", "job"), ("--cfg", "job")])
def test_run_may_be_left_out(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    called(monkeypatch, *words, "seed=4")
    assert "\nseed: 4\n" in f"\n{capsys.readouterr().out}"


@pytest.mark.parametrize(
    ("word", "hint"),
    [("lst", "did you mean list? there are run, "), ("zzz", "there are run, "), ("Tables", "tables? ")],
)
def test_what_is_no_command_is_refused_in_one_line(
    word: str, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        called(monkeypatch, word, "seed=1")
    said = capsys.readouterr()
    assert left.value.code == 2
    assert said.out == ""
    assert said.err.startswith(f"error: {word} is not a command; ")
    assert hint in said.err
    assert said.err.count("\n") == 1


def test_help_of_a_command_waits_for_nothing_heavy() -> None:
    code = (
        "import sys\nfrom flnl import __main__ as program\n"
        "for name in program.COMMANDS:\n"
        "    sys.argv = ['flnl', name, '--help']\n"
        "    try:\n        program.main()\n"
        "    except SystemExit as left:\n        assert not left.code, name\n"
        f"    print('##', name, *({{*{HEAVY}}} & {{*sys.modules}}))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("##")] == [
        f"## {name}" for name in program.COMMANDS
    ]


def test_a_folder_with_a_package_and_a_conf_of_its_own(tmp_path: Path) -> None:
    """Its ``src`` and ``conf`` are not ours, nor is its ``flnl.yaml``."""
    for file in ("src/__init__.py", "src/main.py", "conf/__init__.py", "config.py", "tests/__init__.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("raise SystemExit('not ours')\n")
    (tmp_path / "conf" / "config.yaml").write_text("seed: theirs\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, "-m", "flnl", "--cfg", "job", "seed=7"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "seed: 7\n" in done.stdout


def test_how_to_go_on_is_said_as_it_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bin" / "flnl"
    script.parent.mkdir()
    script.write_text("")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", os.defpath)

    def said(started: Path) -> str:
        monkeypatch.setattr(sys, "argv", [str(started), "seed=1"])
        return command(["a=b", "c=d e"])

    assert said(script) == f"{script} a=b 'c=d e'"
    assert said(ROOT / "src" / "main.py") == f"{sys.executable} -m src.main a=b 'c=d e'"
    assert said(ROOT / "src" / "flnl" / "__main__.py") == f"{sys.executable} -m flnl a=b 'c=d e'"
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{Path(sys.executable).parent}")
    assert said(script) == "flnl a=b 'c=d e'"
    assert said(ROOT / "src" / "main.py").endswith(" -m src.main a=b 'c=d e'")


def test_the_door_at_the_root_is_the_same_program() -> None:
    """Without an installed package, too: it finds the one beside it."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    code = "import runpy, sys\nsys.argv[1:] = ['list', 'debug']\nrunpy.run_module('src.main', run_name='__main__')\n"
    code += "import flnl\nprint(flnl.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    listed, place = done.stdout.splitlines()
    assert listed.startswith("debug=fast")
    assert Path(place) == ROOT / "src" / "flnl" / "__init__.py"
