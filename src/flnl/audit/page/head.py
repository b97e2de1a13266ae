"""The head of a page: what was audited, how many labels stand out, and what the numbers mean."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flnl.audit.page.markup import Markup, element, joined, percent
from flnl.audit.result import Audit, WrongLabels


def head(audit: Audit) -> Markup:
    """Title, source, numbers, notes and limits."""
    total, issues = audit.size, audit.issues
    precision = audit.precision.of_issues
    wrong = audit.wrong
    tiles = [
        (f"{total:,}", f"labels of {_counted(_number_of_clients(audit), 'client')}, {len(audit.classes)} classes"),
        *([] if wrong is None else [(f"{round(wrong.expected):,}", _about(wrong))]),
        (f"{issues:,}", f"issues: {percent(issues / total, 1)} of the labels are suspected"),
        ("–" if precision is None else percent(precision), "expected precision of the issues, a cautious number"),
    ]
    if audit.review is not None and audit.review.precision is not None:
        low, high = audit.review.interval or (0.0, 1.0)
        tiles.append(
            (percent(audit.review.precision), f"precision in review (95 % interval: {percent(low)} to {percent(high)})")
        )
    return joined(
        element("p", "Label audit", class_="over"),
        element("h1", audit.title),
        element("p", f"Probabilities: {audit.source.description}. Score: {audit.options.score.replace('_', ' ')}."),
        "" if audit.source.choice is None else element("p", _sentence(audit.source.choice.reason)),
        element("ul", *(element("li", element("b", n), element("span", what)) for n, what in tiles), class_="tiles"),
        element("p", "Nothing stands out.", class_="calm") if not issues else "",
        *(element("p", _sentence(note), class_="note") for note in audit.notes),
        element(
            "details",
            element("summary", "What these numbers say, and what they do not"),
            element("ul", *(element("li", limit) for limit in limits(audit))),
        ),
    )


def _about(wrong: WrongLabels) -> str:
    how = ", by review" if wrong.judged else ""
    return f"are expected to be wrong (95 % interval: {wrong.low:,} to {wrong.high:,}{how})"


def _number_of_clients(audit: Audit) -> int:
    if not len(audit.samples):
        return sum(len(row.clients) for row in audit.by_client)
    return len(np.unique(audit.samples.client))


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _sentence(note: str) -> str:
    """A note as a sentence: with a capital letter and a full stop."""
    return f"{note[:1].upper()}{note[1:]}{'' if note.endswith(('.', '!', '?')) else '.'}"


def limits(audit: Audit) -> Iterator[str]:
    """What a reader has to know of the numbers and of the data on the page, a sentence or two each."""
    tested, total = audit.precision.test_samples, audit.size
    yield "An issue is a label that the models doubt, not one known to be wrong. Look before you change a label."
    if tested:
        yield (
            "The expected precision compares the scores of the clients' labels with those of the test set, which is "
            "taken for clean. It tends to be too low, since the models have seen the clients' samples; a test set that "
            "is easier than the clients' data makes it too high."
        )
        yield (
            f"Among {_counted(tested, 'test sample')}, a share of wrong suspicions below 1 in {tested:,} is invisible: "
            f"up to {total / tested:,.1f} wrong ones may hide behind a precision of 100 %."
        )
    if audit.wrong is not None:
        yield (
            "How many labels are wrong is estimated from how right and wrong labels of the test set score; it is not "
            "how many are listed. Labels that were memorised make the interval wide, and a test set that differs from "
            "a client's data misleads it."
        )
    if len(audit.samples):
        yield (
            "This page shows names, labels and images of clients' samples. Show it only to people who may see these "
            "data; flnl audit --clients writes a page for each client, with the others' numbers pooled."
        )
    else:
        yield "This page has sums alone: samples, labels and images are at the sites, each of which has its own page."
    yield (
        "The counts and sums that an audit asks of clients tell of their labels. Secure aggregation hides them from "
        "the server, and --label-privacy randomises them."
    )
    epsilon = audit.options.label_privacy
    spent = "Label privacy" if epsilon is None else f"The label privacy of ε = {epsilon:g}"
    yield f"{spent} covers these messages only: the model itself has learned from the labels."
