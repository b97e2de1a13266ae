"""Whether a model's numbers are finite, by sums where these tell."""

import pytest
import torch
from torch import Tensor

from flnl.core.payload import all_finite, are_finite

HUGE = torch.finfo(torch.float32).max
ROWS = {
    "ordinary": ([1.0, -2.0, 0.0], True),
    "a NaN": ([1.0, torch.nan, 0.0], False),
    "an infinity": ([1.0, -torch.inf, 0.0], False),
    "infinities that cancel": ([torch.inf, -torch.inf, 0.0], False),
    "a sum that overflows": ([HUGE, HUGE, HUGE], True),
    "overflow, and a NaN": ([HUGE, HUGE, torch.nan], False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ROWS)
def test_a_model_is_finite_if_each_number_is(name: str, dtype: torch.dtype) -> None:
    values, expected = ROWS[name]
    row = torch.tensor(values, dtype=torch.float64).clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    row = torch.where(torch.tensor(values).isinf(), torch.tensor(values), row).to(dtype)
    assert all_finite({"count": torch.tensor(3), "weight": row, "other": torch.zeros(2, 2)}) == expected
    assert all_finite({"weight": torch.zeros(2), "number": row[1]}) == bool(row[1].isfinite())


def test_each_client_of_a_stack_has_its_own_answer() -> None:
    together = torch.tensor([values for values, _ in ROWS.values()])
    other = torch.zeros(len(ROWS), 4)
    other[0, 3] = torch.nan
    expected = [expected for _, expected in ROWS.values()]
    assert are_finite([together], 1).tolist() == expected
    assert are_finite([together, other], 1).tolist() == [False, *expected[1:]]
    assert are_finite([other[1:]], 1).tolist() == [True] * (len(ROWS) - 1)


def test_what_holds_no_floats_is_finite() -> None:
    empty: dict[str, Tensor] = {}
    assert all_finite(empty)
    assert all_finite({"count": torch.tensor(3)})
