"""One run from its folder to its record: what is assembled, what goes on from before, what is written down.

``open_session`` reads downhill from the configuration to a state that the loop can take.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import threadpoolctl
import torch
from omegaconf import DictConfig, OmegaConf

from flnl.config import compose, identity
from flnl.config.compose import Training
from flnl.config.registry import named, option_of, stored_name
from flnl.core.credentials import redacted, redacted_in
from flnl.core.errors import UserError
from flnl.core.method import Method, assemble
from flnl.core.parts import Counters, Executor, FederatedState, Params, RoundResult, described
from flnl.data.federation.build import Federation, from_config
from flnl.engine import loop, model_file
from flnl.engine.executors import auto
from flnl.engine.loop import NonFiniteError
from flnl.engine.model_file import ModelFile
from flnl.engine.network import Network, fabric_for, initial_params
from flnl.evaluation import label_table
from flnl.evaluation.evaluator import FIRST_CLIENTS, Evaluator, summarise
from flnl.evaluation.label_table import LabelTable
from flnl.forgiving import forgiven
from flnl.run import checkpoint, progress
from flnl.run.folder import RunFolder, next_in_order, open_folder
from flnl.run.record import Mirror, Record, environment
from flnl.storage.atomic import write_atomically
from flnl.storage.disk import DiskFullError

log = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 60.0
GIB = 2**30

GROWS = ("rounds", *(f.name for f in fields(Counters)), "bytes", "wall_time_s")
"""What a record has beside its metrics that grows with the run; W&B's summary shows it."""

UPPER_BOUND = "upper bound, no method: it is given the truth about its clients' labels"

OF_A_PROCESS = ("key", "rounds", "overrides", "commit", "versions", "threads", "memory_format", "device", "executor")
"""What a record says of each process that had a part in a run."""


class Session:
    """A run in its folder. Entering starts the record; leaving releases the folder."""

    def __init__(
        self,
        cfg: DictConfig,
        folder: RunFolder,
        method: Method,
        federation: Federation,
        executor: Executor,
        evaluator: Evaluator,
        state: FederatedState,
        seconds: float,
        about: Mapping[str, Any],
        initial: Params,
        lines: Mapping[str, Any],
    ) -> None:
        self.cfg, self.folder = cfg, folder
        self.method, self.federation, self.executor, self.evaluator = method, federation, executor, evaluator
        self.state, self._initial = state, initial
        self.rounds = method.length(len(federation.with_data))
        self._record = Record(folder.path, about)
        self._earlier_seconds, self._started = seconds, time.monotonic()
        self._saved, self._saved_round = time.monotonic(), state.round
        self._known_lines = lines  # their checksums at the checkpoint
        self._evaluations: list[Mapping[str, float]] = []
        self._mirror: Mirror | None = None
        self.unsynchronised: str | None = None  # the offline folder of W&B, once it is closed

    def __enter__(self) -> Self:
        try:
            return self._start()
        except BaseException:
            self.release()
            raise

    def _start(self) -> Self:
        self._evaluations = list(self._record.go_on_after(self.state.round, self._known_lines))
        (self.folder.path / "error.log").unlink(missing_ok=True)
        checkpoint.forget_after(self.folder.path / "checkpoints", self.state.round)
        self._record.result("interrupted", **self._grown())  # what a killed run must say; it knows of no line cut below
        self._record.cut()
        wandb = compose.Wandb(**OmegaConf.to_container(self.cfg.wandb, resolve=True))  # type: ignore[arg-type]
        about = self._record.about
        parts = (stored_name(about["config"][group]["_target_"]) for group in ("partition", "noise"))
        scenario = " ".join((self.federation.dataset.name, *parts))
        self._mirror = Mirror.open(
            wandb,
            self.folder.path,
            about["key"],
            about["config"],
            group=wandb.group or scenario,
            job_type=self.method.name,
            name=f"{self.method.title} {scenario} seed {self.cfg.seed}",
            tags=wandb.tags,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def release(self) -> None:
        """End what works for the run, and let others have its folder."""
        try:
            self.executor.close()
        finally:
            self.folder.lock.release()

    # ------------------------------------------------------------------------------------------------------ running

    def federated(self) -> tuple[Method, Federation, Executor, Evaluator, FederatedState, loop.Settings]:
        """What the loop takes."""
        cfg = self.cfg
        training = Training(**OmegaConf.to_container(cfg.train, resolve=True))  # type: ignore[arg-type]
        settings = loop.Settings(cfg.seed, training, cfg.eval.every, cfg.on_nonfinite, cfg.eval.cohort, self._initial)
        return self.method, self.federation, self.executor, self.evaluator, self.state, settings

    def results(self) -> Iterator[RoundResult]:
        """The rounds that are left; none where ``max_rounds`` has been reached before."""
        return iter(()) if self.enough else loop.run(*self.federated())

    @property
    def over(self) -> bool:
        """Whether the method has come to its end."""
        return self.state.round >= self.rounds

    def demand_training(self) -> None:
        """Refuse to call a run finished that has learned nothing.

        Raises:
            NonFiniteError: if every local training of the whole run was left out.
        """
        counters = self.state.counters
        if 0 < counters.participations == counters.left_out:
            raise NonFiniteError(
                f"all {counters.left_out:,} local trainings came back with non-finite parameters and were left out, so "
                f"the model has learned nothing: try a smaller train.lr (it is {self.cfg.train.lr:g}) in a new run, or "
                "on_nonfinite=stop to end at the first of them"
            )

    @property
    def enough(self) -> bool:
        """Whether to leave here: at the end, or at ``max_rounds``."""
        return self.over or (self.cfg.max_rounds is not None and self.state.round >= self.cfg.max_rounds)

    def log(self, result: RoundResult) -> None:
        """Write down a round."""
        self.state = result.state
        if result.evaluation is not None:
            found = self.evaluator.estimates(result.state)
            result = replace(result, evaluation={**result.evaluation, **found})
        shown = self._record.round(result, self.seconds)
        if result.evaluation is not None:
            self._evaluations.append(result.evaluation)
        if self._mirror is not None:
            self._mirror.log(shown, result.state.round)

    def keep(self, *, now: bool) -> None:
        """Save the state where that is due, or ``now``."""
        state, every = self.state, self.cfg.checkpoint.every
        due = time.monotonic() - self._saved >= CHECKPOINT_SECONDS if every is None else state.round % every == 0
        if not (due or now) or state.round == self._saved_round:
            return
        about = self._record.about
        self._record.sync()
        known = about["key"], about["federation"], self.seconds, about["executor"], self._record.checksums
        saved = checkpoint.Checkpoint(state, *known)
        checkpoint.save(self.folder.path / "checkpoints", saved, self.cfg.checkpoint.keep)
        self._saved, self._saved_round = time.monotonic(), state.round

    # ------------------------------------------------------------------------------------------------------- ending

    @property
    def seconds(self) -> float:
        """Seconds of work on this run, earlier processes included."""
        return self._earlier_seconds + time.monotonic() - self._started

    def _grown(self) -> dict[str, Any]:
        """The part of the result that grows with the run."""
        counters = self.state.counters
        return {
            "rounds": self.state.round,
            "checkpoint": self._saved_round,
            "metrics": {
                **summarise(self._evaluations),
                **self.evaluator.labels(self.state),
                **self.evaluator.shared(self.state),
            },
            **asdict(counters),
            "bytes": counters.bytes_down + counters.bytes_up,
            "wall_time_s": round(self.seconds, 3),
        }

    def close(self, status: str) -> dict[str, Any]:
        """Write the products, the result and the figures, and end the mirror.

        Somebody waits for an interrupted run to leave: it writes its result alone.
        """
        waited_for = status == "interrupted"
        if self.cfg.products and not waited_for:
            self._products()
        seen = {"clients": self.evaluator.clients(self.state), "selection": [] if waited_for else self._selection()}
        record = self._record.result(status, **self._grown(), **{name: rows for name, rows in seen.items() if rows})
        if self.cfg.figures and not waited_for:
            self._draw()
        self._end_mirror(record, failed=False)
        return record

    def _selection(self) -> list[dict[str, Any]]:
        """What the batch rule would make of the first clients' samples now; what fails costs a warning."""
        rows: list[dict[str, Any]] = []
        with forgiven(log, "what the clients select could not be recorded"):
            method, federation, executor, evaluator, state, settings = self.federated()
            rule = method.at(max(state.round - 1, 0), len(federation.with_data))[0].batch
            first = federation.with_data[:FIRST_CLIENTS]
            rows += evaluator.selection(rule, loop.next_tasks(method, federation, executor, state, settings, first))
        return rows

    def _products(self) -> None:
        """Write ``model.pt`` and ``labels.csv``; what fails is said in one line and hides no run.

        Raises:
            DiskFullError: with no space for them the run is not finished: it can go on to its end later.
        """
        products: dict[str, Callable[[], ModelFile | LabelTable]] = {
            model_file.NAME: self._model_file,
            label_table.NAME: lambda: self.evaluator.table(self.shown),
        }
        for name, make in products.items():
            with forgiven(log, f"{self.folder.path / name} could not be written"):
                make().save(self.folder.path / name)

    @property
    def shown(self) -> FederatedState:
        """The state with the model that was evaluated in the place of the one that would be sent next."""
        params = loop.shown(self.method, self.state, len(self.federation.with_data))
        return replace(self.state, server=replace(self.state.server, params=params))

    def _model_file(self) -> ModelFile:
        data, about = self.federation.dataset, self._record.about
        return ModelFile(
            weights=self.shown.server.params,
            classes=list(data.classes),
            model=named(about["config"]["model"]),
            shape=list(data.train.shape),
            normalisation=model_file.describe(data.transform),
            stored=str(data.train.read(torch.zeros(1, dtype=torch.int64)).dtype).removeprefix("torch."),
            dataset=data.name,
            key=about["key"],
            round=self.state.round,
        )

    def _draw(self) -> None:
        """Draw the figures; what cannot be drawn costs a warning and nothing else.

        Raises:
            DiskFullError: if there is no space for them.
        """
        files: list[Path] = []
        with forgiven(log, f"the figures of {self.folder.path} could not be drawn"):
            from flnl.figures import drawing

            files = drawing.save(self.folder.path)
        if self._mirror is not None and files:
            self._mirror.images(files, self.state.round)

    def fail(self, error: BaseException, trace: str) -> None:
        """Write down what went wrong, where somebody will look."""
        record: dict[str, Any] = {}
        try:
            write_atomically(self.folder.path / "error.log", redacted(trace).encode(errors="backslashreplace"))
            failure = redacted(f"{type(error).__name__}: {error}")
            record = self._record.result("failed", error=failure, **self._grown())
        except DiskFullError as second:
            log.debug("%s, either", second)
        except Exception as second:
            log.warning("the failure could not be written to %s (%s)", self.folder.path, second)
        self._end_mirror(record, failed=True)

    def _end_mirror(self, record: Mapping[str, Any], *, failed: bool) -> None:
        if self._mirror is None:
            return
        grown = {name: record[name] for name in GROWS if name in record}
        self.unsynchronised = self._mirror.close(failed=failed, summary={**grown, **record.get("metrics", {})})
        self._mirror = None


@dataclass(frozen=True)
class Claim:
    """A run's folder, locked, and what was settled before it was: the method, the key, the configuration."""

    folder: RunFolder
    method: Method
    key: str
    plain: Mapping[str, Any]


def claim(cfg: DictConfig, words: Sequence[str], job: Path | None) -> Claim:
    """Check that the method's parts fit and take the run's folder; costs no data.

    Raises:
        UserError: for what the user can mend.
    """
    plain = compose.resolved(cfg)
    key = identity.run_key(plain)
    method = assemble(compose.build(cfg.method), option_of)
    _refuse_rounds(cfg, words, method)
    if not method.length(1):
        raise UserError(
            f"method={method.name} has no round to run: give rounds, or the lengths of its stages, above zero"
        )
    folder, decision = open_folder(
        output=cfg.output, output_root=cfg.output_root, resume=cfg.resume, key=key, plain=plain, job=job
    )
    if decision:
        progress.opening([decision])
    return Claim(folder, method, key, plain)


def open_session(cfg: DictConfig, words: Sequence[str], claimed: Claim) -> Session:
    """Assemble a run and find the state that it starts from.

    Raises:
        UserError: for what the user can mend; a folder made for the run is taken away again.
    """
    torch.set_num_threads(cfg.threads)
    threadpoolctl.threadpool_limits(cfg.threads)
    try:
        return _assemble(cfg, words, claimed)
    except BaseException:
        claimed.folder.lock.release()
        if claimed.folder.earlier is None:
            _take_away(claimed.folder.path)
        raise


def _assemble(cfg: DictConfig, words: Sequence[str], claimed: Claim) -> Session:
    folder, method, key = claimed.folder, claimed.method, claimed.key
    fabric = fabric_for(cfg.device, cfg.precision)
    federation = from_config(cfg, Path(cfg.cache).expanduser())
    data = federation.dataset
    module, params = initial_params(lambda: compose.build(cfg.model)(data.train.shape, data.num_classes), cfg.seed)
    network = Network(module, data.transform, data.num_classes, fabric, cfg.memory_format)
    params = {
        name: p.to(network.device, network.dtype if p.is_floating_point() else None) for name, p in params.items()
    }
    evaluator = Evaluator(federation, network, method, cfg.eval.memorization)
    evaluator.aid(method.asks)  # what there is not is said now, not after rounds
    found = None
    if folder.earlier is not None:
        recorded = folder.earlier.get("checkpoint")
        last = recorded if isinstance(recorded, int) else 0
        found = checkpoint.newest(folder.path / "checkpoints", network.device, last)
    began = (found.executor if found is not None else {}) or (folder.earlier or {}).get("executor")
    state, seconds = loop.initial_state(params), 0.0
    lines: Mapping[str, Any] = {}
    if found is not None:
        state, seconds, lines = _restored(found, federation, network, folder), found.seconds, found.lines
    work = auto.Work.of(cfg, method, network, len(federation.with_data))
    executor, chosen = auto.settled(cfg, work, network, began)
    about = {
        "key": key,
        "key_format": identity.FORMAT,
        "identity": identity.identity(claimed.plain),
        "config": redacted_in(claimed.plain),
        "overrides": redacted_in(list(words)),
        "stages": [stage.describe() for stage in method.stages],
        "federation": federation.fingerprint,
        "classes": list(data.classes),
        "threads": torch.get_num_threads(),
        "memory_format": network.layout,
        "device": str(network.device),
        "executor": described(executor),
        "started": time.time(),
        "order": next_in_order(cfg.output_root) if folder.earlier is None else folder.earlier.get("order"),
        **environment(),
    }
    if method.upper_bound:
        about["upper_bound"] = UPPER_BOUND
    if folder.earlier is not None:
        about["started"] = folder.earlier.get("started", about["started"])
        about["earlier"] = [*folder.earlier.get("earlier", []), {k: folder.earlier.get(k) for k in OF_A_PROCESS}]
        if found is not None:
            _say_what_differs(folder.earlier, about)
        progress.opening([f"going on after round {state.round}"])
        if found is not None and not lines:
            progress.opening(["note: its checkpoint has no checksums of what the run wrote down; that was not checked"])
    shelf, limit = checkpoint.client_shelf(folder.path), cfg.client_memory * GIB
    state = replace(state, clients=state.clients.on(shelf, limit))
    progress.opening([_setting(cfg, federation), chosen, f"in {folder.path}"])
    progress.opening([f"note: files of {data.name} are known by path and size alone"] if federation.by_names else [])
    progress.opening([UPPER_BOUND] if method.upper_bound else [])
    progress.stages(method)
    progress.opening([f"warning: {line}" for line in method.doubts()])
    sizes = {client: federation.sizes[client] for client in federation.with_data}
    progress.opening([f"note: {said}" for exchange in method.exchange.values() if (said := exchange.doubt(sizes))])
    write_atomically(folder.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(about["config"])).encode())
    return Session(cfg, folder, method, federation, executor, evaluator, state, seconds, about, params, lines)


def _restored(
    found: checkpoint.Checkpoint, federation: Federation, network: Network, folder: RunFolder
) -> FederatedState:
    assert folder.earlier is not None
    same = found.federation in (federation.fingerprint, federation.names_fingerprint)
    keys = {one.get("key") for one in (folder.earlier, *folder.earlier.get("earlier", ()))}  # a key has changed format
    if found.key not in keys or not same:
        earlier = folder.earlier.get("config", {}).get("dataset", {}).get("fingerprint")
        hint = (
            "; it was begun with dataset.fingerprint=contents" if federation.by_names and earlier == "contents" else ""
        )
        raise UserError(
            f"{folder.path}: its checkpoint was made on another federation than the one drawn now; the data's files, "
            f"numpy or the code that draws have changed since, so it cannot go on as the same run{hint}"
        )
    if found.federation == federation.names_fingerprint and not federation.by_names:
        progress.opening(["note: its checkpoint knows files by path and size; what was in them then was not verified"])
    params = {name: p.to(network.device) for name, p in found.state.server.params.items()}
    return replace(found.state, server=replace(found.state.server, params=params))


def _say_what_differs(earlier: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    both = {k: (earlier.get(k), about[k]) for k in ("threads", "memory_format", "device")}
    both["executor"] = auto.shown(earlier.get("executor", {})), auto.shown(about["executor"])
    changed = [f"{k} {then} then, {now} now" for k, (then, now) in both.items() if then != now]
    if changed:
        progress.opening([f"note: {', '.join(changed)}; the last bits of the numbers may differ from an unbroken run"])


def _setting(cfg: DictConfig, federation: Federation) -> str:
    sizes = [federation.sizes[c] for c in federation.with_data]
    return (
        f"{federation.dataset.name}: {len(sizes)} clients of {min(sizes)} to {max(sizes)} samples; "
        f"protocol {cfg.protocol.name}: lr {cfg.train.lr}, batch {cfg.train.batch_size}, {cfg.train.epochs} epochs"
    )


def _refuse_rounds(cfg: DictConfig, words: Sequence[str], method: Method) -> None:
    """``rounds`` is for methods of one stage; with others it would be read by nobody."""
    if len(method.stages) == 1 or not any(w.lstrip("+").split("=")[0] == "rounds" for w in words):
        return
    raw = OmegaConf.to_container(cfg.method.stages, resolve=False)
    assert isinstance(raw, dict)
    lengths = []
    for stage in method.stages:
        unit = "passes" if stage.rounds is None else "rounds"
        source = str(raw[stage.name][unit]).strip("${}")
        lengths.append(f"{source}={stage.passes if stage.rounds is None else stage.rounds} {unit} of {stage.name}")
    raise UserError(
        f"rounds is for methods of one stage; method={method.name} has {', '.join(lengths)}: set those instead"
    )


def _take_away(folder: Path) -> None:
    """Remove a folder that holds nothing but its lock."""
    try:
        if {p.name for p in folder.iterdir()} <= {".lock"}:
            (folder / ".lock").unlink(missing_ok=True)
            folder.rmdir()
    except OSError:
        log.debug("%s stays", folder)
