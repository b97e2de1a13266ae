"""The received model beside the one being trained is always the one that was received."""

import numpy as np
import pytest
import torch

from flnl.core.messages import Broadcast
from flnl.core.payload import Params
from flnl.data.transforms import Transform
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
