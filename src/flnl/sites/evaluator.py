"""Evaluates a run on a server that has none of its sites' samples and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flnl.core.findings import LabelShares, NoisyClients, first, scalars
from flnl.core.payload import Params
from flnl.core.state import FederatedState
from flnl.evaluation.estimates import noise_columns
from flnl.evaluation.evaluator import Evaluator
from flnl.evaluation.probabilities import Probabilities
from flnl.evaluation.recording import Sums


@dataclass(frozen=True)
class Counted:
    """What a site tells of its labels, if it does."""

    relabelled: int | None = None  # by the last correction
    changed: int | None = None  # labels that are not the given ones
    flagged: int | None = None  # at the end: suspected or changed


@dataclass(frozen=True)
class SiteEvaluator(Evaluator):
    """Scores models on the server's test set, and knows of sites' labels what these have told.

    ``told`` has each client's last numbers, and is filled by whoever talks to the sites. ``end`` tells all sites the
    end of the run.
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
        """Give the recorder its sums of before if what is within raises."""
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
        clients, chosen = list(self.federation.with_data), set(asked)
        of_corrector = self.method.findings_of_corrector(after, self.federation.sizes)
        findings = [*self._measured(after), *of_corrector]
        summary: dict[str, Any] = {"asked": len(asked)}
        relabelled = [self.told.get(client, Counted()).relabelled for client in asked]
        if None not in relabelled:
            summary["relabelled"] = sum(relabelled)
        split = first(findings, NoisyClients)
        if split is not None and split.mixture:
            summary["mixture"] = list(split.mixture)
        rows = {"client": clients, "asked": [c in chosen for c in clients], **noise_columns(findings, clients)}
        return {**summary, **scalars(of_corrector), **self._sums("changed"), "clients": rows}

    def labels(self, state: FederatedState) -> dict[str, float]:
        """The numbers of flagged and of changed labels, if all sites have told them, and the method's estimates."""
        flagged = self._sums("flagged")
        if flagged:
            flagged = {"labels": float(sum(self.federation.counts)), **flagged, **self._sums("changed")}
        return flagged | self.estimates(state)

    def _sums(self, name: str) -> dict[str, float]:
        """The sum of what all sites have told; empty if one that has told something has left it out, or none has."""
        values = [getattr(one, name) for one in self.told.values()]
        return {name: float(sum(values))} if values and None not in values else {}

    def shared(self, state: FederatedState) -> dict[str, float]:
        """The smallest entry of a shared label distribution, and the privacy budget epsilon that a site has spent."""
        shares = first(self._measured(state), LabelShares)
        if shares is None:
            return {}
        return {"label_distribution_least": shares.least, "label_privacy_epsilon": shares.epsilon}
