"""A finished run as an audit reads it: its record, its federation, its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from flnl.audit.recorded_labels import RecordedLabels, read_labels
from flnl.audit.samples import LabelledSamples
from flnl.config.recorded import places_of
from flnl.core.images import Indices
from flnl.data.federation.build import Federation
from flnl.data.federation.recorded import recorded_federation
from flnl.record import label_table
from flnl.record.run import RunRecord


@dataclass(frozen=True, eq=False)
class AuditedRun:
    """A run and its data."""

    folder: Path
    record: RunRecord
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
        record = RunRecord.open(folder, "; name a run's folder").demand_finished()
        places = places_of(data)
        federation = recorded_federation(_with_images_in_files(record), config_dir, places)
        position = federation.held
        samples = LabelledSamples(
            client=federation.holders,
            name=federation.names,
            given=federation.given.numpy()[position],
            client_names=federation.client_names,
            people=None if (people := federation.dataset.people) is None else people[:, position],
        )
        file = folder / label_table.NAME
        labels = None
        if file.exists():
            labels = read_labels(file, samples, federation.dataset.classes)
            record.check_file(file)  # after what could be said of its lines
        return cls(folder, record, federation, samples, position, labels, tuple(config_dir), places)

    def as_trained(self) -> AuditedRun:
        """The same run with images in memory where training kept them there.

        Raises:
            UserError: if the data are not what they were.
        """
        if _with_images_in_files(self.record) is self.record:
            return self
        return replace(self, federation=recorded_federation(self.record, self.config_dir, self.data))


def _with_images_in_files(record: RunRecord) -> RunRecord:
    """The record, with a data set that need not keep its images in memory leaving them in their files."""
    dataset = record.config.get("dataset")
    shifted = (record.config.get("shift") or {}).get("level")  # which is of images in memory
    if not isinstance(dataset, Mapping) or not dataset.get("in_memory") or shifted:
        return record
    return replace(record, config={**record.config, "dataset": {**dataset, "in_memory": False}})
