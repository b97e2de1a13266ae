"""What a run shows on a terminal while it runs."""

import contextlib
import os
import pty
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from flnl.config import compose
from flnl.engine import planned
from flnl.record.run import RunRecord
from flnl.run import progress
from flnl.sweep import table as sweep_table
from flnl.sweep.ledger import Job
from tests.properties.test_parts import method_of
from tests.registry import TINY


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the bar: the test sets its only value."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


def after(rounds: int, stage: str) -> Any:
    return SimpleNamespace(state=SimpleNamespace(round=rounds), stage=stage, evaluation=None)


def test_the_time_left_counts_trainings(seconds: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """Twenty rounds of one client, then six of ten: after half of the first, 70 of 80 trainings are left.

    Of the first ten rounds nine are counted: the first one took a minute, most of it to start.
    """
    bar = progress.Bar([5.0] * 20 + [50.0] * 6, 0)
    seconds[0] = 60.0
    bar.round(after(1, "preprocess"))
    assert capsys.readouterr().err == "preprocess round 1/26  not evaluated yet\n"
    seconds[0] = 60.0 + 2.7 + 30.0
    bar.round(after(10, "preprocess"))
    assert "round 10/26" in (printed := capsys.readouterr().err)
    assert printed.endswith(f"about {32.7 / 9 * 70 / 60:.0f} min left\n")


def test_the_time_left_of_a_resumed_run_is_that_of_its_own_rounds(
    seconds: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    bar = progress.Bar([1.0] * 100, 90)
    bar.round(after(91, "training"))
    seconds[0] = 32.0
    bar.round(after(93, "training"))
    assert capsys.readouterr().err.endswith("round 93/100  not evaluated yet  about 2 min left\n")


def test_a_terminal_that_was_closed_costs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, terminal = pty.openpty()
    stream = os.fdopen(terminal, "w")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", stream)
    with progress.Bar([1.0] * 3, 0) as bar:
        os.close(reader)
        for number in range(1, 4):
            bar.round(after(number, "training"))
            time.sleep(0.15)  # the bar is drawn anew
    progress.warn("a line")
    progress.closing("finished", Path("run"), RunRecord())
    sweep_table.show(Path(), [Job(0, (), status="finished")])
    with contextlib.suppress(OSError):
        stream.close()


def test_a_round_of_a_stage_counts_its_cohort_and_its_epochs() -> None:
    words = [*TINY, "method=fedcorr", "method.T1=1", "method.T2=2", "method.T3=1", "train.epochs=3"]
    words += ["+method.stages.usual.train.steps=7", "train.batch_size=10"]
    method, training = method_of(words), compose.training(compose.load(words))
    size = {stage.name: stage.sampler.size(6) for stage in method.stages}
    lengths = [stage.length(6) for stage in method.stages]
    first, second, third = (stage.name for stage in method.stages)
    assert third == "usual"
    expected = [3.0 * size[first]] * lengths[0] + [3.0 * size[second]] * 2 + [7.0 * size[third]]
    assert planned.epochs(method, training, [5, 15] * 3) == expected, "a batch is an epoch of a client of mean size"


@pytest.mark.parametrize("name", ["fedavg", "fedcorr", "dividemix", "feddiv"])
def test_at_eighty_columns_no_word_of_the_plan_is_broken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/null", "w") as nowhere:  # noqa: PTH123
        console = Console(file=nowhere, width=80, record=True, force_terminal=True, color_system=None)
        monkeypatch.setattr(progress, "console", lambda **_: console)
        method = method_of([*TINY, f"method={name}"])
        progress.stages(method)
    words = set(re.split(r"\s+", console.export_text()))
    for stage in method.stages:
        assert stage.name in words
    shown = {word for stage in method.stages for text in stage.parts().values() for word in text.split()}
    assert not {word for word in shown if len(word) < 60} - words
