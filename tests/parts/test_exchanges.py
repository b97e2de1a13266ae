"""Exchanges that any method can use: true noise rates, and who uses them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flnl.core.messages import Broadcast, Gathered, Oracle
from flnl.core.payload import Payload
from flnl.methods.co_teaching.loss import CoTeaching
from flnl.parts.exchanges import OwnNoiseRate, TrueNoiseRates, own_noise_rate
from tests.properties.runs import assembled
from tests.registry import BY_NAME
from tests.toys import START, mlp, network, random_federation, task

EXCHANGE = TrueNoiseRates()
TERM = CoTeaching(0.4, num_gradual=4, exponent=1.0, schedule="paper", disagree_from=None)


def test_clients_are_sent_their_rates_after_the_first_round() -> None:
    before = EXCHANGE.init(3, {})
    assert EXCHANGE.send(before, 0, START) == ()
    gathered = Gathered(Broadcast(0, 1, {}), (), None, Payload(Oracle({0: 0.75, 2: 1.0})), 1)
    after = EXCHANGE.gathered(before, gathered)
    assert [float(m.value) for k in (0, 2) for m in EXCHANGE.send(after, k, START)] == [0.25, 0.0]
    assert EXCHANGE.send(after, 1, START) == (), "it has no samples"
    assert bool(before.isnan().all())


@pytest.mark.parametrize(("own", "wanted"), [(None, None), (0.1, 0.05), (0.0, 0.0)])
def test_a_clients_own_rate_takes_the_place_of_the_one_for_all(own: float | None, wanted: float | None) -> None:
    asked = task(mlp(4, 3), random_federation([4]).samples(0), round=2)
    sent = Payload() if own is None else Payload(OwnNoiseRate(torch.tensor(own, dtype=torch.float64)))
    asked = replace(asked, broadcast=replace(asked.broadcast, extras=sent))
    assert own_noise_rate(asked) == own
    visit = TERM.begin(network(mlp(4, 3)), asked, None)
    assert (None if visit.forget is None else float(visit.forget)) == wanted


@pytest.mark.parametrize("name", ["co_teaching_by_true_rates", "rofl_by_true_rates"])
def test_a_run_with_them_is_an_upper_bound_in_which_each_client_leaves_out_its_share(name: str, tmp_path: Path) -> None:
    words = [word for word in BY_NAME[name].words if not word.startswith("noise")]
    with assembled([*words, "noise=fedcorr", "noise.rho=0.5"], tmp_path / "run") as parts:
        assert parts.method.upper_bound
        results = parts.results()
        truth = parts.federation.truth
        assert truth is not None
        rates = results[-1].state.server.exchanges["true_noise_rates"]
        for client in parts.federation.with_data:
            samples = parts.federation.samples(client)
            wrong = (torch.as_tensor(truth[samples.index.numpy()]) != samples.given).double().mean()
            assert float(rates[client]) == pytest.approx(float(wrong), abs=1e-12)
        assert len(set(rates.tolist())) > 2, "clients differ"
        (message,) = parts.method.exchange["true_noise_rates"].send(
            results[0].state.server.exchanges["true_noise_rates"], 0, START
        )
        assert float(message.value) == float(rates[0])
