"""``flnl list`` names what there is in ``conf/``."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from flnl.commands import list as listing
from flnl.config.schema import NO_GROUPS
from tests.products.conftest import Commands

ROOT = Path(__file__).resolve().parents[2]


def test_every_file_of_the_configuration_with_its_first_comment(said: Commands) -> None:
    answer = said(listing)
    assert answer.code == 0
    lines = answer.out.splitlines()
    files = [path for path in (ROOT / "conf").rglob("*.yaml") if path.name != "config.yaml"]
    files = [path for path in files if path.relative_to(ROOT / "conf").parts[0] not in NO_GROUPS]
    assert len(lines) == len(files)
    for file in files:
        comment = next(c for c in re.findall(r"^# (.*)$", file.read_text(), re.MULTILINE) if c[0] != "@")
        name = file.relative_to(ROOT / "conf").with_suffix("").as_posix()
        same = [
            line for line in lines if line.endswith(f"  {comment}") and line.split("  ")[0].replace("=", "/") == name
        ]
        assert len(same) == 1, f"{name} has no line, or its file does not begin with a comment"


@pytest.mark.parametrize(
    ("group", "first"),
    [
        ("noise", "noise=annotators"),
        ("method", "method=apl"),
        ("method/local", "method/local=co_teaching"),
        ("batch", "method/batch=clc_hold_out"),
        ("experiment", "experiment=benchmark/cifar_human"),
    ],
)
def test_one_group(group: str, first: str, said: Commands) -> None:
    lines = said(listing, group).out.splitlines()
    assert lines[0].split("  ")[0] == first
    top = first.split("=")[0]
    assert all(re.match(rf"{top}[=/]", line) for line in lines)


@pytest.mark.parametrize(("group", "nearest"), [("nose", "noise"), ("method/lokal", "method/local"), ("bach", "batch")])
def test_an_unknown_group(group: str, nearest: str, said: Commands) -> None:
    answer = said(listing, group)
    assert answer.code == 2
    assert answer.err.startswith(f"error: {group} is not a group; did you mean {nearest}?")
    assert answer.err.count("\n") == 1


def test_markdown_has_one_group_with_its_descriptions(said: Commands) -> None:
    answer = said(listing, "noise", "--markdown")
    lines = answer.out.splitlines()
    assert lines[:2] == ["| `noise` | what |", "|---|---|"]
    assert len(lines) == 2 + len(said(listing, "noise").out.splitlines())
    assert said(listing, "--markdown").out.startswith("| `method` | what |")


def test_markdown_leaves_out_no_group_of_a_folder_of_groups(said: Commands) -> None:
    answer = said(listing, "train", "--markdown")
    tables = answer.out.split("\n\n")
    assert [table.splitlines()[0] for table in tables] == [
        "| `train/optimizer` | what |",
        "| `train/schedule` | what |",
    ]
    rows = [line for line in answer.out.splitlines() if line.startswith("| `") and not line.startswith("| `train/")]
    assert len(rows) == len(said(listing, "train").out.splitlines())
    assert said(listing, "executor", "--markdown").out.count("| what |") == 1


def test_a_markdown_table_ends_before_the_next(said: Commands) -> None:
    assert "\n\n| `model` | what |\n" in said(listing, "noise", "model", "--markdown").out


def test_what_takes_seconds_to_import_is_left_alone() -> None:
    script = (
        "import sys; from flnl.commands import list as command; sys.argv = ['', 'noise']; command.main(); "
        "print({'torch', 'numpy'} & {*sys.modules})"
    )
    said = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "set()"


def test_options_of_ones_own_are_listed_beside_the_others(said: Commands, tmp_path: Path) -> None:
    (tmp_path / "method" / "local").mkdir(parents=True)
    (tmp_path / "method" / "local" / "mine.yaml").write_text("# A loss of mine.\nmine: {_target_: a.B}\n")
    (tmp_path / "method" / "ours.yaml").write_text(
        "# A method of mine.\ndefaults: [parts/default@_here_, override local: [cross_entropy], _self_]\nname: ours\n"
    )
    with_own = said(listing, "local", "--config-dir", str(tmp_path)).out.splitlines()
    assert set(with_own) - set(said(listing, "local").out.splitlines()) == {"method/local=mine  A loss of mine."}
    assert "| `mine` | A loss of mine. |" in said(listing, "local", "--markdown", "--config-dir", str(tmp_path)).out
    assert said(listing, "method=ours", "--config-dir", str(tmp_path)).out.startswith("method=ours has no short keys")
    assert "method=ours does not exist" in said(listing, "method=ours").err
