"""What verdicts say of the number of wrong labels: those on issues drawn at random, and all others.

A random sample tells how many of the issues are wrong, whatever the scores are; those that are missed are estimated
from scores. Verdicts on other labels, mostly the most suspicious ones, are no sample: each fixes its own label only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from flnl.audit.precision import wilson
from flnl.audit.result import AuditedSamples, WrongLabels
from flnl.audit.summaries import part_of, to_review
from flnl.audit.verdicts import Judgement, Verdict
from flnl.audit.wrong_labels import Estimate
from flnl.core.images import Indices

FEWEST = 20
"""Issues judged at random from which their precision is told for a single client, if it has as many."""

TINY = 1e-9
"""Smallest divisor."""


@dataclass(frozen=True)
class Judged:
    """What was judged of a client's labels."""

    issues: Counter[Judgement]
    others: Counter[Judgement]  # labels that are no issues
    drawn: Counter[Judgement]  # of issues drawn at random; empty before all of the draw are judged

    @classmethod
    def of(
        cls, verdicts: Mapping[int, Verdict], samples: AuditedSamples, index: Indices, draws: Sequence[Indices]
    ) -> Self:
        """Of the samples at ``index`` [n] in ``samples``, by the first of the ``draws`` that says enough."""
        mine = set(index.tolist())
        issues, others = Counter[Judgement](), Counter[Judgement]()
        for i, verdict in verdicts.items():
            if i in mine:
                (issues if samples.is_issue[i] else others)[verdict.judgement] += 1
        enough = min(FEWEST, int(samples.is_issue[index].sum()))
        for draw in draws:
            if all(i in verdicts for i in draw.tolist()):
                drawn = Counter(verdicts[i].judgement for i in draw.tolist() if i in mine)
                if 0 < enough <= drawn["right"] + drawn["wrong"]:
                    return cls(issues, others, drawn)
        return cls(issues, others, Counter())


def numbers(
    estimates: Sequence[Estimate] | None, samples: AuditedSamples, verdicts: Mapping[int, Verdict], seed: int
) -> tuple[list[WrongLabels | None], WrongLabels | None]:
    """How many labels of each client are wrong, by number, and of all: what all are expected to have is the sum.

    Clients of whom too little of the common draw was judged are taken together: it tells what they have in all, and
    their own numbers are scaled to that.

    Args:
        estimates: from scores, of each client; None if there are none.
        samples: the samples, by client.
        verdicts: those on samples, by index.
        seed: of the draws.
    """
    clients = np.unique(samples.client)
    if not verdicts:
        alone = [None if estimates is None else estimates[c].every for c in range(len(clients))]
        return alone, WrongLabels.of_all(alone)
    parts = np.split(np.arange(len(samples)), np.searchsorted(samples.client, clients[1:]))
    common, found = to_review(samples, seed), list[WrongLabels | None]()
    for c, (client, index) in enumerate(zip(clients.tolist(), parts, strict=True)):
        own = index[to_review(part_of(samples, index), seed, 1 + client)]
        estimate = None if estimates is None else estimates[c]
        found.append(_of(estimate, samples, Judged.of(verdicts, samples, index, (own, common)), index))
    rest = [c for c, one in enumerate(found) if one is not None and not one.judged]
    if estimates is None or not rest:
        return found, WrongLabels.of_all(found)
    index = np.concatenate([parts[c] for c in rest])
    judged = Judged.of(verdicts, samples, index, (common,))
    every, missed = (_sum([getattr(estimates[c], name) for c in rest]) for name in ("every", "missed"))
    together = _of(Estimate(every, missed), samples, judged, index)
    if not judged.drawn or together is None:
        return found, WrongLabels.of_all(found)
    factor = together.expected / max(every.expected, TINY)
    for c in rest:
        mine = Judged.of(verdicts, samples, parts[c], ())
        found[c] = _scaled(estimates[c].every, factor, len(parts[c]), mine)
    expected = sum(one.expected for c in rest if (one := found[c]) is not None)
    together = replace(
        together,
        expected=expected,
        low=min(together.low, math.floor(expected)),
        high=max(together.high, math.ceil(expected)),
    )
    return found, WrongLabels.of_all([one for c, one in enumerate(found) if c not in rest] + [together])


def _sum(parts: Sequence[WrongLabels]) -> WrongLabels:
    total = WrongLabels.of_all(parts)
    assert total is not None, "there are parts, and all are known"
    return total


def _scaled(found: WrongLabels, factor: float, samples: int, judged: Judged) -> WrongLabels:
    """The number of a client with ``samples`` by a factor; the interval has both, and goes by its verdicts."""
    low, high = math.floor(found.low * min(factor, 1)), math.ceil(found.high * max(factor, 1))
    sure = judged.issues + judged.others
    return within(WrongLabels(found.expected * factor, low, high), sure["wrong"], samples - sure["right"])


def _of(estimate: Estimate | None, samples: AuditedSamples, judged: Judged, index: Indices) -> WrongLabels | None:
    """The number of wrong labels at ``index`` [n]; None without an estimate, unless all of them are judged."""
    sure = judged.issues + judged.others
    if sure["wrong"] + sure["right"] == len(index):
        return WrongLabels(sure["wrong"], sure["wrong"], sure["wrong"], len(index))
    return None if estimate is None else with_verdicts(estimate, len(index), int(samples.is_issue[index].sum()), judged)


def with_verdicts(estimate: Estimate, samples: int, issues: int, judged: Judged) -> WrongLabels:
    """The estimate for a client with ``samples``, of which ``issues`` are listed, and verdicts on some."""
    right, wrong = judged.drawn["right"], judged.drawn["wrong"]
    if not right + wrong:
        sure = judged.issues + judged.others
        return within(estimate.every, sure["wrong"], samples - sure["right"])
    low, high = wilson(wrong, right + wrong)
    listed = WrongLabels(issues * wrong / (right + wrong), math.floor(issues * low), math.ceil(issues * high))
    listed = within(listed, judged.issues["wrong"], issues - judged.issues["right"])
    missed = within(estimate.missed, judged.others["wrong"], samples - issues - judged.others["right"])
    return WrongLabels(
        listed.expected + missed.expected, listed.low + missed.low, listed.high + missed.high, right + wrong
    )


def within(found: WrongLabels, least: int, most: int) -> WrongLabels:
    """The same, but at least ``least`` and at most ``most``.

    >>> within(WrongLabels(3.5, 0, 9), 4, 8)
    WrongLabels(expected=4, low=4, high=8, judged=0)
    """
    low, high = (min(max(end, least), most) for end in (found.low, found.high))
    return WrongLabels(min(max(found.expected, least), most), low, high, found.judged)
