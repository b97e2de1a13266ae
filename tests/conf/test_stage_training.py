"""What a stage sets of local training: checked, short keys, the run's key, the printed plan, and what is counted."""

import re
from itertools import count
from pathlib import Path

import pytest

from flnl.config import compose, identity
from flnl.config.check import check_config
from flnl.config.explain import no_such_key
from flnl.core.errors import UserError
from flnl.core.method import assemble
from flnl.engine.executors.auto import Work
from flnl.instruments.tables.identity import Identities
from flnl.run.overrides import check_arguments
from tests.properties.runs import assembled
from tests.registry import BY_NAME

LC = ("method=forward_correction",)
USUAL = "method.stages.usual.train"


def key(*words: str) -> str:
    return identity.run_key(compose.resolved(compose.load([*LC, *words])))


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("epoch=3", f"{USUAL}.epoch is not a key; did you mean epochs?"),
        ("epochs=0", f"{USUAL}.epochs=0: must be greater than or equal to 1"),
        ("lr=-1.0", f"{USUAL}.lr=-1.0: must be greater than 0"),
        ("batch_size=2.5", f"{USUAL}.batch_size=2.5: must be a valid integer"),
        ("keep_momentum=1", f"{USUAL}.keep_momentum=1: must be a valid boolean"),
        ("milestones=[5,0]", f"{USUAL}.milestones[1]=[5, 0]: must be greater than or equal to 1"),
        ("milestone_decay=0.0", f"{USUAL}.milestone_decay=0.0: must be greater than 0"),
    ],
)
def test_values_are_checked_as_those_of_the_run(word: str, reason: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(reason)}"):
        check_config(compose.load([*LC, f"+{USUAL}.{word}"]))


def test_it_must_be_a_section() -> None:
    with pytest.raises(UserError, match=rf"^{USUAL}=null: set one of lr, momentum,"):
        check_config(compose.load([*LC, f"+{USUAL}=null"]))


def test_it_is_in_the_key_only_if_it_is_set() -> None:
    """So are the run's milestones and kept momentum."""
    words = (
        *(f"+{USUAL}.epochs=3", f"+{USUAL}.epochs=4", "+method.stages.warmup.train.epochs=3"),
        *("train.milestones=[3]", "train.milestones=[4]", "train.keep_momentum=true"),
    )
    keys = {key(), *map(key, words)}
    assert len(keys) == len(words) + 1
    plain = compose.resolved(compose.load(LC))
    for name in ("milestones", "milestone_decay", "keep_momentum"):
        assert f"train.{name}" not in identity.identity(plain)
        del plain["train"][name]
    assert identity.run_key(plain) == key(), "as it was before there were these keys"


def test_a_short_key_stands_for_it(tmp_path: Path) -> None:
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "mine.yaml").write_text(
        "defaults: [forward_correction@_here_, _self_]\nname: mine\nlike: forward_correction\n"
        "stages: {usual: {train: {epochs: 20}}}\n"
        "short: &short\n  local_epochs: ${method.stages.usual.train.epochs}\n<<: *short\n"
    )
    search = f"hydra.searchpath=[file://{tmp_path}]"
    for word, epochs in ((), 20), (("method.local_epochs=7",), 7), ((f"{USUAL}.epochs=8",), 8):
        cfg = compose.load([search, "method=mine", *word])
        check_config(cfg)
        assert assemble(compose.build(cfg.method)).stages[1].train == {"epochs": epochs}
    with pytest.raises(UserError, match=r"^method.local_epochs=0: must be greater than"):
        check_config(compose.load([search, "method=mine", "method.local_epochs=0"]))


def test_the_command_line_adds_it_with_a_plus() -> None:
    check_arguments([*LC, f"+{USUAL}.epochs=3"])
    with pytest.raises(UserError, match=r"method.stages.nothing.train.epochs is not a key of the configuration"):
        check_arguments([*LC, "+method.stages.nothing.train.epochs=3"])
    assert no_such_key(f"{USUAL}.epochs", LC) == (
        f"{USUAL}.epochs is not set, so train.epochs holds there; write +{USUAL}.epochs=... to set it"
    )


def test_the_printed_plan_shows_it() -> None:
    words = (f"+{USUAL}.epochs=3", f"+{USUAL}.lr=0.1", f"+{USUAL}.milestones=[5]")
    stages = assemble(compose.build(compose.load([*LC, *words]).method)).stages
    assert "train" not in stages[0].parts()
    assert stages[1].parts()["train"] == "epochs=3, lr=0.1, milestones=[5]"
    assert "epochs=3, lr=0.1, milestones=[5]" in stages[1].describe()


def test_budgets_count_it(tmp_path: Path) -> None:
    """28 rounds of 10 clients with 5 epochs, 28 with 20: passes over a twentieth of the data each."""
    found = Identities(tmp_path).of([*LC, f"+{USUAL}.epochs=20"])
    assert (found.trainings, found.epochs) == (560, 12.5)
    assert found.passes(found.trainings) == (280 * 5 + 280 * 20) / 20
    assert found.settings[f"{USUAL}.epochs"] == 20
    assert Identities(tmp_path).of(LC).epochs == 5


def test_the_executor_is_chosen_for_the_largest_batch(tmp_path: Path) -> None:
    words, folders = BY_NAME["forward_correction"].words, count()

    def products(*more: str) -> int:
        with assembled(words, tmp_path / str(next(folders)), *more) as parts:
            cfg = compose.load([*words, *more])
            return Work.of(cfg, parts.method, compose.training(cfg), parts.evaluator.network, [21] * 8).multiply_adds

    assert products(f"+{USUAL}.batch_size=21") == 3 * products()
    assert products(f"+{USUAL}.batch_size=1", "+method.stages.warmup.train.batch_size=14") == 2 * products()
