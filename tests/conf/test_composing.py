"""Tests compose in parts; what they get is what Hydra composes."""

from collections.abc import Sequence

import hydra
import pytest
from hydra.errors import ConfigCompositionException, OverrideParseException
from omegaconf import OmegaConf

from flnl.config import compose
from tests.composing import compose_in_parts
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
    found = []
    for way in (hydra.compose, compose_in_parts, compose_in_parts):
        monkeypatch.setattr(compose, "compose", way)
        cfg = compose.load(WORDS[case])
        found.append((OmegaConf.to_yaml(cfg), OmegaConf.is_struct(cfg), compose.resolved(cfg)))
    assert found[1] == found[0]
    assert found[2] == found[0]


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
    for way in (hydra.compose, compose_in_parts):
        monkeypatch.setattr(compose, "compose", way)
        with pytest.raises(error) as caught:
            compose.load(["seed=2", word])
        lines.add(str(caught.value))
    assert len(lines) == 1


def test_every_test_composes_so() -> None:
    assert compose.compose is compose_in_parts  # type: ignore[attr-defined]
