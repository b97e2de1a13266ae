"""FedRG against the vectors, its densities against scipy, and visits of clients."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from torch import Tensor

from flnl.core.errors import UserError
from flnl.core.findings import SuspectedSamples
from flnl.core.parts import Setting
from flnl.core.payload import Params, Payload
from flnl.core.step import FEATURES
from flnl.methods.fedrg.clusters import FeatureClusters, log_normaliser, log_uniform, unit
from flnl.methods.fedrg.contrast import Contrast, Projector, info_nce, projected
from flnl.methods.fedrg.loss import ClusterMemory, FedRG, Visit, corrected, mean_of_noisy, split
from flnl.models.mlp import MLP
from flnl.numerics.mixture import two_gaussians
from flnl.parts.batches import Mixup, Plain
from flnl.parts.losses.symmetric_cross_entropy import SymmetricCrossEntropy
from flnl.parts.shared_layers import Descent, MeanOfLayers, SharedLayers
from tests.toys import ONE_STEP, federation, fitted, method, network, rounds, stage, step, task
from tests.vectors.vectors import NEWER, entries

SCE = SymmetricCrossEntropy(0.1, 1.0, math.log(1e-4))
TERM = FedRG(
    symmetric=SCE,
    symmetric_weight=0.4,
    noisy_weight=1.0,
    clusters=None,
    momentum=0.1,
    density=False,
    pull_absent=False,
    matrix_lr=0.01,
    matrix_momentum=0.9,
    view="plain",
)
CONTRAST = Contrast(temperature=0.07, hidden=6, width=4, descent=Descent(0.1, 0.9, 0.01))


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def of_vector(inputs: dict[str, Any]) -> FeatureClusters:
    names = ("mu", "kappa", "pi", "pi0", "class_to_cluster")
    mu, kappa, pi, background, typical = (f64(inputs[name]) for name in names)
    return FeatureClusters(mu, kappa, pi, background, typical, f64(inputs.get("kappa_median", 1.0)))


# --------------------------------------------------------------------------------------------------------- clusters


def test_responsibilities_and_scores() -> None:
    vector = entries(NEWER)["fedrg.responsibilities"]
    clusters, (first, second) = of_vector(vector.inputs), (unit(f64(vector.inputs[h])) for h in ("h1", "h2"))
    kappas = clusters.agreeing(first, second)
    np.testing.assert_allclose(kappas, vector.expected["kappa_aug"], rtol=vector.absolute)
    assert ((first + second).norm(dim=1) / 2).tolist() == vector.approx("R")
    found = clusters.responsibilities(first, kappas, density=False)
    np.testing.assert_allclose(found, vector.expected["gamma_tempered_with_background_first"], atol=vector.absolute)
    assert clusters.scores(found, torch.tensor(vector.inputs["labels"])).tolist() == vector.approx("score")


def test_responsibilities_of_densities() -> None:
    width, kappas = 5, f64([0.5, 7.0, 90.0])
    for d in (4, 17, 64):
        order = d / 2 - 1
        bessel = np.log(scipy.special.ive(order, kappas.numpy())) + kappas.numpy()
        expected = order * np.log(kappas.numpy()) - d / 2 * np.log(2 * np.pi) - bessel
        np.testing.assert_allclose(log_normaliser(kappas, d), expected, rtol=1e-10)
    assert log_uniform(3) == pytest.approx(-math.log(4 * math.pi), abs=1e-12)
    means, first = unit(normal(3, width)), unit(normal(2, width, seed=1))
    clusters = FeatureClusters(means, kappas, f64([0.2, 0.3, 0.5]), f64(0.05), f64([[1, 0, 0]] * 3), f64(2.0))
    found = clusters.responsibilities(first, f64([3.0, 100.0]), density=True)
    for row, sharp in enumerate((1.5, 2.0)):
        own = kappas.numpy() * sharp
        order = width / 2 - 1
        log_c = order * np.log(own) - width / 2 * np.log(2 * np.pi) - np.log(scipy.special.ive(order, own)) - own
        parts = np.exp(log_c + own * (first[row] @ means.T).numpy()) * [0.2, 0.3, 0.5]
        parts = np.array([0.05 * math.gamma(width / 2) / (2 * math.pi ** (width / 2)), *parts])
        np.testing.assert_allclose(found[row], parts / parts.sum(), rtol=1e-9)


def test_clusters_follow_a_batch() -> None:
    vector = entries(NEWER)["fedrg.mixture_update"]
    given, before = vector.inputs, of_vector(vector.inputs)
    gamma = torch.cat([f64(given["gamma_background"])[:, None], f64(given["gamma_tempered"])], 1)
    batch = f64(given["z1"]), gamma, torch.tensor(given["labels"]), torch.tensor(given["clean"]), given["momentum"]
    after = before.updated(*batch, absent=True)
    np.testing.assert_allclose(after.means, vector.expected["mu"], atol=vector.absolute)
    np.testing.assert_allclose(after.kappas, vector.expected["kappa"], rtol=vector.absolute)
    assert after.weights.tolist() == vector.approx("pi")
    assert float(after.background) == vector.approx("pi0")
    np.testing.assert_allclose(after.typical, vector.expected["class_to_cluster"], atol=vector.absolute)
    kept = before.updated(*batch, absent=False)
    assert torch.equal(kept.typical[2], before.typical[2]), "a class that is not there stays as it is"
    np.testing.assert_allclose(kept.typical[:2], vector.expected["class_to_cluster"][:2], atol=vector.absolute)


def test_the_median_is_a_mean_over_batches() -> None:
    start = FeatureClusters.of(normal(3, 4), 2)
    assert start.typical.tolist() == [[1 / 3] * 3] * 2
    assert (start.kappas.tolist(), float(start.background)) == ([5.0] * 3, 0.05)
    np.testing.assert_allclose(start.means.norm(dim=1), 1)
    one = start.with_median(f64([4.0, 1.0, 3.0, 2.0]), 0.1)
    assert float(one.median) == 2.0, "of an even number the lower one"
    assert float(one.with_median(f64([7.0, 9.0, 8.0]), 0.1).median) == pytest.approx(0.9 * 2 + 0.1 * 8)


def test_samples_are_split_by_their_scores() -> None:
    scores = f64([0.9, 0.85, 0.88, 0.3, 0.91, 0.2, 0.25])
    assert split(scores).tolist() == two_gaussians(1 - scores.numpy(), variance=1e-6, iterations=100).upper.tolist()
    assert split(scores).tolist() == [False, False, False, True, False, True, True]
    assert not split(scores[2:5]).any(), "three scores"
    assert not split(f64([0.5] * 9)).any()


# ------------------------------------------------------------------------------------------------------------- loss


def visit(matrix: Tensor, noisy: Any) -> Visit:
    mask = torch.tensor(noisy)
    clusters = FeatureClusters.of(normal(3, 3), 3)
    return Visit(clusters, matrix, torch.zeros_like(matrix), mask, f64([0.0] * len(mask)), torch.zeros_like(mask), None)


def test_the_loss_and_a_step_of_the_matrix() -> None:
    vector = entries(NEWER)["fedrg.loss"]
    given = vector.inputs
    logits, labels, matrix = f64(given["logits"]), torch.tensor(given["labels"]), f64(given["T"])
    batch = replace(step(logits=logits, targets=labels), labels=labels, computed={"logits": logits, FEATURES: logits})
    assert SCE(batch, None)[0].tolist() == vector.approx("sce_per_sample")
    own = corrected(logits, labels, matrix)
    assert own.tolist() == vector.approx("noisy_per_sample")
    assert float(mean_of_noisy(own, torch.tensor(given["noisy"]))) == vector.approx("loss_noisy")
    loss, after = TERM(batch, visit(matrix, given["noisy"]))
    assert float(loss) == vector.approx("loss")
    np.testing.assert_allclose(after.velocity, vector.expected["grad_T"], atol=vector.absolute)
    np.testing.assert_allclose(after.matrix, vector.expected["T_after_step"], atol=vector.absolute)
    again = TERM(batch, after)[1]
    gradient = torch.func.grad(lambda t: mean_of_noisy(corrected(logits, labels, t), torch.tensor(given["noisy"])))
    np.testing.assert_allclose(again.velocity, 0.9 * after.velocity + gradient(after.matrix), rtol=1e-9)
    np.testing.assert_allclose(again.matrix.sum(1), 1)
    rows = replace(TERM, noisy_weight=0.0)(batch, visit(matrix, given["noisy"]))[0]
    np.testing.assert_allclose(rows, 0.4 * np.array(vector.expected["sce_per_sample"]), atol=vector.absolute)


def test_a_visit_begins_with_the_split_by_the_received_features_and_keeps_what_followed() -> None:
    module = MLP([5], 0.0)((1, 2, 2), 3).double()
    toy = federation([normal(30, 1, 2, 2)], [torch.arange(30) % 3])
    samples, net = toy.samples(0), network(module, transform=toy.dataset.transform)
    work = task(module, samples)
    first = TERM.begin(net, work, None)
    assert torch.equal(first.matrix, torch.eye(3, dtype=torch.float64))
    assert first.clusters.means.shape == (3, 5)
    assert replace(TERM, clusters=7).begin(net, work, None).clusters.means.shape == (7, 5)
    features = unit(net.logits(samples, output=FEATURES))
    clusters = replace(
        first.clusters, typical=f64([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]), median=f64(1.0)
    )
    kept = ClusterMemory(clusters, 0.5 * first.matrix, first.noisy, first.scores, first.judged)
    then = TERM.begin(net, work, kept)
    found = clusters.responsibilities(features, clusters.agreeing(features, features), density=False)
    np.testing.assert_allclose(then.scores, clusters.scores(found, samples.given), rtol=1e-9)
    assert torch.equal(then.noisy, split(then.scores))
    assert torch.equal(then.matrix, kept.matrix)
    assert not then.velocity.any()
    memory = TERM.finish(net, work, fitted({}), then)
    assert torch.equal(memory.noisy, then.noisy)
    (suspected,) = TERM.findings({0: memory}, {}, Payload())
    assert isinstance(suspected, SuspectedSamples)
    assert torch.equal(suspected.mask, then.noisy)
    kept = replace(kept, clusters=replace(clusters, median=f64(math.nan)))
    then, strong = TERM.begin(net, work, kept), replace(TERM, view="strong").begin(net, work, kept)
    assert strong.pixels is not None
    assert not torch.equal(strong.scores, then.scores), "the second view counts"


def test_batches_follow_two_views() -> None:
    """The concentrations are those of the batch and of its strong view."""
    torch.manual_seed(1)  # some networks' features of these images are zeros
    module = MLP([5], 0.0)((1, 2, 2), 3).double()
    net, images = network(module), torch.rand(6, 1, 2, 2, dtype=torch.float64)
    term = replace(TERM, view="strong")
    draw = term.draw(np.random.default_rng(0), 6)
    work = step()
    batch = replace(
        work,
        inputs=images,
        labels=torch.arange(6) % 3,
        targets=torch.arange(6) % 3,
        positions=torch.arange(6),
        draws={"fedrg": draw},
        passes=net.passes(work.broadcast),
    )
    start = replace(visit(torch.eye(3, dtype=torch.float64), [False] * 6), clusters=FeatureClusters.of(normal(3, 5), 3))
    unit_pixels = torch.zeros(1, 1, 1, dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.float64)
    _, two = batch.given_to("fedrg", term, replace(start, pixels=unit_pixels))
    _, one = batch.given_to("fedrg", TERM, start)
    assert float(one.clusters.median) > 1e5 > float(two.clusters.median), "equal views agree completely"


@pytest.mark.parametrize("density", [True, False])
def test_features_that_are_all_zeros_leave_numbers(density: bool) -> None:
    clusters, nothing = FeatureClusters.of(normal(3, 5), 3), torch.zeros(4, 5, dtype=torch.float64)
    kappas = clusters.agreeing(nothing, nothing)
    assert kappas.tolist() == [0.0] * 4
    found = clusters.with_median(kappas, 1.0).responsibilities(nothing, kappas, density=density)
    assert found.isfinite().all()


# --------------------------------------------------------------------------------------------------------- contrast


def test_info_nce() -> None:
    vector = entries(NEWER)["fedrg.info_nce"]
    losses = info_nce(f64(vector.inputs["projections"]), vector.inputs["tau"])
    assert losses.tolist() == vector.approx("per_row")
    assert float(losses.mean()) == vector.approx("loss")


def test_the_projector_is_that_of_torch_and_takes_steps_of_its_own() -> None:
    module = MLP([5], 0.0)((1, 2, 2), 3).double()
    toy = federation([torch.rand(8, 1, 2, 2)], [torch.arange(8) % 3])
    net = network(module, transform=toy.dataset.transform)
    work = task(module, toy.samples(0))
    state = CONTRAST.begin(net, work, None)
    assert isinstance(state, Projector)
    assert {name: tuple(t.shape) for name, t in state.values.items()} == {
        **{"first.weight": (6, 5), "first.bias": (6,), "norm.weight": (6,), "norm.bias": (6,)},
        **{"second.weight": (4, 6), "second.bias": (4,)},
    }
    assert float(state.values["first.weight"].abs().max()) <= 5**-0.5
    other = CONTRAST.begin(net, replace(work, client=3), None)
    assert all(torch.equal(t, other.values[name]) for name, t in state.values.items()), "equal on all clients"
    sent = SharedLayers({name: t + 1 for name, t in state.values.items()})
    given = CONTRAST.begin(net, replace(work, broadcast=replace(work.broadcast, extras=Payload(sent))), None)
    assert torch.equal(given.values["first.bias"], state.values["first.bias"] + 1)
    reference = torch.nn.Sequential(
        torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 4)
    ).double()
    names = ("first", "norm", "second")
    layers = [layer for layer in reference if not isinstance(layer, torch.nn.ReLU)]
    for name, layer in zip(names, layers, strict=True):
        layer.load_state_dict({kind: state.values[f"{name}.{kind}"] for kind in ("weight", "bias")}, strict=False)
    optimizer = torch.optim.SGD(reference.parameters(), 0.1, 0.9, weight_decay=0.01)
    features = normal(8, 5)
    np.testing.assert_allclose(projected(state.values, features), reference(features).detach(), rtol=1e-9)

    def mean(values: Params) -> Tensor:
        return info_nce(projected(values, features), 0.07).mean()

    for _ in range(3):
        optimizer.zero_grad()
        info_nce(reference(features), 0.07).mean().backward()
        optimizer.step()
        state = state.after(torch.func.grad(mean)(dict(state.values)), CONTRAST.descent)
    np.testing.assert_allclose(state.values["first.weight"], reference.state_dict()["0.weight"], rtol=1e-6)


def test_rounds_without_labels_train_the_body_alone_and_the_projector_goes_on() -> None:
    """Another labelling gives the same model; the last layer stays; the server averages the projectors."""

    def trained(shift: int) -> Any:
        pixels = [torch.rand(9, 1, 2, 2, generator=torch.Generator().manual_seed(k)) for k in range(2)]
        toy = federation(pixels, [(torch.arange(9) + shift) % 3] * 2)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            module = MLP([5], 0.0)((1, 2, 2), 3).double()
        shared = MeanOfLayers()
        first = stage(local={"contrast": CONTRAST}, exchange={"shared": shared}, rounds=2)
        return rounds(method(first, stage(), exchange={"shared": shared}), toy, module)

    one, other = trained(0), trained(1)
    a, b = one[1].state.server.params, other[1].state.server.params
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(one[2].state.server.params["head.weight"], other[2].state.server.params["head.weight"])
    layers = [result.state.server.exchanges["shared"].values["second.weight"] for result in one[:2]]
    assert not torch.equal(*layers)


def test_a_method_must_fit_labels_in_some_stage() -> None:
    method(stage(local={"contrast": CONTRAST}), stage()).check()
    with pytest.raises(UserError, match="nothing that learns from labels"):
        method(stage(local={"contrast": CONTRAST})).check()


def test_what_cannot_work_is_refused() -> None:
    setting, plain = Setting({}, (3, 4), ONE_STEP), MLP([5], 0.0)((1, 2, 2), 3)
    assert TERM.refuses(plain, [Plain()], setting) is None
    assert "mixed" in (TERM.refuses(plain, [Mixup(1.0, True, None)], setting) or "")
    rows = replace(setting, kind="vector")
    assert TERM.refuses(plain, [], rows) is None
    assert "view=plain" in (replace(TERM, view="strong").refuses(plain, [], rows) or "")
    assert "T_pre=0" in (CONTRAST.refuses(plain, [], rows) or "")
    assert CONTRAST.refuses(plain, [], setting) is None
    assert "head" in (TERM.refuses(torch.nn.Linear(2, 2), [], setting) or "")
    assert "head" in (CONTRAST.refuses(torch.nn.Linear(2, 2), [], setting) or "")
