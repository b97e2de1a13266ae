"""With its neutral hyper-parameters a method is FedAvg to the bit, and with any others it is not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flnl.core.state import FederatedState
from tests.properties.reference import References
from tests.properties.runs import difference, rounds
from tests.registry import NORMED, Entry

FEDAVG = ("method=fedavg", "rounds=4")
UNTOUCHED = ("method.T1=0", "method.T2=4", "method.T3=0")
NEUTRAL = ("method.beta=0", "method.correction=false", "method.kappa=1", "method.mixup=false", *UNTOUCHED)
LAST_ONLY = ("method.T1=0", "method.T2=0", "method.T3=4", "method.mixup=false")
DROPOUT = ("model=cnn", "model.widths=[4,8]", "model.dropout=0.3", "~model.hidden")

ONE = ("fraction=0.125",)  # one client a round


def local(term: str, value: str, beside: str = "") -> tuple[str, ...]:
    """FedAvg with this loss, one of its values changed."""
    return (f"method/local=[{beside}{term}]", f"method.local.{term}.{value}", *FEDAVG)


HALVES = ("method.T_wu=2", "method.T=2")
JOINT_OPT = ("method.alpha=0", "method.beta=0", "method.update_from=null", *HALVES, "method.epochs=2")
REVISED = ("method.T_wu=2", "method.T_lc=2", "method.T=0")
UNIFORM = (*FEDAVG, "method/aggregator=uniform_mean")
ROFL_NEUTRAL = ("method.forget_rate=0", "method.lambda_cen=0", "method.lambda_e=0", "method.T_pl=4", "rounds=4")
FLR_FOUR = ("method.R_w=1", "rounds=4")
FLR_STAGES = ("method.T1=1", "method.T2=2", "method.T3=2", "method.theta=0.15", "noise.rho=0.8")

CASES = {
    "fedprox": (("method=fedprox", "method.mu=0", "rounds=4"), FEDAVG),
    "fedprox_with_batch_norm": (("method=fedprox", "method.mu=0", "rounds=4", *NORMED), (*FEDAVG, *NORMED)),
    "fedprox_with_dropout": (("method=fedprox", "method.mu=0", "rounds=4", *DROPOUT), (*FEDAVG, *DROPOUT)),
    "mixup": (("method=fedavg", "method/batch=mixup", "method.batch.alpha=0", "rounds=4"), FEDAVG),
    "feddyn": (
        ("method=feddyn", "method.feddyn_alpha=0", "method/server=replace", "rounds=4"),
        (*FEDAVG, "method/aggregator=uniform_mean"),
    ),
    "feddyn_with_batch_norm": (
        ("method=feddyn", "method.feddyn_alpha=0", "method/server=replace", "rounds=4", *NORMED),
        (*FEDAVG, "method/aggregator=uniform_mean", *NORMED),
    ),
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
    "truncated_gce": (local("truncated_gce", "kappa=0"), local("generalized_cross_entropy", "q=0.7")),
    "truncated_gce_later": (local("truncated_gce", "start=4"), local("generalized_cross_entropy", "q=0.7")),
    "fedcorr_and_feddyn": (
        ("method=fedcorr", "method/local=[cross_entropy,feddyn]", "method/server=feddyn", *LAST_ONLY),
        ("method=feddyn", "method/aggregator=mean", "rounds=4"),
    ),
    "mixup_in_no_stage": (("method=fedavg", "method/batch=mixup", "method.batch.stages=[]", "rounds=4"), FEDAVG),
    "fedcorr": (("method=fedcorr", *NEUTRAL), FEDAVG),
    "fedcorr_with_batch_norm": (("method=fedcorr", *NEUTRAL, *NORMED), (*FEDAVG, *NORMED)),
    "fedcorr_with_dropout": (("method=fedcorr", *NEUTRAL, *DROPOUT), (*FEDAVG, *DROPOUT)),
    "fedcorr_alpha": (("method=fedcorr", *NEUTRAL[:-4], "method.mixup_alpha=0", *UNTOUCHED), FEDAVG),
    "fedcorr_last_stage": (
        ("method=fedcorr", *LAST_ONLY),
        FEDAVG,
    ),
    "fedcorr_of_two_stages": (
        ("method=fedcorr", *NEUTRAL[:-3], "method.T1=0", "method.T2=1", "method.T3=3"),
        FEDAVG,
    ),
    "fedcorr_and_fedprox": (
        ("method=fedcorr", "method/local=[cross_entropy,fedprox]", "method.local.fedprox.mu=0.1", *LAST_ONLY),
        ("method=fedprox", "method.mu=0.1", "rounds=4"),
    ),
    "feddiv_that_doubts_nothing": (
        ("method=feddiv", "method.threshold=0", "method.mixup=false", "method.eta=0", "method.T_wu=0", "method.T=4"),
        FEDAVG,
    ),
    "feddiv_that_takes_nobody_for_noisy": (
        (
            *("method=feddiv", "method.delta=1", "method.strict_delta=true", "method.mixup=false", "method.eta=0"),
            *("method.T_wu=0", "method.T=4", *NORMED),
        ),
        (*FEDAVG, *NORMED),
    ),
    "fedes_of_equals": (
        ("method=fedes", "method.rho_floor=1", "method.s1=2", "method.T=2", "fraction=1.0", "train.momentum=0.9"),
        (*FEDAVG, "fraction=1.0", "train.momentum=0.9"),
    ),
    "fedes_of_equals_in_its_released_form": (
        (
            *("method=fedes", "method.rho_floor=1", "method.s1=2", "method.T=2", "fraction=1.0", *NORMED),
            *("method.mask=per_step", "method.mask_target=grad"),
        ),
        (*FEDAVG, "fraction=1.0", *NORMED),
    ),
    "fedes_that_compares_nobody": (("method=fedes", "method.s1=0", "method.T=4"), FEDAVG),
    "fedes_without_its_schemes": (
        (
            "method=fedes",
            "method.segd=false",
            "method.aggregation=samples",
            "method.s1=2",
            "method.T=2",
            "fraction=1.0",
        ),
        (*FEDAVG, "fraction=1.0"),
    ),
    "fedcorr_with_mixup": (
        ("method=fedcorr", "method.T1=0", "method.T2=0", "method.T3=4"),
        ("method=fedavg", "method/batch=mixup", "rounds=4"),
    ),
    "flr": (("method=flr", "method.lam=0", "rounds=4"), FEDAVG),
    "flr_vanilla": (("method=flr", "method.R_w=0", "method.pseudo_label=vanilla", "rounds=4"), FEDAVG),
    "flr_that_never_leaves_its_warm_up": (("method=flr", "method.R_w=4", "rounds=4"), FEDAVG),
    "flr_with_batch_norm": (("method=flr", "method.lam=0", "rounds=4", *NORMED), (*FEDAVG, *NORMED)),
    "flr_with_dropout": (("method=flr", "method.lam=0", "rounds=4", *DROPOUT), (*FEDAVG, *DROPOUT)),
    "flr_and_mixup": (
        ("method=flr", "method.lam=0", "method/batch=mixup", "rounds=4"),
        ("method=fedavg", "method/batch=mixup", "rounds=4"),
    ),
    "flr_and_fedprox": (
        ("method=fedprox", "method.mu=0.1", "method/local=[flr,fedprox]", "method.local.flr.lam=0", "rounds=4"),
        ("method=fedprox", "method.mu=0.1", "rounds=4"),
    ),
    "flr_plus": (
        ("method=flr_plus", "method.lam=0", *FLR_STAGES),
        ("method=fedcorr", *FLR_STAGES),
    ),
    "elr": (("method=elr", "method.lam=0", "rounds=4"), FEDAVG),
    "elr_as_a_case_of_flr": (
        ("method=elr", "method.lam=4", "method.beta=0.5", "rounds=4"),
        (
            *("method=flr_elr", "method.init=zero", "method.clamp=normalised", "method.R_w=0", "method.lam=4"),
            "rounds=4",
        ),
    ),
    "flr_elr": (("method=flr", "method.special=elr", *FLR_FOUR), ("method=flr_elr", *FLR_FOUR)),
    "flr_local_only": (("method=flr", "method.pseudo_label=local_only", *FLR_FOUR), ("method=flr_elr", *FLR_FOUR)),
    "flr_global_only": (("method=flr", "method.pseudo_label=global_only", *FLR_FOUR), ("method=flr_slr", *FLR_FOUR)),
    "flr_elr_by_its_values": (
        ("method=flr", "method.alpha=0", "method.alpha_schedule=constant", *FLR_FOUR),
        ("method=flr_elr", *FLR_FOUR),
    ),
    "flr_er_by_its_values": (
        ("method=flr", "method.alpha=0", "method.gamma=0", *FLR_FOUR),
        ("method=flr_er", *FLR_FOUR),
    ),
    "fedpeer": (("method=fedpeer", "method.beta=0", "rounds=4"), FEDAVG),
    "fedpeer_with_dropout": (("method=fedpeer", "method.beta=0", "rounds=4", *DROPOUT), (*FEDAVG, *DROPOUT)),
    "fedpeer_and_mixup": (
        ("method=fedpeer", "method.beta=0", "method.peer=cores", "method/batch=mixup", "rounds=4"),
        ("method=fedavg", "method/batch=mixup", "rounds=4"),
    ),
    "fedpeer_before_its_ramp": (("method=fedpeer", "method.ramp=true", "method.ramp_start=4", "rounds=4"), FEDAVG),
    "rofl": (("method=rofl", *ROFL_NEUTRAL), UNIFORM),
    "rofl_with_batch_norm": (("method=rofl", *ROFL_NEUTRAL, *NORMED), (*UNIFORM, *NORMED)),
    "rofl_with_dropout": (("method=rofl", *ROFL_NEUTRAL, *DROPOUT), (*UNIFORM, *DROPOUT)),
    "rofl_and_mixup": (("method=rofl", "method/batch=mixup", *ROFL_NEUTRAL), (*UNIFORM, "method/batch=mixup")),
    "s_fedavg_of_all": (
        ("method=s_fedavg", "fraction=1.0", "eval.benchmark=0.2", "rounds=4"),
        (*FEDAVG, "method/aggregator=uniform_mean", "fraction=1.0", "eval.benchmark=0.2"),
    ),
    "forward_correction_of_nobody_sure": (("method=forward_correction", "method.threshold=1", *HALVES), FEDAVG),
    "forward_correction_with_dropout": (
        ("method=forward_correction", "method.threshold=1", *HALVES, *DROPOUT),
        (*FEDAVG, *DROPOUT),
    ),
    "forward_correction_that_never_begins": (
        ("method=forward_correction", "method.threshold=0.15", "method.T_wu=4", "method.T=0"),
        FEDAVG,
    ),
    "t_revision_that_revises_nothing": (
        ("method=t_revision", "method.estimator=confident", "method.threshold=0.15", *REVISED),
        ("method=forward_correction", "method.threshold=0.15", *HALVES),
    ),
    "t_revision_that_never_leaves_its_warm_up": (
        ("method=t_revision", "method.T_wu=4", "method.T_lc=0", "method.T=0"),
        FEDAVG,
    ),
    "fedlsr_plus_without_its_entropy": (
        ("method=fedlsr", "method.plus=true", "method.lambda_e=0", "rounds=4"),
        ("method=fedlsr", "rounds=4"),
    ),
    "joint_opt_that_leaves_labels_as_they_are": (
        (
            *("method=joint_opt", "method.alpha=0", "method.beta=0", "method.update_from=null", *HALVES),
            *("method.epochs=${train.epochs}", "noise.rho=0.6"),
        ),
        (*FEDAVG, "noise.rho=0.6"),
    ),
    "fedrn_that_never_leaves_its_warm_up": (("method=fedrn", "method.T_wu=4", "method.T=0"), FEDAVG),
    "fedpeer_without_privacy": (
        ("method=fedpeer", "method.epsilon=100.0", "rounds=4"),
        ("method=fedpeer", "method.peer_dist=global_true", "rounds=4"),
    ),
}
"""What is neutral, and what it then equals."""

ALIVE = {
    "fedprox": ("method=fedprox", "method.mu=0.01", "rounds=4"),
    "mixup": ("method=fedavg", "method/batch=mixup", "rounds=4"),
    "uniform_mean": ("method=fedavg", "method/aggregator=uniform_mean", "rounds=4"),
    "feddyn_alpha": ("method=feddyn", "method.feddyn_alpha=0.01", "method/server=replace", "rounds=2"),
    "feddyn_server": ("method=feddyn", "method.feddyn_alpha=0", "rounds=2"),
    "median": ("method=median", "rounds=2"),
    "power_of_choice": ("method=power_of_choice", "method/aggregator=mean", "rounds=2"),
    "label_smoothing": local("label_smoothing", "r=0.01"),
    "temperature_scaling": local("temperature_scaling", "temperature=1.01"),
    "symmetric_cross_entropy": local("symmetric_cross_entropy", "alpha=1"),
    "entropy_minimization": local("entropy_minimization", "start=3", "cross_entropy,"),
    "truncated_gce": local("truncated_gce", "start=0"),
    "fedcorr_mixup": ("method=fedcorr", *NEUTRAL[:-4], *UNTOUCHED),
    "fedcorr_first_stage": ("method=fedcorr", *NEUTRAL[:-3], "method.T1=1", "method.T2=4", "method.T3=0"),
    "flr": ("method=flr", *FLR_FOUR),
    "elr": ("method=elr", "rounds=4"),
    "fedpeer": ("method=fedpeer", "rounds=4"),
    "arfl": ("method=arfl", "rounds=4"),
    "rofl": ("method=rofl", *ROFL_NEUTRAL[1:], "method/aggregator=mean", "method.forget_rate=0.2"),
    "fair": ("method=fair", "method/sampler=uniform", "eval.benchmark=0.2", "rounds=4"),
    "s_fedavg": ("method=s_fedavg", "method/aggregator=mean", "eval.benchmark=0.2", "rounds=4"),
    "forward_correction": ("method=forward_correction", "method.threshold=0.15", *HALVES),
    "fednoro": ("method=fednoro", "method.s1=1", "method.T=0"),
    "fedlsr": ("method=fedlsr", "method.gamma=0", "rounds=4"),
    "fedrn": ("method=fedrn", "method.T_wu=1", "method.T=3"),
    "dividemix": ("method=dividemix", "method.T_wu=1", "method.T=3"),
    "joint_opt_prior": ("method=joint_opt", *JOINT_OPT, "method.alpha=0.1"),
    "joint_opt_entropy": ("method=joint_opt", *JOINT_OPT, "method.beta=0.1"),
    "joint_opt_epochs": ("method=joint_opt", *JOINT_OPT[:-1], "method.epochs=3"),
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
        assert one.metrics == other.metrics
    assert neutral[-1].evaluation == plain[-1].evaluation


@pytest.mark.parametrize("case", ALIVE)
def test_otherwise_it_is_another_method(case: str, references: References, tmp_path: Path) -> None:
    other = rounds(Entry("", ALIVE[case], {}).words, tmp_path / "other")[-1]
    plain = references.rounds(Entry("", FEDAVG, {}).words)[-1]
    assert difference(other.state.server.params, plain.state.server.params) is not None


FAST_SWITCHES = 2
"""As many switches of each method are tried every time, the others every night."""

SMALL = ("method=fedcorr", "method.T1=2", "method.T2=2", "method.T3=1", "method.theta=0.15", "noise.rho=0.6")
ABLATIONS = (
    "method.beta=0",
    "method.correction=false",
    "method.mixup=false",
    "method.mixup_stages=[1]",
    "method.kappa=1",
    "method.gamma1=0.5",
    "method.stage1=parallel_average",
    "method.prox=norm",
    "method.rank_loss=global",
    "method.loss=ce_of_softmax",
    "method.pi=0.2",
    "method.theta=0.4",
    "method.k_lid=3",
)


def few_fast(switches: Sequence[str]) -> list[Any]:
    """Switches of a method as parameters, of which the first ones are fast."""
    slow = (pytest.param(switch, marks=pytest.mark.slow) for switch in switches[FAST_SWITCHES:])
    return [*switches[:FAST_SWITCHES], *slow]


@pytest.fixture
def base(references: References) -> FederatedState:
    """Where FedCorr ends with every switch as the paper has it."""
    return references.rounds(Entry("", SMALL, {}).words)[-1].state


@pytest.mark.parametrize("switch", few_fast(ABLATIONS))
def test_every_switch_of_fedcorr_moves_something(switch: str, base: FederatedState, tmp_path: Path) -> None:
    """A switch that nothing reads would make an ablation of a paper a copy of the method."""
    words = [w for w in Entry("", SMALL, {}).words if w.split("=")[0] not in switch]
    assert difference(base, rounds(words, tmp_path / "other", *switch.split())[-1].state) is not None


def test_who_relabels_after_fine_tuning_can_be_chosen(tmp_path: Path) -> None:
    """The two readings differ where a client on the noisy side of the split is below kappa."""
    words = Entry("", (*SMALL, "method.kappa=0.6"), {}).words
    paper, released = (
        rounds(words, tmp_path / name, f"method.relabel_set={name}")[-1].state for name in ("paper", "lid_noisy")
    )
    assert difference(paper, released) is not None


FLR_SMALL = ("method=flr", "method.R_w=1", "rounds=4", "noise.rho=0.6")
FLR_SWITCHES = (
    "method.lam=1",
    "method.alpha=0.5",
    "method.beta=0.1",
    "method.gamma=0.1",
    "method.R=3",
    "method.R_w=2",
    "method.alpha_schedule=constant",
    "method.warmup=server_reg",
    "method.warmup=scheduled",
    "method.pseudo_label=local_only",
    "method.pseudo_label=global_only",
    "method.special=er",
    "method.server_pred=once",
    "method.init=zero",
    "method.inner_max=0.1",
)


@pytest.fixture
def flr(references: References) -> FederatedState:
    """Where FLR ends with every switch at its default."""
    return references.rounds(Entry("", FLR_SMALL, {}).words)[-1].state


@pytest.mark.parametrize("switch", few_fast(FLR_SWITCHES))
def test_every_switch_of_flr_moves_something(switch: str, flr: FederatedState, tmp_path: Path) -> None:
    words = [w for w in Entry("", FLR_SMALL, {}).words if w.split("=")[0] != switch.split("=")[0]]
    other = rounds(words, tmp_path / "other", switch)[-1].state
    assert difference(flr.server.params, other.server.params) is not None


def test_what_is_clamped_in_flr_can_be_chosen(tmp_path: Path) -> None:
    """By default neither clamp is met in so few rounds."""
    words = Entry("", (*FLR_SMALL, "method.inner_max=0.8"), {}).words
    inner, each = (rounds(words, tmp_path / name, f"method.clamp={name}")[-1].state for name in ("inner", "normalised"))
    assert difference(inner.server.params, each.server.params) is not None


PEER_SMALL = ("method=fedpeer", "rounds=3", "partition=openset", "noise=symmetric")
PEER_SWITCHES = (
    "method.epsilon=1.0",
    "method.peer_dist=global_true",
    "method.peer_dist=local",
    "method.peer_dist=uniform",
    "method.peer=cores",
    "method.beta=0.5",
    "method.ramp=true",
    "method.prob_floor=0.1",
    "method.floor_terms=both",
)


@pytest.fixture
def fedpeer(references: References) -> FederatedState:
    """Where FedPeer ends with every switch at its default."""
    return references.rounds(Entry("", PEER_SMALL, {}).words)[-1].state


@pytest.mark.parametrize("switch", few_fast(PEER_SWITCHES))
def test_every_switch_of_fedpeer_moves_something(switch: str, fedpeer: FederatedState, tmp_path: Path) -> None:
    other = rounds(Entry("", PEER_SMALL, {}).words, tmp_path / "other", switch)[-1].state
    assert difference(fedpeer.server.params, other.server.params) is not None


DIV = (
    *("method=feddiv", "method.T_wu=1", "method.T=6", "method.zeta=0.2", "method.at_least=1", "method.eta=1.0"),
    *("noise.rho=0.8", "fraction=0.25", "dataset.train_size=400"),
)
ES = ("method=fedes", "method.s1=2", "method.T=2", "noise.rho=0.8", "fraction=1.0", "train.weight_decay=0.001")
S_FEDAVG = (
    *("method=s_fedavg", "method.temperature=0.001", "eval.benchmark=0.4", "rounds=5", "noise.rho=0.8"),
    *("partition=fedcorr", "partition.num_clients=12", "fraction=0.6"),
)
FAIR = (
    *("method=fair", "eval.benchmark=0.4", "rounds=9", "noise.rho=0.8", "partition=fedcorr"),
    *("partition.num_clients=12", "fraction=0.4", "train.lr=0.15"),
)
ROFL = (
    *("method=rofl", "method.num_gradual=2", "method.T_pl=2", "rounds=4", "noise=symmetric", "noise.eta=0.4"),
    *("partition=fedcorr", "train.lr=0.1"),
)
ARFL = ("method=arfl", "rounds=2", "noise.rho=0.6", "partition=fedcorr", *NORMED)
TEACHING = (
    *("method=co_teaching_plus", "method.disagree_from=2", "method.num_gradual=3", "method.forget_rate=0.4"),
    *("rounds=4", "noise=symmetric", "noise.eta=0.4"),
)
LC = ("method=forward_correction", "method.threshold=0.15", *HALVES, "noise=symmetric", "noise.eta=0.4")
TR = ("method=t_revision", "method.T_wu=2", "method.T_lc=1", "method.T=3", "method.slack_lr=0.01", *LC[4:])
NORO = (
    *("method=fednoro", "method.s1=2", "method.T=2", "method.ramp_end=3", "noise.rho=0.6", "fraction=1.0"),
    *NORMED,
)
LSR = ("method=fedlsr", "rounds=3", "noise.rho=0.6")
RN = ("method=fedrn", "method.T_wu=2", "method.T=2", "noise.rho=0.8", "fraction=1.0", "train.lr=0.2")
OPT = (
    *("method=joint_opt", "method.T_wu=1", "method.T=3", "method.window=3", "method.epochs=4", "noise.rho=0.8"),
    "train.lr=0.2",
)
DIVIDE = ("method=dividemix", "method.T_wu=2", "method.T=2", "noise.rho=0.8", "train.lr=0.2")
SWITCHES = {
    DIVIDE: (
        *("method.lambda_u=1", "method.refit=epoch", "method.threshold=0.9", "method.history=5", "method.penalty=true"),
        *("method.alpha=0.5", "method.temperature=1", "method.ramp=1", "method.clock=rounds", "method.prior=labels"),
        *("method.epochs=3", "method.local.mixmatch.lambda_r=0"),
        *(
            f"method.exchange.division.fitting.{value}"
            for value in ("tolerance=1.0", "min_variance=0.1", "iterations=1")
        ),
    ),
    OPT: (
        *("method.alpha=0.5", "method.beta=0.2", "method.prior=labels", "method.update_from=1", "method.window=2"),
        *("method.epochs=5", "method.T_final=1", "method.incomplete=average method.window=9"),
    ),
    FAIR: (
        *("method.loss_on=local", "method.rho=0.01", "method.exploration=0.9", "method.nonpositive=skip"),
        *("method/sampler=uniform", "method/aggregator=mean"),
    ),
    S_FEDAVG: (
        *("method.alpha=0.1", "method.beta=1.0", "method.temperature=0.1", "method.permutations=1"),
        *("method.tolerance=0.3", "method.exchange.relevance.weights=samples", "method/sampler=uniform"),
    ),
    ARFL: ("method.lam=1.0", "method.delta=0.7", "method.aggregator.distance_buffers=true", "method/aggregator=mean"),
    TEACHING: (
        *("method.forget_rate=0.1", "method.num_gradual=1", "method.exponent=2.0", "method.schedule=released"),
        *("method.disagree_from=1", "method.disagree_from=null"),
    ),
    ROFL: (
        *("method.forget_rate=0.1", "method.num_gradual=4", "method.schedule=released", "method.T_pl=3"),
        *("method.lambda_cen=0.5", "method.lambda_e=0.1", "method.cen_reduction=sum", "method.detach_features=true"),
        "method/aggregator=mean",
    ),
    LC: (
        *("method.threshold=0.3", "method.min_count=4", "method.form=reweight", "method.estimator=anchor"),
        "method.restart=true",
        "method.estimator=anchor method.percentile=20",
        "method.estimator=anchor method.percentile=null",
    ),
    TR: (
        *("method.correction=reweight", "method.form=reweight", "method.slack_lr=0.1", "method.slack_decay=1"),
        *("method.estimator=confident method.threshold=0.15", "method.percentile=50", "method.percentile=null"),
    ),
    NORO: (
        *("method.temperature=2", "method.distillation=0.2", "method.ramp_end=8", "method.distance=flat_l2"),
        *("method.distance_buffers=true", "method/aggregator=mean"),
    ),
    LSR: (
        *("method.gamma=0.1", "method.warmup=0", "method.plus=true", "method.variant=official_code"),
        *("method.view=mirror", "method.degrees=10", "method.local.fedlsr.sharpening=1"),
        "method.local.fedlsr.sharpening_js=1",
    ),
    RN: (
        *("method.neighbours=0", "method.neighbours=1", "method.alpha=0", "method.alpha=1", "method.threshold=0.8"),
        *("method.head_lr=0.01", "method.head_epochs=3", "method/batch=plain"),
        *(f"method.exchange.reliable_neighbours.{value}" for value in ("tolerance=1.0", "min_variance=0.1")),
        "method.exchange.reliable_neighbours.head.momentum=0.9",
    ),
    DIV: (
        *("method.filter=degraded", "method.filter=local", "method.filter_init=blobs", "method.var_agg=squared_share"),
        *("method.var_agg=moment_matching", "method.loss=ce", "method.loss_norm=none"),
        *("method.threshold=0.9", "method.delta=0.9", "method.zeta=0.6", "method.relabel=false"),
        *("method.relabel_min_delta=0.9", "method.pcs=cached", "method.pcs=off", "method.clean_agrees=true"),
        *("method.pcs=cached method.pcs_start=4", "method.xi=0", "method.m=0.9", "method.at_least=20"),
        *("method.eta=0", "method.mixup=false", "method.warmup_mixup=false", "method.gamma1=0.4"),
        "method.bias_samples=confident",
    ),
    ES: (  # the sign moves nothing here: every client moved more than their mean
        *("method.quality=confidence method.confidence=0.3", "method.cop_params=all"),
        *("method.cop_norm=none", "method.rho_floor=0.5", "method.mask=per_step", "method.mask_target=grad"),
        *("method.segd=false", "method.aggregation=samples", "method/sampler=of_quality"),
    ),
}
"""What each switch of a method must move, from where its paper has it."""


@pytest.mark.parametrize("words", SWITCHES, ids=lambda words: words[0])
@pytest.mark.parametrize(
    "tried", [slice(FAST_SWITCHES), pytest.param(slice(FAST_SWITCHES, None), marks=pytest.mark.slow)], ids=str
)
def test_every_switch_moves_something(
    words: tuple[str, ...], tried: slice, references: References, tmp_path: Path
) -> None:
    """A switch that nothing reads would make an ablation of a paper a copy of the method."""
    paper = Entry("", words, {}).words
    base, idle = references.rounds(paper)[-1].state, []
    for number, switch in enumerate(SWITCHES[words][tried]):
        own = {word.split("=")[0] for word in switch.split()}
        kept = [word for word in paper if word.split("=")[0] not in own]
        other = rounds(kept, tmp_path / str(number), *switch.split())[-1].state
        if difference(base.server.params, other.server.params) is None:
            idle.append(switch)
    assert not idle
