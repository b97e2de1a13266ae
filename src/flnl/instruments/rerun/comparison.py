"""What agrees, to the bit, between a run and its repetition; and what differs in their surroundings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flnl.config.identity import recorded_identity
from flnl.core.errors import UserError
from flnl.core.state import PASSES
from flnl.engine import model_file
from flnl.engine.executors import auto
from flnl.engine.model_file import ModelFile
from flnl.record import label_table, lines
from flnl.run import checkpoint
from flnl.storage.records import check_file, read_record

OF_A_CLOCK = ("seconds",)
"""Keys of a line that differ between any two runs."""
COUNTED = ("rounds", "participations", "bytes_down", "bytes_up", "left_out")
"""Keys of the record, besides ``metrics``, whose numbers are compared, and ``PASSES`` if the run has counted them."""


@dataclass(frozen=True)
class Part:
    """A part of what a run has left, compared."""

    name: str
    agree: bool | None  # None if the run did not leave it
    detail: str = ""

    @property
    def verdict(self) -> str:
        """The comparison in words."""
        return {True: "the same", False: "different", None: "not compared"}[self.agree]


def compared(before: Path, record: Mapping[str, Any], after: Path) -> list[Part]:
    """Compare what the run with this ``record``, in the folder ``before``, and its repetition in ``after`` have left.

    A file that is not what its run wrote differs.
    """
    again = read_record(after)
    assert again is not None, "the repetition has just ended"
    keys = [*COUNTED, *(key for key in PASSES if record.get(key) is not None)]
    numbers = [{key: one.get(key) for key in keys} | (one.get("metrics") or {}) for one in (record, again)]
    different = sorted(k for k in {*numbers[0], *numbers[1]} if numbers[0].get(k) != numbers[1].get(k))
    detail = "; ".join(f"{k} {numbers[0].get(k)} then, {numbers[1].get(k)} now" for k in different[:3])
    return [
        _checked("parameters", lambda: _parameters(before, after)),
        _checked(lines.METRICS, lambda: _lines(lines.METRICS, before, record, after, again)),
        _checked(lines.CORRECTIONS, lambda: _lines(lines.CORRECTIONS, before, record, after, again)),
        _checked(label_table.NAME, lambda: _labels(before, record, after)),
        Part("final numbers", not different, detail or f"{len(numbers[0])} numbers"),
    ]


def _checked(name: str, compare: Any) -> Part:
    """A comparison by ``compare``, which gives whether it agrees and a detail; damage to a file is a difference."""
    try:
        return Part(name, *compare())
    except (UserError, OSError, checkpoint.DamagedError) as error:
        return Part(name, False, str(error))


Compared = tuple[bool | None, str]


def _parameters(before: Path, after: Path) -> Compared:
    if all((folder / model_file.NAME).exists() for folder in (before, after)):
        return _tensors(ModelFile.load(before).weights, ModelFile.load(after).weights, model_file.NAME)
    found = [checkpoint.newest(folder / "checkpoints") for folder in (before, after)]
    if found[0] is None or found[1] is None:
        return None, f"there is no {model_file.NAME} and no checkpoint to compare"
    then, now = (dict(one.state.server.params) for one in found if one is not None)
    return _tensors(then, now, "the last checkpoint")


def _tensors(then: Mapping[str, Tensor], now: Mapping[str, Tensor], where: str) -> Compared:
    names = [name for name in dict.fromkeys([*then, *now]) if not bits_agree(then.get(name), now.get(name))]
    if names:
        return False, f"{len(names)} of {len(then)} tensors of {where}, the first is {names[0]}"
    return True, f"{len(then)} tensors of {where}, {sum(one.numel() for one in then.values()):,} values"


def bits_agree(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two tensors have the same bits; NaN has some, and zero has two signs."""
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    bits = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*bits)


def _lines(name: str, before: Path, then: Mapping[str, Any], after: Path, now: Mapping[str, Any]) -> Compared:
    """The rows of a file of lines, without times, up to the first that differs."""
    if not (before / name).exists():
        held = then.get(lines.CHECKSUMS, {}).get(name, {}).get("lines")
        return (True, "none") if held == 0 and not (after / name).exists() else (None, "the run's is not there")
    rows, again = lines.rows(before, name, then), lines.rows(after, name, now)
    for number, (row, other) in enumerate(zip(rows, again, strict=False), 1):
        if keys := [
            key
            for key in dict.fromkeys([*row, *other])
            if row.get(key) != other.get(key) and not (key in OF_A_CLOCK or (key in PASSES and row.get(key) is None))
        ]:
            values = f"{_short(row.get(keys[0]))} then, {_short(other.get(keys[0]))} now"
            return False, f"first in round {row.get('round', '?')}, line {number}: {keys[0]} {values}"
    if len(rows) != len(again):
        return False, f"{len(rows)} lines then, {len(again)} now"
    return True, f"{len(rows)} lines"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _labels(before: Path, record: Mapping[str, Any], after: Path) -> Compared:
    file, other = before / label_table.NAME, after / label_table.NAME
    if not file.exists() or not other.exists():
        return None, f"there is no {file if not file.exists() else other}"
    check_file(file, record)
    then, now = file.read_bytes().splitlines(), other.read_bytes().splitlines()
    different = [i for i, (one, two) in enumerate(zip(then, now, strict=False), 1) if one != two]
    if different or len(then) != len(now):
        return False, f"{len(different) or abs(len(then) - len(now)):,} of {len(then):,} lines"
    return True, f"{len(then):,} lines"


def surroundings(record: Mapping[str, Any], after: Path) -> list[str]:
    """What differs between the surroundings of a run and those of its repetition, a line each."""
    again = read_record(after)
    assert again is not None, "the repetition has just ended"
    found = list(_changes(record, again))
    for process in record.get("earlier", []):
        found += [f"before the run was resumed: {line}" for line in _changes({**record, **process}, record)]
    return list(dict.fromkeys(found))


def _changes(record: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[str]:
    ours, theirs = recorded_identity(again), recorded_identity(record)
    pairs: list[tuple[str, object, object]] = [
        (key, theirs.get(key, "absent"), ours.get(key, "absent")) for key in dict.fromkeys([*theirs, *ours])
    ]
    executors: Sequence[Any] = [one.get("executor") or "sequential" for one in (record, again)]
    then, now = map(auto.device_of_clients, executors, (record.get("device"), again.get("device")))
    pairs += [("device", then, now)]
    pairs += [(key, record.get(key), again.get(key)) for key in ("threads", "memory_format", "machine")]
    old, new = (one.get("versions") or {} for one in (record, again))
    pairs += [(package, old.get(package, "none"), new.get(package, "none")) for package in dict.fromkeys([*old, *new])]
    pairs += [("commit", record.get("commit"), again.get("commit"))]
    yield from (f"{name} {before} then, {after} now" for name, before, after in pairs if before != after)
    yield from auto.changed(executors[0], executors[1])
