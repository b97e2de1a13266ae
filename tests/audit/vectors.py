"""The vectors of the audit: cleanlab 2.9.0's results, and those of an independent program for what it lacks."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

FILE = Path(__file__).parents[1] / "vectors/vectors_label_audit.json"
TOLERANCE = 1e-9


@cache
def vectors() -> dict[str, Any]:
    """The whole file."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def near(value: Any) -> Any:
    """A value, to compare with at the file's tolerance."""
    return pytest.approx(np.asarray(value, np.float64), rel=0, abs=TOLERANCE)


def samples(entry: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The labels [N] and probabilities [N, K] of an entry."""
    return np.array(entry["labels"], np.int64), np.array(entry["pred_probs"], np.float64)
