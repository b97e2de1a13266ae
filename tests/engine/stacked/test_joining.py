"""Joining values of clients: what cannot be joined is named."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from flnl.engine.stacked.errors import NotStackable
from flnl.engine.stacked.joining import join


class Named(NamedTuple):
    """A container that is not taken apart."""

    losses: Tensor


def test_a_container_that_is_not_taken_apart_is_named() -> None:
    values = [{"co_teaching": Named(torch.tensor([0.0, k]))} for k in (1.0, 2.0)]
    with pytest.raises(NotStackable, match=r"neither tensor nor number \(co_teaching\)"):
        join(values, torch.float32, torch.device("cpu"), [2, 2])
