"""What is observed of clients' models is theirs, is the same everywhere, and changes nothing."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flnl.engine.executors.stacked import Stacked
from tests.engine.executors.test_processes import pool_of, same
from tests.properties.runs import assembled, difference, rounds, run
from tests.registry import BY_NAME

GROUPS = ("clean_correct", "clean_wrong", "noisy_correct", "noisy_memorized", "noisy_wrong")
NOISY = ("eval.cohort=true", "noise.rho=1.0", "noise.tau=0.3")
ALONE = (*NOISY, "fraction=0.125")
"""One client a round: the next global model is its own."""


def test_of_a_cohort_of_one_it_is_the_next_global_model(tmp_path: Path) -> None:
    """Counted sample by sample, on a network with running statistics, which do not count as movement."""
    with assembled(BY_NAME["fedavg_with_batch_norm"].words, tmp_path / "run", *ALONE) as parts:
        truth, network, before = parts.federation.truth, parts.evaluator.network, parts.state.server.params
        assert truth is not None
        for result in parts.rounds():
            after, (client,) = result.state.server.params, result.cohort
            trained = [name for name, _ in network.module.named_parameters()]
            moved = sum(float(((after[n].double() - before[n].double()) ** 2).sum()) for n in trained)
            assert result.metrics["training_stability"] == pytest.approx(moved)
            samples = parts.federation.samples(client)
            kept = network.params()
            network.load(after)
            seen = network.logits(samples).argmax(1).tolist()
            network.load(kept)
            counts = dict.fromkeys(GROUPS, 0)
            for said, given, true in zip(seen, samples.given.tolist(), truth[samples.index].tolist(), strict=True):
                if given == true:
                    counts["clean_correct" if said == true else "clean_wrong"] += 1
                else:
                    which = "correct" if said == true else "memorized" if said == given else "wrong"
                    counts[f"noisy_{which}"] += 1
            for name, count in counts.items():
                whole = sum(n for other, n in counts.items() if other[:5] == name[:5])
                share = count / whole if whole else math.nan
                assert result.metrics[f"local_memorization_{name}"] == pytest.approx(share, nan_ok=True)
            before = after


def test_nothing_else_changes(tmp_path: Path) -> None:
    """Nor is it said where nobody asks."""
    words = (*BY_NAME["fedcorr"].words, "model.dropout=0.3")
    plain = rounds(words, tmp_path / "plain")
    seen = rounds(words, tmp_path / "seen", "eval.cohort=true")
    assert difference([r.state for r in plain], [r.state for r in seen]) is None
    for one, other in zip(plain, seen, strict=True):
        extra = {"training_stability", *(f"local_memorization_{name}" for name in GROUPS)}
        assert other.metrics.keys() - one.metrics.keys() == extra
        assert {k: other.metrics[k] for k in one.metrics} == dict(one.metrics)
    assert (
        run(words, tmp_path / "off", "max_rounds=1").record["key"]
        == (run(words, tmp_path / "on", "max_rounds=1", "eval.cohort=true").record["key"])
    )


def test_executors_see_the_same(tmp_path: Path) -> None:
    for name in ("fedavg", "fedes"):
        with assembled(BY_NAME[name].words, tmp_path / name, *NOISY) as one, pool_of(one.evaluator.network) as two:
            assert same(one.results(), one.results(executor=two))
    with assembled(BY_NAME["fedavg"].words, tmp_path / "stacked", *NOISY) as one:
        stacked = one.results(executor=Stacked(one.evaluator.network, 5, 1.0))
        for a, b in zip(one.results(), stacked, strict=True):
            assert difference(dict(a.metrics), dict(b.metrics), tolerance=1e-4) is None


def test_without_the_truth_and_without_wrong_labels(tmp_path: Path) -> None:
    words = BY_NAME["fedavg"].words
    with assembled(words, tmp_path / "run", *NOISY) as parts:
        unknown = replace(parts.federation, truth=None)
        blind = parts.results(federation=unknown, evaluator=replace(parts.evaluator, federation=unknown))
        for one, other in zip(parts.results(), blind, strict=True):
            assert other.metrics.keys() == {"loss", "left_out", "idle", "training_stability"}
            assert other.metrics["training_stability"] == one.metrics["training_stability"]
    clean = rounds(words, tmp_path / "clean", "eval.cohort=true", "noise=none")[-1].metrics
    assert all(math.isnan(clean[f"local_memorization_{name}"]) for name in GROUPS), "no client is noisy"


def test_who_diverged_is_not_seen(tmp_path: Path) -> None:
    """Left out of the model, left out of what is said of it."""
    words = (*BY_NAME["fedavg"].words, "train.lr=1e30", "eval.cohort=true")
    found = rounds(words, tmp_path / "run")[0]
    assert found.metrics["left_out"] == len(found.cohort)
    assert math.isnan(found.metrics["training_stability"])
    assert all(torch.isfinite(p).all() for p in found.state.server.params.values())
