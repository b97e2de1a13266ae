"""A session: an open run's parts, state and record, from the first round to the last."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from omegaconf import DictConfig

from flnl.config import compose
from flnl.config.registry import named
from flnl.console.credentials import redacted
from flnl.core.errors import DiskFullError, forgiven
from flnl.core.execution import Executor, described
from flnl.core.fault import Fault
from flnl.core.payload import Params
from flnl.core.run_logger import LoggedRun
from flnl.core.state import Counters, FederatedState, RoundResult
from flnl.core.usage import Usage, Used
from flnl.data import preparations
from flnl.engine import loop, model_file, planned
from flnl.engine.loop import NonFiniteError
from flnl.engine.model_file import ModelFile
from flnl.evaluation import correction_warnings, probabilities
from flnl.evaluation.evaluator import FIRST_CLIENTS, Evaluator
from flnl.evaluation.probabilities import Probabilities
from flnl.record import label_table
from flnl.record.closing import summarise
from flnl.record.label_table import LabelTable
from flnl.record.run import RunRecord
from flnl.run import checkpoint, progress
from flnl.run.checkpoint import Checkpoint
from flnl.run.folder import RunFolder
from flnl.run.loggers.guarded import Loggers
from flnl.run.record import TABLE, Record
from flnl.run.run_name import group_of, name_of
from flnl.storage.atomic import write_atomically

log = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 60.0

GROWS = ("rounds", *(f.name for f in fields(Counters)), "bytes", "wall_time_s", "cpu_time_s", "peak_memory")
"""Keys of the record, besides its metrics, that grow with the run; W&B's summary shows them."""


@dataclass(frozen=True)
class Start:
    """Where a session begins: after the last checkpoint of earlier processes, if there is one."""

    initial: Params  # the model before the first round
    state: FederatedState
    seconds: float = 0.0  # working time of earlier processes
    usage: Usage | None = field(default_factory=Usage)  # of earlier processes; None if they did not record it
    lines: Mapping[str, Any] = field(default_factory=dict)  # checksums of the lines at the checkpoint, by file


class Session:
    """A run in its folder. Entering starts the record; leaving releases the folder."""

    def __init__(
        self,
        cfg: DictConfig,
        folder: RunFolder,
        about: RunRecord,
        evaluator: Evaluator,
        executor: Executor,
        start: Start,
    ) -> None:
        self.cfg, self.folder = cfg, folder
        self.method, self.federation = evaluator.method, evaluator.federation
        self.executor, self.evaluator, self._training = executor, evaluator, compose.training(cfg)
        self.state, self._start = start.state, start
        self.rounds = self.method.length(len(self.federation.with_data))
        self._about, self._record = about, Record(folder.path)
        self._started = time.monotonic()
        self._used, self._usage = Used(evaluator.network.device), Usage()
        self._saved, self._saved_round = time.monotonic(), self.state.round
        self._evaluations: list[Mapping[str, Any]] = []  # with their rounds
        self._corrected: int | None = None  # round of the first correction of labels
        self._checked: str | None = None  # the last stage whose first round here could be saved
        self._warned = False  # that most labels were changed
        self._undefined = 0  # training samples on which the final model's outputs are not finite
        self._loggers: Loggers | None = None
        self.unsynchronised: str | None = None  # W&B's offline folder, after closing

    def __enter__(self) -> Self:
        try:
            return self._begin()
        except BaseException:
            try:
                self.executor.close()
            finally:
                self.folder.abandon()
            raise

    def _begin(self) -> Self:
        rows = self._record.go_on_after(self.state.round, self._start.lines)
        self._evaluations = [row for row in rows if row["kind"] == "evaluation"]
        self._corrected = correction_warnings.first_correction(rows)
        (self.folder.path / "error.log").unlink(missing_ok=True)
        checkpoint.forget_after(self.folder.path / "checkpoints", self.state.round)
        self._record.result(self._grown("interrupted"))  # the status if killed; must precede cutting the lines
        self._record.cut()
        group = group_of(self.method.title, self.federation.dataset.name, self._about.overrides)
        logged = LoggedRun(
            folder=self.folder.path,
            key=self._about.key,
            config=self._about.config,
            name=name_of(group, self.cfg.seed),
            group=group,
            method=self.method.name,
        )
        self._loggers = Loggers(compose.build(self.cfg.logger), logged)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def release(self) -> None:
        """Close the executor and release the folder's lock."""
        try:
            self.executor.close()
        finally:
            self.folder.lock.release()

    # ------------------------------------------------------------------------------------------------------ running

    def federated(self) -> loop.Federated:
        """The loop's input, besides the state."""
        cfg = self.cfg
        settings = loop.Settings(
            *(cfg.seed, self._training, cfg.eval.every, cfg.on_nonfinite, cfg.eval.cohort, self._start.initial),
            Fault(**(cfg.get("fault") or {})),
        )
        return loop.Federated(self.method, self.federation, self.executor, self.evaluator, settings)

    def results(self) -> Iterator[RoundResult]:
        """Run the remaining rounds; none if ``max_rounds`` has been reached already."""
        return iter(()) if self.enough else loop.rounds(self.federated(), self.state)

    @property
    def epochs(self) -> list[float]:
        """Planned local epochs of every round."""
        return planned.epochs(self.method, self._training, self.federation.counts)

    @property
    def over(self) -> bool:
        """Whether all rounds of the method are done."""
        return self.state.round >= self.rounds

    def ends_stage(self, result: RoundResult) -> bool:
        """Whether the round, of which this is the result, was the last one of its stage, and another stage follows."""
        return self.method.at(self.state.round, len(self.federation.with_data))[0].name != result.stage

    def demand_training(self) -> None:
        """Check, at the end of a stage, that the run has trained at all.

        Raises:
            NonFiniteError: if every local training so far was left out.
        """
        counters = self.state.counters
        if counters.learned_nothing and counters.left_out == counters.unanswered:
            raise NonFiniteError(
                f"no site answered any of {counters.left_out:,} visits as it should, so the model has learned nothing: "
                "the warnings above say why"
            )
        if counters.learned_nothing:
            raise NonFiniteError(
                f"all {counters.left_out:,} local trainings returned non-finite parameters and were left out, so the "
                f"model has learned nothing: try a smaller train.lr (it is {self.cfg.train.lr:g}) in a new run, or "
                "on_nonfinite=stop to end at the first of them"
            )

    @property
    def enough(self) -> bool:
        """Whether to stop: all rounds are done, or ``max_rounds`` is reached."""
        return self.over or (self.cfg.max_rounds is not None and self.state.round >= self.cfg.max_rounds)

    def log(self, result: RoundResult) -> None:
        """Record a round."""
        if result.stage != self._checked:  # what parts keep may begin with a stage
            checkpoint.check(result.state)
            self._checked = result.stage
        if result.evaluation is not None:
            estimates = self.evaluator.estimates(result.state)
            result = replace(result, evaluation={**result.evaluation, **estimates})
        shown = self._record.round(result, self.seconds)
        rows: list[Mapping[str, Any]] = [
            {"kind": "round", "round": result.state.round, "correction": result.correction}
        ]
        if result.evaluation is not None:
            where = {"round": result.state.round, "stage": result.stage}
            rows.append({"kind": "evaluation", **where, **result.evaluation})
            self._evaluations.append(rows[-1])
        if self._corrected is None:
            self._corrected = correction_warnings.first_correction(rows)
        if result.correction is not None and not self._warned:
            self._warn_of_most(result.correction)
        if self._loggers is not None:
            self._loggers.log(shown, result.state.round)
        self.state = result.state

    def _warn_of_most(self, correction: Mapping[str, Any]) -> None:
        """Warn, once in this process, if this correction has left most labels changed."""
        changed = int(correction.get("changed", 0))
        if (line := correction_warnings.most_changed(changed, len(self.federation.held))) is not None:
            progress.warn(line)
            self._warned = True

    def keep(self, *, now: bool) -> None:
        """Save a checkpoint if one is due, or if ``now``."""
        state, every = self.state, self.cfg.checkpoint.every
        due = time.monotonic() - self._saved >= CHECKPOINT_SECONDS if every is None else state.round % every == 0
        if not (due or now) or state.round == self._saved_round:
            return
        self._record.sync()
        recorder = self.evaluator.recorder
        assert recorder is None or max(recorder.sums.rounds, default=0) <= state.round, "sums are those of the state"
        saved = Checkpoint(
            state,
            self._about.key,
            self.federation.fingerprint,
            self.seconds,
            described(self.executor),
            self._record.checksums,
            None if recorder is None else recorder.sums,
            self._used_so_far(),
        )
        checkpoint.save(self.folder.path / "checkpoints", saved, self.cfg.checkpoint.keep)
        self._write_table()
        self._saved, self._saved_round = time.monotonic(), state.round

    # ------------------------------------------------------------------------------------------------------- ending

    @property
    def seconds(self) -> float:
        """Working time of this run in seconds, including earlier processes."""
        return self._start.seconds + time.monotonic() - self._started

    def _used_so_far(self) -> Usage | None:
        """What this run has used, with its workers and in earlier processes; None if these did not record it."""
        self._usage = self._used.pop().after(self._usage)
        if self._start.usage is None:
            return None
        return self._usage.beside(self.executor.usage()).after(self._start.usage)

    def _grown(self, status: str) -> RunRecord:
        """The record with what grows with the run."""
        counters, usage = self.state.counters, self._used_so_far()
        return replace(
            self._about,
            status=status,
            rounds=self.state.round,
            checkpoint=self._saved_round,
            metrics={
                **summarise(self._evaluations),
                **self.evaluator.labels(self.state),
                **self.evaluator.shared(self.state),
            },
            **asdict(counters),
            bytes=counters.bytes_down + counters.bytes_up,
            wall_time_s=round(self.seconds, 3),
            cpu_time_s=None if usage is None else round(usage.cpu_seconds, 3),
            peak_memory=None if usage is None else usage.memory,
            peak_gpu_memory=None if usage is None else usage.gpu_memory or None,
        )

    def close(self, status: str) -> RunRecord:
        """Write the products, the figures and, once they are there, the result; and end the loggers.

        So a run that was killed before has not finished: resumed, it writes all of them. An interrupted run writes
        only its result, to exit quickly.
        """
        hurry = status == "interrupted"
        files = {} if hurry else self._products()
        grown, unreadable = self._grown(status), self._unreadable()
        ended = replace(
            grown,
            unreadable_images=unreadable,
            warnings=self._warnings(grown.metrics, unreadable),
            clients=self.evaluator.clients(self.state),
            selection=[] if hurry else self._selection(),
            files=files,
        )
        self._write_table()
        if self.cfg.figures and not hurry:
            self._draw(self._record.as_read(ended))
        record = self._record.result(ended)
        self._end_loggers(record, failed=False)
        return record

    def _warnings(self, numbers: Mapping[str, Any], black: Sequence[str]) -> list[str]:
        """What went wrong or the method may have harmed, one line each.

        Args:
            numbers: the metrics of the result.
            black: the files of images that could not be decoded.
        """
        labels = len(self.federation.held)
        unread = (
            f"{len(black):,} images could not be decoded and were read as black, such as {black[0]}" if black else None
        )
        lines = [
            unread,
            self._diverged(),
            correction_warnings.most_changed(int(numbers.get("changed", 0)), labels),
            None if self._corrected is None else correction_warnings.accuracy_fell(self._evaluations, self._corrected),
            correction_warnings.more_wrong(numbers, labels),
        ]
        return [line for line in lines if line is not None]

    def _diverged(self) -> str | None:
        """A warning if outputs of the final model are not finite, though its parameters are."""
        loss = self._evaluations[-1].get("test_loss", 0.0) if self._evaluations else 0.0  # None: in a file, of nan
        on = ["test samples"] if loss is None or not math.isfinite(loss) else []
        if self._undefined:
            on.append(
                f"{self._undefined:,} of {len(self.federation.held):,} training samples (nan in {label_table.NAME})"
            )
        if not on:
            return None
        return (
            f"the model has diverged: its outputs are not finite on {' and on '.join(on)}; try a smaller "
            f"train.lr (it is {self.cfg.train.lr:g}) in a new run"
        )

    def _unreadable(self) -> list[str]:
        """The files of images that could not be decoded when they were read."""
        data = self.federation.dataset
        read = [path for images in (data.train, data.test) for path in getattr(images, "unreadable", ())]
        return sorted(read)

    def _write_table(self) -> None:
        """Write ``metrics.csv``; other errors than a full disk are only logged."""
        with forgiven(log, f"{self.folder.path / TABLE} could not be written"):
            self._record.write_table()

    def _selection(self) -> list[dict[str, Any]]:
        """The batch rule's current selections on the first clients, for the record; an error is only logged."""
        rows: list[dict[str, Any]] = []
        with forgiven(log, "the clients' sample selections could not be recorded"):
            clients = self.federation.with_data
            rule = self.method.at(max(self.state.round - 1, 0), len(clients))[0].batch
            tasks = loop.next_tasks(self.federated(), self.state, clients[:FIRST_CLIENTS])
            rows += self.evaluator.selection(rule, tasks)
        return rows

    def _products(self) -> dict[str, str]:
        """Write ``model.pt``, ``labels.csv`` and ``probabilities.npz``; other errors than a full disk are only logged.

        Recorded probabilities of an earlier process are deleted if this one does not record any.

        Returns:
            The sha256 of the files that hold no checksum of their own, by name.

        Raises:
            DiskFullError: if there is no space for them; the run can be resumed and finished later.
        """
        products: dict[str, Callable[[], ModelFile | LabelTable | Probabilities]] = {}
        if self.cfg.products:
            products[model_file.NAME] = self._model_file
            if self.evaluator.has_labels:
                products[label_table.NAME] = self._label_table
            with forgiven(log, "the end of the run could not be told to all who take part"):
                self.evaluator.finish(self.shown)
        recorder = self.evaluator.recorder
        if recorder is not None and recorder.sums.rounds:
            products[probabilities.NAME] = lambda: self.evaluator.probabilities(self.shown, self._about.key)
        else:
            with forgiven(log, f"{self.folder.path / probabilities.NAME} of an earlier process could not be deleted"):
                (self.folder.path / probabilities.NAME).unlink(missing_ok=True)
        written: list[Path] = []
        checksums: dict[str, str] = {}
        for name, make in products.items():
            with forgiven(log, f"{self.folder.path / name} could not be written"):
                if (checksum := make().save(self.folder.path / name)) is not None:
                    checksums[name] = checksum
                written.append(self.folder.path / name)
        if self._loggers is not None:
            self._loggers.products([path for path in written if path.name != probabilities.NAME])
        return checksums

    @property
    def shown(self) -> FederatedState:
        """The state with the evaluated model in place of the model to send next."""
        params = loop.shown(self.method, self.state, len(self.federation.with_data))
        return replace(self.state, server=replace(self.state.server, params=params))

    def _label_table(self) -> LabelTable:
        table = self.evaluator.table(self.shown)
        self._undefined = int((~table.confidence.isfinite()).sum())
        return table

    def _model_file(self) -> ModelFile:
        data = self.federation.dataset
        return ModelFile(
            weights=self.shown.server.params,
            classes=list(data.classes),
            model=named(self._about.config["model"]),
            shape=list(data.train.shape),
            normalisation=preparations.described(data.transform),
            stored=str(data.train.read(torch.zeros(0, dtype=torch.int64)).dtype).removeprefix("torch."),
            dataset=data.name,
            key=self._about.key,
            round=self.state.round,
            networks=self.method.networks,
        )

    def _draw(self, record: RunRecord) -> None:
        """Draw the figures of a record; other errors than a full disk are only logged.

        Raises:
            DiskFullError: if there is no space for them.
        """
        files: list[Path] = []
        with forgiven(log, f"the figures of {self.folder.path} could not be drawn"):
            from flnl.figures import drawing

            files = drawing.save(record)
        if self._loggers is not None:
            self._loggers.images(files, self.state.round)

    def fail(self, error: BaseException, trace: str) -> None:
        """Record an error in ``error.log`` and ``result.json``."""
        record = RunRecord()
        try:
            write_atomically(self.folder.path / "error.log", redacted(trace).encode(errors="backslashreplace"))
            failure = redacted(f"{type(error).__name__}: {error}")
            record = self._record.result(replace(self._grown("failed"), error=failure))
            self._write_table()
        except DiskFullError as second:
            log.debug("the failure could not be written (%s)", second)
        except Exception as second:
            log.warning("the failure could not be written to %s (%s)", self.folder.path, second)
        self._end_loggers(record, failed=True)

    def _end_loggers(self, record: RunRecord, *, failed: bool) -> None:
        if self._loggers is None:
            return
        grown = {name: value for name in GROWS if (value := getattr(record, name)) is not None}
        self.unsynchronised = self._loggers.close(failed=failed, summary={**grown, **record.metrics})
        self._loggers = None
