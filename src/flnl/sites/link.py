"""The server's end of its sites: asks them to do jobs, and checks what they answer."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from flnl import __version__
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
from flnl.run import checkpoint
from flnl.sites import messages, wire
from flnl.sites.carrier import Carrier
from flnl.sites.evaluator import Counted
from flnl.sites.messages import DONE, EVALUATE, FINISH, FINISHED, ONE, OPEN, OPENED, REFUSED, SCORED, TASK, Parts
from flnl.sites.shared import key_of
from flnl.sites.traffic import FRAMES, LAST_MODEL, MODEL, NAME, SCORED_MODEL, Traffic
from flnl.sites.wire import WireError

log = logging.getLogger(__name__)

T = TypeVar("T")
V = TypeVar("V")

WAITS = 0.2
"""Seconds between two questions whether answers have come."""
TTL = 3600.0
"""Seconds after which a message need not be delivered any more."""
LONGEST_HANDLE = 64
MOST_PASSES = 2**48
"""A larger number of samples that have passed a network is none."""


@dataclass
class Link:
    """A run at its sites.

    Args:
        carrier: carries messages.
        sites: the name of each client's site.
        sizes: the number of samples of each client.
        method: the run's method.
        run: the run's name.
        config: what sites need of the configuration (``shared``).
        classes: names of the classes.
        folder: the run's folder.
        told: what sites have told of their labels, by client.
        tally: samples that have passed networks at sites, since somebody has taken it.
    """

    carrier: Carrier
    sites: Mapping[int, str]
    sizes: Mapping[int, int]
    method: Method
    run: str
    config: str
    classes: tuple[str, ...]
    folder: Path
    told: dict[int, Counted] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self.traffic = Traffic.read(self.folder / NAME)

    @property
    def key(self) -> str:
        """The key of what sites are to do."""
        return key_of(self.config, self.classes)

    # --------------------------------------------------------------------------------------------------------- asking

    def open(self) -> None:
        """Open the run at all sites.

        Raises:
            UserError: naming a site that takes no part.
        """
        about = {"wire": wire.VERSION, "flnl": __version__, "run": self.run, "key": self.key, "config": self.config}

        def opening(client: int) -> Parts:
            whom = {"client": client, "clients": max(self.sites) + 1, "holders": len(self.sites)}
            return [messages.written(OPEN, kind="open", **about, **whom, classes=self.classes)]

        for client, parts in self._exchanged({client: opening(client) for client in self.sites}):
            opened = self._told(client, parts, {"opened": OPENED})
            if opened["size"] != self.sizes[client]:
                raise UserError(f"site {self.sites[client]} has {opened['size']} samples, not {self.sizes[client]}")

    def map(
        self, job: ClientJob[T], tasks: Sequence[ClientTask], reduce: Callable[[list[T]], Block[V, T]]
    ) -> Iterator[Block[V, T]]:
        """As ``Executor.map``."""
        done: dict[int, Any] = {}
        by_client = {task.client: task for task in tasks}
        waiting = [task.client for task in tasks]
        for client, parts in self._exchanged(self._asked(job, tasks)):
            done[client] = self._result(job, by_client[client], parts)
            while waiting and all(one in done for one in waiting[:BLOCK]):
                block, waiting = waiting[:BLOCK], waiting[BLOCK:]
                yield reduce([done.pop(one) for one in block])
        self.close()

    def evaluate(self, params: Params, after: int) -> dict[str, float]:
        """Accuracy and loss of a model on what all sites hold out and tell of; empty if that is nothing.

        It is exact: whole numbers are added. ``after`` is the number of rounds that the model has behind it.
        """
        message = [messages.written(EVALUATE, kind="evaluate", run=self.run, round=after), wire.written(params)]
        scores = []
        for client, parts in self._exchanged(dict.fromkeys(self.sites, message)):
            self.traffic.crossed("down", SCORED_MODEL, size_in_bytes(params))
            scored = self._told(client, parts, {"scored": SCORED})
            if scored["count"] is None:
                continue
            if not 0 <= (scored["right"] or 0) <= scored["count"] < MOST_PASSES:
                raise UserError(f"site {self.sites[client]} sent numbers of held-out samples that are none")
            scores.append(scored)
        count = sum(one["count"] for one in scores)
        if not count:
            return {}
        losses = [one["loss"] for one in scores]
        loss = math.nan if None in losses else sum(losses) / ONE / count
        return {"validation_accuracy": sum(one["right"] or 0 for one in scores) / count, "validation_loss": loss}

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
            header = {"run": self.run, "round": state.round, "own": own, "kept": _handle(state.client(client))}
            self.traffic.crossed("down", LAST_MODEL, size_in_bytes(state.server.params))
            self.traffic.payload("down", own.values())
            return [messages.written(FINISH, kind="finish", **header), model]

        for client, parts in self._exchanged({client: finishing(client) for client in self.sites}):
            counts = self._told(client, parts, {"finished": FINISHED})
            self.told[client] = Counted(None, counts["changed"], counts["flagged"])

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
                TASK,
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
                kept=_handle(task.state),
                floor=floor,
            )
            self.traffic.crossed("down", MODEL, size)
            self.traffic.payload("down", broadcast.extras)
            found[task.client] = [header, model]
        return found

    def _exchanged(self, asked: Mapping[int, Parts]) -> Iterator[tuple[int, Parts]]:
        """Send these messages, and yield the answers as they come."""
        waiting: dict[str, int] = {}
        for client, parts in asked.items():
            waiting[self.carrier.push(self.sites[client], parts, TTL)] = client
            self.traffic.crossed("down", FRAMES, sum(map(len, parts)))
        while waiting:
            answers = self.carrier.pull(list(waiting))
            for number, parts in answers.items():
                self.traffic.crossed("up", FRAMES, sum(map(len, parts)))
                yield waiting.pop(number), parts
            if not answers:
                time.sleep(WAITS)

    # ------------------------------------------------------------------------------------------------------ answers

    def _said(
        self, client: int, parts: Parts, kinds: dict[str, dict[str, Any]], expected: Sequence[type] = ()
    ) -> dict[str, Any]:
        """The header of an answer.

        Raises:
            UserError: if the site has refused or failed.
            WireError: if it is none.
        """
        header = messages.read_header(parts, {**kinds, "refused": REFUSED, "failed": REFUSED}, expected)
        if header["kind"] in ("refused", "failed"):
            why = one_line(shortened(header["why"]))
            raise UserError(f"site {self.sites[client]} {header['kind']}: {why}")
        return header

    def _told(self, client: int, parts: Parts, kinds: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """As ``_said``, of an answer that must be one.

        Raises:
            UserError: if the site has refused or failed, or the answer is none.
        """
        try:
            return self._said(client, parts, kinds)
        except WireError as error:
            raise UserError(f"site {self.sites[client]} sent {error}") from None

    def _result(self, job: ClientJob[Any], task: ClientTask, parts: Parts) -> Any:
        """What an answer means to the loop. A malformed one of a visit is a result that is not finite."""
        try:
            return self._checked(job, task, parts)
        except WireError as error:
            site = self.sites[task.client]
            if not isinstance(job, LocalTraining):
                raise UserError(f"site {site} sent {error}") from None
            log.warning("site %s sent %s: its visit of round %d is left out", site, error, task.broadcast.round + 1)
            return ClientResult(*(task.client, len(task.samples), None, task.state, Payload(), 0.0, 0), finite=False)

    def _checked(self, job: ClientJob[Any], task: ClientTask, parts: Parts) -> Any:
        declared = self._declared(job)
        said = self._said(task.client, parts, {"done": DONE}, declared)
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
        result = self._outcome(job, task, said, parts)
        self.tally.add(Tally(said["trained"], said["scored"]))
        self.traffic.payload("up", said["reports"])
        return result

    def _outcome(self, job: ClientJob[Any], task: ClientTask, said: Mapping[str, Any], parts: Parts) -> Any:
        state = _state(said["kept"], task.state)
        if isinstance(job, LocalTraining):
            return self._visited(job, task, said, parts, state)
        if isinstance(job, Correct | Open):
            if isinstance(job, Correct):
                self.told[task.client] = Counted(said["relabelled"], said["changed"])
            return Answered(task.client, state, said["reports"])
        if said["outcome"] is None:
            raise WireError("no outcome of what it was asked")
        return said["outcome"]

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
        observation = None
        if job.observed and said["moved"] is not None:
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


def _handle(state: ClientState) -> str:
    """The handle that the server holds of a client's state; empty if it keeps nothing."""
    kept = state.extras.get(Kept)
    assert kept is not None or not len(state.extras), "what a site keeps has a handle"
    return "" if kept is None else kept.handle


def _state(handle: str, before: ClientState) -> ClientState:
    """What the server holds of a client's state: the new handle, and what exchanges mirror."""
    mirrored = [value for value in before.extras if not isinstance(value, Kept)]
    return ClientState(extras=Payload(*mirrored, *([Kept(handle)] if handle else [])))
