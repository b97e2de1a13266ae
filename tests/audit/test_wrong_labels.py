"""How many labels of a client are wrong: the estimate against labels that are spoiled in simulations."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, logit, softmax

from flnl.audit.calibration import Calibration
from flnl.audit.clean_samples import CleanSamples
from flnl.audit.probability_table import InMemory
from flnl.audit.result import AuditedSamples, ClientSummary, WrongLabels
from flnl.audit.samples import LabelledSamples
from flnl.audit.summaries import part_of, pooled, to_review
from flnl.audit.verdicts import Verdict
from flnl.audit.wrong_by_review import Judged, numbers, with_verdicts
from flnl.audit.wrong_labels import Estimate, wrong_labels
from tests.audit.pages import audit

Array = NDArray[Any]
K, SIZE, TESTED = 5, 250, 1500
RATES = (0.0, 0.0, 0.05, 0.2, 0.5, 0.9)


@dataclass
class Drawn:
    """Clients with a known number of wrong labels, and what models say of their samples."""

    samples: LabelledSamples
    table: InMemory
    test: CleanSamples
    wrong: Array  # [N]

    @property
    def numbers(self) -> Array:
        """Wrong labels of each client."""
        return np.bincount(self.samples.client, weights=self.wrong)

    def estimates(self, *, seen: bool) -> list[Estimate]:
        given = self.samples.given
        issues = self.table.values.argmax(axis=1) != given
        found = wrong_labels(self.samples, self.table, self.test, issues, seen=seen)
        assert found is not None
        return found


def images(random: np.random.Generator, count: int, sharp: float = 2.0) -> tuple[Array, Array]:
    """Probabilities of images, and true classes that are drawn by them."""
    probabilities = softmax(sharp * random.normal(size=(count, K)), axis=1)
    return probabilities, (probabilities.cumsum(axis=1) > random.random((count, 1))).argmax(axis=1)


def drawn(
    seed: int,
    memory: tuple[float, float] = (0, 0),
    temperature: float = 1.0,
    spread: float = 0.0,
    size: int = SIZE,
) -> Drawn:
    """Clients whose labels are wrong at the ``RATES``, and memorised: the log odds of a given label are pushed.

    ``spread`` is how much clients differ in it, as the standard deviation of its logarithm.
    """
    random = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(RATES)), size)
    probabilities, true = images(random, len(client))
    wrong = random.random(len(client)) < np.array(RATES)[client]
    given = np.where(wrong, (true + random.integers(1, K, len(client))) % K, true)
    row = np.arange(len(client))
    u = logit(probabilities[row, given])
    strength = np.exp(spread * random.normal(size=len(RATES)))[client]
    own = expit(u + strength * (memory[0] * expit(-u) + memory[1]))
    probabilities *= ((1 - own) / (1 - probabilities[row, given]))[:, None]
    probabilities[row, given] = own
    of_test, labels = images(random, TESTED)

    def told(values: Array) -> Array:
        return np.asarray(softmax(np.log(values) / temperature, axis=1))

    samples = LabelledSamples(client, row.tolist(), given)
    return Drawn(samples, InMemory(told(probabilities)), CleanSamples(labels, told(of_test)), wrong)


def of_two_classes(seed: int, memory: tuple[float, float], rates: Sequence[float], size: int) -> Drawn:
    """As ``drawn``, of two classes that are told apart well, with few test samples; the strength has a spread of .5."""
    random, apart = np.random.default_rng(seed), 4.0
    client = np.repeat(np.arange(len(rates)), size)
    wrong = random.random(len(client)) < np.array(rates)[client]

    def log_odds(count: int) -> Array:
        return np.asarray(random.normal(apart, np.sqrt(2 * apart), count))  # as sure as right

    def told(labels: Array, u: Array) -> Array:
        return np.where(labels[:, None] == np.arange(2), expit(u)[:, None], expit(-u)[:, None])

    u = np.where(wrong, -1, 1) * log_odds(len(client))
    strength = np.exp(0.5 * random.normal(size=len(rates)))[client]
    u += strength * (memory[0] * expit(-u) + memory[1])
    given, labels = random.integers(0, 2, len(client)), random.integers(0, 2, 240)
    samples = LabelledSamples(client, list(range(len(client))), given)
    return Drawn(samples, InMemory(told(given, u)), CleanSamples(labels, told(labels, log_odds(240))), wrong)


def covered(estimates: list[Estimate], numbers: Array) -> list[bool]:
    return [one.every.low <= n <= one.every.high for one, n in zip(estimates, numbers, strict=True)]


# --------------------------------------------------------------------------------------------------------- calibration


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_a_calibration_undoes_temperature_and_bias(temperature: float) -> None:
    random = np.random.default_rng(1)
    probabilities, labels = images(random, 40_000)
    bias = np.array([0.5, -0.5, 0.0, 0.3, -0.3])
    told = softmax((np.log(probabilities) - bias) / temperature, axis=1)
    found = Calibration.fitted(labels, told)
    assert found.sharpness == pytest.approx(temperature, rel=0.03)
    assert np.abs(found(told) - probabilities).max() < 0.02


def test_a_calibration_makes_the_labels_the_likeliest() -> None:
    random = np.random.default_rng(2)
    probabilities, labels = images(random, 500)
    found = Calibration.fitted(labels, probabilities)

    def loss(sharpness: float, bias: Array) -> float:
        logs = log_softmax(sharpness * np.log(probabilities) + bias, axis=1)
        return float(-logs[np.arange(500), labels].mean() + 1e-3 * (bias**2).sum() / 2)

    least = loss(found.sharpness, found.bias)
    for k in range(K):
        for step in (-0.05, 0.05):
            assert loss(found.sharpness, found.bias + step * (np.arange(K) == k)) > least
            assert loss(found.sharpness + step, found.bias) > least


# ------------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_intervals_hold_the_number_of_wrong_labels(temperature: float) -> None:
    """Of models that have not seen the samples; also where they are less sure than right, as means of models are."""
    runs = [drawn(seed, temperature=temperature) for seed in range(20)]
    found = [run.estimates(seen=False) for run in runs]
    share = np.mean([covered(one, run.numbers) for one, run in zip(found, runs, strict=True)])
    assert 0.9 <= share <= 0.99, "of 120 intervals that should hold 95 %"
    errors = np.array([[e.every.expected for e in one] - run.numbers for one, run in zip(found, runs, strict=True)])
    assert np.abs(errors.mean(axis=0)).max() < 6, "of 250"
    clean = [one[0].every for one in found]
    assert np.mean([one.low for one in clean]) < 0.5, "no wrong label is claimed where there is none"
    assert np.mean([one.high for one in clean]) < 15


def test_memorised_labels_are_reckoned_with() -> None:
    memory = (1.5, 0.5)
    runs = [drawn(seed, memory, temperature=1.5) for seed in range(8)]
    found = [run.estimates(seen=True) for run in runs]
    assert np.mean([covered(one, run.numbers) for one, run in zip(found, runs, strict=True)]) >= 0.9
    plain = [run.estimates(seen=False) for run in runs]
    assert np.mean([covered(one, run.numbers) for one, run in zip(plain, runs, strict=True)]) < 0.6
    widths = [[np.mean([e.every.high - e.every.low for e in one]) for one in of] for of in (found, plain)]
    assert np.mean(widths[0]) > 1.5 * np.mean(widths[1]), "how much a client's labels were memorised is uncertain"


@pytest.mark.parametrize("memory", [(3.0, 0.0), (0.0, 1.5)])
def test_a_push_of_either_form_is_found(memory: tuple[float, float]) -> None:
    """By 1 - p, as a step of gradient descent does, or the same for all; of many labels, so that little is chance."""
    run = drawn(1, memory, temperature=1.5, size=3000)
    for one, number in zip(run.estimates(seen=True), run.numbers, strict=True):
        assert one.every.low <= number <= one.every.high
        assert abs(one.every.expected - number) < 200, "of 3000"


def test_clients_may_differ_in_how_much_was_memorised() -> None:
    runs = [drawn(seed, (1.5, 0.5), 1.5, spread=0.5) for seed in range(10)]
    held = [covered(run.estimates(seen=True), run.numbers) for run in runs]
    assert np.mean(held) >= 0.9


@pytest.mark.parametrize("rates", [(0.15,), (0.2, 0.0)])
def test_a_client_or_two_do_not_tell_what_was_memorised(rates: tuple[float, ...]) -> None:
    """A label that scores well is right or memorised: the interval has both."""
    runs = [of_two_classes(seed, (5.0, 0.4), rates, 300) for seed in range(20)]
    runs = [run for run in runs if Calibration.fitted(run.test.labels, run.test.probabilities).sharpness >= 0.9]
    assert len(runs) > 12
    found = [run.estimates(seen=True) for run in runs]
    assert np.mean([covered(one, run.numbers) for one, run in zip(found, runs, strict=True)]) >= 0.9


def test_each_model_is_measured_by_its_own_test_scores() -> None:
    """As of folds by clients: the model of some is good, and that of others takes each class for another."""
    held, mixed = list[bool](), list[bool]()
    for seed in range(10):
        runs = [drawn(seed), drawn(seed + 100)]
        samples, tests = [run.samples for run in runs], [run.test for run in runs]
        clients = np.concatenate([samples[0].client, samples[1].client + len(RATES)])
        both = LabelledSamples(clients, list(range(len(clients))), np.concatenate([one.given for one in samples]))
        model, table = (
            (clients >= len(RATES)).astype(int),
            InMemory(np.concatenate([runs[0].table.values, np.roll(runs[1].table.values, 1, axis=1)])),
        )
        labels = np.concatenate([one.labels for one in tests])
        told = np.concatenate([tests[0].probabilities, np.roll(tests[1].probabilities, 1, axis=1)])
        numbers = np.concatenate([run.numbers for run in runs])
        for into, which in ((held, model), (mixed, None)):
            test = CleanSamples(labels, told, 2, which)
            found = wrong_labels(both, table, test, np.zeros(len(clients), np.bool_), seen=False)
            assert found is not None
            into += covered(found, numbers)
    assert np.mean(held) >= 0.9
    assert np.mean(mixed) < 0.7


def test_those_that_are_missed_are_a_part() -> None:
    run = drawn(3)
    issues = run.table.values.argmax(axis=1) != run.samples.given
    missed = np.bincount(run.samples.client, weights=run.wrong & ~issues)
    for one, number in zip(run.estimates(seen=False), missed, strict=True):
        assert one.missed.expected <= one.every.expected
        assert one.missed.low - 3 <= number <= one.missed.high + 3


def test_clients_may_hold_few_of_the_classes() -> None:
    """Class 4 is easily told, and a client has no other: nothing of it is taken for wrong."""
    random = np.random.default_rng(4)
    probabilities, labels = images(random, 4000)
    alone = np.flatnonzero(labels == 4)[:150]
    rest = np.flatnonzero(labels[:2000] != 4)[:300]
    index = np.concatenate([alone, rest])
    client = np.repeat([0, 1], [len(alone), len(rest)])
    samples = LabelledSamples(client, index.tolist(), labels[index])
    test = CleanSamples(labels[2000:], probabilities[2000:])
    found = wrong_labels(samples, InMemory(probabilities[index]), test, np.zeros(len(index), np.bool_), seen=False)
    assert found is not None
    assert [one.every.low for one in found] == [0, 0]
    assert found[0].every.high < 15


def test_nothing_is_told_of_models_that_have_memorised() -> None:
    run = drawn(5, temperature=0.5)
    issues = np.zeros(len(run.samples), np.bool_)
    for seed in range(6):
        assert drawn(seed).estimates(seen=True), "as sure as right, but for chance"
    assert wrong_labels(run.samples, run.table, run.test, issues, seen=True) is None
    assert wrong_labels(run.samples, run.table, run.test, issues, seen=False) is not None


def test_a_class_without_test_samples_is_borne() -> None:
    run = drawn(6)
    kept = run.test.labels != 2
    test = CleanSamples(run.test.labels[kept], run.test.probabilities[kept])
    found = wrong_labels(run.samples, run.table, test, np.zeros(len(run.samples), np.bool_), seen=True)
    assert found is not None
    assert all(np.isfinite(one.every.expected) for one in found)


def test_the_order_of_samples_of_a_client_does_not_matter() -> None:
    run = drawn(7, (1.0, 0.3), 1.5)
    order = np.lexsort((np.random.default_rng(0).random(len(run.samples)), run.samples.client))
    samples = LabelledSamples(run.samples.client, order.tolist(), run.samples.given[order])
    other = Drawn(samples, InMemory(run.table.values[order]), run.test, run.wrong[order])
    assert other.estimates(seen=True) == run.estimates(seen=True)


# -------------------------------------------------------------------------------------------------------------- review

GUESS = Estimate(every=WrongLabels(90.0, 70, 120), missed=WrongLabels(10.0, 5, 20))


def judged(issues: dict[Any, int], others: dict[Any, int] | None = None, drawn: dict[Any, int] | None = None) -> Judged:
    return Judged(Counter(issues), Counter(others or {}), Counter(drawn or {}))


def test_verdicts_of_the_top_of_the_list_are_bounds_alone() -> None:
    found = with_verdicts(GUESS, 200, 100, judged({"wrong": 80, "right": 5}, {"right": 90}))
    assert found == WrongLabels(90.0, 80, 105)
    assert with_verdicts(GUESS, 200, 100, judged({"wrong": 95})).expected == 95


def test_a_random_sample_tells_how_many_issues_are_wrong() -> None:
    sample = {"wrong": 30, "right": 20}
    found = with_verdicts(GUESS, 400, 100, judged(sample, drawn=sample))
    assert found.expected == 100 * 30 / 50 + 10
    assert (found.low, found.high, found.judged) == (46 + 5, 73 + 20, 50), "Wilson's .4618 to .7239, and those missed"


def test_once_all_issues_are_judged_their_number_is_exact() -> None:
    every = {"wrong": 60, "right": 40}
    assert with_verdicts(GUESS, 400, 100, judged(every, drawn=every)) == WrongLabels(70.0, 65, 80, 100)
    sure = with_verdicts(GUESS, 130, 100, judged(every, {"right": 20, "wrong": 10}, every))
    assert (sure.expected, sure.low, sure.high) == (70, 70, 70)


def test_intervals_of_a_review_hold_the_number() -> None:
    random, held = np.random.default_rng(8), []
    for share in (0.1, 0.5, 0.9):
        for _ in range(200):
            wrong = random.random(150) < share
            sample = random.permutation(wrong)[:50]
            tally = {"wrong": int(sample.sum()), "right": int((~sample).sum())}
            found = with_verdicts(
                Estimate(WrongLabels(0, 0, 0), WrongLabels(0, 0, 0)), 500, 150, judged(tally, drawn=tally)
            )
            held.append(found.low <= wrong.sum() <= found.high)
    assert np.mean(held) >= 0.93


RIGHT, WRONG = Verdict("right", None), Verdict("wrong", None)


def two_clients() -> AuditedSamples:
    mixed = audit(400, issues=160).samples
    return part_of(mixed, np.argsort(mixed.client, kind="stable"))


def counts_of(
    samples: AuditedSamples, verdicts: Mapping[int, Verdict], estimates: list[Estimate] | None
) -> tuple[list[WrongLabels], WrongLabels]:
    found, every = numbers(estimates, samples, verdicts, 1)
    assert every is not None
    assert every.expected == pytest.approx(sum(one.expected for one in found if one is not None))
    return [one for one in found if one is not None], every


def test_a_review_counts_for_a_client_with_enough_of_it() -> None:
    samples, plain = two_clients(), [GUESS, GUESS]
    assert counts_of(samples, {}, plain)[0] == [GUESS.every] * 2
    common = to_review(samples, 1)
    found, every = counts_of(samples, dict.fromkeys(common.tolist(), RIGHT), plain)
    of_each = [int((samples.client[common] == c).sum()) for c in range(2)]
    assert [one.judged for one in found] == [n if n >= 20 else 0 for n in of_each]
    assert every.judged == sum(n for n in of_each if n >= 20)
    index = np.flatnonzero(samples.client == 1)
    own = index[to_review(part_of(samples, index), 1, 2)]
    found, every = counts_of(samples, dict.fromkeys(own.tolist(), RIGHT), plain)
    assert [one.judged for one in found] == [0, len(own)]
    assert every.expected < GUESS.every.expected + 15, "the total follows what the clients reviewed"
    unfinished, _ = counts_of(samples, dict.fromkeys(own.tolist()[1:], RIGHT), plain)
    assert [one.judged for one in unfinished] == [0, 0]


def test_a_review_that_says_little_of_single_clients_says_what_they_have_in_all() -> None:
    """Of four clients with 12 or 13 issues in the draw, all wrong: the numbers from scores grow to the review's."""
    samples = two_clients()
    client = np.sort(np.arange(400) % 4)
    issues = np.arange(400) % 2 == 0
    samples = replace(samples, client=client, is_issue=issues)
    guess = Estimate(WrongLabels(20.0, 10, 30), WrongLabels(2.0, 1, 4))
    verdicts = dict.fromkeys(to_review(samples, 1).tolist(), WRONG)
    assert max(np.bincount(client[[*verdicts]])) < 20
    found, every = counts_of(samples, verdicts, [guess] * 4)
    assert [one.expected for one in found] == [pytest.approx((200 + 8) / 4)] * 4
    assert every.expected == pytest.approx(208)
    assert every.judged == 50
    assert every.low > 180, "Wilson's interval of 50 of 50 begins at .93"
    assert all(one.low <= 20 <= one.expected <= one.high for one in found), "a single client's may be either"


def test_who_has_judged_all_labels_knows_their_number() -> None:
    """With scores or without, whatever else is unknown."""
    samples = two_clients()
    mine = np.flatnonzero(samples.client == 1).tolist()
    verdicts = dict.fromkeys(mine, RIGHT) | dict.fromkeys(mine[:7], WRONG)
    exact = WrongLabels(7, 7, 7, len(mine))
    assert numbers(None, samples, verdicts, 1) == ([None, exact], None)
    assert counts_of(samples, verdicts, [GUESS, GUESS])[0][1] == exact
    rest = dict.fromkeys(range(400), RIGHT) | verdicts
    assert numbers(None, samples, rest, 1)[1] == WrongLabels(7, 7, 7, 400)
    unsure = verdicts | {mine[0]: Verdict("unsure", None)}
    assert numbers(None, samples, unsure, 1) == ([None, None], None)


def test_a_sum_is_unknown_if_a_part_is() -> None:
    one, other = WrongLabels(1.5, 0, 4), WrongLabels(2.0, 1, 5, 20)
    assert WrongLabels.of_all([one, other]) == WrongLabels(3.5, 1, 9, 20)
    assert WrongLabels.of_all([one, None]) is None
    assert WrongLabels.of_all([]) is None


@pytest.mark.parametrize(("flags", "together"), [((3, 4), 7), ((3, None), None), ((None, 4), None)])
def test_flags_of_clients_together_are_unknown_if_one_client_tells_none(
    flags: tuple[int | None, ...], together: int | None
) -> None:
    """As a site does that keeps its counts to itself."""
    rows = [ClientSummary(str(c), (c,), 5, 0, 0, flag, None, None, (0,)) for c, flag in enumerate(flags)]
    assert pooled(rows, "both").flagged == together
