"""Values of overrides are read back as they are."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from flnl.config.quoting import quoted

PLAIN = ("outputs/a", "lr0.1")
AWKWARD = (
    "a,b",
    "2024",
    "1e5",
    "1_000",
    "true",
    "NULL",
    "nan",
    "läufe/ä",
    "lr=0.1",
    "~/x",
    "it's",
    "a\\b",
    "a\\'b",
    "a b\\",
    "",
)


@pytest.mark.parametrize("text", [*PLAIN, *AWKWARD])
def test_hydra_reads_the_same_text(text: str) -> None:
    (override,) = OverridesParser.create().parse_overrides([f"output={quoted(text)}"])
    assert not override.is_sweep_override()
    assert override.value() == text
    assert (quoted(text) == text) == (text in PLAIN)
