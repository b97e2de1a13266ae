"""FedClean's sets and corrections against the vectors, and training alone against training step by step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.findings import SuspectedSamples
from flnl.core.messages import ClientResult, ClientState, Clock
from flnl.core.payload import Payload
from flnl.core.training import Training
from flnl.methods.co_teaching.loss import CoTeaching
from flnl.methods.fedclean.batch import AcceptedSamples
from flnl.methods.fedclean.corrector import TwoCorrections
from flnl.methods.fedclean.exchange import Infer, InferredLabels
from flnl.methods.fedclean.learner import Learner
from flnl.methods.fedclean.sets import TrainingSets, candidates, largest, towards_inferred, towards_predicted, upper
from flnl.methods.joint_opt.loss import JointOpt
from flnl.models.mlp import MLP
from flnl.numerics.losses import sample_losses
from flnl.numerics.mixture import two_gaussians
from flnl.parts.aggregators.mean import Mean
from flnl.parts.losses.cross_entropy import CrossEntropy
from flnl.parts.messages import UsedSamples
from tests.toys import Logits, federation, fitted, network, task
from tests.vectors.vectors import NEWER, entries

ALONE = Training(lr=0.5, momentum=0.5, weight_decay=0.0, batch_size=100, epochs=3, lr_decay=1.0, keep_momentum=True)
CORRECTOR = TwoCorrections(inferred_share=0.5, predicted_share=1.0, confidence=0.8)
RULE = AcceptedSamples(alpha=1.0, enabled=True, stages=None, train_on="corrected")


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def mask(positions: list[int], size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.bool).index_fill(0, torch.tensor(positions, dtype=torch.int64), True)


def places(of: Tensor) -> list[int]:
    found: list[int] = of.nonzero()[:, 0].tolist()
    return found


def after_stage_one() -> TrainingSets:
    given = entries(NEWER)["fedclean.stage_one"]
    sets = TrainingSets.of(torch.tensor(given.inputs["given"]), torch.tensor(given.inputs["inferred"]))
    return replace(sets, first=mask(given.expected["relabelled"], 8), corrections=1)


# ------------------------------------------------------------------------------------------------------ corrections


def test_labels_become_the_inferred_ones_where_the_global_model_agrees() -> None:
    vector = entries(NEWER)["fedclean.stage_one"]
    given, inferred = torch.tensor(vector.inputs["given"]), torch.tensor(vector.inputs["inferred"])
    sets, logits = TrainingSets.of(given, inferred), f64(vector.inputs["global_logits"])
    assert places(sets.clean) == vector.expected["clean_set"]
    backed, gain = candidates(sets, logits)
    assert places(backed) == vector.expected["candidates"]
    assert {str(i): float(gain[i]) for i in places(backed)} == pytest.approx(vector.expected["L_co"], abs=1e-9)
    chosen = largest(gain, mask(vector.inputs["mixture_high_component"], 8), vector.inputs["sigma_1"])
    assert places(chosen) == vector.expected["relabelled"]
    after = replace(sets, first=chosen, corrections=1)
    assert torch.where(chosen, inferred, given).tolist() == vector.expected["labels_after"]
    assert int(after.used.sum()) == vector.expected["assa_count"]
    fitted = backed.clone()
    fitted[backed] = torch.from_numpy(two_gaussians(gain[backed].numpy()).upper)
    assert places(towards_inferred(sets, logits, 1.0)) == places(fitted)


def test_what_is_left_becomes_what_the_global_model_is_sure_of_or_stays() -> None:
    vector = entries(NEWER)["fedclean.stage_two"]
    sets, labels, logits = after_stage_one(), torch.tensor(vector.inputs["labels"]), f64(vector.inputs["global_logits"])
    losses, left = sample_losses(logits, labels), ~sets.clean & ~sets.first
    assert places(left) == vector.expected["remaining"]
    assert {str(i): float(losses[i]) for i in places(left)} == pytest.approx(vector.expected["L_an"], abs=1e-9)
    high = mask(vector.inputs["mixture_high_component"], 8)
    second, rest = towards_predicted(sets, labels, logits, high, vector.inputs["sigma_2"], vector.inputs["epsilon"])
    assert (places(second), places(rest)) == (vector.expected["relabelled"], vector.expected["kept_as_clean"])
    assert torch.where(second, logits.argmax(1), labels).tolist() == vector.expected["labels_after"]
    after = replace(sets, second=second, rest=rest, corrections=2)
    assert places(after.used) == vector.expected["used_in_training"]
    assert int(after.used.sum()) == vector.expected["assa_count"]
    unsure, _ = towards_predicted(sets, labels, logits, high, 1.0, 0.86)
    assert places(unsure) == [3], "sample 6 has 0.846"
    half, _ = towards_predicted(sets, labels, logits, high, 0.5, 0.8)
    assert places(half) == [3]


def test_weights_are_the_samples_accepted_so_far() -> None:
    vector = entries(NEWER)["fedclean.assa"]
    counts = list(zip(*(vector.inputs[n] for n in ("clean", "stage_one", "stage_two_and_kept")), strict=True))
    mean = Mean("used")
    for so_far, name in ((1, "pre"), (2, "stage_one"), (3, "stage_two")):
        results = [
            ClientResult(
                k, 100, {"w": f64([float(k)])}, ClientState(), Payload(UsedSamples(sum(c[:so_far]))), 0.0, 1, True
            )
            for k, c in enumerate(counts)
        ]
        combined = mean.combine({"w": f64([0.0])}, [mean.block({"w": f64([0.0])}, results, Payload())], Payload())
        expected = sum(k * weight for k, weight in enumerate(vector.expected[name]))
        assert combined.params["w"].item() == pytest.approx(expected, abs=1e-11)
    exchange = InferredLabels(Learner(CrossEntropy(), 1, ALONE))
    samples = federation([torch.zeros(8, 1, 2, 2)], [after_stage_one().judged]).samples(0)
    work = task(Logits(), samples, state=ClientState(extras=Payload(after_stage_one())))
    sent, _ = exchange.report(network(Logits()), work, fitted({}))
    assert sent.one(UsedSamples).count == 5


def test_few_or_equal_values_correct_nothing() -> None:
    everyone = torch.ones(6, dtype=torch.bool)
    assert not upper(f64([1.0, 1.0, 5.0, 9.0, 9.0, 9.0]), mask([0, 2, 3], 6)).any()
    assert not upper(f64([2.0] * 6), everyone).any()
    assert places(upper(f64([0.1, 0.2, 0.15, 5.0, 5.1, 0.12]), everyone)) == [3, 4]
    assert places(largest(f64([3.0, 3.0, 1.0, 3.0, 0.0, 0.0]), everyone, 1 / 3)) == [0, 1], "the first of equal ones"
    assert places(largest(f64([3.0, 3.0, 1.0, 3.0, 0.0, 0.0]), everyone, 0.17)) == [0, 1], "two of 1.02"
    assert not largest(f64([3.0] * 6), ~everyone, 1.0).any()


def test_the_corrector_does_both() -> None:
    vector = entries(NEWER)["fedclean.stage_one"]
    pixels = f64(vector.inputs["global_logits"])[:, None, None, :]
    given = torch.tensor(vector.inputs["given"])
    toy = federation([pixels], [given])
    net = network(Logits(), transform=replace(toy.dataset.transform, size=(1, 3)))  # type: ignore[type-var]
    sets = TrainingSets.of(given, torch.tensor(vector.inputs["inferred"]))
    work = task(Logits(), toy.samples(0), state=ClientState(extras=Payload(sets)))
    logits = net.received(work)
    first = towards_inferred(sets, logits, 0.5)
    made = CORRECTOR.correct(net, work, "inferred")
    assert torch.equal(made.labels, torch.where(first, sets.inferred, given))
    kept = made.keeps.one(TrainingSets)
    assert (kept.corrections, places(kept.first)) == (1, places(first))
    then = replace(work, state=ClientState(labels=made.labels, extras=Payload(kept)))
    done = CORRECTOR.correct(net, then, "predicted").keeps.one(TrainingSets)
    assert done.corrections == 2
    left = ~kept.clean & ~kept.first
    high = upper(sample_losses(logits, made.labels), left)
    assert places(done.rest) == places(left & ~high)


def test_what_is_trained_on() -> None:
    sets = after_stage_one()
    done = replace(sets, second=mask([3], 8), rest=mask([7], 8), corrections=2)
    fresh = TrainingSets.of(sets.judged, sets.inferred)
    samples = federation([torch.zeros(8, 1, 2, 2)], [sets.judged]).samples(0)

    def trained(rule: AcceptedSamples, own: TrainingSets) -> list[int]:
        work = task(Logits(), samples, state=ClientState(extras=Payload(own)))
        (phase,) = rule.phases(network(Logits()), work, 0, 1)
        assert phase.positions is not None
        return list(phase.positions.tolist())

    assert [trained(RULE, own) for own in (fresh, sets, done)] == [[0, 2, 5], [1, 4], [3, 7]]
    everything = replace(RULE, train_on="accumulated")
    assert [trained(everything, own) for own in (fresh, sets, done)] == [
        [0, 2, 5],
        [0, 1, 2, 4, 5],
        [0, 1, 2, 3, 4, 5, 7],
    ]


# --------------------------------------------------------------------------------------------------- training alone


def problem() -> tuple[Any, Any, Any]:
    module = MLP([5], 0.0)((1, 2, 2), 3).double()
    pixels = torch.randn(12, 1, 2, 2, generator=torch.Generator().manual_seed(3))
    toy = federation([pixels], [torch.arange(12) % 3])
    return module, toy.samples(0), network(module, transform=toy.dataset.transform)


def test_training_alone_is_descent_from_the_received_model_with_its_momentum() -> None:
    module, samples, net = problem()
    work, before = task(module, samples), net.params()
    inferred = Learner(CrossEntropy(), 1, ALONE).inferred(net, work)
    assert all(torch.equal(p, before[name]) for name, p in net.params().items()), "the network is as it was"
    own = MLP([5], 0.0)((1, 2, 2), 3).double()
    own.load_state_dict(before)
    optimizer, inputs = torch.optim.SGD(own.parameters(), 0.5, 0.5), samples.read().double()
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(own(inputs), samples.given).backward()
        optimizer.step()
    assert torch.equal(inferred, own(inputs).argmax(1))
    assert not torch.equal(inferred, net.logits(samples).argmax(1)), "it has learned something"


def test_a_loss_by_rounds_sees_an_epoch_as_a_round() -> None:
    """JointOpt's labels move once their history is full; Co-teaching leaves out more from epoch to epoch."""
    module, samples, net = problem()
    work = task(module, samples)
    joint = JointOpt(1.2, 0.8, "uniform", 0, 2, "wait", 1)
    long = replace(ALONE, epochs=12)
    moved = Learner(joint, 1, long).inferred(net, work)
    fixed = Learner(replace(joint, update_from=None), 1, long).inferred(net, work)
    assert not torch.equal(moved, fixed)
    pair = Learner(CoTeaching(0.5, 2, 1.0, "paper", None), 2, replace(long, batch_size=4))
    without = Learner(CoTeaching(0.0, 2, 1.0, "paper", None), 2, replace(long, batch_size=4))
    assert torch.equal(pair.inferred(net, work), pair.inferred(net, work))
    assert not torch.equal(pair.inferred(net, work), without.inferred(net, work))


def test_a_training_that_diverges_ends_with_the_model_before() -> None:
    module, samples, net = problem()
    found = Learner(CrossEntropy(), 1, replace(ALONE, lr=1e308, batch_size=1)).inferred(net, task(module, samples))
    np.testing.assert_array_equal(found, net.logits(samples).argmax(1))


def test_clients_train_alone_once_and_send_nothing() -> None:
    module, samples, net = problem()
    exchange = InferredLabels(Learner(CrossEntropy(), 1, ALONE))
    job = exchange.before_round(None, Clock(0, 1))
    assert isinstance(job, Infer)
    assert exchange.before_round(None, Clock(1, 1)) is None
    opened = job(net, task(module, samples))
    assert not len(opened.reports)
    sets = opened.keeps.one(TrainingSets)
    assert torch.equal(sets.judged, samples.given)
    (found,) = exchange.findings(None, {0: ClientState(extras=opened.keeps)}, Payload())
    assert isinstance(found, SuspectedSamples)
    assert torch.equal(found.mask, sets.inferred != samples.given)
