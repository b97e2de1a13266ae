"""The vectors of the baselines for noisy labels: per entry, inputs and parameters in one, and what must come out."""

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

VECTORS = Path(__file__).parent / "vectors_label_noise_baselines.json"


@cache
def _entries() -> dict[str, Any]:
    return {entry["id"]: entry for entry in json.loads(VECTORS.read_text())["vectors"]}


def baseline(name: str) -> SimpleNamespace:
    """The entry of this name: ``inputs``, ``params``, ``expected``, ``deviation`` (of a program that is wrong)."""
    entry = _entries()[name]
    return SimpleNamespace(
        inputs=SimpleNamespace(**entry["inputs"]),
        params=SimpleNamespace(**{"strength" if k == "lambda" else k: v for k, v in entry["params"].items()}),
        expected=entry["expected"],
        deviation=entry.get("official_deviation"),
        abs=float(entry["tol"]["abs"]),
        rel=float(entry["tol"]["rel"]),
    )


def check(found: Any, expected: Any, entry: SimpleNamespace) -> None:
    """Hold a number, an array or a tensor against the entry's value, at the entry's tolerance."""
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=entry.rel, atol=entry.abs)
