"""The tables of a page: issues by client, and by given and suggested class."""

from __future__ import annotations

from flnl.audit.page.markup import Markup, element, joined
from flnl.audit.result import Audit, ClientSummary, PairSummary

MOST_CLIENTS = 1000
"""Number of clients in the table; ``audit.json`` has all."""
MOST_CLASSES = 30
"""Number of classes up to which pairs are shown as a matrix, and otherwise as a list."""
MOST_PAIRS = 100
"""Number of pairs in the list."""
SHADES = 5
WIDE, SHORT = 5, 3
"""A matrix of more classes, some with longer names, has its columns' names upright."""


def shown_clients(audit: Audit) -> list[tuple[int, ClientSummary]]:
    """The clients in the table with their positions in ``by_client``: the ones with the most issues, in that order."""
    numbered = list(enumerate(audit.by_client))
    if len(numbered) <= MOST_CLIENTS:
        return numbered
    return sorted(numbered, key=lambda one: -one[1].issues)[:MOST_CLIENTS]


def clients(audit: Audit) -> Markup:
    """Issues by client, a row each."""
    shown = shown_clients(audit)
    judged = any(one.flagged is not None for one in audit.by_client)
    counted = any(one.wrong is not None for one in audit.by_client)
    columns = ["client", "samples", *(["wrong"] if counted else []), "issues", *(["flagged"] if judged else [])]
    columns.append("below cut")
    header = element("tr", *(_sortable(name, at) for at, name in enumerate(columns)))
    left = len(audit.by_client) - len(shown)
    more = f" These are the {len(shown):,} with the most issues; audit.json has all {len(audit.by_client):,}."
    return joined(
        element("h2", "By client", id="clients-title"),
        element(
            "p",
            _wrong_said(audit) if counted else "The share of issues is not the share of wrong labels. ",
            "Issues are listed, below the cut is where the slider is. Choose a client to see its issues.",
            " Flagged: by the method itself." if judged else "",
            more if left else "",
            class_="hint",
        ),
        element(
            "div",
            element(
                "table",
                element("thead", header),
                element("tbody", *(_client(at, one, judged, counted) for at, one in shown)),
                id="clients",
            ),
            class_="scroll",
        ),
    )


def _sortable(name: str, at: int) -> Markup:
    return element("th", element("button", name, type="button", data_column=at), scope="col", aria_sort="none")


def _client(at: int, one: ClientSummary, judged: bool, counted: bool) -> Markup:
    flags = "" if one.flagged is None else f"{one.flagged:,}"
    wrong = -1.0 if one.wrong is None else one.wrong.expected / max(one.samples, 1)
    return element(
        "tr",
        element("th", element("button", one.name, type="button", data_client=at), scope="row", data_value=at),
        element("td", f"{one.samples:,}", data_value=one.samples),
        element("td", _wrong(one), data_value=f"{wrong:.6f}", title=sentence(one)) if counted else "",
        element("td", f"{one.issues:,}", data_value=one.issues),
        element("td", flags, data_value=-1 if one.flagged is None else one.flagged) if judged else "",
        element("td", "–", data_below=at, data_value=0),
    )


def _wrong_said(audit: Audit) -> str:
    judged = any(one.wrong is not None and one.wrong.judged for one in audit.by_client)
    source = "by review or estimated from the scores" if judged else "estimated from the scores"
    return f"Wrong: about how many of a client's labels are, with a 95 % interval, {source}, listed or not. "


def _wrong(one: ClientSummary) -> Markup | str:
    """About how many labels are wrong, the interval, and a drawing of both as shares."""
    if one.wrong is None or not one.samples:
        return "–"
    share, low, high = (100 * n / one.samples for n in (one.wrong.expected, one.wrong.low, one.wrong.high))
    drawing = element(
        "svg",
        element("rect", width=f"{share:.1f}", height=8, y=1),
        element("line", x1=f"{low:.1f}", x2=f"{high:.1f}", y1=5, y2=5),
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
        class_="rate",
        aria_hidden="true",
    )
    interval = element("span", f"{one.wrong.low:,} to {one.wrong.high:,}", class_="range")
    return joined(f"{round(one.wrong.expected):,}", " ", interval, drawing)


def sentence(one: ClientSummary) -> str | None:
    """What is known of a client's labels, in words; None if their number is not."""
    if one.wrong is None:
        return None
    judged = (
        "all labels were judged"
        if one.wrong.judged == one.samples
        else f"by {one.wrong.judged:,} issues judged at random"
    )
    review = f", {judged}" if one.wrong.judged else ""
    return (
        f"About {round(one.wrong.expected):,} of {one.samples:,} labels are wrong ({one.wrong.low:,} to "
        f"{one.wrong.high:,}{review}); {one.issues:,} are listed"
    )


def pairs(audit: Audit) -> Markup:
    """Issues by given and suggested class: a matrix, or the most frequent pairs of many classes."""
    many = len(audit.classes) > MOST_CLASSES
    table = _pairs_listed(audit) if many else _matrix(audit)
    largest = f" The {MOST_PAIRS} largest." if many and len(audit.by_pair) > MOST_PAIRS else ""
    return joined(
        element("h2", "By class", id="pairs-title"),
        element(
            "p",
            "Issues with each given label, and the label that is suggested instead. Choose a number to see them."
            + largest,
            class_="hint",
        ),
        element("div", table, class_="scroll"),
    )


def _matrix(audit: Audit) -> Markup:
    counts = {(one.given, one.predicted): one.issues for one in audit.by_pair}
    most = max(counts.values(), default=0)
    order = range(len(audit.classes))
    upright = len(audit.classes) > WIDE and max(map(len, audit.classes)) > SHORT
    corner = element("th", "given ↓ suggested →", class_="corner", scope="col")
    header = element(
        "tr", corner, *(element("th", audit.classes[k], scope="col", title=audit.classes[k]) for k in order)
    )
    rows = [
        element(
            "tr",
            element("th", audit.classes[given], scope="row", title=audit.classes[given]),
            *(_count(given, k, counts.get((given, k), 0), most) for k in order),
        )
        for given in order
    ]
    return element(
        "table",
        element("thead", header),
        element("tbody", *rows),
        class_="matrix upright" if upright else "matrix",
        id="pairs",
    )


def _count(given: int, predicted: int, issues: int, most: int) -> Markup:
    if not issues:
        return element("td", "·" if given != predicted else "")
    shade = 1 + round((SHADES - 1) * issues / most)
    return element("td", _pair_button(given, predicted, f"{issues:,}"), class_=f"s{shade}")


def _pairs_listed(audit: Audit) -> Markup:
    header = element("tr", *(element("th", name, scope="col") for name in ("given", "suggested", "issues")))
    rows = [_listed(audit, one) for one in audit.by_pair[:MOST_PAIRS]]
    return element("table", element("thead", header), element("tbody", *rows), id="pairs")


def _listed(audit: Audit, one: PairSummary) -> Markup:
    given, predicted = audit.classes[one.given], audit.classes[one.predicted]
    button = _pair_button(one.given, one.predicted, f"{one.issues:,}")
    return element("tr", element("th", given, scope="row"), element("td", predicted), element("td", button))


def _pair_button(given: int, predicted: int, label: str) -> Markup:
    return element("button", label, type="button", data_given=given, data_predicted=predicted)
