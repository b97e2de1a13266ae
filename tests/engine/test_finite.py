"""Whether a model's numbers are finite, by sums where these tell."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flnl.core.messages import ClientResult, ClientTask
from flnl.core.payload import Payload, all_finite, are_finite
from flnl.core.state import Counters
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.loop import NonFiniteError
from flnl.engine.network import Network
from tests.properties.runs import assembled, run

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


@pytest.mark.parametrize(("counts", "told"), [((0, 0), True), ((2, 1), False), ((2, 2), True)])
def test_the_first_client_that_diverges_is_named_whoever_did_not_answer_before(
    counts: tuple[int, int], told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with assembled(["debug=fast", "method=fedavg", "train.lr=1e30", "executor=sequential"], tmp_path / "run") as parts:
        left_out, unanswered = counts
        before = replace(parts.state, counters=Counters(left_out=left_out, unanswered=unanswered))
        after = next(parts.rounds(before)).state.counters
    assert after.left_out > left_out
    assert after.unanswered == unanswered
    assert ("returned non-finite parameters and is left out" in caplog.text) == told


def test_a_run_in_which_no_site_answered_does_not_blame_the_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unanswered(job: LocalTraining, network: Network, task: ClientTask) -> ClientResult:
        plain = (task.client, len(task.samples), None, task.state, Payload(), 0.0, 0)
        return ClientResult(*plain, finite=False, missing="did not answer")

    monkeypatch.setattr(LocalTraining, "__call__", unanswered)
    with pytest.raises(NonFiniteError, match=r"^no site answered any of \d+ visits as it should"):
        run(["debug=fast", "method=fedavg", "executor=sequential"], tmp_path / "run")
