"""Finds the probabilities of an audit: those that the run recorded, its final model's, or a file's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from flnl.audit.audited_run import AuditedRun
from flnl.audit.choice import Choice, choose
from flnl.audit.clean_samples import CleanSamples
from flnl.audit.options import Options, Recorded
from flnl.audit.probability_table import InFile, InMemory, ProbabilityTable, read_arrays
from flnl.audit.result import ProbabilitySource
from flnl.audit.samples import LabelledSamples
from flnl.console.words import counted
from flnl.core.errors import UserError
from flnl.core.images import Images
from flnl.engine import model_file
from flnl.engine.model_file import ModelFile
from flnl.engine.network import Network
from flnl.evaluation.probabilities import NAME as RECORDING
from flnl.evaluation.probabilities import Probabilities

Table = tuple[ProbabilitySource, ProbabilityTable, CleanSamples | None]

KINDS = get_args(Recorded)
"""What a run records, in the order of preference among equal ones."""
SCORED = 16_384
"""Samples that the final model scores at once."""
ONE = ("key", "federation", "round")
"""Arrays of a recording that hold one value."""
UNRECORDED = (
    "the run has recorded no probabilities, so these are its final model's, which has memorised more; repeat it with "
    "audit.record=true for better ones"
)


def find(run: AuditedRun, options: Options, report: Callable[[str], None]) -> Table:
    """The probabilities that ``options`` ask for: where they are from, those of all samples, those of the test set.

    ``report`` is told in a line what takes long.

    Raises:
        UserError: if there are none, or they are of another run or of other samples.
    """
    asked = options.probabilities
    if options.folds is not None or asked == "folds":
        return of_folds(run, options, report)
    if isinstance(asked, Path):
        return of_file(run, asked, out_of_sample=options.out_of_sample)
    recording = run.folder / RECORDING
    if asked in (None, *KINDS) and recording.exists():
        return of_recording(run, recording, options)
    if asked in ("window", "all"):
        raise UserError(
            f"--probabilities {asked}: {run.folder} has no {RECORDING}; leave it out to use the final model, or repeat "
            "the run with audit.record=true"
        )
    return of_final_model(run, None if asked == "final" else UNRECORDED)


def of_recording(run: AuditedRun, path: Path, options: Options) -> Table:
    """The probabilities that the run recorded: those asked for, else those that the test set chooses.

    Raises:
        UserError: if the file is damaged or of another run.
    """
    kinds = _kinds(options)
    names = (*ONE, "client", "sample", "tested", "rounds", "window_rounds", *(f"test_{kind}" for kind in kinds))
    held = read_arrays(path, names)
    if len(held) < len(names) or any(held[name].size != 1 for name in ONE):
        raise UserError(f"{path} lacks arrays of a recording; repeat the run with audit.record=true")
    run.record.refuse_another(path, str(held["key"]))
    if str(held["federation"]) not in run.federation.fingerprints:
        raise UserError(f"{path} is of another federation than the run's; put back the file that the run wrote")
    _refuse_another_round(run, path, int(held["round"]))
    _refuse_other_samples(path, run.samples, held["client"], held["sample"])
    tests = {kind: held[f"test_{kind}"] for kind in kinds}
    for rows in tests.values():
        _refuse_other_tests(run, rows, path, held["tested"])
    labels = run.federation.dataset.test_labels[run.federation.tested]
    kind, choice = _chosen(run, tests, labels, options)
    rounds = {"window": held["window_rounds"], "all": held["rounds"], "final": held["round"].reshape(1)}[kind]
    source = ProbabilitySource(
        name=kind,
        rounds=tuple(int(number) for number in rounds.tolist()),
        in_sample=True,
        description=described(kind, len(rounds), int(held["round"])) + "; the model has seen these samples",
        choice=choice,
    )
    return source, InFile.open(path, kind), CleanSamples(labels, tests[kind].astype(np.float64))


def _kinds(options: Options) -> tuple[str, ...]:
    """Which of the means over models to choose from: the one that was asked for, or all."""
    asked = options.probabilities
    return (asked,) if isinstance(asked, str) and asked in KINDS else KINDS


def _chosen(
    run: AuditedRun, tests: Mapping[str, NDArray[Any]], labels: NDArray[np.int64], options: Options, times: int = 1
) -> tuple[str, Choice | None]:
    """The kind to take: the only one that there is, or the one that ranks spoiled test ``labels`` [M] best."""
    if len(tests) == 1:
        return next(iter(tests)), None
    choice = choose(tests, labels, options.score, run.record.data_seed, times)
    return choice.taken, choice


def described(kind: str, count: int, last: int) -> str:
    """Which models the probabilities are of, in words.

    >>> described("window", 28, 56), described("all", 1, 56), described("final", 1, 56)
    ('average of 28 early rounds', 'average of 1 round', 'final model, after round 56')
    """
    if kind == "final":
        return f"final model, after round {last}"
    return f"average of {counted(count, 'early round' if kind == 'window' else 'round')}"


def of_final_model(run: AuditedRun, note: str | None) -> Table:
    """The probabilities of ``model.pt``.

    Each client's samples are scored apart: a batch with others may give other last bits than the client alone has.

    Raises:
        UserError: if there is none.
    """
    source, network, test = final_model(run, note)
    parts = np.split(run.position, np.flatnonzero(np.diff(run.samples.client)) + 1)
    images = run.federation.dataset.train
    return source, InMemory(np.concatenate([scored(network, images, part) for part in parts])), test


def final_model(run: AuditedRun, note: str | None) -> tuple[ProbabilitySource, Network, CleanSamples]:
    """The model of ``model.pt``, and how it scores the test set.

    Raises:
        UserError: if there is none.
    """
    if not (run.folder / model_file.NAME).exists():
        raise UserError(
            f"{run.folder} has neither {RECORDING} nor {model_file.NAME}: repeat the run with audit.record=true and "
            "products=true"
        )
    model = ModelFile.load(run.folder)
    _refuse_another_round(run, run.folder / model_file.NAME, model.round)
    network, data = model.network(run.config_dir), run.federation.dataset
    source = ProbabilitySource(
        name="final",
        rounds=(model.round,),
        in_sample=True,
        description=described("final", 1, model.round) + "; the model has seen these samples",
        note=note,
    )
    tested = run.federation.tested
    return (
        source,
        network,
        CleanSamples(data.test_labels[tested], scored(network, data.test, tested).astype(np.float64)),
    )


def scored(network: Network, images: Images, position: NDArray[np.int64]) -> NDArray[np.float32]:
    """The model's probabilities [n, K] of the images at ``position`` [n]."""
    rows = np.empty((len(position), network.num_classes), np.float32)
    for start in range(0, len(position), SCORED):
        part = torch.from_numpy(position[start : start + SCORED])
        rows[start : start + SCORED] = F.softmax(network.outputs(images, part).double(), dim=1).numpy()
    return rows


def of_folds(run: AuditedRun, options: Options, report: Callable[[str], None]) -> Table:
    """The probabilities of models that have not seen the sample.

    Raises:
        UserError: if the run cannot be divided so.
    """
    from flnl.audit.folds import out_of_fold

    number = 5 if options.folds is None else options.folds
    folds = out_of_fold(run, number, options.by, report)
    labels = np.tile(run.federation.dataset.test_labels[run.federation.tested], number)
    tests = {
        kind: np.concatenate([getattr(fold.probabilities, f"test_{kind}") for fold in folds])
        for kind in _kinds(options)
    }
    kind, choice = _chosen(run, tests, labels, options, number)
    rounds = [_rounds_of(fold.probabilities, kind) for fold in folds]
    means = dict.fromkeys(  # folds may differ where clients have lost all of their samples
        described(kind, len(one), fold.probabilities.round) for one, fold in zip(rounds, folds, strict=True)
    )
    source = ProbabilitySource(
        name="folds",
        rounds=tuple(sorted({number for one in rounds for number in one})),
        in_sample=False,
        description=f"{number} folds by {options.by}, {' or '.join(means)}; no model has seen the sample that it "
        "scores",
        choice=choice,
    )
    values = np.empty((len(run.samples), folds[0].probabilities.window.shape[1]), np.float32)
    model = np.empty(len(run.samples), np.int64)
    for place, fold in enumerate(folds):
        values[fold.index], model[fold.index] = getattr(fold.probabilities, kind), place
    return source, InMemory(values), CleanSamples(labels, tests[kind].astype(np.float64), number, model)


def _rounds_of(probabilities: Probabilities, kind: str) -> list[int]:
    """The evaluated rounds of which probabilities of a kind are the mean."""
    rounds: list[int] = {
        "window": probabilities.window_rounds.tolist(),
        "all": probabilities.rounds.tolist(),
        "final": [probabilities.round],
    }[kind]
    return rounds


def of_file(run: AuditedRun, path: Path, *, out_of_sample: bool) -> Table:
    """The probabilities of a user's file: ``pred_probs`` [N, K] of the samples that ``client`` and ``sample`` name.

    ``test_pred_probs`` [M, K], of the test samples in their order, may be left out.

    Raises:
        UserError: if it cannot be read, or names other samples.
    """
    held = read_arrays(path, ("client", "sample", "test_pred_probs"))
    if missing := [name for name in ("client", "sample") if name not in held]:
        raise UserError(f"{path} has no array {missing[0]!r}; it should have pred_probs [N, K], client and sample [N]")
    table: ProbabilityTable = InFile.open(path, "pred_probs")
    order = _order(path, run.samples, held["client"], held["sample"])
    if table.shape[0] != len(order):
        raise UserError(f"{path}: pred_probs has {table.shape[0]} rows for {len(order)} samples")
    if not np.array_equal(order, np.arange(len(order))):
        table = InMemory(np.concatenate(list(table.blocks()))[order])
    seen = "no model has seen the sample that it scores" if out_of_sample else "the model may have seen these samples"
    source = ProbabilitySource(path.name, (), not out_of_sample, f"{path.name}; {seen}")
    test = held.get("test_pred_probs")
    if test is None:
        return source, table, None
    tested = run.federation.tested
    _refuse_other_tests(run, test, path, tested)
    return source, table, CleanSamples(run.federation.dataset.test_labels[tested], test.astype(np.float64))


def _refuse_other_tests(run: AuditedRun, probabilities: NDArray[Any], path: Path, tested: NDArray[Any]) -> None:
    if not np.array_equal(tested, run.federation.tested):
        raise UserError(f"{path} is of other test samples than the run's; repeat the run with audit.record=true")
    if probabilities.dtype.kind != "f" or probabilities.ndim != 2 or len(probabilities) != len(tested):
        raise UserError(
            f"{path}: its probabilities of test samples are {probabilities.dtype} {list(probabilities.shape)}; they "
            f"should be float [{len(tested)}, {len(run.federation.dataset.classes)}]"
        )


def _refuse_another_round(run: AuditedRun, path: Path, rounds: int) -> None:
    """Refuse a file of the run from an earlier round."""
    if rounds != run.record.rounds:
        raise UserError(
            f"{path} was written after round {rounds}, and the run has {run.record.rounds}; put back the file "
            "that the run wrote"
        )


def _refuse_other_samples(path: Path, samples: LabelledSamples, client: NDArray[Any], name: NDArray[Any]) -> None:
    if not np.array_equal(_order(path, samples, client, name), np.arange(len(samples))):
        raise UserError(
            f"{path} has the samples in another order than labels.csv; put back the file that the run wrote"
        )


def _order(path: Path, samples: LabelledSamples, client: NDArray[Any], name: NDArray[Any]) -> NDArray[np.int64]:
    """The row [N] of each sample in the file.

    Raises:
        UserError: if a sample has no row, or two, or a row has no sample.
    """
    if client.ndim != 1 or client.shape != name.shape:
        raise UserError(f"{path}: client {list(client.shape)} and sample {list(name.shape)} should be of one length")
    if np.array_equal(client, samples.client) and name.tolist() == list(samples.name):
        return np.arange(len(samples))
    # Who makes a file may know clients by their names or, where these are no numbers, by their numbers in the run.
    by_number = client.dtype.kind in "iu" and not all(owner.isdecimal() for owner in samples.client_names or ())
    owners = map(str, samples.client.tolist()) if by_number else samples.owner
    keys: Sequence[tuple[str, str]] = list(zip(map(str, client.tolist()), map(str, name.tolist()), strict=True))
    ours = list(zip(owners, map(str, samples.name), strict=True))
    row: dict[tuple[str, str], int] = {}
    for number, key in enumerate(keys):
        if row.setdefault(key, number) != number:
            raise UserError(f"{path} has client {key[0]}, sample {key[1]} twice")
    unknown = row.keys() - set(ours)
    if unknown:
        key = min(unknown, key=lambda one: row[one])
        raise UserError(f"{path} has client {key[0]}, sample {key[1]}, which the run has not")
    for key in ours:
        if key not in row:
            raise UserError(f"{path} has no row for client {key[0]}, sample {key[1]}")
    return np.array([row[key] for key in ours], np.int64)
