"""What the shell offers after a tab."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flnl import __main__
from flnl.commands.completion import INSTALL, SCRIPTS, install, offered
from flnl.core.errors import UserError
from tests.cli.conftest import ROOT

PLUGIN = ROOT / "examples" / "plugin" / "my_parts" / "conf"


def after(line: str) -> list[str]:
    return offered(line, __main__.COMMANDS)


@pytest.mark.parametrize(
    ("line", "among"),
    [
        ("flnl ", {"audit", "tables", "method=", "noise.", "seed=", "method/local="}),
        ("flnl au", {"audit", "audit."}),
        ("flnl method=fedcorr", {"method=fedcorr", "method=fedcorr_released"}),
        ("flnl -m method=fedavg,fedcorr_", {"method=fedavg,fedcorr_released"}),
        ("flnl run dataset=cif", {"dataset=cifar10", "dataset=cifar100"}),
        ("flnl experiment=fedcorr/clo", {"experiment=fedcorr/clothing1m"}),
        ("flnl method=fedprox method.mu", {"method.mu="}),
        ("flnl noise=symmetric noise.e", {"noise.eta="}),
        ("flnl noise.rho=", {"noise.rho=0.6"}),
        ("flnl products=", {"products=false", "products=true"}),
        ("flnl --dr", {"--dry-run"}),
        ("flnl audit --label-p", {"--label-privacy"}),
        ("flnl compare --col", {"--columns"}),
        ("flnl list no", {"noise"}),
        ("flnl explain noise.rh", {"noise.rho="}),
        ("flnl tune --e", {"--each"}),
        ("flnl tables ", {"plan", "run", "render", "list", "tune", "agree"}),
        ("flnl tables plan fedcorr_1", {"fedcorr_10", "fedcorr_11", "fedcorr_12", "fedcorr_13"}),
        ("flnl tables run scale=p", {"scale=paper"}),
        (f"flnl --config-dir {PLUGIN} method=bal", {"method=balanced"}),
        ("flnl method=none_such noise.rh", {"noise.rho="}),
    ],
)
def test_what_begins_so_is_offered(line: str, among: set[str]) -> None:
    found = after(line)
    assert among <= {*found}
    assert all(one.startswith(line.rpartition(" ")[2]) for one in found)
    assert len(found) < 80


def test_only_what_may_be_set_is_offered() -> None:
    assert after("flnl method=bal") == []
    assert not [
        one for line in ("flnl noise.", "flnl method=fedprox method.") for one in after(line) if "_target_" in one
    ]
    assert not [one for one in after("flnl method=fedprox method.s") if one.startswith("method.short")]


def test_an_answer_imports_nothing_slow() -> None:
    code = (
        "import sys; from flnl.__main__ import main\n"
        "for line in ('flnl method=fed', 'flnl method=fedcorr method.', 'flnl audit --', 'flnl tables plan '):\n"
        "    sys.argv = ['flnl', '--complete', line]; main()\n"
        "assert not {'torch', 'sklearn', 'scipy', 'matplotlib', 'wandb'} & {*sys.modules}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "becomes"),
    [
        ("method=fedcorr_r", "method=fedcorr_released"),
        ("-m seed=1,2 dataset=clo", "-m seed=1,2 dataset=clothing1m"),
        ("noise=symmetric noise.et", "noise=symmetric noise.eta="),
        ("audit --label-p", "audit --label-privacy"),
        ("audit some_fo", "audit some_folder/"),
    ],
)
def test_bash_completes_after_a_tab(typed: str, becomes: str, tmp_path: Path) -> None:
    """In a terminal: ``flnl`` is a function here that says how it is called, and the program is asked by its name."""
    (tmp_path / "some_folder").mkdir()
    program = tmp_path / "bin" / "flnl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT / "src"} exec {sys.executable} -m flnl "$@"\n')
    program.chmod(0o755)
    script = tmp_path / "completion.bash"
    script.write_text(SCRIPTS["bash"])
    child, terminal = pty.fork()
    if not child:
        os.chdir(tmp_path)
        os.execve(
            "/bin/bash",
            ["bash", "--norc", "--noprofile", "-i"],
            {"PATH": f"{program.parent}:{os.environ['PATH']}", "TERM": "dumb", "HOME": str(tmp_path)},
        )
    try:
        os.write(terminal, f'source {script}; flnl() {{ echo "[ran $*]"; }}\n'.encode())
        os.write(terminal, f"flnl {typed}\t\n".encode())
        said, end = "", time.monotonic() + 60
        while "[ran " not in said.replace('"[ran ', "") and time.monotonic() < end:
            if select.select([terminal], [], [], 1)[0]:
                said += os.read(terminal, 4096).decode()
        assert re.search(r"(?<!\")\[ran (.*?)\]", said)[1].strip() == becomes, said  # type: ignore[index]
    finally:
        os.write(terminal, b"exit\n")
        os.close(terminal)
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("shell", "file", "starts"),
    [
        ("bash", ".local/share/flnl/completion.bash", ".bashrc"),
        ("zsh", ".local/share/flnl/completion.zsh", ".zshrc"),
        ("fish", ".config/fish/completions/flnl.fish", None),
    ],
)
def test_a_shell_finds_it_when_it_starts(
    shell: str, file: str, starts: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    if starts is not None:
        (tmp_path / starts).write_text("alias l=ls")  # without an end of its line
    install([])
    install([shell])
    script = (tmp_path / file).read_text()
    assert script == SCRIPTS[shell]
    assert "--complete" in script
    if starts is not None:
        assert (tmp_path / starts).read_text() == f'alias l=ls\nsource "{tmp_path / file}"\n'
    if program := shutil.which(shell):
        assert subprocess.run([program, "-n", tmp_path / file], capture_output=True, text=True).stderr == ""


def test_another_shell_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    with pytest.raises(UserError, match=f"{INSTALL} takes the name of a shell: bash, zsh, fish"):
        install([])
