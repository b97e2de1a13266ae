"""What a run costs, counted from the definition, the same in every executor."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flnl.core.execution import Executor
from flnl.core.state import PASSES, FederatedState, RoundResult, ServerState
from flnl.core.stored import restore
from flnl.core.usage import RESET, Usage, Used
from flnl.engine.executors.processes import Processes
from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.stacked import Stacked
from flnl.engine.network import Network
from tests.properties.runs import assembled, rounds, run

WORDS = (
    *("dataset=digits", "dataset.train_size=120", "dataset.test_size=60", "model=mlp", "model.hidden=[8]"),
    *("partition=iid_uniform", "partition.num_clients=3", "fraction=1.0", "noise=fedcorr", "noise.rho=1.0"),
    *("train.batch_size=16", "train.epochs=2", "train.lr=0.1", "eval.every=1"),
    *("device=cpu", "threads=1", "executor=sequential", "wandb.mode=disabled", "figures=false"),
)
"""3 clients of 40 samples: batches of 16, 16 and 8."""
EPOCH = 3 * 40
OF_FEDCORR = ("method=fedcorr", "method.T1=1", "method.T2=1", "method.T3=1")


def counted(results: list[RoundResult]) -> list[tuple[int | None, ...]]:
    """Training passes, forward passes and steps of each round."""
    totals = [tuple(getattr(r.state.counters, name) for name in PASSES) for r in results]
    before = [(0, 0, 0), *totals[:-1]]
    return [tuple(a - b for a, b in zip(now, then, strict=True)) for now, then in zip(totals, before, strict=True)]


@pytest.mark.parametrize(
    ("words", "each"),
    [
        (("method=fedavg",), (2 * EPOCH, 0, 3 * 3 * 2)),
        (("method=co_teaching",), (2 * 2 * EPOCH, 0, 3 * 3 * 2)),  # two networks, one optimiser
        (("method=fedlsr",), (2 * 2 * EPOCH, 0, 3 * 3 * 2)),  # two views of each batch
        (("method=power_of_choice", "method.candidates=3"), (2 * EPOCH, EPOCH, 3 * 3 * 2)),  # asks for losses first
        (("method=flr", "method.R_w=0"), (2 * EPOCH, 2 * EPOCH, 3 * 3 * 2)),  # and the received model
        (("method=fedavg", "train.steps=4"), (3 * (16 + 16 + 8 + 16), 0, 3 * 4)),
        (("method=fedavg", "eval.cohort=true"), (2 * EPOCH, 0, 3 * 3 * 2)),  # what is observed is not the method's
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) and isinstance(value[0], str) else "",
)
def test_a_round_counts_samples_by_networks_and_steps_by_clients(
    words: tuple[str, ...], each: tuple[int, ...], tmp_path: Path
) -> None:
    results = rounds([*WORDS, "rounds=3", *words], tmp_path / "run")
    assert counted(results) == [each] * 3


def test_fedcorr_counts_its_stages(tmp_path: Path) -> None:
    """In the first stage a client's model is scored for LID; who corrects labels scores the global one."""
    results = rounds([*WORDS, *OF_FEDCORR], tmp_path / "run")
    of, sizes = counted(results), [len(r.cohort) for r in results]
    assert sizes[:3] == [1, 1, 1]
    assert [passes for passes, _, _ in of] == [80 * size for size in sizes]
    assert [steps for _, _, steps in of] == [6 * size for size in sizes]
    asked = [0 if r.correction is None else r.correction["asked"] for r in results]
    judged = [size if r.stage == "preprocess" else 0 for r, size in zip(results, sizes, strict=True)]
    assert [scored for _, scored, _ in of] == [40 * (a + b) for a, b in zip(judged, asked, strict=True)]
    assert asked[2] > 0


EXECUTORS: dict[str, Callable[[Network], Executor]] = {
    "stacked": lambda net: Stacked(net, 5, 1.0),
    "processes": lambda net: Processes(net, Sequential, 2, "fork"),
    "stacks in processes": lambda net: Processes(net, lambda own: Stacked(own, 2, 1.0, split=2), 2, "fork"),
}


@pytest.mark.parametrize(
    "words",
    [("method=co_teaching",), OF_FEDCORR, ("method=feddyn",), ("method=fedpeer",), ("method=power_of_choice",)],
    ids=lambda words: words[0],
)
def test_executors_count_the_same(words: tuple[str, ...], tmp_path: Path) -> None:
    length = () if words == OF_FEDCORR else ("rounds=2",)
    with assembled([*WORDS, *length, *words], tmp_path / "run") as parts:
        one = counted(parts.results())
        for name, make in EXECUTORS.items():
            executor = make(parts.evaluator.network)
            try:
                assert counted(parts.results(executor=executor)) == one, name
            finally:
                executor.close()


def test_the_record_has_what_was_counted_and_used(tmp_path: Path) -> None:
    """Resumed, it counts on; seconds add up, and the most memory is that of either process."""
    words = [*WORDS, "rounds=3", "method=power_of_choice", "method.candidates=3"]
    whole = run(words, tmp_path / "whole")
    assert [whole.record[name] for name in PASSES] == [3 * 2 * EPOCH, 3 * EPOCH, 3 * 18]
    (last,) = [line for line in whole.lines if line["kind"] == "round" and line["round"] == 2]
    assert [last[name] for name in PASSES] == [2 * 2 * EPOCH, 2 * EPOCH, 2 * 18]
    half = run(words, tmp_path / "broken", "max_rounds=1")
    again = run(words, tmp_path / "broken", "resume=true")
    assert [again.record[name] for name in PASSES] == [whole.record[name] for name in PASSES]
    assert again.record["cpu_time_s"] > half.record["cpu_time_s"] > 0
    assert again.record["peak_memory"] >= half.record["peak_memory"] > 2**25
    assert again.record["peak_gpu_memory"] is None


def test_what_an_early_version_did_not_count_stays_unknown() -> None:
    early = {"participations": 5, "bytes_down": 7, "bytes_up": 7, "left_out": 0}
    state = FederatedState(1, ServerState({}), counters=restore("Counters", early))
    more = state.counted(participations=2, training_passes=80, forward_passes=0, optimizer_steps=6).counters
    assert (more.participations, *(getattr(more, name) for name in PASSES)) == (7, None, None, None)


def test_usage_adds_up_over_time_and_over_processes() -> None:
    one, other = Usage(1.5, 100, 7), Usage(2.0, 60, 9)
    assert one.after(other) == Usage(3.5, 100, 9)
    assert one.beside(other) == Usage(3.5, 160, 16)


@pytest.mark.skipif(not RESET.exists(), reason="only Linux can forget an earlier peak")
def test_the_peak_of_memory_is_that_of_the_run() -> None:
    """What the process had before counts as little as what it has given back."""
    earlier = torch.ones(2**29, dtype=torch.uint8)
    del earlier
    used = Used(torch.device("cpu"))
    before = used.pop().memory
    during = torch.ones(2**28, dtype=torch.uint8)
    del during
    after = used.pop().memory
    assert 0.9 * 2**28 < after - before < 1.1 * 2**28
