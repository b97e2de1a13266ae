"""The received model beside the one being trained is always the one that was received."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from flnl.core.errors import PartError
from flnl.core.messages import Broadcast
from flnl.core.payload import Params
from flnl.core.step import FEATURES, LOGITS
from flnl.data.transforms import Transform
from flnl.models.mlp import MLP
from tests.toys import Point, mlp, network, random_federation, task


def test_it_is_that_of_the_last_broadcast_even_where_an_object_takes_the_identity_of_another() -> None:
    """Python gives the identity of what is gone to what comes next: here to the next mapping of parameters."""
    net = network(mlp(4, 3))
    inputs, begun = torch.ones(1, 4, dtype=torch.float64), net.params()
    for number in range(50):
        params = {name: torch.full_like(p, number / 50) for name, p in begun.items()}
        seen = net.frozen(Broadcast(0, 1, params))(inputs)
        net.load(params)
        assert torch.equal(seen, net.scored(inputs)), number
        del params


def test_it_gives_any_output() -> None:
    net = network(MLP([5], 0.0)((1, 2, 2), 3))
    sent, inputs = Broadcast(0, 1, net.params()), torch.rand(4, 1, 2, 2, dtype=torch.float64)
    before, logits = net.frozen(sent, output=FEATURES)(inputs), net.frozen(sent)(inputs)
    net.load({name: torch.zeros_like(p) for name, p in sent.params.items()})
    assert torch.equal(net.frozen(sent, output=FEATURES)(inputs), before)
    torch.testing.assert_close(logits, before @ sent.params["head.weight"].T + sent.params["head.bias"])


def test_it_is_read_once_for_all_clients_of_a_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network(Point(1.0))
    one, other = net.params(), net.params()
    reads: list[Params] = []
    module = net.receive(Broadcast(0, 1, one))
    monkeypatch.setattr(module, "load_state_dict", reads.append)
    for params in (one, one, other, other, one):
        net.receive(Broadcast(0, 1, params))
    assert [params is one for params in reads] == [False, True]


def test_its_outputs_are_computed_once_a_task_but_anew_with_each_augmentation() -> None:
    flipped = Transform(size=(2, 2), mean=(0.0,), std=(1.0,), scale=1.0, flip=True)
    net = network(mlp(4, 3), transform=flipped)
    work = task(net.module, random_federation([9], transform=flipped).samples(0))
    plain = net.received(work)
    assert net.received(work) is plain
    one, same, other = (net.received(work, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(one, plain)
    assert net.received(work) is plain


def test_another_model_gives_several_outputs_in_one_pass() -> None:
    """Those of the model once it is loaded, augmented by the same draws."""
    flipped = Transform(size=(2, 2), mean=(0.0,), std=(1.0,), scale=1.0, flip=True)
    net = network(MLP([4], 0.0)((1, 2, 2), 3), transform=flipped)
    samples = random_federation([9], transform=flipped).samples(0)
    held, other = net.params(), {name: p + 0.25 for name, p in net.params().items()}
    net.meter.pop()
    said = net.at(other).outputs(samples, np.random.default_rng(1), (FEATURES, LOGITS))
    assert net.meter.pop().scored == 9
    assert all(torch.equal(p, held[name]) for name, p in net.params().items())
    net.load(other)
    for name in (LOGITS, FEATURES):
        assert torch.equal(said[name], net.logits(samples, np.random.default_rng(1), output=name))
    with pytest.raises(LookupError, match="no output 'second'"):
        net.at(other).outputs(samples, None, (LOGITS, "second"))


@pytest.mark.parametrize("awaited", [False, True])
def test_a_model_that_is_trained_apart_leaves_the_network_as_it_was(awaited: bool) -> None:
    net = network(Point(1.0))
    held, other = net.params(), {"w": torch.tensor([3.0], dtype=torch.float64)}
    with net.holding(held) if awaited else nullcontext(), net.lent():
        net.module.train()
        with net.apart():
            net.load(other)
            net.module.eval()
        assert net.module.training
        assert torch.equal(net.params()["w"], held["w"])
        with pytest.raises(PartError, match="loads a model"):
            net.load(other)
