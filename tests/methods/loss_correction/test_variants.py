"""LC and T-revision as their first authors have them: anchors, revision and schedules against the vectors."""

from typing import Any

import numpy as np
import pytest
import torch

from flnl.config import compose
from flnl.config.check import check_config
from flnl.core.method import assemble
from flnl.core.optimizer import Adam
from flnl.methods.loss_correction.revision import Revision
from flnl.methods.loss_correction.transition import from_anchors, normalized
from tests.methods.loss_correction.test_forward_correction import f64
from tests.methods.loss_correction.test_t_revision import revised_step, start
from tests.vectors.vectors import MORE, Entry, entries


def more(name: str) -> Entry:
    return entries(MORE)[name]


def test_anchors_are_below_the_percentile() -> None:
    vector = more("patrini.anchors")
    probabilities = f64(vector.inputs["probabilities"])
    assert from_anchors(probabilities, vector.inputs["percentile"]).tolist() == [
        pytest.approx(row, abs=vector.absolute) for row in vector.expected["T"]
    ]
    without = from_anchors(probabilities, None)
    assert torch.allclose(without, probabilities[vector.expected["anchor_without_percentile"]], atol=1e-9)


def test_the_place_of_the_percentile() -> None:
    """Of n ascending values of a class, the anchor is the last one before it."""
    vector = more("patrini.place")
    for n, place in zip(vector.inputs["n"], vector.expected["place"], strict=True):
        first = torch.linspace(0.1, 0.9, n, dtype=torch.float64)
        row = from_anchors(torch.stack([first, 1 - first], 1), vector.inputs["percentile"])[0]
        assert float(row[0]) == pytest.approx(float(first[place - 1])), n


def test_rows_are_divided_by_their_own_sums() -> None:
    vector = more("xia.WRONG_norm")
    ours = normalized(f64(vector.inputs["counts"]))
    np.testing.assert_allclose(ours, vector.expected["correct"])
    assert not np.allclose(ours, vector.expected["released"])


def test_a_step_of_the_revision() -> None:
    vector = more("xia.revision")
    v = vector.inputs
    term = Revision("reweight", lr=v["lr"], weight_decay=v["weight_decay"])
    labels = torch.tensor(v["labels"])
    loss, gradient, after = revised_step(term, start(f64(v["slack"])), f64(v["logits"]), labels, f64(v["T"]))
    assert float(loss.mean()) == vector.approx("loss")
    np.testing.assert_allclose(gradient, vector.expected["grad_logits"], atol=vector.absolute)
    by_slack = f64(vector.expected["grad_slack"]) + v["weight_decay"] * f64(v["slack"])
    np.testing.assert_allclose(after.mean, 0.1 * by_slack, atol=vector.absolute)
    np.testing.assert_allclose(after.slack, vector.expected["slack_after"], rtol=0, atol=1e-12)
    wrong = more("xia.WRONG_accumulated")
    assert float(loss.mean()) == wrong.approx("correct")
    assert float(loss.mean()) != wrong.approx("released")


# ------------------------------------------------------------------------------------------------------ schedules


def rates(method: str, stage: int, protocol: str, epochs: list[int]) -> list[float]:
    """The learning rates of a stage's epochs, counted within it, when it trains on all data in one place."""
    cfg = compose.load([f"method={method}", "dataset=cifar10", f"protocol={protocol}", "centralized=true"])
    check_config(cfg)
    made = assemble(compose.build(cfg.method)).stages
    before = sum(one.length(1) for one in made[:stage])
    training = compose.training(cfg)
    return [training.at(before + epoch, made[stage].train, epoch).lr for epoch in epochs]


@pytest.mark.parametrize(("protocol", "name"), [("flr_cifar10", "cifar10"), ("flr_cifar100", "cifar100")])
@pytest.mark.parametrize("stage", [0, 1])
def test_patrinis_schedule_begins_anew_with_the_new_network(protocol: str, name: str, stage: int) -> None:
    vector = more("patrini.lr")
    epochs = [epoch for epoch in vector.inputs["epochs"] if epoch < 120 or name == "cifar100"]
    expected = vector.expected[name][: len(epochs)]
    assert rates("forward_correction_patrini", stage, protocol, epochs) == pytest.approx(expected)


def test_xias_schedule_is_the_one_that_is_meant() -> None:
    vector = more("xia.lr")
    ours = rates("t_revision_xia", 1, "flr_cifar10", vector.inputs["epochs"])
    assert ours == pytest.approx(vector.expected["milestones_as_meant"])
    assert ours != pytest.approx(vector.expected["released"])
    assert rates("t_revision_xia", 0, "flr_cifar10", [0, 19]) == [0.01, 0.01]


@pytest.mark.parametrize("words", [(), ("method.slack_lr=0.001", "method.slack_decay=0.01")])
def test_the_last_stage_trains_network_and_slack_alike(words: Any) -> None:
    cfg = compose.load(["method=t_revision_xia", *words])
    check_config(cfg)
    *_, last = assemble(compose.build(cfg.method)).stages
    training = last.training(compose.training(cfg))
    term = last.local["t_revision"]
    assert isinstance(training.optimizer, Adam)
    assert isinstance(term, Revision)
    assert (training.lr, training.weight_decay) == (term.lr, term.weight_decay)
    assert words or term.lr == 5e-7


def test_the_last_stage_as_all_others_has_the_losses_of_xia() -> None:
    made = assemble(compose.build(compose.load(["method=t_revision_xia"]).method)).stages
    assert [type(next(iter(stage.local.values()))).__name__ for stage in made] == [
        *("CrossEntropy", "LossCorrection", "Revision")
    ]
    assert {getattr(next(iter(stage.local.values())), "form", None) for stage in made[1:]} == {"reweight"}
    patrini = assemble(compose.build(compose.load(["method=forward_correction_patrini"]).method)).stages
    assert patrini[1].restart
