"""Measures of an audit, on a ranking that is not its own inverse."""

import numpy as np
import pytest

from flnl.evaluation.label_audit import audit_measures

TRUE = np.zeros(5, np.int64)
GIVEN = np.array([0, 0, 1, 1, 0])
RANK = np.array([1, 2, 0, 3, 4])  # so that the samples are looked at in the order 2, 0, 1, 3, 4


def test_the_ranking_is_read_from_the_most_suspicious_sample_on() -> None:
    found = audit_measures(TRUE, GIVEN, RANK, np.array([True, False, True, False, True]))
    assert RANK[RANK].tolist() != list(range(5))
    assert found == {
        "errors": 2,
        "average_precision": pytest.approx((1 + 2 / 4) / 2),
        "auroc": pytest.approx(4 / 6),  # of the six pairs of a wrong and a right label, two are out of order
        "precision_at_errors": 0.5,
        "issues_precision": pytest.approx(1 / 3),
        "issues_recall": 0.5,
    }


def test_what_is_not_defined_is_none() -> None:
    found = audit_measures(TRUE, TRUE, RANK, np.zeros(5, np.bool_))
    assert found["errors"] == 0
    assert [found[name] for name in ("average_precision", "auroc", "precision_at_errors")] == [None] * 3
