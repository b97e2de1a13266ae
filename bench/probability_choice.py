"""Whether the test set chooses the probabilities that rank the clients' wrong labels best.

``python -m bench.probability_choice FOLDER ...``

The FOLDERs are those of ``bench.label_audit``, whose runs are audited by each kind of probabilities that they recorded,
and by the audit's own choice. Prints a line for each images, noise and method: means over seeds.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from bench.label_audit import KINDS, Case, made
from bench.report import table
from flnl.audit.assessment import assess
from flnl.audit.audited_run import AuditedRun
from flnl.audit.options import Options
from flnl.audit.source import find
from flnl.evaluation.label_audit import audit_measures, true_labels


@dataclass(frozen=True)
class Compared:
    """What one run's kinds of probabilities are worth, by kind."""

    ranking: Mapping[str, float]  # average precision of the clients' wrong labels
    spoiled: Mapping[str, float]  # of spoiled test labels, as the audit measures it
    accuracy: Mapping[str, float]  # on the test set
    taken: str

    def lost(self, kind: str) -> float:
        """By how much the ranking by ``kind`` is behind the best one."""
        return max(self.ranking.values()) - self.ranking[kind]


def compared(folder: Path, folds: int | None) -> Compared:
    """The run in ``folder``, audited by each kind."""
    run = AuditedRun.open(folder)
    true = true_labels(run.federation, run.position)
    assert true is not None, "the noise is simulated"
    choice = find(run, Options(folds=folds), print)[0].choice
    assert choice is not None, "the run has recorded its probabilities"
    ranking: dict[str, float] = {}
    for kind in KINDS:
        options = Options(probabilities=kind, folds=folds)
        _, probabilities, test = find(run, options, print)
        assessed = assess(run.samples, probabilities, test, options)
        measured = audit_measures(true, run.samples.given, assessed.rank, assessed.is_issue)
        ranking[kind] = measured["average_precision"]
    return Compared(
        ranking,
        {one.name: one.average_precision for one in choice.compared},
        {one.name: one.accuracy for one in choice.compared},
        choice.taken,
    )


def report(found: Mapping[str, Sequence[Compared]]) -> str:
    """The table in Markdown, a line for each name, and how much is lost over all runs."""
    body = []
    for name, runs in found.items():
        taken = Counter(one.taken for one in runs)
        body.append(
            [
                name,
                str(len(runs)),
                *(_each(runs, field) for field in ("ranking", "spoiled", "accuracy")),
                ", ".join(kind if len(taken) == 1 else f"{kind} {taken[kind]}" for kind in KINDS if taken[kind]),
                f"{mean(one.lost(one.taken) for one in runs):.3f}",
            ]
        )
    head = ["noise, method", "seeds", f"wrong labels, by {' / '.join(KINDS)}", "spoiled test labels", "accuracy"]
    every = [one for runs in found.values() for one in runs]
    lost = {"the choice": [one.lost(one.taken) for one in every]}
    lost["the best on the test set"] = [one.lost(max(KINDS, key=lambda kind: one.spoiled[kind])) for one in every]
    lost |= {kind: [one.lost(kind) for one in every] for kind in KINDS}
    most = ", ".join(f"{name} {mean(values):.3f} (at most {max(values):.3f})" for name, values in lost.items())
    return f"{table([*head, 'taken', 'lost'], body)}\n\nBehind the best kind, of {len(every)} runs: {most}\n"


def _each(runs: Sequence[Compared], field: str) -> str:
    return " / ".join(f"{mean(getattr(one, field)[kind] for one in runs):.3f}".lstrip("0") for kind in KINDS)


def name_of(case: Case, folder: Path) -> str:
    """The line of a run."""
    return f"{folder.name}: {case.images}, {case.noise}, {case.method}"


def main(argv: Sequence[str] | None = None) -> None:
    """Audit all runs and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.probability_choice", description=__doc__.split("\n", 1)[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    found: defaultdict[str, list[Compared]] = defaultdict(list)
    for folder in parser.parse_args(argv).folders:
        for case in made(folder):
            found[name_of(case, folder)].append(compared(folder / case.folder, case.folds))
    print(report(found))


if __name__ == "__main__":
    main()
