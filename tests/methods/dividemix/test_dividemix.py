"""DivideMix: its pieces against the vectors, its steps and divisions by hand, its record in a run."""

from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn

from flnl.core.errors import UserError
from flnl.core.findings import SuspectedSamples
from flnl.core.messages import Broadcast, ClientState, ClientTask
from flnl.core.payload import Payload
from flnl.core.step import FIRST, LOGITS, SECOND, Beside, Mixing, Phase, Progress, Step
from flnl.core.training import Training
from flnl.data.transforms import Transform
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.methods.dividemix.batch import CoDivide
from flnl.methods.dividemix.division import Fitting, Judgement
from flnl.methods.dividemix.exchange import Division
from flnl.methods.dividemix.loss import MixMatch, WarmUp, divergence, refined, sharpened
from flnl.models.outputs import Pair
from flnl.numerics.mixture import LossMixture
from flnl.numerics.ramp import linear_ramp
from flnl.numerics.scaling import min_max
from flnl.parts.batches import Plain
from tests.properties.runs import run
from tests.toys import federation, mlp, network, random_federation, task
from tests.vectors.vectors import Entry, label_noise

FITTING = Fitting(tolerance=0.01, min_variance=0.0005, iterations=10, history=1)
DIVISION = Division(FITTING, threshold=0.5)
RULE = CoDivide(FITTING, threshold=0.5, refit="auto")
TERM = MixMatch(
    alpha=4.0,
    temperature=0.5,
    lambda_u=25.0,
    ramp=16.0,
    clock="epochs",
    lambda_r=1.0,
    prior="uniform",
    running_statistics="all",
)


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def near(found: Tensor, wanted: Any, entry: Entry) -> None:
    """Demand a vector's values, at its tolerance."""
    torch.testing.assert_close(found.detach(), f64(wanted), rtol=entry.relative, atol=entry.absolute)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(inputs: int = 4, classes: int = 3, *, norm: bool = False) -> Pair:
    made = Pair(mlp(inputs, classes, norm=norm), mlp(inputs, classes, norm=norm))
    with torch.no_grad():
        for number, p in enumerate(made.second.parameters()):
            p.add_(0.3 * normal(*p.shape, seed=number).to(p))
    return made


# ------------------------------------------------------------------------------------------------------------ pieces


def test_sharpening() -> None:
    entry = label_noise("dividemix_sharpen")
    p = f64(entry.inputs["p"])
    near(sharpened(p, 0.5), entry.expected["T0_5"], entry)
    near(sharpened(p, 1.0), entry.expected["T1"], entry)


def test_warm_up_with_penalty() -> None:
    """Of both networks: their sum is twice the vector's where both say the same."""
    entry = label_noise("dividemix_warmup_asym")
    logits, labels = f64(entry.inputs["logits"]).requires_grad_(), torch.tensor(entry.inputs["labels"])
    step = given(logits, logits, labels)
    loss = WarmUp(penalty=True)(step, None)[0]
    assert loss.shape == (4,)
    assert float(loss.mean().detach()) == entry.near(2 * entry.expected["mean"])
    loss.mean().backward()
    assert logits.grad is not None
    near(logits.grad / 2, entry.expected["grad"], entry)
    plain = WarmUp(penalty=False)(step, None)[0].mean()
    assert float((loss.mean() - plain).detach()) == entry.near(2 * entry.expected["neg_entropy"])


def given(first: Tensor, second: Tensor, labels: Tensor) -> Step:
    """A step in which both networks' logits are given."""
    return Step(
        inputs=first,
        labels=labels,
        targets=labels,
        positions=torch.arange(len(labels)),
        weight=None,
        draws={},
        number=0,
        unmixed=first,
        mixing=None,
        passes=network(nn.Identity()).passes(Broadcast(0, 1, {})),
        params={},
        broadcast=Broadcast(0, 1, {}),
        kept=Payload(),
        computed={LOGITS: (first + second) / 2, FIRST: first, SECOND: second},
    )


def test_warm_up_of_two_networks_is_that_of_each() -> None:
    """Also of soft labels, as after mixup."""
    first, second, labels = normal(6, 3), normal(6, 3, seed=1), torch.arange(6) % 3
    soft = torch.softmax(normal(6, 3, seed=2), 1)
    for targets in (labels, soft):
        found = WarmUp(penalty=False)(replace(given(first, second, labels), targets=targets), None)[0]
        wanted = sum(F.cross_entropy(z, targets, reduction="none") for z in (first, second))
        torch.testing.assert_close(found, wanted)


def test_the_mixture_of_losses() -> None:
    entry = label_noise("dividemix_gmm")
    losses = np.asarray(entry.inputs["losses"])
    scaled = min_max(losses)
    assert scaled.tolist() == entry.approx("normalised")
    found = LossMixture(0.01, 0.0005, 10).right(scaled)
    assert found.tolist() == entry.approx("p_clean")
    assert (found > 0.5).tolist() == entry.expected["clean_mask"]


@pytest.mark.parametrize("seed", range(4))
def test_the_mixture_ends_after_some_iterations(seed: int) -> None:
    """From the same start as scikit-learn's, which is told by its parameters."""
    rng = np.random.default_rng(seed)
    losses = min_max(np.concatenate([rng.gamma(2, 0.1, 40), rng.normal(0.9, 0.3, 25)]))
    early, late = (LossMixture(1e-7, 0.0005, n).right(losses) for n in (2, 60))
    assert not np.allclose(early, late, atol=1e-6)
    column = losses[:, None]
    cut = max(
        (
            (
                (losses[losses <= c]).sum() ** 2 / (losses <= c).sum()
                + losses[losses > c].sum() ** 2 / (losses > c).sum(),
                c,
            )
        )
        for c in np.sort(losses)[:-1]
    )[1]
    parts = losses[losses <= cut], losses[losses > cut]
    model = GaussianMixture(
        2,
        weights_init=[len(p) / len(losses) for p in parts],
        means_init=[[p.mean()] for p in parts],
        precisions_init=[[[1 / (p.var() + 0.0005)]] for p in parts],
        reg_covar=0.0005,
        tol=1e-7,
        max_iter=60,
    ).fit(column)
    wanted = model.predict_proba(column)[:, int(np.argmin(model.means_))]
    np.testing.assert_allclose(late, wanted, atol=1e-6)


def test_divisions_that_have_no_mixture() -> None:
    """Equal losses, or one sample, are all clean; without a clean one, a tenth is, of the smallest loss."""
    entry = label_noise("dividemix_degenerate_gmm")
    mixture = LossMixture(0.01, 0.0005, 10)
    for kind in ("equal", "single"):
        losses = np.asarray(entry.inputs[f"losses_{kind}"])
        assert mixture.right(min_max(losses)).tolist() == entry.approx(f"p_clean_{kind}")
    scaled = f64([[[0.3, 0.1, 0.2, 0.9, 0.1, 0.7, 0.8, 1.0, 0.0, 0.4, 0.5]] * 2])
    judgement = Judgement(torch.full((2, 11), 0.4, dtype=torch.float64), scaled, None)
    clean, others = judgement.division(0, 0.5)
    assert clean.tolist() == [1, 8]  # two of eleven; of 0.1 and 0.1 the first
    assert len(clean) == ceil(11 / 10)
    assert others.tolist() == [0, 2, 3, 4, 5, 6, 7, 9, 10]
    everything, nothing = judgement.division(1, 0.3)
    assert (len(everything), len(nothing)) == (11, 0)


def test_refining_is_a_mean_of_label_and_prediction() -> None:
    p = torch.softmax(normal(3, 4), 1)
    found = refined(torch.tensor([1, 0, 3]), f64([1.0, 0.25, 0.0]), p, 1.0, 4)
    wanted = torch.stack([F.one_hot(torch.tensor(1), 4).double(), 0.75 * p[1], p[2]])
    wanted[1, 0] += 0.25
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("prior", [[0.25] * 4, [0.5, 0.5, 0.0, 0.0]])
def test_the_divergence_from_a_prior(prior: list[float]) -> None:
    logits = normal(6, 4)
    mean = torch.softmax(logits, 1).mean(0)
    wanted = sum(share * np.log(share / float(m)) for share, m in zip(prior, mean, strict=True) if share > 0)
    assert float(divergence(logits, f64(prior))) == pytest.approx(wanted, rel=1e-12)


# -------------------------------------------------------------------------------------------------------- the step


class Linear(nn.Module):
    """``x W + b`` with given numbers."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, K]."""
        return inputs.flatten(1) @ self.weight + self.bias


def test_a_step_is_the_vectors() -> None:
    entry = label_noise("dividemix_step")
    i = entry.inputs
    net = network(Pair(Linear(f64(i["W1"]), f64(i["b1"])), Linear(f64(i["W2"]), f64(i["b2"]))))
    x, u = ([f64(i[f"{kind}_view{v}"]) for v in (1, 2)] for kind in ("x", "u"))
    labels = torch.tensor(i["labels"])
    done = i["epoch"] - i["warm_up"]  # 4.5 epochs: two rounds of two, and half of an epoch
    step = replace(
        given(x[0], x[1], labels),
        computed=None,
        passes=net.passes(Broadcast(0, 1, {})),
        views=tuple(x),
        beside=Beside(torch.tensor([2, 3]), tuple(u)),
        phase=Phase(FIRST, facts=f64([*i["w_clean"], 0.1, 0.2])),
        progress=Progress(epoch=0, epochs=2, batches=6),
        number=3,
        broadcast=Broadcast(7, 2, {}, lengths=(5, 9)),
        draws={"mixmatch": Mixing(max(i["lambda_raw"], 1 - i["lambda_raw"]), torch.tensor(i["perm"]))},
    )
    term = replace(TERM, lambda_u=i["lambda_u"], temperature=i["T"])
    assert term.weight(step) == entry.near(entry.expected["lambda_u_eff"])
    assert linear_ramp(done, 16) * 25 == entry.near(entry.expected["lambda_u_eff"])
    known, guessed = term._targets(step)
    assert guessed is not None
    near(known, entry.expected["targets_x"], entry)
    near(guessed, entry.expected["targets_u"], entry)
    step.term = "mixmatch"
    inputs, targets, _ = term._mixed(step.draw, torch.cat([*x, *u]), torch.cat([known] * 2 + [guessed] * 2), None)
    loss = term(step, torch.full((3,), 1 / 3, dtype=torch.float64))[0]
    near(inputs, entry.expected["mixed_inputs"], entry)
    near(targets, entry.expected["mixed_targets"], entry)
    assert float(loss.detach()) == entry.approx("total")
    loss.backward()
    first, second = net.module.first, net.module.second
    assert isinstance(first, Linear)
    assert first.weight.grad is not None
    near(first.weight.grad, entry.expected["grad_W1"], entry)
    assert isinstance(second, Linear)
    assert second.weight.grad is None  # the other network rests


@pytest.mark.parametrize("clock", ["epochs", "rounds"])
def test_the_weight_of_guesses_rises_with_the_clock(clock: Any) -> None:
    """From the start of the term's stage: by local epochs and batches, or by rounds."""
    term = replace(TERM, clock=clock)
    step = replace(
        given(normal(2, 3), normal(2, 3), torch.tensor([0, 1])), broadcast=Broadcast(5, 2, {}, lengths=(4, 9))
    )
    for epoch, number, done in ((0, 0, 3), (1, 0, 4), (2, 2, 5.5)):
        found = term.weight(replace(step, progress=Progress(epoch, 3, 4), number=number))
        assert found == pytest.approx(25 * (done if clock == "epochs" else 1) / 16)
    later = replace(step, broadcast=Broadcast(4 + 16, 2, {}, lengths=(4, 90)), progress=Progress(0, 1, 1))
    assert term.weight(later) == 25


def test_lambda_is_at_least_a_half_and_rows_of_both_pools_have_partners() -> None:
    draws = [TERM.draw(np.random.default_rng(seed), 9) for seed in range(200)]
    shares = np.array([d.share for d in draws])
    assert shares.min() >= 0.5
    folded = np.random.default_rng(0).beta(4, 4, 100_000)
    np.testing.assert_allclose(shares.mean(), np.maximum(folded, 1 - folded).mean(), atol=0.02)
    assert all(sorted(d.partner.tolist()) == list(range(18)) for d in draws)
    assert replace(TERM, alpha=0.0).draw(np.random.default_rng(0), 3).share == 1.0


def test_other_than_divided_samples_are_refused() -> None:
    net = network(pair())
    work = task(net.module, random_federation([6]).samples(0))
    training = Training(lr=0.1, momentum=0.0, weight_decay=0.0, batch_size=4, epochs=1, lr_decay=1.0)
    with pytest.raises(UserError, match="method/batch=dividemix_co_divide"):
        LocalTraining(training, Plain(), {"mixmatch": TERM}, None, {})(net, work)


# ------------------------------------------------------------------------------------------- a visit, by hand

CROPPED = Transform(size=(2, 2), mean=(0.1,), std=(0.7,), scale=1.0, padding=1, flip=True)
TRAINING = Training(lr=0.1, momentum=0.9, weight_decay=0.01, batch_size=4, epochs=2, lr_decay=1.0)


def work_of(net: Network, size: int = 18, *, state: ClientState | None = None) -> ClientTask:
    """Samples that have right labels for the most part, in round 6, the second of a stage of 4."""
    pixels = normal(size, 1, 2, 2, seed=5)
    labels = pixels.flatten(1)[:, :3].argmax(1)
    labels[::4] = (labels[::4] + 1) % 3
    asked = task(net.module, federation([pixels], [labels]).samples(0), state=state)
    return replace(asked, broadcast=Broadcast(6, 2, asked.broadcast.params, lengths=(5, 4)))


class Notes(MixMatch):
    """The same term, which notes its steps."""

    def __call__(self, step: Step, state: Tensor) -> tuple[Tensor, Tensor]:
        """The loss."""
        NOTED.append(replace(step))
        return super().__call__(step, state)


NOTED: list[Step] = []


@pytest.mark.parametrize("transform", [None, CROPPED], ids=["plain", "augmented"])
@pytest.mark.parametrize("norm", [None, "all", "mixed"])
@pytest.mark.parametrize("refit", ["visit", "epoch"])
def test_a_visit_by_hand(norm: Any, transform: Transform | None, refit: Any) -> None:
    """Two optimisers, one for each network; targets by passes of each view, as the official loops make them.

    With batch norm, of which these passes write the running statistics, or do not.
    """
    net = network(pair(norm=norm is not None), transform=transform)
    net.module.train()
    with torch.no_grad():
        net.module(normal(30, 1, 2, 2))  # so that running statistics are no batch's
    net.module.eval()
    work = work_of(net)
    rule = replace(RULE, refit=refit)
    NOTED.clear()
    term = Notes(**vars(TERM if norm is None else replace(TERM, running_statistics=norm)))
    found = LocalTraining(TRAINING, rule, {"mixmatch": term}, None, {"division": DIVISION})(net, work)
    assert found.params is not None

    made = pair(norm=norm is not None).double()
    made.load_state_dict(work.broadcast.params)
    networks = {FIRST: made.first, SECOND: made.second}
    optimisers = {
        name: torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
        for name, module in networks.items()
    }
    images = net.prepare(work.samples.read())
    probability: dict[str, np.ndarray[Any, Any]] = {}
    epochs = [s.progress.epoch for s in NOTED if s.progress is not None]
    assert sorted(set(epochs)) == [0, 1]
    for number, step in enumerate(NOTED):
        if number == 0 or (refit == "epoch" and epochs[number] != epochs[number - 1]):
            made.eval()
            probability = {
                name: LossMixture(0.01, 0.0005, 10).clean_probability(module(images).detach(), work.labels)
                for name, module in networks.items()
            }
        own = step.phase.name
        assert own is not None
        other = SECOND if own == FIRST else FIRST
        w = torch.from_numpy(probability[other])
        torch.testing.assert_close(step.phase.facts, w)
        assert bool((w[step.positions] > 0.5).all())
        assert step.beside is not None
        assert not bool((w[step.beside.positions] > 0.5).any())
        loss = official(networks[own], networks[other], step, w, step.draws["mixmatch"], written=norm == "all")
        assert own == FIRST or epochs.index(epochs[number]) < number
        optimisers[own].zero_grad()
        loss.backward()
        optimisers[own].step()
    for name, tensor in made.state_dict().items():
        torch.testing.assert_close(found.params[name], tensor, rtol=1e-9, atol=1e-11)
    first = [str(s.phase.name) for s in NOTED if s.progress is not None and s.progress.epoch == 0]
    assert first == sorted(first)  # the first network's phase, then the second's
    assert {FIRST, SECOND} == set(first)


def official(net: nn.Module, other: nn.Module, step: Step, w: Tensor, draw: Mixing, *, written: bool) -> Tensor:
    """The loss of a batch: loops over views, cross-entropy by rows, no shortcut.

    ``written``: the passes that guess and refine labels, in this order, leave their running statistics.
    """
    assert step.beside is not None
    x, u = step.views, step.beside.views
    net.train()
    other.eval()
    buffers = {name: b.clone() for name, b in net.named_buffers()}
    with torch.no_grad():
        guesses = [torch.softmax(net(view), 1) for view in u] + [torch.softmax(other(view), 1) for view in u]
        seen = [torch.softmax(net(view), 1) for view in x]
        share = w[step.positions][:, None]
        targets = share * F.one_hot(step.labels, 3) + (1 - share) * (seen[0] + seen[1]) / 2
        known = targets**2 / (targets**2).sum(1, keepdim=True)
        mean = (guesses[0] + guesses[1] + guesses[2] + guesses[3]) / 4
        guessed = mean**2 / (mean**2).sum(1, keepdim=True)
        for name, b in net.named_buffers():
            if not written:
                b.copy_(buffers[name])
    rows, soft = torch.cat([*x, *u]), torch.cat([known, known, guessed, guessed])
    mixed = draw.share * rows + (1 - draw.share) * rows[draw.partner]
    soft = draw.share * soft + (1 - draw.share) * soft[draw.partner]
    logits = net(mixed)
    cut = 2 * len(step.labels)
    fit = -(soft[:cut] * torch.log_softmax(logits[:cut], 1)).sum(1).mean()
    miss = ((torch.softmax(logits[cut:], 1) - soft[cut:]) ** 2).mean()
    mean = torch.softmax(logits, 1).mean(0)
    regular = (torch.log(1 / 3 / mean) / 3).sum()
    assert step.progress is not None
    done = 1 * 2 + step.progress.epoch + step.number / step.progress.batches
    return fit + 25 * min(1.0, done / 16) * miss + regular


def test_a_client_whose_labels_are_all_right_learns_from_them_alone() -> None:
    """Without a second pool there are no guesses: mixup with refined labels."""
    net = network(pair())
    work = replace(work_of(net), state=ClientState())
    NOTED.clear()
    rule = replace(RULE, threshold=-0.0)
    judged = DIVISION.begin(net, work)[1].one(Judgement)
    everything = replace(judged, probability=torch.ones_like(judged.probability))
    asked = replace(work, state=work.state.keeping(everything))
    LocalTraining(TRAINING, replace(rule, refit="visit"), {"mixmatch": Notes(**vars(TERM))}, None, {})(net, asked)
    assert all(step.beside is None for step in NOTED)
    assert len(NOTED) == 2 * 2 * 5
    assert all(len(step.draws["mixmatch"].partner) == 2 * len(step.labels) for step in NOTED)


class Targets(MixMatch):
    """The same term, which notes its first step and that step's targets."""

    def _targets(self, step: Step) -> tuple[Tensor, Tensor | None]:
        found = super()._targets(step)
        MADE.append((replace(step), found))
        return found


MADE: list[tuple[Step, tuple[Tensor, Tensor | None]]] = []


@pytest.mark.parametrize("transform", [None, CROPPED], ids=["plain", "augmented"])
@pytest.mark.parametrize(("size", "clean"), [(18, 17), (18, 1), (3, 2), (3, 1), (1, 1)])
def test_a_pool_of_one_sample_has_no_statistics_of_its_own(size: int, clean: int, transform: Transform | None) -> None:
    """Batch norm cannot use the statistics of one image: its targets are made in eval mode."""
    net = network(pair(norm=True), transform=transform)
    net.module.train()
    with torch.no_grad():
        net.module(normal(30, 1, 2, 2))
    net.module.eval()
    judgement = DIVISION.begin(net, work_of(net, 18))[1].one(Judgement)
    right = torch.arange(size) < clean
    work = replace(work_of(net, size), state=ClientState())
    judged = replace(judgement, probability=right.double().expand(2, -1), losses=torch.zeros(0, 2, size))
    MADE.clear()
    term = Targets(**vars(TERM))
    asked = replace(work, state=work.state.keeping(judged))
    found = LocalTraining(TRAINING, replace(RULE, refit="visit"), {"mixmatch": term}, None, {})(net, asked)
    assert found.params is not None
    assert all(bool(tensor.isfinite().all()) for tensor in found.params.values() if tensor.is_floating_point())
    made = pair(norm=True).double()
    made.load_state_dict(work.broadcast.params)
    made.eval()
    step, (known, guessed) = MADE[0]
    if clean == 1:  # of a right label, which stays as it is
        torch.testing.assert_close(known, F.one_hot(step.labels, 3).to(known))
    if size - clean == 1:
        assert step.beside is not None
        assert guessed is not None
        q = torch.stack([one(v).softmax(1) for one in (made.first, made.second) for v in step.beside.views]).mean(0)
        torch.testing.assert_close(guessed, q**2 / (q**2).sum(1, keepdim=True), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("refit", "epochs", "fits"), [("visit", 7, 1), ("epoch", 2, 2), ("auto", 5, 1), ("auto", 6, 6)]
)
def test_when_samples_are_divided_anew(refit: Any, epochs: int, fits: int) -> None:
    net = network(pair())
    work = work_of(net)
    work = replace(work, state=work.state.keeping(*DIVISION.begin(net, work)[1]))
    seen = []
    for epoch in range(epochs):
        for p in net.module.parameters():
            p.data.mul_(1.1)  # whoever trained it in between
        phases = list(replace(RULE, refit=refit).phases(net, work, epoch, epochs))
        assert [phase.name for phase in phases] == [FIRST, SECOND]
        seen.append(tuple(phases[0].facts.tolist()))
    assert len(set(seen)) == fits


def test_losses_are_averaged_over_the_last_fits() -> None:
    """Each scaled by itself, before the mixture; the client keeps as many as are needed."""
    fitting = replace(FITTING, history=3)
    exchange, net = replace(DIVISION, fitting=fitting), network(pair())
    state, scaled = ClientState(), []
    for visit in range(5):
        with torch.no_grad():
            for p in net.module.parameters():
                p.add_(0.2 * normal(*p.shape, seed=visit))
        work = work_of(net, state=state)
        kept = exchange.begin(net, work)[1].one(Judgement)
        logits = net.module.eval()(net.prepare(work.samples.read())), net.logits(work.samples, output=SECOND)
        losses = F.cross_entropy(logits[1].double(), work.labels, reduction="none").detach().numpy()
        scaled.append(min_max(losses))
        wanted = LossMixture(0.01, 0.0005, 10).right(np.mean(scaled[-3:], axis=0))
        np.testing.assert_allclose(kept.probability[1].numpy(), wanted, atol=1e-12)
        assert len(kept.losses) == min(visit + 1, 3)
        state = state.keeping(kept)


def test_priors() -> None:
    net = network(pair())
    work = work_of(net)
    assert TERM.begin(net, work, None).tolist() == pytest.approx([1 / 3] * 3)
    counts = np.bincount(work.labels.numpy(), minlength=3) / 18
    of_labels = replace(TERM, prior="labels")
    assert of_labels.begin(net, work, None).tolist() == pytest.approx(counts.tolist())
    corrected = replace(work, state=ClientState(labels=torch.zeros(18, dtype=torch.int64)))
    assert of_labels.begin(net, corrected, None).tolist() == [1, 0, 0]


def test_samples_of_no_weight_do_not_count() -> None:
    """Their rows have the weight of what is left of them after mixing."""
    net = network(pair())
    work = work_of(net)
    work = replace(work, state=work.state.keeping(*DIVISION.begin(net, work)[1]))
    (phase, _) = RULE.phases(net, work, 0, 1)
    images = net.prepare(work.samples.read())
    assert phase.positions is not None
    at = phase.positions[:4]
    weight = f64([1.0, 0.0, 0.5, 1.0])
    draw = TERM.draw(np.random.default_rng(0), 4)
    step = replace(
        given(images[at], images[at], work.labels[at]),
        computed=None,
        positions=at,
        weight=weight,
        passes=net.passes(work.broadcast),
        views=(images[at], images[at]),
        phase=replace(phase, beside=None),
        progress=Progress(0, 1, 1),
        draws={"mixmatch": draw},
    )
    prior = TERM.begin(net, work, None)
    step.term = "mixmatch"
    found = float(TERM(step, prior)[0].detach())
    known = TERM._targets(step)[0]
    rows = torch.cat([images[at]] * 2)
    mixed = draw.share * rows + (1 - draw.share) * rows[draw.partner]
    soft = torch.cat([known] * 2)
    soft = draw.share * soft + (1 - draw.share) * soft[draw.partner]
    both = torch.cat([weight, weight])
    share = draw.share * both + (1 - draw.share) * both[draw.partner]
    logits = net.passes(work.broadcast).output(FIRST, mixed)
    losses = F.cross_entropy(logits, soft, reduction="none")
    wanted = float(((share * losses).sum() / share.sum() + divergence(logits, prior)).detach())
    assert found == pytest.approx(wanted, rel=1e-9)


# ----------------------------------------------------------------------------------------------------------- record


def test_the_samples_that_both_doubt_are_found(tmp_path: Path) -> None:
    right = f64([[0.9, 0.2, 0.6, 0.1], [0.8, 0.3, 0.3, 0.95]])
    kept = Judgement(right, torch.zeros(1, 2, 4, dtype=torch.float64), None)
    found = DIVISION.findings(None, {3: ClientState().keeping(kept), 4: ClientState()}, Payload())
    (suspected,) = found
    assert isinstance(suspected, SuspectedSamples)
    assert suspected.client == 3
    assert suspected.mask.tolist() == [False, True, True, False]
    assert suspected.score is not None
    assert suspected.score.tolist() == pytest.approx([0.15, 0.75, 0.55, 0.475])


def test_a_run_records_what_its_networks_doubt(tmp_path: Path) -> None:
    """On labels half of which are wrong on most clients, better than chance after a few rounds."""
    words = (
        *("method=dividemix", "dataset.train_size=400", "partition.num_clients=5", "model=mlp", "model.hidden=[32]"),
        *("noise=symmetric", "noise.eta=0.4", "fraction=1.0", "method.T_wu=3", "method.T=2", "method.lambda_u=1"),
        *("executor=sequential", "wandb.mode=disabled", "figures=false"),
    )
    rows = run(words, tmp_path / "run").lines
    auc = [row["filter_auc"] for row in rows if row["kind"] == "evaluation" and "filter_auc" in row]
    assert auc[-1] > 0.8
    assert all("filter_auc" not in row for row in rows if row.get("stage") == "warmup")
    assert {"accuracy_first", "accuracy_second"} <= rows[-1].keys()
