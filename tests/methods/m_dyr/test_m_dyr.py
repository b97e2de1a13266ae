"""M-DYR: the mixture of losses, the losses of each form and phase, and what it tells, from the vectors and by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl.core.findings import SuspectedSamples
from flnl.core.parts import Setting
from flnl.core.payload import Payload
from flnl.core.step import Mixing, Step
from flnl.methods.m_dyr.bootstrapping import both, by_cleanness, one_hot, softened, temperature
from flnl.methods.m_dyr.loss import MDYR, WrongProbability, mixed_up
from flnl.methods.m_dyr.mixture import BINS, BetaMixture, WrongByLoss
from flnl.numerics.losses import log_mean_prediction
from flnl.parts.batches import Mixup, Plain
from tests.toys import ONE_STEP, Logits, federation, fitted, mlp, network, step, task
from tests.vectors.vectors import field, label_noise

TERM = MDYR("hard", alpha=32.0, regularisation=1.0, guided=2, cooling=3, fewest=4, first_stage=2)


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ------------------------------------------------------------------------------------------------------- mixture


def test_two_beta_distributions() -> None:
    vector = label_noise("dynboot_bmm")
    ours = BetaMixture.fitted(np.array(vector.inputs["losses_in_0_1"]))
    assert [list(ours.alphas), list(ours.betas), list(ours.weights)] == [
        vector.approx("alphas"),
        vector.approx("betas"),
        vector.approx("weights"),
    ]
    assert ours.wrong(np.array(vector.inputs["query"])).tolist() == vector.approx("posterior_noisy")


def test_a_component_without_spread_stays() -> None:
    ours = BetaMixture.fitted(np.full(20, 0.3))
    assert (ours.alphas, ours.betas) == ((1.0, 2.0), (2.0, 1.0))


def test_the_table_of_a_client() -> None:
    losses = np.concatenate([np.linspace(0.01, 0.4, 60), np.linspace(2.0, 3.0, 40)])
    by_loss = WrongByLoss.fitted(losses, 50, torch.zeros(1, dtype=torch.float64))
    low, high = np.percentile(losses, [5, 95])
    assert [float(by_loss.low), float(by_loss.high)] == pytest.approx([low, high])
    scaled = np.clip((np.clip(losses, low, high) - low) / (high - low), 1e-3, 1 - 1e-3)
    mixture = BetaMixture.fitted(scaled)
    exact = mixture.wrong(np.linspace(1e-4, 1 - 1e-4, BINS))
    assert by_loss.table[:50].tolist() == pytest.approx(exact[:50].clip(1e-4, 1 - 1e-4).tolist())
    found = by_loss.of(tensor([-1.0, 0.05, 2.5, 99.0]))
    assert found[:2].max() < 0.05
    assert found[2:].min() > 0.95
    assert bool((by_loss.table.diff() >= 0)[int(by_loss.table.argmax()) :].all()), (
        "a large loss is no sign of a right label"
    )


@pytest.mark.parametrize("losses", [np.linspace(0, 1, 49), np.full(60, 0.7), np.r_[np.linspace(0, 1, 60), np.inf]])
def test_a_client_that_cannot_tell(losses: Any) -> None:
    by_loss = WrongByLoss.fitted(losses, 50, torch.zeros(1, dtype=torch.float64))
    assert by_loss.of(tensor([0.0, 0.5, 100.0])).tolist() == [0.5] * 3


# -------------------------------------------------------------------------------------------------------- losses


def total(logits: Tensor, losses: Tensor, weight: float) -> Tensor:
    logs = log_mean_prediction(logits)
    found: Tensor = losses.mean() + weight * (-logs.mean() - np.log(len(logs)))
    return found


def test_hard_bootstrapping() -> None:
    vector = label_noise("dynboot_mdyr_h")
    v = vector.inputs
    z = tensor(v["logits_of_mixed"]).requires_grad_()
    mixing = Mixing(v["lambda"], torch.tensor(v["perm"]))
    predicted = F.one_hot(torch.tensor(v["pred_unmixed"]), 3).double()
    loss = total(
        z, both(F.log_softmax(z, 1), torch.tensor(v["labels"]), predicted, tensor(v["B"]), mixing), v["reg_term"]
    )
    assert float(loss.detach()) == vector.approx("total")
    np.testing.assert_allclose(torch.autograd.grad(loss, z)[0], vector.expected["grad"], atol=vector.absolute)
    assert torch.equal(one_hot(tensor([[1.0, 3.0], [2.0, 0.0]])), tensor([[0.0, 1.0], [1.0, 0.0]]))


@pytest.mark.parametrize("name", ["md_dyr_sh.T0.5", "md_dyr_sh.T0.001"])
def test_soft_to_hard(name: str) -> None:
    vector = field(name)
    v = vector.inputs
    z, wrong, partner = (
        tensor(v["logits_mixed"]).requires_grad_(),
        tensor(v["noise_posterior"]),
        torch.tensor(v["permutation"]),
    )
    predicted = softened(tensor(v["logits_unmixed"]), v["temperature"])
    losses = both(F.log_softmax(z, 1), torch.tensor(v["labels"]), predicted, wrong, Mixing(0.5, partner))
    assert float(losses.detach().mean()) == vector.approx("loss")
    loss = total(z, losses, v["reg_weight"])
    assert float(loss.detach()) == vector.approx("total")
    np.testing.assert_allclose(
        torch.autograd.grad(loss, z)[0], vector.expected["grad_logits_mixed"], atol=vector.absolute
    )
    here = by_cleanness(torch.ones(4, 1, 1, 1).double(), wrong, partner)
    assert here.flatten().tolist() == [1.0] * 4, "weights sum to 1"
    alone = torch.eye(4, dtype=torch.float64)
    mixed = by_cleanness(alone, wrong, partner)
    own = [float(mixed[i, i]) for i in range(4) if partner[i] != i]
    expected = [w for i, w in enumerate(vector.expected["mix_weight_self"]) if partner[i] != i]
    assert own == vector.near(expected)


def test_guided_mixup() -> None:
    vector = field("md_dyr.guided_mixup")
    v = vector.inputs
    z = tensor(v["logits_mixed"]).requires_grad_()
    loss = mixed_up(z, torch.tensor(v["labels"]), Mixing(v["lam"], torch.tensor(v["permutation"]))).mean()
    assert float(loss.detach()) == vector.approx("loss")
    np.testing.assert_allclose(
        torch.autograd.grad(loss, z)[0], vector.expected["grad_logits_mixed"], atol=vector.absolute
    )


def test_temperatures() -> None:
    vector = field("md_dyr_sh.schedule_official")
    ours = [temperature(epoch - 111, 89) for epoch in vector.inputs["epochs"]]
    assert ours == vector.approx("temperature")
    assert temperature(0, 1) == 1e-3


# ------------------------------------------------------------------------------------------------- the term itself

PIXELS = tensor([[2.0, 0.0, -1.0], [0.5, 1.5, 0.0], [0.0, 0.2, 3.0], [1.0, -1.0, 0.5], [0.1, 0.4, 0.3]])
LABELS = torch.tensor([0, 1, 0, 2, 1])
TOY = federation([PIXELS.reshape(5, 1, 1, 3)], [LABELS])
MIXING = Mixing(0.4, torch.tensor([2, 0, 3, 1, 4]))


def visit(term: MDYR, round: int) -> tuple[Any, Step]:
    """The state at the start of a visit, and a batch of all samples of a network that returns its inputs."""
    module = Logits()
    net = network(module, transform=TOY.dataset.transform)
    work = task(module, TOY.samples(0), round=3 + round, stage=2)
    work = replace(work, broadcast=replace(work.broadcast, lengths=(3, 20)))
    inputs = PIXELS.reshape(5, 1, 1, 3)
    one = replace(
        step(logits=inputs),
        labels=LABELS,
        targets=LABELS,
        positions=torch.arange(5),
        passes=net.passes(work.broadcast),
        broadcast=work.broadcast,
        draws={"m_dyr": MIXING},
    )
    return term.begin(net, work, None), one


def loss(term: MDYR, round: int) -> list[float]:
    state, one = visit(term, round)
    found: list[float] = one.given_to("m_dyr", term, state)[0].detach().tolist()
    return found


def by_hand(term: MDYR, round: int) -> list[float]:
    z, y, lam, pi = PIXELS.numpy(), LABELS.numpy(), 0.4, MIXING.partner.numpy()

    def logs(values: Any) -> Any:
        values = values - values.max(1, keepdims=True)
        return values - np.log(np.exp(values).sum(1, keepdims=True))

    def ce(values: Any, target: Any) -> Any:
        return -logs(values)[np.arange(5), target]

    plain = lam * z + (1 - lam) * z[pi]
    wrong = WrongByLoss.fitted(ce(z, y), term.fewest, torch.zeros(1, dtype=torch.float64)).of(tensor(ce(z, y))).numpy()
    if term.form == "soft_to_hard":
        share = ((1 - wrong) / (2 - wrong - wrong[pi]))[:, None]
        mixed = share * z + (1 - share) * z[pi]
        if round < term.guided:
            return list(lam * ce(mixed, y) + (1 - lam) * ce(mixed, y[pi]))
        heat = temperature(round - term.guided, term.cooling)
        q, lam = np.exp(logs(z / heat)), 0.5
    else:
        mixed = plain
        q = np.eye(3)[z.argmax(1)] if term.form == "hard" else np.exp(logs(z))
    each = np.stack(
        [(1 - wrong[j]) * ce(mixed, y[j]) - wrong[j] * (q[j] * logs(mixed)).sum(1) for j in (np.arange(5), pi)]
    )
    mean = np.exp(logs(mixed)).mean(0)
    return list(lam * each[0] + (1 - lam) * each[1] + term.regularisation * np.mean(np.log(1 / 3 / mean)))


@pytest.mark.parametrize("form", ["hard", "soft", "soft_to_hard"])
@pytest.mark.parametrize("round", [0, 1, 2, 3, 4, 9])
def test_every_phase(form: Any, round: int) -> None:
    term = replace(TERM, form=form, regularisation=0.7)
    np.testing.assert_allclose(loss(term, round), by_hand(term, round), rtol=1e-6)


def test_weights_of_the_draw() -> None:
    drawn = TERM.draw(np.random.default_rng(3), 6)
    again = np.random.default_rng(3)
    assert drawn.share == again.beta(32.0, 32.0)
    assert sorted(drawn.partner.tolist()) == list(range(6))


def test_what_it_keeps_and_tells() -> None:
    module = Logits()
    net = network(module, transform=TOY.dataset.transform)
    work = task(module, TOY.samples(0), round=3, stage=2)
    kept = TERM.finish(net, work, fitted({}), TERM.begin(net, work, None))
    assert isinstance(kept, WrongProbability)
    (found,) = TERM.findings({7: kept}, {}, Payload())
    assert isinstance(found, SuspectedSamples)
    assert found.mask.tolist() == [bool(value > 0.5) for value in kept.values]
    assert found.judged is not None
    assert torch.equal(found.judged, LABELS)


def test_what_it_says() -> None:
    setting = Setting({0: 4, 1: 9}, (3, 4), ONE_STEP, "method.local.m_dyr")
    assert TERM.caution(setting) is None
    assert "has learned nothing" in str(TERM.caution(replace(setting, lengths=(0, 4))))
    assert "2 of 2 clients have fewer samples" in str(replace(TERM, fewest=50).caution(setting))
    assert TERM.refuses(mlp(4, 3), (Plain(),), setting) is None
    assert "Mixup has mixed them" in str(TERM.refuses(nn.Identity(), (Mixup(1.0, enabled=True, stages=None),), setting))
