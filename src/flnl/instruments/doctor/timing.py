"""How long local training takes here, for the networks, images and batches of the papers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from flnl.core.errors import in_one_line
from flnl.instruments.doctor.at_once import rates
from flnl.instruments.doctor.networks import Rate, Setting, Trainer
from flnl.storage.paces import Pace, Paces

LONG_ENOUGH = 1.0
"""Seconds that a measurement takes at least."""


@dataclass(frozen=True)
class Timed:
    """A measurement, or why there is none."""

    setting: Setting
    batch: int
    precision: str
    pace: Pace | None
    runs: int = 1  # at once
    stacked: bool = False  # the clients of a round were trained together
    failure: str = ""
    error: str = ""  # what was raised, if it was not that the memory is too small


def timings(device: str, name: str, chosen: Sequence[Setting], *, at_once: bool = False) -> Iterator[Timed]:
    """Time every setting on ``device``, whose name is ``name``; one that fails does not keep the others from it.

    With ``at_once`` runs at once in place of one: 1, 2, 4, ... until more of them train no more images.
    """
    for setting, precision in product(chosen, precisions(device)):
        row = setting, setting.kind[2], str(precision)
        runs = 1
        try:
            for rate in rates(setting, device, precision) if at_once else [alone(setting, device, precision)]:
                seconds = setting.images / rate.images_a_second
                at = rate.runs if at_once else None
                pace = Pace(*setting.kind, name, device != "cpu", seconds, str(precision), at)
                yield Timed(*row, pace, rate.runs, rate.stacked)
                runs = 2 * rate.runs
        except torch.OutOfMemoryError:
            yield Timed(*row, None, runs, failure="does not fit the memory")
        except Exception as error:  # drivers and libraries may raise anything
            yield Timed(*row, None, runs, failure="FAILED", error=in_one_line(error))


def alone(setting: Setting, device: str, precision: int | str) -> Rate:
    """The images a second of one run, in this process."""
    trainer = Trainer(setting, device, precision)
    seconds = trainer.lengthen(LONG_ENOUGH)
    return Rate(1, trainer.images / seconds, trainer.stacked)


def precisions(device: str) -> Sequence[int | str]:
    """Those in which to time, as ``precision``: on a GPU bf16, too."""
    return (32,) if device == "cpu" else (32, "bf16")


def known(paces: Paces, name: str, chosen: Sequence[Setting]) -> list[Timed]:
    """What of the settings was measured before on GPUs of this ``name``."""
    return [
        Timed(setting, pace.batch, pace.precision, pace, pace.runs or 1, stacked=True)
        for setting in chosen
        for pace in paces.values
        if (pace.dataset, pace.model, pace.batch, pace.device) == (*setting.kind, name)
    ]
