"""Options of ``train/optimizer`` and ``train/schedule``: rates against torch, keys, and what contradicts itself."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from flnl.config import compose, identity
from flnl.config.check import check_config
from flnl.config.explain import no_such_key
from flnl.config.folders import CONF
from flnl.core.errors import UserError
from flnl.core.method import assemble
from flnl.core.optimizer import SGD, Adam, AdamW
from flnl.core.training import Training
from flnl.run.overrides import check_arguments
from tests.vectors.vectors import field

AVG = ("method=fedavg",)
ROUNDS = 12


def training(*words: str) -> Training:
    cfg = compose.load([*AVG, *words])
    check_config(cfg)
    return compose.training(cfg)


def key(*words: str) -> str:
    return identity.run_key(compose.resolved(compose.load([*AVG, *words])))


# ------------------------------------------------------------------------------------------------------ schedules

Schedule = torch.optim.lr_scheduler.LRScheduler
THEIRS: dict[tuple[str, ...], Callable[[torch.optim.Optimizer], Schedule]] = {
    ("constant",): lambda sgd: torch.optim.lr_scheduler.ConstantLR(sgd, 1.0),
    ("exponential", "train.lr_decay=0.8"): lambda sgd: torch.optim.lr_scheduler.ExponentialLR(sgd, 0.8),
    ("step", "train.milestone_every=3", "train.milestone_decay=0.5"): lambda sgd: torch.optim.lr_scheduler.StepLR(
        sgd, 3, 0.5
    ),
    ("multistep", "train.milestones=[2,7]"): lambda sgd: torch.optim.lr_scheduler.MultiStepLR(sgd, [2, 7], 0.1),
    ("cosine",): lambda sgd: torch.optim.lr_scheduler.CosineAnnealingLR(sgd, ROUNDS),
    ("cosine", "train.min_lr=0.02"): lambda sgd: torch.optim.lr_scheduler.CosineAnnealingLR(sgd, ROUNDS, 0.02),
    (
        "cosine",
        "train.min_lr=0.02",
        "train.cosine_every=5",
    ): lambda sgd: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(sgd, 5, 1, 0.02),
    ("linear",): lambda sgd: torch.optim.lr_scheduler.LinearLR(sgd, 1.0, 0.0, ROUNDS),
    ("linear", "train.min_lr=0.03"): lambda sgd: torch.optim.lr_scheduler.LinearLR(sgd, 1.0, 0.1, ROUNDS),
    ("linear", "train.linear_from=4"): lambda sgd: torch.optim.lr_scheduler.SequentialLR(
        sgd,
        [
            torch.optim.lr_scheduler.ConstantLR(sgd, 1.0),
            torch.optim.lr_scheduler.LinearLR(sgd, 1.0, 0.0, ROUNDS - 4),
        ],
        [4],
    ),
}


@pytest.mark.parametrize("words", THEIRS, ids=" ".join)
def test_rates_are_those_of_torch(words: tuple[str, ...]) -> None:
    ours = training(f"train/schedule={words[0]}", *words[1:], "train.lr=0.3")
    sgd = torch.optim.SGD([torch.zeros(1)], 0.3)
    theirs = THEIRS[words](sgd)
    for round in range(ROUNDS):
        assert ours.at(round, rounds=ROUNDS).lr == pytest.approx(sgd.param_groups[0]["lr"], rel=1e-12)
        sgd.step()
        theirs.step()


def test_a_cosine_over_rounds_still_moves_in_the_last_one() -> None:
    v = field("cosine.per_round")
    rounds = v.inputs["R"]
    for key, least in (("lr", v.inputs["min"]), ("lr_min_1e_4", 1e-4)):
        ours = training("train/schedule=cosine", f"train.lr={v.inputs['lr']}", f"train.min_lr={least}")
        assert [ours.at(r, rounds=rounds).lr for r in range(rounds)] == v.approx(key)


def test_the_rate_rises_in_the_warm_up_and_a_cosine_has_the_rounds_after_it() -> None:
    ours = training("train/schedule=cosine", "train.lr=0.4", "train.warmup=4", "train.min_lr=0.1")
    expected = [0.4 * (r + 1) / 4 for r in range(4)]
    expected += [0.1 + 0.15 * (1 + math.cos(math.pi * r / 6)) for r in range(6)]
    assert [ours.at(r, rounds=10).lr for r in range(10)] == pytest.approx(expected)
    again = replace(ours, cosine_every=3)
    assert [again.at(r, rounds=10).lr for r in range(4, 10)] == pytest.approx([*(s := expected[4::2]), *s])
    flat = training("train.lr=0.3", "train.warmup=3", "train.lr_decay=0.5")
    assert [flat.at(r).lr for r in range(4)] == pytest.approx([0.1, 0.1, 0.075, 0.0375])
    assert [flat.at(7, {"warmup": 2}, r).lr for r in range(2)] == pytest.approx([0.15 * 0.5**7, 0.3 * 0.5**7])
    stage = {"cosine": True}
    assert flat.at(9, stage, 1, stage_rounds=2).lr == pytest.approx(0.15 * 0.5**9), "the stage's own cosine"


def test_a_schedule_of_a_stage_counts_its_own_rounds() -> None:
    run = training("train/schedule=cosine", "train.lr=0.4")
    halfway = {"rounds": 20, "stage_rounds": 4}
    assert run.at(10, {}, 2, **halfway).lr == pytest.approx(0.2)
    assert run.at(10, {"cosine": True}, 2, **halfway).lr == pytest.approx(0.2)
    assert run.at(10, {"cosine": True}, 0, **halfway).lr == 0.4
    assert run.at(10, {"cosine": True, "min_lr": 0.1}, 3, **halfway).lr == pytest.approx(0.1 + 0.3 * (1 - 0.5**0.5) / 2)
    assert run.at(10, {"cosine": False, "milestone_every": 2}, 3, **halfway).lr == pytest.approx(0.04)
    assert run.at(10, {"cosine": False, "linear_from": 2}, 3, **halfway).lr == pytest.approx(0.2)
    assert run.at(0).lr == 0.4, "the first round needs no length"
    linear = training("train/schedule=linear", "train.lr=0.4", "train.linear_from=12")
    assert [linear.at(r, {"lr": 0.1}, 0, **halfway).lr for r in (12, 14)] == pytest.approx([0.1, 0.075])
    assert linear.at(12).lr == 0.4, "until the rate falls no length is needed"


def test_factors_multiply() -> None:
    both = training("train/schedule=cosine", "train.lr=0.4", "train.lr_decay=0.5", "train.min_lr=0.01")
    assert both.at(2, rounds=4).lr == pytest.approx(0.01 + (0.1 - 0.01) / 2)
    steps = training("train/schedule=step", "train.milestone_every=2", "train.milestones=[3]", "train.lr=1.0")
    assert [steps.at(r).lr for r in range(5)] == pytest.approx([1.0, 1.0, 0.1, 0.01, 0.001])


def test_every_schedule_sets_the_same_keys() -> None:
    files = sorted((CONF / "train" / "schedule").glob("*.yaml"))
    keys = {file.stem: set(OmegaConf.load(file)) for file in files}
    assert set(keys) == {"constant", "cosine", "exponential", "linear", "multistep", "protocol", "step"}
    assert all(own == keys["protocol"] for own in keys.values())


def test_the_protocols_decay_holds_unless_a_schedule_is_chosen() -> None:
    words = ("dataset=cifar10", "method=feddyn")
    decays = {name: training(*words, *more).lr_decay for name, more in SCHEDULES.items()}
    assert decays == {"none": 0.998, "protocol": 0.998, "constant": 1.0, "cosine": 1.0}


SCHEDULES = {"none": (), **{name: (f"train/schedule={name}",) for name in ("protocol", "constant", "cosine")}}

# --------------------------------------------------------------------------------------------------- optimisers


def test_options_build_their_optimizer() -> None:
    assert training().optimizer == SGD()
    adam = training("train/optimizer=adam", "train.optimizer.beta2=0.99")
    assert (adam.optimizer, adam.lr, adam.momentum) == (Adam(0.9, 0.99, 1e-8), 0.001, 0.0)
    assert training("train/optimizer=adamw", "train.lr=0.01").lr == 0.01
    assert training("train/optimizer=adamw").weight_decay == training().weight_decay


def test_a_stage_may_have_an_optimizer_of_its_own() -> None:
    words = ["method=forward_correction", "+train/optimizer@method.stages.usual.train=adamw"]
    check_arguments(words)
    cfg = compose.load(words)
    check_config(cfg)
    stages = assemble(compose.build(cfg.method)).stages
    here = compose.training(cfg).at(3, stages[1].train)
    assert (here.optimizer, here.lr, here.momentum) == (AdamW(0.9, 0.999, 1e-8), 0.001, 0.0)
    assert not stages[0].train


def test_keys_count_only_what_is_set() -> None:
    """What the defaults stand for has the keys of runs from before there were these settings."""
    same = ("train/optimizer=sgd", "train/schedule=protocol", "train/schedule=constant", "train.steps=null")
    assert {key(word) for word in same} == {key()}
    assert key("train/schedule=multistep", "train.milestones=[3]") == key("train.milestones=[3]")
    assert key("train/schedule=exponential", "train.lr_decay=0.9") == key("train.lr_decay=0.9")
    others = (
        *("train/optimizer=adam", "train/optimizer=adamw", "train.optimizer._target_=flnl.core.optimizer.Adam"),
        *("train/schedule=cosine", "train/schedule=step", "train/schedule=exponential", "train.steps=7"),
        *("train.clip=1.0", "train.min_lr=0.001", "train.milestones=[3]", "train/schedule=linear"),
        *("train.linear_from=7", "train.cosine_every=7", "train.warmup=7"),
    )
    assert len({key(), *map(key, others)}) == len(others) + 1
    plain = compose.resolved(compose.load(AVG))
    for name in ("optimizer", "steps", "clip", "cosine", "linear_from", "min_lr", "milestone_every", "warmup"):
        assert not any(k.startswith(f"train.{name}") for k in identity.identity(plain))


# -------------------------------------------------------------------------------------------------------- faults

REFUSED = {
    ("train.optimizer=adam",): "train.optimizer=adam: must be a part, with a _target_ and its values; "
    "choose one with train/optimizer=adam, adamw, sgd",
    ("train.optimizer._target_=flnl.parts.batches.Plain",): "train.optimizer._target_=flnl.parts.batches.Plain: cannot",
    ("train/optimizer=adam", "train.optimizer.beta1=1.0"): "train.optimizer.beta1=1.0: must be less than 1",
    ("train/optimizer=adam", "train.momentum=0.9"): "train.momentum: Adam has no momentum of SGD's (it is 0.9)",
    (
        "train/optimizer=adam",
        "+method.stages.training.train.momentum=0.5",
    ): "method.stages.training.train.momentum: Adam has no",
    (
        "train/schedule=cosine",
        "train.min_lr=0.2",
        "train.lr=0.1",
    ): "train.min_lr=0.2: the cosine ends at min_lr, which is above lr=0.1",
    (
        "train.visit_cosine=true",
        "train.lr=0.1",
        "train.min_lr=0.2",
    ): "train.visit_cosine: the rate falls to min_lr, which is above lr=0.1",
    (
        "train/schedule=linear",
        "train.min_lr=0.2",
        "train.lr=0.1",
    ): "train.min_lr=0.2: the linear fall ends at min_lr, which is above lr=0.1",
    (
        "train/schedule=linear",
        "train.cosine=true",
    ): "train.cosine: the rate falls along a cosine or linearly from round 0 on; set one of them",
    ("train.cosine_every=5",): "train.cosine_every=5: there is no cosine; set cosine=true",
    ("train.linear_from=-1",): "train.linear_from=-1: must be greater than or equal to 0",
    ("train.clip=0.0",): "train.clip=0.0: must be greater than 0",
    ("train.steps=0",): "train.steps=0: must be greater than or equal to 1",
    ("train.milestone_every=0",): "train.milestone_every=0: must be greater than or equal to 1",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_wrong_values_are_refused_by_their_key(words: tuple[str, ...]) -> None:
    cfg = compose.load([*AVG, *words])
    with pytest.raises(UserError, match=f"^{re.escape(REFUSED[words])}"):
        check_config(cfg)


def test_a_key_that_is_taken_out_has_its_neutral_value() -> None:
    for word in ("~train.optimizer", "~train.cosine", "~train.min_lr", "~train.milestones"):
        assert training(word) == training()
    assert key("~train.optimizer") == key()


def test_unknown_options_and_keys_name_what_there_is() -> None:
    assert "train.clip" in no_such_key("train.clp")
    for word in ("train/optimizer=[adam,sgd]", "train/optimizer=null"):
        with pytest.raises(UserError, match="train/optimizer takes one of adam, adamw, sgd"):
            check_arguments([word])


def test_the_run_says_how_it_trains() -> None:
    def described(*words: Any) -> str:
        return training(*words, "train.lr=0.05", "train.epochs=5", "train.batch_size=10").described()

    assert described() == "lr 0.05, batch 10, 5 epochs"
    assert described("train/optimizer=adamw", "train.steps=20", "train.clip=1.0", "train/schedule=cosine") == (
        "AdamW, lr 0.05 falling to 0 along a cosine, batch 10, 20 steps, gradients clipped to 1"
    )
    assert described("train/schedule=linear", "train.min_lr=0.01") == (
        "lr 0.05 falling to 0.01 linearly, batch 10, 5 epochs"
    )
    assert described("train.linear_from=8") == "lr 0.05 falling to 0 linearly after round 8, batch 10, 5 epochs"
    assert "lr 0.05 after 3 rounds of warm-up falling to 0 along a cosine" in described(
        "train/schedule=cosine", "train.warmup=3"
    )
    assert "along a cosine every 4 rounds" in described("train/schedule=cosine", "train.cosine_every=4")
    assert described("train.lr_decay=0.99", "train.milestones=[3,5]", "train.milestone_every=7") == (
        "lr 0.05 times 0.99 a round and 0.1 after rounds 3, 5 and 0.1 every 7 rounds, batch 10, 5 epochs"
    )
