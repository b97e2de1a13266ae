"""The steps of one client's visit: its epochs' phases, cut into batches with their random draws.

``batching`` provides the batches and all random draws: augmentation, mixing and the terms' draws.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, repeat

from torch import Tensor

from flnl.core import checked
from flnl.core.messages import ClientTask
from flnl.core.onto import onto
from flnl.core.parts import BatchRule, LossTerm
from flnl.core.payload import Params
from flnl.core.step import Beside, Phase, Progress, Step
from flnl.core.training import Training
from flnl.engine.local.batching import Draws, batch_sizes, chunks, passes, restarted
from flnl.engine.network import Network
from flnl.engine.trees import tree_to


class Inputs:
    """One client's samples as inputs of the network."""

    def __init__(self, network: Network, task: ClientTask, draws: Draws) -> None:
        """Read all images at once if they fit one chunk, and prepare them once if they need no augmentation."""
        self._network, self._draws = network, draws
        self._samples = replace(task.samples, images=network.here(task.samples.images))
        self._stored: Tensor | None = None
        self._fixed: Tensor | None = None
        if len(self._samples) <= network.chunk(1):
            self._stored = self._samples.read(augmented=True)
            random = network.transform.random(tuple(self._stored.shape[2:]))
            self._fixed = None if random else network.prepare(self._stored)

    def of(self, parts: Sequence[Tensor], *, beside: bool = False) -> Iterator[Tensor]:
        """Inputs of the samples at each of ``parts`` int64 [b], augmented if the data set uses augmentation.

        ``beside`` says that they are of a phase's second pool, whose crops have a stream of their own.
        """
        return (views[0] for views in self.views(parts, 1, beside=beside))

    def views(self, parts: Sequence[Tensor], count: int, *, beside: bool = False) -> Iterator[tuple[Tensor, ...]]:
        """As ``of``, in ``count`` views; without augmentation, they are one tensor."""
        if self._fixed is not None:
            for part in parts:
                yield (self._fixed[onto(part, self._network.device)],) * count
            return
        samples, stored = self._samples, self._stored
        held = (
            samples.read_each(parts, augmented=True)
            if stored is None
            else (stored.index_select(0, onto(part, stored.device)) for part in parts)
        )
        transform, draws = self._network.transform, self._draws
        for images in held:
            size = tuple(images.shape[2:])
            if not transform.random(size):
                yield (self._network.prepare(images),) * count
                continue
            drawn = [draws.crops(transform, len(images), size, view=view, beside=beside) for view in range(count)]
            yield tuple(self._network.prepare(images, crops) for crops in drawn)


class Steps:
    """All steps of a visit; inputs are prepared for a chunk of batches at a time."""

    def __init__(
        self,
        training: Training,
        rule: BatchRule,
        terms: Mapping[str, LossTerm],
        network: Network,
        task: ClientTask,
        trainable: Params,
    ) -> None:
        self._training, self._rule, self._network, self._task = training, rule, network, task
        self._trainable = trainable
        self._draws = Draws(task, rule, terms)
        self._inputs = Inputs(network, task, self._draws)
        self._labels = onto(task.labels, network.device)
        weight = task.state.weight
        self._weight = None if weight is None else onto(weight, network.device, network.dtype)
        self._passes = network.passes(task.broadcast)
        self._kept, self._visit = (tree_to(of, network.device) for of in (task.state.extras, task.visit))

    def __iter__(self) -> Iterator[Step]:
        """The steps; each phase begins once the steps before it are trained."""
        epochs = passes(self._training, self._sizes(len(self._task.samples)))
        if self._training.steps is None:
            for epoch in range(epochs):
                for phase in self._phases(epoch, epochs):
                    yield from self._of(phase, epoch, epochs)
            return
        left = self._training.steps
        for epoch in count():
            begun = left
            for phase in self._phases(epoch, epochs):
                for step in self._of(phase, epoch, epochs, left):
                    yield step
                    left -= 1
                if not left:
                    return
            if left == begun:  # the rule chooses no sample
                return

    def _phases(self, epoch: int, epochs: int) -> Iterator[Phase]:
        """The phases of an epoch."""
        with self._network.lent():
            planned = self._rule.phases(self._network, self._task, epoch, epochs)
            phases = iter(checked.phases(self._rule, planned, self._task, self._network.num_classes))
        while True:
            with self._network.lent():
                phase = next(phases, None)
            if phase is None:
                return
            yield phase

    def _of(self, phase: Phase, epoch: int, epochs: int, most: int | None = None) -> Iterator[Step]:
        """The steps of one phase, ``most`` at most, in an epoch from 0."""
        rule, network, draws, task = self._rule, self._network, self._draws, self._task
        device, weight = network.device, self._weight
        order = draws.order(phase.positions)
        labels = self._labels if phase.labels is None else onto(phase.labels, device)
        sizes = self._sizes(len(order))
        progress = Progress(epoch, epochs, len(sizes))
        if most is not None and most < len(sizes):
            sizes = sizes[:most]
            order = order[: sum(sizes)]
        together = self._chunks(sizes)
        parts = order.split([sum(chunk) for chunk in together])
        pool = self._beside(phase, len(sizes))
        number = 0
        for chunk, where, prepared in zip(together, parts, self._inputs.views(parts, rule.views), strict=True):
            there = onto(where, device)
            for views, batch_labels, positions, beside in zip(
                _split(prepared, chunk), labels[there].split(chunk), there.split(chunk), pool, strict=False
            ):
                size, batch = len(batch_labels), views[0]
                mixing, weights = draws.mixing(size), None if weight is None else weight[positions]
                inputs, targets = batch, batch_labels
                if mixing is not None:
                    inputs = mixing.rows(batch)
                    targets = mixing.targets(batch_labels, network.num_classes, batch.dtype)
                    weights = None if weights is None else mixing.rows(weights)
                yield Step(
                    inputs=inputs,
                    labels=batch_labels,
                    targets=targets,
                    positions=positions,
                    weight=weights,
                    draws=draws.of_terms(size if beside is None else size + len(beside.positions)),
                    number=number,
                    unmixed=batch,
                    mixing=mixing,
                    passes=self._passes,
                    params=self._trainable,
                    broadcast=task.broadcast,
                    kept=self._kept,
                    visit=self._visit,
                    views=views,
                    phase=phase,
                    progress=progress,
                    beside=beside,
                )
                number += 1

    def _beside(self, phase: Phase, steps: int) -> Iterator[Beside | None]:
        """Batches of the phase's second pool for ``steps`` steps; None for each if it has none."""
        if phase.beside is None or len(phase.beside) == 0:
            return repeat(None)
        return self._of_pool(phase.beside, steps)

    def _of_pool(self, pool: Tensor, steps: int) -> Iterator[Beside]:
        sizes = restarted(self._sizes(len(pool)), steps)
        together = self._chunks(sizes)
        parts = self._draws.order_beside(pool, sum(sizes)).split([sum(chunk) for chunk in together])
        several = self._inputs.views(parts, self._rule.views, beside=True)
        for chunk, where, prepared in zip(together, parts, several, strict=True):
            there = onto(where, self._network.device)
            for positions, views in zip(there.split(chunk), _split(prepared, chunk), strict=True):
                yield Beside(positions, views)

    def _sizes(self, count: int) -> list[int]:
        return batch_sizes(count, self._training.batch_size, join_last_of_one=self._network.has_batch_norm)

    def _chunks(self, sizes: Sequence[int]) -> list[Sequence[int]]:
        return list(chunks(sizes, self._network.batches_at_once(self._training.batch_size)))


def _split(views: tuple[Tensor, ...], sizes: Sequence[int]) -> Iterable[tuple[Tensor, ...]]:
    """The views of each batch; views that are one tensor stay one tensor."""
    first = views[0].split(sizes)
    if all(view is views[0] for view in views):
        return ((batch,) * len(views) for batch in first)
    return zip(first, *(view.split(sizes) for view in views[1:]), strict=True)
