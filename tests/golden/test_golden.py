"""A short trajectory of each method, committed: a change that moves no number must move none of these.

A method that is new, or a change that is meant to move results: look at what moved, write those trajectories by name
and say so in the commit.

    OMP_NUM_THREADS=1 python -m tests.golden.test_golden fedcorr fedcorr_released
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from flnl.config import compose

FILE = Path(__file__).with_name("trajectories.json")

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

METHODS: dict[str, tuple[str, ...]] = {
    "fedavg": ("method=fedavg", "rounds=6"),
    "fedprox": ("method=fedprox", "method.mu=0.1", "rounds=6"),
    "feddyn": ("method=feddyn", "rounds=6"),
    "feddyn_server": ("method=feddyn", "method.server.evaluate=server", "train.lr_decay=0.9", "rounds=6"),
    "median": ("method=median", "fraction=1.0", "rounds=6"),
    "power_of_choice": ("method=power_of_choice", "method.candidates=5", "rounds=6"),
    "fedcorr": ("method=fedcorr", "method.T1=2", "method.T2=2", "method.T3=2", "method.theta=0.3"),
    "fedcorr_released": ("method=fedcorr_released", "method.T1=2", "method.T2=2", "method.T3=2", "method.theta=0.3"),
    "flr": ("method=flr", "method.R_w=2", "rounds=6"),
    "elr": ("method=elr", "rounds=6"),
    "flr_plus": (*("method=flr_plus", "method.T1=2", "method.T2=2", "method.T3=2", "method.theta=0.3"),),
    "fedpeer": ("method=fedpeer", "rounds=6"),
    "fedpeer_cores": ("method=fedpeer", "method.peer=cores", "rounds=6"),
    "fedpeer_half_steps": ("method=fedpeer", "method.alpha_g=0.5", "rounds=6"),
    "fedes_restart": (
        *("method=fedes", "method.s1=2", "method.T=4", "fraction=1.0"),
        *("method.restart=true", "method.cop_norm=per_step"),
    ),
    "feddiv": ("method=feddiv", "method.loss=ce", "method.T_wu=2", "method.T=4", "method.zeta=0.3"),
    "fedes": ("method=fedes", "method.cop_norm=none", "method.s1=2", "method.T=4", "fraction=1.0"),
    "co_teaching": ("method=co_teaching", "method.num_gradual=3", "rounds=6"),
    "co_teaching_plus": ("method=co_teaching_plus", "method.num_gradual=3", "method.disagree_from=2", "rounds=6"),
    "arfl": ("method=arfl", "fraction=1.0", "rounds=6"),
    "rofl": ("method=rofl", "method.num_gradual=3", "method.T_pl=3", "rounds=6"),
    "s_fedavg": ("method=s_fedavg", "method.temperature=0.05", "eval.benchmark=0.2", "rounds=6"),
    "fair": ("method=fair", "eval.benchmark=0.2", "rounds=6"),
    "forward_correction": ("method=forward_correction", "method.T_wu=3", "method.T=3", "method.threshold=0.3"),
    "t_revision": ("method=t_revision", "method.T_wu=1", "method.T_lc=2", "method.T=3", "method.slack_lr=0.001"),
    "fednoro": ("method=fednoro", "method.s1=2", "method.T=4", "method.ramp_end=4"),
    "fedlsr": ("method=fedlsr", "method.plus=true", "rounds=6"),
    "fedrn": ("method=fedrn", "method.T_wu=3", "method.T=5"),
    "dividemix": ("method=dividemix", "method.T_wu=2", "method.T=4"),
    "joint_opt": (
        *("method=joint_opt", "method.T_wu=1", "method.T=4", "method.T_final=2", "method.window=3"),
        *("method.epochs=3", "method.final_milestones=[1]", "method.final_lr=0.1"),
    ),
}

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


@pytest.mark.parametrize("name", METHODS)
def test_trajectory(name: str, tmp_path: Path):
    agree(trajectory(METHODS[name], tmp_path), json.loads(FILE.read_text())[name])


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
    kept = json.loads(FILE.read_text())
    assert kept.keys() == METHODS.keys()
    losses = {tuple(row["test_loss"] for row in rows)[-6:] for rows in kept.values()}
    assert len(losses) == len(METHODS)
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


def write(names: Collection[str], file: Path = FILE) -> None:
    """Write the trajectories of these names anew; the others stay as they are, those without a setting go."""
    kept = json.loads(file.read_text())
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            kept[name] = trajectory(METHODS[name], Path(folder))
    file.write_text(as_text({name: kept[name] for name in METHODS if name in kept}))


def test_writing_one_leaves_the_others_as_they_are(tmp_path: Path):
    file, before = tmp_path / "trajectories.json", json.loads(FILE.read_text())
    gone = {**before, "fedavg": [], "of a method that is gone": []}
    file.write_text(as_text({name: rows for name, rows in gone.items() if name != "feddiv"}))
    write(["fedavg"], file)
    after = json.loads(file.read_text())
    assert list(after) == [name for name in METHODS if name != "feddiv"]
    agree(after.pop("fedavg"), before["fedavg"])
    assert all(after[name] == before[name] for name in after)


def test_the_file_is_as_it_is_written():
    assert as_text(json.loads(FILE.read_text())) == FILE.read_text()


def main() -> None:
    """``python -m tests.golden.test_golden NAME ...`` or ``--all``."""
    parser = argparse.ArgumentParser(description="write trajectories anew")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(METHODS))
    parser.add_argument("--all", action="store_true", help="all of them")
    said = parser.parse_args()
    if bool(said.names) == said.all:
        parser.error("name the trajectories to write, or --all")
    if unknown := set(said.names) - METHODS.keys():
        parser.error(f"no trajectory is called {' or '.join(sorted(unknown))}: there are {', '.join(METHODS)}")
    write(METHODS if said.all else said.names)
    print(f"written: {FILE}", file=sys.stderr)


if __name__ == "__main__":
    main()
