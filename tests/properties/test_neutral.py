"""With its neutral hyper-parameters a method is FedAvg to the bit, and with any others it is not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.entries import DROPOUT, FEDAVG, NORMED, UNIFORM, Entry, Words, of_methods
from tests.properties.reference import References
from tests.properties.runs import difference, rounds

ONE = ("fraction=0.125",)  # one client a round


def local(term: str, value: str, beside: str = "") -> Words:
    """FedAvg with this loss, one of its values changed."""
    return (f"method/local=[{beside}{term}]", f"method.local.{term}.{value}", *FEDAVG)


CASES: dict[str, tuple[Words, Words]] = {
    "fedprox": (("method=fedprox", "method.mu=0", "rounds=4"), FEDAVG),
    "fedprox_with_batch_norm": (("method=fedprox", "method.mu=0", "rounds=4", *NORMED), (*FEDAVG, *NORMED)),
    "fedprox_with_dropout": (("method=fedprox", "method.mu=0", "rounds=4", *DROPOUT), (*FEDAVG, *DROPOUT)),
    "mixup": (("method=fedavg", "method/batch=mixup", "method.batch.alpha=0", "rounds=4"), FEDAVG),
    "trimmed_mean_of_all": (("method=trimmed_mean", "method.aggregator.share=0", "rounds=4"), UNIFORM),
    "multi_krum_of_all": (
        ("method=multi_krum", "method.aggregator.faulty=0", "method.aggregator.weights=samples", "rounds=4"),
        FEDAVG,
    ),
    "fedavgm_without_momentum": (("method=fedavgm", "method.server.beta=0", "rounds=4"), FEDAVG),
    "median_of_one": (("method=median", "rounds=4", *ONE), (*FEDAVG, *ONE)),
    "median_of_one_with_batch_norm": (("method=median", "rounds=4", *ONE, *NORMED), (*FEDAVG, *ONE, *NORMED)),
    "power_of_choice_of_all": (
        ("method=power_of_choice", "method/aggregator=mean", "fraction=1.0", "rounds=4"),
        (*FEDAVG, "fraction=1.0"),
    ),
    "label_smoothing": (local("label_smoothing", "r=0"), FEDAVG),
    "label_smoothing_later": (local("negative_label_smoothing", "start=4"), FEDAVG),
    "label_smoothing_and_mixup": (
        (*local("label_smoothing", "r=0"), "method/batch=mixup"),
        (*FEDAVG, "method/batch=mixup"),
    ),
    "soft_labels_of_one_person": (("method/local=[soft_labels]", *FEDAVG), FEDAVG),
    "temperature_scaling": (local("temperature_scaling", "temperature=1"), FEDAVG),
    "temperature_scaling_with_batch_norm": (
        (*local("temperature_scaling", "temperature=1"), *NORMED),
        (*FEDAVG, *NORMED),
    ),
    "symmetric_cross_entropy": (
        (*local("symmetric_cross_entropy", "alpha=1"), "method.local.symmetric_cross_entropy.beta=0"),
        FEDAVG,
    ),
    "entropy_minimization": (local("entropy_minimization", "weight=0", "cross_entropy,"), FEDAVG),
    "entropy_minimization_later": (local("entropy_minimization", "start=4", "cross_entropy,"), FEDAVG),
    "decorrelation": (local("decorrelation", "weight=0", "cross_entropy,"), FEDAVG),
    "truncated_gce": (local("truncated_gce", "kappa=0"), local("generalized_cross_entropy", "q=0.7")),
    "truncated_gce_later": (local("truncated_gce", "start=4"), local("generalized_cross_entropy", "q=0.7")),
    "mixup_in_no_stage": (("method=fedavg", "method/batch=mixup", "method.batch.stages=[]", "rounds=4"), FEDAVG),
    **{name: case for known in of_methods().values() for name, case in known.neutral.items()},
}
"""What is neutral, and what it then equals."""

ALIVE: dict[str, Words] = {
    "fedprox": ("method=fedprox", "method.mu=0.01", "rounds=4"),
    "mixup": ("method=fedavg", "method/batch=mixup", "rounds=4"),
    "uniform_mean": ("method=fedavg", "method/aggregator=uniform_mean", "rounds=4"),
    "median": ("method=median", "rounds=2"),
    "power_of_choice": ("method=power_of_choice", "method/aggregator=mean", "rounds=2"),
    "label_smoothing": local("label_smoothing", "r=0.01"),
    "temperature_scaling": local("temperature_scaling", "temperature=1.01"),
    "symmetric_cross_entropy": local("symmetric_cross_entropy", "alpha=1"),
    "entropy_minimization": local("entropy_minimization", "start=3", "cross_entropy,"),
    "decorrelation": local("decorrelation", "weight=0.01", "cross_entropy,"),
    "truncated_gce": local("truncated_gce", "start=0"),
    **{name: case for known in of_methods().values() for name, case in known.alive.items()},
}
"""What is not neutral; every one must differ from FedAvg."""


def chosen(case: str) -> frozenset[str]:
    """The method and the parts that a neutral case chooses."""
    return frozenset(word for word in CASES[case][0] if word.split("=")[0].split("/")[0] == "method")


def firsts_fast() -> list[Any]:
    """The cases as parameters; fast are those that are the first to choose their method and parts."""
    first = {chosen(case): case for case in reversed(CASES)}.values()
    return [case if case in first else pytest.param(case, marks=pytest.mark.slow) for case in CASES]


def test_of_every_method_with_a_neutral_case_one_is_fast() -> None:
    fast = {case for case in firsts_fast() if isinstance(case, str)}
    assert {overrides[0] for overrides, _ in CASES.values()} == {CASES[case][0][0] for case in fast} | {FEDAVG[0]}
    assert len(fast) < len(CASES)


@pytest.mark.parametrize("case", firsts_fast())
def test_neutral_it_is_the_other_to_the_bit(case: str, references: References, tmp_path: Path) -> None:
    overrides, equals = CASES[case]
    neutral = rounds(Entry("", overrides, {}).words, tmp_path / "neutral")
    plain = references.rounds(Entry("", equals, {}).words)
    for one, other in zip(neutral, plain, strict=True):
        assert difference(one.state.server.params, other.state.server.params) is None, other.state.round
        assert one.cohort == other.cohort
        both = one.metrics.keys() & other.metrics.keys()
        assert {name: one.metrics[name] for name in both} == {name: other.metrics[name] for name in both}
        assert not {name for name in one.metrics.keys() ^ other.metrics.keys() if not name.startswith("aggregation/")}
    assert neutral[-1].evaluation == plain[-1].evaluation


@pytest.mark.parametrize("case", ALIVE)
def test_otherwise_it_is_another_method(case: str, references: References, tmp_path: Path) -> None:
    words = ALIVE[case]
    other = rounds(Entry("", words, {}).words, tmp_path / "other")[-1]
    setting = (word for word in words if not word.startswith(("method", "rounds=")))
    same = (FEDAVG[0], *setting, f"rounds={other.state.round}")
    plain = references.rounds(Entry("", same, {}).words)[-1]
    assert difference(other.state.server.params, plain.state.server.params) is not None


FAST_SWITCHES = 2
"""As many switches of each run are tried every time, the others every night."""

SWITCHES = {words: switches for known in of_methods().values() for words, switches in known.switches.items()}
"""What each switch of a method must move, from where its paper has it."""


def in_two() -> Iterator[Any]:
    """The switches of each run as parameters: its first ones, which are fast, and the others."""
    for words, switches in SWITCHES.items():
        yield pytest.param(words, switches[:FAST_SWITCHES], id=f"{words[0]}-first")
        if switches[FAST_SWITCHES:]:
            yield pytest.param(words, switches[FAST_SWITCHES:], id=f"{words[0]}-others", marks=pytest.mark.slow)


@pytest.mark.parametrize(("words", "switches"), [*in_two()])
def test_every_switch_moves_something(words: Words, switches: Words, references: References, tmp_path: Path) -> None:
    """A switch that nothing reads would make an ablation of a paper a copy of the method."""
    paper = Entry("", words, {}).words
    base, idle = references.rounds(paper)[-1].state, []
    for number, switch in enumerate(switches):
        own = {word.split("=")[0] for word in switch.split()}
        kept = [word for word in paper if word.split("=")[0] not in own]
        other = rounds(kept, tmp_path / str(number), *switch.split())[-1].state
        if difference(base.server.params, other.server.params) is None:
            idle.append(switch)
    assert not idle
