"""One thread for all numeric tests: sums have one order, and small matrices are not fought over."""

from collections.abc import Iterator

import pytest
import torch
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
