"""Who labelled which of CIFAR-100's images: the side file of CIFAR-100N (Wei et al., 2022), in the user's folder."""

import csv
import hashlib
import logging
import re
from pathlib import Path

from flnl.core.errors import UserError
from flnl.data.owners import Owners
from flnl.storage.csv_lines import CsvLines, opened

log = logging.getLogger(__name__)

NAME = "side_info_cifar100N.csv"
SHA256 = "22b9ca66e25a9c0663ddc415ea3a5b9063f30d434d802ccbd0f0bf3d532d19a9"
BATCH, WORKER = "Image-batch", "Worker-id"
ORIGIN = "https://github.com/UCSC-REAL/cifar-10-100n"


def read_annotators(path: Path) -> Owners:
    """The annotator of each training image, in the order of the images.

    The file is a CSV with the columns ``Image-batch``, ``a--b``: the first and the last position of some images;
    ``Worker-id``; and ``Work-time-in-seconds``, which is not read. CIFAR-10N has such a file with three workers a
    batch; its batches follow no known order of the images, so it is refused.

    Raises:
        UserError: if the file is missing, is another one, or does not name every position once.
    """
    where = f"partition.path={path}"
    if not path.is_file():
        raise UserError(f"{where}: no such file; get {NAME} from {ORIGIN}")
    try:
        with opened(path) as file:
            lines = CsvLines(file, skipinitialspace=True)
            if sum("worker" in name.lower() and "id" in name.lower() for name in lines.header) > 1:
                raise UserError(
                    f"{where} has several workers a batch, as CIFAR-10N's: its batches follow no known order of the "
                    f"images, so nobody's images can be told; {NAME} can be used, with dataset=cifar100"
                )
            if missing := [name for name in (BATCH, WORKER) if name not in lines.header]:
                raise UserError(f"{where} has no column {missing[0]}; it should be {NAME}")
            rows = [(number, row[BATCH], row[WORKER]) for number, row in lines]
    except (OSError, UnicodeError, csv.Error, ValueError) as error:
        raise UserError(f"{where} cannot be read ({error}); it should be {NAME}") from error
    spans = []
    for number, batch, worker in rows:
        found = re.fullmatch(r"([0-9]{1,9})--([0-9]{1,9})", batch.strip())
        if found is None or int(found[1]) > int(found[2]):
            raise UserError(f"{where}, line {number}: {BATCH} is {batch!r}; it should be FIRST--LAST, as 0--4")
        spans.append((int(found[1]), int(found[2]), worker))
    expected = 0
    for first, last, _ in sorted(spans):
        if first != expected:
            raise UserError(
                f"{where}: image {min(first, expected)} is {'named twice' if first < expected else 'missing'}"
            )
        expected = last + 1
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        log.warning("%s is not the published %s (sha256 %s)", path, NAME, digest)
    try:
        return Owners.of([worker for first, last, worker in sorted(spans) for _ in range(first, last + 1)], where)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error
