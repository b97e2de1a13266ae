"""What the repository says of itself: hooks, workflows, the links of rendered tables, what pages show of files."""

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from flnl.instruments.tune.shown import markdown, notes
from flnl.record.tuned import Tuned

ROOT = Path(__file__).resolve().parents[1]


def read(path: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / path).read_text())  # type: ignore[no-any-return]


def test_a_hook_does_what_make_check_does() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local", "nothing is fetched"
    assert [hook["entry"] for hook in repository["hooks"]] == ["make check"]
    changed = re.compile(repository["hooks"][0]["files"])
    assert all(changed.search(name) for name in ("src/flnl/commands/run.py", "tests/conftest.py", "pyproject.toml"))
    assert not changed.search("README.md")


def test_workflows_run_every_python_that_is_promised_and_every_test() -> None:
    promised = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = [found[1] for line in promised if (found := re.search(r":: (3\.\d+)$", line))]
    tests, nightly = (read(f".github/workflows/{name}.yml") for name in ("tests", "nightly"))
    job = tests["jobs"]["tests"]
    assert job["strategy"]["matrix"]["python"] == versions
    assert job["steps"][-1] == {"run": ".ci/run"}
    assert nightly["jobs"]["test-all"]["steps"][-1] == {"run": "make test-all"}
    assert "make --silent mutants" in nightly["jobs"]["mutants"]["steps"][-1]["run"]
    for workflow in (tests, nightly):
        assert workflow["permissions"] == {"contents": "read"}


def test_cards_have_no_row_that_waits_for_its_numbers() -> None:
    """A word in capitals alone in a line, or in a cell, unless it is a name."""
    for file in sorted((ROOT / "docs" / "methods").glob("*.md")):
        lone = re.findall(r"(?:^|(?<=\| ))[A-Z]{6,}(?=$| \|)", file.read_text(), re.MULTILINE)
        assert not {*lone} - {"README", "SCAFFOLD", "SELFIE"}, file.name


def test_what_rendered_tables_link_to_is_in_git() -> None:
    found = subprocess.run(["git", "ls-files", "results", "docs"], cwd=ROOT, capture_output=True, text=True)
    kept = {ROOT / name for name in found.stdout.splitlines()}
    if not kept:
        pytest.skip("no checkout")
    for file in sorted(path for path in kept if path.suffix == ".md" and path.is_relative_to(ROOT / "results")):
        for link in re.findall(r"\]\(([^)#]+)\)", file.read_text()):
            if "://" not in link:
                target = Path(os.path.normpath(file.parent / link))
                assert target in kept or any(target in path.parents for path in kept), f"{file.name}: {link}"


@pytest.mark.parametrize("name", ["comparison", "comparison_benchmark"])
def test_the_comparison_shows_what_its_files_hold(name: str) -> None:
    tuned = Tuned.load(ROOT / "docs" / f"{name}.json")
    told = notes(tuned)
    tables = markdown(tuned).strip().split("\n\n")[: -len(told)]
    of = {heading.rstrip(":"): table for heading, table in zip(tables[::2], tables[1::2], strict=True)}
    shown = (ROOT / "docs" / "comparison.md").read_text()
    for heading in ("mean_last_10, %", "last, %", "last, % at train.lr = 0.003 / 0.01 / 0.03 / 0.1"):
        assert of[heading] in shown, heading
    for note in told:
        assert note in prose("docs/comparison.md")


def prose(page: str) -> str:
    """The text of a page, its lines run together."""
    return " ".join((ROOT / page).read_text().split())


def cells(text: str) -> list[list[str]]:
    """The cells of all lines of tables."""
    lines = (line for line in text.splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("group", ["noise", "partition"])
def test_the_page_of_noise_and_partitions_has_every_choice_and_parameter(group: str) -> None:
    page = (ROOT / "docs" / "noise.md").read_text()
    for file in sorted((ROOT / "conf" / group).glob("*.yaml")):
        assert f"`{file.stem}`" in page, file.name
        for parameter in yaml.safe_load(file.read_text()):
            if parameter != "_target_":
                assert re.search(rf"`{parameter}[`=]", page), f"{file.name}: {parameter}"
