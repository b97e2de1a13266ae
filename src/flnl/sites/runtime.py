"""A site's end: it checks what a server asks, runs jobs on its own samples, keeps its states, and answers.

A runtime needs no trust in the server beyond what its policy says: jobs are those of its own method, built of its own
classes, and what leaves is of the types that these parts declare.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from flnl import __version__
from flnl.audit.corrections import CORRECTED
from flnl.core.errors import UserError
from flnl.core.execution import ClientJob
from flnl.core.messages import Answered, Broadcast, ClientResult, ClientState, ClientTask, Samples
from flnl.core.payload import Params, Payload
from flnl.core.stage import Stage
from flnl.core.state import FederatedState, ServerState, Spilled
from flnl.core.stored import name_of
from flnl.data.dataset import Dataset
from flnl.data.federation.build import Federation
from flnl.data.preparations import described
from flnl.engine import model_file
from flnl.engine.entering import entered
from flnl.engine.jobs import Correct, Open
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.model_file import ModelFile
from flnl.evaluation.evaluator import Evaluator
from flnl.record import label_table
from flnl.sites import messages, recorded, wire
from flnl.sites.audit_messages import CountedLabels, PageWritten, Question
from flnl.sites.auditing import FOLDER as AUDIT_FOLDER
from flnl.sites.auditing import Corrected, Review, SiteAudit, step_of
from flnl.sites.messages import Parts, RefusedError
from flnl.sites.policy import TRIES, Ledger, Policy, revealed
from flnl.sites.shared import Built, built, key_of
from flnl.sites.states import Entry, Few, SiteStates
from flnl.sites.wire import WireError
from flnl.storage import secret_file
from flnl.storage.atomic import write_atomically

log = logging.getLogger(__name__)

SECRET, LEDGER, RUNS = "secret.key", "ledger.jsonl", "runs"
OPENING, SCORED_MODELS, QUESTIONS = "opened", "scored.json", "asked.json"
LAST_QUESTION, REVIEWED = "audited", "reviewed"
"""In a run's folder: the message that has opened it; digests of models that were scored, by message and round, and of
questions of audits, by step; the last message of an audit; an empty file once its corrected labels are those of a
review."""
AUDITS = 5
"""How often an audit of a run may count other samples."""
MOST_RUNS, OPEN = 20, 2
"""Runs that may begin with one key, and that are held in memory."""
PAGE = f"{AUDIT_FOLDER}/index.html"
LONGEST = 2000
"""Characters of a refusal: it may quote the server."""


@dataclass(frozen=True, eq=False)
class SiteData:
    """A site's samples and labels, and nothing of any other's."""

    name: str
    dataset: Dataset  # ``train`` and ``given`` are the site's samples; it has no truth
    held_out: Samples | None = None  # samples on which models are scored, and none is trained

    @property
    def samples(self) -> Samples:
        """The samples as methods see them."""
        assert self.dataset.given is not None, "a site's labels are given"
        data, people = self.dataset, self.dataset.people
        return Samples(
            data.train,
            torch.arange(len(data.train)),
            torch.from_numpy(data.given),
            None if people is None else torch.from_numpy(people),
        )

    def token(self, secret: bytes) -> str:
        """A text that is another one if samples, labels or classes are others, and tells nothing of them."""
        digest = getattr(self.dataset.train, "digest", lambda: b"")()
        assert self.dataset.given is not None
        about = repr((self.dataset.classes, len(self.dataset.train))).encode()
        if self.held_out is not None:
            about += self.held_out.given.numpy().tobytes()
        if self.dataset.people is not None:
            about += self.dataset.people.tobytes()
        return hmac.new(secret, about + digest + self.dataset.given.tobytes(), "sha256").hexdigest()[:32]

    def federation(self, client: int, clients: int) -> Federation:
        """A federation in which the site is ``client``, and the others hold nothing."""
        assert self.dataset.given is not None
        nobody, own = np.zeros(0, np.int64), np.arange(len(self.dataset.train))
        return Federation(
            dataset=self.dataset,
            clients=tuple(own if number == client else nobody for number in range(clients)),
            validation=nobody,
            dropped=nobody,
            given=torch.from_numpy(self.dataset.given),
            truth=None,
            nominal=None,
            fingerprint="",
            client_names=tuple(self.name if number == client else str(number) for number in range(clients)),
        )


@dataclass(frozen=True)
class _Run:
    """A run that the server has opened."""

    built: Built
    key: str
    client: int
    clients: int
    holders: int  # of the clients, how many hold samples
    states: SiteStates
    folder: Path

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rounds of each stage."""
        return tuple(stage.length(self.holders) for stage in self.built.method.stages)


@dataclass
class SiteRuntime:
    """A site. ``handle`` is all that a transport calls.

    Args:
        data: the site's samples.
        folder: where it keeps its secret, its ledger and what it has of runs.
        policy: what it lets out.
        device: where it computes.
        building: makes what it runs jobs with; runtimes of one process may share that.
        enter: lets a run in, given the message that opens it, or refuses it, before anything of it is made; also one
            that began before this process.
        compute: is told the number of threads of a run before each of its jobs.
    """

    data: SiteData
    folder: Path
    policy: Policy = field(default_factory=Policy)
    device: str = "cpu"
    building: Callable[[str, Dataset, str], Built] = built
    enter: Callable[[Mapping[str, Any]], None] = lambda header: None
    compute: Callable[[int], None] = lambda threads: None
    _runs: dict[str, _Run] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        secret_file.made_once(self.folder / SECRET)
        self._secret = secret_file.read(self.folder / SECRET)
        self.ledger = Ledger(self.folder / LEDGER, self._secret)

    def handle(self, parts: Parts) -> list[bytes]:
        """The answer to a message; a refusal where the site does not do what it asks, whatever the bytes are."""
        try:
            return self._answer(parts)
        except Exception as error:
            return self.refusal(error)

    def check(self, parts: Parts, size: int) -> None:
        """Before a part of a message is read: whether the runtime may use one of this ``size`` after these ``parts``.

        Raises:
            WireError: if it is larger than a header, or than a model of the run that the header names.
            RefusedError: if no such run was opened.
        """
        most = 0
        if not parts:
            most = messages.LARGEST
        elif len(parts) == 1 and (run := self._named(parts)) is not None:
            most = messages.most_of(run.built.initial)
        if size > most:
            raise WireError(f"a part of {size:,} bytes, of which {most:,} are expected at most")

    def refusal(self, error: Exception) -> list[bytes]:
        """What is answered in place of what would have been."""
        if isinstance(error, RefusedError):
            return [messages.written(messages.REFUSED, kind=error.kind, why=str(error)[:LONGEST])]
        if isinstance(error, WireError):
            return [messages.written(messages.REFUSED, kind="refused", why=f"the server sent {error}"[:LONGEST])]
        # the text may have values of samples or paths, also that of a user's error
        log.warning("%s: a task failed", self.data.name, exc_info=error)
        return [messages.written(messages.REFUSED, kind="failed", why=type(error).__name__)]

    def _answer(self, parts: Parts) -> list[bytes]:
        run = self._named(parts)
        header = messages.read_header(
            parts, messages.ASKED, set() if run is None else {*_expected(run.built), Question}
        )
        if header["kind"] == "open":
            return [self._open(header, parts[0])]
        assert run is not None, "only a message that opens a run has no name of one"
        if header["kind"] == "audit":
            return [self._audited(run, header["question"], parts[0])]
        if len(parts) != 2:
            raise WireError("a message without a model")
        sent = messages.read_model(parts[1], run.built.initial)
        params = {name: tensor.to(run.built.network.device) for name, tensor in sent.items()}
        self._count(run, header, parts[1])
        if header["kind"] == "evaluate":
            return [self._evaluated(run, params)]
        if header["kind"] == "record":
            return [self._record(run, header, params)]
        if header["kind"] == "finish":
            return self._finish(run, header, params)
        return self._work(run, header, parts, params)

    # ---------------------------------------------------------------------------------------------------------- a run

    def _named(self, parts: Parts) -> _Run | None:
        """The run that a message is of; None if it names none, as one that opens a run.

        Raises:
            RefusedError: if it was not opened here.
        """
        name = messages.run_of(parts)
        run = self._run(name)
        if name and run is None:
            raise RefusedError("the server has not opened this run here")
        return run

    def _run(self, name: str) -> _Run | None:
        """A run of this name; one that was opened before this process began is opened again, as it was."""
        known = self.folder / RUNS / name / OPENING
        if name not in self._runs and _is_name(name) and known.is_file():
            opening = known.read_bytes()
            self._open(messages.read_header([opening], {"open": messages.OPEN}), opening)
        if (run := self._runs.get(name)) is not None:
            self.compute(run.built.threads)
        return run

    def _open(self, header: Mapping[str, Any], opening: bytes) -> bytes:
        for name, ours in (("wire", wire.VERSION), ("flnl", __version__)):
            if header[name] != ours:
                raise RefusedError(f"the server has {name} {header[name]!s:.20}, and the site {ours}")
        classes, run, clients = self.data.dataset.classes, header["run"], header["clients"]
        if unknown := sorted({*classes} - {*header["classes"]}):
            raise RefusedError(f"{len(unknown)} of the site's classes are unknown to the server")
        if header["classes"] != classes:
            raise RefusedError("the server has other classes than the site, or in another order")
        holders = header["holders"]
        if not _is_name(run) or not 0 <= header["client"] < clients <= 10**6:
            raise RefusedError("a run of this name, or a client of this number, there is not")
        if key_of(header["config"], classes, clients, holders) != header["key"]:
            raise RefusedError("the key is not that of the configuration")
        if not 1 <= holders <= clients:
            raise RefusedError("more clients hold samples than there are")
        self.policy.admit_key(header["key"], len(self.data.dataset.train))
        folder = self.folder / RUNS / run
        token, known, before = self.data.token(self._secret), folder / "token", folder / OPENING
        if before.exists():
            opened = messages.read_header([before.read_bytes()], {"open": messages.OPEN})
            if other := [name for name in ("key", "client", "clients", "holders") if opened[name] != header[name]]:
                raise RefusedError(f"the run of this name was opened with another {' and '.join(other)}")
        elif self._begun(header["key"]) >= MOST_RUNS:
            raise RefusedError(f"{MOST_RUNS} runs with this key have begun here; the site can delete their folders")
        try:
            self.enter(header)
            made = self.building(header["config"], self.data.dataset, self.device)
        except RefusedError:
            raise
        except UserError as error:  # of the server's configuration
            raise RefusedError(str(error)) from None
        self.policy.admit(made.method)
        self.policy.admit_visits(made.method, made.training, len(self.data.dataset.train))
        self.compute(made.threads)
        states = SiteStates(folder, self._secret)
        if known.exists() and known.read_text() != token:
            when = f"round {states.entries[-1].round + 1}" if states.entries else "the run began"
            raise RefusedError(f"the site's samples or labels have changed since {when}")
        known.write_text(token)
        write_atomically(before, opening)
        while len(self._runs) >= OPEN:  # they are opened again when a message names them
            del self._runs[next(iter(self._runs))]
        self._runs[run] = _Run(made, header["key"], header["client"], clients, holders, states, folder)
        about = {"size": len(self.data.dataset.train), "token": token, "own_streams": self.policy.streams == "own"}
        return messages.written(messages.OPENED, kind="opened", versions=messages.versions(), **about)

    def _begun(self, key: str) -> int:
        """The number of runs with a key that have begun here."""
        opened = (path.read_bytes() for path in (self.folder / RUNS).glob(f"*/{OPENING}"))
        return sum(wire.plain_in(one, messages.LARGEST).get("key") == key for one in opened)

    # --------------------------------------------------------------------------------------------------------- a task

    def _work(self, run: _Run, header: dict[str, Any], parts: Parts, params: Params) -> list[bytes]:
        if header["exchange"] and header["job"] != "open":
            raise RefusedError("only an exchange's job names one")
        method, lengths, number = run.built.method, header["lengths"], header["stage"]
        if lengths != run.lengths or not 0 <= header["round"] < sum(lengths):
            raise RefusedError("the method has no such stage or round")
        stage, _ = method.at(header["round"], run.holders)
        if stage.number != number:
            raise RefusedError("the method has no such stage or round")
        if header["seed"] != run.built.seed or not 0 <= header["floor"] <= header["round"]:
            raise RefusedError("the seed is not the configuration's, or the run would begin again after this round")
        task_name = _task_name(header, parts[1])
        if (stored := run.states.reply(task_name)) is not None:
            return list(stored)
        if header["floor"] < run.states.floor:
            raise RefusedError("the run would begin again with a round that the server has left behind")
        job, allowed = self._job(run, stage, header)
        name = f"{header['job']} {header['exchange']}"
        if not run.states.begins(header["round"], name, task_name, TRIES):
            raise RefusedError(f"the server has asked for a job of round {header['round'] + 1} {TRIES} times before")
        broadcast = Broadcast(header["round"], number, params, header["extras"], lengths)
        before_stage = header["job"] == "open" and broadcast.clock.stage_round == 0
        last = number - 1 if before_stage else number
        kept, of_stage = run.states.state(header["kept"])
        state = entered(method, kept, of_stage, last, lengths, run.built.training)
        task = ClientTask(run.client, self.data.samples, broadcast, state, header["seed"], self._secret)
        task = replace(task, own_streams=self.policy.streams == "own")
        network = run.built.network
        network.meter.pop()
        outcome = job(network, task)
        tally = network.meter.pop()
        answer, model, after = self._outcome(outcome, task)
        self._let_out(run, answer["reports"], allowed, task, type(job))
        run.states.forget_before(header["floor"])
        handle = run.states.put(after, max(last, of_stage), task_name)
        said = messages.written(
            messages.DONE, kind="done", kept=handle, trained=tally.trained, scored=tally.scored, **answer
        )
        reply = [said, *([] if model is None else [wire.written(model)])]
        run.states.answered(Entry(header["round"], name, task_name, header["kept"], handle), reply)
        return reply

    def _job(self, run: _Run, stage: Stage, header: Mapping[str, Any]) -> tuple[ClientJob[Any], Sequence[type]]:
        """The job of the site's own method that the header names, and the types that may leave with its answer."""
        made = run.built
        broadcast = Broadcast(header["round"], header["stage"], {}, lengths=header["lengths"])
        clock = broadcast.clock
        match header["job"]:
            case "train":
                training = made.training.at(
                    clock.round,
                    stage.train,
                    clock.stage_round,
                    rounds=sum(clock.lengths),
                    stage_rounds=clock.lengths[stage.number - 1],
                )
                job = LocalTraining(training, stage.batch, stage.local, stage.gradient, stage.exchange, made.observe)
                return job, [kind for exchange in stage.exchange.values() for kind in exchange.reports]
            case "correct" if stage.correct is not None and stage.corrects_after(clock.stage_round, run.holders):
                return Correct(stage.correct.corrector, stage.correct.rule), stage.correct.corrector.reports
            case "open" if (exchange := stage.exchange.get(header["exchange"])) is not None:
                asked = exchange.before_round(exchange.init(1, made.initial), clock)
                if asked is not None:
                    return Open(header["exchange"], asked), exchange.reports
            case "ask" if header["ask"] in stage.sampler.jobs():
                return header["ask"], ()
        raise RefusedError("the method asks no such job in this round")

    def _outcome(self, outcome: Any, task: ClientTask) -> tuple[dict[str, Any], Params | None, ClientState]:
        """What of a job's outcome goes into the answer, the trained model, and what the site keeps."""
        nothing: dict[str, Any] = {
            **{"reports": Payload(), "num_samples": len(task.samples), "loss": 0.0, "steps": 0, "finite": True},
            **dict.fromkeys(("moved", "relabelled", "changed", "outcome")),
        }
        if isinstance(outcome, ClientResult):
            told = {"reports": outcome.reports, "loss": outcome.loss, "steps": outcome.steps, "finite": outcome.finite}
            moved = None if outcome.observation is None else outcome.observation.moved
            return {**nothing, **told, "moved": moved}, outcome.params, outcome.state
        if not isinstance(outcome, Answered):
            return {**nothing, "outcome": float(outcome)}, None, task.state
        counts: dict[str, Any] = {}
        if outcome.state.labels is not None and self.policy.counts:
            held = outcome.state.held(task.samples.given)
            counts["relabelled"] = int((held != task.labels).sum())
            counts["changed"] = int((held != task.samples.given).sum())
        return {**nothing, "reports": outcome.reports, **counts}, None, outcome.state

    def _let_out(
        self, run: _Run, reports: Payload, allowed: Iterable[type], task: ClientTask, job: type[ClientJob[Any]]
    ) -> None:
        """Check that what is about to leave may, and write it down."""
        kinds = [type(value) for value in reports]
        if (other := next((kind for kind in kinds if kind not in allowed), None)) is not None:
            raise RefusedError(f"the method would send {other.__name__}, which its part does not declare in reports")
        labels, costs = task.labels.numpy().astype("<i8").tobytes(), revealed(run.built.method)
        self.ledger.release(run.folder.name, [*kinds, job], costs, labels, self.policy.max_epsilon)

    # ----------------------------------------------------------------------------------------------------- evaluation

    def _count(self, run: _Run, header: Mapping[str, Any], model: bytes) -> None:
        """Refuse to tell of many models: with enough of them, counts tell of single samples."""
        if header["kind"] == "task":
            return
        if not 0 <= header["round"] <= sum(run.lengths):
            raise RefusedError("the method has no such round")
        added = wire.written([header.get(key) for key in ("before", "own", "kept")])
        digest, about = hashlib.sha256(added + model).hexdigest(), f"{header['kind']} {header['round']}"
        self._few(run.folder / SCORED_MODELS, about, digest, TRIES, f"models with round {header['round']}")

    def _few(self, file: Path, about: str, digest: str, most: int, what: str) -> None:
        """Note in a ``file`` what was asked about something.

        Raises:
            RefusedError: if that were more than ``most`` different things.
        """
        if not Few(file).takes(about, digest, most):
            raise RefusedError(f"the server has sent {most} {what} before")

    def _evaluated(self, run: _Run, params: Params) -> bytes:
        """How a model does on the held-out samples, if there are enough."""
        samples, scores = self.data.held_out, dict.fromkeys(("count", "right", "loss"))
        if samples is not None and len(samples) >= self.policy.min_count:
            network = run.built.network
            network.load(params)
            logits = network.logits(samples)
            loss = float(cross_entropy(logits.double(), samples.given, reduction="sum"))
            scores = {
                "count": len(samples),
                "right": int((logits.argmax(1) == samples.given).sum()),
                "loss": round(loss * messages.ONE) if math.isfinite(loss) else None,
            }
        return messages.written(messages.SCORED, kind="scored", **scores)

    def _record(self, run: _Run, header: Mapping[str, Any], params: Params) -> bytes:
        """Add a model's probabilities to the sums here."""
        folder = run.folder / recorded.FOLDER
        run.built.network.load(params)
        if not 0 <= header["floor"] <= header["round"]:
            raise RefusedError("the run would begin again after this round")
        if not 0 <= header["before"] < header["round"]:
            raise RefusedError("a round is recorded after those before it")
        recorded.add(folder, run.built.network, self.data.samples, header["round"], header["before"])
        recorded.forget_before(folder, header["floor"], header["window"])
        return messages.written(messages.RECORDED, kind="recorded")

    # -------------------------------------------------------------------------------------------------- after the run

    def _audited(self, run: _Run, question: Any, asked: bytes) -> bytes:
        """The answer to a question of an audit, if its types may leave."""
        if not isinstance(question, Question):
            raise WireError("a question that is none")
        self.policy.admit_audit()
        self._count_question(run, question)
        told = self._audit(run, Review()).answer(question)
        if isinstance(told, PageWritten):
            write_atomically(run.folder / LAST_QUESTION, asked)
            self._set_aside(run, reviewed=False)
        labels = self.data.samples.given.numpy().astype("<i8").tobytes()
        told_of = [] if isinstance(told, PageWritten) else [CountedLabels]  # whatever the step: all tell counts
        self.ledger.release(run.folder.name, told_of, {CountedLabels: math.inf}, labels, self.policy.max_epsilon)
        return messages.written(messages.AUDITED, kind="audited", told=told)

    def _count_question(self, run: _Run, question: Question) -> None:
        """Refuse more than a few questions that count other samples: sums of many tell of single ones."""
        step_of(question)  # an invalid one is not noted
        scored = run.folder / model_file.NAME
        if question.summed is not None:
            scored = recorded.file(run.folder / recorded.FOLDER, question.summed[0])
        by = scored.read_bytes() if scored.is_file() else b""
        digest = hashlib.sha256(wire.written(question.counted()) + hashlib.sha256(by).digest()).hexdigest()
        self._few(
            run.folder / QUESTIONS, question.step, digest, AUDITS, f"other questions of an audit ({question.step})"
        )

    def _audit(self, run: _Run, review: Review) -> SiteAudit:
        alone = self.data.federation(0, 1)
        return SiteAudit(run.folder, alone, run.client, run.clients, self.policy.counts, review)

    def review(self, name: str, files: Sequence[Path], corrections: Corrected | None = None) -> Path:
        """Write the page of the last audit again, after a review, and beside it ``corrected.csv``.

        The server is not asked, and told nothing. A later audit replaces the page, not the corrected labels.

        Args:
            name: the run's.
            files: verdicts, as the page saves them.
            corrections: whose labels ``corrected.csv`` gets; None to write none.

        Returns:
            The folder of the page.

        Raises:
            UserError: if there was no audit, or the verdicts are of other labels.
        """
        run = self._run(name) if name in self.audited else None
        if run is None:
            raise UserError("there was no audit of this run here")
        header = messages.read_header(
            [(run.folder / LAST_QUESTION).read_bytes()], {"audit": messages.AUDIT}, {Question}
        )
        self._audit(run, Review(tuple(files), corrections)).answer(header["question"])
        self._set_aside(run, reviewed=corrections == "reviewed")
        return run.folder / AUDIT_FOLDER

    def _set_aside(self, run: _Run, *, reviewed: bool) -> None:
        """Move corrected labels out of the page's folder; those that somebody has reviewed stay in place of others."""
        fresh, kept, mark = run.folder / AUDIT_FOLDER / CORRECTED, run.folder / CORRECTED, run.folder / REVIEWED
        if not fresh.exists():
            return
        if reviewed:
            mark.touch()
        if reviewed or not (mark.exists() and kept.exists()):
            fresh.replace(kept)
        else:
            fresh.unlink()

    @property
    def audited(self) -> list[str]:
        """The names of the runs that have been audited here, the last one last."""
        found = (self.folder / RUNS).glob(f"*/{LAST_QUESTION}")
        return [path.parent.name for path in sorted(found, key=lambda path: path.stat().st_mtime)]

    def _finish(self, run: _Run, header: Mapping[str, Any], params: Params) -> list[bytes]:
        """Write what the site gets out of the run: the model, and ``labels.csv`` with its own names of samples."""
        if any(getattr(own, "clients", run.clients) != run.clients for own in header["own"].values()):
            raise RefusedError("what the exchanges have is of another number of clients")
        state, _ = run.states.state(header["kept"])
        method, data = run.built.method, self.data.dataset
        ModelFile(
            weights=params,
            classes=list(data.classes),
            model=run.built.model,
            shape=list(data.train.shape),
            normalisation=described(data.transform),
            stored=str(self.data.samples.read(torch.zeros(0, dtype=torch.int64)).dtype).removeprefix("torch."),
            dataset=data.name,
            key=run.key,
            round=header["round"],
            networks=method.networks,
        ).save(run.folder / model_file.NAME)
        evaluator = Evaluator(self.data.federation(run.client, run.clients), run.built.network, method)
        clients = Spilled({} if state.empty else {run.client: state})
        table = evaluator.table(FederatedState(header["round"], ServerState(params, dict(header["own"])), clients))
        table.save(run.folder / label_table.NAME)
        counts = dict.fromkeys(("flagged", "changed"))
        if self.policy.counts and table.flagged is not None:
            changed = sum(one != other for one, other in zip(table.given, table.final, strict=True))
            counts = {"flagged": int(sum(table.flagged)), "changed": changed}
        return [messages.written(messages.FINISHED, kind="finished", **counts)]


def _expected(made: Built) -> set[type]:
    """The classes that a server's messages may hold: what exchanges send, what samplers ask, states for findings."""
    method = made.method
    sent = {kind for exchange in method.exchange.values() for kind in exchange.sends}
    asked = {kind for stage in method.stages for kind in stage.sampler.asks}
    told = {type(e.init(1, made.initial)) for e in method.exchange.values() if e.overrides("own")}
    return {kind for kind in sent | asked | told if _is_stored(kind)}


def _is_name(run: str) -> bool:
    """Whether this may be a run's name, and so that of its folder."""
    return re.fullmatch("[a-z0-9]{1,100}", run) is not None  # folders may be equal whose names differ in case


def _is_stored(kind: type) -> bool:
    try:
        name_of(kind)
    except TypeError:
        return False
    return True


def _task_name(header: Mapping[str, Any], model: bytes) -> str:
    """A name of a task that tells it from all others; where a server may begin again is no part of it."""
    asked = wire.written({key: value for key, value in header.items() if key != "floor"})
    return hashlib.sha256(hashlib.sha256(asked).digest() + hashlib.sha256(model).digest()).hexdigest()[:32]
