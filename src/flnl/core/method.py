"""A method: its parts, and the stages in which they act.

A method is assembled from the configuration and checked before the run starts; errors name the keys to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import takewhile
from typing import Any, get_args, get_type_hints

from torch import nn

from flnl.core import checked
from flnl.core.errors import UserError
from flnl.core.findings import Finding
from flnl.core.inputs import Kind
from flnl.core.messages import Oracle, ServerSamples
from flnl.core.parts import Exchange, LabelCorrector, Part, Setting, When
from flnl.core.payload import Payload
from flnl.core.ranges import OfStage
from flnl.core.stage import Correcting, Stage
from flnl.core.state import FederatedState
from flnl.core.training import Training

FORMER = {"before_stage": "Exchange.before_round", "judge": "Exchange.gathered", "after_round": "Exchange.gathered"}
"""What methods of exchanges were called in earlier versions, and are called now; an exchange with one is refused."""

WARM_UPS = ("warmup", "pretrain")
"""Names of stages in which a method does not act yet, if it begins with them."""

OptionOf = Callable[[str, Callable[[type], bool]], str | None]
"""Finds the option of a configuration group whose class satisfies the predicate; None if there is none."""


def no_option(group: str, fits: Callable[[type], bool]) -> None:
    """An ``OptionOf`` that finds nothing, for use without a configuration."""


@dataclass(frozen=True)
class Method:
    """A complete method. ``exchange`` holds all exchanges, including those that are silent in some stage.

    What exchanges know (``Exchange.knows``, ``known``) is information on the server for samplers, aggregators and
    correctors.
    """

    name: str
    stages: tuple[Stage, ...]
    exchange: Mapping[str, Exchange]
    networks: int = 1  # networks that each client trains; 2 for a pair
    offered: LabelCorrector | None = None  # for stages to choose; None if there is none

    def length(self, clients: int) -> int:
        """Total number of rounds."""
        return sum(stage.length(clients) for stage in self.stages)

    def begins(self, clients: int) -> int:
        """The first round (from 1) in which all parts do what they do, after the stages and rounds of a warm-up."""
        lengths = [stage.length(clients) for stage in self.stages]
        warm_up = takewhile(lambda pair: pair[0].name in WARM_UPS, zip(self.stages, lengths, strict=True))
        waits = (part.begins(lengths) for stage in self.stages for _, part in stage.acting())
        return max(sum(length for _, length in warm_up), *waits) + 1

    @property
    def title(self) -> str:
        """Display name; marks upper bounds."""
        return f"{self.name} (upper bound)" if self.upper_bound else self.name

    @property
    def aid(self) -> tuple[type, ...]:
        """Types of aid that the method gets besides its federation."""
        return tuple(dict.fromkeys(kind for exchange in self.exchange.values() for kind in exchange.aid))

    @property
    def given_clean_samples(self) -> bool:
        """Whether the server scores models on clean samples for it."""
        return ServerSamples in self.aid

    @property
    def upper_bound(self) -> bool:
        """Whether the method uses ground truth; its runs are then recorded as upper bounds."""
        return Oracle in self.aid

    def at(self, round: int, clients: int) -> tuple[Stage, int]:
        """The stage of ``round`` (from 0), and the round's number within the stage (from 0).

        Raises:
            IndexError: if ``round`` is after the last one.
        """
        for stage in self.stages:
            if round < stage.length(clients):
                return stage, round
            round -= stage.length(clients)
        raise IndexError("the method has no such round")

    @property
    def corrector(self) -> LabelCorrector | None:
        """The label corrector, None if no stage corrects; all stages share it and may use different rules."""
        return next((stage.correct.corrector for stage in self.stages if stage.correct is not None), None)

    def exchange_state(self, name: str, state: FederatedState, clients: int) -> Any:
        """The server's state of the exchange ``name``; its initial state for ``clients`` clients if it has none yet."""
        states = state.server.exchanges
        return states[name] if name in states else self.exchange[name].init(clients, state.server.params)

    def known(self, state: FederatedState, clients: int) -> Payload:
        """What all exchanges know on the server, including those silent in this stage."""
        facts: list[Any] = []
        for name, exchange in self.exchange.items():
            facts += checked.known(name, exchange.known(self.exchange_state(name, state, clients)))
        return Payload(*facts)

    def findings(self, state: FederatedState, sizes: Mapping[int, int]) -> dict[str, Sequence[Finding]]:
        """What parts have found out about clients and their samples, by the part's place (``Stage.acting``).

        Exchanges come first; the corrector is left out. ``sizes`` are the numbers of samples of all clients.
        """
        acting: list[tuple[str, Part]] = [(f"exchange/{name}", exchange) for name, exchange in self.exchange.items()]
        acting += [pair for stage in self.stages for pair in stage.acting() if pair[0] != "corrector"]
        found: dict[str, Sequence[Finding]] = {}
        for place, part in {id(part): (place, part) for place, part in acting if part.overrides("findings")}.values():
            found[place] = (*found.get(place, ()), *self._found(place, part, state, sizes))
        return found

    def findings_of_corrector(self, state: FederatedState, sizes: Mapping[int, int]) -> Sequence[Finding]:
        """The corrector's findings; empty if there is no corrector. ``sizes`` are as for ``findings``."""
        return () if self.corrector is None else self._found("corrector", self.corrector, state, sizes)

    def _found(self, place: str, part: Part, state: FederatedState, sizes: Mapping[int, int]) -> Sequence[Finding]:
        slot, _, name = place.partition("/")
        kept: Any = None
        if slot == "exchange":
            kept = self.exchange_state(name, state, len(sizes))
        elif slot == "server":
            kept = state.server.updates.get(type(part).__name__)
        elif slot == "local":
            terms = ((client, state.clients[client].terms) for client in state.clients)
            kept = {client: of[name] for client, of in terms if name in of}
        known = self.known(state, len(sizes))
        return checked.findings(place.replace("/", " "), part.findings(kept, state.clients, known), sizes)

    def check(self, option_of: OptionOf = no_option) -> None:
        """Check that the parts fit together.

        Raises:
            UserError: names the keys to change.
        """
        names = ", ".join(stage.name for stage in self.stages)
        fits_labels = any(term.fits_labels for stage in self.stages for term in stage.local.values())
        for name, exchange in self.exchange.items():
            _check_names(f"method.exchange.{name}", exchange)
            self._check_networks(f"exchange/{name}", exchange)
        for stage in self.stages:
            self._check_stage(stage, option_of, fits_labels=fits_labels)
        for key, part in reversed(self._parts()):  # exchanges first: other parts' values may refer to theirs
            for name, numbers in _stages_in(part):
                if numbers and min(numbers) > len(self.stages):
                    has = f"has stages 1 to {len(self.stages)}" if len(self.stages) > 1 else "has one stage only"
                    value = getattr(part, name)
                    raise UserError(f"{key}.{name}={value}, but method={self.name} {has} ({names})")

    def _check_stage(self, stage: Stage, option_of: OptionOf, *, fits_labels: bool) -> None:
        if not any(term.fits_labels or (term.without_labels and fits_labels) for term in stage.local.values()):
            raise UserError(
                f"method.local has {', '.join(stage.local) or 'no term'}, and nothing that learns from labels; "
                "add such a term to method/local, for instance cross_entropy"
            )
        for place, part in stage.acting():
            _check_names(stage.key(place), part)
            self._check_networks(place, part)
            on_clients = place.split("/")[0] in ("local", "batch", "gradient", "exchange")
            self._require(place, part, self._on_clients(stage) if on_clients else self._on_server, stage, option_of)
        if stage.correct is not None and stage.correct.rule not in (rules := stage.correct.corrector.rules):
            raise UserError(
                f"method.stages.{stage.name}.correct.rule={stage.correct.rule}: the corrector has {', '.join(rules)}"
            )

    def check_network(
        self, network: nn.Module, sizes: Mapping[int, int], training: Training, kind: Kind = "image"
    ) -> None:
        """Check that all parts of stages that last can work with the network, its inputs' ``kind`` and their training.

        The other arguments are those of ``cautions``.

        Raises:
            UserError: names the key of the first that cannot.
        """
        for part, setting, stage in self._settings(sizes, training, kind):
            if stage is None or not stage.length(len(sizes)):
                continue
            if (reason := part.refuses(network, [other for _, other in stage.acting()], setting)) is not None:
                raise UserError(f"{setting.key}: {reason}")

    def cautions(
        self, sizes: Mapping[int, int], training: Training, kind: Kind = "image", classes: int | None = None
    ) -> list[str]:
        """Warnings about parts that hardly work as they are, one line each.

        Args:
            sizes: samples of each client that holds any.
            training: how clients train, as far as a stage does not say otherwise.
            kind: what the data set's samples are.
            classes: how many it has.
        """
        lines = (part.caution(setting) for part, setting, _ in self._settings(sizes, training, kind, classes))
        return list(dict.fromkeys(line for line in lines if line is not None))

    def _settings(
        self, sizes: Mapping[int, int], training: Training, kind: Kind, classes: int | None = None
    ) -> Iterator[tuple[Part, Setting, Stage | None]]:
        """Every part in its setting, with its stage; None for exchanges that are silent in all stages."""
        lengths = tuple(stage.length(len(sizes)) for stage in self.stages)
        for stage in self.stages:
            for place, part in stage.acting():
                yield part, Setting(sizes, lengths, stage.training(training), stage.key(place), kind, classes), stage
        active = {name for stage in self.stages for name in stage.exchange}
        for name, exchange in self.exchange.items():
            if name not in active:
                yield exchange, Setting(sizes, lengths, training, f"method.exchange.{name}", kind, classes), None

    def _parts(self) -> list[tuple[str, Part]]:
        """Every part with its key: those of each stage, and all exchanges, also those that are silent."""
        parts = [(stage.key(place), part) for stage in self.stages for place, part in stage.acting()]
        return parts + [(f"method.exchange.{name}", exchange) for name, exchange in self.exchange.items()]

    def _check_networks(self, key: str, part: Part) -> None:
        if part.networks is not None and part.networks != self.networks:
            raise UserError(
                f"method/{key} ({type(part).__name__}) needs method.networks={part.networks}, but it is {self.networks}"
            )

    def warnings(self) -> list[str]:
        """Warnings about parts without the parts they are designed to work with, one line each."""
        lacking: dict[tuple[str, str, str], list[str]] = {}  # stages by (key, class, what is missing)
        for stage in self.stages:
            acting = dict(stage.acting())
            for key, part in acting.items():
                if missing := part.lacks(list(acting.values())):
                    lacking.setdefault((key, type(part).__name__, " and ".join(missing)), []).append(stage.name)
        lines = [
            f"method/{key} ({name}) is meant for {missing}, which stage {' and '.join(stages)} does not have"
            for (key, name, missing), stages in lacking.items()
        ]
        if self.offered is not None and self.corrector is None:
            name = type(self.offered).__name__
            lines.append(f"method.corrector ({name}) corrects no label: no stage has the key correct")
        return lines

    @property
    def _on_server(self) -> set[type]:
        """Types of message available on the server, and to clients while they correct labels."""
        return {t for e in self.exchange.values() for t in (*e.sends, *e.keeps, *e.knows)}

    def _on_clients(self, stage: Stage) -> set[type]:
        """Types of message that clients training in ``stage`` receive or keep, now or in a later stage."""
        kinds = {t for e in stage.exchange.values() if e.available_from <= len(self.stages) for t in e.sends}
        for earlier in self.stages[: stage.number]:
            kinds |= {t for e in earlier.exchange.values() if e.available_from <= len(self.stages) for t in e.keeps}
        return kinds

    def _require(self, key: str, part: Part, available: set[type], stage: Stage, option_of: OptionOf) -> None:
        """Check that everything the part reads is available.

        Raises:
            UserError: names the part, what it reads and how to provide it.
        """
        for kind in part.reads:
            if kind in available:
                continue
            missing = f"method/{key} ({type(part).__name__}) reads {kind.__name__}, which"
            for name, exchange in self.exchange.items():
                if kind in (*exchange.sends, *exchange.keeps):
                    first = exchange.available_from
                    if first > len(self.stages):
                        raise UserError(
                            f"{missing} {name} gives from stage {first} on, but method={self.name} has only "
                            f"{len(self.stages)}; choose method/stages with one more"
                        )
                    raise UserError(
                        f"{missing} {name} gives, but {name} is silent in stage {stage.name}; remove it from "
                        f"method.stages.{stage.name}.silent, or remove {key.split('/')[0]} from the stage"
                    )
            option = option_of("method/exchange", partial(_gives, kind))
            hint = f"; add method/exchange=[{option}]" if option else ""
            raise UserError(f"{missing} no exchange sends{hint}")


def _check_names(key: str, part: Part) -> None:
    former = next((name for name in FORMER if isinstance(part, Exchange) and hasattr(part, name)), None)
    if former is not None:
        raise UserError(
            f"{key}: nobody calls {type(part).__name__}.{former} any more; give it the name and the arguments of "
            f"{FORMER[former]} (flnl.core.parts)"
        )


def _gives(kind: type, part: type) -> bool:
    return any(kind in getattr(part, where, ()) for where in ("sends", "keeps", "knows"))


def _stages_in(part: Any) -> Iterator[tuple[str, Sequence[int]]]:
    """The fields of a part that name stages, with these stages' numbers."""
    hints = get_type_hints(type(part), include_extras=True)
    for name in (f.name for f in fields(part) if _names_stages(hints[f.name])):
        value = getattr(part, name)
        yield name, [value] if isinstance(value, int) else value or ()


def _names_stages(hint: Any) -> bool:
    return OfStage in getattr(hint, "__metadata__", ()) or any(map(_names_stages, get_args(hint)))


def _check_stage_values(name: str, given: Mapping[str, Any]) -> None:
    where = f"method.stages.{name}"
    if unknown := set(given) - STAGE_KEYS:
        raise UserError(f"{where}.{min(unknown)} is not a key of a stage; the keys are {', '.join(sorted(STAGE_KEYS))}")
    if ("rounds" in given) == ("passes" in given):
        raise UserError(f"{where} must have either rounds or passes")
    if not isinstance(given.get("restart", False), bool):
        raise UserError(f"{where}.restart={given['restart']} must be true or false")
    correct = given.get("correct")
    if correct is not None and (set(correct) != {"when", "rule"} or correct["when"] not in get_args(When)):
        raise UserError(
            f"{where}.correct={dict(correct)} must have the keys rule and when ({' or '.join(get_args(When))})"
        )


def _correcting(
    stage: str, given: Mapping[str, Any] | None, corrector: LabelCorrector | None, option_of: OptionOf
) -> Correcting | None:
    if given is None:
        return None
    if not corrector:
        option = option_of("method/corrector", lambda kind: given["rule"] in getattr(kind, "rules", ()))
        hint = f"add method/corrector={option} or " if option else ""
        raise UserError(
            f"method/stages: stage {stage} corrects labels, but there is no corrector; {hint}use method/stages=single"
        )
    return Correcting(corrector, given["rule"], given["when"])


STAGE_KEYS = {f.name for f in fields(Stage)} - {"name", "number", "exchange", "replaces"} | {"silent"}


def assemble(config: Mapping[str, Any], option_of: OptionOf = no_option) -> Method:
    """Assemble a method from its built configuration.

    Args:
        config: ``cfg.method`` with every part built. A stage's keys replace the method's parts; its ``silent`` names
            the exchanges that are inactive in it.
        option_of: finds the configuration option to suggest for a missing part.

    Raises:
        UserError: if a stage has an unknown key or value, or if the parts do not fit together.
    """
    exchanges: dict[str, Exchange] = config["exchange"]
    stages = []
    for number, (name, given) in enumerate(config["stages"].items(), start=1):
        _check_stage_values(name, given)
        values = {**{k: config[k] for k in ("sampler", "batch", "local", "gradient", "aggregator", "server")}, **given}
        silent = values.get("silent", [])
        stages.append(
            Stage(
                name=name,
                number=number,
                rounds=values.get("rounds"),
                passes=values.get("passes"),
                sampler=values["sampler"],
                batch=values["batch"],
                local=values["local"],
                gradient=values["gradient"] or None,
                aggregator=values["aggregator"],
                server=values["server"],
                exchange={k: e for k, e in exchanges.items() if k not in silent},
                correct=_correcting(name, values.get("correct"), config["corrector"], option_of),
                restart=values.get("restart", False),
                replaces=frozenset(given),
                train=values.get("train", {}),
            )
        )
    method = Method(config["name"], tuple(stages), exchanges, config["networks"], config["corrector"])
    method.check(option_of)
    for name, given in config["stages"].items():
        if unknown := set(given.get("silent", ())) - set(exchanges):
            raise UserError(
                f"method.stages.{name}.silent={min(unknown)} is not an exchange; there are {', '.join(exchanges)}"
            )
    return method
