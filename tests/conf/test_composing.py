"""Tests compose in parts, and Hydra remembers what files say; what they get is what Hydra composes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, OverrideParseException
from hydra.types import RunMode
from omegaconf import OmegaConf

from flnl.config import compose
from flnl.config.folders import CONF
from tests.composing import compose_in_parts, forget
from tests.registry import BY_NAME

WORDS: dict[str, Sequence[str]] = {
    "the defaults": [],
    "values and choices": BY_NAME["fedcorr_and_much_else"].words,
    "values that are added, sections that are replaced": BY_NAME["parts_with_memory"].words,
    "a choice that changes defaults": [*BY_NAME["flr_plus"].words, "protocol=cifar10"],
    "a deletion": ["model=resnet8", "~model.blocks", "noise.rho=0.2"],
    "the same key twice": ["seed=2", "noise=symmetric", "seed=3"],
}


@pytest.mark.parametrize("case", WORDS)
def test_it_is_what_hydra_composes(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def composed(way: Any) -> object:
        monkeypatch.setattr(compose, "compose", way)
        cfg = compose.load(WORDS[case])
        return OmegaConf.to_yaml(cfg), OmegaConf.is_struct(cfg), compose.resolved(cfg)

    with monkeypatch.context() as patch:
        forget(patch)
        expected = composed(hydra.compose)
    for way in (hydra.compose, hydra.compose, compose_in_parts, compose_in_parts):
        assert composed(way) == expected


def test_of_a_command_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra's own part included, for one run and for a sweep, whatever was composed before."""

    def composed(words: str, mode: RunMode) -> object:
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = GlobalHydra.instance().hydra.compose_config("config", words.split(), mode)  # type: ignore[union-attr]
        return OmegaConf.to_yaml(cfg), OmegaConf.is_struct(cfg)

    commands = [
        ("method=fedprox method.mu=0.5", RunMode.RUN),
        ("method=fedprox seed=2 hydra.job.name=mine", RunMode.RUN),
        ("method=fedprox seed=1,2 hydra/launcher=joblib", RunMode.MULTIRUN),
        ("method=fedavg,fedprox +new={a:1}", RunMode.MULTIRUN),
        ("method=fedprox model={_target_:nobody}", RunMode.RUN),
        ("method=fedprox ~noise.tau", RunMode.RUN),
    ]
    remembered = [composed(*command) for command in [*commands, *commands]][len(commands) :]
    forget(monkeypatch)
    assert remembered == [composed(*command) for command in commands]


def test_files_of_a_test_are_read_each_time(tmp_path: Path) -> None:
    (tmp_path / "method").mkdir()
    found = []
    for mu in (0.25, 0.75):
        text = f"defaults: [fedprox@_here_, _self_]\nname: mine\nmu: {mu}\n"
        (tmp_path / "method" / "mine.yaml").write_text(text)
        found.append(compose.load(["method=mine", f"hydra.searchpath=[file://{tmp_path}]"]).method.mu)
    assert found == [0.25, 0.75]


def test_what_a_test_changes_no_other_sees() -> None:
    cfg = compose.load(["model=mlp"])
    cfg.model.hidden.append(3)
    cfg.noise.rho = 0.123
    other = compose.load(["model=mlp"])
    assert other.model.hidden != cfg.model.hidden
    assert other.noise.rho != cfg.noise.rho


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("noise.roh=0.2", ConfigCompositionException),
        ("method=fedcor", hydra.errors.MissingConfigException),
        ("noise.rho=[", OverrideParseException),
    ],
)
def test_it_refuses_what_hydra_refuses(word: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = set()

    def refused(way: Any) -> None:
        monkeypatch.setattr(compose, "compose", way)
        with pytest.raises(error) as caught:
            compose.load(["seed=2", word])
        lines.add(str(caught.value))

    with monkeypatch.context() as patch:
        forget(patch)
        refused(hydra.compose)
    for way in (hydra.compose, compose_in_parts):
        refused(way)
    assert len(lines) == 1


def test_every_test_composes_so() -> None:
    assert compose.compose is compose_in_parts  # type: ignore[attr-defined]
