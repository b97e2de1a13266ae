"""Workers that stack: the bits of one process that stacks, whoever works; chosen and refused on the command line."""

import os
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flnl.config import compose
from flnl.config.check import check_config
from flnl.core.errors import UserError
from flnl.core.execution import BLOCK
from flnl.engine.executors.processes import Processes
from flnl.engine.executors.stacked import Stacked, sections
from flnl.engine.network import Network
from flnl.engine.stacked.training import train
from tests.engine.executors.test_processes import pool_of
from tests.engine.executors.test_stacked import SIZES, agree, job, results, tasks
from tests.properties.runs import assembled, difference, rounds, run
from tests.registry import BY_NAME, REPRESENTATIVES, Entry, others_slow
from tests.toys import mlp, network


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[int, list[int]]]:
    """The number of clients of each stack trained from now on, by process; forked workers note theirs, too."""
    folder = tmp_path / "stacks"
    folder.mkdir()

    def noted(work: Any, net: Any, many: Any, together: Any, *more: Any) -> Any:
        with (folder / str(os.getpid())).open("a") as file:
            file.write(f"{len(together)}\n")
        return train(work, net, many, together, *more)

    monkeypatch.setattr("flnl.engine.executors.stacked.train", noted)
    return lambda: {int(file.name): [*map(int, file.read_text().split())] for file in folder.iterdir()}


def stacked(stack: int = 2) -> Callable[[Network], Stacked]:
    return partial(Stacked, stack=stack, memory=1.0, split=2, memory_format="channels_last")


@pytest.mark.parametrize("entry", others_slow(REPRESENTATIVES), ids=str)
def test_a_method_has_the_bits_of_one_process(entry: Entry, tmp_path: Path) -> None:
    """In pairs, so that the few clients of a registry's round are several stacks, across the borders of blocks."""
    with assembled(entry.words, tmp_path / "run") as parts:
        net = parts.evaluator.network
        one = parts.results(executor=stacked()(net))
        with pool_of(net, 2, inner=stacked()) as two:
            assert difference(parts.results(executor=two), one) is None


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("stack", [3, 5, 20])
def test_any_number_of_workers_has_the_bits_of_one_process(
    workers: int, stack: int, stacks: Callable[[], dict[int, list[int]]]
) -> None:
    net = network(mlp(4, 3, norm=True), precision=32)
    work, cohort = job(), tasks(net, [*SIZES, *SIZES, 7])
    one = results(stacked(stack)(net), work, cohort)
    alone = sorted(stacks().pop(os.getpid()))
    with pool_of(net, workers, inner=stacked(stack)) as executor:
        assert difference(results(executor, work, cohort), one) is None
    there = stacks()
    there[os.getpid()] = there[os.getpid()][len(alone) :]
    assert sorted(chain.from_iterable(there.values())) == alone, "the same stacks, wherever they were trained"
    assert bool(there[os.getpid()]) == (workers == 1)
    assert max(alone) == {3: 3, 5: 5, 20: 15}[stack]


@pytest.mark.slow
def test_those_that_inherit_nothing_do_so_too() -> None:
    net = network(mlp(4, 3), precision=32)
    work, cohort = job(), tasks(net)
    with pool_of(net, 2, "spawn", stacked(5)) as executor:
        assert difference(results(executor, work, cohort), results(stacked(5)(net), work, cohort)) is None


@given(st.integers(0, 300), st.integers(1, 40))
def test_a_cohort_is_cut_into_sections_of_whole_blocks(count: int, split: int) -> None:
    cut = sections(count, split)
    assert [i for section in cut for i in section] == list(range(count))
    blocks = [-(-len(section) // BLOCK) for section in cut]
    assert len(cut) == min(split, sum(blocks))
    assert max(blocks, default=0) - min(blocks, default=0) <= 1
    assert all(len(section) % BLOCK == 0 for section in cut[:-1])


def test_a_section_is_cut_into_stacks(stacks: Callable[[], dict[int, list[int]]]) -> None:
    net = network(mlp(4, 3))
    results(Stacked(net, 10, 1.0, split=2), job(), tasks(net, [6] * 35))
    results(Stacked(net, 10, 1.0, split=2), job(), tasks(net, [6] * 5))
    assert stacks()[os.getpid()] == [10, 5, 10, 10, 5]


WORDS = [word for word in BY_NAME["fedavg_with_batch_norm"].words if not word.startswith("executor=")]
CHOSEN = ["executor=processes", "executor/inner=stacked", "executor.workers=2"]


def test_it_is_a_command_line(tmp_path: Path) -> None:
    """Whose bits are those of ``executor=stacked`` with the same values, and not those of another split or layout."""
    with assembled(WORDS, tmp_path / "run", *CHOSEN) as parts:
        assert isinstance(parts.executor, Processes)
        workers = parts.results()
    alike = ["executor=stacked", "executor.stack=25", "executor.split=2", "executor.memory_format=channels_last"]
    assert difference(rounds(WORDS, tmp_path / "alike", *alike), workers) is None
    assert difference(rounds(WORDS, tmp_path / "other", "executor=stacked"), workers) is not None


def test_a_resumed_run_has_the_bits_of_an_unbroken_one(tmp_path: Path) -> None:
    """Also where the command no longer names the executor, and where there is one worker left."""
    words = [*WORDS, *CHOSEN, "executor.inner.stack=2"]
    unbroken = run(words, tmp_path / "unbroken")
    run(words, tmp_path / "run", "max_rounds=1")
    second = run(WORDS, tmp_path / "run", "max_rounds=2", "resume=true")
    assert second.record["executor"] == unbroken.record["executor"]
    assert second.record["executor"]["inner"]["stack"] == 2
    last = run([*words[:-2], "executor.workers=1", words[-1]], tmp_path / "run", "resume=true")
    assert last.record["status"] == "finished"
    assert last.record["executor"]["workers"] == 1
    assert difference(last.state, unbroken.state) is None
    assert last.lines == unbroken.lines


def test_a_run_says_that_its_method_does_not_stack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in BY_NAME["dividemix"].words if not word.startswith("executor=")]
    with assembled(words, tmp_path / "run", *CHOSEN):
        printed = " ".join(capsys.readouterr().err.split())
    assert "executor: processes, 2 workers, stacked: as asked; where they cannot be stacked" in printed


def test_a_refusal_names_the_key_of_the_inner_executor(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^executor\.inner\.graphs=true, but .*: use executor\.inner\.graphs=auto$"):  # noqa: SIM117
        with assembled(WORDS, tmp_path / "run", *CHOSEN, "executor.inner.graphs=true"):
            pass
    for word, reason in (
        ("executor.inner.stack=7", r"executor\.inner\.stack=7: must be less than 5 or must be a multiple of 5"),
        ("executor.inner.split=0", r"executor\.inner\.split=0: must be greater than or equal to 1"),
        ("executor.inner.memory_format=nhwc", r"memory_format=nhwc: must be 'auto', 'contiguous' or 'channels_last'"),
    ):
        with pytest.raises(UserError, match=reason):
            check_config(compose.load([*CHOSEN, word]))


def test_channels_last_computes_the_same(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64 to the tenth digit; convolutions see their inputs in the layout that is asked for."""
    from flnl.engine.stacked.layers import Conv2d
    from flnl.models.resnet import ResNet

    layouts, forward = set[bool](), Conv2d.forward

    def seen(layer: Conv2d, inputs: torch.Tensor) -> torch.Tensor:
        outputs = forward(layer, inputs)
        layouts.add(outputs.is_contiguous(memory_format=torch.channels_last) and not outputs.is_contiguous())
        return outputs

    monkeypatch.setattr(Conv2d, "forward", seen)
    torch.manual_seed(0)
    net = network(ResNet(4, [1])((1, 2, 2), 3))
    for name in ("channels_last", "contiguous"):
        monkeypatch.setattr("tests.engine.executors.test_stacked.Stacked", partial(Stacked, memory_format=name))
        layouts.clear()
        agree(net, job(), tasks(net), caplog)
        assert (True in layouts) == (name == "channels_last")
