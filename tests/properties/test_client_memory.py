"""What clients keep may lie on disk: the run is the same to the bit, nothing is lost, and nothing is left behind."""

from pathlib import Path

import pytest
import torch

from flnl.core.errors import UserError
from flnl.core.messages import ClientState
from flnl.core.payload import Payload
from flnl.core.state import Spilled
from flnl.run.checkpoint import client_store
from flnl.storage.content_store import ContentStore
from tests.properties.runs import difference, run
from tests.registry import BY_NAME

FEDCORR = BY_NAME["fedcorr"].words
ON_DISK = "client_memory=0"


def keeps(number: int, samples: int = 100) -> ClientState:
    """A state of 8 bytes a sample that no other number has."""
    return ClientState(labels=torch.full((samples,), number))


def test_a_run_with_its_clients_on_disk_is_the_same_run(tmp_path: Path) -> None:
    in_memory, on_disk = run(FEDCORR, tmp_path / "a"), run(FEDCORR, tmp_path / "b", ON_DISK)
    assert difference(in_memory.state.server.params, on_disk.state.server.params) is None
    assert in_memory.lines == on_disk.lines
    files = {p.name for p in (tmp_path / "b" / "clients").iterdir()}
    assert files
    assert not (tmp_path / "a" / "clients").exists()


def test_it_goes_on_to_the_bit_and_leaves_no_file_that_no_checkpoint_names(tmp_path: Path) -> None:
    unbroken = run(FEDCORR, tmp_path / "a", ON_DISK, "checkpoint.every=1")
    for rounds in (7, 9):
        run(FEDCORR, tmp_path / "b", ON_DISK, "checkpoint.every=1", f"max_rounds={rounds}", "resume=true")
    went_on = run(FEDCORR, tmp_path / "b", ON_DISK, "checkpoint.every=1", "resume=true")
    assert went_on.lines == unbroken.lines
    assert difference(went_on.state.server.params, unbroken.state.server.params) is None
    for ran in (unbroken, went_on):
        named = {n for f in (ran.folder / "checkpoints").glob("*.files") for n in f.read_text().split()}
        assert named == {p.name for p in (ran.folder / "clients").iterdir()}
        assert len(list((ran.folder / "checkpoints").glob("*.files"))) == 2


def test_another_limit_may_be_set_when_it_goes_on(tmp_path: Path) -> None:
    unbroken = run(FEDCORR, tmp_path / "a")
    run(FEDCORR, tmp_path / "b", ON_DISK, "max_rounds=8")
    assert run(FEDCORR, tmp_path / "b", "resume=true").lines == unbroken.lines


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    run(FEDCORR, tmp_path / "run", ON_DISK, "max_rounds=10")
    for path in (tmp_path / "run" / "clients").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match=r"clients/[0-9a-f]{64}, the state of a client, is damaged"):
        run(FEDCORR, tmp_path / "run", ON_DISK, "resume=true")


def test_no_more_is_held_than_allowed_and_the_oldest_leave_first(tmp_path: Path) -> None:
    store = client_store(tmp_path)
    found = Spilled[ClientState]().on(store, 2000)
    for client in range(5):
        found = found.updated({client: keeps(client)})
        assert found.size == sum(store.size(s) for s in found.held.values()) <= 2000
    assert list(found.held) == [3, 4]
    assert [int(found[c].labels[0]) for c in found] == [0, 1, 2, 3, 4]  # type: ignore[index]
    again = found.updated({0: keeps(7)})
    assert list(again.held) == [4, 0]
    assert int(again[0].labels[0]) == 7  # type: ignore[index]
    assert int(found[0].labels[0]) == 0  # type: ignore[index]  # the value of before is as it was


def test_what_is_dropped_is_gone_and_what_is_larger_than_the_limit_is_on_disk(tmp_path: Path) -> None:
    found = Spilled[ClientState]().on(client_store(tmp_path), 2000).updated({c: keeps(c) for c in range(4)})
    smaller = found.updated({}, without=[0, 3])
    assert list(smaller) == [1, 2]
    assert 0 not in smaller
    assert smaller.updated({9: keeps(9, 1000)}).held == {}
    assert smaller.updated({}, without=[1, 2]).size == 0


def test_everything_that_a_client_keeps_comes_back(tmp_path: Path) -> None:
    store = client_store(tmp_path)
    state = ClientState(torch.arange(3), torch.rand(3), {"term": {"h": torch.rand(2, 2), "n": (1, 2.5)}}, Payload())
    back = store.get(store.put(state))
    assert difference(state.terms, back.terms) is None
    assert state.labels is not None
    assert back.labels is not None
    assert torch.equal(state.labels, back.labels)


def test_a_file_that_a_crash_has_cut_short_is_written_again(tmp_path: Path) -> None:
    store = client_store(tmp_path)
    name = store.put(keeps(1))
    (tmp_path / "clients" / name).write_bytes(b"")  # renamed, but its content had not reached the disk
    assert store.put(keeps(1)) == name  # the resumed run computes the same state
    assert int(store.get(name).labels[0]) == 1  # type: ignore[index]


def test_names_of_states_are_on_the_disk_when_the_states_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was renamed, and whose folder was not flushed, may be gone after a crash of the machine."""
    flushed: list[Path] = []
    monkeypatch.setattr("flnl.storage.content_store.flush_names", flushed.append)
    store = ContentStore[str](tmp_path / "clients", str.encode, bytes.decode, len)
    name = store.put("state")
    assert not flushed
    store.sync([name])
    assert flushed == [tmp_path / "clients"]
