"""How models are combined: the weighted mean, whole state dicts, exactness, and who is left out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from flnl.core.execution import BLOCK, Block
from flnl.core.messages import ClientResult, ClientState, ClientTask, Combined
from flnl.core.model import Model
from flnl.core.parts import LossTerm, ServerUpdate
from flnl.core.payload import Params, Payload
from flnl.core.step import Step
from flnl.core.training import Training
from flnl.data.federation.build import Federation
from flnl.engine.executors.sequential import Sequential
from flnl.engine.loop import NonFiniteError
from flnl.parts.aggregators.mean import Mean
from flnl.parts.messages import UsedSamples
from flnl.parts.samplers.uniform import Uniform
from flnl.parts.server_optimizers import Momentum
from flnl.parts.servers import Replace, Scaled
from tests.toys import (
    ONE_STEP,
    Point,
    Toward,
    equal,
    federation,
    method,
    mlp,
    network,
    random_federation,
    rounds,
    stage,
    task,
    vector,
)
from tests.vectors.vectors import field


def result(params: Params, samples: int, client: int = 0) -> ClientResult:
    return ClientResult(client, samples, params, ClientState(), Payload(), 0.0, 1, True)


def combined(
    models: Sequence[Params],
    samples: Sequence[int],
    weights: Literal["samples", "uniform"] = "samples",
    cut: int = BLOCK,
) -> Params:
    """What the aggregator makes of these models in blocks of ``cut``; the received model has other values."""
    mean = Mean(weights)
    received = {name: torch.full_like(p, 77) for name, p in models[0].items()}
    results = [result(m, n, k) for k, (m, n) in enumerate(zip(models, samples, strict=True))]
    blocks = [mean.block(received, results[first : first + cut], Payload()) for first in range(0, len(results), cut)]
    return mean.combine(received, blocks, Payload()).params


def models(count: int, dtype: torch.dtype = torch.float32) -> list[Params]:
    """Models whose entries differ by orders of magnitude and cancel, so that a careless sum loses them."""
    rng = torch.Generator().manual_seed(0)
    scale = 10.0 ** torch.randint(-4, 5, (count, 50), generator=rng)
    return [{"w": (torch.randn(50, generator=rng) * s).to(dtype)} for s in scale]


def exact_mean(values: Sequence[Params], samples: Sequence[int]) -> list[float]:
    """Without rounding until the end."""
    rows = np.stack([m["w"].double().numpy() for m in values])
    return [math.fsum(float(v) * n for v, n in zip(column, samples, strict=True)) / sum(samples) for column in rows.T]


# -------------------------------------------------------------------------------------------------------- the mean


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_mean_weighted_by_samples(cut: int):
    v = vector("fedavg.aggregate")
    found = combined([{"w": torch.tensor(w, dtype=torch.float64)} for w in v.inputs["w"]], v.inputs["n"], cut=cut)
    assert found["w"].tolist() == v.approx("w")


def test_uniform_mean_ignores_sizes():
    found = combined([{"w": torch.tensor([3.0])}, {"w": torch.tensor([6.0])}], [1, 1000], "uniform")
    assert found["w"].tolist() == [4.5]


def bn_model(weight: float, mean: float, variance: float, batches: int) -> Params:
    return {
        "weight": torch.tensor([weight], dtype=torch.float32),
        "running_mean": torch.tensor([mean], dtype=torch.float32),
        "running_var": torch.tensor([variance], dtype=torch.float32),
        "num_batches_tracked": torch.tensor(batches),
    }


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_state_dicts_with_buffers(cut: int):
    """Float buffers are averaged with the same weights; counters take the maximum, whatever the order."""
    clients = [bn_model(1, 0, 1, 10), bn_model(2, 2, 1, 30), bn_model(-1, -1, 2, 20)]
    found = combined(clients, [10, 30, 60], cut=cut)
    assert found["weight"].item() == pytest.approx(0.1)
    assert found["running_mean"].item() == pytest.approx(0.0, abs=1e-7)
    assert found["running_var"].item() == pytest.approx(1.6)
    assert found["num_batches_tracked"].item() == 30
    assert {name: p.dtype for name, p in found.items()} == {name: p.dtype for name, p in clients[0].items()}
    assert {name: p.shape for name, p in found.items()} == {name: p.shape for name, p in clients[0].items()}


def test_counters_beyond_what_floats_can_count():
    """An average in float64 would round these."""
    counts = [2**53 + 1, 2**53 + 3, 2**53 + 2]
    found = combined([{"n": torch.tensor(c)} for c in counts], [1, 1, 1])
    assert found["n"].item() == max(counts)
    assert found["n"].dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_client_is_copied_exactly(dtype: torch.dtype):
    """No product and quotient by its size: with one client a round the model is handed on as it is."""
    weights = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=dtype)
    alone = {"w": weights, "n": torch.tensor(7)}
    assert equal(combined([alone], [37]), alone)


def test_equal_models_keep_their_bits():
    same = {"w": torch.randn(1000, generator=torch.Generator().manual_seed(0)) / 3}
    assert equal(combined([same] * 12, list(range(30, 42))), same)


@pytest.mark.parametrize("count", [2, 5, 6, 12])
def test_sums_are_taken_in_float64(count: int):
    clients, samples = models(count), list(range(100, 100 + 7 * count, 7))
    expected = torch.tensor(exact_mean(clients, samples), dtype=torch.float64)
    assert torch.equal(combined(clients, samples)["w"], expected.float())


def test_cuts_do_not_show():
    clients, samples = models(13, torch.float64), list(range(50, 63))
    whole = combined(clients, samples, cut=13)["w"]
    size = torch.stack([c["w"].abs() for c in clients]).amax(0)
    for cut in (1, 2, 5):
        assert ((combined(clients, samples, cut=cut)["w"] - whole).abs() <= 1e-14 * size).all()


class Result:
    """A job that gives its client's model, prepared earlier."""

    def __init__(self, prepared: Sequence[Params]) -> None:
        self.prepared = prepared

    def __call__(self, network: Model, task: ClientTask) -> ClientResult:
        return result(self.prepared[task.client], 10 + task.client, task.client)


@pytest.mark.parametrize("count", [1, 4, 5, 6, 10, 13])
def test_blocks_are_cut_by_position_alone(count: int):
    """Blocks of five in the order of the tasks: a sum has the same bits however many workers there are."""
    clients = models(count, torch.float64)
    module = Point()
    dealt = random_federation([1] * count)
    tasks = [task(module, dealt.samples(k), client=k) for k in range(count)]

    def reduce(results: list[ClientResult]) -> Block[list[int], ClientResult]:
        return Block([r.client for r in results], results)

    blocks = list(Sequential(network(module)).map(Result(clients), tasks, reduce))
    order = list(range(count))
    assert [b.value for b in blocks] == [order[first : first + 5] for first in range(0, count, 5)]
    assert [r.client for b in blocks for r in b.results] == order


def test_nobody_contributed_leaves_the_model():
    received = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    mean = Mean("samples")
    assert equal(mean.combine(received, [], Payload()).params, received)
    empty = mean.block(received, [], Payload())
    assert equal(mean.combine(received, [empty, empty], Payload()).params, received)


def test_a_block_without_results_changes_nothing():
    received, clients = {"w": torch.zeros(50)}, models(7)
    mean = Mean("samples")
    results = [result(m, 9, k) for k, m in enumerate(clients)]
    cuts: tuple[list[ClientResult], ...] = (results[:5], [], results[5:])
    with_gap = [mean.block(received, cut, Payload()) for cut in cuts]
    without = [with_gap[0], with_gap[2]]
    one, other = (mean.combine(received, blocks, Payload()).params for blocks in (with_gap, without))
    assert equal(one, other)


# -------------------------------------------------------------------------------------------------------- the loop


def targets(values: Sequence[float], sizes: Sequence[int]) -> Federation:
    """Clients whose samples all pull ``Point`` to one value."""
    pixels = [torch.full((n, 1, 1, 1), v) for v, n in zip(values, sizes, strict=True)]
    return federation(pixels, [torch.zeros(n, dtype=torch.int64) for n in sizes])


TOWARD = {"pull": Toward()}


def after_one_round(values: Sequence[float], sizes: Sequence[int], **parts: object) -> Tensor:
    toy = method(stage(local=TOWARD, **parts))
    return rounds(toy, targets(values, sizes), Point(2.0), ONE_STEP)[-1].state.server.params["w"]


def test_a_round_is_the_mean_over_the_cohort_alone():
    """Half the way to each target, weighted by the sizes of those who took part."""
    values, sizes = [4.0, -2.0, 10.0, 0.0], [1, 2, 3, 4]
    toy = method(stage(local=TOWARD, rounds=3, sampler=Uniform(0.5)))
    w = 2.0
    for found in rounds(toy, targets(values, sizes), Point(2.0), ONE_STEP):
        assert len(found.cohort) == 2
        weight = [sizes[k] for k in found.cohort]
        ends = [w + 0.5 * (values[k] - w) for k in found.cohort]
        w = float(np.average(ends, weights=weight))
        assert found.state.server.params["w"].item() == pytest.approx(w, rel=1e-12)


def test_a_round_with_uniform_weights():
    assert after_one_round([4.0, 10.0], [1, 9], aggregator=Mean("uniform")).item() == pytest.approx((3 + 6) / 2)


def test_used_samples_are_the_weights_where_clients_say_how_many() -> None:
    """One client has left out two of its three samples, one all, one says nothing."""
    params = {"w": torch.zeros(1, dtype=torch.float64)}
    models = [{"w": torch.tensor([w], dtype=torch.float64)} for w in (1.0, 7.0, 4.0)]
    sent = [result(model, n, client) for client, (model, n) in enumerate(zip(models, (3, 5, 2), strict=True))]
    sent[0], sent[1] = (replace(sent[k], reports=Payload(UsedSamples(count))) for k, count in ((0, 1), (1, 0)))
    mean = Mean("used")
    assert float(mean.combine(params, [mean.block(params, sent, Payload())], Payload()).params["w"]) == 3.0
    assert mean.combine(params, [mean.block(params, sent[1:2], Payload())], Payload()).params is params
    by_all = Mean("samples")
    assert float(by_all.combine(params, [by_all.block(params, sent, Payload())], Payload()).params["w"]) == 4.6


def test_full_batch_rounds_are_gradient_descent_on_the_union():
    """One full-batch step a client: FedAvg is one step on all data together."""
    dealt = random_federation([7, 2, 11])
    training = Training(lr=0.3, momentum=0.0, weight_decay=0.0, batch_size=100, epochs=1, lr_decay=1.0)
    found = rounds(method(stage(rounds=2)), dealt, mlp(4, 3).double(), training)[-1].state.server.params
    together = mlp(4, 3).double()
    pixels, labels = dealt.dataset.train.read(torch.arange(20)).double(), dealt.given
    for _ in range(2):
        gradients = torch.autograd.grad(
            torch.nn.functional.cross_entropy(together(pixels), labels), list(together.parameters())
        )
        with torch.no_grad():
            for p, g in zip(together.parameters(), gradients, strict=True):
                p.sub_(0.3 * g)
    for name, p in together.state_dict().items():
        torch.testing.assert_close(found[name], p, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_client_that_diverges_is_left_out(bad: float):
    """Its model, its reports and its state; the weights are those of the others; its visit is counted."""
    values, sizes = [4.0, bad, 10.0], [1, 50, 3]
    toy = method(stage(local=TOWARD))
    (found,) = rounds(toy, targets(values, sizes), Point(2.0), ONE_STEP)
    assert found.state.server.params["w"].item() == pytest.approx((3 * 1 + 6 * 3) / 4)
    assert found.cohort == (0, 1, 2)
    assert found.state.counters.participations == 3
    assert found.state.counters.left_out == 1
    assert found.metrics["left_out"] == 1
    assert math.isfinite(found.metrics["loss"])


def test_diverged_clients_in_blocks_of_their_own():
    """Twelve clients, three blocks: one whole block and one of a later block diverge."""
    values = [1.0] * 5 + [math.nan] * 5 + [math.nan, 5.0]
    sizes = [2] * 12
    toy = method(stage(local=TOWARD))
    (found,) = rounds(toy, targets(values, sizes), Point(0.0), ONE_STEP)
    assert found.state.server.params["w"].item() == pytest.approx((5 * 0.5 + 2.5) / 6)
    assert found.state.counters.left_out == 6


def test_one_left_of_many_is_copied_exactly():
    values = [math.nan, 1 / 3, math.nan]
    toy = method(stage(local=TOWARD))
    (found,) = rounds(toy, targets(values, [5, 7, 9]), Point(0.1), ONE_STEP)
    start, pixel = torch.tensor([0.1], dtype=torch.float64), torch.tensor(1 / 3).double()
    assert torch.equal(found.state.server.params["w"], start - 0.5 * (start - pixel))


@dataclass(frozen=True)
class Halfway(ServerUpdate):
    """Half the step to the combined model; its state is what it was told in every round."""

    def init(self, params: Params) -> list[Any]:
        """The first model."""
        return [params["w"].item()]

    def __call__(
        self, params: Params, combined: Params, cohort: Sequence[int], clients: int, state: Any
    ) -> tuple[Params, Any]:
        """Between the received and the combined model."""
        return {"w": (params["w"] + combined["w"]) / 2}, [*state, (list(cohort), clients)]


def test_what_the_server_update_is_told():
    """The model that was sent, the mean of those that came back, whose they are and of how many; and its own state."""
    toy = method(stage(local=TOWARD, rounds=3, server=Halfway()))
    found = rounds(toy, targets([4.0, math.nan, 10.0, 0.0], [1, 1, 3, 0]), Point(2.0), ONE_STEP)
    (state,) = found[-1].state.server.updates.values()
    assert state == [2.0, *[([0, 2], 3)] * 3]  # client 1 diverges, client 3 has no data
    w = 2.0
    for result in found:
        combined = (1 * (w + 4) / 2 + 3 * (w + 10) / 2) / 4
        w = (w + combined) / 2
        assert result.state.server.params["w"].item() == pytest.approx(w, rel=1e-12)


def test_all_diverged_keeps_the_model_and_goes_on():
    toy = method(stage(local=TOWARD, rounds=2))
    found = rounds(toy, targets([math.nan, math.inf], [1, 1]), Point(2.0), ONE_STEP)
    assert [r.state.server.params["w"].item() for r in found] == [2.0, 2.0]
    assert found[-1].state.counters.left_out == 4
    assert found[-1].state.counters.participations == 4


@dataclass(frozen=True)
class MovesBy(LossTerm):
    """With ``ONE_STEP`` and ``Point``, w changes by the round's value; None diverges."""

    by: Sequence[float | None]

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """[B]."""
        change = self.by[step.broadcast.round]
        return step.logits[:, 0] * (math.nan if change is None else -change / ONE_STEP.lr), state


def test_momentum_of_the_server_does_not_coast_through_a_round_without_a_client():
    v = field("fedopt.empty_round")
    server = Momentum(v.inputs["beta"], v.inputs["eta"], nesterov=False)
    for i, start in enumerate(v.inputs["w0"]):
        by = [None if delta is None else delta[i] for delta in v.inputs["deltas"]]
        toy = method(stage(local={"moves": MovesBy(by)}, rounds=len(by), server=server))
        found = rounds(toy, targets([0.0, 0.0], [2, 1]), Point(start), ONE_STEP)
        path = [r.state.server.params["w"].item() for r in found]
        assert path == v.near([w[i] for w in v.expected["w"]])


def test_divergence_can_stop_the_run():
    toy = method(stage(local=TOWARD))
    with pytest.raises(NonFiniteError, match=r"client 1\b"):
        rounds(toy, targets([1.0, math.nan], [1, 1]), Point(2.0), ONE_STEP, on_nonfinite="stop")


class BrokenMean(Mean):
    def combine(self, params: Params, values: Any, known: Payload) -> Combined:
        return Combined({"w": torch.tensor([math.nan])})


class BrokenUpdate(Replace):
    def __call__(self, received: Params, combined: Params, *rest: Any) -> tuple[Params, Any]:
        return {"w": torch.tensor([math.inf])}, None


@pytest.mark.parametrize("broken", [{"aggregator": BrokenMean("samples")}, {"server": BrokenUpdate()}], ids=str)
def test_a_part_of_the_server_that_gives_no_numbers_is_named(broken: dict[str, Any]):
    """Else every client would be left out in every later round, and the run would end as finished."""
    toy = method(stage(local=TOWARD, rounds=3, **broken))
    ((place, part),) = broken.items()
    with pytest.raises(NonFiniteError, match=rf"round 1: method.{place} \({type(part).__name__}\) made non-finite"):
        rounds(toy, targets([1.0, 2.0], [1, 1]), Point(2.0), ONE_STEP)


def test_clients_without_data_are_never_asked():
    toy = method(stage(local=TOWARD, rounds=5))
    found = rounds(toy, targets([1.0, 99.0, 3.0], [1, 0, 1]), Point(0.0), ONE_STEP)
    assert {r.cohort for r in found} == {(0, 2)}


def test_batch_norm_statistics_are_averaged_over_the_cohort():
    """Not one client's, and not those before the round."""
    dealt = random_federation([8, 8])
    alone = []
    for k in (0, 1):
        own = dealt.samples(k)
        only = federation([own.read()], [own.given])
        alone.append(rounds(method(stage()), only, mlp(4, 3, norm=True).double())[-1].state.server.params)
    found = rounds(method(stage()), dealt, mlp(4, 3, norm=True).double())[-1].state.server.params
    for name in ("2.running_mean", "2.running_var"):
        torch.testing.assert_close(found[name], (alone[0][name] + alone[1][name]) / 2, rtol=1e-12, atol=1e-15)
        assert not torch.equal(found[name], alone[0][name])
    assert found["2.num_batches_tracked"].item() == 1


def test_a_scaled_step_goes_so_far_towards_the_combined_model() -> None:
    """Running statistics and integers are taken over whatever the rate."""
    received = {"w": torch.tensor([1.0, -2.0]), "bn.running_mean": torch.tensor([5.0]), "count": torch.tensor(3)}
    combined = {"w": torch.tensor([3.0, 2.0]), "bn.running_mean": torch.tensor([7.0]), "count": torch.tensor(9)}
    for rate, expected in ((0.25, [1.5, -1.0]), (1.5, [4.0, 4.0])):
        found, state = Scaled(rate)(received, combined, [0], 4, None)
        assert found["w"].tolist() == expected
        assert found["bn.running_mean"].item() == 7.0
        assert found["count"].item() == 9
        assert state is None
    assert Scaled(1.0)(received, combined, [0], 4, None)[0] is combined
