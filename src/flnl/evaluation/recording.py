"""Records the class probabilities of evaluated models over a run, which a label audit ranks labels by.

The recorder only reads: it draws no random numbers and feeds nothing back, so that a run has the same parameters with
it and without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from flnl.core.images import Indices
from flnl.core.state import FederatedState
from flnl.core.stored import stored
from flnl.data.dataset import Dataset
from flnl.engine.network import Network
from flnl.evaluation.probabilities import Probabilities, Rows

MOST_VALUES = 50_000_000
"""Number of training samples times classes up to which ``audit.record=auto`` records: 200 MB for each of two sums."""

MOST_COST = 0.15
"""Share of the passes of local training that ``audit.record=auto`` may add, by count; a step counts as three passes."""

BLOCK = 16_384
"""Number of samples whose probabilities are added at once."""


@stored("RecordedSums")
class Sums:
    """Sums of class probabilities over evaluations; float32, on the devices where they were computed.

    The tensors are added to in place. ``window`` and ``test_window`` are None as long as the window is open: until
    then, they would equal the other two.
    """

    share: float  # of the participations, the window's
    stride: int  # every so many-th evaluation is added
    seen: int  # evaluations so far
    rounds: tuple[int, ...]  # rounds after which models were added, from 1
    in_window: int  # number of these in the window
    all: Tensor  # [N, K]
    test_all: Tensor  # [M, K]
    window: Tensor | None = None  # [N, K]
    test_window: Tensor | None = None  # [M, K]

    def on(self, device: torch.device) -> Sums:
        """The same sums, those of training samples on ``device``."""
        return replace(self, all=self.all.to(device), window=None if self.window is None else self.window.to(device))


class Recorder:
    """Adds the probabilities of evaluated models to sums.

    Args:
        data: whose samples are scored.
        held: positions [N] of the training samples.
        tested: positions [M] of the test samples.
        network: scores them; ``add`` expects that it holds the evaluated model.
        share: the window ends with the last evaluation up to this share of the participations; it includes the first
            one that is added in any case.
        planned: the participations by each planned evaluation, by its round, from 1, to the end of the run.
        stride: every so many-th evaluation is added, so that the window's last planned one is among them. The run's
            last is added if there was none: cohorts may be smaller than planned, and then evaluations fewer.
        sums: the sums of an earlier process, with their share and stride; None to begin.
    """

    def __init__(
        self,
        data: Dataset,
        held: Indices,
        tested: Indices,
        network: Network,
        share: float,
        planned: Mapping[int, int],
        stride: int = 1,
        sums: Sums | None = None,
    ) -> None:
        self._data, self._network = data, network
        self._held, self._tested = torch.from_numpy(held), torch.from_numpy(tested)
        if sums is None:
            empty = torch.zeros(len(held), data.num_classes, device=network.device)
            sums = Sums(share, stride, 0, (), 0, empty, torch.zeros(len(tested), data.num_classes))
        self.sums = sums.on(network.device)
        self._end = max(planned)
        self._limit = sums.share * planned[self._end]
        in_window = sum(participations <= self._limit for participations in planned.values())
        self._last = max(1, in_window)  # number of the window's last evaluation, from 1

    def add(self, after: FederatedState, tested: Tensor) -> None:
        """Add the loaded model's probabilities, evaluated after the round of ``after``, if they are to be added.

        On a GPU, this adds work to its queue and waits for nothing.

        Args:
            after: the state after the round.
            tested: the model's logits [M, K] on the tested samples, on the CPU.
        """
        self.sums = sums = replace(self.sums, seen=self.sums.seen + 1)
        missing = after.round == self._end and not sums.rounds
        if (sums.seen - self._last) % sums.stride and not missing:
            return
        inside = sums.window is None and (not sums.rounds or after.counters.participations <= self._limit)
        if not inside and sums.window is None:
            sums = replace(sums, window=sums.all.clone(), test_window=sums.test_all.clone())
        self._each_block(lambda block, rows: sums.all[block].add_(rows))
        sums.test_all.add_(_probabilities(tested))
        self.sums = replace(sums, rounds=(*sums.rounds, after.round), in_window=sums.in_window + inside)

    def means(self) -> dict[str, Rows]:
        """The fields of ``Probabilities`` with class probabilities, float32 [N, K] and [M, K].

        They are the means of the sums so far, and the probabilities of the loaded model as final ones.
        """
        sums = self.sums
        final = torch.empty_like(sums.all)
        self._each_block(lambda block, rows: final[block].copy_(rows))
        tested = self._network.shared_outputs(self._data.test, self._tested)
        return {
            "window": _mean(sums.all if sums.window is None else sums.window, sums.in_window),
            "all": _mean(sums.all, len(sums.rounds)),
            "final": final.cpu().numpy(),
            "test_window": _mean(sums.test_all if sums.test_window is None else sums.test_window, sums.in_window),
            "test_all": _mean(sums.test_all, len(sums.rounds)),
            "test_final": _probabilities(tested).float().numpy(),
        }

    def probabilities(
        self, *, client: Indices, sample: NDArray[np.str_] | Indices, key: str, federation: str, round: int
    ) -> Probabilities:
        """The sums until now, as means, with the probabilities of the loaded model as final ones.

        The arguments are fields of the result.
        """
        rounds = np.array(self.sums.rounds, np.int64)
        return Probabilities(
            **self.means(),
            rounds=rounds,
            window_rounds=rounds[: self.sums.in_window],
            client=client,
            sample=sample,
            tested=self._tested.numpy(),
            key=key,
            federation=federation,
            round=round,
        )

    def _each_block(self, use: Callable[[slice, Tensor], object]) -> None:
        """Give ``use`` the loaded model's probabilities, float64 on the device, of each block of training samples."""
        first, images = 0, self._data.train
        for index in self._held.split(BLOCK) if len(self._held) else ():
            block = slice(first, first + len(index))
            use(block, _probabilities(self._network.shared_outputs(images, index, on_device=True)))
            first = block.stop


def affordable_stride(evaluations: int, epochs: float, clients: int) -> int:
    """The stride at which recording costs at most ``MOST_COST`` of the training of a run.

    An evaluation is a pass over all N samples; a client's epoch is one over N / ``clients`` on average, whose steps
    cost three passes.

    Args:
        evaluations: number of evaluations of the run.
        epochs: number of local epochs of the run, over all rounds and clients.
        clients: number of clients.

    >>> [affordable_stride(40, 40 * 10 * 5, clients) for clients in (20, 100)], affordable_stride(40, 40, 100)
    ([1, 5], 223)
    """
    return math.ceil(evaluations * clients / (MOST_COST * 3 * epochs))


def _probabilities(logits: Tensor) -> Tensor:
    """Softmax in float64 [n, K]."""
    return F.softmax(logits.double(), dim=1)


def _mean(total: Tensor, count: int) -> Rows:
    mean: Rows = (total.double() / count).float().cpu().numpy()
    return mean
