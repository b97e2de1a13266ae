"""What a scale makes of a cell's words."""

from dataclasses import replace
from pathlib import Path

import pytest

from flnl.core.errors import UserError
from flnl.instruments.tables import scaling as scaling_module
from flnl.instruments.tables.choices import Choices
from flnl.instruments.tables.scaling import Scaling, merged
from flnl.instruments.tables.table import Column, Metric, Row, Table
from flnl.record.tuned import Study, Trial, Tuned

SCALING = Scaling(
    "s",
    "",
    (),
    (1,),
    ("dataset=digits", "model=mlp"),
    {"model=resnet18": ("model=resnet8",), "train.lr=0.003": (), "noise.source=worst": ("noise=own", "~noise.source")},
    {"experiment=*/clothing1m": "no clothes", "model=vgg11": "too large"},
)


def row(*words: str, where: tuple[tuple[str, tuple[str, ...]], ...] = ()) -> Row:
    return Row("r", "r", words, None, where)


def test_a_scale_replaces_data_and_leaves_noise_and_method() -> None:
    column = Column("c", ("experiment=a/b", "dataset=cifar10", "noise.rho=0.6"))
    assert SCALING.resolve(row("method=fedcorr"), column) == (
        "experiment=a/b",
        "dataset=cifar10",  # said by the table, so meant
        "model=mlp",
        "noise.rho=0.6",
        "method=fedcorr",
    )


def test_a_row_may_say_more_where_a_column_has_several_overrides() -> None:
    """A line of ``where`` holds if the column has all of its overrides; the last one that does counts."""
    one = row("method=a", "lr=1", where=(("noise.rho=0.6 noise.tau=0.5", ("lr=2",)), ("noise.rho=0.8", ("lr=3",))))

    def lr(*noise: str) -> str:
        return SCALING.resolve(one, Column("c", noise))[-1]

    assert lr("noise.rho=0.6", "noise.tau=0.0") == lr("noise.tau=0.5") == "lr=1"
    assert lr("noise.tau=0.5", "noise.rho=0.6") == "lr=2"
    assert lr("noise.rho=0.8", "noise.tau=0.5") == "lr=3"


def test_files_that_are_not_the_published_ones_make_other_runs() -> None:
    column = Column("c", ("experiment=a/b", "dataset=cifar10"))
    resolved = SCALING.unverified().resolve(row("method=fedcorr"), column)
    assert set(resolved) - set(SCALING.resolve(row("method=fedcorr"), column)) == {"dataset.verify=false"}


def test_an_experiment_of_the_row_comes_first_too() -> None:
    """Otherwise the scale's words would stand before it: equal to Hydra, but not to people who read commands."""
    words = SCALING.resolve(row("experiment=a/b", "method=fedavg"), Column("c", ("eval.memorization=true",)))
    assert words == ("experiment=a/b", "dataset=digits", "model=mlp", "eval.memorization=true", "method=fedavg")


def test_words_that_mean_something_else_are_exchanged_and_the_scales_model_gives_way() -> None:
    column = Column("c", ("experiment=a/b", "noise.source=worst"))
    assert SCALING.resolve(row("model=resnet18", "train.lr=0.003"), column) == (
        "experiment=a/b",
        "dataset=digits",
        "model=resnet8",
        "noise=own",
        "~noise.source",
    )


def test_what_a_row_says_of_some_columns_holds_there_alone() -> None:
    some = row("method=m", where=(("noise.kind=asymmetric", ("method.gamma=0.9",)),))
    assert "method.gamma=0.9" in SCALING.resolve(some, Column("c", ("noise.kind=asymmetric",)))
    assert "method.gamma=0.9" not in SCALING.resolve(some, Column("c", ("noise.kind=symmetric",)))


BY_LAST = "The score was the test accuracy at the end, under seed 1, on the images that results are measured on."
AT_EDGE = "At the edge of the grid, so that one beyond it may be better:"


def test_readers_are_told_of_a_choice_on_no_test_image() -> None:
    studies = [Study({}, ["method=a"], [Trial({"train.lr": rate}, {1: 0.1, 2: 0.1}) for rate in ("1", "2")])]
    assert Choices.of(Tuned(["x"], "validation", [1, 2], studies)).sentence == (
        "But train.lr was chosen for method=a by `x`. The score was the mean accuracy of the last ten evaluations on "
        f"held-out samples with noisy labels, under seeds 1, 2, on no test image. {AT_EDGE} train.lr=1, the smallest, "
        "for method=a."
    )


def test_readers_are_told_of_values_that_fewer_seeds_dropped() -> None:
    trials = [Trial({"train.lr": "1"}, {1: 0.1}), Trial({"train.lr": "2"}, {1: 0.2, 2: 0.2})]
    assert (
        "under seeds 1, 2 (values that were far behind under the first ones: under these alone), on no test image."
        in Choices.of(Tuned(["x"], "validation", [1, 2], [Study({}, ["method=a"], trials)])).sentence
    )


def test_what_was_tuned_for_a_method_reaches_its_rows_and_comes_last() -> None:
    def study(each: str, rate: str) -> Study:
        key, value = each.split("=")
        return Study({key: value}, [each], [Trial({"train.lr": "9"}, {1: 0.1}), Trial({"train.lr": rate}, {1: 0.2})])

    tuned = Tuned(
        ["flnl", "tune", "--each", "method"], "last", [1], [study("method=a", "0.1"), study("method=b", "0.2")]
    )
    table = Table("t", "", "", "", Metric("", "", "", None), None, (row("method=a"),), (Column("c", ()),), (), ())
    scaling = SCALING.tuned([Choices.of(tuned)]).for_table(table)
    assert scaling.changes == (
        f"But train.lr was chosen for method=a, method=b by `flnl tune --each method`. {BY_LAST} {AT_EDGE} "
        f"train.lr=0.1, the smallest, for method=a. {AT_EDGE} train.lr=0.2, the smallest, for method=b.",
    )
    column = Column("c", ("noise=x", "train.lr=5"))
    assert scaling.resolve(row("method=a", "method.mu=0"), column)[-3:] == ("train.lr=0.1", "method=a", "method.mu=0")
    assert "train.lr=0.2" in scaling.resolve(row("method=b"), column)
    assert "train.lr=5" in scaling.resolve(row("method=c"), column)
    assert "train.lr=5" in scaling.resolve(row("method=a", "method/local=[x]"), column)  # another method
    assert "train.lr=5" in scaling.resolve(row("method=a", "centralized=true"), column)  # other rates are usual there
    assert scaling.unused([table]) == ["method=b"]


def test_what_was_tuned_for_a_paper_is_for_its_tables_alone() -> None:
    def tuned(rate: str, **subject: str) -> Tuned:
        studies = [Study({}, ["method=a"], [Trial({"train.lr": rate}, {1: 0.1})])]
        return Tuned([rate], "last", [1], studies, subject=subject)

    def table(name: str, paper: str) -> Table:
        return Table(name, paper, "", "", Metric("", "", "", None), None, (row("method=a"),), (column,), (), ())

    column = Column("c", ("noise=x",))
    one, other, mine = table("fedcorr_2", "FedCorr"), table("flr_3", "FLR"), table("mine", "")
    files = (
        tuned("0.1", paper="FedCorr", table="fedcorr_4"),
        tuned("0.2", paper="FLR", table="flr_3"),
        tuned("0.3", table="mine"),
    )
    scaling = SCALING.tuned(map(Choices.of, files))
    for each, rate, whose in ((one, "0.1", "FedCorr"), (other, "0.2", "FLR"), (mine, "0.3", "mine")):
        own = scaling.for_table(each)
        assert [o for o in own.resolve(each.rows[0], column) if "train.lr" in o] == [f"train.lr={rate}"]
        said = f"But train.lr in the tables of {whose} was chosen for method=a by `{rate}`. {BY_LAST}"
        assert own.changes == (said,)
        assert own.of(each).changes == own.changes
    assert scaling.unused([one, other]) == [], "what is for a table that is not asked for is not missed"


@pytest.mark.parametrize(
    ("measure", "subject", "seeds", "said"),
    [
        ("last", {}, 2, ["seeds 1, 2"]),
        ("last", {}, 1, ["seed 1"]),
        ("validation", {}, 2, []),  # on samples that no result is measured on
        ("last", {"paper": "FLR"}, 2, []),
    ],
)
def test_what_was_tuned_under_seeds_of_the_tables_is_told(
    measure: str, subject: dict[str, str], seeds: int, said: list[str]
) -> None:
    studies = [Study({}, ["method=a"], [Trial({"train.lr": "1"}, {1: 0.1, 2: 0.1, 101: 0.1})])]
    scaling = SCALING.tuned([Choices.of(Tuned([], measure, [101, 2, 1], studies, subject=subject))])
    table = Table("t", "", "", "", Metric("", "", "", None), None, (row("method=a"),), (Column("c", ()),), (), ())
    assert scaling.favoured([table], seeds) == [
        f"what was tuned for method=a was scored under {these}, which these tables have, too: their results favour it"
        for these in said
    ]


def test_two_choices_for_one_method_are_refused() -> None:
    studies = [Study({}, ["method=a", rho], [Trial({"train.lr": "1"}, {1: 0.1})]) for rho in ("rho=0", "rho=1")]
    with pytest.raises(UserError, match="two choices for one method"):
        Choices.of(Tuned([], "last", [1], studies))


def test_what_was_tuned_without_each_is_of_the_method_that_its_command_names() -> None:
    trials = [Trial({"train.lr": "0.1"}, {1: 0.1})]
    fixed = ["method=a", "method/local=[x]", "noise=y"]
    scaling = SCALING.tuned([Choices.of(Tuned([], "last", [1], [Study({}, fixed, trials)]))])
    column = Column("c", ("noise=x",))
    assert "train.lr=0.1" in scaling.resolve(row("method=a", "method/local=[x]"), column)
    for others in (("method=b",), ("method=a",), ("method=a", "method/local=[x]", "method/batch=mixup")):
        assert "train.lr=0.1" not in scaling.resolve(row(*others), column)
    with pytest.raises(UserError, match="names no method"):
        Choices.of(Tuned([], "last", [1], [Study({"model": "cnn"}, ["model=cnn"], trials)]))


def test_a_study_that_failed_has_no_part_in_tables() -> None:
    failed = Study({"method": "a"}, ["method=a"], [Trial({"train.lr": "9"}, {1: None})])
    other = Study({"method": "b"}, ["method=b"], [Trial({"train.lr": "0.1"}, {1: 0.5})])
    assert [one.when for one in Choices.of(Tuned([], "last", [1], [failed, other])).chosen] == [{"method=b"}]
    with pytest.raises(UserError, match="no choice"):
        Choices.of(Tuned([], "last", [1], [failed]))


def test_a_table_that_is_written_for_a_scale_has_its_data_and_every_override_as_it_stands() -> None:
    table = Table("t", "", "", "", Metric("m", "m", "", None), None, (), (), (), ())
    column, one = Column("c", ("experiment=a/b", "train.lr=0.003")), row("method=m", "model=vgg11")
    anywhere, here = (SCALING.for_table(replace(table, scales=scales)) for scales in ((), ("s",)))
    assert anywhere.not_available(one, column) == "too large"
    assert "train.lr=0.003" not in anywhere.resolve(one, column)
    assert here.not_available(one, column) is None
    assert {"train.lr=0.003", "model=vgg11", "dataset=digits"} <= {*here.resolve(one, column)}
    tuned = Choices.of(
        Tuned([], "last", [1], [Study({"method": "m"}, ["method=m"], [Trial({"train.lr": "9"}, {1: 0.5})])])
    )
    of_both = [SCALING.tuned([tuned]).for_table(replace(table, scales=scales)) for scales in ((), ("s",))]
    assert ["train.lr=9" in of_one.resolve(one, column) for of_one in of_both] == [True, False]


def test_what_cannot_be_had_says_why() -> None:
    column = Column("c", ("experiment=a/b",))
    assert SCALING.not_available(row("method=m"), column) is None
    assert SCALING.not_available(row("model=vgg11"), column) == "too large"
    assert SCALING.not_available(row("method=m"), Column("c", ("experiment=x/clothing1m",))) == "no clothes"


@pytest.mark.parametrize(
    ("seeds", "asked", "expected"),
    [
        ((3, 7, 11), None, (3, 7, 11)),
        ((3, 7, 11), 2, (3, 7)),
        ((3, 7, 11), 5, (3, 7, 11, 12, 13)),
        ((9, 2), 3, (9, 2, 10)),  # 3 would come again
        (None, None, (1, 2, 3)),
        (None, 2, (1, 2)),
        (None, 4, (1, 2, 3, 4)),
    ],
)
def test_so_many_seeds_are_the_scales_first_and_then_new_ones(
    seeds: tuple[int, ...] | None, asked: int | None, expected: tuple[int, ...]
) -> None:
    trials = Table("t", "", "", "", Metric("m", "m", "", None), 3, (), (), (), ())
    assert replace(SCALING, seeds=seeds).of(trials, asked).seeds == expected


def test_labels_of_columns_that_became_one() -> None:
    assert merged(["η=0.2"]) == "η=0.2"
    assert merged(["A · x · 1", "B · x · 2"]) == "A/B · x · 1/2"
    assert merged(["A", "B · x"]) == "A/B · x"


def test_a_cell_that_chooses_no_data_set_has_the_default_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """So has one whose experiment begins from another: that one's data set."""
    monkeypatch.setattr(scaling_module, "CONF", tmp_path)
    (tmp_path / "config.yaml").write_text("defaults: [{dataset: digits}, _self_, {experiment: null}]")
    (tmp_path / "experiment" / "own").mkdir(parents=True)
    (tmp_path / "experiment/own/first.yaml").write_text("defaults: [{override /dataset: mnist}, _self_]")
    (tmp_path / "experiment/own/second.yaml").write_text("defaults: [first, {override /model: cnn}, _self_]")
    (tmp_path / "experiment/own/plain.yaml").write_text("seed: 3")
    for overrides, expected in (
        ((), "digits"),
        (("experiment=own/second",), "mnist"),
        (("experiment=own/plain",), "digits"),
        (("experiment=own/second", "dataset=cifar10"), "cifar10"),
    ):
        assert scaling_module.data_set(overrides) == expected
    scale = Scaling("s", "", (), (1,), ("dataset=digits",), {}, {})
    assert scale.keeps_data(Row("r", "r", ("method=fedavg",), None), Column("c", ("noise.rho=0.6",)))
    assert not scale.keeps_data(Row("r", "r", ("method=fedavg",), None), Column("c", ("experiment=own/first",)))
