"""Local training of K clients as one network: one forward, one backward and one optimiser step for all of them."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from flnl.core.inputs import Augmentation
from flnl.core.messages import ClientTask, Fit
from flnl.core.onto import onto
from flnl.core.optimizer import Buffer
from flnl.core.payload import Params, are_finite
from flnl.core.step import Mixing, Phase
from flnl.core.streams import OfEngine, torch_seeded
from flnl.core.tally import Tally
from flnl.engine.local.batching import Draws, batch_sizes, chunks
from flnl.engine.local.momentum import as_kept, continued
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.engine.stacked.errors import NotStackable
from flnl.engine.stacked.graph import EAGER, Branch, Copies, Graphs
from flnl.engine.stacked.joining import Joined, join
from flnl.engine.stacked.layers import channels_last
from flnl.engine.stacked.network import StackedNetwork
from flnl.engine.stacked.objective import Batch, Objective
from flnl.engine.stacked.plan import Plan, Planner
from flnl.engine.stacked.pool import Pool
from flnl.engine.stacked.schedule import Run, ranked, runs
from flnl.engine.stacked.step import Stepper, View, learning_rate, summed
from flnl.engine.stacked.vmapping import over_clients


def train(
    job: LocalTraining,
    network: Network,
    many: StackedNetwork,
    tasks: Sequence[ClientTask],
    pooled: int,
    graphs: Graphs = EAGER,
    compiled: bool = False,
) -> list[Fit]:
    """Train the clients; return each one's fit in the order of ``tasks``.

    Args:
        job: the training job of every client.
        network: the plain network, on whose device the clients are trained.
        many: its stacked form.
        tasks: one for each client.
        pooled: maximum number of images to hold in memory.
        graphs: recorded steps, reused in this stack and in later ones.
        compiled: whether steps of full batches run compiled code.

    Raises:
        NotStackable: if the job or its data cannot be run for many clients at once.
        UserError: if code is to be compiled and cannot be.
    """
    sizes, order = _ranked(job, network, tasks)
    stack = _Stack(job, network, many, [tasks[k] for k in order], [sizes[k] for k in order], pooled, compiled)
    (trained,) = _together([stack], graphs)
    if isinstance(trained, NotStackable):
        raise trained
    return [trained[order.index(k)] for k in range(len(tasks))]


def train_apart(
    job: LocalTraining,
    network: Network,
    many: StackedNetwork,
    tasks: Sequence[ClientTask],
    pooled: int,
    graphs: Graphs = EAGER,
    compiled: bool = False,
) -> list[Fit | NotStackable]:
    """Train each client as a stack of one, their steps as branches of one graph where they are recorded.

    The arguments are those of ``train``. A client's fit is that of a stack of one, to the bit.

    Returns:
        Each client's fit, or why it cannot be trained in this way, in the order of ``tasks``.
    """
    sizes, order = _ranked(job, network, tasks)
    each = pooled // max(1, len(tasks))
    found: dict[int, Fit | NotStackable] = {}
    stacks: dict[int, _Stack] = {}
    for k in order:
        try:
            stacks[k] = _Stack(job, network, many, [tasks[k]], [sizes[k]], each, compiled)
        except NotStackable as refusal:
            found[k] = refusal
    params = [tasks[k].broadcast.params for k in stacks]
    # steps share the one network for the received model, and the device's generator
    alike = all(received is params[0] for received in params) and not many.alone_on(network.device)
    for group in [list(stacks)] if alike else [[k] for k in stacks]:
        for k, trained in zip(group, _together([stacks[k] for k in group], graphs), strict=True):
            found[k] = trained if isinstance(trained, NotStackable) else trained[0]
    return [found[k] for k in range(len(tasks))]


def _ranked(job: LocalTraining, network: Network, tasks: Sequence[ClientTask]) -> tuple[list[list[int]], list[int]]:
    """The sizes of each client's batches, and the clients in the order of their ranks."""
    size = job.training.batch_size
    sizes = [batch_sizes(len(t.samples), size, join_last_of_one=network.has_batch_norm) for t in tasks]
    return sizes, ranked(sizes, size)


def _together(stacks: Sequence["_Stack"], graphs: Graphs) -> list[list[Fit] | NotStackable]:
    """Train stacks side by side; each one's fits by rank, or why they have none."""
    graphs.begin()
    turns = Turns(stacks, graphs)
    try:
        with _seeded(stacks):
            turns.run()
        for k, stack in enumerate(stacks):
            if k not in turns.refused:  # such a stack's clients are trained, and counted, again
                stack.network.meter.add(stack.tally)
        ends = [stack.outcome() for k, stack in enumerate(stacks) if k not in turns.refused]
        outcomes = iter(torch.cat(ends).tolist() if ends else [])  # a device is waited for once
        return [turns.refused.get(k) or stack.fits(outcomes) for k, stack in enumerate(stacks)]
    finally:
        for stack in stacks[:1]:
            stack.many.release()
            stack.network.module.eval()


def _seeded(stacks: Sequence["_Stack"]) -> AbstractContextManager[None]:
    """Within this, the device draws a lone client's masks, where it cannot draw those of several."""
    for stack in stacks:
        if stack.many.alone_on(stack.network.device):
            return torch_seeded(stack.tasks[0].engine_seed(OfEngine.DROPOUT), stack.network.device)
    return nullcontext()


@dataclass(frozen=True)
class Epoch:
    """One epoch's samples in order, concatenated over clients, and their draws."""

    positions: Tensor  # int64 [n], positions in each client's samples
    rows: Tensor  # int64 [n], rows in the pool
    labels: Tensor  # int64 [n]
    weight: Tensor | None  # [n]
    crops: Sequence[Augmentation | None]  # of each view


@dataclass
class Turn:
    """Consecutive equal steps of some clients of a stack."""

    run: Run
    view: View
    index: Tensor | None  # of the members' ranks, if the view is a copy
    batches: Iterator[Batch]
    losses: list[Tensor] = field(default_factory=list)  # of the steps so far

    @property
    def left(self) -> int:
        """Number of steps still to run."""
        return self.run.steps - len(self.losses)


@dataclass
class Turns:
    """Runs the steps of several stacks at the same time: recorded ones of equal kind as branches of one graph."""

    stacks: Sequence["_Stack"]
    graphs: Graphs
    refused: dict[int, NotStackable] = field(default_factory=dict)  # stacks that cannot be trained as such
    _now: dict[int, tuple[Turn, Branch]] = field(default_factory=dict)  # by the stack's number, which is the branch's

    def run(self) -> None:
        """Run all steps of all stacks."""
        following = [stack.turns() for stack in self.stacks]
        try:
            for number, turns in enumerate(following):
                self._go_on(number, turns)
            while self._now:
                for _ in range(min(turn.left for turn, _ in self._now.values())):
                    self._step()
                for number, (turn, branch) in list(self._now.items()):
                    if turn.left == 0:
                        stack = self.stacks[number]
                        self.graphs.leave(branch, stack.step, turn.view, turn.run.size)
                        del self._now[number]
                        stack.end(turn)
                        self._go_on(number, following[number])
        finally:
            for _, branch in self._now.values():
                self.graphs.forget(branch)

    def _go_on(self, number: int, turns: Iterator[Turn]) -> None:
        """Run the stack's turns up to the next one that a branch takes."""
        stack = self.stacks[number]
        with self._refusing(number):
            for turn in turns:
                branch = self.graphs.enter(number, stack.step, turn.view, turn.run.steps, turn.run.size)
                if branch is not None:
                    self._now[number] = turn, branch
                    return
                turn.view.leaves.renew()
                turn.losses += [stack.step(turn.view, batch) for batch in turn.batches]
                stack.end(turn)

    def _step(self) -> None:
        """One step of every stack that is in a branch."""
        ready: dict[tuple[int, int], list[Branch]] = {}
        copies = Copies()
        for number in sorted(self._now):
            turn, branch = self._now[number]
            with self._refusing(number):
                loss = branch(next(turn.batches), copies)
                if loss is None:
                    ready.setdefault(turn.run.kind, []).append(branch)
                else:
                    turn.losses.append(loss)
        copies.make()
        for kind, branches in ready.items():
            self._recorded(kind, branches)

    def _recorded(self, kind: tuple[int, int], branches: list[Branch]) -> None:
        """The step of these branches by a graph; those that cannot be recorded run apart."""
        while branches:
            graph = self.graphs.graph(branches, *kind)
            if graph is not None:
                losses = graph.replay()
                for branch in branches:
                    self._done(branch, losses[branch.number])
                return
            for branch in branches:
                if branch.refusal is not None:
                    with self._refusing(branch.number):
                        self._done(branch, branch.eager())
            branches = [branch for branch in branches if branch.refusal is None]

    def _done(self, branch: Branch, loss: Tensor) -> None:
        """Take in a branch's step on its own batch."""
        self._now[branch.number][0].losses.append(loss)
        with self.stacks[branch.number].counting():
            branch.count()

    @contextmanager
    def _refusing(self, number: int) -> Iterator[None]:
        """Count passes for a stack; leave it out if it cannot be trained as such."""
        try:
            with self.stacks[number].counting():
                yield
        except NotStackable as refusal:
            self.refused[number] = refusal
            if number in self._now:
                self.graphs.forget(self._now.pop(number)[1])


class _Stack:
    """The clients of one stack by rank, and all state of their training."""

    def __init__(
        self,
        job: LocalTraining,
        network: Network,
        many: StackedNetwork,
        tasks: Sequence[ClientTask],
        sizes: Sequence[Sequence[int]],
        pooled: int,
        compiled: bool,
    ) -> None:
        self.job, self.network, self.many, self.tasks = job, network, many, tasks
        device = network.device
        self.kept = many.store([task.broadcast.params for task in tasks])
        self.momenta = {buffer.name: self._buffer(buffer) for buffer in job.training.buffers}
        self.tally = Tally()  # of these clients' passes in training
        states = []
        for task in tasks:
            with self.counting(), network.holding(task.broadcast.params):
                states.append(job.states(network, task))
        self.planner = Planner(job, network, tasks, sizes)
        self.objective = Objective(
            network, many, job.terms, job.gradient, tasks, states, job.batch.views, self.planner.selects
        )
        rate = learning_rate(job.training, network)
        apart = many.dropouts and not many.alone_on(device)
        seeds = [task.engine_seed(OfEngine.DROPOUT) for task in tasks] if apart else []
        masks = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.step = Stepper(job, network, many, self.objective, rate, compiled and not many.dropouts, masks)
        self.pool = Pool(network, tasks, pooled)
        self.draws = [Draws(task, job.batch, job.terms) for task in tasks]
        self.starts = _starts([len(task.samples) for task in tasks])
        self.steps = [0 for _ in tasks]
        self.labels = onto(torch.cat([task.labels for task in tasks]), device)
        self.weight = onto(self._weights(), device, network.dtype) if self._weighted() else None
        self.rule_mixes = job.batch.overrides("mixing")
        self.several = self.pool.random and self.objective.sees_steps and job.batch.views > 1
        self.losses = torch.zeros(len(tasks), dtype=torch.float64, device=device)
        self.views: dict[tuple[int, ...], View] = {}
        self.ranks: dict[tuple[int, ...], Tensor | None] = {}

    def counting(self) -> AbstractContextManager[None]:
        """Within this, passes count for this stack."""
        return self.network.meter.into(self.tally)

    def _buffer(self, buffer: Buffer) -> Params:
        """Where a buffer of the clients' optimisers starts, by parameter, in the stored layout; numbers are [K]."""
        names = self.many.trainable
        if not self.job.training.keep_momentum:
            device, count = self.network.device, len(self.tasks)
            if buffer.scalar:
                return {name: torch.zeros(count, dtype=torch.float32, device=device) for name in names}
            return {name: torch.zeros_like(self.kept[name]) for name in names}
        starts = [
            continued(task.state.momentum, {name: task.broadcast.params[name] for name in names}, buffer)
            for task in self.tasks
        ]
        together = {name: torch.stack([start[name] for start in starts]) for name in names}
        return together if buffer.scalar else {name: self.many.kept(name, t) for name, t in together.items()}

    def _weighted(self) -> bool:
        having = {task.state.weight is not None for task in self.tasks}
        if len(having) > 1:
            raise NotStackable("only some of the clients have sample weights")
        return having.pop()

    def _weights(self) -> Tensor:
        return torch.cat([task.state.weight for task in self.tasks if task.state.weight is not None])

    # ----------------------------------------------------------------------------------------------------- training

    def turns(self) -> Iterator[Turn]:
        """All steps of all epochs, in order; a turn is to be ended before the next one is asked for."""
        self.step.mode(training=True)
        planned: tuple[Sequence[Sequence[int]], Sequence[int]] | None = None
        last: Plan | None = None
        counts, first = list[int](), torch.empty(0)
        pieces: list[tuple[Run, Sequence[Tensor]]] = []
        for plan in self.planner.plans(self._parameters_by_client):
            if plan is not last:
                last, counts = plan, plan.counts(self.tasks)
                first = torch.tensor(self.starts).repeat_interleave(torch.tensor(counts))
            if planned != (plan.sizes, counts):
                if planned is not None:
                    self.objective.forget()
                planned, pieces = (plan.sizes, counts), self._pieces(plan.sizes, _starts(counts))
            epoch = self._epoch(plan, counts, first)
            inputs = self._inputs([part for _, parts in pieces for part in parts], epoch)
            for run, parts in pieces:
                view, index = self._view(run.members)
                yield Turn(run, view, index, self._run(run, parts, epoch, inputs))
            self.steps = [done + len(own) for done, own in zip(self.steps, plan.sizes, strict=True)]

    def _pieces(self, sizes: Sequence[Sequence[int]], starts: Sequence[int]) -> list[tuple[Run, Sequence[Tensor]]]:
        """The runs of an epoch, each with the positions of its samples, some steps at a time."""
        return [
            (run, run.where(starts).split(max(1, self.network.chunk(1) // (len(run.members) * run.size))))
            for run in runs(sizes, self.job.training.batch_size, same_number=self.objective.sees_steps)
        ]

    def _epoch(self, plan: Plan, counts: Sequence[int], first: Tensor) -> Epoch:
        """Draw an epoch from each client's random streams; ``first`` [n] is its client's first row, of each sample."""
        device = self.network.device
        orders = [draws.order(phase.positions) for draws, phase in zip(self.draws, plan.phases, strict=True)]
        positions = torch.cat(orders)
        rows = positions + first
        there = onto(rows, device)
        return Epoch(
            onto(positions, device),
            rows,
            self._labels(plan.phases)[there],
            None if self.weight is None else self.weight[there],
            [self._crops(view, plan.sizes, counts) for view in range(self.job.batch.views if self.several else 1)],
        )

    def _labels(self, phases: Sequence[Phase]) -> Tensor:
        """The labels of all samples, int64 [n]: those of the clients' phases, where they have their own."""
        if not self.planner.selects or all(phase.labels is None for phase in phases):
            return self.labels
        own = [task.labels if p.labels is None else p.labels for task, p in zip(self.tasks, phases, strict=True)]
        return onto(torch.cat(own), self.network.device)

    def _crops(self, view: int, sizes: Sequence[Sequence[int]], counts: Sequence[int]) -> Augmentation | None:
        """Crops and flips of a view in the order of the epoch, drawn in the same chunks as when a client trains alone.

        None if nothing is random. Samples after the last batch of a client have none: zeros stand for them.
        """
        if not self.pool.random or not any(counts):
            return None
        together = self.network.batches_at_once(self.job.training.batch_size)
        offsets, flips = [], []
        for draws, own, samples in zip(self.draws, sizes, counts, strict=True):
            for chunk in chunks(own, together):
                drawn = draws.crops(self.network.transform, sum(chunk), self.pool.stored, view=view)
                assert drawn is not None, "the transform is random"
                offsets.append(drawn.offset)
                flips.append(drawn.flip)
            if rest := samples - sum(own):
                offsets.append(torch.zeros((rest, 2), dtype=torch.int64))
                flips.append(torch.zeros(rest, dtype=torch.bool))
        return Augmentation(torch.cat(offsets), torch.cat(flips))

    def _run(
        self, run: Run, parts: Sequence[Tensor], epoch: Epoch, inputs: Iterator[tuple[Tensor, ...]]
    ) -> Iterator[Batch]:
        """The batches of ``run``, from the next of ``inputs``.

        Each of ``parts``, int64 [steps, K, B], holds the positions in ``epoch`` of the samples of one item of
        ``inputs``.
        """
        number = run.number
        for part in parts:
            yield from self._batches(run, part, next(inputs), epoch, number)
            number += len(part)

    def end(self, turn: Turn) -> None:
        """Take in the losses of a turn, and its members' tensors where they are copies."""
        if turn.index is None:
            self.losses[turn.run.members[0] : turn.run.members[-1] + 1] += summed(turn.losses)
        else:
            self.losses.index_add_(0, turn.index, summed(turn.losses))
            self._back(turn.view, turn.index)

    # ------------------------------------------------------------------------------------------------------- batches

    def _batches(
        self, run: Run, where: Tensor, prepared: tuple[Tensor, ...], epoch: Epoch, number: int
    ) -> Iterator[Batch]:
        """Batches of the samples at ``where`` [steps, K, B].

        ``prepared`` are the inputs' views, [steps, K, B, ...] each if ``_clients_first``, else [steps, B, K, ...].
        """
        steps, size = len(where), run.size
        there = onto(where, epoch.positions.device)
        labels, positions = epoch.labels[there], epoch.positions[there]
        targets, weight = labels, None if epoch.weight is None else epoch.weight[there]
        unmixed: Tensor | None = None
        drawn: list[Any] = []
        if not self._clients_first:
            inputs = prepared[0].flatten(2, 3)
        elif not self.rule_mixes:
            inputs = prepared[0].transpose(1, 2).flatten(2, 3)
        else:
            unmixed = prepared[0]
            drawn = [self.draws[k].mixing(size) for _ in range(steps) for k in run.members]
            mixed, targets, weight = self._mixed(drawn, unmixed, labels, weight)
            inputs = mixed.transpose(1, 2).flatten(2, 3)
        clients, mixes = len(run.members), any(draw is not None for draw in drawn)
        asked = self.objective.sees_steps

        def of_all(values: Sequence[Any]) -> Joined:
            return self.objective.join(values, run.members)

        apart = zip(*(t.unbind() for t in (inputs, labels, targets, positions)), strict=True)
        for step, (of_inputs, of_labels, of_targets, of_positions) in enumerate(apart):
            yield Batch(
                inputs=of_inputs,
                labels=of_labels,
                targets=of_targets,
                positions=of_positions,
                weight=None if weight is None else weight[step],
                draws=of_all([self.draws[k].of_terms(size) for k in run.members]) if self.objective.draws else None,
                number=number + step,
                unmixed=unmixed[step] if mixes and unmixed is not None else None,
                mixing=of_all(drawn[step * clients : (step + 1) * clients]) if mixes and asked else None,
                views=tuple(view[step] for view in prepared[1:]),
            )

    @property
    def _clients_first(self) -> bool:
        """Whether inputs are prepared as [steps, K, B, ...]: to be mixed, or as one of several views."""
        return self.rule_mixes or self.several

    def _inputs(self, parts: Sequence[Tensor], epoch: Epoch) -> Iterator[tuple[Tensor, ...]]:
        """The views of the samples at each of ``parts``, in the shape that ``_batches`` expects."""
        places = parts if self._clients_first else [part.transpose(1, 2) for part in parts]
        flat = [part.reshape(-1) for part in places]
        crops = (
            [None if view is None else Augmentation(view.offset[part], view.flip[part]) for view in epoch.crops]
            for part in flat
        )
        prepared = self.pool.inputs([epoch.rows[part] for part in flat], crops)
        return (
            tuple(view.unflatten(0, part.shape) for view in views) for views, part in zip(prepared, places, strict=True)
        )

    def _mixed(
        self, drawn: Sequence[Any], inputs: Tensor, labels: Tensor, weight: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mix all batches of a chunk at once; return inputs, targets and weights, each [steps, K, B, ...]."""
        unmixed = [draw is None for draw in drawn]
        if all(unmixed):
            return inputs, labels, weight
        if any(unmixed):
            raise NotStackable(f"{type(self.job.batch).__name__} mixes some batches and leaves others as they are")
        network = self.network
        steps, clients, size = labels.shape
        joined = join(drawn, network.dtype, network.device, [size] * len(drawn))
        data = [t.flatten(0, 1) for t in (inputs, labels, weight) if t is not None]

        def one(*given: Tensor) -> tuple[Tensor, ...]:
            mixing: Mixing = joined.filled(given[len(data) :])
            soft = mixing.targets(given[1], network.num_classes, given[0].dtype)
            return mixing.rows(given[0]), soft, *map(mixing.rows, given[2 : len(data)])

        cut = [t.unflatten(0, (steps, clients)) for t in over_clients(one)(*data, *joined.tensors)]
        return cut[0], cut[1], None if weight is None else cut[2]

    # --------------------------------------------------------------------------------------------------------- views

    def _view(self, members: tuple[int, ...]) -> tuple[View, Tensor | None]:
        """The members' slice of the stack: a view if their ranks are consecutive, else a copy.

        With a copy comes the index of the members' ranks, int64 [K]; ``_back`` writes the copy back to them.
        """
        if members in self.views:
            return self.views[members], self.ranks[members]
        first, last = members[0], members[-1] + 1
        follow = members == tuple(range(first, last))
        if members not in self.ranks:
            there = None if follow else onto(torch.tensor(members), self.network.device)
            self.ranks[members] = there
        index = self.ranks[members]

        def part(tensors: Params) -> Params:
            if len(members) == len(self.tasks) and follow:
                return tensors
            if index is None:
                return {name: t[first:last] for name, t in tensors.items()}
            return {name: _rows(t, index) for name, t in tensors.items()}

        momenta = {buffer: part(stored) for buffer, stored in self.momenta.items()}
        view = View.of(self.many, self.job.training, members, part(self.kept), momenta, self.step.rate)
        if index is None:
            self.views[members] = view
        return view, index

    def _back(self, view: View, index: Tensor) -> None:
        pairs = [(self.kept, view.kept), *((stored, view.momenta[name]) for name, stored in self.momenta.items())]
        for stack, updated in pairs:
            for name, tensor in stack.items():
                tensor.index_copy_(0, index, updated[name])

    # ------------------------------------------------------------------------------------------------------- results

    def outcome(self) -> Tensor:
        """The sum of each client's losses, and 1 if its parameters are finite, else 0: float64 [K, 2], by rank."""
        return torch.stack([self.losses, _finite(self._parameters_by_client()).double()], dim=1)

    def fits(self, outcomes: Iterator[Sequence[float]]) -> list[Fit]:
        """Each client's fit, by rank, with the next of ``outcomes``."""
        params = self._parameters_by_client()
        momenta = as_kept(self._buffers_by_client()) if self.job.training.keep_momentum else None
        states = self.objective.finished()
        own = _of if len(self.tasks) > 1 else _of_one
        fits = []
        for k, steps in enumerate(self.steps):
            losses, finite = next(outcomes)
            trained, momentum = own(k, params), None if momenta is None else own(k, momenta)
            loss = losses / max(steps, 1)
            fits.append(Fit(trained, states[k], loss, steps, finite == 1, self.job.training.lr, momentum))
        return fits

    def _parameters_by_client(self) -> Params:
        """The parameters as [K, *shape]: views of the stack."""
        return {name: self._by_client(name, self.kept[name]) for name in self.many.names}

    def _buffers_by_client(self) -> dict[str, Params]:
        """The optimiser's buffers as [K, *shape], by the buffer's name, then by the parameter's."""
        scalars = {buffer.name for buffer in self.job.training.buffers if buffer.scalar}
        return {
            buffer: {name: t if buffer in scalars else self._by_client(name, t) for name, t in stored.items()}
            for buffer, stored in self.momenta.items()
        }

    def _by_client(self, name: str, stored: Tensor) -> Tensor:
        """A tensor in the stored layout as [K, *shape]."""
        return self.many.client(name, self.many.leaf(name, stored), len(self.tasks))


def _starts(counts: Sequence[int]) -> list[int]:
    """Where each client's samples begin, if all are one after another."""
    return [0, *accumulate(counts)][:-1]


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    """Copies of the clients' parts of a stored tensor, in its layout."""
    if tensor.is_contiguous():
        return tensor.index_select(0, index)
    return channels_last(tensor, lambda t: t.index_select(0, index))


def _finite(tensors: Params) -> Tensor:
    """Which clients' tensors [K, ...] hold only finite numbers, bool [K].

    A GPU takes longer to start a kernel for each tensor than to copy them all into one.
    """
    rows = [t.flatten(1) for t in tensors.values() if t.is_floating_point()]
    together = [torch.cat(rows, dim=1)] if rows[0].device.type != "cpu" else rows
    return are_finite(together, 1)


def _of(k: int, tensors: Params) -> Params:
    """Copies of one client's tensors."""
    return {name: t[k].clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}


def _of_one(k: int, tensors: Params) -> Params:
    """The tensors of the only client, contiguous; they share memory with the stack, which ends with it."""
    return {name: t[k].contiguous() for name, t in tensors.items()}
