"""What the text of an override says."""

from __future__ import annotations

from pathlib import Path

import pytest

from flnl.config.override_text import dotted, group_of, key_of, value_of, without


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("seed=1", "seed", "1"),
        ("+train.lr=0.1", "train.lr", "0.1"),
        ("++method/server@method.server=adam", "method/server@method.server", "adam"),
        ("~noise.map", "noise.map", ""),
        ("noise.path='a=b'", "noise.path", "'a=b'"),  # only the first = is between key and value
    ],
)
def test_key_and_value(override: str, key: str, value: str) -> None:
    assert (key_of(override), value_of(override)) == (key, value)


@pytest.mark.parametrize(
    ("override", "group"),
    [
        ("noise=flr", "noise"),
        ("noise.rho=1", None),
        ("method/local=[flr]", "method/local"),
        ("+method/local@method.stages.training.local=[flr]", "method/local"),
        ("experiment=fedcorr/cifar10_iid", "experiment"),
        ("~noise.source", None),
        ("seed=1", None),
        ("=1", None),  # conf/ itself is no group
    ],
)
def test_groups_are_told_from_values(override: str, group: str | None) -> None:
    assert group_of(override) == group


def test_groups_of_another_folder_count_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "hospital").mkdir()
    assert group_of("hospital=north") is None
    assert group_of("hospital=north", (tmp_path,)) == "hospital"


def test_dotted_keys_have_no_package() -> None:
    assert dotted("+executor/inner@executor.inner=stacked") == "executor.inner"


def test_without_leaves_out_keys_however_they_are_written() -> None:
    overrides = ["seed=1", "+seed=2", "data_seed=3", "~seed", "seeds=4"]
    assert without(overrides, "seed") == ["data_seed=3", "seeds=4"]
