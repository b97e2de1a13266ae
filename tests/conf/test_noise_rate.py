"""``${noise_rate:}``: the rate of every kind of noise, and everything that shows who was given it."""

from pathlib import Path

import numpy as np
import pytest

from flnl.config import compose, given, identity
from flnl.config.check import check_config
from flnl.core.errors import UserError
from tests.properties.runs import run
from tests.registry import TINY

MU = "method.local.fedprox.mu"
FEDPROX = ("method=fedprox", f"{MU}=${{noise_rate:}}")


@pytest.mark.parametrize(
    ("noise", "rate"),
    [
        ("noise=fedcorr noise.rho=0.6 noise.tau=0.5", 0.6 * 0.75),
        ("noise=flr noise.rho=0.4 noise.tau=0.0", 0.2),
        ("noise=flr noise.rho=0.4 noise.tau=0.3 noise.kind=asymmetric noise.map=next", 0.12),
        ("noise=symmetric noise.eta=0.35", 0.35),
        ("noise=random noise.eta=0.4", 0.4),
        ("noise=fedes noise.mu=0.5", 0.5),
        ("noise=fedes", 0.3),
        ("noise=instance noise.eta=0.3", 0.3),
        ("noise=instance noise.eta=0.0 noise.spread=0.0", 0.0),
        ("noise=localized noise.low=0.2 noise.high=0.5", 0.35),
    ],
)
def test_it_is_the_nominal_rate(noise: str, rate: float) -> None:
    cfg = compose.load([*FEDPROX, *noise.split()])
    assert cfg.method.local.fedprox.mu == pytest.approx(rate)
    assert given.noise_rate(cfg) == given.NoiseRate(cfg.method.local.fedprox.mu, "nominal rate of the noise")
    assert given.noise_rates(cfg) == {MU: pytest.approx(rate)}


@pytest.mark.parametrize(
    ("noise", "rate"),
    [
        ("noise=instance noise.eta=0.0", 0.07979),
        ("noise=random noise.eta=0.0", 0.0125),
        ("noise=fedes noise.mu=1", 0.92021),
    ],
)
def test_where_limits_move_the_mean_it_is_the_mean(noise: str, rate: float) -> None:
    """Half a normal distribution has the mean s·sqrt(2 / π) if truncated, and half of it if clipped."""
    cfg = compose.load([*FEDPROX, *noise.split()])
    assert given.noise_rate(cfg) == given.NoiseRate(rate, "expected rate of the noise")


@pytest.mark.parametrize(
    ("experiment", "source", "rate"),
    [
        ("flr/cifar10n", "aggregate", 0.0901),
        ("fedpeer/cifar10n", "random1", 0.17234),
        ("fedpeer/cifar10n", "random2", 0.18122),
        ("fedpeer/cifar10n", "random3", 0.1764),
        ("fedpeer/cifar10n", "worst", 0.40208),
        ("fedpeer/cifar100n", "fine", 0.402),
    ],
)
def test_human_labels_have_the_rate_of_the_published_set(experiment: str, source: str, rate: float) -> None:
    cfg = compose.load([f"experiment={experiment}", f"noise.source={source}", *FEDPROX])
    assert cfg.method.local.fedprox.mu == rate
    assert given.noise_rate(cfg) == given.NoiseRate(rate, "expected rate of the noise")


def test_a_matrix_has_the_rate_of_equally_frequent_classes(tmp_path: Path) -> None:
    np.save(tmp_path / "T.npy", [[0.5, 0.5, 0.0], [0.0, 0.9, 0.1], [0.2, 0.2, 0.6]])
    cfg = compose.load([*FEDPROX, "noise=matrix", f"noise.path={tmp_path / 'T.npy'}"])
    assert cfg.method.local.fedprox.mu == pytest.approx((0.5 + 0.1 + 0.4) / 3)


@pytest.mark.parametrize("paper", ["fedcorr", "feddiv", "fedes", "fedpeer", "flr"])
def test_labels_of_clothing1m_have_the_estimate_that_comes_with_them(paper: str) -> None:
    cfg = compose.load([f"experiment={paper}/clothing1m", *FEDPROX])
    assert cfg.method.local.fedprox.mu == 0.385
    assert given.noise_rate(cfg) == given.NoiseRate(0.385, "estimate for clothing1m")


def test_an_estimate_of_a_data_set_is_for_its_labels_alone() -> None:
    """It may be changed, and counts in the key of runs whose method is given it."""
    words = ("dataset=clothing1m", "noise=none")
    plain, changed = ([*words, "method=fedprox", *more] for more in ((), ("dataset.noise_rate=0.3",)))
    keys = [identity.run_key(compose.resolved(compose.load(w))) for w in (plain, changed)]
    assert keys[0] == keys[1]
    keys += [identity.run_key(compose.resolved(compose.load([*w, *FEDPROX]))) for w in (plain, changed)]
    assert len(set(keys)) == 3
    assert compose.load([*changed, *FEDPROX]).method.local.fedprox.mu == 0.3
    other = compose.load(["dataset=digits", "protocol=clothing1m", "noise=none", *FEDPROX])
    assert given.noise_rate(other) is None


def test_labels_of_an_unknown_rate_ask_for_an_estimate() -> None:
    cfg = compose.load([*FEDPROX, "noise=none"])
    with pytest.raises(UserError, match=r"method\.mu is the noise rate.* dataset=digits .* set it to an estimate"):
        compose.resolved(cfg)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("noise=symmetric noise.eta=abc", "noise.eta=abc: must be a "),
        ("noise=human noise.source=best", "noise.source=best: "),
        ("noise=localized noise.low=0.5 noise.high=0.2", "noise.low=0.5 is above noise.high=0.2"),
    ],
)
def test_a_wrong_value_of_the_noise_is_named(words: str, fault: str) -> None:
    with pytest.raises(UserError, match=f"^{fault}"):
        check_config(compose.load([*FEDPROX, *words.split()]))


def test_an_estimate_is_not_given() -> None:
    assert given.noise_rates(compose.load(["method=fedprox", "method.mu=0.3"])) == {}


def test_start_record_and_closing_table_show_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*TINY, *FEDPROX, "noise=symmetric", "noise.eta=0.25", "rounds=1"]
    record = run(words, tmp_path / "run").record
    assert record["given"] == {MU: 0.25}
    assert record["given_origin"] == "nominal rate of the noise"
    printed = capsys.readouterr()
    assert "is given the noise rate: method.mu=0.25, nominal rate of the noise" in printed.err
    (line,) = (line for line in printed.out.splitlines() if f"the noise rate ({MU})" in line)
    assert "25.00 %" in line
    record = run([*TINY, "method=fedprox", "rounds=1"], tmp_path / "other").record
    assert not {"given", "given_origin"} & record.keys()
    printed = capsys.readouterr()
    assert "noise rate" not in printed.err + printed.out


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
