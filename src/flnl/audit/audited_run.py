"""A finished run as an audit reads it: its record, its federation, its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flnl.audit.assessment import LabelledSamples
from flnl.audit.recorded_labels import RecordedLabels, read_labels
from flnl.config.quoting import quoted
from flnl.config.recorded import places_of
from flnl.core.errors import UserError
from flnl.core.images import Indices
from flnl.data.federation.build import Federation
from flnl.data.federation.recorded import recorded_federation
from flnl.record import label_table
from flnl.storage.records import RESULT, check_file, read_record


@dataclass(frozen=True, eq=False)
class AuditedRun:
    """A run and its data."""

    folder: Path
    record: Mapping[str, Any]
    federation: Federation
    samples: LabelledSamples  # in the order of labels.csv
    position: Indices  # [N], in the training set
    labels: RecordedLabels | None  # None without labels.csv
    config_dir: tuple[Path, ...] = ()
    data: Mapping[str, str] = field(default_factory=dict)  # where the data lie here, by key

    @classmethod
    def open(cls, folder: Path, config_dir: Sequence[Path] = (), data: Sequence[str] = ()) -> AuditedRun:
        """Read the run in ``folder`` and draw its federation; nothing is downloaded.

        ``data`` says where they lie here, as in ``dataset.root=/data``.

        Images that training kept in memory at the network's size are left in their files, where they are whole.

        Raises:
            UserError: if there is no finished run, or its data or labels are not what they were.
        """
        record = read_record(folder)
        if record is None:
            raise UserError(
                f"{folder}: no run is recorded there ({RESULT} is missing or unreadable); name a run's folder"
            )
        if record.get("status") != "finished":
            raise UserError(
                f"{folder}: the run is not finished ({record.get('status')} after round {record.get('rounds', '?')}); "
                f"finish it first, by the command that began it with resume={quoted(str(folder))}"
            )
        places = places_of(data)
        federation = recorded_federation(_with_images_in_files(record), folder, config_dir, places)
        position = federation.held
        samples = LabelledSamples(
            client=federation.holders,
            name=federation.names,
            given=federation.given.numpy()[position],
            client_names=federation.client_names,
        )
        file = folder / label_table.NAME
        labels = None
        if file.exists():
            labels = read_labels(file, samples, federation.dataset.classes)
            check_file(file, record)  # after what could be said of its lines
        return cls(folder, record, federation, samples, position, labels, tuple(config_dir), places)

    def as_trained(self) -> AuditedRun:
        """The same run with images in memory where training kept them there.

        Raises:
            UserError: if the data are not what they were.
        """
        if _with_images_in_files(self.record) is self.record:
            return self
        return replace(self, federation=recorded_federation(self.record, self.folder, self.config_dir, self.data))

    @property
    def config(self) -> Mapping[str, Any]:
        """The run's configuration."""
        config: Mapping[str, Any] = self.record["config"]
        return config

    @property
    def method(self) -> str:
        """The method's name, with a mark if it is an upper bound."""
        return f"{self.config['method']['name']}{' (upper bound)' if self.record.get('upper_bound') else ''}"

    @property
    def data_seed(self) -> int:
        """The seed of partition and noise."""
        return int(self.config.get("data_seed", self.config["seed"]))


def _with_images_in_files(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record, with a data set that need not keep its images in memory leaving them in their files."""
    dataset = record["config"].get("dataset")
    if not isinstance(dataset, Mapping) or not dataset.get("in_memory"):
        return record
    return {**record, "config": {**record["config"], "dataset": {**dataset, "in_memory": False}}}
