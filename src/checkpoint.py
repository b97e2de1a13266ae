"""The state on disk: written beside and renamed, with a checksum, loadable without trusting pickles.

What is stored are dicts, lists, numbers and tensors; a dataclass is stored as its name and fields and comes back
only if it is one of this package's own.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from src.core import FederatedState, Payload
from src.disk import writing
from src.errors import UserError

log = logging.getLogger(__name__)

CPU = torch.device("cpu")
TYPE, FIELDS, PAYLOAD, TUPLE = "type of", "fields", "payload", "tuple"


def encode(value: Any) -> Any:
    """``value`` as what ``torch.load(weights_only=True)`` accepts.

    Raises:
        TypeError: for a value that has no such form.
    """
    if isinstance(value, Tensor):
        return value.detach()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Payload):
        return {PAYLOAD: [encode(v) for v in value]}
    if is_dataclass(value) and not isinstance(value, type):
        name = f"{type(value).__module__}:{type(value).__qualname__}"
        return {TYPE: name, FIELDS: {f.name: encode(getattr(value, f.name)) for f in fields(value)}}
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
        ValueError: for a dataclass from outside this package.
    """
    if isinstance(value, list):
        return [decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    if PAYLOAD in value:
        return Payload(*(decode(v) for v in value[PAYLOAD]))
    if TUPLE in value:
        return tuple(decode(v) for v in value[TUPLE])
    if TYPE in value:
        module, _, name = value[TYPE].partition(":")
        kind = getattr(importlib.import_module(module), name, None) if module.split(".")[0] == "src" else None
        if not (isinstance(kind, type) and is_dataclass(kind)):
            raise ValueError(f"a checkpoint names {value[TYPE]}, which is no state of this package")
        return kind(**{key: decode(v) for key, v in value[FIELDS].items()})
    return {key: decode(v) for key, v in value.items()}


@dataclass(frozen=True)
class Checkpoint:
    """A state and what must be the same for it to go on."""

    state: FederatedState
    key: str
    federation: str  # fingerprint
    seconds: float  # of work so far


def write_atomically(path: Path, data: bytes) -> None:
    """All of ``data`` at ``path``, or what was there before: written beside, flushed to the disk, renamed.

    Raises:
        DiskFullError: where there is no space for it.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing(path):
            with beside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def save(folder: Path, checkpoint: Checkpoint, keep: int = 2) -> Path:
    """Write the checkpoint of a round into ``folder`` and keep the newest ``keep``."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(encode(checkpoint), buffer)
    data = buffer.getvalue()
    path = folder / f"round_{checkpoint.state.round:08d}.pt"
    write_atomically(path.with_suffix(".sha256"), hashlib.sha256(data).hexdigest().encode())
    write_atomically(path, data)
    for old in sorted(folder.glob("round_*.pt"))[:-keep]:
        old.unlink()
        old.with_suffix(".sha256").unlink(missing_ok=True)
    return path


def forget_after(folder: Path, rounds: int) -> None:
    """Delete checkpoints of later rounds, which a run starting at ``rounds`` did not come through, and half files."""
    for path in folder.glob("*"):
        found = re.fullmatch(r"round_(\d{8})\.(pt|sha256)", path.name)
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
        data = path.read_bytes()
        expected = path.with_suffix(".sha256").read_text().strip()
    except OSError as error:
        raise DamagedError(f"{error.strerror}: {error.filename}") from None
    if hashlib.sha256(data).hexdigest() != expected:
        raise DamagedError("its checksum does not match")
    try:
        place = {f"cuda:{i}": str(device) for i in range(16)}
        stored = torch.load(io.BytesIO(data), weights_only=True, map_location=place)
        found = decode(stored)
    except Exception as error:
        raise UserError(
            f"{path} is whole, but this version cannot read it ({error}): go on with the commit that its result.json "
            "names, or start afresh in another folder"
        ) from error
    assert isinstance(found, Checkpoint), "nothing else is saved there"
    return found


def newest(folder: Path, device: torch.device = CPU) -> Checkpoint | None:
    """The newest checkpoint that is whole; a damaged one is named in the log and the one before it taken.

    Raises:
        UserError: if it is whole and cannot be read.
    """
    for path in sorted(folder.glob("round_*.pt"), reverse=True):
        try:
            return load(path, device)
        except DamagedError as error:
            log.warning("%s is damaged (%s); taking the one before it", path, error)
    return None
