"""``probabilities.npz`` against the rounds that it is the mean of, and a run that records against one that does not."""

import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flnl.core.errors import UserError
from flnl.engine import loop
from flnl.engine.planned import Evaluations
from flnl.evaluation import recording
from flnl.evaluation.probabilities import NAME, Probabilities
from flnl.parts.samplers.uniform import Uniform
from flnl.run import checkpoint, opening
from tests.properties.reference import References
from tests.properties.runs import Ran, assembled, difference, run
from tests.registry import BY_NAME

FEDAVG = [*BY_NAME["fedavg"].words, "audit.record=true"]
"""Five rounds of six clients, all recorded."""
KINDS = ("fedcorr", "feddyn", "dividemix")
"""A method of three stages; one whose evaluated model is not the one that it sends next; one of two networks."""


def recorded(ran: Ran) -> Probabilities:
    return Probabilities.load(ran.folder / NAME)


@pytest.mark.parametrize("name", ["fedavg", *KINDS])
def test_a_run_that_records_is_the_same_run(name: str, references: References, tmp_path: Path) -> None:
    words = [*BY_NAME[name].words, "audit.record=true"]
    with_it, without = references.run(words), run(words, tmp_path / "run", "audit.record=false")
    assert (with_it.folder / NAME).exists()
    assert not (without.folder / NAME).exists()
    assert difference(with_it.state, without.state) is None
    assert (with_it.lines, with_it.corrections) == (without.lines, without.corrections)
    assert with_it.record["key"] == without.record["key"]
    assert difference(with_it.record["metrics"], without.record["metrics"]) is None
    for product in ("model.pt", "labels.csv"):
        assert (with_it.folder / product).read_bytes() == (without.folder / product).read_bytes()


@pytest.mark.parametrize("name", ["fedavg", *KINDS])
def test_the_means_are_those_of_the_evaluated_models(name: str, references: References, tmp_path: Path) -> None:
    """Every evaluated model scores all samples anew, in one batch."""
    words, window = [*BY_NAME[name].words, "audit.record=true"], 0.5
    found = recorded(references.run(words))
    with assembled(words, tmp_path / "run") as parts:
        federation, network, clients = parts.federation, parts.evaluator.network, len(parts.federation.with_data)
        planned = sum(s.length(clients) * s.sampler.size(clients) for s in parts.method.stages)
        train, tested = federation.dataset.train, torch.from_numpy(federation.tested)
        order = [(c, int(i)) for c in federation.with_data for i in federation.clients[c]]
        index = torch.tensor([i for _, i in order])
        rounds, early, scores = [], [], []
        for result in parts.rounds():
            if result.evaluation is None:
                continue
            network.load(loop.shown(parts.method, result.state, clients))
            rounds.append(result.state.round)
            early.append(result.state.counters.participations <= window * planned)
            scores.append(
                [
                    torch.softmax(network.outputs(images, at).double(), 1).numpy()
                    for images, at in ((train, index), (federation.dataset.test, tested))
                ]
            )
        assert found.round == rounds[-1] == parts.method.length(clients)
    assert found.rounds.tolist() == rounds
    assert 0 < sum(early) < len(early)
    assert found.window_rounds.tolist() == [r for r, inside in zip(rounds, early, strict=True) if inside]
    assert found.client.tolist() == [c for c, _ in order]
    assert federation.dataset.ids is not None
    assert found.sample.tolist() == [federation.dataset.ids[i] for _, i in order]
    assert found.tested.tolist() == tested.tolist()
    for kind, (prefix, size) in enumerate((("", len(order)), ("test_", len(tested)))):
        each = np.array([score[kind] for score in scores])
        assert each.shape[1:] == (size, federation.num_classes)
        for part, expected in (("all", each), ("window", each[early]), ("final", each[-1:])):
            values = getattr(found, prefix + part)
            assert values.dtype == np.float32
            np.testing.assert_allclose(values, expected.mean(0), atol=2e-6)


@pytest.mark.parametrize(("window", "count"), [(0.05, 1), (0.2, 1), (0.6, 3), (0.61, 3), (1.0, 5)])
def test_the_window_ends_with_a_share_of_the_participations(window: float, count: int, tmp_path: Path) -> None:
    """At least the first evaluation is in it."""
    found = recorded(run(FEDAVG, tmp_path / "run", f"audit.window={window}"))
    assert found.window_rounds.tolist() == [1, 2, 3, 4, 5][:count]
    assert np.array_equal(found.window, found.all) == (count == 5)


def test_names_of_samples_and_the_order_are_those_of_labels_csv(tmp_path: Path) -> None:
    ran = run(FEDAVG, tmp_path / "run", "eval.validation=0.2", "eval.benchmark=0.2", "partition=dirichlet")
    rows = [line.split(",")[:2] for line in (ran.folder / "labels.csv").read_text().splitlines()[1:]]
    found = recorded(ran)
    assert [[str(c), str(s)] for c, s in zip(found.client, found.sample, strict=True)] == rows
    assert len(found.test_window) == len(found.tested) == 40
    assert (found.key, found.federation) == (ran.record["key"], ran.record["federation"])


@pytest.mark.parametrize("window", [0.3, 1.0])
def test_stopped_after_every_round_the_file_is_the_same(window: float, tmp_path: Path) -> None:
    """Also where a process was killed, and the rounds after its last checkpoint were for nothing."""
    words = [*FEDAVG, f"audit.window={window}"]
    unbroken = run(words, tmp_path / "unbroken").folder / NAME
    for cut in range(1, 5):
        stopped = recorded(run(words, tmp_path / "broken", f"max_rounds={cut}", f"resume={str(cut > 1).lower()}"))
        assert (stopped.round, stopped.rounds.tolist()) == (cut, list(range(1, cut + 1)))
        for file in (tmp_path / "broken" / "checkpoints").glob(f"round_{cut:08d}.*") if cut == 3 else ():
            file.unlink()
    run(words, tmp_path / "broken", "resume=true")
    assert (tmp_path / "broken" / NAME).read_bytes() == unbroken.read_bytes()


def test_executors_agree_to_the_bit(references: References, tmp_path: Path) -> None:
    words = [word for word in FEDAVG if not word.startswith("executor=")]
    other = run([*words, "executor=processes", "executor.workers=2"], tmp_path / "run")
    assert other.record["executor"] != references.run(FEDAVG).record["executor"]
    assert (other.folder / NAME).read_bytes() == (references.run(FEDAVG).folder / NAME).read_bytes()


def test_a_run_begun_without_goes_on_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    run(FEDAVG, folder, "audit.record=false", "max_rounds=2")
    with pytest.raises(UserError, match=r"audit.record=true: .* first 2 rounds"):
        run(FEDAVG, folder, "audit.record=true", "resume=true")
    run(FEDAVG, folder, "audit.record=auto", "resume=true", "max_rounds=3")
    assert "class probabilities were not recorded from the start" in capsys.readouterr().err
    assert not (folder / NAME).exists()


def test_what_another_process_recorded_does_not_stay(tmp_path: Path) -> None:
    """Or the file would tell of an earlier model."""
    folder = tmp_path / "run"
    run(FEDAVG, folder, "max_rounds=2")
    assert (folder / NAME).exists()
    run(FEDAVG, folder, "audit.record=false", "resume=true", "max_rounds=3")
    assert not (folder / NAME).exists()


SPARSE = [*FEDAVG, "audit.record=auto", "rounds=14", "fraction=0.125"]
"""One of eight clients a round for two epochs: 8 / (0.15 · 3 · 2) = 8.9, so one of nine evaluations is recorded."""


@pytest.mark.parametrize(
    ("words", "rounds", "window"),
    [
        ([], [7], [7]),  # the window's last evaluation, and nine after it there is none
        (["rounds=40"], [2, 11, 20, 29, 38], [2, 11, 20]),
        (["rounds=40", "train.epochs=20"], list(range(1, 41)), list(range(1, 21))),
        (["rounds=40", "eval.every=3"], [6, 18, 30, 40], [6, 18]),  # one of four of 14, and the window ends after 20
        (["rounds=40", "train.steps=60"], list(range(1, 41)), list(range(1, 21))),  # 20 epochs of three batches
        (["rounds=40", "fraction=0.5", "eval.every=1"], list(range(2, 41, 3)), list(range(2, 21, 3))),
        (["rounds=40", "fraction=0.5"], list(range(2, 41, 3)), list(range(2, 21, 3))),
        (["rounds=40", "audit.window=0.01"], [1, 10, 19, 28, 37], [1]),
        (["audit.record=true"], list(range(1, 15)), list(range(1, 8))),
    ],
)
def test_auto_records_as_often_as_a_share_of_training_pays_for(
    words: list[str], rounds: list[int], window: list[int], tmp_path: Path
) -> None:
    found = recorded(run(SPARSE, tmp_path / "run", *words))
    assert (found.rounds.tolist(), found.window_rounds.tolist()) == (rounds, window)


def test_the_default_of_many_clients_records_as_often_if_every_round_is_asked_for(tmp_path: Path) -> None:
    """At most one evaluation a round, whatever ``eval.every``: MNIST's hundred clients would else record nothing."""
    words = [word for word in SPARSE if not word.startswith(("rounds=", "fraction=", "partition.num_clients="))]
    words += ["partition.num_clients=20", "fraction=0.2", "rounds=8", "train.epochs=1"]
    rare, often = (recorded(run(words, tmp_path / str(every), f"eval.every={every}")) for every in (4, 1))
    assert rare.rounds.tolist() == often.rounds.tolist() == [4]


def test_the_last_evaluation_is_recorded_if_cohorts_were_smaller_than_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four planned evaluations, the fourth would be; there are two, after the second round and the fourth."""
    call = Uniform.__call__
    monkeypatch.setattr(Uniform, "__call__", lambda sampler, sampling: call(sampler, sampling)[:1])
    found = recorded(run(SPARSE, tmp_path / "run", "rounds=4", "fraction=0.25", "audit.window=1.0"))
    assert (found.rounds.tolist(), found.window_rounds.tolist()) == ([4], [4])


def test_the_last_evaluation_of_the_window_is_recorded_in_a_method_of_stages(tmp_path: Path) -> None:
    """FedCorr's first stage visits one client a round, so its rounds and evaluations are of two kinds."""
    words = [*BY_NAME["fedcorr"].words, "audit.record=auto", "train.epochs=1"]
    with assembled(words, tmp_path / "all") as parts:
        clients = len(parts.federation.with_data)
        evaluations = Evaluations.of(parts.method, clients, None).planned(parts.method, clients)
        assert [r.state.round for r in parts.results() if r.evaluation is not None] == list(evaluations)
    total = max(evaluations.values())
    last = max(number for number, participations in evaluations.items() if participations <= total / 2)
    found = recorded(run(words, tmp_path / "run"))
    assert 0 < len(found.rounds) < len(evaluations)
    assert found.window_rounds[-1] == last


def test_a_sparse_recording_goes_on_where_it_stopped(tmp_path: Path) -> None:
    words = [*SPARSE, "rounds=24"]  # the third and the twelfth, which is the window's last, and the twenty-first
    whole = run(words, tmp_path / "whole")
    assert recorded(whole).rounds.tolist() == [3, 12, 21]
    run(words, tmp_path / "parts", "max_rounds=2")
    run(words, tmp_path / "parts", "max_rounds=13", "resume=true")
    with pytest.raises(UserError, match=r"audit.record=true: .* one of 9 evaluations"):
        run(words, tmp_path / "parts", "audit.record=true", "resume=true")
    run(words, tmp_path / "parts", "resume=true")
    assert (tmp_path / "parts" / NAME).read_bytes() == (whole.folder / NAME).read_bytes()


def test_a_window_stays_as_it_was_begun(tmp_path: Path) -> None:
    run(FEDAVG, tmp_path / "run", "max_rounds=2")
    with pytest.raises(UserError, match=r"audit.window=0.4: .* audit.window=0.5; resume with that"):
        run(FEDAVG, tmp_path / "run", "audit.window=0.4", "resume=true")


@pytest.mark.parametrize(
    ("words", "most", "records"),
    [
        (("audit.record=auto",), 1700, True),
        (("audit.record=auto",), 1699, False),
        (("audit.record=auto", "products=false"), 1700, False),
        (("products=false", "audit.record=true"), 0, True),
        (("audit.record=false",), 1700, False),
    ],
)
def test_auto_records_with_products_up_to_a_number_of_values(
    words: tuple[str, ...], most: int, records: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """170 samples of 10 classes."""
    monkeypatch.setattr(opening, "MOST_VALUES", most)
    ran = run(FEDAVG, tmp_path / "run", "train.epochs=3", "max_rounds=1", *words)
    assert (ran.folder / NAME).exists() == records
    saved = checkpoint.newest(ran.folder / "checkpoints")
    assert saved is not None
    assert (saved.recorded is not None) == records


def test_nothing_is_written_before_the_first_evaluation(tmp_path: Path) -> None:
    ran = run(FEDAVG, tmp_path / "run", "max_rounds=2", "eval.every=100")
    assert not (ran.folder / NAME).exists()


def test_blocks_of_samples_are_put_in_their_places(
    references: References, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "BLOCK", 64)
    whole, cut = recorded(references.run(FEDAVG)), recorded(run(FEDAVG, tmp_path / "run"))
    for field in fields(Probabilities):
        one, other = getattr(whole, field.name), getattr(cut, field.name)
        same = np.allclose(one, other, atol=1e-6) if getattr(one, "dtype", None) == np.float32 else np.all(one == other)
        assert same, field.name


# ------------------------------------------------------------------------------------------------------------- files


@pytest.fixture
def small() -> Probabilities:
    rows = np.full((3, 2), 0.5, np.float32)
    numbers = np.arange(3)
    names = np.array(["a", "b\udcff", "../ü"])
    return Probabilities(*(rows,) * 6, numbers, numbers[:1], numbers, names, numbers, "key", "print", 7)


def test_a_file_comes_back(small: Probabilities, tmp_path: Path) -> None:
    small.save(tmp_path / NAME)
    read = Probabilities.load(tmp_path / NAME)
    for field in fields(Probabilities):
        assert np.array_equal(getattr(read, field.name), getattr(small, field.name)), field.name
    assert (type(read.key), type(read.round)) == (str, int)


def truncated(path: Path, small: Probabilities) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def emptied(path: Path, small: Probabilities) -> None:
    path.write_bytes(b"")


def pickled(path: Path, small: Probabilities) -> None:
    arrays: dict[str, Any] = {field.name: getattr(small, field.name) for field in fields(small)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.savez(path, **{**arrays, "final": np.array([Path(), None], dtype=object)})


def without_rounds(path: Path, small: Probabilities) -> None:
    arrays: dict[str, Any] = {f.name: np.asarray(getattr(small, f.name)) for f in fields(small)}
    del arrays["rounds"]
    np.savez(path, **arrays)


def of_other_shapes(path: Path, small: Probabilities) -> None:
    replace(small, test_all=small.test_all[:2]).save(path)


def of_other_classes(path: Path, small: Probabilities) -> None:
    replace(small, window=small.window[:, :1]).save(path)


@pytest.mark.parametrize(
    ("damage", "answer"),
    [
        (Path.unlink, "does not exist: the run has recorded no probabilities"),
        (truncated, "cannot be read"),
        (emptied, "cannot be read"),
        (pickled, "cannot be read"),
        (without_rounds, "has no array 'rounds'"),
        (of_other_shapes, r"test_all has shape \(2, 2\) instead of \(3, 2\)"),
        (of_other_classes, r"window has shape \(3, 1\) instead of \(3, 2\)"),
    ],
)
def test_another_file_is_refused(
    damage: Callable[..., object], answer: str, small: Probabilities, tmp_path: Path
) -> None:
    file = tmp_path / NAME
    small.save(file)
    damage(*(file, small)[: 1 if damage is Path.unlink else 2])
    with pytest.raises(UserError, match=answer) as caught:
        Probabilities.load(file)
    assert str(file) in str(caught.value)
