"""Before a run: a server asks its sites how many samples of what form they have, and keeps that in a file."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from flnl import __version__
from flnl.console.terminal import print_line
from flnl.core.errors import UserError, one_line, shortened
from flnl.data.datasets.elsewhere import FILE, Inputs, Told
from flnl.data.preparations import described
from flnl.sites import messages, wire
from flnl.sites.messages import NOT_DONE, REFUSED, Parts, RefusedError
from flnl.sites.policy import Policy
from flnl.sites.runtime import SiteData
from flnl.sites.transport import Transport
from flnl.sites.wire import WireError
from flnl.storage.atomic import write_atomically

HELLO = {"kind": str, "wire": int, "flnl": str, "federation": str, "site": str}
"""The server has come, and calls the site by this name."""
HELD = {
    "kind": str,
    "size": int,
    "held_out": int,  # samples on which models are scored; 0 if they are too few to tell of
    "classes": tuple[str, ...],
    "inputs": str,  # the form of a sample, as JSON
}
"""What a site has."""
TTL = 120.0
"""Seconds in which a site answers, or is asked again."""
TELLS = 60.0
"""Seconds between two lines about who is awaited."""
WAITS = 0.5
HOUR = 3600.0
MOST = 10**8
"""A larger number of samples is none."""
FORM = {"shape": "shape", "larger": "size from which crops are taken", "stored": "type"}
"""The fields of ``Inputs`` beside the preparation, as messages call them."""


def inputs_of(data: SiteData) -> Inputs:
    """The form of a site's samples."""
    images, stored = data.dataset.train, data.dataset.train.read(torch.zeros(0, dtype=torch.int64)).dtype
    return Inputs(
        [*images.shape], [*images.augmented_size], str(stored).removeprefix("torch."), described(data.dataset.transform)
    )


def answer(header: Mapping[str, Any], data: SiteData, policy: Policy) -> bytes:
    """What a site answers to ``HELLO``.

    Raises:
        RefusedError: if the server is another version.
    """
    for name, ours in (("wire", wire.VERSION), ("flnl", __version__)):
        if header[name] != ours:
            raise RefusedError(f"the server has {name} {header[name]!s:.20}, and the site {ours}")
    held = 0 if data.held_out is None or len(data.held_out) < policy.min_count else len(data.held_out)
    return messages.written(
        HELD,
        kind="held",
        size=len(data.dataset.train),
        held_out=held,
        classes=data.dataset.classes,
        inputs=json.dumps(asdict(inputs_of(data)), sort_keys=True),
    )


@dataclass(frozen=True)
class Held:
    """What a site has told."""

    size: int
    held_out: int
    classes: tuple[str, ...]
    inputs: Inputs

    @classmethod
    def read(cls, parts: Parts, site: str) -> Held:
        """That of an answer.

        Raises:
            UserError: naming the site, if it refuses or answers something else.
        """
        try:
            said = messages.read_header(parts, {"held": HELD, **dict.fromkeys(NOT_DONE, REFUSED)})
            if said["kind"] != "held":
                raise UserError(f"site {site} {said['kind']}: {one_line(shortened(said['why']))}")
            if not 0 < said["size"] <= MOST or not 0 <= said["held_out"] <= MOST:
                raise WireError("numbers of samples that are none")
            inputs = Inputs.read(json.loads(said["inputs"]))
        except (WireError, ValueError, TypeError, RecursionError) as error:
            raise UserError(f"site {site} sent {one_line(shortened(str(error)))}") from None
        return cls(said["size"], said["held_out"], said["classes"], inputs)


def greet(transport: Transport, name: str, sites: Sequence[str], patience: float = math.inf) -> dict[str, Held]:
    """Wait until all sites are there, and ask what they have.

    Args:
        transport: leads to them.
        name: the federation's.
        sites: their names.
        patience: hours to wait for them.

    Raises:
        UserError: if one refuses, or is not there in time.
    """
    held: dict[str, Held] = {}
    waiting: dict[str, tuple[str, float]] = {}  # number and when to ask again, by site
    begun = told = time.monotonic()
    print_line(f"waiting for {', '.join(sites)}", to=sys.stderr)
    while len(held) < len(sites):
        now = time.monotonic()
        for site in sites:
            if site not in held and (site not in waiting or waiting[site][1] < now):
                about = {"wire": wire.VERSION, "flnl": __version__, "federation": name, "site": site}
                number = transport.push(site, [messages.written(HELLO, kind="hello", **about)], TTL)
                waiting[site] = number, now + TTL
        by_number = {number: site for site, (number, _) in waiting.items()}
        for number, parts in transport.pull(list(by_number)).items():
            site = by_number[number]
            del waiting[site]
            held[site] = Held.read(parts, site)
            print_line(f"{site} is there: {held[site].size:,} samples", to=sys.stderr)
        missing = ", ".join(site for site in sites if site not in held)
        if missing and now - begun > patience * HOUR:
            raise UserError(f"site {missing} is not there after executor.patience={patience:g} hours: does it run?")
        if now - told > TELLS:
            told = now
            print_line(f"waiting for {missing}", to=sys.stderr)
        time.sleep(WAITS if len(held) < len(sites) else 0.0)
    return {site: held[site] for site in sites}


def agreed(held: Mapping[str, Held], classes: Sequence[str]) -> Told:
    """What all sites have together.

    Args:
        held: what each has told.
        classes: those of the federation; none: those of the first site.

    Raises:
        UserError: naming sites that differ, and in what.
    """
    first = next(iter(held))
    wanted = tuple(classes) or held[first].classes
    for site, one in held.items():
        if one.classes != wanted:
            whose = "the federation" if classes else first
            raise UserError(
                f"{site} has other classes than {whose}, or in another order: classes in site.yaml names them"
            )
    if differing := _differing({site: _values(one.inputs) for site, one in held.items()}):
        raise UserError(f"sites have samples of different size or preparation: {'; '.join(differing)}")
    sizes = {site: one.size for site, one in held.items()}
    return Told(sizes, {site: one.held_out for site, one in held.items()}, [*wanted], held[first].inputs)


def _values(inputs: Inputs) -> dict[str, Any]:
    """All values of a form, those of the preparation among them."""
    values = asdict(inputs)
    return {**{name: values[name] for name in FORM}, **values["preparation"]}


def _differing(told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Of each value that sites do not share, its name, and which sites have told what."""
    found = []
    for name in dict.fromkeys(name for one in told.values() for name in one):
        having: dict[str, list[str]] = {}
        for site, one in told.items():
            having.setdefault(json.dumps(one[name]) if name in one else "none", []).append(site)
        if len(having) > 1:
            at = (f"{shortened(value)} at {' and '.join(sites)}" for value, sites in having.items())
            found.append(f"{FORM.get(name, name)} {', '.join(at)}")
    return found


def save(told: Told, folder: Path) -> None:
    """Write what ``dataset=sites`` reads."""
    write_atomically(folder / FILE, (json.dumps(asdict(told), indent=1) + "\n").encode())
