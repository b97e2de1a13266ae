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

log = logging.getLogger(__name__)

TYPE, FIELDS, PAYLOAD, TUPLE = "type of", "fields", "payload", "tuple"


def encode(value: Any) -> Any:
    """``value`` as what ``torch.load(weights_only=True)`` accepts.

    Raises:
        TypeError: for a value that has no such form.
    """
    if isinstance(value, Tensor):
        return value.detach().cpu()
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
    """All of ``data`` at ``path``, or what was there before: written beside, flushed to the disk, renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
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


def load(path: Path) -> Checkpoint:
    """One checkpoint.

    Raises:
        ValueError: if it is not what was written.
    """
    data = path.read_bytes()
    try:
        expected = path.with_suffix(".sha256").read_text().strip()
    except OSError:
        raise ValueError("its checksum is missing") from None
    if hashlib.sha256(data).hexdigest() != expected:
        raise ValueError("its checksum does not match")
    found = decode(torch.load(io.BytesIO(data), weights_only=True))
    if not isinstance(found, Checkpoint):
        raise ValueError("it holds something else")
    return found


def newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; a damaged one is named in the log and the one before it taken."""
    for path in sorted(folder.glob("round_*.pt"), reverse=True):
        try:
            return load(path)
        except Exception as error:
            log.warning("%s is damaged (%s); taking the one before it", path, error)
    return None
