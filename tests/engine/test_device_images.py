"""Images that the device holds: moved once, if they fit, and whoever reads pixels for the network reads those."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from flnl.core.execution import as_list
from flnl.core.messages import ClientTask, Samples
from flnl.core.training import Training
from flnl.data.images import TensorImages
from flnl.data.transforms import Transform
from flnl.engine.device_images import Resident
from flnl.engine.executors.stacked import Stacked
from flnl.engine.local.sgd import LocalTraining
from flnl.parts.batches import Plain
from flnl.parts.losses.cross_entropy import CrossEntropy
from tests.toys import equal, mlp, network, random_federation, task

TRAINING = Training(lr=0.2, momentum=0.9, weight_decay=0.01, batch_size=3, epochs=2, lr_decay=1.0)
CROPPED = Transform(size=(2, 2), mean=(0.0,), std=(1.0,), scale=1.0, padding=1, flip=True)
PLAIN = Transform(size=(2, 2), mean=(0.0,), std=(1.0,), scale=1.0)
FAR = torch.device("meta")


def images(count: int = 5) -> TensorImages:
    return TensorImages(torch.zeros(count, 1, 2, 2, dtype=torch.uint8), torch.zeros(count, 1, 3, 3, dtype=torch.uint8))


def test_on_a_cpu_they_stay_what_they_are():
    held = images()
    assert Resident(torch.device("cpu"))(held) is held


def test_elsewhere_they_are_moved_once_in_both_sizes():
    resident, held, others = Resident(FAR, lambda _: 5 * (4 + 9)), images(), images()
    there = resident(held)
    assert isinstance(there, TensorImages)
    assert there.larger is not None
    assert {there.pixels.device, there.larger.device} == {FAR}
    assert resident(held) is there
    assert resident(others) is not there


def test_what_does_not_fit_stays():
    held = images()
    assert Resident(FAR, lambda _: 5 * (4 + 9) - 1)(held) is held


@dataclass(frozen=True, eq=False)
class Elsewhere(TensorImages):
    """Pixels that may not be read where they are."""

    def read(self, index: Tensor, *, augmented: bool = False) -> Tensor:
        raise AssertionError("read past the device's copy")


@pytest.mark.parametrize("transform", [PLAIN, CROPPED])
@pytest.mark.parametrize("many", [1, 40_000])
def test_training_and_scores_read_what_is_there(transform: Transform, many: int, monkeypatch: pytest.MonkeyPatch):
    """Alone and stacked, in one read a client and in portions."""
    monkeypatch.setattr("flnl.engine.network.CHUNK_BYTES", 64 * 2**20 // many)
    dealt = random_federation([7, 7, 7, 7], transform=transform)
    net = network(mlp(4, 3), transform=transform)
    job = LocalTraining(TRAINING, Plain(), {"cross_entropy": CrossEntropy()}, None, {})

    def work(samples: Samples, client: int) -> ClientTask:
        return task(mlp(4, 3).double(), samples, client=client)

    plain = [job(net, work(dealt.samples(k), k)) for k in range(4)]
    scores = net.logits(dealt.samples(0))
    store = dealt.samples(0).images
    assert isinstance(store, TensorImages)
    far = Elsewhere(store.pixels, store.larger)
    monkeypatch.setattr(net, "here", lambda found: store if found is far else found)
    moved = [replace(dealt.samples(k), images=far) for k in range(4)]
    for k in range(4):
        found, expected = job(net, work(moved[k], k)).params, plain[k].params
        assert found is not None
        assert expected is not None
        assert equal(found, expected)
    assert torch.equal(net.logits(moved[0]), scores)
    stacked = Stacked(net, stack=5, memory=1.0)
    together = [
        result
        for block in stacked.map(job, [work(s, k) for k, s in enumerate(moved)], as_list)
        for result in block.results
    ]
    for one, other in zip(together, plain, strict=True):
        for name, tensor in (other.params or {}).items():
            torch.testing.assert_close((one.params or {})[name], tensor, rtol=1e-10, atol=1e-12)
