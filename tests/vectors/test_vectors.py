"""No vector is forgotten: each stands in a test by its name."""

from pathlib import Path

import pytest

from tests.toys import VECTORS as SEED
from tests.vectors.vectors import FEDERATED, FIELD, LABEL_NOISE, MORE, NEWER, entries

TEXT = "".join(file.read_text() for file in Path(__file__).parents[1].rglob("test_*.py") if file != Path(__file__))
NOT_HERE = {
    SEED.name: {"data.cifar_n"},
    FEDERATED: {
        *("fedavg.state_dict", "bn.pooled_variance", "fedprox.penalty", "fedprox.WRONG_variants", "fedprox.sgd_step"),
        "compose.metamorphic",
    },
    LABEL_NOISE: {
        "ce_empty_batch",
        "fedcorr_double_softmax",
    },
    MORE: set[str](),
    NEWER: set[str](),
    FIELD: set[str](),
}
"""By file: of methods that are not here, or shown otherwise."""
COUNTS = {SEED.name: 63, FEDERATED: 45, LABEL_NOISE: 59, MORE: 31, NEWER: 25, FIELD: 58}


@pytest.mark.parametrize("file", NOT_HERE)
def test_every_vector_is_asserted(file: str):
    assert len(entries(file)) == COUNTS[file]
    assert [name for name in entries(file) if f'"{name}"' not in TEXT and name not in NOT_HERE[file]] == []
