"""The server's end of its sites: asks them to do jobs, and checks what they answer."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from flnl import __version__
from flnl.console.words import some
from flnl.core.errors import UserError, one_line, shortened
from flnl.core.execution import BLOCK, Block, ClientJob
from flnl.core.messages import Answered, ClientResult, ClientState, ClientTask, Kept, Observation
from flnl.core.method import Method
from flnl.core.parts import Exchange
from flnl.core.payload import Params, Payload, all_finite, size_in_bytes
from flnl.core.state import FederatedState
from flnl.core.tally import Tally
from flnl.engine.jobs import Correct, Open
from flnl.engine.local.sgd import LocalTraining
from flnl.evaluation.recording import Sums
from flnl.run import checkpoint
from flnl.run.apart import AwayError
from flnl.sites import messages, values, wire
from flnl.sites.audit_messages import Question
from flnl.sites.evaluator import Counted
from flnl.sites.messages import Parts
from flnl.sites.shared import key_of
from flnl.sites.traffic import FRAMES, LAST_MODEL, MODEL, NAME, RECORDED_MODEL, SCORED_MODEL, Traffic
from flnl.sites.transport import Transport
from flnl.sites.values import Sender
from flnl.sites.wire import WireError

log = logging.getLogger(__name__)

T = TypeVar("T")
V = TypeVar("V")
A = TypeVar("A")

WAITS = 0.2
"""Seconds between two questions whether answers have come."""
LOOKS = 10.0
"""Seconds between two questions which sites can be reached."""
SAYS = 60.0
"""Seconds between two lines about sites that are waited for."""
APPROVES = 10.0
"""Seconds between two questions whether a site has approved a run."""
HOUR = 3600.0
OTHERS = 15.0
"""Seconds in which other sites may refuse, too, once one has."""
SHOWN = 20
"""Sites that are named where there are many."""
LONGEST_HANDLE = 64
MOST_PASSES = 2**48
"""A larger number of samples that have passed a network is none."""


class SiteError(UserError):
    """A site has refused or failed; ``what`` says that without its name."""

    def __init__(self, site: str, what: str) -> None:
        super().__init__(f"site {site} {what}")
        self.what = what


@dataclass(frozen=True)
class Waiting:
    """What a server does about sites that do not answer."""

    ttl: float = 3600.0  # seconds after which a job is sent again
    patience: float = 24.0  # hours without any answer after which the run stops, or goes on without
    drop: bool = False  # go on without their models in this round
    least: int = 1  # of a round's sites, how many must have answered for that
    again: str = "go on with resume=true"  # what to do once all can be reached


@dataclass
class Link:
    """A run at its sites.

    Args:
        transport: carries messages.
        sites: the name of each client's site.
        sizes: the number of samples of each client.
        method: the run's method.
        run: the run's name.
        config: what sites need of the configuration (``shared``).
        classes: names of the classes.
        folder: the run's folder.
        told: what sites have told of their labels at the end of the run, by client.
        tally: samples that have passed networks at sites, since somebody has taken it.
        waiting: what to do about sites that do not answer.
        forget: names of sites that have lost what they kept, and begin without it.
    """

    transport: Transport
    sites: Mapping[int, str]
    sizes: Mapping[int, int]
    method: Method
    run: str
    config: str
    classes: tuple[str, ...]
    folder: Path
    told: dict[int, Counted] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    waiting: Waiting = field(default_factory=Waiting)
    forget: Collection[str] = ()

    def __post_init__(self) -> None:
        self.traffic = Traffic.read(self.folder / NAME)
        if unknown := sorted({*self.forget} - {*self.sites.values()}):
            raise UserError(f"executor.forget={unknown[0]}: there are the sites {', '.join(self.sites.values())}")
        self._lost: dict[int, str | None] = {c: None for c, name in self.sites.items() if name in self.forget}
        self.own_streams: list[str] = []  # names of sites whose draws for training are their own
        self._agreed: dict[tuple[str, ...], Any] = {}  # lengths in reports
        self._held_out: dict[int, int] = {}  # number of samples by client, once told

    @property
    def key(self) -> str:
        """The key of what sites are to do."""
        return key_of(self.config, self.classes, *self._numbers)

    @property
    def _numbers(self) -> tuple[int, int]:
        """Of clients, and of those that hold samples."""
        return max(self.sites) + 1, len(self.sites)

    # --------------------------------------------------------------------------------------------------------- asking

    def open(self) -> None:
        """Open the run at all sites.

        Raises:
            UserError: naming sites that take no part.
        """
        about = {"wire": wire.VERSION, "flnl": __version__, "run": self.run, "key": self.key, "config": self.config}

        def opening(client: int) -> Parts:
            whom = {"client": client, **dict(zip(("clients", "holders"), self._numbers, strict=True))}
            return [messages.written(messages.OPEN, kind="open", **about, **whom, classes=self.classes)]

        here = messages.versions()
        for client, opened in self._admitted({client: opening(client) for client in self.sites}):
            site = self.sites[client]
            if opened["size"] != self.sizes[client]:
                raise UserError(f"site {site} has {opened['size']} samples, not {self.sizes[client]}")
            if opened["own_streams"]:
                self.own_streams.append(site)
            there = {name: shortened(one_line(version)) for name, version in opened["versions"].items()}
            other = [
                f"{name} {there.get(name, 'none')}, not {ours}"
                for name, ours in here.items()
                if there.get(name) != ours
            ]
            if other:
                log.warning("site %s has %s: the last bits of numbers may differ", site, "; ".join(other))

    def _admitted(self, asked: Mapping[int, Parts]) -> Iterator[tuple[int, dict[str, Any]]]:
        """The answers to messages that open the run; sites where somebody has to approve it are asked again."""
        told: set[int] = set()
        kinds: dict[str, dict[str, Any]] = {"opened": messages.OPENED, "waiting": messages.REFUSED}
        while asked:
            waiting: set[int] = set()
            for client, said in self._answers(asked, kinds):
                if said["kind"] == "opened":
                    yield client, said
                    continue
                waiting.add(client)
            if new := waiting - told:
                log.warning("site %s waits until somebody there approves this run", self._names(new))
            told, asked = told | waiting, {client: asked[client] for client in waiting}
            time.sleep(APPROVES if asked else 0.0)

    def map(
        self, job: ClientJob[T], tasks: Sequence[ClientTask], reduce: Callable[[list[T]], Block[V, T]]
    ) -> Iterator[Block[V, T]]:
        """As ``Executor.map``."""
        done: dict[int, Any] = {}
        by_client = {task.client: task for task in tasks}
        waiting = [task.client for task in tasks]
        drop = self.waiting.drop and isinstance(job, LocalTraining)
        for client, parts in self._exchanged(self._asked(job, tasks), drop=drop):
            task = by_client[client]
            done[client] = self._missing(task, "did not answer") if parts is None else self._result(job, task, parts)
            while waiting and all(one in done for one in waiting[:BLOCK]):
                block, waiting = waiting[:BLOCK], waiting[BLOCK:]
                yield reduce([done.pop(one) for one in block])
        self.close()

    def evaluate(self, params: Params, after: int) -> dict[str, float]:
        """Accuracy and loss of a model on what all sites hold out and tell of; empty if that is nothing.

        It is exact: whole numbers are added. ``after`` is the number of rounds that the model has behind it.
        """
        message = [
            messages.written(messages.EVALUATE, kind="evaluate", run=self.run, round=after),
            wire.written(params),
        ]
        scores = []
        for client, scored in self._answers(dict.fromkeys(self.sites, message), {"scored": messages.SCORED}):
            self.traffic.crossed("down", SCORED_MODEL, size_in_bytes(params))
            if scored["count"] is None:
                continue
            whole = 0 <= (scored["right"] or 0) <= scored["count"] < MOST_PASSES and (scored["loss"] or 0) >= 0
            if not whole or self._held_out.setdefault(client, scored["count"]) != scored["count"]:
                raise UserError(f"site {self.sites[client]} sent numbers of held-out samples that are none")
            scores.append(scored)
        count = sum(one["count"] for one in scores)
        if not count:
            return {}
        losses = [one["loss"] for one in scores]
        loss = math.nan if None in losses else sum(losses) / messages.ONE / count
        return {"validation_accuracy": sum(one["right"] or 0 for one in scores) / count, "validation_loss": loss}

    def record(self, params: Params, sums: Sums) -> None:
        """Have all sites add the probabilities of a model to their sums; ``sums`` are the server's, with it."""
        header = messages.written(
            messages.RECORD,
            kind="record",
            run=self.run,
            round=sums.rounds[-1],
            before=sums.rounds[-2] if len(sums.rounds) > 1 else 0,
            window=sums.rounds[sums.in_window - 1],
            floor=checkpoint.oldest(self.folder / "checkpoints"),
        )
        message = [header, wire.written(params)]
        for _ in self._answers(dict.fromkeys(self.sites, message), {"recorded": messages.RECORDED}):
            self.traffic.crossed("down", RECORDED_MODEL, size_in_bytes(params))

    def finish(self, state: FederatedState) -> None:
        """Tell all sites the end of the run, and the model that was evaluated last, which ``state`` has."""
        model = wire.written(state.server.params)
        told = {name: one for name, one in self.method.exchange.items() if one.overrides("own")}

        def finishing(client: int) -> Parts:
            own = {
                name: exchange.own(state.server.exchanges[name], client)
                for name, exchange in told.items()
                if name in state.server.exchanges
            }
            kept = self._handle(client, state.client(client))
            header = {"run": self.run, "round": state.round, "own": own, "kept": kept}
            self.traffic.crossed("down", LAST_MODEL, size_in_bytes(state.server.params))
            self.traffic.payload("down", own.values())
            return [messages.written(messages.FINISH, kind="finish", **header), model]

        asked = {client: finishing(client) for client in self.sites}
        for client, counts in self._answers(asked, {"finished": messages.FINISHED}):
            if not all(0 <= (counts[name] or 0) <= self.sizes[client] for name in messages.FINISHED if name != "kind"):
                raise UserError(f"site {self.sites[client]} sent numbers of labels that are none")
            self.told[client] = Counted(counts["flagged"], counts["changed"])

    def audit(self, questions: Mapping[int, Question], kind: type[A]) -> dict[int, A]:
        """Ask all sites a question of an audit; the answers, which must be of this ``kind``, by client.

        Raises:
            UserError: naming sites that refuse, or whose answer is none.
        """
        told: dict[int, A] = {}
        asked = {
            client: [messages.written(messages.AUDIT, kind="audit", run=self.run, question=question)]
            for client, question in questions.items()
        }
        for client, answer in self._answers(asked, {"audited": messages.AUDITED}, [kind]):
            said = answer["told"]
            try:
                if not isinstance(said, kind):
                    raise WireError("an answer to another question")
                values.check(said, Sender(len(self.classes), self.sizes[client], {}, self._agreed))
            except WireError as error:
                raise UserError(f"site {self.sites[client]} sent {error}") from None
            self.traffic.payload("up", [said])
            told[client] = said
        self.close()
        return {client: told[client] for client in questions}

    def close(self) -> None:
        """Write what has crossed."""
        self.traffic.save(self.folder / NAME)

    def _asked(self, job: ClientJob[Any], tasks: Sequence[ClientTask]) -> dict[int, Parts]:
        """The messages of tasks, by client; all have the very model, whose bytes are made once."""
        kind, exchange, ask = _named(job)
        floor = checkpoint.oldest(self.folder / "checkpoints")
        params = tasks[0].broadcast.params if tasks else {}
        model, size = wire.written(params), size_in_bytes(params)
        found: dict[int, Parts] = {}
        for task in tasks:
            assert task.broadcast.params is params, "clients of a call receive one model"
            broadcast = task.broadcast
            header = messages.written(
                messages.TASK,
                kind="task",
                run=self.run,
                job=kind,
                exchange=exchange,
                ask=ask,
                round=broadcast.round,
                stage=broadcast.stage,
                lengths=broadcast.lengths,
                seed=task.seed,
                extras=broadcast.extras,
                kept=self._handle(task.client, task.state),
                floor=floor,
            )
            self.traffic.crossed("down", MODEL, size)
            self.traffic.payload("down", broadcast.extras)
            found[task.client] = [header, model]
        return found

    def _handle(self, client: int, state: ClientState) -> str:
        """The handle that the server holds of a client's state; empty if it keeps nothing, or the site has lost it."""
        kept = state.extras.get(Kept)
        assert kept is not None or not len(state.extras), "what a site keeps has a handle"
        handle = "" if kept is None else kept.handle
        if client not in self._lost:
            return handle
        if self._lost[client] is None:
            self._lost[client] = handle
        return "" if handle == self._lost[client] else handle

    def _answers(
        self, asked: Mapping[int, Parts], kinds: dict[str, dict[str, Any]], expected: Sequence[type] = ()
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """The headers of the answers to these messages, where nobody may be left out.

        Raises:
            UserError: naming the sites that have refused or failed, or whose answer is none, and those that have not
                answered ``OTHERS`` seconds after the first of these.
        """
        refused: dict[str, list[int]] = {}
        when: list[float] = []  # they have
        left = {*asked}
        for client, parts in self._exchanged(asked, ends=lambda: bool(when) and time.monotonic() > when[0] + OTHERS):
            assert parts is not None, "nobody is left out"
            left.remove(client)
            try:
                said = self._said(client, parts, kinds, expected)
            except (SiteError, WireError) as error:
                what = error.what if isinstance(error, SiteError) else f"sent {error}"
                refused.setdefault(what, []).append(client)
                when.append(time.monotonic())
                continue
            yield client, said
        if refused:
            who = [f"site {self._names(clients)} {what}" for what, clients in refused.items()]
            raise UserError("; ".join([*who, *([f"site {self._names(left)} has not answered yet"] if left else [])]))

    def _exchanged(
        self, asked: Mapping[int, Parts], *, drop: bool = False, ends: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int, Parts | None]]:
        """Send these messages, and yield the answers as they come; None for who is left out, if ``drop``.

        It waits for no more of them once it ``ends``.

        A message is sent again after its time, and when a site can be reached that could not before: the answer to the
        first may be lost, and a site answers the same twice.

        Raises:
            AwayError: naming the sites that do not answer.
        """
        numbers: dict[str, int] = {}  # of messages, the client
        sent: dict[int, float] = {}  # when, by client that has not answered
        begun = looked = said = time.monotonic()  # begun: to wait for the next answer
        away: set[int] = set()

        def send(client: int) -> None:
            numbers[self.transport.push(self.sites[client], asked[client], self.waiting.ttl)] = client
            sent[client] = time.monotonic()
            self.traffic.crossed("down", FRAMES, sum(map(len, asked[client])))

        for client in asked:
            send(client)
        while sent and not ends():
            answers = self.transport.pull(list(numbers))
            for number, parts in answers.items():
                client = numbers.pop(number, -1)
                if client not in sent:  # another answer to a message that was sent twice
                    continue
                del sent[client]
                numbers = {other: one for other, one in numbers.items() if one != client}
                self.traffic.crossed("up", FRAMES, sum(map(len, parts)))
                yield client, parts
            now = time.monotonic()
            if answers:
                begun = now
                continue
            late = {client for client, when in sent.items() if now - when >= self.waiting.ttl}
            if now - looked >= LOOKS:
                before, away, looked = away, self._unreachable(sent), now
                late |= before & (sent.keys() - away)
            for client in late:
                send(client)
            if now - begun >= self.waiting.patience * HOUR:
                self._give_up(sorted(sent), len(asked), drop=drop)
                yield from ((client, None) for client in sorted(sent))
                return
            if now - said >= SAYS:
                said = now
                log.warning(
                    "waiting for site %s: %d of %d have answered",
                    self._names(sent, away),
                    len(asked) - len(sent),
                    len(asked),
                )
            time.sleep(WAITS)

    def _unreachable(self, clients: Collection[int]) -> set[int]:
        """Those of the clients whose sites cannot be reached now."""
        there = {*self.transport.nodes()}
        return {client for client in clients if self.sites[client] not in there}

    def _names(self, clients: Collection[int], away: Collection[int] = ()) -> str:
        """The first of these clients' sites, and which of them cannot be reached."""
        names = [f"{self.sites[c]}{' (not connected)' if c in away else ''}" for c in sorted(clients)]
        return some(names, SHOWN)

    def _give_up(self, missing: Sequence[int], asked: int, *, drop: bool) -> None:
        """Go on without these clients, or not.

        Raises:
            AwayError: naming their sites.
        """
        names, hours = self._names(missing), self.waiting.patience
        if drop and asked - len(missing) >= self.waiting.least:
            log.warning("site %s did not answer in %g hours: left out of this round", names, hours)
            return
        few = f"; {asked - len(missing)} of {asked} have, and executor.least={self.waiting.least}" if drop else ""
        raise AwayError(
            f"site {names} did not answer in executor.patience={hours:g} hours{few}: {self.waiting.again} "
            "when it can be reached"
        )

    # ------------------------------------------------------------------------------------------------------ answers

    def _said(
        self, client: int, parts: Parts, kinds: dict[str, dict[str, Any]], expected: Sequence[type] = ()
    ) -> dict[str, Any]:
        """The header of an answer.

        Raises:
            SiteError: if the site has refused or failed.
            WireError: if it is none.
        """
        header = messages.read_header(parts, {**kinds, **dict.fromkeys(messages.NOT_DONE, messages.REFUSED)}, expected)
        if header["kind"] in messages.NOT_DONE and header["kind"] not in kinds:
            site, why = self.sites[client], one_line(shortened(header["why"]))
            way_on = f"; to go on without it: resume=true executor.forget=[{site}]" if header["kind"] == "lost" else ""
            raise SiteError(site, f"{messages.NOT_DONE[header['kind']]}: {why}{way_on}")
        return header

    def _result(self, job: ClientJob[Any], task: ClientTask, parts: Parts) -> Any:
        """What an answer means to the loop. A malformed one of a visit is a result that is not finite."""
        try:
            return self._checked(job, task, parts)
        except WireError as error:
            if not isinstance(job, LocalTraining):
                raise UserError(f"site {self.sites[task.client]} sent {error}") from None
            return self._missing(task, f"sent {error}")

    def _missing(self, task: ClientTask, why: str) -> ClientResult:
        """A visit that is left out, and named."""
        site, unvisited = self.sites[task.client], (task.client, len(task.samples), None, task.state, Payload(), 0.0, 0)
        log.warning("site %s %s: its visit of round %d is left out", site, why, task.broadcast.round + 1)
        return ClientResult(*unvisited, finite=False, missing=f"(site {site}) {why}")

    def _checked(self, job: ClientJob[Any], task: ClientTask, parts: Parts) -> Any:
        declared = self._declared(job)
        said = self._said(task.client, parts, {"done": messages.DONE}, declared)
        if any(type(value) not in declared for value in said["reports"]):
            raise WireError("a report that its part does not declare")
        if said["num_samples"] != self.sizes[task.client]:
            raise WireError("another number of samples than it had")
        if len(said["kept"]) > LONGEST_HANDLE or not (said["kept"] + "0").isalnum():
            raise WireError("a handle that is none")
        if not all(0 <= said[name] < MOST_PASSES for name in ("trained", "scored", "steps")):
            raise WireError("numbers of passes or steps that are none")
        if not all(0 <= (said[name] or 0) <= self.sizes[task.client] for name in ("relabelled", "changed")):
            raise WireError("numbers of labels that are none")
        sender = Sender(len(self.classes), self.sizes[task.client], task.broadcast.params, self._agreed)
        for report in said["reports"]:
            values.check(report, sender)
        if not (isinstance(job, LocalTraining) or said["finite"]):
            raise WireError("a job that is no visit, and not finite")
        result = self._outcome(job, task, said, parts)
        self.tally.add(Tally(said["trained"], said["scored"]))
        self.traffic.payload("up", said["reports"])
        return result

    def _outcome(self, job: ClientJob[Any], task: ClientTask, said: Mapping[str, Any], parts: Parts) -> Any:
        if not isinstance(job, LocalTraining | Correct | Open):
            if said["outcome"] is None or not math.isfinite(said["outcome"]):
                raise WireError("no finite outcome of what it was asked")
            return said["outcome"]
        state = self._held(job, task, said)
        if isinstance(job, LocalTraining):
            return self._visited(job, task, said, parts, state)
        return Answered(task.client, state, said["reports"])

    def _held(self, job: ClientJob[Any], task: ClientTask, said: Mapping[str, Any]) -> ClientState:
        """What the server holds of a client's state: the handle, numbers of its labels, and what exchanges mirror."""
        nothing = Kept("")
        before = nothing if task.client in self._lost else task.state.extras.get(Kept) or nothing
        self._lost.pop(task.client, None)
        corrected = isinstance(job, Correct)
        kept = (
            Kept(said["kept"], said["relabelled"], said["changed"])
            if corrected
            else replace(before, handle=said["kept"])
        )
        mirrored = [value for value in task.state.extras if not isinstance(value, Kept)]
        return ClientState(extras=Payload(*mirrored, *([kept] if kept != nothing else [])))

    def _visited(
        self, job: LocalTraining, task: ClientTask, said: Mapping[str, Any], parts: Parts, state: ClientState
    ) -> ClientResult:
        received = task.broadcast.params
        if len(parts) != 2:
            raise WireError("no model")
        sent = messages.read_model(parts[1], received)
        params = {name: tensor.to(received[name].device) for name, tensor in sent.items()}
        self.traffic.crossed("up", MODEL, size_in_bytes(params))
        finite = said["finite"] and all_finite(params)
        if finite and not math.isfinite(said["loss"]):
            log.warning("site %s sent a finite model, and a mean loss that is not", self.sites[task.client])
        observation = None
        if job.observed and said["moved"] is not None:
            if not 0 <= said["moved"] < math.inf:
                raise WireError("a distance that is none")
            observation = Observation(said["moved"], torch.zeros(0, dtype=torch.int64))
        result = ClientResult(
            client=task.client,
            num_samples=said["num_samples"],
            params=params,
            state=state if finite else task.state,
            reports=said["reports"] if finite else Payload(),
            loss=said["loss"],
            steps=said["steps"],
            finite=finite,
            observation=observation if finite else None,
        )
        if not finite:
            return result
        mirrored = [value for exchange in job.exchanges.values() for value in exchange.mirrors(result)]
        return replace(result, state=result.state.keeping(*mirrored))

    def _declared(self, job: ClientJob[Any]) -> tuple[type, ...]:
        """The types that may come with the answer to a job."""
        exchanges: Sequence[Exchange] = ()
        if isinstance(job, LocalTraining):
            exchanges = list(job.exchanges.values())
        elif isinstance(job, Open):
            exchanges = [self.method.exchange[job.exchange]]
        elif isinstance(job, Correct):
            return job.corrector.reports
        return tuple(kind for exchange in exchanges for kind in exchange.reports)


def _named(job: ClientJob[Any]) -> tuple[str, str, Any]:
    """A job's name, an exchange's name, and the job itself where it is sent."""
    if isinstance(job, LocalTraining):
        return "train", "", None
    if isinstance(job, Correct):
        return "correct", "", None
    return ("open", job.exchange, None) if isinstance(job, Open) else ("ask", "", job)
