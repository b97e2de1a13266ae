"""The received model beside the one being trained is always the one that was received."""

import pytest
import torch

from flnl.core.messages import Broadcast
from flnl.core.payload import Params
from tests.toys import Point, mlp, network


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
