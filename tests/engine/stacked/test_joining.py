"""Joining values of clients: what cannot be joined is named."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from flnl.core.payload import Payload
from flnl.engine.stacked.errors import NotStackable
from flnl.engine.stacked.joining import Joined, join, without_unlike
from flnl.engine.trees import same_structure, tree_flatten


class Named(NamedTuple):
    """A container that is not taken apart."""

    losses: Tensor


def test_a_container_that_is_not_taken_apart_is_named() -> None:
    values = [{"co_teaching": Named(torch.tensor([0.0, k]))} for k in (1.0, 2.0)]
    with pytest.raises(NotStackable, match=r"neither tensor nor number \(co_teaching: Named\)"):
        join(values, torch.float32, torch.device("cpu"), [2, 2])


@dataclass(frozen=True)
class Level:
    """What two clients may have received."""

    value: float
    by_class: Tensor
    names: tuple[str, ...] = ("a", "b")


def value(k: int) -> dict[str, Any]:
    """A state with tensors, a number that differs, and parts that all clients share."""
    return {
        "level": Payload(Level(0.5 + k, torch.full((3,), float(k)))),
        "list": [torch.tensor([k]), {"same": 1}],
        "shared": {"same": [1, 2]},
    }


def test_a_client_gets_back_what_was_its_own() -> None:
    joined = join([value(0), value(1)], torch.float64, torch.device("cpu"), [2, 2])
    for k in range(2):
        for found in (joined.of(k, 2), joined.filled([tensor[k] for tensor in joined.tensors])):
            assert found["level"].one(Level).value == 0.5 + k
            assert torch.equal(found["level"].one(Level).by_class, torch.full((3,), float(k)))
            assert found["level"].one(Level).names == ("a", "b")
            assert int(found["list"][0]) == k
            assert found["list"][1] == {"same": 1}
            assert found["shared"] == {"same": [1, 2]}


def test_what_only_some_clients_have_is_refused_by_its_type_when_it_is_read() -> None:
    """And joins again as before, so that recorded steps serve the next round."""
    payloads = [Payload("text", Level(0.5 + k, torch.zeros(3)), *[k] * k) for k in range(2)]

    def joined() -> Joined:
        apart = without_unlike(payloads, lambda values: join(values, torch.float64, torch.device("cpu"), [2, 2]))
        return join(apart, torch.float64, torch.device("cpu"), [2, 2])

    found = joined().filled([tensor[1] for tensor in joined().tensors])
    assert found.one(Level).value == 1.5
    assert (found.get(str), found.get(float)) == ("text", None)
    for read in (found.get, found.one):
        with pytest.raises(NotStackable, match="some clients have a int and others have none"):
            read(int)
    with pytest.raises(NotStackable, match="a int"):
        list(found)
    assert same_structure(joined(), joined())
    assert not same_structure(payloads[0], Payload(*reversed(payloads[0].values()))), (
        "their tensors are in another order"
    )
    assert len(joined().held()) == len(joined().tensors) == 2


def test_what_is_copied_may_be_changed() -> None:
    joined = join([value(0), value(1)], torch.float64, torch.device("cpu"), [2, 2])
    first = joined.copied(lambda place: joined.tensors[place.index][0])
    first["shared"]["same"].append(3)
    first["list"][1]["same"] = 2
    assert joined.of(1, 2)["shared"] == {"same": [1, 2]}
    assert joined.of(1, 2)["list"][1] == {"same": 1}


def test_the_tensors_of_a_value_are_in_the_order_of_its_placeholders() -> None:
    structure, tensors = tree_flatten(value(1))
    assert [tuple(t.shape) for t in tensors] == [(3,), (1,)]
    assert structure["list"][0].index == 1
    assert structure["level"].one(Level).by_class.path == ("level", "Level", "by_class")
