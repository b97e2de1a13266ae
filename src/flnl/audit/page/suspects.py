"""The suspects of a page, by rank, as data for its script and for readers without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flnl.audit.precision import first_cuts
from flnl.audit.result import Audit
from flnl.core.images import Indices


@dataclass(frozen=True, eq=False)
class Suspects:
    """Samples in the order of the page: the first by rank, then others of the random sample for review."""

    audit: Audit
    worded: bool = False  # whether texts are shown in place of images

    @property
    def index(self) -> Indices:
        """The samples [S], as positions in the audit's arrays."""
        return self.audit.detailed

    @property
    def ranked(self) -> int:
        """How many of them are the first by rank; the others are shown for the review alone."""
        return min(self.audit.options.top, len(self.audit.samples))

    def columns(self) -> dict[str, Any]:
        """What the script needs of all suspects to filter them, also by their verdicts: a list [S] for each fact."""
        samples, row = self.audit.samples, {c: i for i, one in enumerate(self.audit.by_client) for c in one.clients}
        place = {int(one): i for i, one in enumerate(self.index)}
        return {
            "ranked": self.ranked,
            "client": [_identity(samples.owner[i]) for i in self.index],
            "sample": [str(samples.name[i]) for i in self.index],
            "row": [row.get(int(c), -1) for c in samples.client[self.index]],  # of the table of clients
            "given": samples.given[self.index].tolist(),
            "predicted": samples.predicted[self.index].tolist(),
            "firstCut": first_cuts(samples.suspicion_score[self.index]).tolist(),  # that each is below
            "review": [place[int(one)] for one in self.audit.to_review],
        }

    def shard(self, start: int, stop: int, images: Sequence[str | None]) -> dict[str, Any]:
        """What the script shows of the suspects from ``start`` to ``stop``; ``images`` are data URIs or texts."""
        samples, index = self.audit.samples, self.index[start:stop]
        flagged = samples.method_flagged
        return {
            "score": [_score(samples.label_score[i]) for i in index],
            "rank": (samples.rank[index] + 1).tolist(),
            "issue": samples.is_issue[index].astype(int).tolist(),
            "flagged": None if flagged is None else flagged[index].astype(int).tolist(),
            "people": None if samples.labels is None else [self._people(int(i)) for i in index],
            "likeliest": [self._likeliest(i) for i in range(start, start + len(index))],
            "image": list(images),
        }

    def _likeliest(self, number: int) -> list[tuple[int, float]]:
        """The likeliest classes of a suspect and their probabilities."""
        classes, values = self.audit.likeliest[number], self.audit.likeliest_probability[number]
        return [(int(c), round(float(p), 4)) for c, p in zip(classes, values, strict=True)]

    def _people(self, i: int) -> str:
        """How many people gave a sample's label, as "2 of 3 people"; "" where one person labelled it."""
        labels, agreeing = self.audit.samples.labels, self.audit.samples.agreeing
        if labels is None or agreeing is None or labels[i] < 2:
            return ""
        return f"given by {int(agreeing[i])} of {int(labels[i])} people"

    def cards(self, images: Sequence[str | None]) -> Iterator[dict[str, Any]]:
        """What readers without scripts see of the first suspects by rank; ``images`` are data URIs, texts or None."""
        samples = self.audit.samples
        for number, image in enumerate(images[: self.ranked]):
            i = int(self.index[number])
            yield {
                "image": image,
                "name": samples.name[i],
                "owner": samples.owner[i],
                "given": int(samples.given[i]),
                "predicted": int(samples.predicted[i]),
                "likeliest": self._likeliest(number),
                "rank": int(samples.rank[i]) + 1,
                "score": _score(samples.label_score[i]),
                "flagged": samples.method_flagged is not None and bool(samples.method_flagged[i]),
                "people": self._people(i),
            }


def _identity(owner: str) -> str | int:
    """A client as verdicts in a browser know it: numbers are numbers there."""
    return int(owner) if owner.isdecimal() and str(int(owner)) == owner else owner


def _score(value: float) -> str:
    return f"{float(value):.3f}"
