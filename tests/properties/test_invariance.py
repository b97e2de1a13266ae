"""What must not matter to the numbers, the order of simulation or the truth, and what must, the seed."""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flnl.core.execution import BLOCK, Block, ClientJob, Executor
from flnl.core.messages import ClientState, ClientTask
from flnl.core.tally import Tally
from flnl.data.federation.build import Federation
from flnl.engine.network import Network
from tests.properties.reference import References
from tests.properties.runs import Assembled, assembled, difference, rounds, same_params
from tests.registry import BY_NAME, COVERING, Entry, others_slow


@dataclass
class Jumbled(Executor):
    """Runs the tasks in another order, on networks that others have used; tasks and results travel as copies.

    Blocks come out in order and have the same tasks, as every executor must give them.
    """

    networks: tuple[Network, Network]
    rng: np.random.Generator

    def map(
        self, job: ClientJob[Any], tasks: Sequence[ClientTask], reduce: Callable[[list[Any]], Block[Any, Any]]
    ) -> Iterator[Block[Any, Any]]:
        results: dict[int, Any] = {}
        for position in [*self.rng.permutation(len(tasks))][::-1]:
            network = self.networks[int(self.rng.integers(2))]
            network.load({name: torch.full_like(p, 7) for name, p in network.params().items()})
            network.module.train(bool(self.rng.integers(2)))
            result = pickle.loads(pickle.dumps(job))(network, pickle.loads(pickle.dumps(tasks[position])))
            results[int(position)] = pickle.loads(pickle.dumps(result))
        for first in range(0, len(tasks), BLOCK):
            block = [results[i] for i in range(first, min(first + BLOCK, len(tasks)))]
            yield pickle.loads(pickle.dumps(reduce))(block)

    def pop_tally(self) -> Tally:
        """The samples that have passed either network, and the evaluator's, which is one of them."""
        passed = Tally()
        for network in self.networks:
            passed.add(network.meter.pop())
        return passed


BY_TRUTH = ("validation_true_accuracy", "accuracy_worst_client")
"""Scores of an evaluation that are by the truth of clients' samples."""


@pytest.mark.parametrize("entry", others_slow(COVERING), ids=str)
def test_order_truth_and_global_generators_do_not_matter(entry: Entry, references: References, tmp_path: Path) -> None:
    reference = references.run(entry.words).rounds
    with assembled(entry.words, tmp_path / "run") as one:
        network = one.evaluator.network
        networks = (
            network,
            Network(deepcopy(network.module), network.transform, network.num_classes, network.placement),
        )

        torch.manual_seed(5)
        np.random.seed(5)  # noqa: NPY002 (it is the global generator that must not matter)
        before = torch.get_rng_state()
        jumbled = Jumbled(networks, np.random.default_rng(1))
        shuffled, _ = other_truths(one)
        blind: dict[str, Any] = {"federation": shuffled, "evaluator": replace(one.evaluator, federation=shuffled)}
        found = one.results(executor=jumbled, **({} if one.method.upper_bound else blind))  # both at once
        assert difference([r.state for r in found], [r.state for r in reference]) is None
        assert [r.cohort for r in found] == [r.cohort for r in reference]
        assert [_without_truth(r.evaluation) for r in found] == [_without_truth(r.evaluation) for r in reference]
        assert torch.equal(torch.get_rng_state(), before), "the global generator was used"
        if one.method.upper_bound:
            moved = one.results(**blind)
            assert difference([r.state for r in moved], [r.state for r in reference]) is not None
            assert [r.cohort for r in moved] == [r.cohort for r in reference]


@pytest.mark.parametrize("entry", others_slow(COVERING), ids=str)
def test_labels_that_clients_hold_count_and_those_that_they_were_given_do_not(
    entry: Entry, references: References, tmp_path: Path
) -> None:
    """Clients that were given other labels, and hold those of the reference as if they had been corrected."""
    reference = references.run(entry.words).rounds
    with assembled(entry.words, tmp_path / "run") as one:
        given = one.federation.given
        others = given[torch.from_numpy(np.random.default_rng(0).permutation(len(given)))]
        samples = {client: one.federation.samples(client) for client in one.federation.with_data}
        held = one.state.keeping({client: ClientState(labels=own.given) for client, own in samples.items()})
        found = one.results(state=held, federation=replace(one.federation, given=others))
        assert all(not torch.equal(others[own.index], own.given) for own in samples.values())
    assert [r.cohort for r in found] == [r.cohort for r in reference]
    assert difference([r.state.server for r in found], [r.state.server for r in reference]) is None
    for client in samples:
        kept, wanted = (_kept(results[-1].state.client(client)) for results in (found, reference))
        assert difference(kept, wanted) is None


def _kept(state: ClientState) -> list[Any]:
    """What a client keeps, without the labels that it holds, and the note of which labels it judged."""
    values = [replace(value, labels=None) if hasattr(value, "labels") else value for value in state.extras]
    return [state.weight, state.terms, values, state.momentum]


def _without_truth(evaluation: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is measured without the true labels of clients' samples."""
    return {name: score for name, score in (evaluation or {}).items() if name not in BY_TRUTH}


def other_truths(parts: Assembled) -> tuple[Federation, Federation]:
    """The federation with its truth shuffled, and without any."""
    truth = parts.federation.truth
    assert truth is not None
    shuffled = truth[torch.from_numpy(np.random.default_rng(0).permutation(len(truth)))]
    assert not torch.equal(shuffled, truth)
    return replace(parts.federation, truth=shuffled), replace(parts.federation, truth=None)


def test_the_truth_reaches_the_evaluator_and_nobody_else(tmp_path: Path) -> None:
    """The test above would pass without a truth at all; here it is seen where it belongs, and only there."""
    with assembled(BY_NAME["fedcorr"].words, tmp_path / "run") as parts:
        shuffled, unknown = other_truths(parts)
        last = parts.results()[-1].state
        blind = parts.results(federation=unknown, evaluator=replace(parts.evaluator, federation=unknown))[-1].state
        assert difference(last, blind) is None
        right, wrong, nothing = (
            replace(parts.evaluator, federation=f).labels(last) for f in (parts.federation, shuffled, unknown)
        )
        assert right["noise_given"] < wrong["noise_given"]
        assert set(nothing) == {"labels", "flagged", "changed"}, "counts need no truth"
        assert parts.federation.dataset.truth is None
        samples = parts.federation.samples(parts.federation.with_data[0])
        truth = parts.federation.truth
        assert truth is not None
        assert not torch.equal(samples.given, truth[samples.index])
        assert "truth" not in vars(samples)


@pytest.mark.parametrize("entry", others_slow(), ids=str)
def test_the_seed_decides_everything_and_the_data_seed_the_data(
    entry: Entry, references: References, tmp_path: Path
) -> None:
    def drawn(name: str, *more: str) -> tuple[Assembled, Mapping[str, Any], list[Any]]:
        with assembled(entry.words, tmp_path / name, *more) as parts:
            known = references.run(entry.words).rounds if more == ("seed=1",) else parts.rounds()  # 1 is the default
            results = list(islice(known, 3))
            data = {"clients": parts.federation.clients, "given": parts.federation.given}
            return parts, {k: list(map(np.asarray, v)) for k, v in data.items()}, results

    def same_data(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> bool:
        return all(np.array_equal(a, b) for a, b in zip(one[key], other[key], strict=True))

    first, data, results = drawn("first", "seed=1")
    second, other_data, other_results = drawn("second", "seed=2")
    pinned, pinned_data, pinned_results = drawn("pinned", "seed=2", "data_seed=1")

    assert not same_data(data, other_data, "clients")
    assert not same_data(data, other_data, "given")
    assert same_data(data, pinned_data, "clients")
    assert same_data(data, pinned_data, "given")
    assert not same_params(first.state, second.state)
    assert same_params(second.state, pinned.state)
    assert [r.cohort for r in results] != [r.cohort for r in other_results]
    assert [r.cohort for r in results] != [r.cohort for r in pinned_results]
    finals = [r[-1].state for r in (results, other_results, pinned_results)]
    assert not any(
        same_params(a, b) for a, b in ((finals[0], finals[1]), (finals[0], finals[2]), (finals[1], finals[2]))
    )


def test_selection_of_a_seed_does_not_depend_on_the_data_seed(tmp_path: Path) -> None:
    words = BY_NAME["fedavg"].words
    plain, pinned = (rounds(words, tmp_path / name, "seed=2", f"data_seed={name}") for name in ("2", "1"))
    assert [r.cohort for r in plain] == [r.cohort for r in pinned]
    assert not same_params(plain[-1].state, pinned[-1].state)


def test_the_noise_does_not_depend_on_the_model_or_the_method(tmp_path: Path) -> None:
    """Methods are compared on the same draw."""
    found = set()
    for name in ("fedavg", "fedprox", "fedavg_and_mixup", "fedavg_with_batch_norm", "fedavg_with_dropout"):
        with assembled(BY_NAME[name].words, tmp_path / name) as parts:
            found.add(parts.federation.fingerprint)
    assert len(found) == 1


def test_every_pass_visits_every_client_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    for name, passes in (("fedcorr", (slice(0, 8), slice(8, 16))), ("fedcorr_groups", (slice(0, 4), slice(4, 8)))):
        cohorts = [r.cohort for r in rounds(BY_NAME[name].words, tmp_path / name)]
        orders = [[client for cohort in cohorts[part] for client in cohort] for part in passes]
        assert [sorted(order) for order in orders] == [list(range(8))] * 2
        assert orders[0] != orders[1]
