"""Local training of K clients as one network: one forward, one backward and one optimiser step for all of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from src.core import BatchRule, ClientTask, Params
from src.data.transforms import Augmentation
from src.local.optimizer import Sgd
from src.local.plan import Draws, batch_sizes, chunks, inherits
from src.local.sgd import Fit, LocalTraining
from src.network import Network
from src.stacked.network import StackedNetwork
from src.stacked.objective import Batch, Objective
from src.stacked.pool import Pool
from src.stacked.refusal import NotStackable, line
from src.stacked.schedule import Run, ranked, runs
from src.stacked.values import filled, join


def train(
    job: LocalTraining, network: Network, many: StackedNetwork, tasks: Sequence[ClientTask], pooled: int
) -> list[Fit]:
    """What each client's training comes to, in the order of ``tasks``; ``pooled`` images are held at most.

    Raises:
        NotStackable: if something in the job or its data cannot be run for many clients at once.
    """
    size = job.training.batch_size
    sizes = [batch_sizes(len(t.samples), size, join_last_of_one=network.has_batch_norm) for t in tasks]
    order = ranked(sizes, size)
    stack = _Stack(job, network, many, [tasks[k] for k in order], [sizes[k] for k in order], pooled)
    try:
        stack.train()
        fits = stack.fits()
    finally:
        many.release()
        network.module.eval()
    return [fits[order.index(k)] for k in range(len(tasks))]


@dataclass(frozen=True)
class View:
    """Some clients' part of what is kept: tensors in the layers' form, and an optimiser on them."""

    members: tuple[int, ...]
    tensors: Params
    live: dict[str, Tensor]  # those of ``tensors`` that are trained
    optimizer: Sgd
    index: Tensor | None  # int64 [K], where the tensors are copies that must go back
    kept: dict[str, Tensor]  # as they are kept, momenta included


@dataclass(frozen=True)
class Epoch:
    """One epoch's draws, the clients' samples one after another."""

    positions: Tensor  # int64 [n], on the client
    rows: Tensor  # int64 [n], in the pool
    labels: Tensor  # int64 [n]
    weight: Tensor | None  # [n]
    crops: Augmentation | None


class _Stack:
    """The clients of one stack by rank, and everything that changes while they train."""

    def __init__(
        self,
        job: LocalTraining,
        network: Network,
        many: StackedNetwork,
        tasks: Sequence[ClientTask],
        sizes: Sequence[Sequence[int]],
        pooled: int,
    ) -> None:
        self.job, self.network, self.many, self.tasks, self.sizes = job, network, many, tasks, sizes
        device = network.device
        self.kept = many.store([task.broadcast.params for task in tasks])
        self.momenta = {n: torch.zeros_like(self.kept[n]) for n in many.trainable if job.training.momentum != 0}
        states = [job.states(task, network.num_classes) for task in tasks]
        self.objective = Objective(network, many, job.terms, job.gradient, tasks, states)
        self.pool = Pool(network, tasks, pooled)
        self.draws = [Draws(task, job.batch, job.terms) for task in tasks]
        counts = [len(task.samples) for task in tasks]
        self.starts = torch.tensor([0, *counts]).cumsum(0).tolist()[:-1]
        self.offsets = torch.tensor(self.starts).repeat_interleave(torch.tensor(counts))
        self.labels = torch.cat([task.samples.labels for task in tasks]).to(device)
        self.weight = self._weights().to(device, network.dtype) if self._weighted() else None
        self.losses = torch.zeros(len(tasks), dtype=torch.float64, device=device)
        self.views: dict[tuple[int, ...], View] = {}
        self.bound: View | None = None

    def _weighted(self) -> bool:
        having = {task.state.weight is not None for task in self.tasks}
        if len(having) > 1:
            raise NotStackable("some clients weigh their samples and others do not")
        return having.pop()

    def _weights(self) -> Tensor:
        return torch.cat([task.state.weight for task in self.tasks if task.state.weight is not None])

    # ----------------------------------------------------------------------------------------------------- training

    def train(self) -> None:
        """Every step of every epoch."""
        size = self.job.training.batch_size
        steps = runs(self.sizes, size, same_number=self.objective.sees_steps)
        places = [run.where(self.starts) for run in steps]
        self._mode(True)
        for _ in range(self.job.training.epochs):
            epoch = self._epoch()
            for run, where in zip(steps, places, strict=True):
                self._run(run, where, epoch)

    def _epoch(self) -> Epoch:
        """Draw the next epoch, each client from its own streams."""
        device = self.network.device
        positions = torch.cat([draws.order(None) for draws in self.draws])
        rows = positions + self.offsets
        there = rows.to(device)
        return Epoch(
            positions.to(device),
            rows,
            self.labels[there],
            None if self.weight is None else self.weight[there],
            self._crops() if self.pool.random else None,
        )

    def _crops(self) -> Augmentation:
        """Crops and flips in the order of the epoch, drawn in the portions in which one client alone draws them."""
        together = self.network.together(self.job.training.batch_size)
        drawn = [
            draws.crops(self.network.transform, sum(chunk), self.pool.stored)
            for draws, own in zip(self.draws, self.sizes, strict=True)
            for chunk in chunks(own, together)
        ]
        found = [crops for crops in drawn if crops is not None]
        return Augmentation(torch.cat([c.offset for c in found]), torch.cat([c.flip for c in found]))

    def _run(self, run: Run, where: Tensor, epoch: Epoch) -> None:
        """Train the members of ``run``; ``where`` int64 [steps, K, B] are the places of their samples in ``epoch``."""
        if self.network.has_batch_norm:  # a batch of one has no statistics; the running ones serve
            self._mode(run.size > 1)
        view = self._view(run.members)
        at_once = max(1, self.network.chunk(1) // (len(run.members) * run.size))
        number = run.number
        losses: list[Tensor] = []
        for part in where.split(at_once):
            losses += [self._step(view, batch) for batch in self._batches(run, part, epoch, number)]
            number += len(part)
        together = torch.stack(losses)
        self.losses[list(run.members)] += (together if together.dim() == 2 else together.mean(2)).double().sum(0)
        self._back(view)

    def _step(self, view: View, batch: Batch) -> Tensor:
        """One forward, one backward, one step of the optimiser; the losses before it, as the objective gives them."""
        if self.bound is not view:
            self.many.bind(view.tensors)
            self.bound = view
        clients = len(view.members)
        for parameter in view.live.values():
            parameter.grad = None
        with self.network.autocast():
            logits = self.many(batch.inputs, clients)
            loss = self.objective.loss(view.members, view.tensors, logits, batch)
        loss.backward(torch.full_like(loss, 1 / loss.shape[1] if loss.dim() == 2 else 1.0))
        if self.job.gradient is not None:
            self._transform(view, logits.detach(), batch)
        view.optimizer.step()
        return loss.detach()

    def _transform(self, view: View, logits: Tensor, batch: Batch) -> None:
        clients = len(view.members)
        found = {n: self.many.client(n, p.grad, clients) for n, p in view.live.items() if p.grad is not None}
        tensors = {name: t.detach() for name, t in view.tensors.items()}
        for name, new in self.objective.transformed(view.members, tensors, logits, batch, found).items():
            view.live[name].grad = self.many.leaf(name, self.many.kept(name, new))

    def _mode(self, training: bool) -> None:
        for module in (self.many.module, self.network.module):
            if module.training != training:
                module.train(training)

    # ------------------------------------------------------------------------------------------------------- batches

    def _batches(self, run: Run, where: Tensor, epoch: Epoch, number: int) -> Iterator[Batch]:
        """The steps at ``where``, inputs prepared together."""
        rule, steps, size = self.job.batch, len(where), run.size
        there = where.to(epoch.positions.device)
        labels, positions = epoch.labels[there], epoch.positions[there]
        targets, weight = labels, None if epoch.weight is None else epoch.weight[there]
        unmixed: Tensor | None = None
        drawn: list[Any] = []
        if inherits(rule, BatchRule, "mix") and (weight is None or inherits(rule, BatchRule, "weigh")):
            inputs = self._inputs(where.transpose(1, 2), epoch).flatten(2, 3)
        else:
            unmixed = self._inputs(where, epoch)
            drawn = [self.draws[k].mixing(size) for _ in range(steps) for k in run.members]
            mixed, targets, weight = self._mixed(drawn, unmixed, labels, weight)
            inputs = mixed.transpose(1, 2).flatten(2, 3)
        clients, mixes = len(run.members), any(draw is not None for draw in drawn)
        for step in range(steps):
            yield Batch(
                inputs=inputs[step],
                labels=labels[step],
                targets=targets[step],
                positions=positions[step],
                weight=None if weight is None else weight[step],
                draws=[self.draws[k].of_terms(size) for k in run.members] if self.objective.draws else None,
                number=number + step,
                unmixed=unmixed[step] if mixes and unmixed is not None else None,
                mixing=drawn[step * clients : (step + 1) * clients] if mixes else None,
            )

    def _inputs(self, places: Tensor, epoch: Epoch) -> Tensor:
        """Inputs of the samples at ``places`` of the epoch, with its shape before [C, H, W]."""
        flat = places.reshape(-1)
        crops = None if epoch.crops is None else Augmentation(epoch.crops.offset[flat], epoch.crops.flip[flat])
        found: Tensor = self.pool.inputs(epoch.rows[flat], crops).unflatten(0, places.shape)
        return found

    def _mixed(
        self, drawn: Sequence[Any], inputs: Tensor, labels: Tensor, weight: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mixed inputs, targets and weights, all [steps, K, B, ...]: every batch of the chunk at once."""
        rule, network = self.job.batch, self.network
        steps, clients, size = labels.shape
        joined = join(drawn, network.dtype, network.device, [size] * len(drawn))
        data = [t.flatten(0, 1) for t in (inputs, labels, weight) if t is not None]

        def one(*given: Tensor) -> tuple[Tensor, ...]:
            draw = filled(joined.form, lambda hole: given[len(data) + hole.index])
            mixed = rule.mix(given[0], given[1], network.num_classes, draw)
            return mixed if weight is None else (*mixed, rule.weigh(given[2], draw))

        try:
            found = vmap(one)(*data, *joined.tensors)
        except Exception as error:  # parts are anybody's
            raise NotStackable(
                f"{type(rule).__name__} cannot be run for many batches at once ({line(error)})"
            ) from error
        cut = [t.unflatten(0, (steps, clients)) for t in found]
        return cut[0], cut[1], None if weight is None else cut[2]

    # --------------------------------------------------------------------------------------------------------- views

    def _view(self, members: tuple[int, ...]) -> View:
        """The members' part: a view where they follow each other by rank, else copies that ``_back`` returns."""
        if members in self.views:
            return self.views[members]
        follow = members == tuple(range(members[0], members[-1] + 1))
        device = self.network.device
        index = None if follow else torch.tensor(members, device=device)

        def part(tensor: Tensor) -> Tensor:
            return tensor[members[0] : members[-1] + 1] if index is None else tensor.index_select(0, index)

        kept = {name: part(t) for name, t in self.kept.items()}
        momenta = {name: part(t) for name, t in self.momenta.items()}
        tensors = {name: self.many.leaf(name, t).detach() for name, t in kept.items()}
        live = {name: tensors[name].requires_grad_() for name in self.many.trainable}
        own = {live[name]: self.many.leaf(name, momentum) for name, momentum in momenta.items()}
        optimizer = Sgd(live.values(), self.job.training, own)
        copies = {} if follow else {**kept, **{f"{name} momentum": t for name, t in momenta.items()}}
        view = View(members, tensors, live, optimizer, index, copies)
        if follow:
            self.views[members] = view
        return view

    def _back(self, view: View) -> None:
        if view.index is None:
            return
        for name, tensor in self.kept.items():
            tensor.index_copy_(0, view.index, view.kept[name])
        for name, tensor in self.momenta.items():
            tensor.index_copy_(0, view.index, view.kept[f"{name} momentum"])

    # ------------------------------------------------------------------------------------------------------- results

    def fits(self) -> list[Fit]:
        """What each client's training came to, by rank."""
        clients = len(self.tasks)
        params = {n: self.many.client(n, self.many.leaf(n, self.kept[n]), clients) for n in self.many.names}
        whole = [torch.isfinite(t.flatten(1)).all(1) for t in params.values() if t.is_floating_point()]
        finite, losses = torch.stack(whole).all(0).tolist(), self.losses.tolist()
        epochs, states = self.job.training.epochs, self.objective.finished()
        found = []
        for k, own in enumerate(self.sizes):
            steps = epochs * len(own)
            mine = {name: t[k].clone(memory_format=torch.contiguous_format) for name, t in params.items()}
            found.append(Fit(mine, states[k], losses[k] / max(steps, 1), steps, finite[k]))
        return found
