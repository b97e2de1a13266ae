"""The part of a page that moves the cut on the suspicion score: a slider below the curves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from flnl.audit.page.markup import Markup, element, joined, percent
from flnl.audit.precision import first_cuts
from flnl.audit.result import Audit


def start(audit: Audit) -> int:
    """The cut at which the slider begins, as a position in the curve's cuts.

    It is the audit's own cut, or else the one below which there are about as many labels as issues.
    """
    curve, issues = audit.precision, audit.issues
    if audit.cut is not None:
        return int(np.abs(np.array(curve.cuts) - audit.cut).argmin())
    return int(np.abs(np.array(curve.below) - issues).argmin())


WIDTH, HEIGHT = 100, 40


def section(audit: Audit) -> Markup:
    """The slider, below a drawing of the share of labels below each cut and of their expected precision."""
    at, curve = start(audit), audit.precision
    total = max(1, audit.size)
    steps = len(curve.cuts) - 1
    area = " ".join(f"{WIDTH * i / steps:g},{HEIGHT * (1 - below / total):.2f}" for i, below in enumerate(curve.below))
    drawing = element(
        "svg",
        element("polyline", points=f"0,{HEIGHT} {area} {WIDTH},{HEIGHT}", class_="below"),
        *(element("line", x1=0, x2=WIDTH, y1=y, y2=y, class_="frame") for y in (0, HEIGHT / 2, HEIGHT)),
        *(element("polyline", points=points, class_=which) for points, which in _lines(audit)),
        element("line", x1=WIDTH * at / steps, x2=WIDTH * at / steps, y1=0, y2=HEIGHT, class_="mark", id="mark"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label="Expected precision, and share of all labels, below each cut on the suspicion score",
    )
    slider = element(
        "input",
        type="range",
        id="cut",
        min=0,
        max=steps,
        step=1,
        value=at,
        hidden=True,
        aria_label="Cut on the suspicion score",
    )
    value = curve.expected[at]
    readout = (
        ("cut-at", f"{curve.cuts[at]:.2f}", "cut"),
        ("cut-count", f"{curve.below[at]:,}", "labels below"),
        ("cut-precision", "–" if value is None else percent(value), "expected precision"),
    )
    return joined(
        element(
            "div",
            element("h2", "Where to cut", id="cut-title"),
            element(
                "div",
                *(element("div", element("b", b, id=i), element("span", s)) for i, b, s in readout),
                class_="readout",
            ),
            element(
                "p",
                "Labels with a suspicion score below the cut are shown; the lower the score, the more suspicious.",
                class_="hint",
            ),
            element("p", class_="hint", id="cut-limit", hidden=True),
        ),
        element(
            "div",
            drawing,
            slider,
            element(
                "p",
                element("span", "0"),
                element("span", "cut on the suspicion score"),
                element("span", "1"),
                class_="axis",
            ),
            element("p", *_legend(), class_="legend"),
            class_="drawing",
        ),
    )


def _legend() -> Iterator[Markup]:
    block = element("rect", width=22, height=10, class_="below")
    yield _entry(element("polyline", points="0,5 22,5", class_="precision"), "expected precision, 0 to 100 %")
    yield _entry(element("polyline", points="0,5 22,5", class_="beyond"), "the same above the last suspect, unreliable")
    yield _entry(block, "share of all labels below the cut")


def _entry(sample: Markup, text: str) -> Markup:
    return element("span", element("svg", sample, viewBox="0 0 22 10", aria_hidden="true"), text)


def _lines(audit: Audit) -> Iterator[tuple[str, str]]:
    """The points of each unbroken part of the curve of expected precision, with its class.

    Above the last sample of which another class is likelier, most of what is below a cut is no suspect, and few test
    samples are left to estimate from: there the curve may rise again without reason.
    """
    steps, suspected = len(audit.precision.cuts) - 1, audit.samples.predicted != audit.samples.given
    last = int(first_cuts(audit.samples.suspicion_score[suspected]).max(initial=0))
    points = [
        None if value is None else f"{WIDTH * i / steps:g},{HEIGHT * (1 - value):.2f}"
        for i, value in enumerate(audit.precision.expected)
    ]
    for part, which in ((points[: last + 1], "precision"), (points[last:], "beyond")):
        for known, run in groupby(part, key=lambda point: point is not None):
            if known:
                yield " ".join(filter(None, run)), which
