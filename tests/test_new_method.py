"""The skeleton of a method runs, and its entry, its card and its test say of it what is so."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import flnl.methods
from flnl.config import compose
from flnl.core.method import assemble
from tests import new_method
from tests.entries import METHODS, Entry, Known, Words
from tests.golden import test_golden
from tests.properties.reference import References
from tests.properties.runs import difference, rounds
from tests.properties.test_parts import acting


@pytest.mark.parametrize("warm_up", [False, True])
def test_what_a_skeleton_says_of_itself_is_so(
    warm_up: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, references: References
) -> None:
    name = f"fresh_{'two' if warm_up else 'one'}"
    made = new_method.write(name, "Fresh+", warm_up=warm_up, root=tmp_path)
    assert new_method.write(name, "Fresh+", warm_up=warm_up, root=tmp_path) == []
    package = tmp_path / "src/flnl/methods"
    monkeypatch.setattr(flnl.methods, "__path__", [*flnl.methods.__path__, str(package)])
    place = f"hydra.searchpath=[file://{tmp_path / 'conf'}]"

    def words(overrides: Words) -> list[str]:
        return [place, *Entry("", overrides, {}).words]

    (entry,) = (file for file in made if file.name == "entry.py")
    known: Known = runpy.run_path(str(entry))["KNOWN"]
    assert name in [one.name for one in known.entries]
    for one in known.entries:
        method = assemble(compose.build(compose.load([place, *one.words]).method))
        assert {stage.name: acting(stage) for stage in method.stages} == dict(one.acting)
    for case, (neutral, equals) in known.neutral.items():
        ours = rounds(words(neutral), tmp_path / case)[-1].state.server.params
        assert difference(ours, references.rounds(Entry("", equals, {}).words)[-1].state.server.params) is None
    (base, switches), *_ = known.switches.items()
    before = rounds(words(base), tmp_path / "base")[-1].state.server.params
    for number, switch in enumerate(switches):
        kept = [word for word in words(base) if word.split("=")[0] != switch.split("=")[0]]
        after = rounds(kept, tmp_path / str(number), switch)[-1].state.server.params
        assert difference(before, after) is not None, switch
    for file in made:
        assert not re.search("NAME|TITLE|CLASS", file.read_text()), file
        if file.name.startswith("test_"):
            found = runpy.run_path(str(file))
            [found[test]() for test in found if test.startswith("test_")]


def test_a_skeleton_is_in_the_form_of_the_code(tmp_path: Path) -> None:
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("needs ruff")
    for warm_up in (False, True):
        new_method.write(f"fresh{warm_up}".lower(), "FreshMethod", warm_up=warm_up, root=tmp_path)
    settings = ["--config", str(new_method.ROOT / "pyproject.toml")]
    settings += ["--config", "lint.isort.known-first-party = ['flnl', 'tests']"]
    for command in (["format", "--check"], ["check", "--no-cache"]):
        done = subprocess.run([ruff, *command, *settings, "."], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_a_trajectory_follows_the_method_until_it_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is the skeleton's, whose loss goes."""
    settings = {"fresh": ("method=fresh",), "fresh_other": ("method=fresh", "rounds=2")}
    committed, file = METHODS / "feddyn/trajectories.json", tmp_path / "trajectories.json"
    monkeypatch.setattr(test_golden, "FILES", {file: settings, committed: {"feddyn": (), "feddyn_new": ()}})
    assert new_method.to_write(file) == ["fresh", "fresh_other"]
    file.write_text('{"fresh": []}')
    assert new_method.to_write(file) == ["fresh", "fresh_other"]
    assert new_method.to_write(committed) == ["feddyn_new"]
    assert new_method.to_write(tmp_path / "of another folder") == []


@pytest.mark.parametrize("name", ["FedGR", "fed-gr", "1st", "class", "../x"])
def test_a_name_that_python_has_no_module_for_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["new_method", name])
    with pytest.raises(SystemExit):
        new_method.main()
    assert f"NAME={name}: must be lower-case letters, digits and _" in capsys.readouterr().err
