"""Out-of-sample probabilities: the run is repeated without a part of its samples, once for each part."""

from __future__ import annotations

import hashlib
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import threadpoolctl
import torch
from omegaconf import DictConfig

from flnl.audit.audited_run import AuditedRun
from flnl.audit.options import By
from flnl.config import compose
from flnl.config.check import check_config, check_machine
from flnl.config.recorded import recorded_configuration
from flnl.config.registry import option_of, restored, withheld
from flnl.console.terminal import duration
from flnl.core.errors import UserError
from flnl.core.images import Indices
from flnl.core.method import assemble
from flnl.core.streams import stream
from flnl.data.federation.build import Federation
from flnl.engine import loop
from flnl.engine.executors import auto
from flnl.engine.placement import placement_for
from flnl.engine.planned import Evaluations
from flnl.evaluation.evaluator import Evaluator
from flnl.evaluation.probabilities import Probabilities
from flnl.evaluation.recording import Recorder
from flnl.record.run import RESULT
from flnl.run.checkpoint import client_store
from flnl.run.opening import GIB, initial_network

log = logging.getLogger(__name__)

FOLDER = "folds"
"""In the run's folder: what each fold has given, for audits with other options."""


@dataclass(frozen=True, eq=False)
class Fold:
    """Samples that a model has not seen, and its probabilities of them and of the test set."""

    index: Indices  # [n], in the order of labels.csv
    probabilities: Probabilities


def out_of_fold(run: AuditedRun, folds: int, by: By, report: Callable[[str], None]) -> list[Fold]:
    """Train a model for each fold, or read what an earlier audit of this run has kept of it.

    Args:
        run: the run.
        folds: their number k.
        by: what is divided: each client's samples, or the clients.
        report: is told the progress, in lines.

    Raises:
        UserError: if there are too few samples or clients, or the run cannot be repeated.
        NonFiniteError: if every local training of a fold diverged.
    """
    _refuse_pretrained(run)
    assigned = assignment(run.federation, run.record.data_seed, folds, by)
    cfg: DictConfig | None = None
    trained = run
    done = []
    for number in range(folds):
        index = np.flatnonzero(assigned == number)
        file = run.folder / FOLDER / f"{folds}-{by}" / f"{number}.npz"
        fingerprint = hashlib.sha256(f"{run.federation.fingerprint} {number} {folds} {by}".encode()).hexdigest()
        kept = _kept(file, run.record.key, fingerprint, run, index)
        if kept is None:
            if cfg is None:
                cfg, trained = _configuration(run), run.as_trained()
            started = time.monotonic()
            kept = train_without(cfg, trained, index, fingerprint)
            report(f"fold {number + 1} of {folds}: trained in {duration(time.monotonic() - started)}")
            _keep(kept, file)
        done.append(Fold(index, kept))
    return done


def assignment(federation: Federation, seed: int, folds: int, by: By) -> Indices:
    """The fold [N] of each sample, in the order of ``labels.csv``.

    By samples, the folds of each client differ in size by at most one, and clients begin with different folds.

    Raises:
        UserError: if a fold would be empty.
    """
    clients = federation.with_data
    sizes = federation.counts
    if by == "clients":
        if folds > len(clients):
            raise UserError(f"--folds {folds} --by clients: take at most as many as clients, {len(clients)}")
        place = stream(seed, "audit clients").permutation(len(clients))
        return np.repeat(place % folds, sizes)
    if folds > sum(sizes):
        raise UserError(f"--folds {folds}: take at most as many as samples, {sum(sizes)}")
    parts = []
    for number, (client, size) in enumerate(zip(clients, sizes, strict=True)):
        fold = np.empty(size, np.int64)
        fold[stream(seed, "audit", client).permutation(size)] = (np.arange(size) + number) % folds
        parts.append(fold)
    assigned = np.concatenate(parts)
    if empty := folds - len(np.unique(assigned)):
        raise UserError(
            f"--folds {folds}: {empty} of them would have no sample, since the largest client has {max(sizes)}; take "
            "at most that many"
        )
    return assigned


def _refuse_pretrained(run: AuditedRun) -> None:
    """Refuse a run whose model has values that a record cannot set, such as the weights that it started from.

    Raises:
        UserError: naming the key.
    """
    node = run.record.config["model"]
    for key, value in withheld(restored("model", node, str(run.folder / RESULT), run.config_dir), node).items():
        raise UserError(
            f"--folds: the run has model.{key}={value}, which a fold cannot fetch or read again, and from scratch it "
            "would not repeat the run: use --probabilities window, all or final"
        )


def train_without(cfg: DictConfig, run: AuditedRun, index: Indices, fingerprint: str) -> Probabilities:
    """Repeat the run without the samples at ``index`` [n], and score these.

    Raises:
        NonFiniteError: if every local training diverged, so that there is nothing to score with.
    """
    with _threads(cfg.threads):
        return _trained_without(cfg, run, index, fingerprint)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Compute with so many threads, and then with as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        with threadpoolctl.threadpool_limits(number):
            yield
    finally:
        torch.set_num_threads(before)


def _trained_without(cfg: DictConfig, run: AuditedRun, index: Indices, fingerprint: str) -> Probabilities:
    held_out = np.zeros(len(run.position), np.bool_)
    held_out[index] = True
    trained = _restricted(run.federation, ~held_out, fingerprint)
    method, training = assemble(compose.build(cfg.method), option_of), compose.training(cfg)
    network, params = initial_network(cfg, method, trained.dataset, placement_for(cfg.device, cfg.precision))
    count = len(trained.with_data)
    scored, share = run.position[index], cfg.audit.window
    evaluations = Evaluations.of(method, count, cfg.eval.every).planned(method, count)
    recorder = Recorder(trained.dataset, scored, trained.tested, network, share, evaluations)
    evaluator = Evaluator(trained, network, method, recorder=recorder)
    work = auto.Work.of(cfg, method, training, network, trained.counts)
    executor, _ = auto.settled(cfg, work, network, None, run.folder)
    try:
        settings = loop.Settings(cfg.seed, training, cfg.eval.every, cfg.on_nonfinite, initial=params)
        state = loop.initial_state(params)
        with tempfile.TemporaryDirectory() as scratch:
            store = client_store(Path(scratch), network.device)
            state = replace(state, clients=state.clients.on(store, cfg.client_memory * GIB))
            for result in loop.rounds(loop.Federated(method, trained, executor, evaluator, settings), state):
                state = result.state
    finally:
        executor.close()
    if state.counters.learned_nothing:
        raise loop.NonFiniteError(
            f"all {state.counters.left_out:,} local trainings of a fold returned non-finite parameters and were left "
            "out, so its model has learned nothing, and its probabilities would say nothing of labels: audit without "
            "--folds, or repeat the run with a smaller train.lr"
        )
    network.load(loop.shown(method, state, count))
    return recorder.probabilities(
        client=run.samples.client[index],
        sample=np.array([run.samples.name[i] for i in index.tolist()]),
        key=run.record.key,
        federation=fingerprint,
        round=state.round,
    )


def _restricted(federation: Federation, kept: np.ndarray[tuple[int], np.dtype[np.bool_]], name: str) -> Federation:
    """The federation with only those of its clients' training samples that are ``kept`` [N]."""
    parts = np.split(kept, np.cumsum([len(part) for part in federation.clients])[:-1])
    clients = tuple(part[mask] for part, mask in zip(federation.clients, parts, strict=True))
    return replace(federation, clients=clients, fingerprint=name, names_fingerprint=None)


def _configuration(run: AuditedRun) -> DictConfig:
    """The configuration that repeats the run, restricted to what its record may choose.

    Raises:
        UserError: naming a value that it may not.
    """
    cfg = recorded_configuration(run.record.config, str(run.folder / RESULT), run.config_dir)
    check_config(cfg)
    check_machine(cfg)
    return cfg


def _kept(file: Path, key: str, fingerprint: str, run: AuditedRun, index: Indices) -> Probabilities | None:
    """What an earlier audit has kept of a fold; None if there is nothing, or it is of other samples."""
    if not file.is_file():
        return None
    try:
        kept = Probabilities.load(file)
    except UserError as error:
        log.warning("%s; the fold is trained again", error)
        return None
    same = (kept.key, kept.federation) == (key, fingerprint) and len(kept.client) == len(index)
    return kept if same and np.array_equal(kept.client, run.samples.client[index]) else None


def _keep(probabilities: Probabilities, file: Path) -> None:
    """Keep a fold for other audits of the run. If it cannot be written, only a warning is logged."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        probabilities.save(file)
    except OSError as error:
        log.warning("the fold could not be kept in %s: %s", file.parent, error)
