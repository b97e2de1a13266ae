"""``executor=sites``: clients are sites in this process, and the server has none of their samples and labels."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from annotated_types import Ge, MinLen
from omegaconf import DictConfig

from flnl.config import compose
from flnl.core.errors import UserError
from flnl.core.execution import Block, ClientJob
from flnl.core.messages import ClientTask, Samples
from flnl.core.method import Method
from flnl.core.ranges import Count, FromFiles, NonNegative, PathText, Positive, PositiveCount
from flnl.core.stored import name_of
from flnl.core.tally import Tally
from flnl.data.dataset import Dataset
from flnl.data.federation.build import Federation
from flnl.data.federation.elsewhere import without_samples
from flnl.engine.network import Network
from flnl.evaluation.evaluator import Evaluator
from flnl.run.apart import ClientsApart
from flnl.sites.evaluator import SiteEvaluator
from flnl.sites.link import Link, Waiting
from flnl.sites.policy import AUDIT, Policy, Streams, revealed
from flnl.sites.runtime import SiteData, SiteRuntime
from flnl.sites.shared import Built, built, shared
from flnl.sites.traffic import leaving
from flnl.sites.transport import Loopback, Transport
from flnl.storage.atomic import write_atomically

T = TypeVar("T")
V = TypeVar("V")

FOLDER, NAMED = "sites", "sites.run"
"""In a run's folder: where its sites are, and its name among them."""


@dataclass(frozen=True)
class Sites(ClientsApart):
    """Each client is a site: a runtime with its samples alone, and a folder, a secret and a policy of its own."""

    network: Network
    allow: list[str]
    max_epsilon: Annotated[float, Ge(0)] | None
    least_samples: PositiveCount
    approve: Annotated[str, MinLen(1)]
    counts: bool
    min_count: Count
    folder: Annotated[PathText | None, FromFiles(None)]
    ttl: Positive
    patience: NonNegative
    absent: Literal["stop", "drop"]
    least: PositiveCount
    forget: list[str | int]
    streams: Streams
    _links: list[Link] = field(default_factory=list, init=False, repr=False, compare=False)  # one, once it is open

    def apart(self, cfg: DictConfig, evaluator: Evaluator, folder: Path) -> tuple[Evaluator, list[str]]:
        """Give each site its samples, open the run at all of them, and tell what leaves them."""
        federation, method, network = evaluator.federation, evaluator.method, self.network
        without = without_samples(federation)
        SiteEvaluator(federation=without, network=network, method=method).aid(
            method.aid
        )  # fail before anything is made
        begun, there = (folder / NAMED).exists(), (folder / FOLDER).exists()
        try:
            link = self._opened(cfg, federation, method, folder)
        except BaseException:
            if not begun:  # or a folder of a run that could not begin would stay
                (folder / NAMED).unlink(missing_ok=True)
            if not there:
                shutil.rmtree(folder / FOLDER, ignore_errors=True)
            raise
        self._links[:] = [link]
        held_out = self._held_out(federation)
        server = SiteEvaluator(
            federation=without,
            network=network,
            method=method,
            told=link.told,
            end=link.finish,
            record=link.record,
            held_out=link.evaluate if held_out else None,
        )
        sent = {AUDIT, *(name_of(kind) for kind in revealed(method))}
        unsent = [name for name in self.allow if name not in sent]
        leaves = leaving(method, counts=self.counts, held_out=held_out)
        return server, [
            f"sites: {len(link.sites)} {self._where()}, each with its own samples alone; the server has none",
            f"what they do has the key {link.key}",
            f"leaves each site, at most: its model, numbers of samples and steps, mean loss{'; and' if leaves else ''}",
            *(f"  {line}" for line in leaves),
            *(
                [f"{', '.join(link.own_streams)} draw for training from secrets of their own"]
                if link.own_streams
                else []
            ),
            *([f"executor.allow names {', '.join(unsent)}, which this method does not send"] if unsent else []),
        ]

    def _opened(self, cfg: DictConfig, federation: Federation, method: Method, folder: Path) -> Link:
        """The run, opened at a runtime for each client.

        Raises:
            UserError: naming sites that take no part.
        """
        base = folder / FOLDER if self.folder is None else Path(self.folder).expanduser()
        names = {client: federation.called(client) for client in federation.with_data}
        link = Link(
            self._transport(federation, names, base),
            names,
            federation.sizes,
            method,
            _name_of(folder),
            shared(compose.resolved(cfg), federation.dataset),
            federation.dataset.classes,
            folder,
            waiting=Waiting(self.ttl, self.patience, self.absent == "drop", self.least),
            forget=tuple(map(str, self.forget)),
        )
        link.open()
        return link

    def _transport(self, federation: Federation, names: Mapping[int, str], base: Path) -> Transport:
        """A runtime for each client, by its name, in folders below ``base``."""
        policy = Policy(
            *(tuple(self.allow), self.max_epsilon, self.least_samples, self.approve, self.counts, self.min_count),
            streams=self.streams,
        )
        building, device = _Building(), str(self.network.device)
        runtimes = {
            name: SiteRuntime(site_data(federation, client), base / str(client), policy, device, building)
            for client, name in names.items()
        }
        return Loopback(runtimes)

    def _where(self) -> str:
        """Where the sites are."""
        return "in this process"

    def _held_out(self, federation: Federation) -> bool:
        """Whether sites hold samples out, on which they score models."""
        return len(federation.validation) > 0

    @property
    def link(self) -> Link:
        """The run at its sites."""
        assert self._links, "the run was opened"
        return self._links[0]

    def map(
        self, job: ClientJob[T], tasks: Sequence[ClientTask], reduce: Callable[[list[T]], Block[V, T]]
    ) -> Iterator[Block[V, T]]:
        """Blocks in order, of what the sites have answered."""
        return self.link.map(job, tasks, reduce)

    def pop_tally(self) -> Tally:
        """The samples that have passed the server's network and the sites' since the last call."""
        here, there = self.network.meter.pop(), self.link.tally
        self.link.tally = Tally()
        return Tally(here.trained + there.trained, here.scored + there.scored)

    def close(self) -> None:
        """Write what has crossed."""
        for link in self._links:
            link.close()

    def settings(self) -> dict[str, Any]:
        """The sites' policy, how long they are waited for, and what nobody can repeat."""
        names = ("allow", "max_epsilon", "least_samples", "approve", "counts", "min_count", "folder")
        waiting = ("ttl", "patience", "absent", "least")
        return {name: getattr(self, name) for name in (*names, *waiting)} | self._conditions()

    def _conditions(self) -> dict[str, Any]:
        """What nobody can repeat: whose states were given up, and whose draws are their own."""
        own = sorted({site for link in self._links for site in link.own_streams})
        forgotten = {"forget": [str(name) for name in self.forget]} if self.forget else {}
        return forgotten | ({"own_streams": own} if own else {})


def _name_of(run: Path) -> str:
    """The name under which sites know a run, wherever its folder is: random, and made once."""
    path = run / NAMED
    if not path.exists():
        write_atomically(path, secrets.token_hex(16).encode())
    return path.read_text()


class _Building:
    """Builds what runtimes run jobs with, once for all runtimes of a process."""

    def __init__(self) -> None:
        self._made: dict[str, Built] = {}

    def __call__(self, text: str, dataset: Dataset, device: str) -> Built:
        if text not in self._made:
            self._made[text] = built(text, dataset, device)
        return self._made[text]


def site_data(federation: Federation, client: int) -> SiteData:
    """What one client of a simulated federation would have at its site: copies of its own samples, without the truth.

    Raises:
        UserError: if the data set's images cannot be divided.
    """
    data, index = federation.dataset, federation.clients[client]
    take = getattr(data.train, "take", None)
    if take is None:
        raise UserError(f"executor=sites: the samples of {data.name} cannot be divided: they have no take(index)")
    names = index.tolist() if data.ids is None else [data.ids[i] for i in index.tolist()]
    nobody = np.zeros(0, np.int64)
    own = replace(
        data,
        train=take(index),
        given=federation.given[index].numpy(),
        truth=None,
        test=take(nobody),
        test_labels=nobody,
        clients=None,
        client_names=None,
        test_clients=None,
        people=None if data.people is None else data.people[:, index],
        texts=None if data.texts is None else [data.texts[i] for i in index.tolist()],
        ids=[str(name) for name in names],
        fingerprint="",
        names_fingerprint=None,
    )
    aside = federation.validation[federation.held_out_by == client]
    held_out = Samples(take(aside), torch.arange(len(aside)), federation.given[aside])
    return SiteData(federation.called(client), own, held_out if len(aside) else None)
