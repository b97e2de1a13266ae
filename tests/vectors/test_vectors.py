"""No vector is forgotten: each stands in a test by its name."""

import json
from pathlib import Path

import pytest

from tests.toys import vector_names
from tests.vectors.baselines import VECTORS
from tests.vectors.vectors import FEDERATED, LABEL_NOISE, MORE, entries

TEXT = "".join(file.read_text() for file in Path(__file__).parents[1].rglob("test_*.py"))


@pytest.mark.parametrize(("family", "count"), [("flr.", 8), ("fedpeer.", 14), ("feddiv.", 10), ("fedes.", 11)])
def test_every_vector_of_a_method_is_asserted(family: str, count: int):
    ours = [name for name in vector_names() if name.startswith(family)]
    assert len(ours) == count
    assert [name for name in ours if f'"{name}"' not in TEXT] == []


def test_every_vector_of_its_parts_among_the_baselines_is_asserted():
    prefixes = (
        "flr_",
        "slr",
        "er_detached",
        "peer_",
        "cores_",
        "fedpeer_",
        "fedes_",
        "coteaching",
        "forward_",
        "T_",
        "t_",
    )
    ours = [e["id"] for e in json.loads(VECTORS.read_text())["vectors"] if e["id"].startswith(prefixes)]
    assert len(ours) == 27
    assert [name for name in ours if f'"{name}"' not in TEXT] == []


def test_every_vector_of_fednoro_is_asserted():
    ours = [name for name in entries(FEDERATED) if name.startswith("fednoro.")]
    assert len(ours) == 4
    assert [name for name in ours if f'"{name}"' not in TEXT] == []


@pytest.mark.parametrize(("family", "count"), [("jointopt_", 2), ("dividemix_", 5)])
def test_every_vector_of_a_method_against_label_noise_is_asserted(family: str, count: int):
    ours = [name for name in entries(LABEL_NOISE) if name.startswith(family)]
    assert len(ours) == count
    assert [name for name in ours if f'"{name}"' not in TEXT] == []


@pytest.mark.parametrize(
    ("family", "count"),
    [("arfl.", 3), ("rofl.", 2), ("sfedavg.", 1), ("fair.", 1), ("fedrn.", 1), ("fedlsr.", 2)],
)
def test_every_vector_of_a_federated_baseline_is_asserted(family: str, count: int):
    ours = [name for name in entries(FEDERATED) if name.startswith(family)]
    assert len(ours) == count
    assert [name for name in ours if f'"{name}"' not in TEXT] == []


def test_every_vector_of_elr_is_asserted():
    assert len(entries(MORE)) == 4
    assert [name for name in entries(MORE) if f'"{name}"' not in TEXT] == []
