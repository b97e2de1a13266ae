"""Draws on which labels' privacy rests are a site's own; what leaves is written down, and nothing else leaves."""

import json
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from flnl.core.errors import UserError
from flnl.core.messages import Broadcast, ClientState, ClientTask, Kept, Samples
from flnl.core.method import Method
from flnl.core.streams import OfEngine
from flnl.methods.fedcorr.exchange import LidScore
from flnl.methods.fedpeer.exchange import LabelCounts, SharedLabels
from flnl.sites import wire
from flnl.sites.messages import RefusedError
from flnl.sites.policy import Ledger, Policy, revealed
from tests.properties.runs import Ran, assembled, difference, run
from tests.sites.test_runtime import WORDS, link_of, recorded

FEDPEER = (*WORDS[:-2], "method=fedpeer", "rounds=1", "data_seed=1", "max_rounds=1")


def counts(done: Ran) -> list[int]:
    """The randomised counts of all clients' labels that the server has."""
    shared = next(value for value in done.state.server.exchanges.values() if isinstance(value, SharedLabels))
    assert shared.counts is not None
    return shared.counts.tolist()


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.read_text().splitlines()]


def test_the_same_labels_are_randomised_the_same_in_every_run(tmp_path: Path) -> None:
    """So ten runs tell no more than one. Sites of another secret send others, and the run's seed tells neither."""
    same = f"executor.folder={tmp_path / 'sites'}"
    first, second = (counts(run([*FEDPEER, same, f"seed={seed}"], tmp_path / str(seed))) for seed in (1, 2))
    assert first == second
    assert first != counts(run([*FEDPEER, "seed=1"], tmp_path / "other"))
    assert first != counts(run([*FEDPEER, "seed=1", "executor=sequential"], tmp_path / "simulated"))
    ledger = lines(tmp_path / "sites/0/ledger.jsonl")
    assert [(one["type"], one["epsilon"]) for one in ledger] == [("LabelCounts", ledger[0]["epsilon"])] * 2
    assert ledger[0]["epsilon"] > 0
    assert ledger[0]["draw"] == ledger[1]["draw"]
    assert ledger[0]["run"] != ledger[1]["run"]


def test_a_site_spends_no_more_than_it_allows(tmp_path: Path) -> None:
    """Over all runs; the same draw again costs nothing."""
    sites = (f"executor.folder={tmp_path / 'sites'}", "executor.max_epsilon=5")
    run([*FEDPEER, *sites, "method.epsilon=3"], tmp_path / "first")
    run([*FEDPEER, *sites, "method.epsilon=3", "seed=2"], tmp_path / "again")
    with pytest.raises(UserError, match=r"site 0 refused: the labels' ε would add up to 5\.5, and the site allows 5"):
        run([*FEDPEER, *sites, "method.epsilon=2.5"], tmp_path / "more")


def test_a_ledger_is_kept_before_anything_leaves(tmp_path: Path) -> None:
    path, costs = tmp_path / "ledger.jsonl", dict[type, float]({LabelCounts: 1.5})
    Ledger(path, b"s" * 32).release("run", [LidScore, LabelCounts], costs, b"labels", None)
    again = Ledger(path, b"s" * 32)
    assert [one.epsilon for one in again.releases] == [1.5]
    again.release("run", [LabelCounts], costs, b"labels", 1.5)
    assert len(lines(path)) == 1
    with pytest.raises(RefusedError, match=r"3, and the site allows 1\.5"):
        again.release("run", [LabelCounts], costs, b"others", 1.5)
    assert len(lines(path)) == 1
    again.release("run", [LabelCounts], {LabelCounts: math.inf}, b"labels", 1.5)
    assert lines(path)[1]["epsilon"] is None
    assert b"labels" not in path.read_bytes()


def test_two_ledgers_of_one_file_know_of_each_other(tmp_path: Path) -> None:
    """Those of two runs at once."""
    path, costs = tmp_path / "ledger.jsonl", dict[type, float]({LabelCounts: 3.0})
    one, other = (Ledger(path, b"s" * 32) for _ in range(2))
    one.release("a", [LabelCounts], costs, b"labels", 5.0)
    with pytest.raises(RefusedError, match="6, and the site allows 5"):
        other.release("b", [LabelCounts], costs, b"others", 5.0)
    other.release("b", [LabelCounts], costs, b"labels", 5.0)
    assert [line["run"] for line in lines(path)] == ["a", "b"]


def test_a_type_that_two_exchanges_send_counts_as_the_worse() -> None:
    class Sends:
        def __init__(self, epsilon: float) -> None:
            self.reveals = {LabelCounts: epsilon}

    for order in ((math.inf, 0.01), (0.01, math.inf)):
        method = SimpleNamespace(exchange=dict(zip("ab", map(Sends, order), strict=True)), stages=())
        assert revealed(cast(Method, method)) == {LabelCounts: math.inf}


@pytest.mark.parametrize(("other", "refused"), [(0.99, True), (1.0, False)])
def test_a_type_has_one_epsilon_in_a_method(other: float, *, refused: bool) -> None:
    """With another each exchange draws anew, and the ledger would have one of the draws."""
    exchanges = {"a": SimpleNamespace(reveals={LabelCounts: 1.0}), "b": SimpleNamespace(reveals={LabelCounts: other})}
    exchanges["c"] = SimpleNamespace(reveals={})
    method = cast(Method, SimpleNamespace(name="mine", exchange=exchanges, stages=()))
    with pytest.raises(RefusedError, match="LabelCounts with several ε") if refused else nullcontext():
        Policy().admit(method)


def test_a_few_samples_tell_of_single_ones(tmp_path: Path) -> None:
    """The loss on them, for a sampler, and a model that was trained on them alone."""
    words = [*(word for word in WORDS[:-2] if "method=" not in word), "method=power_of_choice", "rounds=1"]
    with pytest.raises(UserError, match=r"sends MeanLoss, which is not allowed there: .*allow=\[MeanLoss\]"):
        run([*words, "method.sampler.batch=1"], tmp_path / "a")
    run([*words, "method.sampler.batch=1", "executor.allow=[MeanLoss]"], tmp_path / "b")
    with pytest.raises(UserError, match="a visit of training trains on 14 samples, the site on 15 at least"):
        run([*words, "train.steps=2", "executor.least_samples=15"], tmp_path / "c")
    run([*words, "train.steps=2", "executor.least_samples=14"], tmp_path / "d")


def test_a_run_begins_with_what_leaves_its_sites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By type, with what it means and costs; and how many labels were changed, unless sites keep that."""
    run([*FEDPEER, "method.epsilon=3", "eval.validation=0.2"], tmp_path / "fedpeer")
    told = " ".join(capsys.readouterr().err.split())
    assert "LabelCounts in training (ε = 3): once: the count of each class among a client's labels" in told
    assert "how many of its labels were flagged and changed how many samples it holds out" in told
    words = ("method=fedavg", "rounds=1", "executor.counts=false", "executor.allow=[Neighbours]")
    run([*WORDS[:-2], *words], tmp_path / "fedavg")
    told = capsys.readouterr().err
    assert "at most: its model, numbers of samples and steps, mean loss\n" in told
    assert "executor.allow names Neighbours, which this method does not send" in told


def test_no_label_no_pixel_and_no_name_leaves_a_site(tmp_path: Path) -> None:
    """FedCorr corrects labels; its frames, and what the server holds, have neither those nor samples."""
    words = [*WORDS[:-2], "method=fedcorr", "method.T1=1", "method.T2=1", "method.T3=1", "method.theta=0.15"]
    with assembled([*words, "noise.rho=0.8", "executor.folder=" + str(tmp_path / "sites")], tmp_path / "run") as parts:
        runtimes = link_of(parts).transport.runtimes  # type: ignore[attr-defined]
        transport = recorded(parts)
        state = parts.results()[-1].state
        link_of(parts).finish(state)
        up = b"".join(part for message in transport.up for part in message)
        kept = b"".join(path.read_bytes() for path in (tmp_path / "sites").glob("*/runs/*/states/*"))
        found = 0
        for runtime in runtimes.values():
            labels, pixels = runtime.data.samples.given, runtime.data.samples.read()
            images = [image.numpy().tobytes() for image in pixels]
            runs = [labels.to(dtype).numpy().tobytes() for dtype in (torch.int64, torch.int32, torch.uint8)]
            secret = (runtime.folder / "secret.key").read_bytes()
            for canary in (*images, *runs, secret, secret.hex().encode(), str(tmp_path).encode()):
                assert canary not in up
        for client in state.clients:
            handle = state.client(client).extras.one(Kept).handle
            (path,) = (tmp_path / "sites").glob(f"*/runs/*/states/{handle}")
            _, of_site, _ = wire.read(path.read_bytes(), [type(state.client(client)), *_kinds()])
            corrected = of_site.labels
            if corrected is not None:
                found += corrected.numpy().tobytes() in kept
                assert corrected.numpy().tobytes() not in up
        assert found > 2  # where they are, they are found


def _kinds() -> list[type]:
    from flnl.methods.fedcorr.corrector import Suspects
    from flnl.methods.fedcorr.exchange import SampleLosses

    return [Suspects, SampleLosses]


def test_draws_for_training_may_be_a_sites_own(tmp_path: Path) -> None:
    """The same secrets and seed give the same run, also through a stop; others give another. The record says so."""
    words = [*WORDS, f"executor.folder={tmp_path / 'sites'}", "executor.streams=own"]
    own = run(words, tmp_path / "own")
    assert own.record["executor"]["own_streams"] == [str(client) for client in range(8)]
    again = tmp_path / "again"
    run(words, again, "max_rounds=1")
    assert difference(run(words, again, "resume=true").state.server, own.state.server) is None
    others = run(words, tmp_path / "others", f"executor.folder={tmp_path / 'others' / 'sites'}")
    plain = run(WORDS, tmp_path / "plain")
    assert difference(others.state.server, own.state.server) is not None
    assert difference(plain.state.server, own.state.server) is not None
    assert "own_streams" not in plain.record["executor"]


def test_what_clients_share_does_not_come_from_a_secret() -> None:
    """Parts draw it from the task's seed; a second network's task of another seed has other draws (FedClean)."""
    task = ClientTask(3, cast(Samples, None), Broadcast(0, 1, {}), ClientState(), 1, b"s" * 32)
    own = replace(task, own_streams=True)
    assert own.seed == task.seed
    drawn = [one.stream("x").random() for one in (task, own, replace(own, secret=b"t" * 32), replace(own, seed=2))]
    assert len(set(drawn)) == 4
    assert task.stream("x").random() == replace(task, secret=None).stream("x").random() == drawn[0]
    assert own.engine_seed(OfEngine.DROPOUT) != task.engine_seed(OfEngine.DROPOUT)
