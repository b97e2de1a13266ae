"""Faulty clients: who they are, what they send, and that robust means hold where the mean breaks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flnl.core.execution import as_list
from flnl.core.fault import Fault
from flnl.core.messages import ClientResult, ClientState
from flnl.core.payload import Params, Payload
from flnl.engine.executors.stacked import Stacked
from flnl.engine.jobs import Faulty
from tests.properties.runs import assembled, difference
from tests.registry import BY_NAME

RECEIVED: Params = {
    "w": torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64),
    "running_mean": torch.tensor([5.0], dtype=torch.float64),
    "num_batches_tracked": torch.tensor(3),
}
TRAINED: Params = {
    "w": torch.tensor([1.5, -2.0, 1.0], dtype=torch.float64),
    "running_mean": torch.tensor([6.0], dtype=torch.float64),
    "num_batches_tracked": torch.tensor(9),
}

SCALES = {"sign_flip": 8, "scaled": 60, "noise": 20}


def sent(kind: Any, scale: float, round: int = 2, client: int = 4) -> Tensor:
    found = Fault(0.5, kind, scale).sent(RECEIVED, TRAINED, 1, round, client)
    for name in ("running_mean", "num_batches_tracked"):
        assert torch.equal(found[name], TRAINED[name]), "buffers are what they were"
    return found["w"]


def test_what_is_sent() -> None:
    moved = TRAINED["w"] - RECEIVED["w"]
    assert torch.equal(sent("sign_flip", 1.0), RECEIVED["w"] - moved)
    assert torch.equal(sent("sign_flip", 4.0), RECEIVED["w"] - 4 * moved)
    assert torch.equal(sent("scaled", 10.0), RECEIVED["w"] + 10 * moved)
    assert torch.equal(sent("scaled", 0.0), RECEIVED["w"])
    assert torch.equal(sent("noise", 0.0), TRAINED["w"])
    assert torch.equal(sent("noise", 1.0), sent("noise", 1.0)), "the same in every process"
    assert not torch.equal(sent("noise", 1.0), sent("noise", 1.0, round=3))
    assert not torch.equal(sent("noise", 1.0), sent("noise", 1.0, client=5))


def test_noise_is_as_long_as_the_update() -> None:
    """Times its scale, where there are many parameters."""
    received = {"w": torch.zeros(20_000)}
    trained = {"w": torch.from_numpy(np.random.default_rng(0).normal(0, 0.3, 20_000)).float()}
    noise = Fault(1.0, "noise", 2.0).sent(received, trained, 1, 0, 0)["w"] - trained["w"]
    assert float(noise.norm() / trained["w"].norm()) == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.09, 0), (0.1, 1), (0.3, 3), (1.0, 10)])
def test_who_is_faulty(share: float, count: int) -> None:
    """0.3 · 10 is 3, whatever floating point makes of it; the same clients in every round, others with another seed."""
    clients = tuple(range(5, 15))
    found = Fault(share).clients(1, clients)
    assert len(found) == count
    assert found <= set(clients)
    assert found == Fault(share).clients(1, clients)


def test_the_server_sees_nothing_else_of_them() -> None:
    results = [ClientResult(k, 9, dict(TRAINED), ClientState(), Payload(), 0.0, 1, True) for k in (3, 4)]
    block = Faulty(as_list, Fault(0.5), frozenset({4}), RECEIVED, 1, 2)(results)
    first, second = block.results
    assert first is results[0]
    assert second.params is not None
    assert torch.equal(second.params["w"], sent("sign_flip", 1.0))
    huge = Faulty(as_list, Fault(0.5, "scaled", 1e300), frozenset({4}), RECEIVED, 1, 2)
    assert [r.finite for r in huge([*results, results[1]]).results] == [True, True, True]
    over = {name: p * 1e300 if p.is_floating_point() else p for name, p in TRAINED.items()}
    wild = ClientResult(4, 9, over, ClientState(), Payload(), 0.0, 1, True)
    assert [r.finite for r in huge([wild]).results] == [False]


def test_all_executors_and_all_exchanges_see_the_same(tmp_path: Path) -> None:
    """FOCUS judges the models that it is sent; one after another, and in stacks."""
    words = [*BY_NAME["focus"].words, "fault.share=0.4", "fault.scale=3"]
    with assembled(words, tmp_path / "run", "precision=64") as parts:
        one = parts.results()
        many = parts.results(executor=Stacked(parts.evaluator.network, 5, 1.0))
    assert difference(many, one, tolerance=1e-9) is None
    assert sum(r.metrics["faulty"] for r in one) > 0
    with assembled(words[:-2], tmp_path / "plain", "precision=64") as parts:
        plain = parts.results()
    assert difference(plain, one, tolerance=1e-9) is not None
    assert "faulty" not in plain[0].metrics


@pytest.mark.parametrize("method", ["krum", "rfa", "trimmed_mean"])
@pytest.mark.parametrize("fault", ["sign_flip", "scaled", "noise"])
def test_robust_means_hold_where_the_mean_breaks(method: str, fault: str, tmp_path: Path) -> None:
    """Digits, a fifth of the clients; what they send is many times as long as an update."""
    setting = (
        *("dataset=digits", "dataset.train_size=600", "dataset.test_size=200", "partition.num_clients=10"),
        *("fraction=1.0", "rounds=6", "model=mlp", "model.hidden=[16]", "noise=none", "train.lr=0.2"),
        *("fault.share=0.2", f"fault.kind={fault}", f"fault.scale={SCALES[fault]}"),
    )
    found = {}
    for name in ("fedavg", method):
        with assembled([f"method={name}", *setting], tmp_path / name) as parts:
            last = parts.results()[-1].evaluation
            assert last is not None
            found[name] = last["accuracy"]
    assert found[method] > 0.7
    assert found["fedavg"] < found[method] - 0.2
