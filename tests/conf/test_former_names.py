"""Options of parts that one method brings carry its name, and what they were called before is still accepted."""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from flnl.config import compose, former_names
from flnl.config.explain import explain
from flnl.config.folders import CONF, search_path
from flnl.config.groups import SEVERAL, groups
from tests.composing import forget

FORMER = sorted(former_names.former_names())
METHODS = {path.stem: path.read_text() for path in (CONF / "method").glob("*.yaml")}
PARTS = [(group, option) for group, files in groups().items() if group.startswith("method/") for option in files]


@pytest.fixture(autouse=True)
def _a_new_command(monkeypatch: pytest.MonkeyPatch) -> None:
    former_names._named_now.cache_clear()
    forget(monkeypatch)


@pytest.mark.parametrize(("group", "option"), PARTS)
def test_an_option_says_which_method_brings_its_part(group: str, option: str) -> None:
    text = (CONF / group / f"{option}.yaml").read_text()
    if brings := set(re.findall(r"_target_: flnl\.methods\.(\w+)\.", text)):
        brings |= {method for method, chosen in METHODS.items() if re.search(rf"\b{option}\b", chosen)}
        named = [name for name in brings if f"{option}_".startswith(f"{name}_")]
        assert named, f"{group}={option} has a part of {' and '.join(brings)}"


def method(*words: str) -> object:
    """The section of the method, unresolved: its parts' values may refer to what these words do not choose."""
    return OmegaConf.to_container(compose.composed(["method=fedavg", *words]).method)


@pytest.mark.parametrize(("group", "former", "option"), FORMER)
def test_a_former_name_chooses_the_same(
    group: str, former: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    word = f"{group}=[{{}}]" if group in SEVERAL else f"{group}={{}}"
    assert method(word.format(former)) == method(word.format(option)) != method()
    assert capsys.readouterr().err == f"{group}: {former} is now called {option}\n"


def test_a_name_is_told_once_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        compose.load([f"seed={seed}", "method/exchange=[lid]"])
    assert capsys.readouterr().err.count("\n") == 1


def test_former_names_are_not_offered() -> None:
    assert not [former for group, former, _ in FORMER if former in compose.options(group)]


def own(folder: Path, file: str, text: str) -> str:
    """The word that adds a folder with this file."""
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text(text)
    return search_path([folder])[0]


def test_an_experiment_may_have_former_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    override = "  - override /method/{}\n".format
    text = f"# @package _global_\ndefaults:\n{override('exchange: [quality]')}{override('sampler: of_quality')}"
    folder = own(tmp_path, "experiment/mine.yaml", text)
    now = method("method/exchange=[fedes_quality]", "method/sampler=fedes_of_quality")
    assert method("experiment=mine", folder) == now
    assert capsys.readouterr().err.count("is now called") == 2


def test_a_stage_may_have_former_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "defaults: [/method/local@training.local: [{}], _self_]\ntraining: {{rounds: 1}}\n"
    former = method("method/stages=mine", own(tmp_path / "former", "method/stages/mine.yaml", text.format("prior")))
    now = method("method/stages=mine", own(tmp_path / "now", "method/stages/mine.yaml", text.format("feddiv_prior")))
    assert former == now
    assert capsys.readouterr().err == "method/local: prior is now called feddiv_prior\n"


def test_an_option_of_ones_own_needs_another_name(tmp_path: Path) -> None:
    folder = own(tmp_path, "method/aggregator/quality_mean.yaml", "_target_: mine.Mean\n")
    with pytest.raises(Exception, match="quality_mean") as refused:
        compose.load(["method/aggregator=quality_mean", folder])
    says = "method/aggregator=quality_mean: an option had this name before; give your file another one"
    assert explain(refused.value, []) == says
