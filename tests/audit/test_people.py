"""Labels by several people: the probabilities are cleanlab's for one client; of several, each has people of its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cleanlab import multiannotator

import flnl
from flnl.audit.options import Options
from flnl.audit.people import with_people
from flnl.audit.probability_table import InMemory
from flnl.core.errors import UserError
from flnl.data.votes import NOBODY


def drawn(seed: int, samples: int = 60, people: int = 4, classes: int = 3) -> tuple[Any, Any, Any]:
    """True labels [N], people's labels [A, N] of which some are missing, and probabilities [N, K]."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, classes, samples)
    right = rng.uniform(0.5, 0.95, people)
    labels = np.where(rng.random((people, samples)) < right[:, None], true, rng.integers(0, classes, (people, samples)))
    labels[rng.random(labels.shape) < 0.4] = NOBODY
    labels[0] = np.where(labels[0] == NOBODY, true, labels[0])  # one of them has labelled all
    return true, labels, rng.dirichlet(np.ones(classes), samples) * 0.5 + 0.5 * np.eye(classes)[true]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(30))
def test_one_client_is_as_cleanlab(seed: int) -> None:
    _, labels, p = drawn(seed)
    found = multiannotator.get_label_quality_multiannotator(
        np.where(labels == NOBODY, np.nan, labels).T,
        p,
        consensus_method="majority_vote",
        return_detailed_quality=True,
        return_weights=True,
        verbose=False,
    )
    joined = with_people(InMemory(p), labels, np.zeros(labels.shape[1], np.int64))
    assert joined is not None
    assert joined.model == pytest.approx(found["model_weight"])
    for j, weight in enumerate(found["annotator_weight"]):
        assert joined.weights[j][labels[j] != NOBODY] == pytest.approx(weight)
    (rows,) = joined.blocks()
    assert np.allclose(rows.sum(axis=1), 1)
    detailed = found["detailed_label_quality"].to_numpy()  # the quality of the label of each person
    for j, mine in enumerate(labels):
        here = mine != NOBODY
        assert rows[here, mine[here]] == pytest.approx(detailed[here, j])


def test_a_column_of_another_client_is_another_person() -> None:
    true, labels, p = drawn(1, samples=400)
    half = np.arange(400) // 200
    labels[1, half == 1] = np.where(labels[1, half == 1] == NOBODY, NOBODY, (true[half == 1] + 1) % 3)  # always wrong
    joined = with_people(InMemory(p), labels, half)
    assert joined is not None
    good, bad = (joined.weights[1][(labels[1] != NOBODY) & (half == c)] for c in (0, 1))
    assert len(set(good.tolist())) == len(set(bad.tolist())) == 1
    assert good[0] > 0.1 > bad[0] > 0


def test_nobody_shares_a_sample() -> None:
    _, labels, p = drawn(1)
    labels[1:] = NOBODY
    assert with_people(InMemory(p), labels, np.zeros(60, np.int64)) is None


def run(folder: Path) -> Path:
    """A run of three people's labels: the first errs at a third of them, the others at a tenth."""
    rng = np.random.default_rng(5)
    true = np.arange(300) % 3
    x = (rng.normal(0, 40, (300, 1, 4, 4)) + 60 * true[:, None, None, None] + 60).clip(0, 255).astype(np.uint8)
    np.savez(folder / "arrays.npz", x_train=x, y_train=true, x_test=x[:240], y_test=true[:240])
    rates = np.array([1 / 3, 0.1, 0.1])[:, None]
    labels = np.where(rng.random((3, 300)) < rates, (true + rng.integers(1, 3, (3, 300))) % 3, true)
    lines = [f"{i},{a},{b},{c},{t}" for i, (a, b, c, t) in enumerate(zip(*labels, true, strict=True))]
    (folder / "labels.csv").write_text("\n".join(["id,label,label_2,label_3,true", *lines]) + "\n")
    words = [
        *(
            "method=fedavg",
            "dataset=arrays",
            f"dataset.root={folder}",
            "dataset.labels=labels.csv",
            "dataset.truth=csv",
        ),
        *("noise=none", "model=mlp", "model.hidden=[8]", "rounds=4", "fraction=1", "partition.num_clients=3"),
        *("executor=sequential", "logger=csv", "figures=false", f"output={folder / 'run'}"),
    ]
    flnl.run(words)
    return folder / "run"


def test_people_rank_wrong_labels_first(tmp_path: Path) -> None:
    folder = run(tmp_path)
    alone = flnl.audit(folder, Options(people="ignore", formats=("csv",)))
    together = flnl.audit(folder, Options(formats=("csv", "html"), force=True))
    assert alone.measured is not None
    assert together.measured is not None
    assert together.measured["average_precision"] > alone.measured["average_precision"]
    assert together.measured["average_precision"] > 0.9
    assert any("judge together" in note for note in together.notes)
    assert not any("judge together" in note for note in alone.notes)
    assert together.precision.of_issues is None
    assert alone.precision.of_issues is not None
    header, line, *_ = (folder / "audit" / "audit.csv").read_text().splitlines()
    assert header.split(",")[-3:] == ["labels", "agreeing", "true_label"]
    assert line.split(",")[-3] == "3"
    assert "given by 1 of 3 people" in (folder / "audit" / "index.html").read_text()
    with pytest.raises(UserError, match=r"--min-precision compares with test samples, .* add --people ignore"):
        flnl.audit(folder, Options(min_precision=0.9, force=True))
