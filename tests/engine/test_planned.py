"""What a run is said to do before it begins, against what it does."""

from dataclasses import replace

import pytest

from flnl.engine.planned import Evaluations, epochs
from flnl.parts.samplers.uniform import Uniform
from tests.toys import ONE_STEP, method, mlp, random_federation, rounds, stage

SIZES = [4, 6, 5, 5]
STAGES = method(stage(rounds=5, sampler=Uniform(0.25)), stage(rounds=0), stage(rounds=4, sampler=Uniform(0.75)))
"""Five rounds of one client, then four of three."""


@pytest.mark.parametrize(
    ("every", "expected"),
    [(None, [3, 5, 6, 7, 8, 9]), (1, [1, 2, 3, 4, 5, 6, 7, 8, 9]), (2, [2, 4, 5, 6, 7, 8, 9]), (100, [5, 9])],
)
def test_a_run_evaluates_when_it_is_planned(every: int | None, expected: list[int]) -> None:
    """At most once a round, at the end of a stage, and else every so many participations."""
    planned = Evaluations.of(STAGES, len(SIZES), every).planned(STAGES, len(SIZES))
    assert list(planned) == expected
    found = rounds(STAGES, random_federation(SIZES), mlp(4, 3), eval_every=every)
    assert {r.state.round: r.state.counters.participations for r in found if r.evaluation is not None} == planned


def test_epochs_are_those_of_the_stage_or_its_steps() -> None:
    """A step on a batch of two is two fifths of an epoch of five samples, and a batch is no larger than its client."""
    toy = replace(
        STAGES,
        stages=(
            replace(STAGES.stages[0], rounds=2),
            replace(STAGES.stages[2], number=2, rounds=1, train={"steps": 10, "batch_size": 2}),
            replace(STAGES.stages[2], number=3, rounds=1, train={"steps": 10}),
            replace(STAGES.stages[2], number=4, rounds=1, train={"epochs": 7}),
        ),
    )
    assert epochs(toy, ONE_STEP, SIZES) == pytest.approx([1, 1, 3 * 4, 3 * 10, 3 * 7])
