"""Which parts act in which stage: those chosen, and where a stage pins its own, those and no others."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from torch import nn

from flnl.config import compose
from flnl.config.folders import CONF
from flnl.config.short_keys import shortened
from flnl.core.errors import UserError
from flnl.core.messages import ClientTask, Clock, Correction
from flnl.core.method import Method, assemble
from flnl.core.model import Model
from flnl.core.optimizer import Adam
from flnl.core.parts import Exchange, LabelCorrector, Part, Setting
from flnl.core.payload import Payload
from flnl.core.ranges import StageNumber
from flnl.core.stage import Correcting as CorrectingStage
from flnl.core.stage import Stage
from flnl.methods.fedes.exchange import CriticalityRanks
from flnl.parts.batches import Mixup
from flnl.parts.losses.cross_entropy import CrossEntropy
from flnl.run import progress
from tests.registry import BY_NAME, COVERING, REGISTRY, TINY, Entry
from tests.toys import ONE_STEP, method
from tests.toys import stage as toy_stage


def method_of(words: Sequence[str]) -> Method:
    """The method that these overrides describe."""
    return assemble(compose.build(compose.load(words).method))


def acting(stage: Stage) -> str:
    """The parts of a stage as the registry writes them."""
    names = [type(stage.sampler).__name__, type(stage.batch).__name__, " + ".join(stage.local)]
    if stage.gradient is not None:
        names.append(type(stage.gradient).__name__)
    weights = getattr(stage.aggregator, "weights", None)
    aggregator = type(stage.aggregator).__name__
    names += [aggregator if weights is None else f"{aggregator}({weights})", type(stage.server).__name__]
    names += stage.exchange
    if stage.correct is not None:
        names.append(f"{stage.correct.rule} at {stage.correct.when}")
    length = f"{stage.passes} passes" if stage.rounds is None else f"{stage.rounds} rounds"
    return f"{length}: {', '.join(names)}"


@pytest.mark.parametrize("entry", REGISTRY, ids=str)
def test_the_parts_that_were_chosen_act(entry: Entry) -> None:
    method = method_of(entry.words)
    assert {stage.name: acting(stage) for stage in method.stages} == dict(entry.acting)
    assert [stage.number for stage in method.stages] == list(range(1, len(method.stages) + 1))


def test_an_aggregator_without_weights_acts_too() -> None:
    (stage,) = method_of([*TINY, "method=fedavg", "rounds=5"]).stages
    bare: Any = type("Bare", (), {})()
    assert acting(stage) == "5 rounds: Uniform, Plain, cross_entropy, Mean(samples), Replace"
    assert acting(replace(stage, aggregator=bare)) == "5 rounds: Uniform, Plain, cross_entropy, Bare, Replace"


@pytest.mark.parametrize("entry", REGISTRY, ids=str)
def test_what_is_printed_at_the_start_names_them(entry: Entry, capsys: pytest.CaptureFixture[str]) -> None:
    method = method_of(entry.words)
    progress.stages(method)
    printed = capsys.readouterr().err
    for stage in method.stages:
        shown = stage.parts()
        parts: list[Any] = [stage.sampler, stage.batch, stage.aggregator, stage.server, stage.gradient]
        names = [type(p).__name__ for p in parts if p is not None] + [*stage.local, *stage.exchange]
        names += [] if stage.correct is None else [stage.correct.rule]
        for name in names:
            assert name in " ".join(shown.values())
            assert name in printed
        assert shown["length"] in printed
        assert stage.name in printed


DIFFER = {
    "uniform mean": (("method=fedavg",), ("method=fedavg", "method/aggregator=uniform_mean")),
    "mixup switched off": (("method=fedcorr",), ("method=fedcorr", "method.mixup=false")),
    "mixup in the first stage only": (("method=fedcorr",), ("method=fedcorr", "method.mixup_stages=[1]")),
    "no correction": (("method=fedcorr",), ("method=fedcorr", "method.correction=false")),
    "the first stage in parallel": (("method=fedcorr",), ("method=fedcorr", "method.stage1=parallel_average")),
}


@pytest.mark.parametrize("case", DIFFER)
def test_methods_that_act_differently_are_described_differently(case: str) -> None:
    one, other = ([stage.parts() for stage in method_of([*TINY, *words]).stages] for words in DIFFER[case])
    assert one != other


CHOSEN = {
    "method/local=[cross_entropy,fedprox]": "local",
    "method/aggregator=uniform_mean": "aggregator",
    "method/aggregator=median": "aggregator",
    "method/sampler=power_of_choice": "sampler",
    "method/local=[symmetric_cross_entropy,feddyn]": "local",
    "method/server=scaled method.server.rate=0.5": "server",
    "method.server._target_=tests.properties.parts.Momentum +method.server.beta=0.5": "server",
    "method.gradient={_target_:tests.properties.parts.Scaled,by:0.5}": "gradient",
    "method.sampler.fraction=1.0": "sampler",
}


@pytest.mark.parametrize("words", CHOSEN)
def test_fedcorr_keeps_its_first_two_stages_whatever_is_chosen(words: str) -> None:
    base, other = method_of([*TINY, "method=fedcorr"]), method_of([*TINY, "method=fedcorr", *words.split()])
    assert other.stages[:2] == base.stages[:2]
    changed = [
        name
        for name in ("sampler", "batch", "local", "gradient", "aggregator", "server", "exchange", "correct")
        if getattr(other.stages[2], name) != getattr(base.stages[2], name)
    ]
    assert changed == [CHOSEN[words]]


def test_everything_chosen_at_once_acts_in_the_third_stage_only() -> None:
    words = [
        "method/local=[cross_entropy,fedprox]",
        "method/aggregator=median",
        "method/sampler=power_of_choice",
        "method.server._target_=tests.properties.parts.Momentum",
        "+method.server.beta=0.5",
        "method.gradient={_target_:tests.properties.parts.Scaled,by:0.5}",
    ]
    base, other = method_of([*TINY, "method=fedcorr"]), method_of([*TINY, "method=fedcorr", *words])
    assert other.stages[:2] == base.stages[:2]
    assert list(other.stages[2].local) == ["cross_entropy", "fedprox"]
    assert acting(other.stages[2]).endswith("Scaled, Median(uniform), Momentum")
    assert "PowerOfChoice" in acting(other.stages[2])


def test_what_is_silent_in_a_stage_reaches_no_client_there() -> None:
    """What the server knows it knows all along, and what a client keeps it keeps."""
    method = method_of([*TINY, "method=feddiv"])
    usual = replace(method.stages[1], exchange={})
    with pytest.raises(UserError, match=r"reads Filter, which noise_filter gives, but noise_filter is silent in stage"):
        replace(method, stages=(method.stages[0], usual)).check()

    fedes = method_of([*TINY, "method=fedes"])
    silent = replace(fedes.stages[1], exchange={}, gradient=None)
    replace(fedes, stages=(fedes.stages[0], silent)).check()  # the aggregator needs what the server knows
    gradient: Any = fedes.stages[1].gradient
    with pytest.raises(UserError, match=r"ClientQuality, which quality gives, but quality is silent in stage usual"):
        replace(fedes, stages=(fedes.stages[0], replace(silent, gradient=gradient))).check()
    only_kept = type("OnlyKept", (type(gradient),), {"reads": (CriticalityRanks,)})(**vars(gradient))
    replace(fedes, stages=(fedes.stages[0], replace(silent, gradient=only_kept))).check()
    pinned = replace(fedes.stages[0], exchange={})
    with pytest.raises(UserError, match="CriticalityRanks"):
        replace(fedes, stages=(pinned, replace(silent, gradient=only_kept))).check()


@dataclass(frozen=True)
class Wanting:
    """What a part of any slot may want."""

    wants: Sequence[str] = ()
    share: float = 0.15 * 3

    def lacks(self, stage: Sequence[Any]) -> Sequence[str]:
        assert any(part is self for part in stage)
        return self.wants

    def caution(self, setting: Setting) -> str | None:
        return f"{setting.key}.share={self.share:g} of {len(setting.sizes)} clients"


class Reporting(Wanting, Exchange):
    """An exchange."""


class Correcting(Wanting, LabelCorrector):
    """A corrector."""

    rules = ("all",)

    def correct(self, network: Model, task: ClientTask, rule: str) -> Correction:
        return Correction(task.client, task.labels, None, Payload(), Payload())


WANTING = ("exchange", Reporting), ("corrector", Correcting)


def with_part(slot: str, part: Any) -> Method:
    """A method of two stages, in the second of which this exchange or corrector acts."""
    exchange = {"it": part} if slot == "exchange" else {}
    correct = CorrectingStage(part, "all", "end") if slot == "corrector" else None
    return method(
        toy_stage(name="first"), toy_stage(name="last", exchange=exchange, correct=correct), exchange=exchange
    )


@pytest.mark.parametrize(("slot", "kind"), WANTING)
def test_an_exchange_and_a_corrector_are_checked_as_every_part_is(slot: str, kind: type) -> None:
    key = "exchange/it" if slot == "exchange" else "corrector"
    with_part(slot, kind()).check()
    two = type("Two", (kind,), {"networks": 2})()
    with pytest.raises(UserError, match=rf"method/{key} \(Two\) needs method.networks=2, but it is 1"):
        with_part(slot, two).check()
    reads = type("Reads", (kind,), {"reads": (CriticalityRanks,)})()
    with pytest.raises(UserError, match=rf"method/{key} \(Reads\) reads CriticalityRanks, which no exchange sends"):
        with_part(slot, reads).check()
    lacking = with_part(slot, kind(["method/batch=mixup"])).warnings()
    assert lacking == [
        f"method/{key} ({kind.__name__}) is meant for method/batch=mixup, which stage last does not have"
    ]
    assert with_part(slot, kind()).cautions({0: 5, 3: 8}, ONE_STEP) == [
        f"method.{key.replace('/', '.')}.share=0.45 of 2 clients"
    ]


@dataclass(frozen=True)
class NeedsSGD(CrossEntropy):
    """A term that cannot work with another optimiser, nor with clipped gradients."""

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        clipped, optimizer = setting.training.clip, type(setting.training.optimizer).__name__
        return None if optimizer == "SGD" and clipped is None else f"{optimizer}, clip {clipped}: {setting.lengths}"


def test_a_part_knows_how_its_own_stage_trains_and_can_refuse_it() -> None:
    stages = [toy_stage(name="one", train={"clip": 2.0}), toy_stage(name="two", local={"mine": NeedsSGD()})]
    method(*stages).check_network(nn.Linear(2, 2), {0: 5}, ONE_STEP)
    stages[1] = replace(stages[1], train={"optimizer": Adam(0.9, 0.99, 1e-8)})
    with pytest.raises(UserError, match=r"^method.local.mine: Adam, clip None: \(1, 1\)$"):
        method(*stages).check_network(nn.Linear(2, 2), {0: 5}, ONE_STEP)
    stages[1] = replace(stages[1], train={})
    with pytest.raises(UserError, match=r"SGD, clip 0\.5"):
        method(*stages).check_network(nn.Linear(2, 2), {0: 5}, replace(ONE_STEP, clip=0.5))


def test_a_part_is_named_where_it_stands_and_by_the_short_key_that_there_is() -> None:
    """``Lid`` and ``OnePass`` act in several methods."""
    words = [*TINY, "method/exchange=[fedcorr_lid]"]
    for method_name, key in (("fedavg", "method.exchange.lid.k"), ("fedcorr", "method.k_lid")):
        cfg = compose.load([*words, f"method={method_name}"])
        (line,) = assemble(compose.build(cfg.method)).cautions({0: 5, 1: 100}, compose.training(cfg))
        assert line.startswith(
            "method.exchange.lid.k=20 neighbours are more than 1 of 2 clients have (client 0 holds 5"
        )
        assert shortened(cfg, line).startswith(f"{key}=20 neighbours")
    for words, reason in (
        (
            ["method=fedcorr", "method.stage1=parallel_average", "method.gamma1=0.1"],
            "method.gamma1=0.1 divides a pass into groups, but method.stage1=parallel_average trains",
        ),
        (
            [
                "method=fedavg",
                "method.sampler._target_=flnl.parts.samplers.uniform.OnePass",
                "+method.sampler.cohorts=partition",
                "+method.sampler.start=parallel_average",
            ],
            "method.sampler.fraction=0.1 divides a pass into groups, but method.sampler.start=parallel_average trains",
        ),
    ):
        with pytest.raises(UserError, match=f"^{re.escape(reason)}"):
            compose.build(compose.load([*TINY, "fraction=0.1", *words]).method)


class Outdated(Exchange):
    """An exchange as one was written once."""

    def before_stage(self, stage: int) -> None:
        """Nothing."""


def test_a_method_of_a_part_that_nobody_calls_any_more_is_named() -> None:
    with pytest.raises(UserError, match=r"^method\.exchange\.it: nobody calls Outdated\.before_stage any more"):
        with_part("exchange", Outdated()).check()


def test_a_part_tells_what_it_overrides() -> None:
    class Own(Exchange):
        def send(self, state: Any, client: int, clock: Clock) -> tuple[Any, ...]:
            return ()

    class Further(Own):
        """Inherits it from a class of the same user."""

    class Back(Own):
        send = Exchange.send

    assert [part.overrides("send") for part in (Own(), Further(), Back(), Late(1))] == [True, True, False, False]
    assert not Own().overrides("receive")
    assert Correcting().overrides("caution"), "also by a class that is no part"


@dataclass(frozen=True)
class Late(Exchange):
    """An exchange of a user's own that waits for a stage."""

    stage: StageNumber


def test_a_stage_that_a_part_names_must_exist_wherever_the_part_stands() -> None:
    mixup = Mixup(1.0, True, [4])
    for replaces, key in ((frozenset[str](), "method.batch"), (frozenset({"batch"}), "method.stages.last.batch")):
        stages = toy_stage(name="first"), toy_stage(name="last", batch=mixup, replaces=replaces)
        with pytest.raises(UserError, match=rf"^{key}.stages=\[4\], but method=toy has stages 1 to 2 \(first, last\)$"):
            method(*stages).check()
    method(toy_stage(name="first"), toy_stage(name="last", batch=Mixup(1.0, True, [2, 4]))).check()
    two = method(toy_stage(name="first"), toy_stage(name="last"))  # in which the exchange is silent
    replace(two, exchange={"late": Late(2)}).check()
    with pytest.raises(UserError, match=r"^method\.exchange\.late\.stage=3, but method=toy has stages 1 to 2"):
        replace(two, exchange={"late": Late(3)}).check()
    pinned = method_of([*TINY, "method=fedcorr"]).stages[0]
    assert pinned.key("sampler") == "method.stages.preprocess.sampler"
    assert pinned.key("local/adaptive_proximal") == "method.stages.preprocess.local.adaptive_proximal"
    assert pinned.key("exchange/lid") == "method.exchange.lid"


def test_values_are_printed_with_at_most_six_digits() -> None:
    sampler: Any = Wanting(("a",), 1 / 3)
    shown = toy_stage(sampler=sampler, batch=Mixup(0.15 * 3, True, None)).parts()
    assert shown["sampler"] == "Wanting(wants=('a',), share=0.333333)"
    assert shown["batch"] == "Mixup(alpha=0.45, enabled=True, stages=None)"
    listed: Any = Wanting([0.15 * 3, 1.0, 1e-7], 2.0)  # type: ignore[list-item]
    assert toy_stage(sampler=listed).parts()["sampler"] == "Wanting(wants=[0.45, 1.0, 1e-07], share=2.0)"


def test_selecting_a_term_is_a_union() -> None:
    prox = method_of([*TINY, "method=fedprox"]).stages[0].local
    chosen = method_of([*TINY, "method=fedavg", "method/local=[cross_entropy,fedprox]"]).stages[0].local
    assert list(prox) == list(chosen) == ["cross_entropy", "fedprox"]
    assert prox == chosen


def test_released_departs_from_the_paper_in_named_values_only() -> None:
    ours, theirs = (compose.resolved(compose.load([*TINY, f"method={m}"])) for m in ("fedcorr", "fedcorr_released"))
    assert set(theirs["method"]) - set(ours["method"]) <= {"like"}
    changed = {k for k in ours["method"] if ours["method"][k] != theirs["method"][k]}
    values = {"prox", "loss", "relabel_set", "inference_augment", "strict_theta", "lid_guard"}
    assert changed - {"stages", "corrector", "exchange", "name"} == values
    assert {k: v for k, v in ours.items() if k != "method"} == {k: v for k, v in theirs.items() if k != "method"}


def test_the_registry_has_every_method_and_every_selectable_part() -> None:
    methods = {path.stem for path in (CONF / "method").glob("*.yaml")}
    for entries in (REGISTRY, [BY_NAME[name] for name in COVERING]):
        assert {w.removeprefix("method=") for e in entries for w in e.words if w.startswith("method=")} == methods
    used = " ".join(word for entry in REGISTRY for word in entry.words)
    used += "".join(path.read_text() for path in (CONF / "method" / "stages").glob("*.yaml"))
    chosen = "".join(path.read_text() for path in (CONF / "method").glob("*.yaml"))
    used += "".join(re.findall(r"  - override .*\n", chosen))
    for slot in ("batch", "local", "aggregator", "server", "sampler", "gradient"):
        for path in (CONF / "method" / slot).glob("*.yaml"):
            default = path.stem in ("plain", "cross_entropy", "mean", "replace", "uniform", "none")
            elsewhere = path.stem == "training_step"  # needs a network of one's own: tests/parts/losses
            assert default or elsewhere or (f"method/{slot}" in used and path.stem in used), (
                f"{slot}/{path.stem} is in no entry"
            )
    assert len(BY_NAME) == len(REGISTRY)


def test_every_part_that_acts_acts_in_a_covering_entry() -> None:
    """Tests that are fast for these entries alone meet each part."""

    def acting_in(entries: Iterable[Entry]) -> set[str]:
        stages = (stage.partition(": ")[2] for entry in entries for stage in entry.acting.values())
        return {name for stage in stages for name in re.split(r", | \+ | at ", stage)}

    assert acting_in(REGISTRY) == acting_in(BY_NAME[name] for name in COVERING)
    assert len(COVERING) < len(REGISTRY) / 2


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        ("method=fedavg rounds=5", 1),
        ("method=fedcorr", 1),
        ("method=dividemix method.T_wu=3 method.T=2", 4),
        ("method=feddiv method.T_wu=2 method.gamma1=null", 17),  # two passes over eight clients, one a round
        ("method=fedes method.s1=2", 3),
        ("method=rofl rounds=9 method.T_pl=4", 5),
        ("method=flr rounds=9 method.R_w=4", 5),
        ("method=flr rounds=9 method.R_w=4 method.warmup=server_reg", 1),
        ("method=flr rounds=3 method.R_w=4", 4),
        ("method=co_teaching rounds=9", 1),
        ("method=co_teaching_plus rounds=9 method.disagree_from=4", 5),
        ("method=fedavg method/local=[truncated_gce] method.local.truncated_gce.start=4 rounds=9", 5),
        ("method=fedpeer rounds=20 method.ramp=true method.ramp_start=4", 5),
    ],
)
def test_a_method_begins_after_its_warm_up(words: str, begins: int) -> None:
    """Whether that is a stage, or rounds that a part waits."""
    assert method_of([*TINY, *words.split()]).begins(8) == begins
