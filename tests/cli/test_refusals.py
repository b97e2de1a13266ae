"""Mistakes on the command line: exit code 2, one line that starts with ``error: ``, and the key in it."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from flnl.config.folders import CONF
from flnl.run.train import LESS_MEMORY
from tests.cli.conftest import Command
from tests.registry import TINY

MISTAKES = {
    # values
    "seed=-1": "seed",
    "seed=1.5": "seed",
    "seed=abc": "seed",
    "seed=true": "seed",
    "data_seed=null": "data_seed",
    "threads=0": "threads",
    "threads=1.0": "threads",
    "precision=16": "precision",
    "device=tpu": "device",
    "noise.rho=1.5": "noise.rho",
    "noise.rho=abc": "noise.rho",
    "noise.rho='0.5'": "noise.rho",
    "noise.rho=null": "noise.rho",
    "noise.rho=": "noise.rho",
    "noise.rho=${nothing}": "noise.rho",
    "dataset.root=~/x": "write $HOME in place of ~",
    "dataset.root=/a~": "as in \"dataset.root='a, b'\"",
    "method=flr_plus method.like=fedcor": "method.like=fedcor",
    "method=fedavg rounds=-1": "rounds",
    "method=fedavg rounds=3.0": "rounds",
    "method=fedavg rounds=0": "rounds",
    "method=fedavg rounds=999999999999999999": "rounds",
    "method=fedcorr method.T2=99999999999": "method.T2",
    "eval.validation=1": "eval.validation",
    "eval.every=0": "eval.every",
    "train.lr=0": "train.lr",
    "train.lr=inf": "train.lr",
    "train.momentum=1": "train.momentum",
    "train.batch_size=0": "train.batch_size",
    "train.epochs=2.0": "train.epochs",
    "train=5": "train=5: train is a section; set its keys, as in train.lr=0.1, or train/optimizer=..., train/schedule",
    "train=null": "train=null: train is a section",
    "~train": "~train: every run has train",
    "fraction=0": "fraction",
    "fraction=1.5": "fraction",
    "checkpoint.keep=0": "checkpoint.keep",
    "wandb.mode=sometimes": "wandb.mode",
    "wandb=null": "wandb",
    "on_nonfinite=ignore": "on_nonfinite",
    "products=some": "products",
    "max_rounds=0": "max_rounds",
    "partition.num_clients=0": "partition.num_clients",
    "partition.num_clients=171": "partition.num_clients",
    "dataset.train_size=100000": "dataset.train_size",
    "partition.num_clients=100000": "partition.num_clients=100000 is more than the 170 samples",
    "partition=iid_class partition.num_clients=100000": "partition.num_clients=100000 is more than the 170 samples",
    "partition=shards partition.num_clients=100000": "partition.num_clients=100000 is more than the 170 samples",
    "partition=quantity_skew partition.num_clients=100000": "partition.num_clients=100000 is more than the 170 samples",
    "partition=dirichlet partition.num_clients=100000": "partition.num_clients=100000 is more than the 170 samples",
    "partition=dirichlet partition.num_clients=17": "raise alpha, or lower num_clients or partition.minimum",
    "partition=fedcorr partition.num_clients=100000": "partition.num_clients=100000 is more than the 170 samples",
    "partition=fedcorr partition.num_clients=170": "raise p or alpha, or lower num_clients",
    "partition=openset partition.by=truth partition.num_clients=100000": "is more than the 170 samples",
    "partition=openset partition.by=truth partition.num_clients=170": "raise q, or lower num_clients",
    "model.dropout=1.5": "model.dropout",
    "model._target_=os.system": "model._target_=os.system: there is no such class",
    "model._target_=nowhere.Model": "model._target_=nowhere.Model: there is no such class",
    "noise=matrix noise.path=a_file": "noise.path=a_file",
    "threads=100000": "threads=100000: must be less",
    "train.batch_size=99999999999999999999": "train.batch_size",
    "device=cuda:one": "device=cuda:one: must be auto, cpu, cuda or, with several GPUs, one of them as in cuda:1",
    "device=cpu:0": "device=cpu:0: must be auto, cpu, cuda or",
    "device=mps": "as in cuda:1, or an accelerator that a package has registered with torch",
    "precision=bf16-mixed": "precision=bf16-mixed: must be 32, 64, 'bf16' or 'tf32'",
    "wandb.project=''": "wandb.project",
    # a method's values, by the key that was typed
    "method.theta=2": "method.theta",
    "method.k_lid=0": "method.k_lid",
    "method.prox=cubic": "method.prox",
    "method.stage1=parallel_average method.gamma1=0.1": "method.gamma1=0.1 divides a pass into groups, but "
    "method.stage1=parallel_average",
    "method.gamma1=0": "method.gamma1",
    "method.T1=-1": "method.T1",
    "method.T1=1.5": "method.T1",
    "method.T1=abc": "method.T1",
    "method.T2=null": "method.T2",
    "method.mixup=no": "method.mixup",
    "method.correction=off": "method.correction",
    "method.T1=0 method.T2=0 method.T3=0": "set method.T1 or method.T2 or method.T3 above zero",
    "method.mixup_stages=[4]": "method.mixup_stages=[4], but method=fedcorr has stages 1 to 3 (preprocess, finetune, ",
    "method=fedavg method/batch=mixup method.batch.stages=[2]": "stages=[2], but method=fedavg has one stage only",
    "method=fednoro method.local.fednoro.stage=3": "method.local.fednoro.stage=3, but method=fednoro has stages 1 to 2",
    "method=fedavg method/exchange=[fednoro_class_losses]": "class_losses.stage=2, but method=fedavg has one stage",
    "method=joint_opt method.local.joint_opt.first_stage=4": "first_stage=4, but method=joint_opt has stages 1 to 3",
    "method=flr method.local.flr.first_stage=2": "method.local.flr.first_stage=2, but method=flr has one stage only",
    "method=fedpeer method.local.fedpeer.first_stage=2": "first_stage=2, but method=fedpeer has one stage only",
    "method=fedpeer method.exchange.label_sharing.stage=2": "label_sharing.stage=2, but method=fedpeer has one stage",
    "method=fedavg method/exchange=[fedes_quality] method.exchange.quality.stage=2": "quality.stage=2, but method=",
    "method=fedavg method/exchange=[loss_correction_transition_matrix] method.exchange.transition_matrix.stage=2": "=2",
    "method=fedavg method/exchange=[fedrn_reliable_neighbours]": "reliable_neighbours.stage=2, but method=fedavg has",
    "method=fedprox method/local=[cross_entropy] method.mu=0.5": "which is not there; add fedprox to method/local",
    "method=fedprox method.mu=0.5 method.local.fedprox.mu=0.3": "set the same value; leave one of them out",
    "method.stages=null": "method.stages=null",
    "method.stages.finetune=null": "method.stages.finetune=null",
    # choices
    "noise=foo": "noise",
    "noise=null": "noise",
    "~noise": "noise",
    "model=null": "model",
    "method=fedcor": "fedcorr",
    "method=parts/default": "method=parts/default",
    "method/local=[cross_entropy,foo]": "method/local",
    "method/local=[]": "method/local",
    "method/aggregator=medain": "method/aggregator",
    "method=fedavg method/corrector=fedcorr": "method.",
    "method=fedavg method/stages=fedcorr": "method.",
    "method=fedcorr method/exchange=[]": "method/exchange=[fedcorr_lid]",
    "method=fedcorr method/corrector=none method.stages.finetune.sampler.kappa=0.1": "add method/corrector=fedcorr or",
    "method=fedcorr method/stages=fedcorr_flr": "add method/local=[flr]",
    "method=fedavg method/gradient=fedes_selective_decay": "add method/exchange=[fedes_quality]",
    "method=fedavg method/batch=feddiv_reselection": "add method/exchange=[feddiv_noise_filter]",
    "method=fedavg method/batch=feddiv_reselection method/exchange=[fedcorr_lid]": "exchange=[feddiv_noise_filter]",
    "method=fedavg method/exchange=[fedes_quality] method/gradient=fedes_selective_decay": "gives from stage 2 on",
    "model=vgg11": "model=vgg11",
    "method=[fedavg,fedprox]": "method=[fedavg,fedprox]: method takes one of",
    "experiment=[a,b]": "experiment takes one of",
    "debug=null": "leave it out for none",
    "+noise=symmetric": "without +",
    "++noise=symmetric": "without +",
    "noise@x=symmetric": "noise@x cannot be set here",
    "experiment=nothing": "experiment",
    "executor=gpu": "executor",
    "executor=inner/stacked": "executor=inner/stacked does not exist; did you mean stacked?",
    "experiment=fedcorr/cifar10_idd": "did you mean fedcorr/cifar10_iid?",
    "executor/inner=stacked": "executor/inner belongs to executor=processes or executor=ray, which is not chosen here",
    "executor=processes executor/inner=stakced": "did you mean stacked? there are sequential, stacked",
    "executor=ray executor/inner=null": "executor/inner takes one of sequential, stacked",
    "executor=processes executor.inner.stack=5": "executor.inner.stack belongs to executor/inner=stacked",
    "partition=file": "partition.path",
    "noise=human": "noise.source",
    # keys
    "rounds=5 method=fedcorr": "method.T1=8 passes of preprocess, method.T2=20 rounds of finetune, method.T3=20",
    "++rounds=5 method=fedcorr": "method.T3=20",
    "experiment=fedcorr/cifar10_noniid partition=dirichlet": "(if an experiment sets it, ~partition.p leaves it out)",
    "noise.mu=0.5": "noise.mu belongs to noise=fedes",
    "noise.eta=0.5": "noise.eta belongs to",
    "partition.p=0.3": "partition.p belongs to partition=fedcorr",
    "method.mu=0.5": "method.mu belongs to method=fedprox or method=fedreda, which is not chosen here; the part's own",
    "method=fedprox method.muu=0.5": "did you mean method.mu?",
    "noise.roh=0.6": "did you mean noise.rho?",
    "nois.rho=0.6": "did you mean noise.rho?",
    "+rouds=5": "did you mean rounds?",
    "+noise.roh=0.6": "did you mean noise.rho?",
    "++train.lrr=0.6": "did you mean train.lr?",
    "+method.mu=3": "method.mu belongs to method=fedprox",
    "lr=0.1": "lr is not a key of the configuration; did you mean train.lr?",
    "T1=3": "did you mean method.T1?",
    "mu=1 method=fedprox": "did you mean method.mu?",
    "num_clients=3": "did you mean partition.num_clients?",
    "optimizer=adam": "did you mean train/optimizer=?",
    "scheduler=cosine": "did you mean train/schedule=?",
    "train.optimizer=adam": "choose one with train/optimizer=adam, adamw, sgd",
    "hydra.launcher.n_jobs=2": "hydra.launcher.n_jobs belongs to hydra/launcher=joblib, which is not chosen here",
    "hydra.launcher.array_parallelism=2": "belongs to hydra/launcher=submitit_slurm",
    "hydra.launcher.nothing=2": "hydra.launcher.nothing is not a key of the configuration",
    "logger=mlflow": "there are csv, tensorboard, wandb",
    "~train/optimizer": "train/optimizer takes one of adam, adamw, sgd",
    "~train.lr": "train.lr is missing: write train.lr=... in place of ~train.lr",
    "method.stages.usual.train.lr=0.1": "method.stages.usual.train.lr is not set, so train.lr holds there; write +",
    "+method.stages.usual.train.lrr=0.1": "method.stages.usual.train.lrr is not a key; did you mean lr?",
    "+method.stages.usuall.train.lr=0.1": "+method.stages.usuall.train.lr is not a key",
    "train.milestones=[0]": "train.milestones[0]",
    "train.milestone_decay=2.0": "train.milestone_decay=2.0: must be less than or equal to 1",
    "train.keep_momentum=3": "train.keep_momentum=3",
    "~seed": "~seed: every run has seed",
    "~wandb": "~wandb: every run has wandb",
    "~nothing": "~nothing is not a key",
    "a=b": "a is not a key",
    # form
    "noise.rho": "key=value",
    "seed=1,2": "--multirun",
    "=1": "names no key",
    "+=1": "names no key",
    "~": "names no key",
    "--cfg": "--cfg: expected one argument",
    "--cfg everything": "--cfg: invalid choice",
    "--resolve": "--cfg job",
    "--package noise": "--cfg job",
    "--shell-completion": "install=bash",
    "--experimental-rerun a_file": "--experimental-rerun is not an option",
    "-x": "-x is not an option",
    "-m seed=1": "-m stands between overrides",
    # places
    "resume=/nowhere": "resume",
    "resume=''": "resume",
    "output=''": "output",
    "output=a_file": "output=a_file",
    "output=a_file/below": "output=a_file/below",
    "output_root=a_file": "output_root=a_file",
    "output_root=a_file/below": "output_root=a_file/below",
    "hydra.sweep.dir=a_file -m": "hydra.sweep.dir=a_file",
    "hydra.sweep.dir=a_file/below -m": "hydra.sweep.dir=a_file/below",
    "cache=''": "cache",
    "dataset=cifar10 dataset.root=nowhere dataset.download=false": "dataset.root",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_said_in_one_line_that_names_the_key(words: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "a_file").write_text("")
    typed = words.split()
    taken = {w.lstrip("+~").split("=")[0] for w in typed}
    gone = {"model.hidden"} if taken & {"model"} else {"dataset.train_size"} if "dataset" in taken else set()
    rest = [w for w in TINY if w.split("=")[0] not in taken | gone]
    said = command(*rest, *typed)
    assert said.code == 2, said.err
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1, said.err
    assert MISTAKES[words] in said.err
    assert said.out == ""
    assert "Traceback" not in said.err
    left = {p.name for p in tmp_path.iterdir()} - {"a_file"}
    assert left <= {"outputs"}
    assert not list(tmp_path.glob("outputs/*")), "a refused run leaves a folder"


def test_there_are_enough_of_them() -> None:
    assert len(MISTAKES) >= 25


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    said = command(*TINY, "output=closed")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "output=closed" in said.err


def test_a_run_that_fails_ends_with_one_line_and_code_1(command: Command, tmp_path: Path) -> None:
    said = command(*TINY, "method=fedavg", "rounds=2", "on_nonfinite=stop", "train.lr=1e30")
    assert said.code == 1
    assert said.err.splitlines()[-1].startswith("error: ")
    (log,) = tmp_path.glob("outputs/*/error.log")
    assert said.err.splitlines()[-1].endswith(f"; in round 1; {log.relative_to(tmp_path)} has the traceback")
    assert "Traceback" not in said.err


BUGGY = """
from dataclasses import dataclass

from flnl.core.parts import LossTerm


@dataclass(frozen=True)
class Bug(LossTerm):
    fits_labels = True
    weight: float

    def __call__(self, step, state):
        if step.broadcast.round == 1:
            raise ValueError("no such class")
        return step.logits.exp().sum(1).log() - step.logits[:, 0], state
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a loss of one's own."""
    (tmp_path / "own_bug.py").write_text(BUGGY)
    (tmp_path / "own" / "method" / "local").mkdir(parents=True)
    (tmp_path / "own" / "method" / "local" / "bug.yaml").write_text("bug: {_target_: own_bug.Bug, weight: 0.5}")
    (tmp_path / "own" / "method" / "mine.yaml").write_text(
        "defaults: [parts/default@_here_, override local: [bug], _self_]\nname: mine\nlam: 0.1"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_bug", raising=False)
    return tmp_path / "own"


@pytest.mark.parametrize("search", [("--config-dir", "own"), ("hydra.searchpath=[own]",)], ids=str)
def test_keys_of_ones_own_parts_are_suggested(search: tuple[str, ...], own: Path, command: Command) -> None:
    said = command(*search, *TINY, "method=mine", "method.lamm=0.3")
    assert said.err.strip() == "error: method.lamm is not a key of the configuration; did you mean method.lam?"
    said = command(*search, *TINY, "method=fedavg", "method/local=[bug]", "method.local.bug.wieght=1")
    assert said.err.strip().endswith("did you mean method.local.bug.weight?")


@pytest.mark.parametrize("search", [("--config-dir", "own"), ("hydra.searchpath=[own]",)], ids=str)
@pytest.mark.parametrize("word", ["method=mien", "method=[mine]", "method=null", "~method", "method/local=[bgu]"])
def test_lists_have_ones_own_options(word: str, search: tuple[str, ...], own: Path, command: Command) -> None:
    said = command(*search, *TINY, *(["method=fedavg"] if word.startswith("method/") else []), word)
    assert said.code == 2
    assert re.search(r"\bbug, " if word.startswith("method/") else r", mine,", said.err), said.err
    shown = command("--help", *search, *TINY[:1]).out
    assert re.search(r"\nmethod: .*, mine\b", shown)


@pytest.mark.parametrize("search", [("--config-dir", "own"), ("hydra.searchpath=[own]",)], ids=str)
def test_a_file_of_ones_own_with_the_name_of_one_of_ours_is_refused(
    search: tuple[str, ...], own: Path, command: Command
) -> None:
    """Hydra would read ours; an equal copy does no harm."""
    copy = own / "method" / "fedprox.yaml"
    copy.write_bytes((CONF / "method" / "fedprox.yaml").read_bytes())
    assert command(*search, *TINY, "method=fedprox", "--cfg", "job").code == 0
    copy.write_text(copy.read_text() + "# mine\n")
    for words in (("method=fedprox",), ("method=fedavg",)):
        said = command(*search, *TINY, *words)
        assert said.code == 2
        assert "fedprox.yaml has the name of a file of flnl, which would be taken; rename yours" in said.err


@pytest.mark.parametrize(
    ("written", "code", "told"),
    [
        ("logger: csv", 0, ""),
        ("defaults: [override /logger: [csv], _self_]", 0, ""),
        ("logger: tensorboard", 0, ""),
        ("logger: [csv]", 2, "experiment/preset.yaml has a list instead of a section; a file chooses loggers by"),
        ("logger: none", 2, "logger=none: choose some with logger=[csv,tensorboard,wandb]"),
        (
            "noise: symmetric",
            2,
            "noise: symmetric in a file: write it as defaults: [override /noise: symmetric, _self_]",
        ),
        ("method: mine", 2, "method: mine in a file: write it as defaults: [override /method: mine, _self_]"),
    ],
)
def test_a_file_of_ones_own_chooses_loggers_by_name(
    written: str, code: int, told: str, own: Path, command: Command
) -> None:
    (own / "experiment").mkdir()
    (own / "experiment" / "preset.yaml").write_text(f"# @package _global_\n{written}\n")
    words = [word for word in TINY if not word.startswith("logger")]
    said = command("--config-dir", "own", "experiment=preset", *words, "max_rounds=1", "output=run")
    assert (said.code, told in said.err) == (code, True), said.err
    if not code:
        chosen = json.loads((own.parent / "run" / "result.json").read_text())["config"]["logger"]
        assert list(chosen) == (["tensorboard"] if "tensorboard" in written else [])


def test_without_a_search_path_it_is_named(own: Path, command: Command) -> None:
    said = command(*TINY, "method=mine")
    assert said.err.strip().endswith("; --config-dir FOLDER adds files of your own")
    assert "--config-dir" not in command(*TINY, "method=fedcor").err
    assert "adds files" not in command("--config-dir", "own", *TINY, "method=others").err


@pytest.mark.parametrize(
    "executor",
    [
        ["executor=sequential"],
        ["executor=processes", "executor.workers=2", "executor.start=fork"],
        pytest.param(["executor=ray", "executor.workers=2"], marks=pytest.mark.slow),
    ],
    ids=lambda words: words[0],
)
def test_a_mistake_in_ones_own_part_is_told_with_its_round_file_and_line(
    executor: list[str], own: Path, command: Command
) -> None:
    words = [word for word in TINY if not word.startswith("executor")]
    said = command(
        "--config-dir", "own", *words, *executor, "method=fedavg", "method/local=[bug]", "rounds=3", "output=run"
    )
    assert (said.code, said.err.splitlines()[-1]) == (
        1,
        "error: the run failed: ValueError: no such class; in round 2, own_bug.py:14; run/error.log has the traceback",
    )


def test_a_gpu_without_memory_left_is_told_with_what_takes_less(own: Path, command: Command) -> None:
    file = own.parent / "own_bug.py"
    file.write_text("import torch\n" + file.read_text().replace("ValueError(", "torch.OutOfMemoryError("))
    said = command("--config-dir", "own", *TINY, "method=fedavg", "method/local=[bug]", "rounds=3", "output=run")
    assert said.err.splitlines()[-1] == (
        "error: the run failed: OutOfMemoryError: no such class; in round 2, own_bug.py:15; run/error.log has the "
        f"traceback; {LESS_MEMORY}"
    )


def test_help_and_the_composed_configuration_are_no_mistakes(command: Command) -> None:
    for words in (["--help"], ["--cfg", "job"], ["--cfg", "job", "--resolve", "method=fedavg"]):
        said = command(*words)
        assert said.code == 0, words
        assert "noise" in said.out
        assert said.err == ""


@pytest.mark.parametrize(("clients", "notes"), [(8, 0), (10, 1)])
def test_clients_with_too_few_neighbours_for_lid_are_named_once(clients: int, notes: int, command: Command) -> None:
    """With 21 samples each there are 20 others; with 17 there are not."""
    rest = [w for w in TINY if not w.startswith("partition")]
    said = command(*rest, f"partition.num_clients={clients}", "method=fedcorr", "max_rounds=1")
    assert said.code == 0
    found = [line for line in said.err.splitlines() if "method.k_lid=20" in line]
    assert len(found) == notes
    assert all("10 of 10 clients" in line and "holds 17 samples" in line for line in found)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("--config-dir", "run", "--config-name", "config"), "--config-dir run is the folder of a run: {rerun}"),
        (("--config-dir", "run", "--config-name", "config.yaml"), "--config-dir run is the folder of a run: {rerun}"),
        (("-cd", "run"), "--config-dir run is the folder of a run: {rerun}"),
        (("hydra.searchpath=[run]", "-cn", "config"), "--config-dir run is the folder of a run: {rerun}"),
        (("--config-path", "run"), "--config-path run is the folder of a run: {rerun}"),
        (("--config-path", "{here}/run"), "--config-path {here}/run is the folder of a run: {rerun}"),
        (("--config-name", "run/config"), "--config-name run/config: run/config.yaml is of a run: {rerun}"),
        (("--config-name", "{here}/run/config.yaml"), "{here}/run/config.yaml is of a run: {rerun}"),
        (("--config-dir", "own", "--config-name", "config"), "{conf}/config.yaml, not own/config.yaml: give your file"),
        (("--config-name", "config"), "would read {conf}/config.yaml, not config.yaml: give your file another name"),
        (("--config-name", "own/mine.yaml"), "is no path: write --config-dir own --config-name mine"),
        (
            ("--config-path", "own"),
            "--config-path own replaces conf/, by an absolute path; --config-dir own adds to it",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("more", [(), ("--cfg", "job")], ids=str)
def test_a_file_of_ones_own_is_not_passed_over_for_the_default(
    words: tuple[str, ...], advice: str, more: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    """Hydra searches ``conf/`` first: the default would be trained instead of what the user means."""
    for file in ("run/config.yaml", "run/result.json", "own/config.yaml", "own/mine.yaml", "config.yaml"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("seed: 7\n")
    known = {"here": str(tmp_path), "conf": str(CONF), "rerun": "flnl rerun "}
    said = command(*(word.format(**known) for word in (*words, *more)))
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1), said.err
    assert advice.format(**known) in said.err
    assert not (tmp_path / "outputs").exists()


def test_a_base_of_ones_own_with_a_name_of_its_own_is_read(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [config, _self_]\nseed: 7\n")
    said = command("--config-dir", str(tmp_path), "--config-name", "mine", "--cfg", "job")
    assert said.code == 0, said.err
    assert "\nseed: 7\n" in said.out
