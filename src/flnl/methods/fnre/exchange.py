"""FNRE's exchange: how often the received model agrees with a client's labels; nothing else changes."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from flnl.core.findings import EstimatedNoise, Finding, Scalar
from flnl.core.messages import ClientState, ClientTask, Fit, Gathered, ServerSamples
from flnl.core.model import Model
from flnl.core.parts import Exchange
from flnl.core.payload import Params, Payload
from flnl.core.ranges import PositiveCount, Share
from flnl.core.reported import PerClass
from flnl.core.stored import stored
from flnl.methods.fnre.rate import LEAST, WORST_CONDITION, Wrong, class_shares, expectations, rates, variances
from flnl.numerics.roots import square_root

log = logging.getLogger(__name__)


@stored("Agreement")
class Agreement:
    """Sent to the server: the share of a client's labels that the received model predicts, and its predictions."""

    value: Share
    predicted: PerClass | None  # float64 [K], shares of predicted classes, if the client's classes are to be estimated


@stored("RoundAgreements")
class RoundAgreements:
    """Of one round."""

    round: int  # from 0
    confusion: Tensor  # int64 [K, K], of the received model on the clean samples
    agreement: Tensor  # float64 [N]; NaN for a client that has not taken part
    predicted: Tensor  # float64 [N, K]; [N, 0] if clients do not send it

    @property
    def right(self) -> float:
        """a, the share of clean samples on which the model is right."""
        return float(self.confusion.trace() / self.confusion.sum())


@stored("NoiseRateState")
class NoiseRateState:
    """The server's state: the rounds that count."""

    samples: Tensor  # float64 [N]
    rounds: tuple[RoundAgreements, ...] = ()


@dataclass(frozen=True)
class NoiseRates(Exchange):
    """Each client's share of wrong labels, from its agreement g with the received model, and the model's accuracy a.

    a is measured on clean samples of the server. ``rounds=peak`` counts rounds whose a is within a standard error of
    the largest so far: later, a model that has learned labels by heart agrees with wrong ones. A list: these rounds,
    from 1; ``all``: every round. ``prior=shift`` estimates each client's classes from the model's predictions, and a
    for them; it falls back to the server's where a class has no clean sample, or the confusion matrix is near singular.
    ``wrong=next``: wrong labels are of the next class.

    It only finds out: training and its draws are as without it.
    """

    reports: ClassVar[tuple[type, ...]] = (Agreement,)
    aid: ClassVar[tuple[type, ...]] = (ServerSamples,)

    prior: Literal["shared", "shift"]
    wrong: Wrong
    rounds: Literal["peak", "all"] | list[PositiveCount]

    def init(self, clients: int, params: Params) -> NoiseRateState:
        return NoiseRateState(torch.full((clients,), torch.nan, dtype=torch.float64))

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """The agreement of the model that was received, in eval mode; the trained one would show what it has fitted."""
        predicted = network.received(task).argmax(1)
        agreement = float((predicted == task.labels).double().mean()) if len(predicted) else float("nan")
        if self.prior == "shared":
            return Payload(Agreement(agreement, None)), Payload()
        shares = torch.bincount(predicted, minlength=network.num_classes).double() / max(len(predicted), 1)
        return Payload(Agreement(agreement, shares)), Payload()

    def gathered(self, state: NoiseRateState, gathered: Gathered) -> NoiseRateState:
        """The rounds that count, with this one if it does."""
        sent = {r.client: one for r in gathered.results if (one := r.reports.get(Agreement)) is not None}
        round = gathered.broadcast.round
        if not sent or (isinstance(self.rounds, list) and round + 1 not in self.rounds):
            return state
        count = gathered.aid.one(ServerSamples).confusion
        assert count is not None, "the evaluator counts"
        confusion = count(gathered.broadcast.params)
        clients, samples = list(sent), state.samples.clone()
        samples[clients] = torch.tensor(
            [float(gathered.num_samples[client]) for client in clients], dtype=torch.float64
        )
        agreement = torch.full_like(state.samples, torch.nan)
        agreement[clients] = torch.tensor([one.value for one in sent.values()], dtype=torch.float64)
        width = 0 if self.prior == "shared" else len(confusion)
        predicted = torch.full((len(agreement), width), torch.nan, dtype=torch.float64)
        for client, one in sent.items():
            if one.predicted is not None:
                predicted[client] = one.predicted
        rows = self._counting((*state.rounds, RoundAgreements(round, confusion, agreement, predicted)))
        if round + 1 == self._last(gathered.broadcast.lengths):
            _warn_if_hardly_right(rows)
        return NoiseRateState(samples, rows)

    def _last(self, lengths: tuple[int, ...]) -> int:
        """The last round that counts, from 1."""
        rounds = range(1, sum(lengths) + 1) if isinstance(self.rounds, str) else self.rounds
        return max((round for round in rounds if round <= sum(lengths)), default=0)

    def _counting(self, rows: tuple[RoundAgreements, ...]) -> tuple[RoundAgreements, ...]:
        if self.rounds != "peak":
            return rows
        best = max(row.right for row in rows)
        error = (best * (1 - best) / float(rows[0].confusion.sum())) ** 0.5
        return tuple(row for row in rows if row.right >= best - error)

    def estimates(self, state: NoiseRateState) -> tuple[Tensor, Tensor]:
        """ρ, not clipped, and its standard error, float64 [N] each; NaN where there is no estimate."""
        seen = torch.stack([row.agreement for row in state.rounds])
        there = ~seen.isnan()
        agreement = _mean(seen, there)
        each = [self._expected(row) for row in state.rounds]
        right, by_chance = (_mean(torch.stack([one[i] for one in each]), there) for i in (0, 1))
        found = rates(agreement, right, by_chance)
        counts = state.rounds[-1].confusion
        known = variances(found, agreement, right, by_chance, self.wrong, len(counts), state.samples, int(counts.sum()))
        return found, square_root(known.clamp_min(0))

    def _expected(self, row: RoundAgreements) -> tuple[Tensor, Tensor]:
        counts = row.confusion.double()
        confusion = counts / counts.sum(1, keepdim=True).clamp_min(1)
        prior = (counts.sum(1) / counts.sum()).expand(len(row.agreement), -1)
        if (
            self.prior == "shift"
            and bool((counts.sum(1) > 0).all())
            and float(torch.linalg.cond(confusion)) <= WORST_CONDITION
        ):
            prior = class_shares(confusion, row.predicted)
        return expectations(confusion, prior, self.wrong)

    def findings(
        self, state: NoiseRateState, clients: Mapping[int, ClientState], known: Payload
    ) -> tuple[Finding, ...]:
        """Each client's rate, clipped to [0, 1], its standard error, and the mean of rates that are not clipped."""
        if not state.rounds:
            return ()
        found, error = self.estimates(state)
        levels = EstimatedNoise(found.clamp(0, 1), {"fnre_se": error, "fnre_rate": found})
        rounds = Scalar("fnre_rounds", float(len(state.rounds)))
        usable = found[~found.isnan()]
        return (levels, rounds, Scalar("fnre_mean", float(usable.mean()))) if len(usable) else (levels, rounds)


def _warn_if_hardly_right(rows: tuple[RoundAgreements, ...]) -> None:
    """Say that there is no estimate, if so, where wrong labels go to all other classes alike."""
    right, classes = sum(row.right for row in rows) / len(rows), len(rows[0].confusion)
    if right - (1 - right) / (classes - 1) < LEAST:
        log.warning(
            "no noise rates are estimated: the model is right on %.2f of the clean samples, hardly more than chance",
            right,
        )


def _mean(values: Tensor, there: Tensor) -> Tensor:
    """The mean over the rounds in which a client took part [N], of values and masks [rounds, N]; NaN for none."""
    count = there.sum(0)
    return torch.where(count > 0, torch.where(there, values, 0.0).sum(0) / count.clamp_min(1), torch.nan)
