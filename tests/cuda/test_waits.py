"""From a visit's second epoch on the host never waits for the device, whatever the method; and seldom in a round."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from flnl.core.onto import onto
from flnl.core.step import Phase, Step
from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.stacked import Stacked
from flnl.engine.local import sgd
from flnl.engine.local.batching import Draws
from flnl.engine.local.objective import backward, mean_over_steps
from flnl.engine.local.steps import Steps
from flnl.engine.stacked import training
from flnl.engine.stacked.plan import Planner
from tests.cuda.watch import waited, watch, watching
from tests.properties.runs import assembled
from tests.registry import BY_NAME, Entry, others_slow
from tests.simulated_gpu import device
from tests.simulated_gpu.waits import RACE, WAITING


@contextmanager
def later_epochs(library: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Torch's warnings about waiting, from the second order of batches that a visit draws to its last step.

    What comes before, such as a rule's look at the client's outputs, may wait.
    """
    heard: list[str] = []
    drawn: list[Draws] = []
    order, alone, together = Draws.order, sgd.LocalTraining._train, training.Turns.run
    steps, phases = Steps._of, Planner._phases

    def next_order(self: Draws, chosen: Any) -> Any:
        result = order(self, chosen)
        if any(self is one for one in drawn):
            watch(library, "warn")
        drawn.append(self)
        return result

    def of_phase(self: Steps, *place: Any) -> Iterator[Step]:
        yield from steps(self, *place)
        watch(library, "default")  # the rule may look at outputs before the next phase

    def of_phases(self: Planner, *place: Any) -> list[Phase]:
        watch(library, "default")  # as above; the next order of batches is drawn after it
        return phases(self, *place)

    def ended() -> None:
        watch(library, "default")
        drawn.clear()

    def train_one(*args: Any) -> Any:
        try:
            return alone(*args)
        finally:
            ended()

    def train_many(*args: Any) -> Any:
        try:
            return together(*args)
        finally:
            ended()

    def mean_at_the_end(losses: Any) -> float:
        ended()
        return mean_over_steps(losses)

    monkeypatch.setattr(Draws, "order", next_order)
    monkeypatch.setattr(Steps, "_of", of_phase)
    monkeypatch.setattr(Planner, "_phases", of_phases)
    monkeypatch.setattr(sgd.LocalTraining, "_train", train_one)
    monkeypatch.setattr(sgd, "mean_over_steps", mean_at_the_end)
    monkeypatch.setattr(training.Turns, "run", train_many)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield heard
    heard += waited(caught)


@pytest.mark.parametrize("stack", [0, 5], ids=["sequential", "stacked"])
@pytest.mark.parametrize("entry", others_slow(), ids=str)
def test_a_method_waits_for_nothing(
    entry: Entry, stack: int, tmp_path: Path, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = torch.get_device_module(gpu)
    with assembled(entry.words, tmp_path / "run", f"device={gpu}") as parts:
        net = parts.evaluator.network
        executor: Any = Stacked(net, 5, 1.0, False) if stack else Sequential(net)
        with later_epochs(library, monkeypatch) as heard:
            parts.results(executor=executor)
    assert not set(heard)


@pytest.mark.parametrize("entry", others_slow(), ids=str)
def test_from_the_second_round_on_nothing_is_sent_to_the_device_with_a_wait(
    entry: Entry, tmp_path: Path, gpu: str
) -> None:
    """Labels, states, messages, models, positions. The images of a data set are moved when they are first read."""
    if gpu != device.NAME:
        pytest.skip("tells the simulated GPU's kinds of waits apart")
    words = [word for word in entry.words if not word.startswith("executor")]
    with assembled(words, tmp_path / "run", f"device={gpu}", "executor=stacked") as parts:
        rounds = parts.rounds()
        next(rounds)
        with device.waits.counting() as events:
            list(rounds)
    sent = {event.place for event in events if event.kind in ("h2d", "shape", "mask", RACE)}
    assert not {place for place in sent if not place.startswith("flnl/data/images.py")}


def test_only_a_copy_to_the_host_is_waited_for(gpu: str) -> None:
    """Whatever the place is given by; the type of a tensor is taken over, that of a device is not one."""
    if gpu != device.NAME:
        pytest.skip("tells the simulated GPU's kinds of waits apart")
    here, there = torch.arange(3), torch.zeros(1, dtype=torch.float64, device=gpu)
    with device.waits.counting() as events:
        moved = [onto(here, there), onto(here, torch.device(gpu)), onto(here, torch.device(gpu), torch.float32)]
    assert {event.kind for event in events} == {"h2d_async"}
    assert [tensor.dtype for tensor in moved] == [torch.float64, torch.int64, torch.float32]
    with device.waits.counting() as events:
        back = onto(moved[0], torch.device("cpu")), onto(moved[1], here)
    assert {event.kind for event in events} == {"d2h"}
    assert all(torch.equal(tensor.long(), here) for tensor in back)


@pytest.mark.parametrize("graphs", ["branches", "none"])
def test_a_round_waits_for_its_losses_a_sound_model_and_scores(graphs: str, tmp_path: Path, gpu: str) -> None:
    """Once each, after what they are of; nothing else in a round does: no aggregation, no broadcast."""
    if gpu != device.NAME:
        pytest.skip("counts the simulated GPU's waits")
    words = [word for word in BY_NAME["fedavg"].words if not word.startswith("executor")]
    more = (f"device={gpu}", "executor=stacked", f"executor.graphs={graphs}", "rounds=4")
    with assembled(words, tmp_path / "run", *more) as parts:
        rounds = parts.rounds()
        next(rounds)
        for _ in range(3):
            with device.waits.counting() as events:
                next(rounds)
            waits = [(event.place, count) for event, count in events.items() if event.kind in (*WAITING, RACE)]
            assert [count for _, count in waits] == [1, 1, 1]
            files = ("engine/stacked/training", "core/payload", "engine/network")
            assert all(place.startswith(f"flnl/{file}.py") for (place, _), file in zip(waits, files, strict=True))


def test_what_waits_is_heard(gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = torch.get_device_module(gpu)
    number = torch.zeros(1, device=gpu)

    def looks(loss: Any, share: float) -> None:
        backward(loss, share)
        number.item()

    monkeypatch.setattr(sgd, "backward", looks)
    with assembled(BY_NAME["fedavg"].words, tmp_path / "run", f"device={gpu}") as parts:
        executor = Sequential(parts.evaluator.network)
        with later_epochs(library, monkeypatch) as heard:
            parts.results(executor=executor)
    assert heard


@pytest.mark.parametrize("waits", [False, True])
def test_recording_probabilities_waits_for_nothing(
    waits: bool, tmp_path: Path, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the images are on the device: the first time, they are moved there."""
    library = torch.get_device_module(gpu)
    with assembled(BY_NAME["fedavg"].words, tmp_path / "run", f"device={gpu}", "audit.record=true") as parts:
        evaluator = parts.evaluator
        recorder, network, data = evaluator.recorder, evaluator.network, evaluator.federation.dataset
        assert recorder is not None
        state = next(parts.rounds()).state
        tested = network.outputs(data.test, torch.from_numpy(evaluator.federation.tested))
        if waits:
            scores = network.outputs

            def looks(*of: Any, **more: Any) -> torch.Tensor:
                return scores(*of, **more).cpu().to(network.device)

            monkeypatch.setattr(network, "outputs", looks)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with watching(library, "warn"):
                recorder.add(state, tested)
        assert recorder.sums.all.device.type == gpu
        assert len(recorder.sums.rounds) == 2
    assert bool(waited(caught)) == waits
