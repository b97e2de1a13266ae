"""ELR and FedELR as their authors' programs have them: targets, losses and gradients against the vectors, constants."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.config import compose
from flnl.config.check import check_config
from flnl.core.parts import LossTerm
from tests.toys import step
from tests.vectors.vectors import MORE, Entry, entries, federated


def elr(name: str) -> Entry:
    return entries(MORE)[name]


def term(method: str, *words: str) -> LossTerm:
    """The regulariser of a composed method."""
    cfg = compose.load([f"method={method}", *words])
    check_config(cfg)
    found: LossTerm = compose.build(cfg.method)["local"]["elr"]
    return found


def empty(samples: int, classes: int) -> dict[str, Tensor]:
    return {"seen": torch.zeros(samples, dtype=torch.bool), "client": torch.zeros(samples, classes).double()}


def visits(one: LossTerm, vector: Entry) -> list[dict[str, Any]]:
    """What happens to the same samples in visit after visit, with a batch of all of them in each."""
    labels, state, found = torch.tensor(vector.inputs["labels"]), empty(2, 3), []
    for logits in vector.inputs["logits_by_visit"]:
        z = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
        pulled, state = one(step(logits=z), state)
        loss = (F.cross_entropy(z, labels, reduction="none") + pulled).mean()
        (gradient,) = torch.autograd.grad(loss, z)
        found.append(
            {"target": state["client"], "regulariser": pulled.detach(), "loss": loss.detach(), "grad": gradient}
        )
    return found


def test_three_visits() -> None:
    vector = elr("elr.three_visits")
    lam = vector.inputs["lam"]
    found = visits(term("elr", f"method.lam={lam}", f"method.beta={vector.inputs['beta']}"), vector)
    for ours, theirs in zip(found, vector.expected["by_visit"], strict=True):
        theirs = {**theirs, "regulariser": np.multiply(lam, theirs["regulariser"])}
        for name, value in ours.items():
            np.testing.assert_allclose(value, theirs[name], rtol=0, atol=vector.absolute * lam, err_msg=name)
        np.testing.assert_allclose(ours["target"].sum(1), theirs["target_sum"], rtol=1e-9)


def test_it_is_no_case_that_resembles_it() -> None:
    """FLR's case of it, another clamp, or a target that is updated after the loss have other losses."""
    vector = elr("elr.WRONG")
    words = (f"method.lam={vector.inputs['lam']}", f"method.beta={vector.inputs['beta']}")
    ours = [float(one["loss"]) for one in visits(term("elr", *words), vector)]
    assert ours == vector.approx("correct")
    for name in ("first_target_is_p", "inner_renormalised", "not_clamped", "loss_before_update"):
        assert ours != vector.approx(name), name
    free = replace(term("elr", *words), clamp="inner", init_average="prediction")  # type: ignore[type-var]
    assert [float(one["loss"]) for one in visits(free, vector)][:2] == pytest.approx(
        vector.expected["first_target_is_p"][:2], abs=1e-9
    )


def test_a_certain_prediction_has_a_finite_loss_without_gradient() -> None:
    vector = elr("elr.saturated")
    lam = vector.inputs["lam"]
    one = term("elr", f"method.lam={lam}", f"method.beta={vector.inputs['beta']}")
    z, state = torch.tensor(vector.inputs["logits"], dtype=torch.float64, requires_grad=True), empty(1, 3)
    for _ in range(vector.inputs["visits"]):
        pulled, state = one(step(logits=z), state)
    assert state["client"].tolist()[0] == vector.near(vector.expected["target"][0])
    assert (pulled.detach() / lam).tolist() == vector.near(vector.expected["regulariser"])
    assert torch.autograd.grad(pulled.sum(), z)[0].tolist() == vector.expected["grad_of_regulariser"]


def test_fedelr_is_this_rule_with_its_own_constants() -> None:
    """Two steps of a batch of the client's third and first sample; the others keep a target of 0."""
    vector = federated("fedelr.two_steps")
    one, state = term("fedelr"), empty(vector.inputs["n_samples"], 3)
    assert (one.lam, one.gamma) == (vector.inputs["lam"], vector.inputs["beta"])  # type: ignore[attr-defined]
    at, labels = torch.tensor(vector.inputs["index"]), torch.tensor(vector.inputs["labels"])
    for number in ("1", "2"):
        z = torch.tensor(vector.inputs[f"logits_step{number}"], dtype=torch.float64, requires_grad=True)
        pulled, state = one(replace(step(logits=z), positions=at), state)
        loss = (F.cross_entropy(z, labels, reduction="none") + pulled).mean()
        assert float(loss.detach()) == vector.approx(f"loss{number}")
        for ours, name in ((torch.autograd.grad(loss, z)[0], "grad"), (state["client"], "ema")):
            np.testing.assert_allclose(ours, vector.expected[f"{name}{number}"], rtol=0, atol=vector.absolute)


# ------------------------------------------------------------------------------------------------------- constants

CENTRALIZED = {
    "cifar10_symmetric": ("flr_cifar10", 3.0, 0.7, 150),
    "cifar10_asymmetric": ("flr_cifar10_asymmetric", 1.0, 0.9, 120),
    "cifar100": ("flr_cifar100", 7.0, 0.9, 150),
}
"""The authors' constants: the protocol that has them, λ, β, epochs."""


@pytest.mark.parametrize("name", CENTRALIZED)
def test_centralized_it_trains_as_its_authors(name: str) -> None:
    protocol, lam, beta, epochs = CENTRALIZED[name]
    cfg = compose.load(["method=elr", "dataset=cifar10", f"protocol={protocol}", "centralized=true"])
    check_config(cfg)
    train = compose.training(cfg)
    assert (cfg.method.lam, cfg.method.beta, cfg.rounds) == (lam, beta, epochs)
    assert (train.epochs, train.batch_size, train.momentum, train.weight_decay) == (1, 128, 0.9, 0.001)
    assert train.keep_momentum
    vector = elr("elr.lr")
    for epoch, lr in zip(vector.inputs["epochs"], vector.expected[name], strict=True):
        if epoch < epochs:
            assert train.at(epoch, rounds=epochs).lr == vector.near(lr), epoch


@pytest.mark.parametrize(
    ("protocol", "lam", "beta"),
    [
        *(("flr_cifar10", 4.0, 0.5), ("flr_cifar10_asymmetric", 4.0, 0.9), ("flr_cifar100_asymmetric", 4.0, 0.9)),
        *(("flr_clothing1m", 4.0, 0.5), ("cifar100", 4.0, 0.5), ("lenet", 3.0, 0.7), ("digits", 3.0, 0.7)),
    ],
)
def test_on_clients_its_constants_are_those_of_flrs_authors_where_they_state_some(
    protocol: str, lam: float, beta: float
) -> None:
    cfg = compose.load(["method=elr", f"protocol={protocol}"])
    assert (cfg.method.lam, cfg.method.beta) == (lam, beta)
    part = term("elr", f"protocol={protocol}")
    assert (part.R_w, part.init_average, part.clamp) == (0, "zero", "normalised")  # type: ignore[attr-defined]
