"""Evaluates a run on a server that has none of its sites' samples and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flnl.core.findings import LabelShares, NoisyClients, first, scalars
from flnl.core.messages import Kept, kept_by_client
from flnl.core.payload import Params
from flnl.core.state import FederatedState
from flnl.evaluation.estimates import noise_columns
from flnl.evaluation.evaluator import Evaluator
from flnl.evaluation.probabilities import Probabilities
from flnl.evaluation.recording import Sums


@dataclass(frozen=True)
class Counted:
    """What a site tells of its labels at the end of a run; None if it keeps that to itself."""

    flagged: int | None  # suspected or changed
    changed: int | None  # not the given ones


@dataclass(frozen=True)
class SiteEvaluator(Evaluator):
    """Scores models on the server's test set, and knows of sites' labels what these have told.

    ``end`` tells all sites the end of the run, and fills ``told`` with each client's numbers.
    """

    told: dict[int, Counted] = field(default_factory=dict)
    end: Callable[[FederatedState], None] = lambda state: None
    record: Callable[[Params, Sums], None] = lambda params, sums: None  # tells all sites to add a model's to their sums
    held_out: Callable[[Params, int], dict[str, float]] | None = None  # scores at the sites; None: nothing is held out

    def model(self, params: Params, after: FederatedState | None = None) -> dict[str, float]:
        """As without sites; on held-out samples, as these score it, which is the test if the server has none.

        If sites do not answer, the server has recorded nothing either: the run is kept as it was before this round.
        """
        with self._recorded_if_answered():
            scores, told = self._asked(params, after)
        if told and not len(self.federation.tested):
            return {**scores, "accuracy": told["validation_accuracy"], "test_loss": told["validation_loss"]}
        return scores | told

    def _asked(self, params: Params, after: FederatedState | None) -> tuple[dict[str, float], dict[str, float]]:
        """Scores here and at the sites, after all have recorded the model if it is to be recorded."""
        before = () if self.recorder is None else self.recorder.sums.rounds
        scores = super().model(params, after)
        if self.recorder is not None and self.recorder.sums.rounds != before:
            self.record(params, self.recorder.sums)
        return scores, {} if self.held_out is None else self.held_out(params, 0 if after is None else after.round)

    @contextmanager
    def _recorded_if_answered(self) -> Iterator[None]:
        """Give the recorder its earlier sums back if the block raises."""
        if (recorder := self.recorder) is None:
            yield
            return
        before = deepcopy(recorder.sums)  # they are added to in place
        try:
            yield
        except BaseException:
            recorder.sums = before
            raise

    @property
    def has_labels(self) -> bool:
        """No: each site writes its own."""
        return False

    def probabilities(self, state: FederatedState, key: str) -> Probabilities:
        """Those of the test set; what sites have recorded stays there."""
        assert self.recorder is not None, "the run records probabilities"
        self.network.load(state.server.params)
        nobody, fingerprint = np.zeros(0, np.int64), self.federation.fingerprint
        return self.recorder.probabilities(
            client=nobody, sample=nobody, key=key, federation=fingerprint, round=state.round
        )

    def finish(self, state: FederatedState) -> None:
        """Let each site write what it gets out of the run."""
        self.end(state)

    def correction(self, before: FederatedState, after: FederatedState, asked: Sequence[int]) -> dict[str, Any]:
        """Record one correction: what the server knows of clients, and how many labels were changed.

        That is left out if a site that corrected labels keeps it to itself.
        """
        clients, chosen, kept = list(self.federation.with_data), set(asked), kept_by_client(after.clients, Kept)
        of_corrector = self.method.findings_of_corrector(after, self.federation.sizes)
        findings = [*self._measured(after), *of_corrector]
        summary: dict[str, Any] = {"asked": len(asked)}
        relabelled = [kept[client].relabelled for client in asked if client in kept]
        if None not in relabelled:
            summary["relabelled"] = sum(relabelled)
        split = first(findings, NoisyClients)
        if split is not None and split.mixture:
            summary["mixture"] = list(split.mixture)
        rows = {"client": clients, "asked": [c in chosen for c in clients], **noise_columns(findings, clients)}
        return {**summary, **scalars(of_corrector), **_sum("changed", kept.values()), "clients": rows}

    def labels(self, state: FederatedState) -> dict[str, float]:
        """The numbers of flagged and of changed labels, if all sites have told them, and the method's estimates."""
        flagged = _sum("flagged", self.told.values())
        if flagged:
            flagged = {"labels": float(sum(self.federation.counts)), **flagged, **_sum("changed", self.told.values())}
        return flagged | self.estimates(state)

    def shared(self, state: FederatedState) -> dict[str, float]:
        """The smallest entry of a shared label distribution, and the privacy budget epsilon that a site has spent."""
        shares = first(self._measured(state), LabelShares)
        if shares is None:
            return {}
        return {"label_distribution_least": shares.least, "label_privacy_epsilon": shares.epsilon}


def _sum(name: str, told: Iterable[Kept | Counted]) -> dict[str, float]:
    """The sum of a number that all have told, by its name; empty if one keeps it to itself, or there is none."""
    values = [getattr(one, name) for one in told]
    return {name: float(sum(values))} if values and None not in values else {}
