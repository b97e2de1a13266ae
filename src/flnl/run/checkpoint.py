"""The state on disk: written beside and renamed, with a checksum, loadable without trusting pickles.

What is stored are dicts, lists, numbers and tensors; a dataclass is stored as its stored name and its fields, and
comes back only if a class of that name was imported by the run that reads it.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from flnl.core.errors import UserError
from flnl.core.messages import ClientState
from flnl.core.payload import Payload, size_in_bytes
from flnl.core.state import FederatedState, Shelved
from flnl.core.stored import name_of, restore, stored
from flnl.storage.atomic import write_atomically, written_atomically
from flnl.storage.shelf import Shelf

log = logging.getLogger(__name__)

CPU = torch.device("cpu")
SUFFIXES = (".pt", ".sha256", ".files")
NEWEST = "newest"
"""The file in a folder of checkpoints that says which of them was saved last."""
TYPE, FIELDS, PAYLOAD, TUPLE, SHELVED = "type of", "fields", "payload", "tuple", "shelved"


def encode(value: Any) -> Any:
    """``value`` as what ``torch.load(weights_only=True)`` accepts.

    Raises:
        TypeError: for a value that has no such form, or a dataclass without a stored name.
    """
    if isinstance(value, Tensor):
        return value.detach()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Payload):
        return {PAYLOAD: [encode(v) for v in value]}
    if isinstance(value, Shelved):
        return {SHELVED: {client: encode(held) for client, held in value.held.items()}, "files": dict(value.files)}
    if is_dataclass(value) and not isinstance(value, type):
        return {TYPE: name_of(type(value)), FIELDS: {f.name: encode(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, Mapping):
        return {key: encode(v) for key, v in value.items()}
    if isinstance(value, tuple):
        return {TUPLE: [encode(v) for v in value]}
    if isinstance(value, list):
        return [encode(v) for v in value]
    raise TypeError(
        f"a checkpoint cannot hold a {type(value).__name__}: state is made of tensors, numbers and dataclasses"
    )


def decode(value: Any) -> Any:
    """The value that ``encode`` was given.

    Raises:
        ValueError: for a stored name that no imported class has.
    """
    if isinstance(value, list):
        return [decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    if PAYLOAD in value:
        return Payload(*(decode(v) for v in value[PAYLOAD]))
    if SHELVED in value:
        return Shelved({client: decode(held) for client, held in value[SHELVED].items()}, value["files"])
    if TUPLE in value:
        return tuple(decode(v) for v in value[TUPLE])
    if TYPE in value:
        return restore(value[TYPE], {key: decode(v) for key, v in value[FIELDS].items()})
    return {key: decode(v) for key, v in value.items()}


@stored("Checkpoint")
@dataclass(frozen=True)
class Checkpoint:
    """A state and what must be the same for it to go on."""

    state: FederatedState
    key: str
    federation: str  # fingerprint
    seconds: float  # of work so far
    executor: Mapping[str, Any] = field(default_factory=dict)  # what computed it, as a record has it
    lines: Mapping[str, Any] = field(default_factory=dict)  # checksums of what the run had written down, by file


def client_shelf(run: Path) -> Shelf[ClientState]:
    """Where the run in the folder ``run`` puts what clients keep and memory does not hold."""

    def to_bytes(state: ClientState) -> bytes:
        buffer = io.BytesIO()
        torch.save(encode(state), buffer)
        return buffer.getvalue()

    def from_bytes(data: bytes) -> ClientState:
        found: ClientState = decode(torch.load(io.BytesIO(data), weights_only=True))
        return found

    return Shelf(run / "clients", to_bytes, from_bytes, size_in_bytes)


class _Hashed:
    """A file that is written from its beginning to its end, and the checksum of what it was given.

    So a state is never in memory a second time, as bytes. An error waits for ``end``: torch would make another of it.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self._error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Take the next bytes."""
        if self._error is None:
            try:
                self._file.write(data)
                self._digest.update(data)
            except OSError as error:
                self._error = error
        return len(data)

    def flush(self) -> None:
        """Nothing is kept back here."""

    def end(self) -> bytes:
        """The checksum, in letters.

        Raises:
            OSError: if a write failed.
        """
        if self._error is not None:
            raise self._error
        return self._digest.hexdigest().encode()


def _name(rounds: int) -> str:
    return f"round_{rounds:08d}.pt"


def save(folder: Path, checkpoint: Checkpoint, keep: int = 2) -> Path:
    """Write the checkpoint of a round into ``folder`` and keep the newest ``keep``, with the files that they name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _name(checkpoint.state.round)
    clients = checkpoint.state.clients
    names = sorted(clients.files.values())
    if clients.shelf is not None:
        clients.shelf.sync(names)
        write_atomically(path.with_suffix(".files"), "\n".join(names).encode())
    with written_atomically(path) as file:
        hashed = _Hashed(file)
        torch.save(encode(checkpoint), hashed)  # type: ignore[arg-type]
        write_atomically(path.with_suffix(".sha256"), hashed.end())
    write_atomically(folder / NEWEST, path.name.encode())  # before older ones go: it never names one that is not there
    for old in sorted(folder.glob("round_*.pt"))[:-keep]:
        for suffix in SUFFIXES:
            old.with_suffix(suffix).unlink(missing_ok=True)
    if clients.shelf is not None:
        clients.shelf.keep_only({name for file in folder.glob("*.files") for name in file.read_text().split()})
    return path


def forget_after(folder: Path, rounds: int) -> None:
    """Delete checkpoints of later rounds, which a run starting at ``rounds`` did not come through, and half files."""
    if rounds and folder.exists():
        write_atomically(folder / NEWEST, _name(rounds).encode())
    else:
        (folder / NEWEST).unlink(missing_ok=True)
    for path in folder.glob("*"):
        found = re.fullmatch(r"round_(\d{8})\.\w+", path.name)
        if path.name.startswith(".round_") or (found and int(found.group(1)) > rounds):
            path.unlink()


class DamagedError(Exception):
    """A checkpoint that is not what was written."""


def load(path: Path, device: torch.device = CPU) -> Checkpoint:
    """One checkpoint; what was on a GPU comes back on ``device``, what was not stays off it.

    Raises:
        DamagedError: if it is not what was written.
        UserError: if it is, but another version of the package wrote it.
    """
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        expected = path.with_suffix(".sha256").read_text().strip()
    except OSError as error:
        raise DamagedError(f"{error.strerror}: {error.filename}") from None
    if found != expected:
        raise DamagedError("its checksum does not match")
    try:
        place = {f"cuda:{i}": str(device) for i in range(16)}
        checkpoint = decode(torch.load(path, weights_only=True, map_location=place))
    except Exception as error:
        raise UserError(
            f"{path} is whole, but this version cannot read it ({error}): go on with the commit that its result.json "
            "names, or start afresh in another folder"
        ) from error
    assert isinstance(checkpoint, Checkpoint), "nothing else is saved there"
    return checkpoint


def newest(folder: Path, device: torch.device = CPU, recorded: int = 0) -> Checkpoint | None:
    """The newest checkpoint that is whole; one that is damaged or gone is named in the log and the one before it taken.

    Args:
        folder: of the checkpoints.
        device: where what was on a GPU is to be.
        recorded: rounds of the newest checkpoint that the run's record knows of; 0 for none.

    Raises:
        UserError: if it is whole and cannot be read.
    """
    passed: list[str] = []
    found = None
    paths = sorted(folder.glob("round_*.pt"), reverse=True)
    last = _last_saved(folder, recorded)
    if last is not None and not any(path.name >= last for path in paths):
        passed.append(f"{folder / last}, which was saved last, is missing")
    for path in paths:
        try:
            found = load(path, device)
            break
        except DamagedError as error:
            passed.append(f"{path} is damaged ({error})")
    then = "no checkpoint before it is left; starting again" if found is None else "taking the one before it"
    for number, said in enumerate(passed, 1):
        log.warning("%s; %s", said, then if number == len(passed) else "looking at the one before it")
    return found


def _last_saved(folder: Path, recorded: int) -> str | None:
    """The name of the newest checkpoint that was saved; None where none is known of."""
    try:
        named = (folder / NEWEST).read_text().strip()
    except (OSError, ValueError):
        named = ""
    known = [name for name in (named, _name(recorded) if recorded else "") if re.fullmatch(r"round_\d{8}\.pt", name)]
    return max(known, default=None)
