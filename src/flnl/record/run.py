"""The record of a run, ``result.json`` in its folder, as one value; and whether what lies beside it agrees.

The fields are the keys of the file, in its order, so that each key is named here alone. What reads runs gets them from
here: a key that is missing, or holds a value of another type, reads as the field's default, and ``raw`` has everything,
also keys of other versions.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from types import UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

from flnl.config import identity
from flnl.config.quoting import quoted
from flnl.config.recorded import whereabouts
from flnl.core.errors import UserError
from flnl.record import lines
from flnl.record.closing import CLOSED, same, summarise
from flnl.record.lines import CORRECTIONS, METRICS, DamagedLinesError, Row
from flnl.storage.atomic import write_atomically
from flnl.storage.input_file import read_json_file

RESULT = "result.json"

LOCK = ".lock"
"""In a run's or a sweep's folder: the process that writes there holds it."""

SWEEPS = Path("multirun")
TUNING = SWEEPS / "tune"

ESSENTIAL = ("key", "config", "earlier", "executor")
"""Without the first two, or with any of another type, a file is no record of a run."""

IF_ANY, NOT_IN_FILE = {"left out": "where it is empty"}, {"left out": "always"}
NOWHERE = Path(os.devnull)
"""The folder of a record that is in none: no file is below it."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """``result.json``, with what can be read beside it. Times are in seconds, sizes in bytes."""

    status: str = "unknown"  # finished, stopped (at max_rounds), interrupted or failed
    key: str = ""  # as it was when the run began; ``run_key`` is today's
    key_format: int = 1
    identity: Mapping[str, Any] = field(default_factory=dict)  # what makes the run what it is; not in the first format
    config: Mapping[str, Any] = field(default_factory=dict)  # resolved
    overrides: list[Any] = field(default_factory=list)  # as typed; none if it was not started from the command line
    stages: list[Any] = field(default_factory=list)  # described
    acts_from: int | None = None  # the first round in which all of the method acts
    data: str | None = None  # fingerprint of the data set
    federation: str | None = None  # fingerprint of who held what by which labels
    classes: list[Any] = field(default_factory=list)  # their names
    threads: int | None = None
    memory_format: str | None = None
    device: str | None = None
    executor: str | Mapping[str, Any] = ""  # its name and options
    cwd: str = ""  # where the relative paths of the configuration began
    started: float | None = None
    order: int | None = None  # see ``flnl.record.order``
    commit: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: str | None = None
    gpu: Mapping[str, Any] = field(default_factory=dict, metadata=IF_ANY)
    contents: Mapping[str, Any] = field(
        default_factory=dict, metadata=IF_ANY
    )  # fingerprints of the files of partition and noise
    client_names: list[Any] = field(default_factory=list, metadata=IF_ANY)
    upper_bound: str = field(default="", metadata=IF_ANY)  # why it is one
    given: Mapping[str, Any] = field(default_factory=dict, metadata=IF_ANY)  # the keys that are the noise rate
    given_origin: str = field(default="", metadata=IF_ANY)  # where that is from
    clean_samples: int = field(default=0, metadata=IF_ANY)  # the number that the method was given
    earlier: list[Any] = field(default_factory=list, metadata=IF_ANY)  # processes: their fields ``OF_A_PROCESS``
    error: str = field(default="", metadata=IF_ANY)
    rounds: int | None = None  # that are done
    checkpoint: int | None = None  # the round of the last one
    metrics: Mapping[str, Any] = field(default_factory=dict)  # the closing numbers
    participations: int | None = None  # this and the next seven are ``core.state.Counters``
    bytes_down: int | None = None
    bytes_up: int | None = None
    left_out: int | None = None
    unanswered: int = field(default=0, metadata=IF_ANY)
    training_passes: int | None = None
    forward_passes: int | None = None
    optimizer_steps: int | None = None
    bytes: int | None = None
    wall_time_s: float | None = None
    cpu_time_s: float | None = None
    peak_memory: int | None = None
    peak_gpu_memory: int | None = None
    unreadable_images: list[Any] = field(default_factory=list, metadata=IF_ANY)
    warnings: list[Any] = field(default_factory=list, metadata=IF_ANY)  # what went wrong, or was harmed
    clients: Mapping[str, Any] = field(default_factory=dict, metadata=IF_ANY)  # what was found about each, by name
    selection: list[Any] = field(default_factory=list, metadata=IF_ANY)
    restored_from: str = field(default="", metadata=IF_ANY)  # the file from which the folder was made again
    files: Mapping[str, Any] = field(default_factory=dict, metadata=IF_ANY)  # sha256 of those that hold none themselves
    lines: Any = lines.UNKNOWN  # the checksums of the files of lines, by name

    folder: Path = field(default=NOWHERE, metadata=NOT_IN_FILE)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, metadata=NOT_IN_FILE)

    # --------------------------------------------------------------------------------------------------- read, write

    @classmethod
    def of(cls, raw: Mapping[str, Any], folder: Path = NOWHERE) -> Self:
        """The record with the keys and values of ``raw``, as far as they are of their fields' types."""
        return cls(**_fitting(raw), folder=folder, raw=raw)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The record in a run's folder; None if it does not exist or is not that of a run."""
        try:
            raw = read_json_file(folder / RESULT)
        except (OSError, ValueError):
            return None
        if not isinstance(raw, dict) or not {*ESSENTIAL[:2]} <= raw.keys():
            return None
        kinds, earlier = _kinds(), raw.get("earlier", [])
        whole = all(isinstance(raw[name], kinds[name]) for name in ESSENTIAL if name in raw)
        return cls.of(raw, folder) if whole and all(isinstance(one, dict) for one in earlier) else None

    @classmethod
    def open(cls, folder: Path, hint: str = "") -> Self:
        """The record in a run's folder.

        Raises:
            UserError: if there is none, with a ``hint``.
        """
        if (record := cls.read(folder)) is None:
            raise UserError(f"{folder}: no run is recorded there ({RESULT} is missing or unreadable){hint}")
        return record

    def demand_finished(self) -> Self:
        """The record, if the run is finished.

        Raises:
            UserError: if it is not.
        """
        if not self.finished:
            raise UserError(
                f"{self.folder}: the run is not finished ({self.how_far}); finish it first, by the command that began "
                f"it with resume={quoted(str(self.folder))}"
            )
        return self

    def write(self, folder: Path) -> Self:
        """Write the file; return the record as readers have it."""
        raw = self._plain()
        write_atomically(folder / RESULT, (json.dumps(raw, indent=1, default=str) + "\n").encode())
        return replace(self, folder=folder, raw=raw)

    def as_read(self, folder: Path) -> Self:
        """The record as ``read`` would give it once it is written to ``folder``."""
        return self.of(json.loads(json.dumps(self._plain(), default=str)), folder)

    def _plain(self) -> Any:
        kept = [f for f in fields(self) if f.metadata != NOT_IN_FILE]
        return lines.plain({f.name: held for f in kept if (held := getattr(self, f.name)) or f.metadata != IF_ANY})

    # --------------------------------------------------------------------------------------------------- what it says

    @property
    def finished(self) -> bool:
        """Whether the run has finished."""
        return self.status == "finished"

    @property
    def how_far(self) -> str:
        """Its status and the rounds that are done, for messages."""
        return f"{self.status} after round {'?' if self.rounds is None else self.rounds}"

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.config["seed"])

    @property
    def data_seed(self) -> int:
        """The seed of partition and noise."""
        return int(self.config.get("data_seed", self.seed))

    @property
    def method(self) -> str:
        """The method's name, with a mark if it is an upper bound."""
        return f"{self.name_of('method')}{' (upper bound)' if self.upper_bound else ''}"

    def name_of(self, group: str) -> str:
        """The name of the configuration's choice of a group; "?" if it has none."""
        part = self.config.get(group)
        return str(part.get("name", "?")) if isinstance(part, Mapping) else "?"

    @property
    def title(self) -> str:
        """Method, data set and seed; and the status of an unfinished run."""
        title = f"{self.method} on {self.name_of('dataset')}, seed {self.config.get('seed', '?')}"
        return title if self.finished else f"{title} ({self.status})"

    def called(self, client: int) -> str:
        """What a client is called: its name, or else its number."""
        return str(self.client_names[client]) if client < len(self.client_names) else str(client)

    @property
    def age(self) -> tuple[int, float]:
        """The sort key of runs, the newest last: the number (0 in records of early versions), then the start time."""
        return max(0, self.order or 0), float(self.started or 0)

    @property
    def processes(self) -> list[Self]:
        """The record as each process that worked on the run would have it; what one does not say is as the last's."""
        return [*(replace(self, **_fitting(one)) for one in self.earlier), self]

    @property
    def with_itself(self) -> list[Any]:
        """The processes of the run before one that goes on with it, as ``earlier`` has them."""
        return [*self.earlier, {name: getattr(self, name) for name in OF_A_PROCESS}]

    # ------------------------------------------------------------------------------------------------ what the run is

    @cached_property
    def defining(self) -> dict[str, Any]:
        """The part of its configuration that makes it what it is, as ``identity.identity``; nothing is imported."""
        return identity.recorded_identity(self.config, self.identity)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Its configuration by the keys that a person types, as ``identity.settings``."""
        return identity.settings(self.config)

    @cached_property
    def run_key(self) -> str:
        """The run's key, in today's format."""
        return self.key if self.key_format == identity.FORMAT else identity.digest(self.defining)

    @property
    def digests(self) -> dict[str, str]:
        """The digests of its data set and of the files of its partition and noise, by group, as far as it has them."""
        held = {"dataset": self.data, **self.contents}
        return {group: digest for group, digest in held.items() if isinstance(digest, str) and digest}

    @cached_property
    def told_by(self) -> dict[str, str]:
        """What tells the run from others of its key: the digests of what lay at its places, by dotted key.

        Without a digest, as in an early record or that of a data set without a fingerprint, it is the place. A run
        of published files needs neither.
        """
        found: dict[str, str] = {}
        for key, place in identity.places(self.config).items():
            group = key.partition(".")[0]
            digest = self.digests.get(group)
            found |= {key: place} if digest is None else {f"{group}.contents": digest}
        return found

    @cached_property
    def whereabouts(self) -> dict[str, str]:
        """Where its data lay, by key; not those of published files."""
        return whereabouts(self.config, self.cwd)

    # --------------------------------------------------------------------------------------------------- lines, files

    @cached_property
    def metrics_rows(self) -> list[Row]:
        """The rows of ``metrics.jsonl``, as ``rows``."""
        return self.rows(METRICS)

    @cached_property
    def per_round(self) -> list[Row]:
        """A row for each round."""
        return [row for row in self.metrics_rows if row["kind"] == "round"]

    @cached_property
    def evaluations(self) -> list[Row]:
        """A row for each evaluation, with the ``accuracy`` in [0, 1] and the client ``participations`` until then."""
        return [row for row in self.metrics_rows if row["kind"] == "evaluation"]

    @cached_property
    def corrections(self) -> list[Row]:
        """A row for each correction of labels."""
        return self.rows(CORRECTIONS)

    def with_lines(self) -> Self:
        """The record, once its files of lines are read.

        Raises:
            UserError: if they differ from what the run wrote.
        """
        _ = self.per_round, self.evaluations, self.corrections
        return self

    def file(self, name: str) -> Path:
        """A file in the run's folder."""
        return self.folder / name

    def text(self, name: str) -> builtins.bytes:
        """A file of lines, verified; b"" if it does not exist.

        The file of a finished run must have exactly the recorded lines. That of a killed run may have more, which are
        not verified. A run without checksums is not verified at all.

        Raises:
            OSError: if the file cannot be read.
            DamagedLinesError: if it differs from what the run wrote.
        """
        return lines.read(self.file(name), self.lines, whole=self.finished)

    def rows(self, name: str) -> list[Row]:
        """The rows of a file of lines, verified as by ``text``, up to an incomplete line.

        Raises:
            OSError: if the file cannot be read.
            DamagedLinesError: if it differs from what the run wrote, or the closing numbers are not those of
                ``metrics.jsonl``.
        """
        found = lines.whole_rows(self.text(name))
        if name == METRICS:
            self.check_closing(found)
        return found

    def check_closing(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Check that the closing numbers are those of the ``rows`` of ``metrics.jsonl``.

        Raises:
            DamagedLinesError: if they are not; never for a run without checksums.
        """
        if self.lines is not lines.UNKNOWN and (fault := self.contradiction(rows)) is not None:
            raise DamagedLinesError(f"{self.file(RESULT)} contradicts its lines: {fault}")

    def contradiction(self, rows: Sequence[Mapping[str, Any]]) -> str | None:
        """What it says of the run's end that its lines do not, as a phrase; None if they agree.

        Args:
            rows: the lines of ``metrics.jsonl`` in order, or those that are kept of it.
        """
        if self.status not in CLOSED or not rows:
            return None
        for name, value in summarise([row for row in rows if row.get("kind") == "evaluation"]).items():
            if not same(self.metrics.get(name, value), value):
                return f"metrics.{name} is {self.metrics[name]}, and its evaluations give {value}"
        for name, key in COUNTED.items():
            held, counted = getattr(self, name), rows[-1].get(key)
            if held is not None and not same(held, counted):
                return f"{name} is {held}, and its last line says {counted}"
        return None

    def damage(self) -> str | None:
        """The fault of the files of lines, as a phrase that names file and line; None if there is none.

        Closing numbers that the lines do not give are one. A missing file is not: the record may be kept without it.
        """
        try:
            for name in (CORRECTIONS, METRICS):
                if self.file(name).exists():
                    self.rows(name) if name == METRICS else self.text(name)
        except (OSError, DamagedLinesError) as error:
            return str(error)
        return None

    def check_file(self, file: Path) -> None:
        """Check that a file is the one that the run wrote. Early runs have no checksum of it.

        Raises:
            OSError: if it cannot be read.
            UserError: if it is another one.
        """
        if file.name not in self.files:
            return
        with file.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != self.files[file.name]:
                raise UserError(f"{file} is not what the run wrote; put back a copy of it, or repeat the run")

    def refuse_another(self, file: Path, key: str) -> None:
        """Refuse a file in the run's folder that another run has written.

        Keys may change format, so that the key may be the one of an earlier process.

        Args:
            file: the file, for the message.
            key: the key of the run that has written it.

        Raises:
            UserError: naming both keys, if they differ.
        """
        if key not in {process.key for process in self.processes}:
            raise UserError(
                f"{file} is of another run, with key {key:.64}, than the {RESULT} beside it, with key {self.key:.64}: "
                "put back the file that this run wrote"
            )


OF_A_PROCESS = (
    *("key", "rounds", "overrides", "commit", "versions"),
    *("machine", "threads", "memory_format", "device", "executor"),
)
"""Fields that are stored for each process that worked on a run."""
COUNTED = {"rounds": "round", "participations": "participations"}
"""Fields that stand in the last line, too, and how they are called there."""


def _fitting(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What of a mapping is a field's value, and of its type."""
    there = ((name, raw[name], kinds) for name, kinds in _kinds().items() if name in raw)
    return {name: value for name, value, kinds in there if isinstance(value, kinds) and not isinstance(value, bool)}


@cache
def _kinds() -> Mapping[str, tuple[type, ...]]:
    """The types that a field may have in JSON, where all numbers with or without a point are numbers."""
    hints = get_type_hints(RunRecord)
    found = {}
    for name in (f.name for f in fields(RunRecord) if f.metadata != NOT_IN_FILE):
        alternatives = get_args(hints[name]) if isinstance(hints[name], UnionType) else (hints[name],)
        kinds = [object if kind is Any else get_origin(kind) or kind for kind in alternatives]
        found[name] = tuple([*kinds, int] if float in kinds else kinds)
    return found
