"""``flnl serve``: a run whose clients are a federation's sites, which this process connects first."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from flnl.config import compose
from flnl.config.quoting import quoted
from flnl.console.terminal import print_line
from flnl.core.errors import UserError
from flnl.data.datasets.elsewhere import Told
from flnl.run.opening import method_of
from flnl.run.overrides import check_arguments
from flnl.run.train import Outcome, train
from flnl.sites import greeting, served
from flnl.sites.federation import FederationFolder
from flnl.sites.flower_environment import Flower
from flnl.sites.superlink import SuperLink
from flnl.sites.transport import Transport

SITES_OWN = ("dataset", "partition", "noise", "shift")
"""What of a configuration is as it is at the sites."""
REHEARSALS = "outputs/rehearsals"
"""Where rehearsals are, unless ``output`` or ``output_root`` says otherwise."""


def serve(folder: Path, overrides: Sequence[str], flower: str | None = None) -> Outcome:
    """Connect the sites of a federation, and train with them.

    Args:
        folder: the federation's.
        overrides: of the run; data set, partition and executor are the federation's.
        flower: where Flower's environment is; None: see ``Flower.found``.

    Raises:
        UserError: for what the user can correct.
    """
    federation = FederationFolder.read(folder)
    words = _words(folder, overrides, "executor=served")
    method_of(compose.load(words), words)  # fail before anybody waits
    federation.demand_all()
    superlink = SuperLink(federation, Flower.found(flower))
    with superlink.connected() as transport:
        outcome = over_transport(transport, federation, overrides)
    if outcome.status == "finished":
        superlink.forget()
    return outcome


def check(folder: Path, flower: str | None = None) -> None:
    """Connect the sites of a federation, and say what they have, which a rehearsal needs; nothing is trained.

    Args:
        folder: the federation's.
        flower: as of ``serve``.

    Raises:
        UserError: for what the user can correct.
    """
    federation = FederationFolder.read(folder)
    federation.demand_all()
    superlink = SuperLink(federation, Flower.found(flower))
    with superlink.connected() as transport:
        told = greeted(transport, federation)
    superlink.forget()
    print_line(f"{len(told.classes)} classes: {', '.join(told.classes)}")
    print_line(f"samples of shape {' x '.join(map(str, told.inputs.shape))}")
    print_line(f"test samples that sites score models on: {sum(told.held_out.values()):,}")


def greeted(transport: Transport, federation: FederationFolder) -> Told:
    """Ask the sites what they have, and keep that.

    Raises:
        UserError: if one refuses, or they do not fit together.
    """
    told = greeting.agreed(greeting.greet(transport, federation.name, federation.sites), federation.classes)
    greeting.save(told, federation.folder)
    print_line(f"sites: {', '.join(f'{site} {size:,}' for site, size in told.sizes.items())}", to=sys.stderr)
    return told


def over_transport(transport: Transport, federation: FederationFolder, overrides: Sequence[str]) -> Outcome:
    """Ask the sites what they have, and train with them.

    Raises:
        UserError: for what the user can correct.
    """
    folder, told = federation.folder, greeted(transport, federation)
    words = _words(folder, overrides, "executor=served")
    served.CONNECTED.append((transport, told))
    try:
        return train(compose.load(words), words, typed=["serve", str(folder), *overrides])
    finally:
        served.CONNECTED.clear()


def rehearse(folder: Path, overrides: Sequence[str]) -> Outcome:
    """Train in this process with random samples of the numbers and form that the sites have told.

    Raises:
        UserError: if they have told nothing yet, or for what the user can correct.
    """
    FederationFolder.read(folder)
    words = _words(folder, overrides, "dataset.made=true", "executor=sites", f"output_root={REHEARSALS}")
    Told.read(folder)
    return train(compose.load(words), words, typed=["serve", "--rehearse", str(folder), *overrides])


def _words(folder: Path, overrides: Sequence[str], *more: str) -> list[str]:
    """All overrides of a run."""
    check_arguments(list(overrides))
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0]
        if word.startswith("-"):
            raise UserError(f"{word}: flnl serve takes overrides of one run")
        if key in ("executor", *SITES_OWN) or key.startswith(tuple(f"{group}." for group in SITES_OWN)):
            raise UserError(f"{word}: samples, labels and who has them are the sites': leave it out")
    samples = ["dataset=sites", f"dataset.root={quoted(str(folder))}", "partition=file", "noise=none"]
    return [*samples, *more, *overrides]
