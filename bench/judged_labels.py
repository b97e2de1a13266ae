"""How well audits rank labels that people judged, beside cleanlab on pooled data.

``python -m bench.judged_labels FOLDER --judged DIR [--images mnist,cifar10] [--methods ...] [--seeds 1,2,3]``

The labels are those of published test sets, as they are. Clients hold these 10,000 images together with images of the
published training set, and other images of that are the clean test set; FOLDER gets this data set as arrays. Runs that
FOLDER lacks are made, one after the other, and all runs there are audited: ``judged.csv`` and ``judged.md``.

DIR has ``judged_IMAGES_test.csv``, a line for each suspect that five people judged (Northcutt, Athalye and Mueller,
2021; github.com/cleanlab/label-errors): its ``position`` (or ``id``) in the test set as it is below ``FLNL_DATA``, its
class ``given``, and ``votes_given``, how many chose this class alone. A label with fewer than three of these is wrong.

``pooled`` is what one site could do with cleanlab: one client holds all samples, the same network is trained once for
each of five folds, and cleanlab scores the samples by the models that have not seen them.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.label_audit import CENTRAL, FOLDS, KINDS, POOLED, make
from bench.report import table
from bench.whole_runs import chosen, everywhere, finished, values, write_rows
from flnl.audit import source
from flnl.audit.assessment import assess
from flnl.audit.audited_run import AuditedRun
from flnl.audit.options import Options
from flnl.audit.scores import ranks
from flnl.config import compose
from flnl.core.images import Indices
from flnl.evaluation.label_audit import average_precision
from flnl.numerics.ranks import auroc
from flnl.storage.whole_folder import written_whole

SETTING: Mapping[str, tuple[str, ...]] = {
    "mnist": ("protocol=digits", "model=mlp"),
    "cifar10": ("protocol=lenet", "model=lenet5", "dataset.padding=4", "dataset.flip=true"),
}
SHORTER: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("cifar10", "fedavg"): ("rounds=16",),
    ("cifar10", "fedcorr"): ("method.T1=2", "method.T2=6", "method.T3=6"),
}
"""A third of the protocol's trainings, which cost as much as the five trainings of the pooled data."""
TITLES = {"mnist": "MNIST, MLP", "cifar10": "CIFAR-10, LeNet-5"}
METHODS = ("fedavg", "fedcorr", POOLED)
MORE, CLEAN = 5_000, 2_000
"""Images of the published training set that clients hold beside the judged ones, and that are the clean test set."""
AGREED = 3
"""Votes of five that make the given class the right one."""
DATA = "data"


@dataclass(frozen=True)
class Case:
    """One run."""

    images: str
    method: str
    seed: int

    @property
    def folder(self) -> str:
        """The path of its folder."""
        return f"{self.images}/{self.method}/{self.seed}"

    @property
    def folds(self) -> int | None:
        """Into how many folds the audit divides the samples; None if it takes what the run recorded."""
        return FOLDS if self.method == POOLED else None

    def overrides(self, root: Path) -> list[str]:
        """The overrides of the command that makes it."""
        return [
            "dataset=arrays",
            f"dataset.root={root / self.images / DATA}",
            f"dataset.name={self.images}",
            "dataset.truth=none",
            "noise=none",
            *SETTING[self.images],
            "partition=iid_uniform",
            *(CENTRAL if self.method == POOLED else (f"method={self.method}",)),
            *SHORTER.get((self.images, self.method), ()),
            "audit.record=auto",
            *everywhere(self.seed, "auto", root / self.folder),
        ]


@dataclass(frozen=True)
class Row:
    """How an audit ranks the judged labels. Shares are in [0, 1]."""

    images: str
    method: str
    seed: int
    scores: str  # window, all or final, of the audit or of cleanlab
    by_default: bool  # whether the audit takes these probabilities of its own accord
    judged: int
    wrong: int
    average_precision: float  # among the judged
    auroc: float  # among the judged
    precision_at_wrong: float  # of the judged, as many of the first as are wrong
    first_wrong: int  # of the wrong ones, how many are among the first hundredth of all labels
    issues: int  # of all labels
    issues_judged: int  # issues that are judged
    issues_wrong: int  # issues that are judged wrong
    test_accuracy: float  # of the run's last model


@dataclass(frozen=True)
class Judged:
    """The judged samples by their position in the test set."""

    position: Indices  # [J]
    wrong: NDArray[np.bool_]  # [J]

    @classmethod
    def read(cls, file: Path) -> Judged:
        """Read a file of judgements."""
        with file.open(newline="") as opened:
            lines = list(csv.DictReader(opened))
        place = "position" if "position" in lines[0] else "id"
        return cls(
            np.array([int(line[place]) for line in lines]),
            np.array([int(line["votes_given"]) < AGREED for line in lines]),
        )


def write_data(images: str, folder: Path, more: Sequence[str]) -> None:
    """Write ``arrays.npz``: the published test set and ``MORE`` images to train on, ``CLEAN`` others to test with.

    Args:
        images: the published data set.
        folder: where to.
        more: overrides of the data set.
    """
    data = compose.build(compose.load([f"dataset={images}", *more]).dataset)()
    at = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))[: MORE + CLEAN]
    others, labels = data.train.read(at).numpy(), data.truth[at.numpy()]
    np.savez(
        folder / "arrays.npz",
        x_train=np.concatenate([data.test.read(torch.arange(len(data.test))).numpy(), others[:MORE]]),
        y_train=np.concatenate([data.test_labels, labels[:MORE]]),
        x_test=others[MORE:],
        y_test=labels[MORE:],
        classes=np.array(data.classes),
    )


def made(root: Path) -> Iterator[Case]:
    """The runs that are there."""
    for images, method in itertools.product(SETTING, METHODS):
        for path in sorted((root / images / method).glob("*")):
            if finished(path):
                yield Case(images, method, int(path.name))


def rows(case: Case, root: Path, judged: Judged) -> Iterator[Row]:
    """What is measured of a run, a row for each kind of probabilities."""
    run = AuditedRun.open(root / case.folder)
    default = None if case.folds else source.find(run, Options(), print)[0].name
    for kind in KINDS:
        options = Options(probabilities=kind, folds=case.folds)
        _, probabilities, test = source.find(run, options, print)
        if case.folds:
            rank, issue = by_cleanlab(run.samples.given, np.concatenate(list(probabilities.blocks())))
        else:
            assessed = assess(run.samples, probabilities, test, options)
            rank, issue = assessed.rank, assessed.is_issue
        yield Row(
            **asdict(case),
            scores=kind,
            by_default=kind == default,
            **measures(judged, run.position, rank, issue),
            test_accuracy=float(run.record.metrics["last"]),
        )


def by_cleanlab(labels: NDArray[Any], probabilities: NDArray[Any]) -> tuple[Indices, NDArray[np.bool_]]:
    """Ranks [N] and issues [N] by cleanlab's defaults, of ``labels`` [N] and ``probabilities`` [N, K]."""
    from cleanlab import filter, rank

    scores = rank.get_label_quality_scores(labels, probabilities)
    return ranks(scores), np.asarray(filter.find_label_issues(labels, probabilities, n_jobs=1))


def measures(judged: Judged, position: Indices, rank: Indices, issue: NDArray[np.bool_]) -> dict[str, Any]:
    """How ``rank`` [N] and ``issue`` [N] of samples at ``position`` [N] in the arrays meet the judgements.

    The arrays begin with the published test set, so that a judged sample has the same position in both.
    """
    place = np.empty(len(position), np.int64)
    place[position] = np.arange(len(position))
    at = place[judged.position]
    by_rank = judged.wrong[np.argsort(rank[at])]
    wrong = int(judged.wrong.sum())
    return {
        "judged": len(at),
        "wrong": wrong,
        "average_precision": average_precision(by_rank),
        "auroc": auroc(-rank[at].astype(np.float64), judged.wrong),
        "precision_at_wrong": float(by_rank[:wrong].mean()),
        "first_wrong": int((rank[at[judged.wrong]] < len(position) // 100).sum()),
        "issues": int(issue.sum()),
        "issues_judged": int(issue[at].sum()),
        "issues_wrong": int(issue[at[judged.wrong]].sum()),
    }


def report(measured: Sequence[Row]) -> str:
    """The tables in Markdown, means over seeds and the range of the average precision."""
    head = [
        "audit",
        "seeds",
        "average precision",
        "AUROC",
        "precision of the first",
        "wrong in the first 1 %",
        "issues",
    ]
    head += ["of them judged, wrong", "accuracy"]
    parts = []
    for images in dict.fromkeys(row.images for row in measured):
        body = []
        here = [row for row in measured if row.images == images]
        for method, kind in dict.fromkeys((row.method, row.scores) for row in here):
            group = [row for row in here if (row.method, row.scores) == (method, kind)]
            taken = sum(row.by_default for row in group)
            found = values(group, "average_precision")
            body.append(
                [
                    f"{method}, {kind}" + (f" (taken in {taken} of {len(group)})" if taken else ""),
                    str(len(group)),
                    f"{mean(found):.3f} ({min(found):.3f} to {max(found):.3f})",
                    *(f"{mean(values(group, name)):.3f}" for name in ("auroc", "precision_at_wrong")),
                    *(f"{mean(values(group, name)):.0f}" for name in ("first_wrong", "issues")),
                    " / ".join(f"{mean(values(group, name)):.0f}" for name in ("issues_judged", "issues_wrong")),
                    f"{100 * mean(values(group, 'test_accuracy')):.1f} %",
                ]
            )
        title = f"### {TITLES[images]}: {here[0].judged} judged labels, {here[0].wrong} of them wrong"
        parts += [title, table(head, body)]
    return "\n\n".join(parts) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Make what is missing, audit, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.judged_labels", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--judged", type=Path, required=True, metavar="DIR", help="folder of judged_IMAGES_test.csv")
    parser.add_argument("--override", action="append", default=[], help="of the published data sets")
    args = chosen(parser, {"images": [*SETTING], "methods": METHODS}, argv)
    root = args.folder.resolve()
    for images in args.images:
        if not (root / images / DATA).exists():
            with written_whole(root / images / DATA) as folder:
                write_data(images, folder, args.override)
    for images, seed, method in itertools.product(args.images, args.seeds, args.methods):
        make(Case(images, method, seed), root, ())
    measured = [
        row
        for case in made(root)
        for row in rows(case, root, Judged.read(args.judged / f"judged_{case.images}_test.csv"))
    ]
    write_rows(root / "judged.csv", Row, measured)
    text = report(measured)
    (root / "judged.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
