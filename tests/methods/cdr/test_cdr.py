"""CDR: its vectors, step by step with torch's SGD, and its ends."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flnl.core.optimizer import Adam
from flnl.core.parts import Setting
from flnl.core.training import Training
from flnl.methods.cdr.gradient import CriticalOnly, critical
from tests.toys import ONE_STEP, step
from tests.vectors.vectors import field

ADAM = Adam(0.9, 0.99, 1e-8)


def tensors(values: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(values[name], dtype=torch.float64) for name in ("W1", "b1", "W2")}


@pytest.mark.parametrize("name", ["cdr.two_steps", "cdr.paper_l1"])
def test_vectors(name: str) -> None:
    v = field(name)
    tau, decay, lam = v.inputs["tau"], v.inputs.get("decay", "l2"), v.inputs["weight_decay"]
    params = {name: torch.nn.Parameter(p) for name, p in tensors(v.inputs).items()}
    optimizer = torch.optim.SGD([*params.values()], lr=v.inputs["lr"], momentum=v.inputs["momentum"], weight_decay=lam)
    part = CriticalOnly(tau, decay, lam)
    for k, expected in enumerate(v.expected["steps"]):
        gradients = tensors(v.inputs["grads_step1"])
        gradients["W1"] *= (1.0, -0.5)[k]
        now = {name: p.detach().clone() for name, p in params.items()}
        changed = part(gradients, step(params=now))
        if decay == "l2":
            for weight, mask in (("W1", "mask1"), ("W2", "mask2")):
                assert (changed[weight] != 0).int().tolist() == expected[mask]
        assert torch.equal(changed["b1"], gradients["b1"])
        for name, p in params.items():
            p.grad = changed[name]
        optimizer.step()
        for name, p in params.items():
            np.testing.assert_allclose(p.detach(), expected[name], atol=v.absolute)


def test_vector_of_the_number_of_critical_weights() -> None:
    v = field("cdr.floor_hazard")
    assert [critical(size, tau) for tau, size in v.inputs["pairs"]] == v.expected["guarded"]


def test_equal_weights_are_critical_together_and_none_may_be() -> None:
    params = {"w": torch.ones(2, 4), "b": torch.ones(4)}
    gradients = {"w": torch.tensor([[1.0, -1.0, 1.0, 2.0], [0.5, 0.1, 1.0, 0.0]]), "b": torch.ones(4)}
    kept = CriticalOnly(0.75, "l2", 0.0)(gradients, step(params=params))
    assert kept["w"].tolist() == [[0.25, -0.25, 0.25, 0.5], [0.0, 0.0, 0.25, 0.0]]  # 2 of 8, and 3 that tie with one
    none = CriticalOnly(1.0, "l2", 0.0)(gradients, step(params=params))
    assert not none["w"].any()
    assert torch.equal(none["b"], gradients["b"])
    dead = {"w": torch.tensor([[0.0, 0.0, 0.0, 3.0], [0.0, 0.0, 0.0, 0.0]])}
    assert CriticalOnly(0.5, "l2", 0.0)(dead, step(params=params))["w"].flatten().tolist() == [0, 0, 0, 1.5, 0, 0, 0, 0]
    only = CriticalOnly(0.5, "l2", 0.0)({"b": torch.ones(4)}, step(params=params))
    assert torch.equal(only["b"], torch.ones(4))


def test_words_that_a_batch_lacks_do_not_count() -> None:
    params = {"table": torch.ones(50, 2), "w": torch.ones(2, 2)}
    rows = torch.zeros(50, 2)
    rows[3], rows[7] = torch.tensor([4.0, 1.0]), torch.tensor([-3.0, 0.5])
    gradients = {"table": rows, "w": torch.tensor([[5.0, 0.2], [2.0, 0.1]])}
    texts = replace(step(params=params), inputs=torch.zeros(1, 3, dtype=torch.int64))
    kept = CriticalOnly(0.5, "l2", 0.0)(gradients, texts)
    assert kept["table"][[3, 7]].tolist() == [[2, 0], [-1.5, 0]]
    assert kept["w"].tolist() == [[2.5, 0], [1, 0]], "4 of 8, not 52 of 104"
    assert not any(g.any() for g in CriticalOnly(1.0, "l2", 0.0)(gradients, texts).values())
    assert CriticalOnly(0.0, "l2", 0.0)(gradients, texts) is gradients
    images = CriticalOnly(0.5, "l2", 0.0)(gradients, step(params=params))
    assert torch.equal(images["table"], rows / 2)


def test_what_it_refuses_and_warns_of() -> None:
    decayed = replace(ONE_STEP, weight_decay=0.01)

    def setting(training: Training) -> Setting:
        return Setting({0: 3}, (4,), training, "method.gradient")

    part, net = CriticalOnly(0.5, "sign", 0.01), torch.nn.Linear(1, 1)
    assert part.refuses(net, [], setting(decayed)) is None
    for other in (replace(decayed, clip=1.0), replace(decayed, weight_decay=0.1), replace(decayed, optimizer=ADAM)):
        assert "method.gradient.decay=sign needs SGD" in str(part.refuses(net, [], setting(other)))
        assert CriticalOnly(0.5, "l2", 0.01).refuses(net, [], setting(other)) is None
    assert part.caution(setting(decayed)) is None
    assert "train.weight_decay=0" in str(part.caution(setting(ONE_STEP)))
