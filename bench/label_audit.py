"""How well audits rank and count the wrong labels of real images and texts, by noise, method and the audit's choices.

``python -m bench.label_audit FOLDER [--images mnist,cifar10,...] [--noise ...] [--methods ...] [--seeds 1,2,3]``

Runs that FOLDER lacks are made, one after the other; a command that was interrupted goes on where it stopped. Then all
runs there are audited, and FOLDER gets ``audits.csv``, a line for each choice, ``numbers.csv``, a line for each client
with how many of its labels are wrong and are thought to be, and ``audits.md``, means over seeds.
Lines of runs that are not in FOLDER stay, and these runs are not made: both files can be taken to another machine.
``pooled`` is the anchor: one client with all samples, scored by five-fold cross-validation of the same network, as
cleanlab would be used. Images are read from ``FLNL_DATA``; ``--override dataset.verify=false`` takes copies of the
published files. ``texts`` are those of ``python -m bench.library_texts $FLNL_DATA/own/texts.csv``.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Protocol

from bench.report import table
from bench.ways import environment
from bench.whole_runs import chosen, everywhere, finished, read_rows, values, write_rows
from flnl.audit import source
from flnl.audit.assessment import assess
from flnl.audit.audited_run import AuditedRun
from flnl.audit.options import Options, Recorded, Score
from flnl.audit.wrong_labels import wrong_labels
from flnl.evaluation.label_audit import audit_measures, true_labels

IMAGES = {
    "mnist": (
        "dataset=mnist",
        "dataset.train_size=4000",
        "dataset.test_size=2000",
        "protocol=digits",
        "model=mlp",
        "partition=iid_uniform",
    ),
    "cifar10": (
        "dataset=cifar10",
        "dataset.train_size=10000",
        "dataset.test_size=2000",
        "protocol=lenet",
        "model=lenet5",
        "partition=iid_uniform",
    ),
    "digits_writers": ("experiment=benchmark/clean/digits_writers",),
    "mnist_writers": ("experiment=benchmark/clean/mnist_writers",),
    "texts": (
        "dataset=text",
        "dataset.vocabulary=5000",
        "dataset.max_len=60",
        "train.batch_size=50",
        "train.lr=0.3",
        "partition=dirichlet",
        "partition.alpha=1.0",
        "partition.num_clients=10",
    ),
}
TITLES = {
    "mnist": "MNIST, 4,000 images, MLP",
    "cifar10": "CIFAR-10, 10,000 images, LeNet-5",
    "digits_writers": "Digits by their 14 writers, CNN",
    "mnist_writers": "MNIST by its writers, 10,000 images, LeNet-5",
    "texts": "Docstrings of four libraries, 2,400 texts, FastText",
}
NOISE = {
    "symmetric": ("noise=symmetric", "noise.eta=0.25"),
    "fedcorr": ("noise=fedcorr", "noise.rho=0.6", "noise.tau=0.5"),
    "fedes": ("noise=fedes",),
    "worst": ("noise=cifar10n_worst",),
}
PEOPLE = {("cifar10", "worst"): ("noise=human", "noise.source=worst")}
"""The labels that people gave, where the images are there; their transition matrix elsewhere."""
POOLED = "pooled"
METHODS = ("fedavg", "flr", "fedcorr", "co_teaching", "dividemix", POOLED)
OF_METHOD = {
    ("cifar10", "dividemix"): ("method.lambda_u=0",),
    ("texts", "fedcorr"): ("method.mixup=false",),
}
"""What a method is given on some data: with its default of 25, DivideMix falls behind its warm-up (see its card), and
texts cannot be mixed."""
CENTRAL = ("method=fedavg", "centralized=true", "rounds=10", "train.epochs=1")
FOLDS = 5
KINDS: tuple[Recorded, ...] = ("window", "all", "final")
PRIORS = (0.0, 0.25, 0.5)
"""Weights of the client prior; 0.25 is the default."""
SCORES: tuple[Score, ...] = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")
LEAST = 0.9
"""The expected precision that the strict list asks for."""


@dataclass(frozen=True)
class Case:
    """One run."""

    images: str
    noise: str
    method: str
    seed: int

    @property
    def folder(self) -> str:
        """The path of its folder."""
        return f"{self.images}/{self.noise}/{self.method}/{self.seed}"

    @property
    def folds(self) -> int | None:
        """Into how many folds the audit divides the samples; None if it takes what the run recorded."""
        return FOLDS if self.method == POOLED else None

    def overrides(self, root: Path) -> list[str]:
        """The overrides of the command that makes it."""
        return [
            *IMAGES[self.images],
            *PEOPLE.get((self.images, self.noise), NOISE[self.noise]),
            *(CENTRAL if self.method == POOLED else (f"method={self.method}",)),
            *OF_METHOD.get((self.images, self.method), ()),
            "audit.record=auto",
            *everywhere(self.seed, "auto", root / self.folder),
        ]


@dataclass(frozen=True)
class Row:
    """How well an audit has found the wrong labels. Shares are in [0, 1]; None where a measure is not defined."""

    images: str
    noise: str
    method: str
    seed: int
    probabilities: str
    score: str
    prior: float  # weight
    errors: int
    average_precision: float | None
    issues_precision: float | None
    issues_recall: float | None
    strict_precision: float | None  # of the issues whose expected precision is 0.9
    strict_recall: float | None
    test_accuracy: float  # of the run's last model


@dataclass(frozen=True)
class Number:
    """How many labels of a client are wrong, and what an audit says of it."""

    images: str
    noise: str
    method: str
    seed: int
    probabilities: str
    client: int
    samples: int
    wrong: int
    issues: int
    expected: float | None  # None where no number is told
    low: float | None
    high: float | None


class Planned(Protocol):
    """A run to make and audit."""

    @property
    def folder(self) -> str:
        """The path of its folder."""

    @property
    def folds(self) -> int | None:
        """Into how many folds the audit divides the samples; None if it takes what the run recorded."""

    def overrides(self, root: Path) -> list[str]:
        """The overrides of the command that makes it."""


def make(case: Planned, root: Path, more: Sequence[str]) -> None:
    """Make the run with ``more`` overrides, in a process of its own; those of the folds too if it is a pooled one.

    Raises:
        subprocess.CalledProcessError: if the run fails.
    """
    folder = root / case.folder
    if not finished(folder):
        began = time.perf_counter()
        command = [sys.executable, "-m", "flnl", *case.overrides(root), *more]
        subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL)
        print(f"{case.folder}: {time.perf_counter() - began:.0f} s", flush=True)
    if case.folds is not None:
        options = Options(folds=case.folds)
        source.find(AuditedRun.open(folder), options, lambda line: print(f"{case.folder}: {line}", flush=True))


def made(root: Path) -> Iterator[Case]:
    """The runs that are there."""
    for images, noise, method in itertools.product(IMAGES, NOISE, METHODS):
        for path in sorted((root / images / noise / method).glob("*")):
            if finished(path):
                yield Case(images, noise, method, int(path.name))


def case_of(row: Row | Number) -> Case:
    """The run that was audited."""
    return Case(row.images, row.noise, row.method, row.seed)


def _place(row: Row | Number) -> tuple[int, int, int, int]:
    """Where its run stands in the order of the tables."""
    return [*IMAGES].index(row.images), [*NOISE].index(row.noise), METHODS.index(row.method), row.seed


def rows(case: Case, root: Path) -> Iterator[Row]:
    """The audits of a run with every score: of its window with every prior, of all its models, of the last."""
    run = AuditedRun.open(root / case.folder)
    for kind in KINDS:
        options = Options(probabilities=kind, folds=case.folds)
        found = source.find(run, options, print)
        choices = itertools.product(SCORES, PRIORS if kind == "window" else PRIORS[1:2])
        for score, weight in choices:
            yield Row(
                **asdict(case),
                probabilities=kind,
                score=score,
                prior=weight,
                **_measures(run, found, dataclasses.replace(options, score=score, prior_weight=weight)),
                test_accuracy=float(run.record.metrics["last"]),
            )


def numbers(case: Case, root: Path) -> Iterator[Number]:
    """What audits of a run say of each client: of its window, of all its models, of the last."""
    run = AuditedRun.open(root / case.folder)
    true = true_labels(run.federation, run.position)
    assert true is not None
    for kind in KINDS:
        where, probabilities, test = source.find(run, Options(probabilities=kind, folds=case.folds), print)
        assert test is not None
        is_issue = assess(run.samples, probabilities, test, Options()).is_issue
        found = wrong_labels(run.samples, probabilities, test, is_issue, seen=where.in_sample)
        for c, client in enumerate(run.samples.clients.tolist()):
            mine = run.samples.place == c
            told = None if found is None else found[c].every
            yield Number(
                **asdict(case),
                probabilities=kind,
                client=client,
                samples=int(mine.sum()),
                wrong=int((true != run.samples.given)[mine].sum()),
                issues=int(is_issue[mine].sum()),
                expected=None if told is None else told.expected,
                low=None if told is None else told.low,
                high=None if told is None else told.high,
            )


def _measures(run: AuditedRun, found: source.Table, options: Options) -> dict[str, Any]:
    _, probabilities, test = found
    true = true_labels(run.federation, run.position)
    assert true is not None

    def against_truth(options: Options) -> dict[str, Any]:
        assessed = assess(run.samples, probabilities, test, options)
        return audit_measures(true, run.samples.given, assessed.rank, assessed.is_issue)

    plain, strict = against_truth(options), against_truth(dataclasses.replace(options, min_precision=LEAST))
    return {
        **{name: plain[name] for name in ("errors", "average_precision", "issues_precision", "issues_recall")},
        "strict_precision": strict["issues_precision"],
        "strict_recall": strict["issues_recall"],
    }


def report(measured: Sequence[Row]) -> str:
    """The tables in Markdown."""
    parts = []
    for images in dict.fromkeys(row.images for row in measured):
        here = [row for row in measured if row.images == images]
        parts += [f"### {TITLES[images]}", _of_methods(here), _of_choices(here)]
    return "\n\n".join(parts) + "\n"


def _of_methods(measured: Sequence[Row]) -> str:
    """A line for each noise and method: the ranking by the defaults, beside the last model's; the issues."""
    lines: dict[tuple[str, str], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in measured:
        if row.score == SCORES[0] and row.prior == PRIORS[1]:
            lines[row.noise, row.method][row.probabilities].append(row)
    body = []
    for (noise, method), kinds in lines.items():
        first = kinds["window"]
        body.append(
            [
                noise,
                method,
                str(len(first)),
                f"{mean(row.errors for row in first):.0f}",
                _range(first, "average_precision"),
                *(_range(kinds[kind], "average_precision") for kind in KINDS[1:]),
                _pair(first, "issues_precision", "issues_recall"),
                _pair(first, "strict_precision", "strict_recall"),
                f"{100 * mean(row.test_accuracy for row in first):.1f} %",
            ]
        )
    head = ["noise", "method", "seeds", "wrong", *KINDS, "issues", f"`--min-precision {LEAST}`", "accuracy"]
    return table(head, body)


def _of_choices(measured: Sequence[Row]) -> str:
    """A line for each noise and score: the window's ranking by the weight of the prior, the last model's."""
    body = []
    for noise, method, score in dict.fromkeys((r.noise, r.method, r.score) for r in measured):
        here = [
            r for r in measured if (r.noise, r.method, r.score) == (noise, method, score) and r.method in METHODS[:3]
        ]
        by_prior = [[r for r in here if r.prior == weight and r.probabilities == "window"] for weight in PRIORS]
        if all(by_prior):
            last = [r for r in here if r.prior == PRIORS[1] and r.probabilities == "final"]
            body.append([noise, method, score, *(_mean(rows, "average_precision") for rows in (*by_prior, last))])
    return table(["noise", "method", "score", *(f"prior {weight}" for weight in PRIORS), "final"], body)


def of_numbers(told: Sequence[Number]) -> str:
    """A line for each noise, method and probabilities: how often the interval holds the number, and how wide it is."""
    body = []
    for images, noise, method, kind in dict.fromkeys((n.images, n.noise, n.method, n.probabilities) for n in told):
        here = [n for n in told if (n.images, n.noise, n.method, n.probabilities) == (images, noise, method, kind)]
        known = [(n, n.expected, n.low, n.high) for n in here if None not in (n.expected, n.low, n.high)]
        held = [low <= n.wrong <= high for n, _, low, high in known]  # type: ignore[operator] # None is left out above
        wide = [(high - low) / n.samples for n, _, low, high in known]  # type: ignore[operator]
        off = [abs(expected - n.wrong) / n.samples for n, expected, _, _ in known]  # type: ignore[operator]
        clean = [low == 0 for n, _, low, _ in known if not n.wrong]
        body.append(
            [
                images,
                noise,
                method,
                kind,
                f"{len({n.seed for n in here})}",
                f"{len(here)}",
                f"{100 * sum(n.wrong for n in here) / sum(n.samples for n in here):.0f} %",
                f"{100 * sum(n.issues for n in here) / sum(n.samples for n in here):.0f} %",
                f"{mean(held):.2f}" if held else "not told",
                f"{100 * mean(off):.1f}" if off else "",
                f"{100 * mean(wide):.0f}" if wide else "",
                f"{sum(clean)} of {len(clean)}" if clean else "",
            ]
        )
    head = ["images", "noise", "method", "probabilities", "seeds", "clients", "wrong", "listed", "held"]
    return table([*head, "off", "width", "clean, from 0"], body)


def _mean(measured: Sequence[Row], name: str) -> str:
    known = values(measured, name)
    return f"{mean(known):.3f}".lstrip("0") if known else "none"


def _range(measured: Sequence[Row], name: str) -> str:
    known = values(measured, name)
    spread = f" ({min(known):.3f} to {max(known):.3f})".replace("0.", ".") if len(known) > 1 else ""
    return _mean(measured, name) + spread


def _pair(measured: Sequence[Row], precision: str, recall: str) -> str:
    return f"{_mean(measured, precision)} / {_mean(measured, recall)}"


def main(argv: Sequence[str] | None = None) -> None:
    """Make what is missing, audit, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.label_audit", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--override", action="append", default=[], help="of all runs; may be given more than once")
    args = chosen(parser, {"images": [*IMAGES], "noise": [*NOISE], "methods": METHODS}, argv)
    file, numbers_file = args.folder / "audits.csv", args.folder / "numbers.csv"
    known, told = read_rows(file, Row), read_rows(numbers_file, Number)
    elsewhere = {case for case in map(case_of, known) if not (args.folder / case.folder).exists()}
    for images, seed, method, noise in itertools.product(args.images, args.seeds, args.methods, args.noise):
        case = Case(images, noise, method, seed)
        if case not in elsewhere:
            make(case, args.folder, args.override)
    measured = [row for row in known if case_of(row) in elsewhere]
    measured += [row for case in made(args.folder) for row in rows(case, args.folder)]
    measured.sort(key=_place)
    write_rows(file, Row, measured)
    told = [number for number in told if case_of(number) in elsewhere]
    told += [number for case in made(args.folder) for number in numbers(case, args.folder)]
    told.sort(key=_place)
    write_rows(numbers_file, Number, told)
    text = f"{report(measured)}\n{of_numbers(told)}\n"
    (args.folder / "audits.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
