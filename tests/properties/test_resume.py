"""Stopped after any round and gone on with, a run is the same run to the bit."""

from pathlib import Path

import pytest

from flnl.core.state import PASSES
from flnl.evaluation import probabilities
from tests.properties.reference import References
from tests.properties.runs import Ran, difference, run
from tests.registry import BY_NAME, COVERING, REPRESENTATIVES, Entry, others_slow


def assert_same_run(one: Ran, other: Ran) -> None:
    """Equal parameters, client states, counters, lines, numbers and recorded probabilities."""
    assert difference(one.state, other.state) is None
    assert one.lines == other.lines
    assert one.corrections == other.corrections
    counted = ("participations", "bytes_down", "bytes_up", "left_out", *PASSES)
    for key in ("key", "status", "rounds", "metrics", *counted):
        assert difference(one.record[key], other.record[key], key) is None  # NaN, of what cannot be told, is NaN
    assert (one.folder / probabilities.NAME).read_bytes() == (other.folder / probabilities.NAME).read_bytes()


@pytest.mark.parametrize("entry", others_slow(COVERING), ids=str)
def test_stopped_and_resumed_it_is_the_same_run(entry: Entry, references: References, tmp_path: Path) -> None:
    """Representatives stop at every border of their stages and within them, others once."""
    unbroken = references.run(entry.words)
    assert unbroken.record["status"] == "finished"
    assert max(entry.cuts) < unbroken.record["rounds"]
    if "finetune" in entry.acting:  # or little would be said of the labels that clients keep
        relabelled = {row["stage"]: row["relabelled"] for row in unbroken.corrections}
        assert min(relabelled["preprocess"], relabelled["finetune"]) > 0
    broken = tmp_path / "broken"
    cuts = entry.cuts if entry.name in REPRESENTATIVES else entry.cuts[len(entry.cuts) // 2 :][:1]
    for number, cut in enumerate(cuts):
        part = run(entry.words, broken, f"max_rounds={cut}", f"resume={str(number > 0).lower()}")
        assert (part.record["status"], part.record["rounds"]) == ("stopped", cut)
        assert part.state.round == cut
        assert {line["round"] for line in part.lines} == set(range(1, cut + 1))
    assert_same_run(run(entry.words, broken, "resume=true"), unbroken)


@pytest.mark.parametrize("name", ["fedcorr", "parts_with_memory"])
@pytest.mark.slow
def test_stopped_after_every_round_it_is_the_same_run(name: str, references: References, tmp_path: Path) -> None:
    words = BY_NAME[name].words
    unbroken = references.run(words)
    broken = tmp_path / "broken"
    for cut in range(1, unbroken.record["rounds"] + 1):
        part = run(words, broken, f"max_rounds={cut}", f"resume={str(cut > 1).lower()}")
    assert_same_run(part, unbroken)


def test_state_in_every_slot_is_saved(references: References) -> None:
    """The registry has an entry whose server and whose loss term remember, and what they know is in the checkpoint."""
    state = references.run(BY_NAME["parts_with_memory"].words).state
    assert "Momentum" in state.server.updates
    visits = {client: own.terms["pull"]["visits"] for client, own in state.clients.items()}
    assert sum(visits.values()) == state.counters.participations
    assert any(count > 1 for count in visits.values())
