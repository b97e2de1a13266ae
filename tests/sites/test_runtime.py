"""What a site refuses, what it keeps and answers again, and what the server makes of answers that are none."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flnl.console.terminal import LineFormatter
from flnl.core import stored
from flnl.core.errors import UserError
from flnl.core.messages import ClientState
from flnl.core.state import RoundResult
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.loop import NonFiniteError
from flnl.parts.samplers.power_of_choice import MeanLoss
from flnl.sites import messages, runtime, wire
from flnl.sites.executor import Sites
from flnl.sites.link import Link
from flnl.sites.messages import Parts
from flnl.sites.policy import Policy
from flnl.sites.runtime import SiteData, SiteRuntime
from flnl.sites.states import Entry, SiteStates
from tests.properties.runs import Assembled, assembled, difference, run
from tests.registry import TINY
from tests.sites.test_wire import mutated

WORDS = (*(word for word in TINY if not word.startswith("executor=")), "executor=sites", "method=fedprox", "rounds=2")
FEDNORO = ("method=fednoro", "max_rounds=1", "executor.allow=[ClassLosses]")


@dataclass
class Recording:
    """A transport that notes what it carries, and may change answers."""

    inner: Any
    changed: Callable[[int, Parts], Parts] = lambda number, parts: parts
    down: list[Parts] = field(default_factory=list)
    up: list[Parts] = field(default_factory=list)

    def nodes(self) -> Sequence[str]:
        return self.inner.nodes()  # type: ignore[no-any-return]

    def push(self, to: str, parts: Parts, ttl: float) -> str:
        self.down.append(parts)
        return self.inner.push(to, parts, ttl)  # type: ignore[no-any-return]

    def pull(self, ids: Sequence[str]) -> Mapping[str, Parts]:
        answers: Mapping[str, Parts] = self.inner.pull(ids)
        self.up += answers.values()
        return {number: self.changed(len(self.up), parts) for number, parts in answers.items()}


def link_of(parts: Assembled) -> Link:
    assert isinstance(parts.executor, Sites)
    return parts.executor.link


def recorded(parts: Assembled, changed: Callable[[int, Parts], Parts] = lambda number, parts: parts) -> Recording:
    """What has been carried from now on."""
    link = link_of(parts)
    link.transport = Recording(link.transport, changed)
    return link.transport


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[SiteRuntime, Parts, Parts]:
    """A runtime with a run, and the messages that opened it and gave it its first task."""
    with assembled(WORDS, tmp_path_factory.mktemp("site") / "run") as parts:
        transport = recorded(parts)
        link_of(parts).open()
        next(parts.rounds())
        runtimes = {wire.read(sent[0])["client"]: sent for sent in transport.down if len(sent) == 1}
        first = next(sent for sent in transport.down if len(sent) == 2)
        client = next(number for number, sent in enumerate(transport.down[8:]) if sent is first)
        assert client == 0
        to = sorted(int(path.parents[2].name) for path in (parts_folder(parts)).glob("sites/*/runs/*/replies"))[0]
        return transport.inner.runtimes[str(to)], runtimes[to], first


def parts_folder(parts: Assembled) -> Path:
    return link_of(parts).folder


def changed(parts: Parts, **values: Any) -> Parts:
    """A message with other values in its header."""
    return [wire.written({**wire.read(parts[0]), **values}), *parts[1:]]


def said(runtime: SiteRuntime, parts: Parts) -> dict[str, Any]:
    """The header of a runtime's answer."""
    return wire.read(runtime.handle(parts)[0])  # type: ignore[no-any-return]


def other_config(parts: Parts, change: Callable[[dict[str, Any]], object]) -> Parts:
    """An opening message with another configuration, and the key that belongs to it."""
    from flnl.sites.shared import key_of

    header = wire.read(parts[0])
    config = json.loads(header["config"])
    change(config)
    text = json.dumps(config)
    return changed(parts, config=text, key=key_of(text, header["classes"], header["clients"], header["holders"]))


# ------------------------------------------------------------------------------------------------------------- opening


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"wire": 2}, "server has wire 2, and the site 1"),
        ({"flnl": "0.1.0"}, "server has flnl 0.1.0"),
        ({"key": "0" * 64}, "not that of the configuration"),
        ({"classes": ("0", "1")}, "8 of the site's classes are unknown"),
        ({"classes": tuple("9876543210")}, "in another order"),
        ({"run": "../other"}, "this name"),
        ({"run": "ABC"}, "this name"),
        ({"client": 8}, "this number"),
        ({"client": "8"}, "another type"),
        ({"holders": 7}, "not that of the configuration"),
        ({"clients": 9}, "not that of the configuration"),
        ({"kind": "secret"}, "kind that is not expected"),
    ],
)
def test_a_run_that_does_not_fit_is_not_opened(
    site: tuple[SiteRuntime, Parts, Parts], values: dict[str, Any], told: str
) -> None:
    answer = said(site[0], changed(site[1], **values))
    assert answer["kind"] == "refused"
    assert told in answer["why"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda config: config["method"]["batch"].update(_target_="nowhere.Part"),
            "'nowhere.Part', which no configuration",
        ),
        (lambda config: config["method"]["aggregator"].update(_target_="Plain"), "cannot stand there"),
        (lambda config: config["method"]["local"]["fedprox"].update(mu=-1), "mu=-1"),
        (lambda config: config["method"]["local"]["fedprox"].update(mu="${oc.env:HOME}"), "interpolations are for"),
        (lambda config: config["train"].update(lr="fast"), "train.lr=fast"),
        (lambda config: config["model"].update(_target_="os.system"), "'os.system', which no configuration"),
        (lambda config: config["inputs"].update(shape=[3, 8, 8]), "samples of another size"),
        (lambda config: config.update(more=1), "other keys"),
        (lambda config: config["train"].update({f"x{number}": 1 for number in range(9999)}), "more than 65,536 char"),
        (lambda config: config["method"].update(name={"_target_": "Mean"}), "method.name"),
        (
            lambda config: config["method"]["stages"]["training"].update(networks=1),
            "keys of a method that there are not",
        ),
        (lambda config: config.update(observe="to approve: all"), "observe is neither"),
        (lambda config: config["method"].update(name="fedavg, approved"), "a name that is none"),
        (lambda config: config["method"]["stages"].update({"a b": {}}), "a name that is none"),
        (
            lambda config: config["method"]["local"].update({" ": config["method"]["local"]["fedprox"]}),
            "a name that is",
        ),
        (lambda config: config["model"].update(hidden=[60_000, 60_000]), "can be sent"),
        (lambda config: config["method"].update({"../../x": {}}), "keys of a method that there are not"),
        (lambda config: config["method"]["stages"]["training"].update(x={}), "keys of a method that there are not"),
        (lambda config: config["method"].update(stages={f"s{number}": {} for number in range(33)}), "32 stages"),
    ],
)
def test_a_configuration_is_checked_where_it_is_used(
    site: tuple[SiteRuntime, Parts, Parts], change: Callable[[dict[str, Any]], object], told: str, tmp_path: Path
) -> None:
    """A site's own runtime: the one of the module has built the run already."""
    answer = said(SiteRuntime(site[0].data, tmp_path), other_config(site[1], change))
    assert answer["kind"] == "refused"
    assert told in answer["why"]


def test_a_run_must_be_approved_where_the_site_wants_that(
    site: tuple[SiteRuntime, Parts, Parts], tmp_path: Path
) -> None:
    key = wire.read(site[1][0])["key"]
    answer = said(SiteRuntime(site[0].data, tmp_path, Policy(approve="another key")), site[1])
    assert answer["why"] == f"this run is not approved; its key is {key}"
    assert said(SiteRuntime(site[0].data, tmp_path, Policy(approve=key)), site[1])["kind"] == "opened"


def test_a_site_of_few_samples_takes_no_part(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"site 0, 1, .* refused: the site takes part with 50 samples at least"):
        run(WORDS, tmp_path / "run", "executor.least_samples=50")


def test_what_tells_of_labels_leaves_only_if_it_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"site 0, 1, .* refused: fednoro sends ClassLosses, .*allow=\[ClassLosses\]"):
        run([*WORDS[:-2], *FEDNORO[:-1]], tmp_path / "run")
    run([*WORDS[:-2], *FEDNORO], tmp_path / "other")


def test_a_site_whose_labels_have_changed_does_not_go_on(site: tuple[SiteRuntime, Parts, Parts]) -> None:
    given = site[0].data.dataset.given
    assert given is not None
    other = SiteData(site[0].data.name, replace(site[0].data.dataset, given=np.roll(given, 1)))
    assert "have changed since round 1" in said(SiteRuntime(other, site[0].folder), site[1])["why"]
    assert said(SiteRuntime(site[0].data, site[0].folder), site[1])["kind"] == "opened"


def test_a_run_is_not_opened_again_as_another(site: tuple[SiteRuntime, Parts, Parts], tmp_path: Path) -> None:
    """Also not by a runtime that was started anew; as itself it is."""
    runtime = SiteRuntime(site[0].data, tmp_path)
    assert said(runtime, site[1])["kind"] == "opened"
    longer = other_config(site[1], lambda config: config["train"].update(epochs=7))
    for one in (runtime, SiteRuntime(site[0].data, tmp_path)):
        assert said(one, longer)["why"] == "the run of this name was opened with another key"
        grown = changed(site[1], client=1 - wire.read(site[1][0])["client"])
        assert said(one, grown)["why"] == "the run of this name was opened with another client"
        assert said(one, site[1])["kind"] == "opened"


def test_few_runs_begin_with_one_key_and_fewer_are_held(
    site: tuple[SiteRuntime, Parts, Parts], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each run begins to count anew how often it was asked for something, and holds a network."""
    monkeypatch.setattr(runtime, "MOST_RUNS", 3)
    one = SiteRuntime(site[0].data, tmp_path)
    for name in ("a", "b", "c", "a"):
        assert said(one, changed(site[1], run=name))["kind"] == "opened"
        assert len(one._runs) <= runtime.OPEN
    assert said(one, changed(site[1], run="d"))["why"].startswith("3 runs with this key have begun here")
    for path in tmp_path.glob("runs/*/opened"):  # the same, written otherwise
        data = path.read_bytes()
        key = wire.read(data)["key"].encode()
        other = f"\\u{key[0]:04x}".encode() + key[1:]
        text = data[len(wire.MAGIC) + 8 :].replace(key, other)
        path.write_bytes(wire.MAGIC + len(text).to_bytes(8, "little") + text)
    assert said(one, changed(site[1], run="d"))["why"].startswith("3 runs with this key have begun here")
    other = other_config(site[1], lambda config: config["train"].update(epochs=7))
    assert said(one, changed(other, run="d"))["kind"] == "opened"
    assert said(one, changed(site[2], run="b"))["kind"] == "done"


# --------------------------------------------------------------------------------------------------------------- tasks


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"run": "other"}, "has not opened this run"),
        ({"job": "read"}, "asks no such job"),
        ({"job": "correct"}, "asks no such job"),
        ({"job": "open", "exchange": "lid"}, "asks no such job"),
        ({"exchange": "lid"}, "only an exchange's job names one"),
        ({"job": "correct", "exchange": "again"}, "only an exchange's job names one"),
        ({"job": "ask", "ask": 1}, "asks no such job"),
        ({"stage": 2}, "no such stage"),
        ({"lengths": (1, 2)}, "no such stage"),
        ({"lengths": (10**6,)}, "no such stage or round"),
        ({"round": -1}, "no such stage or round"),
        ({"round": 2}, "no such stage or round"),
        ({"floor": 1}, "begin again after this round"),
        ({"seed": 7}, "the seed is not the configuration's"),
        ({"kept": "0" * 32}, "which the server names, is not here"),
        ({"kept": "../../../secret.key"}, "which the server names, is not here"),
        ({"seed": "1"}, "another type"),
    ],
)
def test_a_task_that_is_none_is_not_done(
    site: tuple[SiteRuntime, Parts, Parts], values: dict[str, Any], told: str
) -> None:
    answer = said(site[0], changed(site[2], **values))
    assert answer["kind"] == ("lost" if "kept" in values else "refused")
    assert told in answer["why"]


def test_a_site_has_an_answer_to_whatever_bytes(site: tuple[SiteRuntime, Parts, Parts]) -> None:
    rng, kinds = np.random.default_rng(5), set()
    for number in range(400):
        broken = list(site[2] if number % 2 else site[1])
        part = int(rng.integers(0, len(broken)))
        broken[part] = mutated(broken[part], rng)
        kinds.add(said(site[0], broken)["kind"])
    assert "refused" in kinds


def test_a_job_is_asked_for_a_few_times_only(site: tuple[SiteRuntime, Parts, Parts], tmp_path: Path) -> None:
    """Each time with another model: the same message is answered from what is stored."""
    runtime = SiteRuntime(site[0].data, tmp_path)
    runtime.handle(site[1])
    model = wire.read(site[2][1])
    kinds = []
    for number in range(4):
        other = wire.written({name: tensor + number for name, tensor in model.items()})
        kinds += [said(runtime, [site[2][0], other])["kind"] for _ in range(2)]
    assert kinds == [*["done"] * 6, "refused", "refused"]


def test_a_job_that_fails_is_asked_for_as_rarely(
    site: tuple[SiteRuntime, Parts, Parts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a crafted model makes it fail tells something of the samples; a site that begins anew remembers."""

    def failing(job: LocalTraining, network: Any, task: Any) -> Any:
        raise ValueError

    monkeypatch.setattr(LocalTraining, "__call__", failing)
    model, kinds = wire.read(site[2][1]), []
    for number in (0, 1, 0, 2, 3, 3, 0):
        one = SiteRuntime(site[0].data, tmp_path)
        one.handle(site[1])
        other = wire.written({name: tensor + number for name, tensor in model.items()})
        kinds.append(said(one, [site[2][0], other])["kind"])
    assert kinds == [*["failed"] * 4, "refused", "refused", "failed"]


def test_labels_are_corrected_when_the_method_does(tmp_path: Path) -> None:
    """At the end of a stage; before it, counts of changed labels would tell of single ones."""
    words = [*(word for word in WORDS if "method=" not in word and "rounds=" not in word), "method=fedcorr"]
    with assembled([*words, "method.T1=1", "method.T2=2", "method.T3=1"], tmp_path / "run") as parts:
        transport = recorded(parts)
        link_of(parts).open()
        list(parts.rounds())
        tasks = [sent for sent in transport.down if len(sent) == 2]
        last = [sent for sent in tasks if wire.plain_in(sent[0], 10**8).get("job") == "correct"][-1]
        header, runtimes = wire.read(last[0], stored.classes()), transport.inner.runtimes.values()
        of = next(one for one in runtimes if wire.read(one.handle(last)[0], stored.classes())["kind"] == "done")
        early = [wire.written({**header, "round": header["round"] - 1, "floor": 0}), last[1]]
        assert sum(header["lengths"][: header["stage"]]) == header["round"] + 1
        assert "asks no such job" in wire.read(of.handle(early)[0], stored.classes()).get("why", "done")


def test_a_server_does_not_go_back_behind_what_it_has_left(
    site: tuple[SiteRuntime, Parts, Parts], tmp_path: Path
) -> None:
    """There the site has forgotten how often it was asked."""
    one = SiteRuntime(site[0].data, tmp_path)
    one.handle(site[1])
    model, run = wire.read(site[2][1]), wire.read(site[1][0])["run"]

    def asked(number: int, **values: Any) -> str:
        other = wire.written({name: tensor + number for name, tensor in model.items()})
        return str(said(one, [*changed(site[2][:1], **values), other]).get("why", "done"))

    assert asked(0, floor=0) == "done"
    SiteStates(tmp_path / "runs" / run, b"").forget_before(1)
    assert asked(0, floor=0) == "done"  # what is stored
    assert "that the server has left behind" in asked(1, floor=0)


def test_a_sampler_is_answered_what_its_settings_ask(tmp_path: Path) -> None:
    """The loss of one sample at a time would tell its label."""
    words = [*(word for word in WORDS if "method=" not in word), "method=power_of_choice"]
    with assembled(words, tmp_path / "run") as parts:
        transport = recorded(parts)
        link_of(parts).open()
        next(parts.rounds())
        asked = next(
            sent for sent in transport.down if len(sent) == 2 and wire.plain_in(sent[0], 10**8)["job"] == "ask"
        )
        of = next(one for one in transport.inner.runtimes.values() if said(one, asked)["kind"] == "done")
        job = messages.read_header(asked, messages.ASKED, {MeanLoss})["ask"]
        assert job == MeanLoss(None)
        header = {**messages.read_header(asked, messages.ASKED, {MeanLoss}), "ask": MeanLoss(1)}
        assert "asks no such job" in said(of, [wire.written(header), asked[1]])["why"]


@pytest.mark.parametrize("message", ["evaluate", "finish"])
def test_few_models_are_scored_and_taken_in_a_round(
    message: str, site: tuple[SiteRuntime, Parts, Parts], tmp_path: Path
):
    """Counts of many crafted models would tell of single labels."""
    runtime = SiteRuntime(site[0].data, tmp_path)
    runtime.handle(site[1])
    task, model = wire.read(site[2][0]), wire.read(site[2][1])
    more = {"own": {}, "kept": ""} if message == "finish" else {}

    def asked(number: int, round: int) -> dict[str, Any]:
        header = wire.written({"kind": message, "run": task["run"], "round": round, **more})
        return said(runtime, [header, wire.written({name: tensor + number for name, tensor in model.items()})])

    assert "refused" not in [asked(number, 1)["kind"] for number in (0, 1, 2, 0)]
    assert asked(3, 1)["why"] == "the server has sent 3 models with round 1 before"
    runtime.handle(site[1])  # to open the run again does not help
    assert asked(3, 1)["why"] == "the server has sent 3 models with round 1 before"
    if message == "finish":  # what it tells depends on what the server says of its exchanges, too
        more["own"] = {"lid": 1}
        assert asked(0, 1)["why"] == "the server has sent 3 models with round 1 before"
        more["own"] = {}
    assert asked(3, 2)["kind"] != "refused"
    assert [asked(4, round)["why"] for round in (-5, 3)] == ["the method has no such round"] * 2


def test_what_the_exchanges_have_is_of_as_many_clients_as_the_run(tmp_path: Path) -> None:
    """Or a short message has a site make room for a billion."""
    words = [*WORDS[:-2], "method=fedgr", "max_rounds=1", "executor.allow=[SentSampleLosses]"]
    with assembled(words, tmp_path / "run") as parts:
        transport = recorded(parts)
        link_of(parts).finish(parts.results()[-1].state)
        finish = next(sent for sent in transport.down if wire.plain_in(sent[0], 10**8).get("kind") == "finish")
        header = wire.read(finish[0], stored.classes())
        ((name, own),) = header["own"].items()
        many = wire.written({**header, "own": {name: replace(own, clients=9**9)}})
        answers = [said(one, [many, finish[1]]) for one in transport.inner.runtimes.values()]
        assert {one["why"] for one in answers} == {"what the exchanges have is of another number of clients"}


def test_no_text_of_an_error_in_a_sites_own_work_crosses(
    site: tuple[SiteRuntime, Parts, Parts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have a path, and with it a class: that of an image that cannot be read any more."""
    runtime = SiteRuntime(site[0].data, tmp_path)
    runtime.handle(site[1])

    def unreadable(job: LocalTraining, network: Any, task: Any) -> Any:
        raise UserError("dataset.root: /data/cats/0.png cannot be read any more")

    monkeypatch.setattr(LocalTraining, "__call__", unreadable)
    assert said(runtime, site[2]) == {"kind": "failed", "why": "UserError"}


def test_a_refusal_is_short_and_shows_what_it_quotes(
    site: tuple[SiteRuntime, Parts, Parts], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or a server draws a question of its own on the site's terminal, in a log of what has failed."""
    forged = "\x1b[2J\nto approve: flnl site north --approve 0000"
    runtime = SiteRuntime(site[0].data, tmp_path)
    answer = said(runtime, other_config(site[1], lambda config: config["train"].update({forged: 1, "x" * 9000: 2})))
    assert "train" in answer["why"]
    assert len(answer["why"]) <= 2000
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(message)s"))
    try:
        raise ValueError(forged)
    except ValueError as error:
        handler.handle(
            logging.makeLogRecord(
                {"msg": "failed", "levelno": 30, "exc_info": (type(error), error, error.__traceback__)}
            )
        )
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert all(line.startswith("  | ") and len(line) < 80 for line in shown.splitlines()[1:])


def test_a_run_that_is_refused_leaves_what_was_there(tmp_path: Path) -> None:
    own = tmp_path / "run" / "sites" / "0" / "precious"
    own.parent.mkdir(parents=True)
    own.write_text("x")
    with pytest.raises(UserError, match="takes part with 9999 samples"):
        run(WORDS, tmp_path / "run", "executor.least_samples=9999")
    assert own.read_text() == "x"
    assert not (tmp_path / "run" / "sites.run").exists()


def test_what_has_crossed_is_written_with_every_job(tmp_path: Path) -> None:
    with assembled(WORDS, tmp_path / "run") as parts:
        next(parts.rounds())
        before = (link_of(parts).folder / "crossed.csv").read_text()
    assert "up,model" in before


def test_a_task_that_is_asked_again_is_answered_without_training(
    site: tuple[SiteRuntime, Parts, Parts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a runtime that was started anew, and where the server may begin again does not matter."""
    trained = visits_counted(monkeypatch)
    runtime = SiteRuntime(site[0].data, tmp_path)
    runtime.handle(site[1])
    first = runtime.handle(site[2])
    again = SiteRuntime(site[0].data, tmp_path)
    again.handle(site[1])
    assert again.handle(changed(site[2], floor=0)) == first == runtime.handle(site[2])
    assert len(trained) == 1


def visits_counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clients that train from now on, one after another."""
    trained, before = list[int](), LocalTraining.__call__

    def train(job: LocalTraining, network: Any, task: Any) -> Any:
        trained.append(task.client)
        return before(job, network, task)

    monkeypatch.setattr(LocalTraining, "__call__", train)
    return trained


# -------------------------------------------------------------------------------------------------------- the states


def test_a_handle_tells_nothing_of_the_state(tmp_path: Path) -> None:
    """Another secret gives another handle; it is no digest that a guess could be compared with."""
    state = ClientState(labels=torch.tensor([1, 2, 3]))
    handles = {SiteStates(tmp_path / name, name.encode() * 32).put(state, 1, "task") for name in "ab"}
    assert len(handles) == 2
    data = wire.written((1, state))
    assert not {hashlib.new(name, data).hexdigest()[:32] for name in ("sha256", "md5", "sha1")} & handles


def test_a_handle_does_not_tell_whether_a_task_has_changed_something(tmp_path: Path) -> None:
    states, state = SiteStates(tmp_path, b"s" * 32), ClientState(labels=torch.tensor([1, 2, 3]))
    handles = [states.put(state, 1, task) for task in ("one", "other")]
    assert len({*handles}) == 2
    for handle in handles:
        assert torch.equal(states.state(handle)[0].held(torch.zeros(3)), state.held(torch.zeros(3)))


def test_a_sites_states_keep_what_a_server_may_ask_for_again(tmp_path: Path) -> None:
    """Of each round before the floor but the last, nothing; that one's state before and after it."""
    states = SiteStates(tmp_path, b"s" * 32)
    handles = [states.put(ClientState(labels=torch.tensor([number])), 1, "") for number in range(6)]
    for number in range(5):
        states.answered(Entry(number, "train ", f"task{number}", handles[number], handles[number + 1]), [b"answer"])
    states.forget_before(3)
    assert {path.name for path in (tmp_path / "states").iterdir()} == {*handles[2:]}
    assert {path.name for path in (tmp_path / "replies").iterdir()} == {"task2", "task3", "task4"}
    assert [entry.round for entry in SiteStates(tmp_path, b"s" * 32).entries] == [2, 3, 4]


def test_sites_do_not_keep_every_round(tmp_path: Path) -> None:
    words = [
        *WORDS[:-1],
        "rounds=6",
        "fraction=1.0",
        "checkpoint.every=1",
        "train.keep_momentum=true",
        "train.momentum=0.5",
    ]
    folder = run(words, tmp_path / "run").folder
    assert len([*folder.glob("sites/0/runs/*/replies/*")]) == 3  # of the checkpoints after rounds 4 and 5
    assert len([*folder.glob("sites/0/runs/*/states/*")]) == 4


def test_a_site_that_is_a_round_ahead_does_nothing_special(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that goes on with its last but one checkpoint has the bits of one that was never killed."""
    words = [*WORDS, "train.keep_momentum=true", "train.momentum=0.5", "checkpoint.every=1"]
    whole = run([*words, "rounds=3"], tmp_path / "whole")
    broken = run([*words, "rounds=3"], tmp_path / "broken", "max_rounds=2")
    (broken.folder / "checkpoints" / "round_00000002.pt").unlink()
    trained = visits_counted(monkeypatch)
    gone_on = run([*words, "rounds=3"], tmp_path / "broken", "resume=true")
    assert difference(gone_on.state.server, whole.state.server) is None
    assert gone_on.state.counters == whole.state.counters
    assert len(trained) == 6  # of the third round alone


def test_a_state_that_is_lost_ends_the_run_with_the_sites_name(tmp_path: Path) -> None:
    words = [*WORDS, "train.keep_momentum=true", "train.momentum=0.5", "fraction=1.0"]
    broken = run(words, tmp_path / "run", "max_rounds=1")
    for path in broken.folder.glob("sites/3/runs/*/states/*"):
        path.unlink()
    with pytest.raises(UserError, match=r"site 3 refused: the state '\w{32}', which the server names, is not here"):
        run(words, tmp_path / "run", "resume=true")


def test_another_executor_does_not_go_on_without_the_sites_states(tmp_path: Path) -> None:
    words = [*WORDS, "train.keep_momentum=true", "train.momentum=0.5"]
    run(words, tmp_path / "run", "max_rounds=1")
    with pytest.raises(
        UserError, match="executor=sequential: this run's clients have kept their states at their sites"
    ):
        run(words, tmp_path / "run", "executor=sequential", "resume=true")


# ----------------------------------------------------------------------------------------------------------- the server


def with_model(parts: Parts, change: Callable[[dict[str, torch.Tensor]], object]) -> Parts:
    model = wire.read(parts[1])
    change(model)
    return [parts[0], wire.written(model)]


BROKEN: list[Callable[[Parts], Parts]] = [
    lambda parts: with_model(parts, lambda model: model["head.weight"].fill_(torch.nan)),
    lambda parts: with_model(parts, lambda model: model.update({"head.weight": torch.zeros(3)})),
    lambda parts: with_model(parts, lambda model: model.pop("head.bias")),
    lambda parts: [parts[0], parts[1][:-1]],
    lambda parts: [parts[0]],
    lambda parts: [b"", parts[1]],
    lambda parts: [],
    lambda parts: changed(parts, num_samples=10**6),
    lambda parts: changed(parts, steps=-1),
    lambda parts: changed(parts, kept="../states"),
    lambda parts: changed(parts, loss="0.1"),
    lambda parts: [parts[0], wire.written([torch.zeros(0)] * 3)],
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Assembled]:
    with assembled([*WORDS[:-1], "rounds=1"], tmp_path_factory.mktemp("server") / "run") as parts:
        yield parts


def first_round(parts: Assembled, changed: Callable[[Parts], Parts], **settings: Any) -> RoundResult:
    """The first round, in which the second answer is changed."""
    link, plain = link_of(parts), link_of(parts).transport
    link.transport = Recording(plain, lambda number, answer: changed(answer) if number == 2 else answer)
    try:
        return next(parts.rounds(settings=replace(parts.settings, **settings)))
    finally:
        link.transport = plain


@pytest.mark.parametrize("change", BROKEN, ids=range(len(BROKEN)))
def test_an_answer_that_is_none_leaves_the_site_out(server: Assembled, change: Callable[[Parts], Parts]) -> None:
    result = first_round(server, change)
    counters = result.state.counters
    assert (counters.left_out, counters.unanswered) == (1, int(change is not BROKEN[0])), "the first is an answer"
    assert all(bool(tensor.isfinite().all()) for tensor in result.state.server.params.values())


def test_it_stops_the_run_where_the_run_says_so(server: Assembled) -> None:
    with pytest.raises(NonFiniteError, match="round 1: client"):
        first_round(server, BROKEN[0], on_nonfinite="stop")


def test_the_server_has_something_to_say_to_whatever_bytes(server: Assembled) -> None:
    rng, left_out = np.random.default_rng(7), 0

    def broken(parts: Parts) -> Parts:
        part = int(rng.integers(0, 2))
        return [mutated(one, rng) if number == part else one for number, one in enumerate(parts)]

    for _ in range(60):
        with suppress(UserError):  # a mutated header may say that the site has refused
            left_out += first_round(server, broken).state.counters.left_out
    assert left_out > 20
