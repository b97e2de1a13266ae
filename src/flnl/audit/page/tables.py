"""What the tables of a page show: issues by client, and by given and suggested class."""

from __future__ import annotations

from flnl.audit.result import Audit, ClientSummary

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


def matrix(audit: Audit) -> list[list[tuple[int, int]]]:
    """The number of issues of each given (row) and suggested class, and its shade from 1 to ``SHADES``."""
    counts = {(one.given, one.predicted): one.issues for one in audit.by_pair}
    most, order = max(counts.values(), default=1), range(len(audit.classes))
    cells = [[counts.get((given, predicted), 0) for predicted in order] for given in order]
    return [[(issues, 1 + round((SHADES - 1) * issues / most)) for issues in row] for row in cells]
