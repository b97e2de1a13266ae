"""``labels.csv`` against what a run leaves elsewhere and what can be computed by hand."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from flnl.audit import audit
from flnl.audit.options import Options
from flnl.config import compose
from flnl.data.federation.build import from_config
from tests.methods.fedcorr.entry import THREE_STAGES
from tests.products.conftest import Own, read_csv
from tests.properties.runs import Ran, assembled
from tests.registry import ONE_STAGE, TINY


def test_fedcorr(fedcorr: Ran) -> None:
    """Labels are the clients' own, confidences are the last model's, flags are what the record counts as found."""
    cfg = compose.load([*TINY, "method=fedcorr", *THREE_STAGES, "eval.validation=0.2"])
    federation = from_config(cfg)
    pixels = federation.dataset.train.read(torch.arange(170)).double()
    ids = federation.dataset.ids
    module = compose.build(cfg.model)((1, 8, 8), 10)
    module.load_state_dict(fedcorr.state.server.params)
    with torch.no_grad():
        logits = module.eval()(((pixels / 16 - 0.3053) / 0.3760).float()).double().numpy()
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)

    rows = iter(read_csv(fedcorr.folder / "labels.csv"))
    changed = 0
    assert ids is not None
    assert federation.truth is not None
    for client in federation.with_data:
        own = fedcorr.state.client(client).labels
        for n, position in enumerate(federation.clients[client].tolist()):
            row = next(rows)
            given = int(federation.given[position])
            final = given if own is None else int(own[n])
            changed += final != given
            assert (row["client"], row["sample"]) == (str(client), ids[position])
            assert (row["given"], row["final"]) == (str(given), str(final))
            assert row["true"] == str(int(federation.truth[position]))
            assert float(row["confidence"]) == pytest.approx(probabilities[position, final], rel=1e-4)
            assert float(row["self_confidence"]) == pytest.approx(probabilities[position, given], rel=1e-4)
    assert next(rows, None) is None
    assert changed > 10, "a run that changes nothing shows nothing"


def test_flags_are_what_the_record_counts_as_found(fedcorr: Ran) -> None:
    rows = read_csv(fedcorr.folder / "labels.csv")
    flagged, wrong = ({i for i, row in enumerate(rows) if is_so(row)} for is_so in (_flagged, _wrong))
    metrics = fedcorr.record["metrics"]
    assert len(flagged & wrong) / len(flagged) == pytest.approx(metrics["detection_precision"])
    assert len(flagged & wrong) / len(wrong) == pytest.approx(metrics["detection_recall"])
    assert len(flagged) < len(rows)
    assert all(_flagged(row) for row in rows if row["final"] != row["given"])


def test_self_confidence_is_what_an_audit_of_the_last_model_ranks_by(fedcorr: Ran) -> None:
    options = Options(probabilities="final", score="self_confidence", prior="none", formats=())
    scores = audit(fedcorr.folder, options).samples.label_score
    rows = read_csv(fedcorr.folder / "labels.csv")
    assert [float(row["self_confidence"]) for row in rows] == pytest.approx(scores.tolist(), rel=1e-4, abs=1e-6)


def test_the_record_counts_what_is_flagged_and_changed(fedcorr: Ran, fedavg: Ran) -> None:
    rows, metrics = read_csv(fedcorr.folder / "labels.csv"), fedcorr.record["metrics"]
    assert metrics["labels"] == len(rows)
    assert metrics["flagged"] == sum(map(_flagged, rows))
    assert metrics["changed"] == sum(row["final"] != row["given"] for row in rows) < metrics["flagged"]
    assert not {"labels", "flagged", "changed"} & fedavg.record["metrics"].keys()


def _flagged(row: dict[str, str]) -> bool:
    assert row["flagged"] in ("0", "1")
    return row["flagged"] == "1"


def _wrong(row: dict[str, str]) -> bool:
    return row["given"] != row["true"]


def test_a_method_that_judges_no_label_flags_none(fedavg: Ran) -> None:
    rows = read_csv(fedavg.folder / "labels.csv")
    assert len(rows) == 170
    assert {row["flagged"] for row in rows} == {""}
    assert all(row["final"] == row["given"] for row in rows)
    assert Counter(row["true"] for row in rows) == {str(digit): 17 for digit in range(10)}


def test_own_images_by_their_paths_and_without_a_truth(own: Own) -> None:
    rows = read_csv(own.ran.folder / "labels.csv")
    assert list(rows[0]) == ["client", "sample", "given", "final", "confidence", "self_confidence", "flagged"]
    assert len(rows) == len(own.labels)
    assert {row["sample"]: row["given"] for row in rows} == own.labels


def test_the_model_that_scores_is_the_state_s_own(tmp_path: Path) -> None:
    """Whatever the network was used for before."""
    with assembled([*TINY, "method=fedavg", *ONE_STAGE], tmp_path / "run") as run:
        first, *_, last = run.results()
        before = run.evaluator.table(first.state).confidence
        run.evaluator.model(last.state.server.params)
        assert torch.equal(run.evaluator.table(first.state).confidence, before)
        assert not torch.equal(run.evaluator.table(last.state).confidence, before)
