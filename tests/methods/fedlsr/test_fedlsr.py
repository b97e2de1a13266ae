"""FedLSR: its loss against the vectors, its views against scipy, and one step of training by hand."""

from dataclasses import replace
from math import pi
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import ndimage
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as tv

from flnl.core.errors import UserError
from flnl.core.execution import as_list
from flnl.core.messages import Broadcast, ClientResult
from flnl.core.training import Training
from flnl.data.images import TensorImages
from flnl.data.transforms import Transform
from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.stacked import Stacked
from flnl.engine.local.batching import Draws
from flnl.engine.local.sgd import LocalTraining
from flnl.methods.fedlsr.colour import ColourDraw, drawn_colours, recoloured
from flnl.methods.fedlsr.loss import FedLSR, divergence, entropy, sharpened_mixture
from flnl.methods.fedlsr.view import Pixels, drawn_view, rotated, view
from flnl.numerics.ramp import linear_ramp
from flnl.parts.batches import Plain
from tests.properties.runs import difference
from tests.toys import federation, mlp, network, random_federation, task
from tests.vectors.vectors import federated

TERM = FedLSR(
    variant="paper",
    plus=True,
    gamma=0.4,
    warmup=0.2,
    lambda_e=0.6,
    sharpening=2.0,
    sharpening_js=3.0,
    view="rotation",
    degrees=30.0,
)
SINGLE = 5e-6
"""Torchvision changes hues in single precision."""
RELEASED = replace(TERM, variant="official_code")


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def given(name: str) -> tuple[Tensor, Tensor, Tensor, float]:
    inputs = federated(name).inputs
    return f64(inputs["o1"]), f64(inputs["o2"]), torch.tensor(inputs["labels"]), inputs["mix"]


# ----------------------------------------------------------------------------------------------------------- loss


def test_the_papers_loss() -> None:
    entry, (one, other, labels, share) = federated("fedlsr.loss_paper"), given("fedlsr.loss_paper")
    assert float(F.nll_loss(sharpened_mixture(one, other, share, 2.0), labels)) == entry.approx("ce")
    assert float(divergence(one, other, 3.0).mean()) == entry.approx("js_batchmean")
    assert float((entropy(one) + entropy(other)).mean() / 2) == entry.approx("entropy")
    assert float(TERM.loss(one, other, labels, share, 0.4).mean()) == entry.approx("total")
    without = float(replace(TERM, plus=False).loss(one, other, labels, share, 0.4).mean())
    assert without == entry.near(entry.expected["total"] - 0.6 * entry.expected["entropy"])
    assert float(RELEASED.loss(one, other, labels, share, 0.4).mean()) != entry.approx("total")


def test_the_loss_of_the_released_code() -> None:
    entry, (one, other, labels, share) = federated("fedlsr.loss_official"), given("fedlsr.loss_official")
    mixed = sharpened_mixture(one, other, share, 2.0).exp()
    assert mixed.flatten().tolist() == entry.near(f64(entry.expected["p_sharpened"]).flatten().tolist())
    assert float(F.cross_entropy(mixed, labels)) == entry.approx("ce")
    assert float(divergence(one, other, 3.0).mean() / 3) == entry.approx("js")
    assert float(entropy((3 * one).softmax(1)).mean()) == entry.approx("entropy")
    assert float(RELEASED.loss(one, other, labels, share, 0.4).mean()) == entry.approx("total")
    parts = [replace(RELEASED, plus=False).loss(one, other, labels, share, gamma).mean() for gamma in (0.0, 1.0)]
    assert float(parts[0]) == entry.approx("ce")
    assert float(parts[1] - parts[0]) == entry.approx("js")


def test_gamma_rises_over_a_share_of_all_rounds() -> None:
    assert [linear_ramp(t, 5) for t in (0, 1, 4, 5, 9)] == [0, 0.2, 0.8, 1, 1]
    assert [linear_ramp(t, 1.4) for t in (0, 1, 2)] == pytest.approx([0, 1 / 1.4, 1])
    assert linear_ramp(0, 0.0) == 1


@pytest.mark.parametrize("term", [TERM, RELEASED], ids=lambda term: term.variant)
def test_mixed_labels_and_certain_predictions(term: FedLSR) -> None:
    """The loss is linear in the targets; predictions that are certain and wrong have finite gradients."""
    one, other = normal(4, 3), normal(4, 3, seed=1)
    labels, soft = torch.tensor([0, 2, 1, 0]), f64([[0.25, 0.75, 0]] * 4)
    each = [term.loss(one, other, torch.full((4,), k), 0.3, 0.4) for k in (0, 1)]
    torch.testing.assert_close(term.loss(one, other, soft, 0.3, 0.4), 0.25 * each[0] + 0.75 * each[1])
    for dtype, share in ((torch.float32, 0.3), (torch.float64, 0.0), (torch.float64, 1.0)):
        logits = (1000 * torch.eye(3, dtype=dtype)[[0, 1, 2, 1]]).requires_grad_()
        loss = term.loss(logits, logits.detach().roll(1, 0), labels, share, 0.4)
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        assert bool(loss.isfinite().all())
        assert bool(gradient.isfinite().all())


# ---------------------------------------------------------------------------------------------------------- views


@pytest.mark.parametrize(("height", "width"), [(8, 8), (9, 6)])
def test_images_are_rotated_around_their_centres(height: int, width: int) -> None:
    images, degrees = normal(3, 2, height, width), (-30.0, 7.5, 25.0)
    found = rotated(images, f64(degrees) * (pi / 180))
    for image, ours, angle in zip(images.numpy(), found.numpy(), degrees, strict=True):
        wanted = ndimage.rotate(image, angle, axes=(1, 2), reshape=False, order=1, mode="nearest")
        np.testing.assert_allclose(ours, wanted, atol=1e-9)
    torch.testing.assert_close(rotated(images, f64([0.0] * 3)), images)
    even = images.new_full((1, 1, height, width), 2.0)  # also where there was no image
    torch.testing.assert_close(rotated(even, f64([1.0])), even)


def test_views_are_drawn_for_each_image() -> None:
    images = normal(200, 1, 2, 3)
    mirror = drawn_view(np.random.default_rng(0), 200, "mirror", 30.0)
    assert mirror.angle is None
    assert mirror.mirrored is not None
    assert 70 < int(mirror.mirrored.sum()) < 130
    wanted = [x.flip(2) if flag else x for x, flag in zip(images, mirror.mirrored, strict=True)]
    assert torch.equal(view(images, mirror), torch.stack(wanted))
    turn = drawn_view(np.random.default_rng(0), 200, "rotation", 30.0)
    assert turn.mirrored is None
    assert turn.angle is not None
    assert -pi / 6 <= float(turn.angle.min()) < -0.4 < 0.4 < float(turn.angle.max()) <= pi / 6
    assert torch.equal(view(images, turn), rotated(images, turn.angle))
    shares = np.array([TERM.draw(np.random.default_rng(seed), 2).share for seed in range(300)])
    np.testing.assert_allclose(np.quantile(shares, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.07)  # Beta(1, 1)


@pytest.mark.parametrize("kind", ["rotation", "mirror"])
def test_a_step_of_training(kind: Literal["rotation", "mirror"]) -> None:
    """With the draws of the client's stream, by hand; in round 1 of 10, half of gamma."""
    term = replace(TERM, view=kind)
    data, module = random_federation([6], shape=(1, 4, 4)), mlp(16, 3)
    net = network(module, transform=data.dataset.transform)
    asked = task(module, data.samples(0))
    asked = replace(asked, broadcast=Broadcast(1, 1, asked.broadcast.params, lengths=(4, 6)))
    training = Training(lr=0.5, momentum=0.0, weight_decay=0.0, batch_size=6, epochs=1, lr_decay=1.0)
    received = {name: t.clone() for name, t in asked.broadcast.params.items()}
    found = LocalTraining(training, Plain(), {"fedlsr": term}, None, {})(net, asked)

    draws = Draws(asked, Plain(), {"fedlsr": term})
    order, drawn = draws.order(None), draws.of_terms(6)["fedlsr"]
    inputs, labels = net.prepare(asked.samples.read(order)), asked.labels[order]
    net.load(received)
    p, q = net.module(inputs), net.module(view(inputs, drawn.view))
    mixed = drawn.share * p.softmax(1) + (1 - drawn.share) * q.softmax(1)
    sharp = mixed**2 / (mixed**2).sum(1, keepdim=True)
    one, other = (3 * p).softmax(1), (3 * q).softmax(1)
    middle = (one + other) / 2
    js = (F.kl_div(middle.log(), one, reduction="none") + F.kl_div(middle.log(), other, reduction="none")).sum(1) / 2
    doubt = sum(-(z.softmax(1) * z.log_softmax(1)).sum(1) for z in (p, q)) / 2
    loss = (-sharp.gather(1, labels[:, None])[:, 0].log() + 0.2 * js + 0.6 * doubt).mean()
    assert found.loss == pytest.approx(float(loss.detach()), rel=1e-9)
    grads = torch.autograd.grad(loss, list(net.module.parameters()))
    for (name, before), grad in zip(net.module.named_parameters(), grads, strict=True):
        assert found.params is not None
        torch.testing.assert_close(found.params[name], before.detach() - 0.5 * grad, rtol=1e-7, atol=1e-10)


def sequentially(pixels: Tensor, draw: ColourDraw) -> Tensor:
    """Each image by itself, by torchvision's functions, in the order of the slots."""
    changed = []
    for number, image in enumerate(pixels):
        for slot in range(7):
            at = slot if slot < 3 else slot - 1
            if slot == 3:
                image = tv.adjust_hue(image, float(draw.hue[number]))
            elif float(draw.factor[number, at]) != 1:
                of = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation)[int(draw.kind[number, at])]
                image = of(image, float(draw.factor[number, at]))
        changed.append(tv.rgb_to_grayscale(image, 3) if bool(draw.grey[number]) else image)
    return torch.stack(changed)


def test_colours_change_as_torchvision_changes_them() -> None:
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.random((300, 3, 4, 5)))
    pixels[:5] = pixels[:5, :1]  # grey ones, whose hue is none
    pixels[5:9] = pixels[5:9].round()  # equal channels, at the borders of hues
    draw = drawn_colours(rng, 300)
    found = recoloured(pixels, draw)
    torch.testing.assert_close(found, sequentially(pixels, draw), rtol=0, atol=SINGLE)
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    still = (draw.factor == 1).all(1) & (draw.hue == 0) & ~draw.grey
    assert bool(still.any())
    assert torch.equal(found[still], pixels[still])


def test_changes_of_colours_are_drawn_as_their_code_draws_them() -> None:
    """Four of five images change, by factors of 0.2 to 1.8 and a fifth of a turn, in any order; one of five is grey."""
    size = 20_000
    draw = drawn_colours(np.random.default_rng(0), size)
    jittered = draw.hue != 0
    assert float(jittered.double().mean()) == pytest.approx(0.8, abs=0.01)
    assert float(draw.grey.double().mean()) == pytest.approx(0.2, abs=0.01)
    assert (draw.factor[~jittered] == 1).all()
    used = draw.factor[jittered] != 1
    assert (used.sum(1) == 3).all()
    kinds = draw.kind[jittered]
    for kind in range(3):
        factors = draw.factor[jittered][used & (kinds == kind)]
        assert len(factors) == int(jittered.sum())
        np.testing.assert_allclose(np.quantile(factors, [0, 0.25, 0.5, 1]), [0.2, 0.6, 1.0, 1.8], atol=0.03)
    hue = draw.hue[jittered]
    np.testing.assert_allclose(np.quantile(hue, [0, 0.25, 0.5, 1]), [-0.2, -0.1, 0, 0.2], atol=0.01)
    orders = {
        tuple(zip(np.flatnonzero(u) >= 3, k[u], strict=True)) for u, k in zip(used.numpy(), kinds.numpy(), strict=True)
    }
    assert len(orders) == 24  # orders of four changes: of the three others, and how many come before the hue


def test_a_recoloured_view_is_made_of_pixels() -> None:
    """Inputs are normalised: their colours change before that, and after the images are mirrored."""
    draw = drawn_view(np.random.default_rng(1), 40, "colour", 30.0)
    assert draw.mirrored is not None
    assert draw.colours is not None
    pixels = torch.rand(40, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    of = Pixels(f64([0.5, 0.4, 0.3])[:, None, None], f64([0.2, 0.3, 0.25])[:, None, None])
    found = view((pixels - of.mean) / of.std, draw, of)
    mirrored = torch.stack([x.flip(2) if flag else x for x, flag in zip(pixels, draw.mirrored, strict=True)])
    torch.testing.assert_close(found * of.std + of.mean, sequentially(mirrored, draw.colours), rtol=0, atol=SINGLE)


def test_a_step_with_colours_stacks(caplog: pytest.LogCaptureFixture) -> None:
    """The same as one by one; nothing stays on the client."""
    transform = Transform((4, 4), (0.5, 0.4, 0.3), (0.2, 0.3, 0.25), scale=1.0)
    sizes = (9, 7, 8)
    rng = torch.Generator().manual_seed(0)
    data = federation(
        [torch.rand(n, 3, 4, 4, generator=rng) for n in sizes],
        [torch.randint(0, 3, (n,), generator=rng) for n in sizes],
        transform=transform,
    )
    net = network(mlp(48, 3), transform=transform)
    training = Training(lr=0.1, momentum=0.5, weight_decay=0.0, batch_size=4, epochs=2, lr_decay=1.0)
    given = [task(net.module, data.samples(k), client=k) for k in range(3)]

    def trained(term: FedLSR, executor: Any) -> list[ClientResult]:
        work = LocalTraining(training, Plain(), {"fedlsr": term}, None, {})
        return [r for block in executor.map(work, given, as_list) for r in block.results]

    term = replace(TERM, view="colour")
    one, many = trained(term, Sequential(net)), trained(term, Stacked(net, 15, 1.0))
    assert not caplog.records, "the clients ran one by one"
    assert difference(many, one, tolerance=1e-9) is None
    assert all(not r.state.terms for r in many)
    assert difference(many, trained(replace(TERM, view="mirror"), Sequential(net)), tolerance=1e-9) is not None


def test_grey_images_have_no_colours_to_change() -> None:
    data, module = random_federation([4], shape=(1, 4, 4)), mlp(16, 3)
    net = network(module, transform=data.dataset.transform)
    with pytest.raises(UserError, match=r"method\.view=colour .* 1x4x4 .*use method\.view=rotation or mirror"):
        replace(TERM, view="colour").begin(net, task(module, data.samples(0)), None)


@pytest.mark.parametrize(("low", "high"), [(0.0, 255.0), (-1.0, 1.0)])
def test_floats_that_are_no_pixels_have_no_colours_to_change(low: float, high: float) -> None:
    """Changes of colours keep pixels within [0, 1], so they would cut these off."""
    images = torch.linspace(low, high, 4 * 48).reshape(4, 3, 4, 4)
    transform = Transform((4, 4), (0.5, 0.4, 0.3), (0.2, 0.3, 0.25), scale=1.0)
    data, module = federation([images], [torch.zeros(4, dtype=torch.int64)], transform=transform), mlp(48, 3)
    net, asked = network(module, transform=transform), task(module, data.samples(0))
    with pytest.raises(UserError, match=rf"floats of {low:g} to {high:g}: use method\.view=mirror"):
        replace(TERM, view="colour").begin(net, asked, None)
    replace(TERM, view="mirror").begin(net, asked, None)
    stored = TensorImages(images.abs().to(torch.uint8))
    replace(TERM, view="colour").begin(net, replace(asked, samples=replace(asked.samples, images=stored)), None)


def test_features_that_are_no_images_are_refused() -> None:
    data = random_federation([4], shape=(1, 1, 12))
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    with pytest.raises(UserError, match="FedLSR rotates or mirrors images, but this dataset has 1x1x12"):
        TERM.begin(network(module, transform=data.dataset.transform), task(module, data.samples(0)), None)
