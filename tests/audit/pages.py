"""Audits to show on a page, without a run, and what a browser would read of the page."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from flnl.audit.options import Options
from flnl.audit.precision import CUTS, below_cuts
from flnl.audit.result import (
    Audit,
    AuditedSamples,
    ClientSummary,
    JointEstimate,
    PairSummary,
    PrecisionCurve,
    ProbabilitySource,
)


def audit(
    samples: int = 12,
    *,
    classes: Sequence[str] = ("a", "b", "c"),
    clients: int = 2,
    names: Sequence[str | int] | None = None,
    dataset: str = "toy",
    issues: int = 5,
    notes: tuple[str, ...] = (),
    client_names: Sequence[str] | None = None,
    to_review: Sequence[int] = (),
    **options: Any,
) -> Audit:
    """An audit of ``samples`` samples, the first ``issues`` of them by rank being issues.

    Sample i is of client ``i % clients`` and given class ``i % K``; the next class is suggested. The suspicion score
    falls with i, so that the last sample has rank 0.
    """
    k, chosen = len(classes), Options(**options)
    number = np.arange(samples)
    suspicion = 1 - (number + 1) / (samples + 1)
    rank = samples - 1 - number
    is_issue = rank < issues
    given, predicted = number % k, (number + 1) % k
    client = number % clients
    below = below_cuts(suspicion, client, clients, CUTS)
    first = number[::-1][: chosen.top]
    detailed = np.concatenate([first, [i for i in to_review if i not in set(first.tolist())]]).astype(np.int64)
    pairs = sorted({(int(g), int(p)) for g, p in zip(given[is_issue], predicted[is_issue], strict=True)})
    return Audit(
        key="0123456789abcdef" * 4,
        fingerprint="fedcba9876543210" * 4,
        version="1",
        dataset=dataset,
        method="fedavg",
        seed=1,
        classes=tuple(classes),
        options=chosen,
        source=ProbabilitySource("window", (1, 2), True, "average of 2 early rounds; the model has seen these samples"),
        samples=AuditedSamples(
            client=client,
            owner=[str(c) if client_names is None else client_names[c] for c in client.tolist()],
            name=number.tolist() if names is None else list(names),
            position=number,
            given=given,
            predicted=predicted,
            confident=predicted,
            final=None,
            method_flagged=number % 4 == 0,
            label_score=suspicion,
            suspicion_score=suspicion,
            rank=rank,
            is_issue=is_issue,
            true=None,
        ),
        detailed=detailed,
        likeliest=np.stack([predicted[detailed], given[detailed]], 1),
        likeliest_probability=np.tile([0.75, 0.25], (len(detailed), 1)),
        joint=JointEstimate(*(np.zeros(k),) * 2, *(np.zeros((k, k)),) * 2, np.zeros(k), *(np.zeros((k, k)),) * 2, 0, 0),  # type: ignore[arg-type]
        by_client=tuple(
            ClientSummary(
                name=str(c) if client_names is None else client_names[c],
                clients=(c,),
                samples=int((client == c).sum()),
                disagreements=0,
                issues=int(is_issue[client == c].sum()),
                flagged=3,
                rate=0.5,
                pair=None,
                below=tuple(below[c].tolist()),
            )
            for c in range(clients)
        ),
        by_pair=tuple(PairSummary(g, p, int((is_issue & (given == g) & (predicted == p)).sum())) for g, p in pairs),
        precision=PrecisionCurve(
            tuple(CUTS.tolist()),
            tuple(below.sum(0).tolist()),
            tuple(None if not n else 0.9 for n in below.sum(0)),
            300,
            0.91,
        ),
        cut=None,
        to_review=np.array(to_review, np.int64),
        review=None,
        notes=notes,
        measured=None,
    )


@dataclass
class Read(HTMLParser):
    """What a parser finds in a page."""

    tags: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)  # each element with its attributes' names
    values: list[tuple[str, str, str]] = field(default_factory=list)  # element, attribute, value
    texts: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.values += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if not data.strip():
            return  # between elements
        kind = self.tags[-1][0] if self.tags else ""
        (self.scripts if kind == "script" and self.cdata_elem == "script" else self.texts).append(data)

    @property
    def data(self) -> dict[str, Any]:
        """What the page's script knows from the start."""
        found: dict[str, Any] = json.loads(self.scripts[0])
        return found


def read(folder: Path) -> Read:
    """The page in a folder."""
    parser = Read()
    parser.feed((folder / "index.html").read_bytes().decode("utf-8"))
    parser.close()
    return parser


def shards(folder: Path) -> list[dict[str, Any]]:
    """The contents of its shards, in order."""
    found = []
    for number, file in enumerate(sorted((folder / "pages").iterdir())):
        start, end = f"flnlShard({number},", ");\n"
        source = file.read_bytes().decode("ascii")
        assert file.name == f"{number:04d}.js"
        assert source.startswith(start)
        assert source.endswith(end)
        found.append(json.loads(source[len(start) : -len(end)]))
    return found
