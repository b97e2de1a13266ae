"""Writes the page of an audit: ``index.html``, and the suspects in shards that it loads when they are scrolled to."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from flnl.audit.page import tables
from flnl.audit.page.cut import Cut
from flnl.audit.page.pictures import check_pictures, excerpts, thumbnails
from flnl.audit.page.suspects import Suspects
from flnl.audit.result import Audit
from flnl.console.templates import template
from flnl.core.errors import UserError
from flnl.data.dataset import Dataset

HERE = Path(__file__).parent

MOST_BYTES = 500 * 10**6
"""A larger page is written only on request."""
WITHOUT_SCRIPTS = 100
"""Number of suspects that are in ``index.html`` itself, for readers without scripts."""


def write_page(folder: Path, audit: Audit, dataset: Dataset | None) -> int:
    """Write ``index.html`` and ``pages/NNNN.js`` below an existing ``folder``; return the number of bytes.

    Args:
        folder: the folder, of which the caller makes sure that it is seen whole or not at all.
        audit: what the page shows.
        dataset: the run's data set, for the thumbnails, or texts where samples are no images; None for a page without.

    Raises:
        UserError: if the images cannot be shown, or the page grows too large and ``audit.options.force`` is not set.
        OSError: if a file cannot be written.
    """
    worded = dataset is not None and dataset.transform.kind != "image"
    suspects = Suspects(audit, worded)
    limit, per_page = audit.options.thumbnails, audit.options.per_page
    pictured = 0 if dataset is None else len(suspects.index) if limit is None else min(limit, len(suspects.index))
    if dataset is not None and pictured:
        check_pictures(dataset)
    (folder / "pages").mkdir()
    written, first = 0, list[str | None]()
    for number, start in enumerate(range(0, len(suspects.index), per_page)):
        images: list[str | None] = []
        if dataset is not None and start < pictured:
            chosen = suspects.index[start : min(start + per_page, pictured)]
            shown = excerpts if worded else thumbnails
            images = shown(dataset, audit.samples.position[chosen].tolist())
        first += images[: max(0, WITHOUT_SCRIPTS - len(first))]
        shard = suspects.shard(start, start + per_page, images)
        written += _write(folder / "pages" / f"{number:04d}.js", f"flnlShard({number},{script_json(shard)});\n")
        if written > MOST_BYTES and not audit.options.force:
            raise UserError(
                f"the page grows above {MOST_BYTES / 1e6:.0f} MB: show fewer suspects by --top (they are "
                f"{len(suspects.index):,} now) or fewer images by --thumbnails, or add --force"
            )
    return written + _write(folder / "index.html", _index(audit, suspects, first, pictured))


def _write(file: Path, content: str) -> int:
    return file.write_bytes(content.encode("utf-8"))


def _index(audit: Audit, suspects: Suspects, images: list[str | None], pictured: int) -> str:
    """The content of ``index.html``; ``images`` are those of the first of ``pictured`` suspects that have one."""
    page = template(HERE / "page.html.j2", {"thousands": "{:,}".format, "percent": percent, "sentence": sentence})
    values = {
        "audit": audit,
        "clients": len(np.unique(audit.samples.client)) or sum(len(row.clients) for row in audit.by_client),
        "cut": Cut(audit),
        "tables": tables,
        "cards": [*suspects.cards([*images, *[None] * (WITHOUT_SCRIPTS - len(images))])],
        "pictured": pictured,
        "worded": suspects.worded,
        "data": script_json(_data(audit, suspects, pictured)),
        "style": Markup((HERE / "page.css").read_text(encoding="utf-8")),
        "script": Markup((HERE / "page.js").read_text(encoding="utf-8")),
    }
    return page.render(values, nonce=_nonce(page.render(values, nonce="")))


def _nonce(page: str) -> str:
    """Of the content policy: 128 bits that nobody can know who chooses a name on the page, and that repeat with it."""
    return base64.b64encode(hashlib.sha256(page.encode("utf-8")).digest()[:16]).decode().rstrip("=")


def percent(share: float | None, digits: int = 0) -> str:
    r"""A share in per cent, with a narrow space that does not break; a dash where it is unknown.

    >>> percent(0.256).split("\u202f")
    ['26', '%']
    """
    return "–" if share is None else f"{100 * share:.{digits}f}\u202f%"


def sentence(note: str) -> str:
    """A note with a capital letter and a full stop."""
    return f"{note[:1].upper()}{note[1:]}{'' if note.endswith(('.', '!', '?')) else '.'}"


def script_json(value: Any) -> Markup:
    """``value`` as JSON in ASCII that can stand in a script element or a script's source."""
    return htmlsafe_json_dumps(value, separators=(",", ":"), allow_nan=False)


def _data(audit: Audit, suspects: Suspects, pictured: int) -> dict[str, object]:
    """What the script knows from the start."""
    curve = audit.precision
    return {
        "key": audit.key,
        "federation": audit.fingerprint,
        "classes": list(audit.classes),
        "cuts": list(curve.cuts),
        "below": list(curve.below),
        "expected": [None if value is None else round(value, 4) for value in curve.expected],
        "clients": [_changes(one.below) for one in audit.by_client],
        "sizes": [one.samples for one in audit.by_client],
        "perPage": audit.options.per_page,
        "pictured": pictured,
        "worded": suspects.worded,
        "suspects": suspects.columns(),
    }


def _changes(below: tuple[int, ...]) -> list[int]:
    """A client's counts below all cuts as cut and count in turn, where the count changes; they are mostly few."""
    changes, last = [], 0
    for position, count in enumerate(below):
        if count != last:
            changes += [position, count]
            last = count
    return changes
