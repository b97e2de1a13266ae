"""What a run that nobody has approved yet asks for, told from plain values: none of its parts is made for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from flnl.core.errors import one_line, shortened
from flnl.core.importing import located
from flnl.core.parts import ClientSampler, Exchange
from flnl.core.stored import name_of
from flnl.data.dataset import Dataset
from flnl.sites.shared import checked
from flnl.sites.traffic import beside, meaning


def asked(text: str, dataset: Dataset, *, counts: bool, held_out: bool) -> tuple[str, list[str], list[str]]:
    """The method's name, the settings, and what would leave the site beside its model, a line each.

    Args:
        text: the configuration, as ``shared`` gives it.
        dataset: the site's.
        counts: as in ``traffic.leaving``.
        held_out: likewise.

    Raises:
        UserError: naming what is unknown here, wrong or different.
    """
    method = checked(text, dataset)["method"]
    lines: list[str] = []
    for where, kind in _parts(method, ""):
        tells = any(issubclass(kind, one) and kind.reveals is not one.reveals for one in (ClientSampler, Exchange))
        mark = " (may tell of labels or single samples)" if tells else ""
        lines += [f"{name_of(one)} of {where}{mark}{meaning(one)}" for one in getattr(kind, "reports", ())]
        lines += [f"the outcome of {name_of(one)}, for its sampler{mark}" for one in getattr(kind, "asks", ())]
    settings = [f"{key}: {json.dumps(value)}" for key, value in json.loads(text).items()]
    name = one_line(shortened(str(method.get("name"))))
    return name, settings, [*dict.fromkeys(lines), *beside(counts=counts, held_out=held_out)]


def _parts(node: Any, where: str) -> Iterator[tuple[str, type]]:
    """The place and the class of each part in a node."""
    if not isinstance(node, Mapping):
        return
    if isinstance(path := node.get("_target_"), str) and isinstance(kind := located(path), type):
        yield where, kind
    for key, value in node.items():
        yield from _parts(value, f"{where}.{key}" if where else str(key))
