"""What a site records for an audit: sums of class probabilities over the models that a run has evaluated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from flnl.core.messages import Samples
from flnl.engine.network import Network
from flnl.sites.messages import LostError
from flnl.storage.atomic import written_atomically

FOLDER = "probabilities"


def add(folder: Path, network: Network, samples: Samples, round: int, before: int) -> None:
    """Keep the sums after a ``round``: those after the round ``before`` (0: none) and the loaded model's probabilities.

    They are float32 [n, K] in ``folder``, a file for each round.

    Raises:
        LostError: if there are no sums after the round before.
    """
    rows = F.softmax(network.outputs(samples.images, samples.index).double(), dim=1)
    total = sums(folder, before) if before else torch.zeros(rows.shape)
    folder.mkdir(exist_ok=True)
    with written_atomically(file(folder, round)) as into:
        np.save(into, total.add_(rows.cpu()).numpy(), allow_pickle=False)


def sums(folder: Path, round: int) -> Tensor:
    """The sums after a round.

    Raises:
        LostError: if they are not there.
    """
    try:
        return torch.from_numpy(np.load(file(folder, round), allow_pickle=False))
    except (OSError, ValueError):
        raise LostError(f"what was recorded up to round {round} is not here") from None


def forget_before(folder: Path, floor: int, window: int) -> None:
    """Delete what a server that begins no earlier than after the round ``floor``, and an audit, cannot ask for."""
    rounds = sorted(int(path.stem) for path in folder.glob("*.npy"))
    kept = {window, *(number for number in rounds if number > floor), *[n for n in rounds if n <= floor][-1:]}
    for number in rounds:
        if number not in kept:
            file(folder, number).unlink()


def file(folder: Path, round: int) -> Path:
    """Where the sums after a round are."""
    return folder / f"{round:08d}.npy"
