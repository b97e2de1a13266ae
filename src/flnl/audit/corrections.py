"""``corrected.csv``: the labels after an audit, as a data set of its own reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flnl.audit.audited_run import AuditedRun
from flnl.audit.files import cell, encoded
from flnl.audit.result import Audit
from flnl.audit.verdicts import Verdict
from flnl.core.errors import UserError
from flnl.core.images import Indices, Labels
from flnl.data.federation.build import from_config
from flnl.data.federation.recorded import recorded_data
from flnl.data.owners import LEFT_OUT, called
from flnl.storage.atomic import writing

CORRECTED, CLIENTS = "corrected.csv", "clients.csv"


def refuse_parts(run: AuditedRun) -> None:
    """Refuse a run on a part of its data set: ``dataset.labels`` needs a line for every sample.

    Raises:
        UserError: naming the key.
    """
    dataset = run.record.config["dataset"]
    for key in ("train_size", "train_sample"):
        if reads_labels(run) and dataset.get(key) is not None:
            raise UserError(
                f"--corrections: the run has dataset.{key}={dataset[key]}, and dataset.labels needs a label for every "
                "sample; use the column predicted_label of audit.csv instead"
            )


def reads_labels(run: AuditedRun) -> bool:
    """Whether the run's data set can read labels from a file."""
    return "labels" in run.record.config["dataset"]


@dataclass(frozen=True, eq=False)
class Corrections:
    """A label for every sample of the training set, also for those that no client trains on."""

    sample: list[str]  # [all], in the data set's order
    by: str  # the column of the sample: path or id
    label: Labels  # [all]
    owner: Indices  # [all], each sample's client, or LEFT_OUT
    clients: int  # their number, with those that hold no sample
    names: Sequence[str] | None  # [clients], what they are called; None: by their numbers
    unset: tuple[str, ...] = ()  # overrides of what the run has taken from the file that this one replaces

    @classmethod
    def of(cls, audit: Audit, run: AuditedRun, verdicts: Mapping[int, Verdict]) -> Corrections:
        """The given labels, with those that the audit suggests, or that a reviewer has decided.

        Raises:
            UserError: if a verdict calls a label wrong that the audit would suggest, and names no other.
        """
        data = run.federation.dataset
        labels = run.federation.given.numpy().copy()
        labels[audit.samples.position] = corrected_labels(audit, verdicts)
        names = [str(i) for i in range(len(labels))] if data.ids is None else [str(name) for name in data.ids]
        by = "id" if data.names_fingerprint is None else "path"  # of samples in files
        of_run, federation = run.record.config["dataset"], run.federation
        unset = ["dataset.truth=none"] if of_run.get("truth") == "csv" else []
        unset += ["dataset.vote=first"] if of_run.get("vote", "first") != "first" else []
        return cls(names, by, labels, _owner(run), federation.num_clients, federation.client_names, tuple(unset))

    def save(self, folder: Path, classes: tuple[str, ...], *, spreadsheet: bool) -> list[str]:
        """Write the files into ``folder``; return the overrides that have a run read them from there.

        A column ``client`` can neither tell of samples that no client holds nor of clients that hold none, so where
        there are such, the clients are in a file of their own. There is no column ``true``: an audit reads no truth.

        Raises:
            OSError: if they cannot be written.
        """
        names = [cell(name, spreadsheet=spreadsheet) for name in classes]
        samples = [cell(name, spreadsheet=spreadsheet) for name in self.sample]
        labels = [names[k] for k in self.label.tolist()]
        owners = [cell(called(self.names, client), spreadsheet=spreadsheet) for client in range(self.clients)]
        owners.append(str(LEFT_OUT))  # which reads the last one
        owner = [owners[client] for client in self.owner.tolist()]
        apart = not np.array_equal(np.unique(self.owner), np.arange(self.clients))
        columns = [samples, labels, *([] if apart else [owner])]
        header = [self.by, "label", *([] if apart else ["client"])]
        lines = [",".join(header), *map(",".join, zip(*columns, strict=True))]
        overrides = ["dataset.labels={folder}/" + CORRECTED, "partition=file"]
        with writing(folder / CORRECTED):
            (folder / CORRECTED).write_bytes(encoded("".join(f"{line}\n" for line in lines)))
        if apart:
            with writing(folder / CLIENTS):
                (folder / CLIENTS).write_bytes(encoded("".join(f"{client}\n" for client in ("client", *owner))))
            overrides.append("partition.path={folder}/" + CLIENTS)
        numbered = self.names is None  # numbers are places then, also of clients without samples
        empty = np.setdiff1d(np.arange(self.clients), self.owner).size
        if apart and (numbered or (empty and not all(map(str.isdecimal, self.names or ())))):
            overrides.append(f"partition.num_clients={self.clients}")
        return [*overrides, *self.unset]


def corrected_labels(audit: Audit, verdicts: Mapping[int, Verdict]) -> Labels:
    """The label [N] of each audited sample: as a reviewer has decided; else the given or, if wanted, the suggested one.

    Raises:
        UserError: if a verdict calls a label wrong that the audit would suggest, and names no other.
    """
    samples = audit.samples
    suggested = audit.options.corrections == "suggested"
    labels = np.where(samples.is_issue & suggested, samples.predicted, samples.given)
    for i, verdict in verdicts.items():
        if verdict.judgement == "right":
            labels[i] = samples.given[i]
        elif verdict.judgement == "wrong":
            labels[i] = samples.predicted[i] if verdict.label is None else verdict.label
            if labels[i] == samples.given[i]:
                raise UserError(
                    f"--reviewed: the label {audit.classes[labels[i]]!r} of client {samples.owner[i]}, sample "
                    f"{samples.name[i]!r} is wrong by its verdict, and the audit suggests no other: name the right "
                    "class in the column label, or make the verdict unsure"
                )
    return labels


def _owner(run: AuditedRun) -> Indices:
    """Each sample's client, also of those that the run has held out of its clients' training samples."""
    federation = run.federation
    if len(federation.validation):
        cfg = recorded_data(run.record, run.config_dir, run.data)
        cfg.eval.validation = 0.0  # partition and labels are drawn before samples are held out
        federation = replace(federation, clients=from_config(cfg).clients)
    owner = np.full(len(federation.given), LEFT_OUT, np.int64)
    for client, positions in enumerate(federation.clients):
        owner[positions] = client
    return owner
