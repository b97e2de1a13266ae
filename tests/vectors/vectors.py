"""The vectors of the baselines, by name: inputs, expected values, and how near ours must come."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
FEDERATED, LABEL_NOISE = "vectors_federated_baselines.json", "vectors_label_noise_baselines.json"
MORE, NEWER = "vectors_more_methods.json", "vectors_newer_methods.json"
FIELD = "vectors_field.json"


@dataclass(frozen=True)
class Entry:
    """One vector."""

    inputs: dict[str, Any]
    params: dict[str, Any]
    expected: dict[str, Any]
    absolute: float
    relative: float

    def near(self, value: Any) -> Any:
        """Any value, at the vector's tolerance."""
        return pytest.approx(value, abs=self.absolute, rel=self.relative)

    def approx(self, name: str) -> Any:
        """The expected value of this name, at the vector's tolerance."""
        return self.near(self.expected[name])


@cache
def entries(file: str) -> dict[str, Entry]:
    """All vectors of a file, by name."""
    found = {}
    for e in json.loads((FOLDER / file).read_text())["vectors"]:
        tolerance = e["tol"] if "tol" in e else {"abs": e["tolerance"], "rel": 0.0}
        found[e["id"]] = Entry(
            e["inputs"], e.get("params", {}), e["expected"], float(tolerance["abs"]), float(tolerance["rel"])
        )
    return found


def federated(name: str) -> Entry:
    """A vector of the federated baselines."""
    return entries(FEDERATED)[name]


def label_noise(name: str) -> Entry:
    """A vector of the losses against label noise."""
    return entries(LABEL_NOISE)[name]


def field(name: str) -> Entry:
    """A vector of server optimisers, further losses and peers' noise."""
    return entries(FIELD)[name]
