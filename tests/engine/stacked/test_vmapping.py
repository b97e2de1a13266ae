"""One function for many clients: as torch's vmap, which it replaces."""

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from flnl.engine.stacked.vmapping import over_clients


def of_one(weight: Tensor, rows: Tensor, at: Tensor) -> tuple[Tensor, ...]:
    """Products, values at positions, a value that no argument determines, and an argument as it is."""
    logits = rows @ weight
    moved = weight.index_copy(0, at, rows[: len(at), : weight.shape[1]])
    return torch.softmax(logits, 1).sum(), moved, torch.full((2,), 3.0), at


def given(clients: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    weight = torch.randn(clients, 4, 4, generator=rng).requires_grad_()
    at = torch.stack([torch.randperm(4, generator=rng)[:2] for _ in range(clients)])
    return weight, torch.randn(clients, 5, 4, generator=rng), at


@pytest.mark.parametrize("clients", [1, 3])
def test_it_gives_what_vmap_gives(clients: int) -> None:
    found, expected = over_clients(of_one)(*given(clients)), vmap(of_one)(*given(clients))
    assert len(found) == 4
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_gradients_are_each_clients_own() -> None:
    weight, rows, at = given()
    over_clients(of_one)(weight, rows, at)[1].square().sum().backward()
    other = given()[0]
    sum(of_one(other[k], rows[k], at[k])[1].square().sum() for k in range(3)).backward()  # type: ignore[union-attr]
    torch.testing.assert_close(weight.grad, other.grad)


def test_within_another_vmap() -> None:
    weight, rows, at = (torch.stack([t, t.flip(0)]) for t in given())
    found = vmap(lambda *each: over_clients(of_one)(*each)[1])(weight, rows, at)
    torch.testing.assert_close(found[1], found[0].flip(0))


def test_random_numbers_and_results_that_are_no_tensors_are_refused_and_the_next_call_is_as_ever() -> None:
    with pytest.raises(RuntimeError, match="random"):
        over_clients(lambda t: (t * torch.rand(2),))(torch.ones(3, 2))
    with pytest.raises(TypeError, match="a float where a tensor"):
        over_clients(lambda t: (t, 1.0))(torch.ones(3, 2))  # type: ignore[return-value, arg-type]
    assert over_clients(lambda t: (2 * t,))(torch.ones(3, 2))[0].sum() == 12
