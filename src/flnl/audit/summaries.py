"""Tables of an audit: by client, by pair of classes, and what to review."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flnl.audit.precision import wilson
from flnl.audit.result import AuditedSamples, ClientSummary, PairSummary, Review, WrongLabels
from flnl.audit.scores import ranks
from flnl.audit.verdicts import Verdict
from flnl.core.images import Indices
from flnl.core.streams import stream

SMALL, OTHERS = "small clients", "other clients"
REVIEWED = 50
"""Issues drawn at random for a review."""


def by_client(samples: AuditedSamples, rates: Sequence[float], below: Indices, classes: int) -> list[ClientSummary]:
    """A row for each client, by number.

    Args:
        samples: all samples.
        rates: each client's share of disagreements as the prior sees it [C].
        below: each client's samples below the curve's cuts [C, 101].
        classes: the number of classes K.
    """
    clients = np.unique(samples.client)
    place = np.searchsorted(clients, samples.client)
    count = len(clients)

    def counted(mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[int]:
        counts: list[int] = np.bincount(place[mask], minlength=count).tolist()
        return counts

    differs, flagged = samples.predicted != samples.given, samples.method_flagged
    sizes, disagreements, issues = counted(np.ones(len(samples), np.bool_)), counted(differs), counted(samples.is_issue)
    flags: Sequence[int | None] = [None] * count if flagged is None else counted(flagged)
    ends = np.searchsorted(place, np.arange(count + 1))  # samples are sorted by client
    return [
        ClientSummary(
            name=samples.owner[int(ends[c])],
            clients=(int(clients[c]),),
            samples=sizes[c],
            disagreements=disagreements[c],
            issues=issues[c],
            flagged=flags[c],
            rate=float(rates[c]),
            pair=most_frequent(samples, slice(int(ends[c]), int(ends[c + 1])), classes),
            below=tuple(below[c].tolist()),
        )
        for c in range(count)
    ]


def pooled(rows: Sequence[ClientSummary], name: str) -> ClientSummary:
    """Several clients in one row."""
    return ClientSummary(
        name=name,
        clients=tuple(client for row in rows for client in row.clients),
        samples=sum(row.samples for row in rows),
        disagreements=sum(row.disagreements for row in rows),
        issues=sum(row.issues for row in rows),
        flagged=None if any(row.flagged is None for row in rows) else sum(row.flagged or 0 for row in rows),
        rate=None,
        pair=None,
        below=tuple(np.sum([row.below for row in rows], axis=0).tolist()),
        wrong=WrongLabels.of_all([row.wrong for row in rows]),
    )


def with_small_pooled(rows: Sequence[ClientSummary], least: int) -> tuple[ClientSummary, ...]:
    """The rows, those of clients with fewer than ``least`` samples in one row at the end."""
    small = [row for row in rows if row.samples < least]
    large = [row for row in rows if row.samples >= least]
    return (*large, pooled(small, SMALL)) if small else tuple(large)


def of_one(rows: Sequence[ClientSummary], place: int) -> tuple[ClientSummary, ...]:
    """The row at ``place``, and all others in one."""
    others = [*rows[:place], *rows[place + 1 :]]
    return (rows[place], pooled(others, OTHERS)) if others else (rows[place],)


def by_pair(samples: AuditedSamples, classes: int) -> tuple[PairSummary, ...]:
    """Issues by given and predicted class, the largest first; equal ones by given, then predicted class."""
    at = samples.is_issue
    counts = np.bincount(samples.given[at] * classes + samples.predicted[at], minlength=1)
    order = np.argsort(-counts, kind="stable")
    return tuple(
        PairSummary(int(cell) // classes, int(cell) % classes, int(counts[cell])) for cell in order if counts[cell]
    )


def most_frequent(samples: AuditedSamples, part: slice, classes: int) -> tuple[int, int] | None:
    """The most frequent (given, predicted) of the issues in a part of the samples."""
    at = samples.is_issue[part]
    if not at.any():
        return None
    cells, counts = np.unique(samples.given[part][at] * classes + samples.predicted[part][at], return_counts=True)
    cell = int(cells[counts.argmax()])
    return cell // classes, cell % classes


def to_review(samples: AuditedSamples, seed: int, purpose: int = 0) -> Indices:
    """Up to 50 issues, drawn at random, ascending."""
    issues = np.flatnonzero(samples.is_issue)
    return np.sort(stream(seed, "audit review", purpose).permutation(issues)[:REVIEWED]).astype(np.int64)


def reviewed(verdicts: Mapping[int, Verdict], sample: Indices) -> Review:
    """What verdicts say, and of the random ``sample`` of issues with what certainty.

    There is no precision before the whole sample is judged: who judges by rank begins with the most suspicious of it.
    """
    judgements = [verdict.judgement for verdict in verdicts.values()]
    drawn = [verdicts[i].judgement for i in sample.tolist() if i in verdicts]
    decided = [judgement for judgement in drawn if judgement != "unsure"]
    wrong = decided.count("wrong")
    told = bool(decided) and len(drawn) == len(sample)
    return Review(
        right=judgements.count("right"),
        wrong=judgements.count("wrong"),
        unsure=judgements.count("unsure"),
        drawn=len(sample),
        judged=len(drawn),
        sampled=len(decided),
        precision=wrong / len(decided) if told else None,
        interval=wilson(wrong, len(decided)) if told else None,
    )


def part_of(samples: AuditedSamples, index: Indices) -> AuditedSamples:
    """Some of the samples, ranked among themselves."""
    part: dict[str, Any] = {k: array[index] for k, array in vars(samples).items() if isinstance(array, np.ndarray)}
    part |= {key: [getattr(samples, key)[i] for i in index.tolist()] for key in ("owner", "name")}
    return replace(samples, **part | {"rank": ranks(part["rank"])})
