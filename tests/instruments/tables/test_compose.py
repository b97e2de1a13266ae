"""Every cell makes a run, at every scale, and one that the scale promises."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from flnl.config import compose
from flnl.config.check import check_config
from flnl.config.identity import NOT_OF_THE_KEY, run_key
from flnl.core.errors import UserError
from flnl.core.method import assemble
from flnl.instruments.tables import identity, load
from flnl.instruments.tables.identity import Identities
from flnl.instruments.tables.plan import RECORDED
from flnl.instruments.tables.scaling import Scaling
from flnl.run.budget import trainings

Words = tuple[str, ...]


def cells(scaling: Scaling, *, each: bool = False) -> Iterator[tuple[str, Words]]:
    """Cells that can run, with their words; unless ``each`` is wanted, every row and every column of a table once."""
    for table in filter(lambda one: one.made_at(scaling.name), map(load.table, load.names())):
        here = scaling.for_table(table)
        pairs = [
            (row, column)
            for row, column in itertools.product(table.rows, table.columns)
            if row.missing is None and column.missing is None and here.not_available(row, column) is None
        ]
        seen: set[Any] = set()
        for row, column in pairs:
            if each or not {id(row), id(column)} <= seen:
                seen |= {id(row), id(column)}
                yield f"{table.name} {row.label} {column.label}", here.resolve(row, column)


@pytest.fixture(scope="module")
def composer(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    return Identities(tmp_path_factory.mktemp("tables"))


def check(scale: str, composer: Identities, *, each: bool) -> int:
    checked: set[Words] = set()
    for label, words in cells(load.scaling(scale), each=each):
        if words in checked:
            continue
        checked.add(words)
        cfg = composer.composer._set((*words, "seed=1"))
        try:
            check_config(cfg)
        except Exception as error:
            pytest.fail(f"{label}: {error}")
    return len(checked)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_row_and_column_makes_a_run(scale: str, composer: Identities) -> None:
    assert check(scale, composer, each=False) > 100


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scale", load.scales())
def test_every_cell_makes_a_run(scale: str, composer: Identities) -> None:
    assert check(scale, composer, each=True) > 300


def test_composing_in_parts_is_composing(composer: Identities) -> None:
    """Values set on a copy give what the command line gives, deletions and lists included."""
    row, column = load.table("fedpeer_2").rows[5], load.table("fedpeer_2").columns[0]
    human = load.scaling("small").resolve(row, column)
    assert "~noise.source" in human
    plus = next(row for row in load.table("flr_3").rows if row.label == "FLR+")
    for words in (human, load.scaling("paper").resolve(plus, load.table("flr_3").columns[4])):
        composed = compose.resolved(compose.load([*words, "seed=3"]))
        assert composer.of((*words, "seed=3")).key == run_key(composed)


@pytest.mark.parametrize(("more", "read"), [((), 1), (("data_seed=7",), 1), (("rounds=${data_seed}",), 3)])
def test_the_seeds_of_a_setting_are_read_once(more: Words, read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a value is computed from the seed; the keys are those of a composition for each."""
    words = ("method=fedprox", "noise.rho=0.4", *more)
    expected = [run_key(compose.resolved(compose.load([*words, f"seed={seed}"]))) for seed in (1, 2, 30)]
    resolved = Mock(wraps=compose.resolved)
    monkeypatch.setattr(compose, "resolved", resolved)
    composer = identity.Composer()
    assert [composer.identity((*words, f"seed={seed}")).key for seed in (1, 2, 30)] == expected
    assert resolved.call_count == read
    assert composer.identity(("method=fedavg", "seed=2")).method == "fedavg"


def test_every_cell_at_the_small_scale_is_twenty_clients_of_digits(composer: Identities) -> None:
    """Partition and noise stay the paper's; data, clients and budget are the scale's."""
    for label, words in cells(load.scaling("small")):
        found = composer.composer._set(words)
        assert found.dataset.name == "digits", label
        clients = 1 if found.centralized else found.partition.num_clients
        assert clients == (1 if "centralized" in label else 20), label
        assert "pretrained" not in found.model, label


def test_the_paper_scale_changes_nothing_but_what_the_table_says() -> None:
    for label, words in cells(load.scaling("paper"), each=True):
        table, row_and_column = load.table(label.split()[0]), set(words)
        said = {w for column in table.columns for w in column.overrides} | {w for r in table.rows for w in r.overrides}
        said |= {w for row in table.rows for _, further in row.where for w in further}
        assert row_and_column <= said, label


def test_words_that_record_more_make_no_other_run() -> None:
    for word in RECORDED:
        assert word.split("=")[0] in NOT_OF_THE_KEY


@pytest.mark.parametrize("method", ["fedavg", "fedcorr", "feddiv", "fedes"])
def test_trainings_are_counted_from_the_stages(method: str) -> None:
    """560 a run on digits, by the comment of protocol=digits; 20 clients, cohorts of 10."""
    plain = compose.resolved(compose.load([f"method={method}"]))
    assert trainings(plain) == 560


@pytest.mark.parametrize(
    "words",
    [
        "method=fedavg rounds=10 method.sampler.fraction=0.1",
        "method=fedcorr method/sampler=power_of_choice method.sampler.fraction=0.25",
        "method=fedcorr ~method.stages.preprocess.passes +method.stages.preprocess.rounds=30",
        "method=fedcorr method.gamma1=0.2 fraction=0.3",
        "method=fedes centralized=true",
    ],
)
def test_trainings_are_those_of_the_method_that_runs(words: str) -> None:
    config = compose.load(words.split())
    method = assemble(compose.build(config.method))
    clients = 1 if config.centralized else config.partition.num_clients
    of_stages = [stage.length(clients) * stage.sampler.size(clients) for stage in method.stages]
    assert trainings(compose.resolved(config)) == sum(of_stages)


def test_what_was_found_is_kept_until_the_configuration_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Identities(tmp_path)
    found = first.of(("method=fedavg", "seed=1"))
    first.save()

    def refuse(*words: Any) -> Any:
        raise AssertionError("composed again")

    monkeypatch.setattr(compose, "composed", refuse)
    assert Identities(tmp_path).of(("method=fedavg", "seed=1")) == found
    monkeypatch.setenv("FLNL_DATA", "/elsewhere")  # where data lie is of the key
    with pytest.raises(AssertionError, match="composed again"):
        Identities(tmp_path).of(("method=fedavg", "seed=1"))


def test_many_are_composed_in_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are those that one process finds; one that cannot be composed fails only when it is asked for."""
    monkeypatch.setattr(identity, "MANY", 3)
    monkeypatch.setattr("flnl.console.counting.QUIET_SECONDS", 0.0)
    wanted = [(f"method={name}", f"seed={seed}") for name in ("fedavg", "fedprox") for seed in (1, 2)]
    wrong = ("method=fedavg", "noise.roh=0.4")
    several, alone = Identities(tmp_path / "several"), Identities(tmp_path / "alone")
    several.prepare([*wanted, wanted[0], wrong])
    begin, *later = capsys.readouterr().err.splitlines()
    assert begin.startswith("reading the settings of 5 runs")
    assert later[-1] == "read the settings of 5 of 5 runs"
    expected = {" ".join(overrides): alone.of(overrides) for overrides in wanted}
    assert several._known == expected
    assert len(Identities(tmp_path / "several")._known) == 3, "saved on the way"
    several.prepare(wanted)
    assert capsys.readouterr().err == "", "nothing is new"
    with pytest.raises(UserError, match=r"noise\.roh"):
        several.of(wrong)


def test_what_is_read_is_kept_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM ends a process without a last word."""
    monkeypatch.setattr(identity, "MANY", 2)
    first = Identities(tmp_path)
    found = [first.of(("method=fedavg", f"seed={seed}")) for seed in (1, 2, 3)]
    assert list(Identities(tmp_path)._known.values()) == found[:2]
