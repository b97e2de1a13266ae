"""What verdicts say of the number of wrong labels: those on issues drawn at random, and all others.

A random sample tells how many of the issues are wrong, whatever the scores are; those that are missed are estimated
from scores. Verdicts on other labels, mostly the most suspicious ones, are no sample: each fixes its own label only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


def wrong_by_client(
    estimates: Sequence[Estimate], samples: AuditedSamples, verdicts: Mapping[int, Verdict], seed: int
) -> list[WrongLabels]:
    """How many labels of each client are wrong, by number, with the ``verdicts`` on samples by index."""
    if not verdicts:
        return [one.every for one in estimates]
    clients = np.unique(samples.client)
    ends = np.searchsorted(samples.client, np.append(clients, clients[-1] + 1)).tolist()
    common, found = to_review(samples, seed), []
    for estimate, client, start, stop in zip(estimates, clients.tolist(), ends, ends[1:], strict=False):
        index = np.arange(start, stop)
        own = index[to_review(part_of(samples, index), seed, 1 + client)]
        judged = Judged.of(verdicts, samples, index, (own, common))
        found.append(with_verdicts(estimate, len(index), int(samples.is_issue[index].sum()), judged))
    return found


def wrong_of_all(
    estimates: Sequence[Estimate], samples: AuditedSamples, verdicts: Mapping[int, Verdict], seed: int
) -> WrongLabels | None:
    """How many of all labels are wrong."""
    every, missed = (WrongLabels.of_all([getattr(one, name) for one in estimates]) for name in ("every", "missed"))
    if every is None or missed is None:
        return None
    judged = Judged.of(verdicts, samples, np.arange(len(samples)), (to_review(samples, seed),))
    return with_verdicts(Estimate(every, missed), len(samples), int(samples.is_issue.sum()), judged)


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
