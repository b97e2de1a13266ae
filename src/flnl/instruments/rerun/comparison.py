"""What agrees, to the bit, between a run and its repetition; and what differs in their surroundings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flnl.core.errors import UserError
from flnl.core.state import PASSES
from flnl.engine import model_file
from flnl.engine.executors import auto
from flnl.engine.model_file import ModelFile
from flnl.record import label_table, lines
from flnl.record.lines import Checksums
from flnl.record.run import RunRecord
from flnl.run import checkpoint

OF_A_CLOCK = ("seconds",)
"""Keys of a line that differ between any two runs."""
COUNTED = ("rounds", "participations", "bytes_down", "bytes_up", "left_out")
"""Keys of the record, besides ``metrics``, whose numbers are compared, and ``PASSES`` if the run has counted them."""


@dataclass(frozen=True)
class Part:
    """A part of what a run has left, compared."""

    name: str
    agree: bool | None  # None if the run or its repetition does not have it
    detail: str = ""
    gone: bool = False  # the run has left it, and it is no longer there

    @property
    def verdict(self) -> str:
        """The comparison in words."""
        return {True: "the same", False: "different", None: "not compared"}[self.agree]


def compared(record: RunRecord, again: RunRecord) -> list[Part]:
    """Compare what a run and its repetition have left in their folders.

    A file that is not what its run wrote differs. A number that only the repetition has does not where it
    was made by another version of the program, which may record more.
    """
    keys = [*COUNTED, *(key for key in PASSES if getattr(record, key) is not None)]
    numbers = [{key: getattr(one, key) for key in keys} | {**one.metrics} for one in (record, again)]
    different = sorted(
        k for k in _known(numbers[0], numbers[1], record, again) if numbers[0].get(k) != numbers[1].get(k)
    )
    detail = "; ".join(f"{k} {numbers[0].get(k)} then, {numbers[1].get(k)} now" for k in different[:3])
    return [
        _checked("parameters", lambda: _parameters(record.file(""), again.file(""))),
        _checked(lines.METRICS, lambda: _lines(lines.METRICS, record, again)),
        _checked(lines.CORRECTIONS, lambda: _lines(lines.CORRECTIONS, record, again)),
        _checked(label_table.NAME, lambda: _labels(record, again)),
        Part("final numbers", not different, detail or f"{len(numbers[0])} numbers"),
    ]


def _known(first: Mapping[str, Any], second: Mapping[str, Any], then: RunRecord, now: RunRecord) -> list[str]:
    """The names of numbers that are compared."""
    return [*dict.fromkeys([*first, *(second if then.commit == now.commit else ())])]


def _checked(name: str, compare: Any) -> Part:
    """A comparison by ``compare``, which gives whether it agrees and a detail; damage to a file is a difference."""
    try:
        return Part(name, *compare())
    except (UserError, OSError, checkpoint.DamagedError) as error:
        return Part(name, False, str(error))


Compared = tuple[bool | None, str] | tuple[None, str, bool]
"""Whether a part agrees, a detail, and whether it is gone from the run's folder."""


def _parameters(before: Path, after: Path) -> Compared:
    if all((folder / model_file.NAME).exists() for folder in (before, after)):
        return _tensors(ModelFile.load(before).weights, ModelFile.load(after).weights, model_file.NAME)
    found = [checkpoint.newest(folder / "checkpoints") for folder in (before, after)]
    gone = found[0] is None and not (before / model_file.NAME).exists()
    if found[0] is None or found[1] is None:
        return None, f"there is no {model_file.NAME} and no checkpoint to compare", gone
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


def _lines(name: str, then: RunRecord, now: RunRecord) -> Compared:
    """The rows of a file of lines, without times, up to the first that differs."""
    if not then.file(name).exists():
        known = Checksums.read(then.lines.get(name) if isinstance(then.lines, Mapping) else None)
        none = known is not None and known.lines == 0
        if not none:
            return None, "the run's is not there", now.file(name).exists()
        if not now.file(name).exists():
            return True, "none"
    rows, again = then.rows(name), now.rows(name)
    for number, (row, other) in enumerate(zip(rows, again, strict=False), 1):
        if keys := [
            key
            for key in _known(row, other, then, now)
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


def _labels(record: RunRecord, again: RunRecord) -> Compared:
    file, other = record.file(label_table.NAME), again.file(label_table.NAME)
    if not file.exists() or not other.exists():
        missing = [one for one in (file, other) if not one.exists()]
        return None, f"there is no {missing[0]}", missing == [file] and record.config.get("products") is not False
    record.check_file(file)
    then, now = file.read_bytes().splitlines(), other.read_bytes().splitlines()
    different = [i for i, (one, two) in enumerate(zip(then, now, strict=False), 1) if one != two]
    if different or len(then) != len(now):
        return False, f"{len(different) or abs(len(then) - len(now)):,} of {len(then):,} lines"
    return True, f"{len(then):,} lines"


def surroundings(record: RunRecord, again: RunRecord) -> list[str]:
    """What differs between the surroundings of a run and those of its repetition, a line each."""
    found = list(_changes(record, again))
    for process in record.processes[:-1]:
        found += [f"before the run was resumed: {line}" for line in _changes(process, record)]
    return list(dict.fromkeys(found))


def _changes(record: RunRecord, again: RunRecord) -> Iterator[str]:
    ours, theirs = again.defining, record.defining
    pairs: list[tuple[str, object, object]] = [
        (key, theirs.get(key, "absent"), ours.get(key, "absent")) for key in dict.fromkeys([*theirs, *ours])
    ]
    then, now = (auto.device_of_clients(one.executor, one.device) for one in (record, again))
    pairs += [("device", then, now)]
    pairs += [(key, getattr(record, key), getattr(again, key)) for key in ("threads", "memory_format", "machine")]
    old, new = record.versions, again.versions
    pairs += [(package, old.get(package, "none"), new.get(package, "none")) for package in dict.fromkeys([*old, *new])]
    pairs += [("commit", record.commit, again.commit)]
    yield from (f"{name} {before} then, {after} now" for name, before, after in pairs if before != after)
    yield from auto.changed(record.executor or "sequential", again.executor or "sequential")
