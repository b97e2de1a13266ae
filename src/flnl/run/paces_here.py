"""How long training takes on this machine, as far as it was measured here or on its kind of GPU."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import yaml

from flnl.config import compose
from flnl.config.folders import CONF
from flnl.run.budget import training_kind
from flnl.storage.paces import Pace, Paces

FILE = CONF / "doctor" / "cards.yaml"


def kept_in() -> Path:
    """The folder in which ``flnl doctor`` keeps what it times."""
    return Path(compose.load([]).cache).expanduser()


def cards_here(kind: str = "cuda") -> set[str]:
    """The names of this machine's GPUs."""
    if "torch" not in sys.modules and not Path("/proc/driver/nvidia").exists() and shutil.which("nvidia-smi") is None:
        return set()  # without waiting for torch
    import torch

    library = torch.get_device_module(kind)
    return {library.get_device_name(number) for number in range(library.device_count())}


def paces_here(cache: Path, cards: Collection[str] | None = None) -> Paces:
    """What ``flnl doctor`` has timed, or else, of a GPU, what ``bench.gpu`` has measured of its kind.

    Args:
        cache: where the doctor keeps it.
        cards: names of GPUs of which to tell, without those of others if there is a pace of one of them; None for
            those that are here.
    """
    cards = cards_here() if cards is None else cards
    timed = Paces.load(cache).values
    known = Paces(tuple(measured(cards))).including(timed).values
    own = any(pace.device in cards for pace in known if pace.gpu)
    return Paces(tuple(pace for pace in known if not pace.gpu or not own or pace.device in cards))


def measured(cards: Collection[str]) -> Iterator[Pace]:
    """The paces in ``conf/doctor/cards.yaml`` of GPUs of these names."""
    for row in yaml.safe_load(FILE.read_text()) if cards else ():
        if row["card"] not in cards:
            continue
        dataset, model, _, batch = training_kind(compose.resolved(compose.load(row["overrides"])))
        for precision, rate in row["images_a_second"].items():
            yield Pace(dataset, model, batch, row["card"], True, row["images"] / rate, str(precision))
