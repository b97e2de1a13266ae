"""The files of an audit: ``audit.csv``, ``audit.json`` and ``corrected.csv``."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flnl.audit.counting import NOBODY
from flnl.audit.result import Audit
from flnl.storage.atomic import writing
from flnl.storage.spreadsheet import text_cell

SCHEMA = 1
ROWS = 100_000
"""Lines that are written at once."""
COLUMNS = (
    *("client", "sample", "is_label_issue", "label_score", "given_label", "predicted_label"),
    *("suspicion_score", "rank", "confident_label", "final_label", "method_flagged"),
)
PEOPLE = ("labels", "agreeing")
TRUE_LABEL = "true_label"


def write_csv(audit: Audit, path: Path) -> None:
    """Write ``audit.csv``: a line for each sample, in the order of ``labels.csv``.

    ``is_label_issue``, ``label_score``, ``given_label`` and ``predicted_label`` mean what they mean in cleanlab.

    Raises:
        OSError: if it cannot be written.
    """
    header = [
        *COLUMNS,
        *(PEOPLE if audit.samples.labels is not None else []),
        *([TRUE_LABEL] if audit.samples.true is not None else []),
    ]
    with writing(path), path.open("wb") as file:
        file.write(encoded(",".join(header) + "\n"))
        for start in range(0, len(audit.samples), ROWS):
            file.write(encoded("".join(_lines(audit, slice(start, start + ROWS)))))


def _lines(audit: Audit, part: slice) -> Iterator[str]:
    samples, marked = audit.samples, audit.options.spreadsheet
    names = [cell(name, spreadsheet=marked) for name in audit.classes]
    names.append("")  # of the class NOBODY
    assert NOBODY == -1

    def labels(values: Any) -> list[str]:
        return [names[k] for k in values[part].tolist()]

    size = len(samples.client[part])
    flagged = samples.method_flagged
    columns: list[Sequence[object]] = [
        [cell(owner, spreadsheet=marked) for owner in samples.owner[part]],
        [cell(name, spreadsheet=marked) for name in samples.name[part]],
        samples.is_issue[part].tolist(),
        [f"{score:.9g}" for score in samples.label_score[part].tolist()],
        labels(samples.given),
        labels(samples.predicted),
        [f"{score:.9g}" for score in samples.suspicion_score[part].tolist()],
        samples.rank[part].tolist(),
        labels(samples.confident),
        [""] * size if samples.final is None else labels(samples.final),
        [""] * size if flagged is None else flagged[part].tolist(),
    ]
    if samples.labels is not None and samples.agreeing is not None:
        columns += [samples.labels[part].tolist(), samples.agreeing[part].tolist()]
    if samples.true is not None:
        columns.append(labels(samples.true))
    return (",".join(map(str, row)) + "\n" for row in zip(*columns, strict=True))


def cell(value: object, *, spreadsheet: bool) -> str:
    r"""A cell of a CSV file, quoted if necessary.

    Args:
        value: its content.
        spreadsheet: whether to put a ``'`` before what a spreadsheet might read as a formula.

    >>> cell('a "b", c', spreadsheet=False), cell("=1+1", spreadsheet=False), cell("=1+1", spreadsheet=True)
    ('"a ""b"", c"', '=1+1', "'=1+1")
    """
    text = text_cell(str(value)) if spreadsheet else str(value)
    if not any(character in text for character in ',"\r\n'):
        return text
    line = io.StringIO(newline="")
    csv.writer(line, lineterminator="\r\n").writerow([text])  # so that it also quotes \r
    return line.getvalue().removesuffix("\r\n")


def encoded(text: str) -> bytes:
    """UTF-8; undecodable bytes of a file name as they were, any other half of a surrogate pair escaped."""
    try:
        return text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError:
        return b"".join(_encoded_character(c) for c in text)


def _encoded_character(character: str) -> bytes:
    if "\ud800" <= character <= "\udfff" and not "\udc80" <= character <= "\udcff":
        return character.encode("unicode_escape")
    return character.encode("utf-8", errors="surrogateescape")


# ------------------------------------------------------------------------------------------------------------- json


def write_json(audit: Audit, path: Path) -> None:
    """Write ``audit.json``.

    Raises:
        OSError: if it cannot be written.
    """
    text = json.dumps(summary(audit), indent=1, allow_nan=False)
    with writing(path):
        path.write_bytes(f"{text}\n".encode())


def summary(audit: Audit) -> dict[str, Any]:
    """The content of ``audit.json``: plain values; matrices have given classes as rows, true ones as columns."""
    joint, classes = audit.joint, audit.classes
    return {
        "schema": SCHEMA,
        "key": audit.key,
        "federation": audit.fingerprint,
        "version": audit.version,
        "dataset": audit.dataset,
        "method": audit.method,
        "seed": audit.seed,
        "options": options(audit),
        "source": {
            "name": audit.source.name,
            "rounds": list(audit.source.rounds),
            "in_sample": audit.source.in_sample,
            "label_privacy": audit.options.label_privacy,
            "description": audit.source.description,
            "choice": None if audit.source.choice is None else asdict(audit.source.choice),
        },
        "notes": list(audit.notes),
        "classes": list(classes),
        "samples": audit.size,
        "n": joint.counts.tolist(),
        "thresholds": joint.thresholds.tolist(),
        "confident_joint": joint.confident.tolist(),
        "calibrated_joint": joint.calibrated.tolist(),
        "latent": {
            "prior": joint.prior.tolist(),
            "noise_matrix": joint.noise.tolist(),
            "inverse_noise_matrix": joint.inverse_noise.tolist(),
        },
        "issues": {
            "is_label_issue": audit.issues,
            "off_diagonal": joint.off_diagonal,
            "off_diagonal_calibrated": joint.off_diagonal_calibrated,
        },
        "wrong_labels": None if audit.wrong is None else asdict(audit.wrong),
        "by_client": [
            {
                "client": row.name,
                "clients": list(row.clients),
                "samples": row.samples,
                "disagreements": row.disagreements,
                "issues": row.issues,
                "method_flagged": row.flagged,
                "rate": row.rate,
                "wrong_labels": None if row.wrong is None else asdict(row.wrong),
                "most_frequent_pair": None if row.pair is None else [classes[k] for k in row.pair],
            }
            for row in audit.by_client
        ],
        "by_pair": [
            {"given": classes[row.given], "predicted": classes[row.predicted], "issues": row.issues}
            for row in audit.by_pair
        ],
        "expected_precision": {**asdict(audit.precision), "cut": audit.cut},
        "review": None if audit.review is None else asdict(audit.review),
        **({} if audit.measured is None else {"measured": dict(audit.measured)}),
    }


def options(audit: Audit) -> dict[str, Any]:
    """The options as plain values; of paths, which may tell where data lie, the name alone."""
    plain = asdict(audit.options)
    source = plain["probabilities"]
    plain["probabilities"] = source.name if isinstance(source, Path) else source
    plain["reviewed"] = [path.name for path in plain["reviewed"]]
    del plain["out"], plain["force"], plain["config_dir"], plain["secret"], plain["data"]
    return plain
