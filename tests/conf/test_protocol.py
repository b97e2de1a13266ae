"""What holds for a method under a protocol: rows of its settings, patterns, formulas, and in which order."""

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from flnl.config import compose
from flnl.config.protocol import value
from flnl.core.errors import UserError

SETTINGS = {
    "default": {"T": "=rounds/5", "U": "=rounds - T/fraction", "V": 7},
    "ours": {"T": 3},
    "our*": {"T": 4, "V": 8},
    "*s": {"V": 9, "W": 10},
    "centralized": {"default": {"V": 1}, "ours": {"T": "=V + rounds*epochs*fraction"}},
}


def cfg(name: str = "ours", settings: Any = SETTINGS, centralized: bool = False, **protocol: Any) -> DictConfig:
    shared = {"name": name, "rounds": 48, "fraction": 0.5, "epochs": 5, "num_clients": 20, "lr": 0.1}
    made = {"method": {"name": "m", "settings": settings}, "protocol": {**shared, **protocol}}
    return OmegaConf.create({**made, "centralized": centralized})


@pytest.mark.parametrize(
    ("name", "centralized", "expected"),
    [
        ("ours", False, {"T": 3, "U": 42, "V": 8, "W": 10, "lr": 0.1}),  # exact before the pattern, which is first
        ("others", False, {"T": 10, "U": 28, "V": 9, "W": 10}),  # 9.6 and 48 - 10 / 0.5
        ("mine", False, {"T": 10, "U": 28, "V": 7}),
        ("ours", True, {"T": 121, "V": 1, "W": 10}),  # 1 + 48 * 5 * 0.5
        ("others", True, {"T": 10, "V": 1}),
    ],
)
def test_rows(name: str, centralized: bool, expected: dict[str, Any]) -> None:
    assert {key: value(cfg(name, centralized=centralized), key) for key in expected} == expected


def test_a_protocols_own_words_come_before_the_methods_rows_and_after_them_what_it_has_for_all() -> None:
    assert value(cfg(m={"T": 5}), "T") == 5
    assert value(cfg(m={"T": 5}), "U") == 38  # with that T
    assert value(cfg(T=5), "T") == 3
    assert value(cfg(m={"centralized": {"T": 6}, "T": 5}, centralized=True), "T") == 6
    assert value(cfg("mine", X=5), "X", (1, {"mine": 2})) == 5
    variant = cfg("mine", m={"T": 5})
    variant.method.update(name="n", like="m")
    assert value(variant, "T") == 5


def test_defaults_have_rows_and_formulas_too() -> None:
    default = ("=min(30, num_clients*3/4)", {"*s": None, "x": 1})
    assert [value(cfg(name), "X", default) for name in ("mine", "x", "ours")] == [15, 1, None]
    with pytest.raises(KeyError):
        value(cfg(), "X")


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("=rounds/5", 10),
        ("= (rounds - 20) / 2", 14),
        ("=-rounds + 50", 2),
        ("=rounds/1000", 1),  # at least 1
        ("=rounds - 100", 1),
        ("=floor(rounds*99/100)", 47),
        ("=max(rounds, 50) + min(1, 2)", 51),
        ("=5/2", 2),  # to the even one
    ],
)
def test_formulas(formula: str, expected: int) -> None:
    assert value(cfg(settings={"default": {"T": formula}}), "T") == expected
    assert value(cfg(settings={"default": {"T": [formula, 3]}}), "T") == [expected, 3]


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("=rounds +", "invalid syntax"),
        ("=nothing", "there is no nothing"),
        ("=rounds ** 2", r"rounds \*\* 2 is not allowed"),
        ("=__import__('os')", "is not allowed"),
        ("=rounds.real", "is not allowed"),
        ("=True", "is not allowed"),
        ("=min()", "at least 1 argument"),
        ("=rounds/0", "division by zero"),
        ("=T", "recursion"),
    ],
)
def test_wrong_formulas_are_refused_in_one_line(formula: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        value(cfg(settings={"default": {"T": formula}}), "T")
    assert str(refused.value).startswith(f"method.settings.default.T{formula}: " if formula != "=T" else "method")
    assert "\n" not in str(refused.value)


def test_what_a_formula_takes_is_named_if_it_is_no_number() -> None:
    with pytest.raises(UserError, match=r"^method\.settings\.default\.text=a: must be a number"):
        value(cfg(settings={"default": {"T": "=text", "text": "a"}}), "T")
    with pytest.raises(UserError, match=r"^protocol\.rounds=many: must be a number"):
        value(cfg(rounds="many", settings={"default": {"T": "=rounds"}}), "T")


def test_rows_that_are_none_are_refused() -> None:
    with pytest.raises(UserError, match=r"^method\.settings\.ours=3: must have the values of a method"):
        value(cfg(settings={"ours": 3}), "T")


def test_settings_follow_the_rounds_of_the_protocol_and_are_not_of_the_record() -> None:
    plain = compose.resolved(compose.load(["method=feddiv", "protocol.rounds=100", "protocol.name=mine"]))
    assert (plain["method"]["T_wu"], plain["method"]["T"]) == (10, 80)
    assert "settings" not in plain["method"]


def test_a_protocol_may_have_a_number_for_a_name() -> None:
    assert compose.resolved(compose.load(["method=fedcorr", "protocol.name=0.5"]))["method"]["T1"] == 6
