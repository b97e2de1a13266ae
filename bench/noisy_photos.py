"""Which method suits which noise: 600 JPEGs whose labels are wrong anywhere, or with some clients.

``python -m bench.noisy_photos FOLDER [--noise anywhere,clients] [--methods ...] [--seeds 1,2,3]``

The JPEGs are scikit-learn's digits, written below FOLDER as one's own images would be. Runs that FOLDER lacks are made,
one after the other; a command that was interrupted goes on where it stopped. Then all runs there are audited as
``flnl audit --probabilities window`` does; FOLDER gets ``methods.csv``, a line for each run, and ``methods.md``, means
over seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import numpy as np
from PIL import Image

import flnl
from bench.report import table
from bench.whole_runs import chosen, everywhere, finished, values, write_rows
from flnl.audit.examination import examine
from flnl.audit.options import Options
from flnl.storage.whole_folder import written_whole

PHOTOS = "photos"
OF_CLASS = 60
"""Training images of each digit; the others are for testing."""
SIDE = 32
"""Of a JPEG, in pixels; a digit has 8x8."""
SETTING = (
    "dataset=image_folder",
    "dataset.image_size=8",
    "dataset.crop_from=null",
    "dataset.padding=1",
    "dataset.flip=false",
    "dataset.color=grey",
    "dataset.normalize=half",
    "model=mlp",
)
NOISE = {
    "anywhere": ("noise=symmetric", "noise.eta=0.25", "noise.count=exact"),
    "clients": ("noise=fedcorr", "noise.rho=0.4", "noise.tau=0.5", "noise.count=exact"),
}
"""A quarter of the labels anywhere; half or more of those of four clients in ten, redrawn."""
METHODS = ("fedavg", "flr", "fedcorr", "feddiv", "fedes", "co_teaching", "dividemix", "joint_opt")


@dataclass(frozen=True)
class Case:
    """One run."""

    noise: str
    method: str
    seed: int

    @property
    def folder(self) -> str:
        """The path of its folder."""
        return f"{self.noise}/{self.method}/{self.seed}"

    def overrides(self, root: Path) -> list[str]:
        """The overrides of the command that makes it."""
        return [
            *SETTING,
            *NOISE[self.noise],
            f"dataset.root={root / PHOTOS}",
            f"method={self.method}",
            *everywhere(self.seed, "stacked", root / self.folder),
        ]


@dataclass(frozen=True)
class Row:
    """A run, measured. Shares are in [0, 1]; None where a measure is not defined."""

    noise: str
    method: str
    seed: int
    accuracy: float  # of the last model
    best: float
    wrong_given: float  # share of the labels
    wrong_final: float
    precision: float | None  # of the labels that the method flagged
    recall: float | None
    average_precision: float | None  # of the audit's ranking
    issues_precision: float | None  # of what the audit marks
    issues_recall: float | None


def write_photos(folder: Path) -> None:
    """Write the digits as JPEGs: ``train/CLASS`` and ``test/CLASS``."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    written = dict.fromkeys(range(10), 0)
    for pixels, label in zip(digits.images, digits.target.tolist(), strict=True):
        split = "train" if written[label] < OF_CLASS else "test"
        file = folder / split / str(label) / f"{written[label]:04d}.jpg"
        written[label] += 1
        file.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray((pixels * 255 / 16).round().astype(np.uint8))
        image.resize((SIDE, SIDE), Image.Resampling.BILINEAR).save(file, quality=90)


def make(case: Case, root: Path) -> None:
    """Make the run, in this process: to start one takes longer than to train.

    Raises:
        KeyboardInterrupt: if the run was interrupted; it has been saved.
    """
    if finished(root / case.folder):
        return
    began = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        status = flnl.run(case.overrides(root)).status
    if status == "interrupted":
        raise KeyboardInterrupt
    print(f"{case.folder}: {time.process_time() - began:.1f} s of CPU time", flush=True)


def made(root: Path) -> Iterator[Case]:
    """The runs that are there."""
    for noise, method in itertools.product(NOISE, METHODS):
        for path in sorted((root / noise / method).glob("*")):
            if finished(path):
                yield Case(noise, method, int(path.name))


def measured(case: Case, root: Path) -> Row:
    """What the run's record and an audit by the window say about it."""
    examined = examine(root / case.folder, Options(probabilities="window", formats=()), lambda line: None)
    record, measures = examined.run.record, examined.audit.measured
    assert measures is not None, "the truth of the digits is known"
    metrics = record.metrics
    return Row(
        **asdict(case),
        accuracy=metrics["last"],
        best=metrics["best"],
        wrong_given=metrics["noise_given"],
        wrong_final=metrics["noise_final"],
        precision=metrics.get("detection_precision"),
        recall=metrics.get("detection_recall"),
        **{name: measures[name] for name in ("average_precision", "issues_precision", "issues_recall")},
    )


def report(rows: Sequence[Row]) -> str:
    """The tables in Markdown: a section for each noise, a line for each method."""
    head = ["method", "runs", "accuracy, last", "wrong before", "after", "flagged", "audit: ranking", "audit: issues"]
    parts = []
    for noise in dict.fromkeys(row.noise for row in rows):
        body = []
        for method in dict.fromkeys(row.method for row in rows if row.noise == noise):
            here = [row for row in rows if (row.noise, row.method) == (noise, method)]
            body.append(
                [
                    f"`{method}`",
                    str(len(here)),
                    f"{_percent(here, 'accuracy')} ({_range(here, 'accuracy')})",
                    _percent(here, "wrong_given"),
                    _percent(here, "wrong_final"),
                    _pair(here, "precision", "recall"),
                    _share(here, "average_precision"),
                    _pair(here, "issues_precision", "issues_recall"),
                ]
            )
        parts += [f"### {noise}: `{' '.join(NOISE[noise])}`", table(head, body)]
    return "\n\n".join(parts) + "\n"


def _percent(rows: Sequence[Row], name: str) -> str:
    return f"{100 * mean(values(rows, name)):.1f} %"


def _range(rows: Sequence[Row], name: str) -> str:
    known = values(rows, name)
    return f"{100 * min(known):.1f} to {100 * max(known):.1f}"


def _share(rows: Sequence[Row], name: str) -> str:
    known = values(rows, name)
    return f"{mean(known):.3f}" if known else ""


def _pair(rows: Sequence[Row], precision: str, recall: str) -> str:
    return " / ".join(filter(None, (_share(rows, precision), _share(rows, recall))))


def main(argv: Sequence[str] | None = None) -> None:
    """Make what is missing, audit, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.noisy_photos", description=__doc__.split("\n", 1)[0])
    args = chosen(parser, {"noise": [*NOISE], "methods": METHODS}, argv)
    root = args.folder.resolve()
    if not (root / PHOTOS).exists():
        with written_whole(root / PHOTOS) as folder:
            write_photos(folder)
    for seed, noise, method in itertools.product(args.seeds, args.noise, args.methods):
        make(Case(noise, method, seed), root)
    rows = [measured(case, root) for case in made(root)]
    write_rows(root / "methods.csv", Row, rows)
    text = report(rows)
    (root / "methods.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
