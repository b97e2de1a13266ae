"""Names of rows tell what a person has changed, all of it and not what follows from it."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flnl.config.compose import load, resolved
from flnl.instruments.compare.names import names
from flnl.instruments.compare.runs import Row, grouped
from flnl.record.run import RunRecord


@cache
def composed(words: str) -> dict[str, Any]:
    return resolved(load(words.split()))


def row(words: str, *, typed: bool = True, folder: str = "run", **more: Any) -> Row:
    config = composed(words) | more
    return Row((RunRecord.of({"config": config, "overrides": words.split() if typed else []}, Path(folder)),))


def named(*commands: str, typed: bool = True) -> list[str]:
    return names([row(command, typed=typed) for command in commands])


@pytest.mark.parametrize(
    "commands",
    [
        ("method=fedavg", "method=fedprox", "method=fedcorr", "method=fedcorr_released"),
        ("method=fedavg", "method=fedavg train.lr=0.01", "method=fedcorr", "method=fedcorr method.beta=0"),
        ("method=fedavg noise.rho=0.4", "method=fedcorr noise.rho=0.6"),  # two things differ, and both are told
        ("method=fedavg", "method=fedavg method/batch=mixup", "method=fedcorr"),
        ("method=fedcorr", "method=fedcorr method/aggregator=uniform_mean", "method=fedcorr method.correction=false"),
        ("method=fedavg", "method=fedavg method/local=[cross_entropy,fedprox]"),
        ("method=fedcorr", "method=fedcorr method/exchange=[fedcorr_lid,true_noise_rates]"),
        ("noise.rho=0.4", "noise.rho=0.6", "noise.rho=0.8"),
        ("noise=symmetric noise.eta=0.2", "noise=symmetric noise.eta=0.3", "noise=pair noise.eta=0.2", "noise=none"),
        ("model=resnet8", "model=resnet18", "model=mlp", "model=cnn"),
        ("dataset=digits", "dataset=mnist", "dataset=cifar10"),
        ("dataset=cifar10", "dataset=mnist model=lenet5"),
        ("fraction=0.1", "fraction=0.2"),
        ("partition.num_clients=7", "partition.num_clients=8"),
    ],
)
def test_a_name_is_what_was_typed(commands: Sequence[str]) -> None:
    assert named(*commands) == list(commands)


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (["method=fedavg noise.rho=0.6"], ["method=fedavg"]),
        (["seed=1 method=fedavg", "seed=1 method=fedprox wandb.mode=disabled"], ["method=fedavg", "method=fedprox"]),
        (
            [
                "method=fedcorr " + " ".join(f"+protocol.fedcorr.{s}" for s in ("T1=3", "T2=20", "T3=20")),
                "method=fedcorr",
            ],
            ["method=fedcorr method.T1=3", "method=fedcorr"],
        ),
        (
            ["method=fedes method/sampler=of_quality", "method=fedcorr method/exchange=[lid,true_noise_rates]"],
            [
                "method=fedes method/sampler=fedes_of_quality",
                "method=fedcorr method/exchange=[fedcorr_lid,true_noise_rates]",
            ],
        ),
        (["protocol.lr=0.01", "protocol.lr=0.02"], ["train.lr=0.01", "train.lr=0.02"]),
        (["", "noise.rho=0.4", "noise.rho=0.8"], ["noise.rho=0.6", "noise.rho=0.4", "noise.rho=0.8"]),
        (
            ["method=fedavg", "method=fedavg protocol=mnist", "method=fedavg eval.every=20"],
            ["method=fedavg", "method=fedavg protocol=mnist", "method=fedavg eval.every=20"],
        ),
        (
            ["experiment=fedcorr/cifar10_iid", "experiment=fedcorr/cifar10_noniid", "dataset=mnist partition=shards"],
            [
                "dataset=cifar10 partition=iid_uniform",
                "dataset=cifar10 partition=fedcorr",
                "dataset=mnist partition=shards",
            ],
        ),
    ],
)
def test_what_is_alike_or_follows_is_not_told(commands: Sequence[str], expected: Sequence[str]) -> None:
    assert named(*commands) == list(expected)


def test_where_nothing_was_typed_every_row_tells_all() -> None:
    """A run that a notebook has started may have changed what the others' commands left alone."""
    commands = ("method=fedavg", "method=fedavg train.lr=0.01", "method=fedcorr")
    expected = ["method=fedavg train.lr=0.05", "method=fedavg train.lr=0.01", "method=fedcorr train.lr=0.05"]
    assert named(*commands, typed=False) == expected
    pair = [row("method=fedavg train.lr=0.02", typed=False), row("method=fedavg train.lr=0.01")]
    assert names(pair) == ["train.lr=0.02", "train.lr=0.01"]
    mixed = [row("method=fedavg train.lr=0.02", typed=False), *map(row, commands)]
    assert names(mixed)[:2] == ["method=fedavg train.lr=0.02", "method=fedavg train.lr=0.05"]


def test_no_key_repeats_another() -> None:
    """Many values are in a configuration more than once: T1 as a stage's passes, a fraction in three samplers."""
    found = named("fraction=0.1 method.T1=2 method.loss=ce", "fraction=0.2 method.T1=3 method.loss=ce", typed=False)
    assert found == ["method.T1=2 fraction=0.1", "method.T1=3 fraction=0.2"]


def test_two_keys_that_change_together_are_both_told() -> None:
    found = named("noise.rho=0.4 fraction=0.4", "noise.rho=0.6 fraction=0.6", typed=False)
    assert found == ["noise.rho=0.4 fraction=0.4", "noise.rho=0.6 fraction=0.6"]


def test_names_are_never_the_same() -> None:
    long = "x" * 60
    config = composed("method=fedavg")
    rows = [
        row("method=fedavg", folder=f"sweep{i}/0", dataset=config["dataset"] | {"root": root})
        for i, root in enumerate((f"{long}a{long}", f"{long}b{long}"))
    ]
    first, second = names(rows)
    assert first != second
    assert first.endswith("(sweep0/0)")
    assert max(map(len, names(rows))) < 70, "long values are shortened"


def test_data_that_stay_say_with_which_seed() -> None:
    follows, stays = row("method=fedavg"), Row(row("method=fedavg").runs, 5)
    assert names([follows, stays]) == ["method=fedavg", "method=fedavg data_seed=5"]


def test_a_file_that_only_one_run_has_names_that_run() -> None:
    """Not the other, which goes without."""
    own = "method=fedavg dataset=image_folder dataset.root=photos partition=file"
    for file in ("dataset.labels=corrected.csv", "partition.path=owners.csv"):
        both = [run for words in (own, f"{own} {file}") for run in row(words).runs]
        assert sorted(names(grouped(both))) == ["method=fedavg", f"method=fedavg {file}"]


def test_values_are_written_as_they_are_typed() -> None:
    found = named("model=cnn model.widths=[4,8] eval.every=7", "model=cnn model.widths=[4,9]", typed=False)
    assert found == ["model.widths=[4,8] eval.every=7", "model.widths=[4,9] eval.every=null"]
    assert "true" in " ".join(named("method.strict_theta=true", "method.strict_theta=false"))


def test_an_object_that_no_file_builds_is_named_by_its_class() -> None:
    found = named("method=fedavg", "method=fedavg method.server._target_=mine.Momentum", typed=False)
    assert found == ["method/server=replace", "method/server=mine.Momentum"]
