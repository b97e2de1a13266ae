"""The sum of loss terms for K clients at once.

Rowwise terms, whose loss of a sample depends on that sample only, are evaluated once on the samples of all clients. The
other terms run under ``torch.func.vmap``, in which each call sees one client's step.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Self

import torch
from torch import Tensor

from flnl.core import checked
from flnl.core.errors import PartError
from flnl.core.messages import Broadcast, ClientTask
from flnl.core.onto import onto
from flnl.core.parts import GradientTransform, LossTerm
from flnl.core.payload import Params, Payload
from flnl.core.step import LOGITS, ForwardPasses, Step
from flnl.engine.local.objective import followers
from flnl.engine.network import Network, outputs_on
from flnl.engine.stacked.errors import NotStackable, line
from flnl.engine.stacked.joining import Joined, Unlike, join, without_unlike
from flnl.engine.stacked.network import Outputs, StackedNetwork
from flnl.engine.stacked.tracing import RECEIVED, RefusingStep, WatchedBroadcast, WatchedStep, refuse
from flnl.engine.stacked.vmapping import over_clients
from flnl.engine.trees import same_structure, tree_flatten, tree_map
from flnl.models import outputs as by_name
from flnl.numerics.losses import weighted_mean


@dataclass(frozen=True)
class Batch:
    """The data of one step of K clients."""

    inputs: Tensor  # [B, K·C, H, W], as the stacked network takes them
    labels: Tensor  # int64 [K, B], before mixing
    targets: Tensor  # int64 [K, B], or float [K, B, classes]
    positions: Tensor  # int64 [K, B]
    weight: Tensor | None  # [K, B]
    draws: Joined | None  # the terms' random draws by name; None if no term draws
    number: int
    unmixed: Tensor | None  # [K, B, C, H, W]; None if nothing was mixed
    mixing: Joined | None  # the mixing draw of each client's batch; None if nothing was mixed or no part reads it
    views: tuple[Tensor, ...] = ()  # [K, B, C, H, W] each, views besides the first; empty if they are equal to it

    def each(self, of: Callable[[Tensor], Tensor]) -> Self:
        """The same batch with ``of(tensor)`` instead of each tensor."""
        return tree_map(of, self)  # type: ignore[no-any-return]

    def held(self) -> list[Tensor]:
        """Every tensor, in an order that depends only on the batch's structure."""
        if self.draws is not None or self.mixing is not None:
            return tree_flatten(self)[1]
        optional = [t for t in (self.weight, self.unmixed) if t is not None]
        return [self.inputs, self.labels, self.targets, self.positions, *optional, *self.views]

    def alike(self, other: "Batch") -> bool:
        """Whether ``other`` differs only in its number and in the values of its tensors."""
        if (
            self._parts != other._parts
            or not same_structure(self.draws, other.draws)
            or not same_structure(self.mixing, other.mixing)
        ):
            return False
        pairs = zip(self.held(), other.held(), strict=True)
        return all(mine.shape == its.shape and mine.dtype == its.dtype for mine, its in pairs)

    @property
    def _parts(self) -> tuple[bool, bool, bool, bool, int]:
        """Which optional parts it has, and how many views."""
        optional = (part is not None for part in (self.draws, self.mixing, self.weight, self.unmixed))
        return *optional, len(self.views)  # type: ignore[return-value]


@dataclass
class Objective:
    """The loss terms, and each term's state on each client; clients are numbered by rank."""

    network: Network
    many: StackedNetwork
    terms: Mapping[str, LossTerm]
    gradient: GradientTransform | None
    tasks: Sequence[ClientTask]
    states: list[dict[str, Any]]
    views: int = 1  # number of views in a step
    selects: bool = False  # whether clients select the samples of an epoch, so that each has a phase of its own
    asked: set[str] | None = None  # collects what steps read, see ``flnl.engine.stacked.tracing``; None: no tracing
    _held: tuple[tuple[int, ...], Joined] | None = None
    _received: dict[tuple[int, ...], Joined] = field(default_factory=dict)
    _kept: dict[tuple[int, ...], Joined] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rowwise = {name: term for name, term in self.terms.items() if self._by_row(name, term)}
        self.others = {name: term for name, term in self.terms.items() if name not in self.rowwise}
        self.followers = followers(self.others)
        self.draws = any(term.overrides("draw") for term in self.others.values())
        self.counts = [len(task.samples) for task in self.tasks]

    @property
    def sees_steps(self) -> bool:
        """Whether any part needs a whole step, not only rows."""
        return bool(self.others) or self.gradient is not None

    def join(self, values: Sequence[Any], members: tuple[int, ...]) -> Joined:
        """Join one value of each member."""
        return join(values, self.network.dtype, self.network.device, [self.counts[k] for k in members])

    def _by_row(self, name: str, term: LossTerm) -> bool:
        alone = not (term.overrides("draw") or term.overrides("stepped"))
        return term.rowwise and alone and all(terms[name] is None for terms in self.states)

    def loss(self, members: tuple[int, ...], tensors: Params, outputs: Outputs, batch: Batch) -> Tensor:
        """Each client's loss [K], from ``outputs`` [K, B, ...] by name and ``tensors`` in the layers' layout.

        If all terms are rowwise and the batch has no weights: rows [K, B], whose mean over B is the loss.
        """
        rows = self._of_rows(outputs, batch) if self.rowwise else None
        if rows is not None and not self.others and batch.weight is None:
            return rows
        total = None if rows is None else weighted_mean(rows, batch.weight)
        if self.others:
            more = self._of_steps(members, tensors, outputs, batch)
            total = more if total is None else total + more
        assert total is not None, "a method has at least one loss term"
        return total

    def transformed(
        self, members: tuple[int, ...], tensors: Params, outputs: Outputs, batch: Batch, gradients: Params
    ) -> Params:
        """Apply the gradient transform to ``gradients`` [K, *shape]."""
        step = _Stepped(self, members, tensors, outputs, batch)
        return self._of_transform("__call__", members, step, gradients)

    def updated(
        self,
        members: tuple[int, ...],
        tensors: Params,
        outputs: Outputs,
        batch: Batch,
        before: Params,
        after: Params,
        gradients: Params,
    ) -> Params:
        """Apply the gradient transform to the optimiser's update; the last three are [K, *shape]."""
        step = _Stepped(self, members, tensors, outputs, batch)
        return self._of_transform("update", members, step, before, after, gradients)

    def _of_transform(self, method: str, members: tuple[int, ...], step: "_Stepped", *given: Params) -> Params:
        """What the gradient transform's ``method`` makes of ``given`` and the step, of each client."""
        assert self.gradient is not None
        gradient, transform, names = self.gradient, getattr(self.gradient, method), list[str]()

        def one(*tensors: Tensor) -> tuple[Tensor, ...]:
            left = iter(tensors)
            of_client = [dict(zip(params, left, strict=False)) for params in given]
            client_step, _ = step.of(list(left), self.terms)
            new = checked.changed(gradient, method, transform(*of_client, client_step), client_step.params)
            names[:] = new
            return tuple(new.values())

        flat = [tensor for params in given for tensor in params.values()]
        with torch.no_grad(), self.network.meter.standing_for(len(members)):
            transformed = _vmapped(one, type(gradient).__name__)(*flat, *step.given)
        return dict(zip(names, transformed, strict=True))

    def finished(self) -> list[dict[str, Any]]:
        """The states after the last step, by rank."""
        self._release()
        return self.states

    # ------------------------------------------------------------------------------------------------------ by row

    def _of_rows(self, outputs: Outputs, batch: Batch) -> Tensor:
        clients, size = outputs[LOGITS].shape[:2]
        rows = self._row_step(outputs, batch)
        total: Tensor | None = None
        for name, term in self.rowwise.items():
            try:
                losses, _ = checked.loss_and_state(name, rows.given_to(name, term, None))
            except PartError:
                raise
            except NotStackable as refusal:
                raise NotStackable(f"term {name} declares itself rowwise, but {refusal}") from refusal
            except Exception as error:  # user-defined parts may raise anything
                raise NotStackable(f"term {name} cannot be run on the rows of many clients ({line(error)})") from error
            if losses.shape != (clients * size,):
                raise NotStackable(f"term {name} declares itself rowwise but does not return one loss per row")
            total = losses if total is None else total + losses
        assert total is not None
        return total.view(clients, size)

    def _row_step(self, outputs: Outputs, batch: Batch) -> Step:
        """The rows of all clients as one step, which refuses to give what is not a row's."""
        of_batch: dict[str, Any] = {
            "inputs": batch.inputs,
            "labels": batch.labels.reshape(-1),
            "targets": batch.targets.flatten(0, 1),
            "positions": batch.positions.reshape(-1),
            "weight": batch.weight,
            "number": batch.number,
            "unmixed": batch.inputs,
            "computed": _Rows(outputs),
        }
        if self.asked is None:
            return RefusingStep.of(self._any_rows, self._not_of_rows, **of_batch)
        return self._refusing(replace(self._any_rows, **of_batch), self._not_of_rows)

    @cached_property
    def _any_rows(self) -> Step:
        """What is the same in every step of rows; steps are copies of it, since making them again takes longer."""
        nothing = torch.empty(0)
        received = replace(self.tasks[0].broadcast, params={}, extras=Unlike(reasons=OF_ONE_CLIENT))
        return Step(
            inputs=nothing,
            labels=nothing,
            targets=nothing,
            positions=nothing,
            weight=None,
            draws=dict.fromkeys(self.rowwise),
            number=0,
            unmixed=nothing,
            mixing=None,
            passes=_Passes(self.network, {}, self.network.scored),
            params={},
            broadcast=received,
            kept=Payload(),
        )

    @cached_property
    def _not_of_rows(self) -> frozenset[str]:
        return NOT_OF_ROWS | self._own

    # ---------------------------------------------------------------------------------------------------- by client

    def _of_steps(self, members: tuple[int, ...], tensors: Params, outputs: Outputs, batch: Batch) -> Tensor:
        step = _Stepped(self, members, tensors, outputs, batch)
        held = self.held(members)
        structures: list[Any] = []

        def one(*given: Tensor) -> tuple[Tensor, ...]:
            client_step, rest = step.of(given, self.others)
            states = dict(held.copied(lambda place: rest[place.index]))
            total: Tensor | None = None
            for name, term in self.others.items():
                returned = client_step.given_to(name, term, states[name])
                loss, states[name] = checked.loss(name, returned, len(client_step.labels))
                if loss.dim() == 1:
                    loss = weighted_mean(loss, client_step.weight)
                total = loss if total is None else total + loss
            assert total is not None
            structure, after = tree_flatten(states)
            structures[:] = [structure]
            return (total, *after)

        with self.network.meter.standing_for(len(members)):
            total, *after = _vmapped(one, ", ".join(self.others))(*step.given, *held.tensors)
        self._held = members, held.next(structures[0], after)
        return total

    def stepped(self, members: tuple[int, ...], params: Params) -> None:
        """Update the states that follow the parameters, from the members' parameters and buffers [K, *shape]."""
        held, names = self.held(members), list(params)
        structures: list[Any] = []

        def one(*given: Tensor) -> tuple[Tensor, ...]:
            own, rest = dict(zip(names, given, strict=False)), given[len(names) :]
            states = dict(held.copied(lambda place: rest[place.index]))
            for name in self.followers:
                states[name] = self.others[name].stepped(own, states[name])
            structure, after = tree_flatten(states)
            structures[:] = [structure]
            return tuple(after)

        with torch.no_grad():
            after = _vmapped(one, ", ".join(self.followers))(*params.values(), *held.tensors)
        self._held = members, held.next(structures[0], after)

    def held(self, members: tuple[int, ...]) -> Joined:
        """The members' joined states; cached until other clients step."""
        if self._held is None or self._held[0] != members:
            self._release()
            self._held = members, self.join([{n: self.states[k][n] for n in self.others} for k in members], members)
        return self._held[1]

    def hold(self, members: tuple[int, ...], states: Joined) -> None:
        """Set the members' joined states."""
        if self._held is not None and self._held[0] != members:
            self._release()
        self._held = members, states

    def _release(self) -> None:
        if self._held is not None:
            members, joined = self._held
            for place, k in enumerate(members):
                self.states[k] |= joined.of(place, self.counts[k])
            self._held = None

    def kept(self, members: tuple[int, ...]) -> Joined:
        """What the members keep, and what their visits have begun with, joined: a pair of payloads.

        To read values of a type that cannot be joined raises ``NotStackable``.
        """
        if members not in self._kept:
            pairs = [(self.tasks[k].state.extras, self.tasks[k].visit) for k in members]
            try:
                joined = self.join(pairs, members)
            except NotStackable:
                apart = (self._apart(payloads, members) for payloads in zip(*pairs, strict=True))
                joined = self.join(list(zip(*apart, strict=True)), members)
            self._kept[members] = joined.each(self._here)
        return self._kept[members]

    def received(self, members: tuple[int, ...]) -> Joined:
        """The members' joined broadcasts; a model that all received is kept once.

        To read messages of a type that cannot be joined raises ``NotStackable``.
        """
        if members not in self._received:
            sent = [self.tasks[k].broadcast for k in members]
            try:
                joined = self.join(sent, members)
            except NotStackable:
                extras = self._apart([broadcast.extras for broadcast in sent], members)
                joined = self.join([replace(b, extras=own) for b, own in zip(sent, extras, strict=True)], members)
            self._received[members] = joined.each(self._here)
        return self._received[members]

    def _apart(self, payloads: Sequence[Payload], members: tuple[int, ...]) -> list[Payload]:
        """The members' payloads, in which only what can be joined can be read."""
        return without_unlike(payloads, lambda values: self.join(values, members))

    def _here(self, tensor: Tensor) -> Tensor:
        return onto(tensor, self.network.device)

    def given(self, members: tuple[int, ...], received: Joined, kept: Joined, held: Joined | None) -> "Objective":
        """A copy with these received, kept and held values for the members."""
        members_held = None if held is None else (members, held)
        return replace(self, _held=members_held, _received={members: received}, _kept={members: kept})

    def watched(self, step: Step) -> Step:
        """The step, which refuses to give a client's own phase; if ``asked`` is set, records what is read from it."""
        return self._refusing(step, self._own)

    @property
    def _own(self) -> frozenset[str]:
        """What each client has of a step for itself."""
        return frozenset({"phase"}) if self.selects else frozenset()

    def _refusing(self, step: Step, refused: frozenset[str]) -> Step:
        asked = self.asked
        if asked is None:
            return RefusingStep.of(step, refused) if refused else step
        step.broadcast = WatchedBroadcast.of(step.broadcast, asked)

        def reading(name: str) -> None:
            if name in refused:
                refuse(name)
            asked.add(name)

        return WatchedStep.of(step, reading)

    def forget(self) -> None:
        """Forget what was joined for groups of clients that may not step together again."""
        self._received.clear()
        self._kept.clear()

    def received_module(self, broadcast: Broadcast) -> Callable[[Tensor], Tensor]:
        """The received model; if ``asked`` is set, a run of it is recorded there."""
        forward, asked = self.network.frozen(broadcast), self.asked

        def recorded(inputs: Tensor) -> Tensor:
            if asked is not None:
                asked.add(RECEIVED)
            return forward(inputs)

        return recorded


OF_ONE_CLIENT: Mapping[type, str] = {object: "it reads what a client received"}

NOT_OF_ROWS = frozenset(
    (
        *("inputs", "unmixed", "mixing", "weight", "number", "passes", "params", "kept", "visit"),
        *("views", "progress", "beside"),
    )
)
"""What a rowwise term must not read of a step: it differs between the clients whose rows are together."""


class _Rows(Outputs):
    """Outputs [K·B, ...] by name, from those of K clients."""

    def __init__(self, of_clients: Outputs) -> None:
        super().__init__()
        self._of_clients = of_clients

    def __missing__(self, name: str) -> Tensor:
        self[name] = rows = self._of_clients[name].flatten(0, 1)
        return rows


class _Stepped:
    """Flattens one step's tensors for ``vmap``, and rebuilds a client's ``Step`` from its slices."""

    def __init__(
        self, objective: Objective, members: tuple[int, ...], tensors: Params, outputs: Outputs, batch: Batch
    ) -> None:
        clients = len(outputs[LOGITS])
        many = objective.many
        inputs = batch.inputs.unflatten(1, (clients, -1)).transpose(0, 1)
        named = {name: many.client(name, t, clients) for name, t in tensors.items()}
        data = [*outputs.values(), inputs, batch.labels, batch.targets, batch.positions]
        data += [] if batch.weight is None else [batch.weight]
        data += [] if batch.unmixed is None else [batch.unmixed]
        data += batch.views
        network, drawn, mixing = objective.network, batch.draws, batch.mixing
        sent, kept = objective.received(members), objective.kept(members)
        self._mixed, self._mixing, self._kept = batch.unmixed is not None, mixing, kept
        self._received = objective.received_module(objective.tasks[members[0]].broadcast)
        self._network, self._trainable, self._watched = network, many.trainable, objective.watched
        self._names, self._outputs = list(named), list(outputs)
        self._weighted, self._number = batch.weight is not None, batch.number
        self._drawn, self._sent = drawn, sent
        self._more, self._views = len(batch.views), objective.views
        more = [joined.tensors for joined in (sent, kept, drawn, mixing) if joined is not None]
        self.given = [*named.values(), *data, *(tensor for tensors in more for tensor in tensors)]

    def of(self, given: Sequence[Tensor], terms: Mapping[str, LossTerm]) -> tuple[Step, Sequence[Tensor]]:
        """One client's step, and the remaining tensors of ``given``."""
        left = list(given)

        def take(count: int) -> list[Tensor]:
            taken = left[:count]
            del left[:count]
            return taken

        tensors = dict(zip(self._names, take(len(self._names)), strict=True))
        outputs = Outputs(zip(self._outputs, take(len(self._outputs)), strict=True))
        inputs, labels, targets, positions = take(4)
        weight = take(1)[0] if self._weighted else None
        unmixed = take(1)[0] if self._mixed else inputs
        views = (unmixed, *take(self._more)) if self._more else (unmixed,) * self._views
        sent, kept, drawn, mixing = (
            self._fill(joined, [] if joined is None else take(len(joined.tensors)))
            for joined in (self._sent, self._kept, self._drawn, self._mixing)
        )
        step = Step(
            inputs=inputs,
            labels=labels,
            targets=targets,
            positions=positions,
            weight=weight,
            draws=dict.fromkeys(terms) if drawn is None else drawn,
            number=self._number,
            unmixed=unmixed,
            mixing=mixing,
            passes=_Passes(self._network, tensors, self._received),
            params={name: tensors[name] for name in self._trainable},
            broadcast=sent,
            kept=kept[0],
            visit=kept[1],
            views=views,
            progress=UNKNOWN,
            computed=outputs,
        )
        return self._watched(step), left

    @staticmethod
    def _fill(joined: Joined | None, tensors: Sequence[Tensor]) -> Any:
        return None if joined is None else joined.filled(tensors)


class _Unknown:
    """Stands for the progress of clients' visits; reading it raises ``NotStackable``."""

    def __getattr__(self, name: str) -> Any:
        raise NotStackable("clients that are trained together are not at the same place in their visits")


UNKNOWN: Any = _Unknown()


@dataclass(frozen=True)
class _Passes(ForwardPasses):
    """Additional forward passes of one client's network with the parameters and buffers ``tensors``."""

    network: Network
    tensors: Params
    received_module: Callable[[Tensor], Tensor]

    def outputs(self, inputs: Tensor) -> Mapping[str, Tensor]:
        self._refuse_batch_norm()
        self.network.count(len(inputs))
        return by_name.outputs_with(self.network.module, self.tensors, inputs)

    def output(self, name: str, inputs: Tensor) -> Tensor:
        self._refuse_batch_norm()
        self.network.count(len(inputs), name)
        return by_name.output_with(self.network.module, self.tensors, name, inputs)

    def several(self, name: str, batches: Sequence[Tensor], *, training: bool, updating: bool) -> list[Tensor]:
        with torch.no_grad(), nullcontext() if training else self.network.evaluating():
            if updating:
                self._refuse_batch_norm()
            apart = self.network.has_batch_norm and self.network.module.training
            return outputs_on(batches, partial(self._opinion, name), apart=apart, repeated=False)

    def _opinion(self, name: str, inputs: Tensor) -> Tensor:
        """An output in the module's mode, of which buffers keep nothing."""
        trained = self.network.trainable()
        tensors = {key: t if key in trained else t.clone() for key, t in self.tensors.items()}
        self.network.count(len(inputs), name)
        with self.network.normalising(len(inputs)):
            return by_name.output_with(self.network.module, tensors, name, inputs)

    def scored(self, inputs: Tensor) -> Tensor:
        with self.network.evaluating(), torch.no_grad():
            self.network.count(len(inputs))
            return by_name.output_with(self.network.module, self.tensors, LOGITS, inputs)

    def received(self, inputs: Tensor) -> Tensor:
        return self.received_module(inputs)

    def _refuse_batch_norm(self) -> None:
        if self.network.has_batch_norm and self.network.module.training:
            raise NotStackable("running statistics depend on the order of several passes through the network")


def _vmapped(one: Callable[..., tuple[Tensor, ...]], who: str) -> Callable[..., tuple[Tensor, ...]]:
    """``vmap(one)``; every failure becomes ``NotStackable``, so that the clients run one by one."""

    def all_clients(*given: Tensor) -> tuple[Tensor, ...]:
        try:
            results = over_clients(one)(*given)
        except PartError:  # a mistake in any way of training
            raise
        except NotStackable as refusal:
            raise NotStackable(f"{who} cannot be run for many clients at once: {refusal}") from refusal
        except Exception as error:  # user-defined parts may raise anything
            branches = "it branches on a value of which each client has its own; use torch.where, or arithmetic"
            reason = branches if "data-dependent control flow" in str(error) else line(error)
            raise NotStackable(f"{who} cannot be run for many clients at once ({reason})") from error
        return results

    return all_clients
