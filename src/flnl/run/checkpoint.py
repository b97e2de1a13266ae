"""Checkpoints: written atomically, with a checksum, and loaded without executing pickled code.

A checkpoint consists of dicts, lists, numbers and tensors. A dataclass is saved as its stored name and its fields, and
can be restored only if the run has imported a class with this stored name.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from flnl.core.errors import PartError, UserError
from flnl.core.messages import ClientState
from flnl.core.payload import CPU, Payload, size_in_bytes
from flnl.core.state import FederatedState, Spilled
from flnl.core.stored import name_of, restore, stored
from flnl.core.usage import Usage
from flnl.evaluation.recording import Sums
from flnl.storage.atomic import write_atomically, written_atomically
from flnl.storage.content_store import ContentStore

log = logging.getLogger(__name__)

SUFFIXES = (".pt", ".sha256", ".files")
NEWEST = "newest"
"""Name of the file, in a folder of checkpoints, that names the one saved last."""
TYPE, FIELDS, PAYLOAD, TUPLE, SHELVED, ITEMS = "type of", "fields", "payload", "tuple", "shelved", "items of"
"""Marks of values, as files have them."""
MARKS = frozenset({TYPE, PAYLOAD, TUPLE, SHELVED, ITEMS})
"""The keys that tell what a stored mapping was. A mapping with such a key of its own is stored as its items."""


def encode(value: Any) -> Any:
    """Convert ``value`` to types that ``torch.load(weights_only=True)`` accepts.

    Raises:
        TypeError: if a value cannot be converted, or a dataclass has no stored name.
    """
    if isinstance(value, Tensor):
        return value.detach()
    if value is None or isinstance(value, bool | int | float | str):
        return _plain(value)
    if isinstance(value, Payload):
        return {PAYLOAD: [encode(v) for v in value]}
    if isinstance(value, Spilled):
        return {SHELVED: {client: encode(held) for client, held in value.held.items()}, "files": dict(value.files)}
    if is_dataclass(value) and not isinstance(value, type):
        return {TYPE: name_of(type(value)), FIELDS: {f.name: encode(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, Mapping):
        encoded = {_plain(key): encode(v) for key, v in value.items()}
        return encoded if MARKS.isdisjoint(encoded) else {ITEMS: list(encoded.items())}
    if isinstance(value, tuple):
        return {TUPLE: [encode(v) for v in value]}
    if isinstance(value, list):
        return [encode(v) for v in value]
    raise _cannot_store(value)


def _plain(value: Any) -> Any:
    """A number or text of exactly a built-in type, or a tuple of such: pickle names the class of any other.

    Raises:
        TypeError: if it is none, such as a member of an enumeration.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.float64 | np.str_ | np.integer):
        return value.item()
    if type(value) is tuple:
        return tuple(map(_plain, value))
    raise _cannot_store(value)


def _cannot_store(value: Any) -> TypeError:
    kinds = "tensors, plain numbers and text, containers or dataclasses"
    return TypeError(f"a checkpoint cannot store a {type(value).__name__}: use {kinds}")


def decode(value: Any) -> Any:
    """Convert a value from ``encode`` back.

    Raises:
        ValueError: if no imported class has the stored name.
    """
    if isinstance(value, list):
        return [decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    if PAYLOAD in value:
        return Payload(*(decode(v) for v in value[PAYLOAD]))
    if SHELVED in value:
        return Spilled({client: decode(held) for client, held in value[SHELVED].items()}, value["files"])
    if TUPLE in value:
        return tuple(decode(v) for v in value[TUPLE])
    if TYPE in value:
        return restore(value[TYPE], {key: decode(v) for key, v in value[FIELDS].items()})
    if ITEMS in value:
        return {key: decode(v) for key, v in value[ITEMS]}
    return {key: decode(v) for key, v in value.items()}


def check(state: FederatedState) -> None:
    """Check that a state can be saved, so that a part with another one is named before hours of work are lost.

    Raises:
        PartError: naming the part.
    """
    for name, value in _of_parts(state):
        try:
            encode(value)
        except TypeError as error:
            raise PartError(f"{name} cannot be saved: {error}") from None


def _of_parts(state: FederatedState) -> Iterator[tuple[str, Any]]:
    """What parts keep, each value with the name of its part, in messages; of clients, what is in memory."""
    for name, value in state.server.exchanges.items():
        yield f"the state of exchange {name}", value
    for name, value in state.server.updates.items():
        yield f"the state of {name}", value
    for client in state.clients.held.values():
        for name, value in client.terms.items():
            yield f"the state of loss term {name}", value
        for value in client.extras:
            yield f"what clients keep for an exchange, {type(value).__name__},", value


@stored("Checkpoint")
class Checkpoint:
    """A state, and what must match for a run to resume from it."""

    state: FederatedState
    key: str  # the run's key
    federation: str  # fingerprint of the federation
    seconds: float  # working time so far
    executor: Mapping[str, Any] = field(default_factory=dict)  # record of the executor that computed the state
    lines: Mapping[str, Any] = field(default_factory=dict)  # checksums of the lines written so far, by file
    recorded: Sums | None = None  # of class probabilities; None if they are not recorded
    usage: Usage | None = None  # of CPUs and memory so far; None if an early version began the run


def client_store(run: Path, device: torch.device = CPU) -> ContentStore[ClientState]:
    """Storage, in the folder ``run``, for the client states that do not fit into memory.

    Tensors that were on a GPU are read onto ``device``, others onto the CPU.
    """

    def to_bytes(state: ClientState) -> bytes:
        buffer = io.BytesIO()
        torch.save(encode(state), buffer)
        return buffer.getvalue()

    def from_bytes(data: bytes) -> ClientState:
        state: ClientState = decode(
            torch.load(io.BytesIO(data), weights_only=True, map_location=partial(_placed, device))
        )
        return state

    return ContentStore(run / "clients", to_bytes, from_bytes, size_in_bytes)


class _Hashed:
    """A sequentially written file that computes the checksum of the data on the way.

    This avoids a second copy of the state in memory. Errors are raised by ``end``, since torch would replace them.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self._error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Write the next bytes."""
        if self._error is None:
            try:
                self._file.write(data)
                self._digest.update(data)
            except OSError as error:
                self._error = error
        return len(data)

    def flush(self) -> None:
        """Do nothing: writes are not buffered here."""

    def end(self) -> bytes:
        """The checksum as hexadecimal digits.

        Raises:
            OSError: if a write failed.
        """
        if self._error is not None:
            raise self._error
        return self._digest.hexdigest().encode()


def _name(rounds: int) -> str:
    return f"round_{rounds:08d}.pt"


def save(folder: Path, checkpoint: Checkpoint, keep: int = 2) -> Path:
    """Write a checkpoint into ``folder``; delete all but the newest ``keep`` and the client files that these need.

    Raises:
        PartError: if a part keeps what cannot be saved.
    """
    try:
        encoded = encode(checkpoint)
    except TypeError:
        check(checkpoint.state)  # names the part
        raise
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _name(checkpoint.state.round)
    clients = checkpoint.state.clients
    names = sorted(clients.files.values())
    if clients.store is not None:
        clients.store.sync(names)
        write_atomically(path.with_suffix(".files"), "\n".join(names).encode())
    with written_atomically(path) as file:
        hashed = _Hashed(file)
        torch.save(encoded, hashed)  # type: ignore[arg-type]
        write_atomically(path.with_suffix(".sha256"), hashed.end())
    write_atomically(folder / NEWEST, path.name.encode())  # before deleting old ones: it always names an existing file
    for old in sorted(folder.glob("round_*.pt"))[:-keep]:
        for suffix in SUFFIXES:
            old.with_suffix(suffix).unlink(missing_ok=True)
    if clients.store is not None:
        clients.store.keep_only({name for file in folder.glob("*.files") for name in file.read_text().split()})
    return path


def oldest(folder: Path) -> int:
    """The round of the oldest checkpoint in ``folder``, from which a run may go on; 0 if there is none."""
    names = sorted(path.name for path in folder.glob("round_*.pt"))
    return int(names[0][len("round_") : -len(".pt")]) if names else 0


def forget_after(folder: Path, rounds: int) -> None:
    """Delete unfinished files, and the checkpoints after round ``rounds``, from which the run now restarts."""
    if rounds and folder.exists():
        write_atomically(folder / NEWEST, _name(rounds).encode())
    else:
        (folder / NEWEST).unlink(missing_ok=True)
    for path in folder.glob("*"):
        match = re.fullmatch(r"round_(\d{8})\.\w+", path.name)
        if path.name.startswith(".round_") or (match and int(match.group(1)) > rounds):
            path.unlink()


class DamagedError(Exception):
    """A checkpoint file is missing or differs from what was written."""


def load(path: Path, device: torch.device = CPU) -> Checkpoint:
    """Load a checkpoint; tensors that were on a GPU are loaded onto ``device``, others onto the CPU.

    Raises:
        DamagedError: if the file is missing or its checksum does not match.
        UserError: if the file is intact but this version cannot read it.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        expected = path.with_suffix(".sha256").read_text().strip()
    except OSError as error:
        raise DamagedError(f"{error.strerror}: {error.filename}") from None
    if digest != expected:
        raise DamagedError("its checksum does not match")
    try:
        checkpoint = decode(torch.load(path, weights_only=True, map_location=partial(_placed, device)))
    except Exception as error:
        raise UserError(
            f"{path} is intact, but this version cannot read it ({error}): use the version or the commit that its "
            "result.json names, or start a new run in another folder"
        ) from error
    assert isinstance(checkpoint, Checkpoint), "checkpoint files hold a Checkpoint"
    return checkpoint


def _placed(device: torch.device, storage: Any, location: str) -> Any:
    """What of a file was on the CPU stays there, whatever was on any other device goes to ``device``."""
    return storage if location == "cpu" else storage.to(device=device)


def newest(folder: Path, device: torch.device = CPU, recorded: int = 0) -> Checkpoint | None:
    """Load the newest intact checkpoint; damaged or missing ones are logged and skipped. None if none is left.

    Args:
        folder: the folder of checkpoints.
        device: device for tensors that were on a GPU.
        recorded: round of the newest checkpoint named in the run's record; 0 for none.

    Raises:
        UserError: if the checkpoint is intact but cannot be read.
    """
    skipped: list[str] = []
    checkpoint = None
    paths = sorted(folder.glob("round_*.pt"), reverse=True)
    last = _last_saved(folder, recorded)
    if last is not None and not any(path.name >= last for path in paths):
        skipped.append(f"{folder / last}, the last one saved, is missing")
    for path in paths:
        try:
            checkpoint = load(path, device)
            break
        except DamagedError as error:
            skipped.append(f"{path} is damaged ({error})")
    action = "there is no earlier checkpoint; starting again" if checkpoint is None else "using the one before it"
    for number, reason in enumerate(skipped, 1):
        log.warning("%s; %s", reason, action if number == len(skipped) else "trying the one before it")
    return checkpoint


def _last_saved(folder: Path, recorded: int) -> str | None:
    """The name of the last checkpoint saved, from the file ``newest`` and the run's record; None if neither has one."""
    try:
        named = (folder / NEWEST).read_text().strip()
    except (OSError, ValueError):
        named = ""
    known = [name for name in (named, _name(recorded) if recorded else "") if re.fullmatch(r"round_\d{8}\.pt", name)]
    return max(known, default=None)
