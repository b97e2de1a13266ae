"""A short trajectory of each method, committed: a change that moves no number must move none of these.

A method that is new, or a change that is meant to move results: look at what moved, write those trajectories by name
and say so in the commit.

    OMP_NUM_THREADS=1 python -m tests.golden.test_golden fedcorr fedcorr_released
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from flnl.config import compose
from tests.entries import METHODS, Words, of_methods

SETTING = (
    "dataset=digits",
    "dataset.train_size=160",
    "dataset.test_size=60",
    "model=mlp",
    "model.hidden=[16]",
    "partition=fedcorr",
    "partition.num_clients=6",
    "partition.p=0.8",
    "noise=fedcorr",
    "noise.rho=0.6",
    "noise.tau=0.5",
    "fraction=0.5",
    "seed=3",
    "train.lr=0.1",
    "train.momentum=0.5",
    "train.weight_decay=0.001",
    "train.batch_size=10",
    "train.epochs=2",
    "eval.every=1",
    "device=cpu",
    "precision=64",
    "threads=1",
    "executor=sequential",
    "wandb.mode=disabled",
    "figures=false",
)
"""Float64 on one thread, so that the numbers hold on another machine, too."""

GENERAL: dict[str, Words] = {
    "fedavg": ("method=fedavg", "rounds=6"),
    "fedprox": ("method=fedprox", "method.mu=0.1", "rounds=6"),
    "median": ("method=median", "fraction=1.0", "rounds=6"),
    **{name: (f"method={name}", "fraction=1.0", "rounds=6") for name in ("trimmed_mean", "krum", "multi_krum", "rfa")},
    "apl": ("method=apl", "rounds=6"),
    **{name: (f"method={name}", "rounds=6") for name in ("fedavgm", "fedadam", "fedyogi", "fedadagrad")},
    "power_of_choice": ("method=power_of_choice", "method.candidates=5", "rounds=6"),
}
"""Of methods without parts of their own."""
FILES: dict[Path, Mapping[str, Words]] = {
    Path(__file__).with_name("trajectories.json"): GENERAL,
    **{METHODS / folder / "trajectories.json": known.golden for folder, known in of_methods().items()},
}
"""The files with trajectories, and the settings of those in each, by name."""
SETTINGS = {name: words for settings in FILES.values() for name, words in settings.items()}

KEPT = ("round", "stage", "cohort", "loss", "accuracy", "test_loss")
CORRECTION = ("asked", "relabelled", "noise_final")


def trajectory(words: tuple[str, ...], folder: Path) -> list[dict[str, Any]]:
    """Every round and evaluation of a run, as its record has them."""
    from flnl.run.train import train

    overrides = [*SETTING, *words, f"output={folder / 'run'}", f"cache={folder / 'cache'}"]
    train(compose.load(overrides), overrides)
    rows: dict[int, dict[str, Any]] = {}
    for line in (folder / "run/metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        kept = {key: row[key] for key in KEPT if key in row}
        kept |= {key: row["correction"][key] for key in CORRECTION if "correction" in row}
        rows.setdefault(row["round"], {}).update(kept)
    return list(rows.values())


def written(files: Iterable[Path] = FILES) -> dict[str, list[dict[str, Any]]]:
    """The trajectories that these files hold, by name."""
    return {name: rows for file in files if file.exists() for name, rows in json.loads(file.read_text()).items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_trajectory(name: str, tmp_path: Path):
    agree(trajectory(SETTINGS[name], tmp_path), written()[name])


def agree(found: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> None:
    """Demand equal rounds, numbers up to what machines round differently."""
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            wanted = pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
            assert ours[key] == wanted, f"round {ours['round']}: {key}"


def test_trajectories_show_what_each_method_does():
    """None of them is another's, and FedCorr's have labels that were mended in both of its stages."""
    kept = written()
    assert kept.keys() == SETTINGS.keys()
    losses = {tuple(row["test_loss"] for row in rows)[-6:] for rows in kept.values()}
    assert len(losses) == len(SETTINGS) == sum(map(len, FILES.values()))
    for name in ("fedcorr", "fedcorr_released", "flr_plus"):
        mended = {row["stage"] for row in kept[name] if row.get("relabelled", 0) > 0}
        assert mended == {"preprocess", "finetune"}


def as_text(trajectories: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """What the file holds: JSON with a round on a line."""
    blocks = (
        f"{json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n]"
        for name, rows in trajectories.items()
    )
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def write(names: Collection[str], files: Mapping[Path, Mapping[str, Words]] = FILES) -> None:
    """Write the trajectories of these names anew; the others stay as they are, those without a setting go."""
    for file, settings in files.items():
        kept = written([file])
        for name in settings.keys() & {*names}:
            with tempfile.TemporaryDirectory() as folder:
                kept[name] = trajectory(settings[name], Path(folder))
        if left := {name: kept[name] for name in settings if name in kept}:
            file.write_text(as_text(left))


def test_writing_one_leaves_the_others_as_they_are(tmp_path: Path):
    file, other, before = tmp_path / "trajectories.json", tmp_path / "other.json", written()
    files = {file: GENERAL, other: {"feddyn": SETTINGS["feddyn"]}}
    file.write_text(as_text({"median": before["median"], "fedavg": [], "of a method that is gone": []}))
    write(["fedavg"], files)
    after = written(files)
    assert list(after) == ["fedavg", "median"]
    agree(after.pop("fedavg"), before["fedavg"])
    assert after["median"] == before["median"]
    assert not other.exists()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_a_file_is_as_it_is_written(file: Path):
    assert as_text(written([file])) == file.read_text()


def main() -> None:
    """``python -m tests.golden.test_golden NAME ...`` or ``--all``."""
    parser = argparse.ArgumentParser(description="write trajectories anew")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SETTINGS))
    parser.add_argument("--all", action="store_true", help="all of them")
    said = parser.parse_args()
    if bool(said.names) == said.all:
        parser.error("name the trajectories to write, or --all")
    if unknown := set(said.names) - SETTINGS.keys():
        parser.error(f"no trajectory is called {' or '.join(sorted(unknown))}: there are {', '.join(SETTINGS)}")
    write(SETTINGS if said.all else said.names)
    print(f"written: {', '.join(SETTINGS if said.all else said.names)}", file=sys.stderr)


if __name__ == "__main__":
    main()
