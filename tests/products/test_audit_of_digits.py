"""How well an audit ranks and marks wrong labels of the digits, and what it expects of itself without the truth."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flnl.audit import audit
from flnl.audit.options import Options
from flnl.audit.precision import CUTS
from tests.properties.runs import Ran, run

pytestmark = pytest.mark.slow

SETTINGS = {
    "mixed": (),
    "symmetric": ("noise=symmetric", "noise.eta=0.25"),
    "dirichlet": ("noise=symmetric", "noise.eta=0.25", "partition=dirichlet", "partition.alpha=0.3"),
    "little": ("noise=symmetric", "noise.eta=0.03"),
    "clean": ("noise=none",),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """A run of FedAvg for each setting, at most once."""
    words = ("method=fedavg", "seed=1", "figures=false", "wandb.mode=disabled")

    class Once(dict[str, Ran]):
        def __missing__(self, name: str) -> Ran:
            self[name] = run([*words, *SETTINGS[name]], tmp_path_factory.mktemp(name) / "run")
            return self[name]

    return Once()


def measured(folder: Path, **options: Any) -> Any:
    return audit(folder, Options(formats=(), **options))


def test_the_average_of_early_rounds_ranks_wrong_labels_first(ran: dict[str, Ran]) -> None:
    folder = ran["symmetric"].folder
    window, final = (measured(folder, probabilities=name) for name in ("window", "final"))
    assert window.notes == ()
    assert window.measured["average_precision"] >= 0.99
    assert final.measured["average_precision"] <= 0.975
    assert window.measured["issues_precision"] >= 0.93
    assert window.measured["issues_recall"] >= 0.96


@pytest.mark.parametrize("name", ["mixed", "symmetric", "dirichlet", "little"])
def test_precision_is_not_expected_to_be_better_than_it_is(name: str, ran: dict[str, Ran]) -> None:
    found = measured(ran[name].folder)
    wrong = found.samples.true != found.samples.given
    for cut in (0.2, 0.3, 0.4, 0.5):
        (at,) = np.flatnonzero(cut == CUTS)
        below = found.samples.suspicion_score < cut
        assert found.precision.expected[at] <= wrong[below].mean() + 0.03
    for least in (0.8, 0.9, 0.95):
        kept = measured(ran[name].folder, min_precision=least)
        assert kept.measured["issues_precision"] >= least - 0.03
        assert kept.samples.is_issue.any()


def test_nothing_stands_out_of_clean_labels(ran: dict[str, Ran]) -> None:
    found = measured(ran["clean"].folder)
    assert [found.precision.expected[at] for at in (20, 30, 40, 50)] == [0, 0, 0, 0]
    assert found.samples.is_issue.any()
    assert found.precision.of_issues == 0
    for least in (0.2, 0.8):
        assert not measured(ran["clean"].folder, min_precision=least).samples.is_issue.any()


def test_the_client_prior_helps_where_clients_differ(ran: dict[str, Ran]) -> None:
    folder = ran["mixed"].folder
    with_prior, without = (measured(folder, prior=prior).measured["average_precision"] for prior in ("client", "none"))
    assert with_prior > without + 0.001


@pytest.mark.parametrize("name", SETTINGS)
def test_the_interval_holds_the_number_of_wrong_labels_of_a_client(name: str, ran: dict[str, Ran]) -> None:
    found = measured(ran[name].folder)
    wrong = np.bincount(found.samples.client, weights=found.samples.true != found.samples.given)
    held = [row.wrong.low <= wrong[row.clients].sum() <= row.wrong.high for row in found.by_client]
    assert np.mean(held) >= 0.9
    if name == "clean":
        assert found.wrong.low <= 2
        assert found.wrong.expected < min(0.01 * len(found.samples), found.samples.is_issue.sum())
    else:
        assert found.wrong.low <= wrong.sum() <= found.wrong.high
