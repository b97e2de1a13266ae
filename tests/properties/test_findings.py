"""A method that nobody knows says what it found: measures, figures and ``labels.csv`` show it, and no module names it.

The toy method of this file suspects samples whose label its model does not predict, and calls clients with many of
them noisy. It exists here alone.
"""

import ast
import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from flnl.core import findings as vocabulary
from flnl.core import method
from flnl.core import parts as core_parts
from flnl.core.findings import (
    EstimatedNoise,
    EstimatedQuality,
    Finding,
    LabelShares,
    NoisyClients,
    Scalar,
    SuspectedSamples,
    first,
    scalars,
    suspects,
)
from flnl.core.messages import ClientState, ClientTask, Correction, Fit
from flnl.core.model import Model
from flnl.core.parts import Exchange, LabelCorrector
from flnl.core.payload import Params, Payload
from flnl.evaluation import estimates, evaluator
from flnl.evaluation import metrics as evaluation_metrics
from flnl.evaluation.estimates import by_client, noise_columns, summary
from flnl.evaluation.metrics import absolute_error
from flnl.figures import drawing as figures_drawing
from flnl.numerics import scaling
from flnl.record import label_table
from flnl.record.run import RunRecord
from tests.properties.runs import Ran, assembled, run
from tests.registry import ONE_STAGE, TINY
from tests.toys import composed, random_federation

WORDS = (*TINY, "method=fedavg", *ONE_STAGE, "noise.rho=0.8", "eval.every=1", "train.lr=0.2")
DOUBTING = f"+method.exchange.doubting={{_target_:{__name__}.Doubting,above:0.5}}"
SPLITTING = f"+method.exchange.doubting={{_target_:{__name__}.Splitting,above:0.5}}"
SCORING = f"+method.exchange.doubting={{_target_:{__name__}.Scoring,above:0.5}}"
CORRECTING = (
    f"method.corrector={{_target_:{__name__}.Trusting}}",
    "+method.stages.training.correct={when:end,rule:trust}",
)
"""The exchange alone, with scores of samples; and a corrector."""


def doubted(network: Model, task: ClientTask) -> Tensor:
    """Bool [n]: whether the loaded model predicts another class than the label."""
    return network.logits(task.samples).argmax(1) != task.labels


@dataclass(frozen=True)
class Doubting(Exchange):
    """The share of doubted samples up; their mask stays with the client, a plain tensor."""

    above: float

    def init(self, clients: int, params: Params) -> Any:
        return {"share": torch.full((clients,), torch.nan, dtype=torch.float64)}

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        mask = doubted(network, task)
        return Payload(float(mask.double().mean())), Payload(mask)

    def receive(self, state: Any, reports: Mapping[int, Payload], seed: int) -> Any:
        share = state["share"].clone()
        for client, report in reports.items():
            if (value := report.get(float)) is not None:
                share[client] = value
        return {"share": share}

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        share = state["share"]
        if share.isnan().all():
            return ()
        masks = ((client, kept.extras.get(Tensor)) for client, kept in clients.items())
        split = NoisyClients(share > self.above, {"doubt": share})
        samples = (SuspectedSamples(client, mask) for client, mask in masks if mask is not None)
        return (*samples, split, EstimatedNoise(share), Scalar("doubt_threshold", self.above))


@dataclass(frozen=True)
class Scoring(Doubting):
    """Also gives scores, by which the right labels are the doubtful ones."""

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        given = super().findings(state, clients, known)
        return tuple(
            replace(f, score=torch.arange(len(f.mask)).double()) if isinstance(f, SuspectedSamples) else f
            for f in given
        )


@dataclass(frozen=True)
class Splitting(Doubting):
    """Says nothing of samples."""

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        return tuple(f for f in super().findings(state, clients, known) if not isinstance(f, SuspectedSamples))


@dataclass(frozen=True)
class Trusting(LabelCorrector):
    """Suspects as the exchange does, and changes the first of them."""

    rules: ClassVar[tuple[str, ...]] = ("trust",)

    def correct(self, network: Model, task: ClientTask, rule: str) -> Correction:
        mask, labels = doubted(network, task), task.labels.clone()
        labels[mask.nonzero()[:1]] = 0
        return Correction(task.client, labels, None, Payload(mask), Payload())

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        masks = ((client, kept.extras.get(Tensor)) for client, kept in clients.items())
        given = tuple(SuspectedSamples(client, mask) for client, mask in masks if mask is not None)
        return (*given, Scalar("corrected_clients", float(len(given))))


@pytest.fixture(scope="module")
def doubting(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run([*WORDS, DOUBTING], tmp_path_factory.mktemp("doubting") / "run")


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "labels.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def marks(folder: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Of every row of ``labels.csv``: its client, whether it is flagged, whether its given label is wrong."""
    rows = table(folder)
    assert {row["flagged"] for row in rows} == {"0", "1"}, "judged, and in both ways"
    return (
        np.array([int(row["client"]) for row in rows]),
        np.array([row["flagged"] == "1" for row in rows]),
        np.array([row["given"] != row["true"] for row in rows]),
    )


def masks(ran: Ran) -> dict[int, list[bool]]:
    kept = {client: state.extras.get(Tensor) for client, state in ran.state.clients.items()}
    return {client: mask.tolist() for client, mask in kept.items() if mask is not None}


def drawn(ran: Ran) -> set[str]:
    """The figures that the run's record has data for."""
    record = RunRecord.open(ran.folder)
    return {name for name, draw in figures_drawing.FIGURES.items() if draw(record) is not None}


# -------------------------------------------------------------------------------------------------- a whole new method


def test_its_suspects_are_flagged_in_labels_csv(doubting: Ran) -> None:
    client, flagged, _ = marks(doubting.folder)
    kept = masks(doubting)
    assert len(kept) > 3
    for k in np.unique(client):
        assert flagged[client == k].tolist() == kept.get(int(k), [False] * int((client == k).sum()))


def test_its_suspects_are_measured_in_the_result(doubting: Ran) -> None:
    client, flagged, wrong = marks(doubting.folder)
    metrics, rows = doubting.record["metrics"], doubting.record["clients"]
    assert metrics["detection_precision"] == pytest.approx((flagged & wrong).sum() / flagged.sum())
    assert metrics["detection_recall"] == pytest.approx((flagged & wrong).sum() / wrong.sum())
    right = {k: float((flagged == wrong)[client == k].mean()) for k in masks(doubting)}
    assert {k: a for k, a in zip(rows["client"], rows["filter_accuracy"], strict=True) if k in right} == right
    assert metrics["filter_accuracy"] == pytest.approx(np.mean(list(right.values())))
    judged = np.isin(client, list(right))
    rates = [(flagged & wrong & judged).sum() / (wrong & judged).sum(), (~flagged & ~wrong & judged).sum()]
    rates[1] = rates[1] / (~wrong & judged).sum()
    assert metrics["filter_auc"] == pytest.approx(np.mean(rates)), "of verdicts without scores"


def test_its_noisy_clients_and_levels_are_measured(doubting: Ran) -> None:
    client, _, wrong = marks(doubting.folder)
    rows, metrics = doubting.record["clients"], doubting.record["metrics"]
    share = doubting.state.server.exchanges["doubting"]["share"][rows["client"]].numpy()
    true = np.array([wrong[client == k].mean() for k in rows["client"]])
    assert (share > 0.5).sum() > 0
    assert rows["noisy"] == (share > 0.5).tolist()
    np.testing.assert_array_equal(np.array(rows["level"], float), share)
    np.testing.assert_array_equal(np.array(rows["doubt"], float), share)
    hit = ((share > 0.5) & (true > 0)).sum()
    assert metrics["client_detection_precision"] == pytest.approx(hit / (share > 0.5).sum())
    assert metrics["client_detection_recall"] == pytest.approx(hit / (true > 0).sum())
    assert metrics["noise_level_error"] == pytest.approx(np.nanmean(np.abs(share - true)))
    assert metrics["doubt_threshold"] == 0.5


def test_every_evaluation_has_its_measures(doubting: Ran) -> None:
    rows = [row for row in doubting.lines if row["kind"] == "evaluation"]
    assert len(rows) == 5
    names = ("filter_accuracy", "filter_auc", "client_detection_f1", "noise_level_error", "doubt_threshold")
    last = {name: rows[-1][name] for name in names}
    assert last == {name: doubting.record["metrics"][name] for name in names}
    assert len({row["noise_level_error"] for row in rows}) > 1, "of the round, not of the end"


def test_its_figures_are_drawn(doubting: Ran) -> None:
    assert drawn(doubting) == {"accuracy", "filter", "noisy_clients"}


def test_scores_take_the_place_of_verdicts(tmp_path: Path, doubting: Ran) -> None:
    found = run([*WORDS, SCORING], tmp_path / "run").record["metrics"]
    plain = doubting.record["metrics"]
    assert found["filter_accuracy"] == plain["filter_accuracy"]
    assert found["filter_auc"] != plain["filter_auc"]


def test_with_a_corrector_it_is_measured_beside_each_correction(tmp_path: Path, doubting: Ran) -> None:
    ran = run([*WORDS, SPLITTING, *CORRECTING], tmp_path / "run")
    (row,) = ran.corrections
    client, flagged, wrong = marks(ran.folder)
    clients = row["clients"]
    for k, hits, alarms in zip(clients["client"], clients["true_positives"], clients["false_positives"], strict=True):
        own = client == k
        assert (hits, alarms) == ((flagged & wrong & own).sum(), (flagged & ~wrong & own).sum())
    assert len(masks(ran)) == 8, "everybody was asked"
    assert row["corrected_clients"] == 8
    assert row["noise_level_error"] == pytest.approx(
        absolute_error([np.nan if v is None else v for v in clients["level"]], clients["true_noise_before"])
    )
    assert clients["noisy"] == doubting.record["clients"]["noisy"]
    assert "clients" not in ran.record, "said once"
    assert not {"client_detection_f1", "filter_accuracy"} & ran.record["metrics"].keys()
    assert ran.record["metrics"]["detection_f1"] > 0
    assert drawn(ran) == {"accuracy", "confusion", "confusion_clients", "noise_levels"}


def test_levels_that_an_exchange_gave_before_it_fell_silent_are_recorded_but_not_measured() -> None:
    """They are of labels that have been changed since; FedCorr's exchange is silent in its second stage."""
    corrections = [
        r.correction
        for r in composed("method=fedcorr", "method.T1=1", "method.T2=1", "method.T3=1", "noise.rho=1.0").rounds
        if r.correction is not None
    ]
    assert len(corrections) == 2
    assert ["level" in row["clients"] for row in corrections] == [True, True]
    assert ["noise_level_error" in row for row in corrections] == [True, False]


def test_without_a_truth_samples_are_flagged_and_counted_and_nothing_is_measured(tmp_path: Path) -> None:
    with assembled([*WORDS, DOUBTING], tmp_path / "run") as parts:
        last = parts.results()[-1].state
        unknown = replace(parts.federation, truth=None)
        blind = replace(parts.evaluator, federation=unknown)
        flagged = blind.table(last).flagged
        assert flagged is not None
        counts = {"labels": len(flagged), "flagged": sum(flagged), "suspected": sum(flagged), "changed": 0}
        assert 0 < sum(flagged) < len(flagged)
        assert blind.labels(last) == {"doubt_threshold": 0.5, **counts}
        assert blind.clients(last) == {}
        assert flagged == parts.evaluator.table(last).flagged


# -------------------------------------------------------------------------------------------------------- by themselves


def bools(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


def test_several_parts_may_judge_one_client() -> None:
    score, judged = torch.tensor([0.1, 0.9, 0.4]), torch.tensor([1, 1, 1])
    one = SuspectedSamples(4, bools(1, 0, 0), score, judged)
    given: list[Finding] = [
        one,
        SuspectedSamples(2, bools(0, 0)),
        Scalar("a", 1.0),
        SuspectedSamples(4, bools(0, 1, 0)),
        Scalar("b", 2.0),
    ]
    found = suspects(given)
    assert list(found) == [4, 2]
    assert found[4].mask.tolist() == [True, True, False]
    assert (found[4].score is score, found[4].judged is judged) == (True, True)
    assert scalars(given) == {"a": 1.0, "b": 2.0}
    assert one.mask.tolist() == [True, False, False], "what a part gave is left as it was"


def test_the_first_part_that_says_something_of_all_clients_is_believed() -> None:
    one, other = EstimatedNoise(torch.tensor([0.5])), EstimatedNoise(torch.tensor([0.1]))
    assert first([Scalar("a", 1.0), one, other], EstimatedNoise) is one
    assert first([one], LabelShares) is None


def test_clients_of_whom_nothing_is_estimated_are_left_out_of_the_errors() -> None:
    dealt = random_federation([4, 4, 4, 4])
    assert dealt.truth is not None
    nan = float("nan")
    true = np.array(by_client(dealt, [EstimatedNoise(torch.zeros(4))])["true_quality"])
    estimates = [0.25, nan, 1.0, 0.5]
    known = [0, 2, 3]
    values = torch.tensor(estimates, dtype=torch.float64)
    found = summary(dealt, [EstimatedQuality(values, {"made_from": values}), EstimatedNoise(1 - values)])
    gap = np.array(estimates)[known] - true[known]
    assert found["quality_error"] == pytest.approx(np.mean(gap**2))
    assert found["noise_level_error"] == pytest.approx(np.mean(np.abs(gap)))
    assert summary(dealt, []) == {}
    assert by_client(dealt, [Scalar("a", 1.0)]) == {}


def test_columns_of_noise_are_of_the_clients_asked_for() -> None:
    split = NoisyClients(bools(1, 0, 1), {"score": torch.tensor([0.5, 0.25, 1.0])})
    levels = EstimatedNoise(torch.tensor([0.5, 0.0, 1.0]))
    assert noise_columns([split, levels], [2, 1]) == {"score": [1.0, 0.25], "noisy": [True, False], "level": [1.0, 0.0]}
    assert noise_columns([levels], [0]) == {"level": [0.5]}
    assert noise_columns([], [0, 1]) == {}


def test_an_absolute_error_by_hand() -> None:
    assert absolute_error([0.5, 0.0], [0.25, 1.0]) == pytest.approx(0.625)
    assert np.isnan(absolute_error([float("nan")], [0.5]))


# ------------------------------------------------------------------------------------------------------------ imports


def imported(modules: Iterable[Any]) -> Sequence[str]:
    """What the files of these modules import, wherever they do."""
    names: list[str] = []
    for module in modules:
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def test_who_measures_and_draws_imports_no_method() -> None:
    drawing = [getattr(figures_drawing, name) for name in ("accuracy", "clients", "confusion", "lid", "noise_levels")]
    names = imported([estimates, evaluator, evaluation_metrics, label_table, figures_drawing, vocabulary, *drawing])
    assert "flnl.core.findings" in names, "imports are found"
    assert not [name for name in names if name.startswith("flnl.methods")]


def test_the_vocabulary_imports_neither_the_engine_nor_what_stores_it() -> None:
    names = imported([core_parts, method, vocabulary, scaling])
    assert "flnl.core.model.Model" in names, "imports are found"
    assert not {
        "flnl.engine.network",
        "flnl.storage.content_store",
        "flnl.engine.device_images",
        "flnl.run.checkpoint",
    } & set(names)
