"""``${noise_rate:}``: the nominal rate of every kind of noise, and the record of who was given it."""

from pathlib import Path

import pytest

from flnl.config import compose, given
from flnl.config.check import check_config
from flnl.core.errors import UserError
from tests.properties.runs import run
from tests.registry import TINY

TOLD = ("method=fedprox", "method.local.fedprox.mu=${noise_rate:}")


@pytest.mark.parametrize(
    ("noise", "rate"),
    [
        ("noise=fedcorr noise.rho=0.6 noise.tau=0.5", 0.6 * 0.75),
        ("noise=flr noise.rho=0.4 noise.tau=0.0", 0.2),
        ("noise=flr noise.rho=0.4 noise.tau=0.3 noise.kind=asymmetric noise.map=next", 0.12),
        ("noise=symmetric noise.eta=0.35", 0.35),
        ("noise=random noise.eta=0.4", 0.4),
        ("noise=fedes noise.mu=0.5", 0.5),
        ("noise=localized noise.low=0.2 noise.high=0.5", 0.35),
    ],
)
def test_it_is_the_nominal_rate(noise: str, rate: float) -> None:
    cfg = compose.load([*TOLD, *noise.split()])
    assert cfg.method.local.fedprox.mu == pytest.approx(rate)
    assert given.noise_rates(cfg) == {"method.local.fedprox.mu": pytest.approx(rate)}


def test_noise_without_a_nominal_rate_asks_for_an_estimate() -> None:
    cfg = compose.load([*TOLD, "noise=none"])
    with pytest.raises(UserError, match=r"method\.mu is the noise rate.* set it to an estimate"):
        compose.resolved(cfg)


def test_an_estimate_is_not_given() -> None:
    assert given.noise_rates(compose.load(["method=fedprox", "method.mu=0.3"])) == {}


def test_the_record_lists_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*TINY, *TOLD, "noise=symmetric", "noise.eta=0.25", "rounds=1"]
    record = run(words, tmp_path / "run").record
    assert record["given"] == {"method.local.fedprox.mu": 0.25}
    assert "is given the noise rate: method.local.fedprox.mu=0.25" in capsys.readouterr().err
    assert "given" not in run([*TINY, "method=fedprox", "rounds=1"], tmp_path / "other").record


def test_it_is_found_in_lists_and_in_sections_of_lists(tmp_path: Path) -> None:
    lists = "+method.local.fedprox.rates=[0.1,${noise_rate:},[{low: ${noise_rate:}}]]"
    cfg = compose.load(["method=fedprox", "noise=symmetric", "noise.eta=0.25", lists])
    key = "method.local.fedprox.rates"
    assert given.noise_rates(cfg) == {f"{key}.1": 0.25, f"{key}.2.0.low": 0.25}


def test_a_key_that_is_referred_to_in_a_list_is_read() -> None:
    words = ["method=feddiv", "+method.first=1", "method.mixup_stages=[${method.first}]"]
    check_config(compose.load(words))
    with pytest.raises(UserError, match=r"method\.first: no part of method=feddiv reads it"):
        check_config(compose.load(words[:2]))
