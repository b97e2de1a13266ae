"""What a person can mend ends with exit code 2 and one line that names the key, whatever was typed; slips are said."""

import errno
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from flnl.commands import card as card
from flnl.commands.guard import guarded
from flnl.commands.list import main as list_main
from flnl.config import compose
from flnl.config.check import check_read
from flnl.config.groups import groups
from flnl.config.slots import Slot
from flnl.core.errors import UserError
from flnl.core.parts import ServerUpdate
from flnl.engine.model_file import ModelFile
from flnl.models import pretrained
from flnl.record import lines
from flnl.record.run import RunRecord
from flnl.record.tuned import Tuned
from flnl.storage.input_file import DEPTH, parse_json
from tests.cli.conftest import Command, Said
from tests.products.conftest import Commands, said  # noqa: F401
from tests.registry import BY_NAME, TINY

LONG = "x" * 5000
DIGITS = "9" * 5000
FEDAVG = BY_NAME["fedavg"].words


class Bare(ServerUpdate):
    """A part that is no dataclass."""


REFUSED: dict[str, tuple[list[str], str]] = {
    # what stands in a slot is a part of its kind
    "a number in a slot": (["method.gradient=inf"], "method.gradient=inf: must be a part"),
    "a word in a stage's slot": (
        ["method.stages.finetune.gradient=x"],
        "method.stages.finetune.gradient=x: must be a part, with a _target_ and its values, or null",
    ),
    "a number for a corrector": (["method=flr", "method.corrector=-1"], "method.corrector=-1: must be a part"),
    "null in a slot that is never empty": (["method.server=null"], "method.server=null: must be a part"),
    "a word for parts with names": (
        ["method=flr", 'method.exchange="a\tb"'],
        "method.exchange=a\\tb: must have a part",
    ),
    "a number for a part with a name": (["method.local.cross_entropy=3"], "method.local.cross_entropy=3: must be a"),
    "a part of another kind": (
        ["method.server._target_=flnl.parts.samplers.uniform.Uniform"],
        "method.server._target_=flnl.parts.samplers.uniform.Uniform: cannot stand there, as it is no ServerUpdate",
    ),
    "a part that is no dataclass": (
        ["method.server._target_=tests.cli.test_exits.Bare"],
        "method.server._target_=tests.cli.test_exits.Bare: the class has no fields to be set; decorate it with",
    ),
    "a part that is called otherwise": (
        ["noise=none", "noise._target_=flnl.parts.servers.Replace"],
        "noise._target_=flnl.parts.servers.Replace: cannot stand there",
    ),
    "a part of another kind inside one": (
        ["executor=processes", "executor.inner._target_=flnl.parts.servers.Replace"],
        "executor.inner._target_=flnl.parts.servers.Replace: cannot stand there",
    ),
    "no class": (["model._target_=[]"], "model._target_=[]: there is no such class"),
    "a module that cannot be imported": (["model._target_=.a.b"], "model._target_=.a.b: there is no such class"),
    "no target": (["~model._target_"], "model="),
    "a part that the run completes": (["executor._partial_=-1"], "executor._partial_=-1: must be true"),
    "a part that nothing completes": (["+method.server._partial_=true"], "method.server._partial_"),
    "a key of a class without annotations": (
        ["model._target_=torch.nn.Linear", "~model.hidden", "~model.dropout"],
        "model.in_features is missing",
    ),
    # a stage
    "a number for names": (
        ["method.stages.usual.silent=1e400"],
        "method.stages.usual.silent=inf: must be a valid list",
    ),
    "a correction that is none": (
        ["method.stages.finetune.correct=3"],
        "method.stages.finetune.correct=3: must be null",
    ),
    "a correction at no time": (
        ["method.stages.finetune.correct.when=never"],
        "method.stages.finetune.correct.when=never: must be 'pass' or 'end'",
    ),
    "a restart that is none": (["method=fedes", "method.restart=3"], "method.restart=3: must be a valid boolean"),
    # names by which others take their values
    "a list for a name": (["method.name=[a]"], "method.name=['a']: must be a valid string"),
    "a number for a text": (
        ["dataset=table", "dataset.client=7"],
        "dataset.client=7: must be a valid string; as text, it has quotes within quotes: 'dataset.client=\"7\"'",
    ),
    "true for a text": (
        ["dataset=table", "dataset.leave_out=[true]"],
        "dataset.leave_out[0]=[True]: must be a valid string; as text, it has quotes within quotes: "
        "'dataset.leave_out=[\"true\"]'",
    ),
    "no name": (["method.name=''"], "method.name=: must have at least 1"),
    # the key that was typed
    "a value of the protocol": (["protocol.lr=-1"], "protocol.lr=-1: must be greater than 0"),
    "a value of the protocol for one method": (
        ["+protocol.fedcorr.T1=x"],
        "protocol.fedcorr.T1=x: must be a number, from which others follow",
    ),
    "what a formula needs": (
        ["method=fednoro", "~protocol.rounds"],
        "protocol.rounds is missing, from which others follow: set it",
    ),
    "a value of the protocol without a plus": (
        ["protocol.fedcorr.T1=3"],
        "protocol.fedcorr.T1 is not set yet; write +protocol.fedcorr.T1=... to set it",
    ),
    "a section for a value": (["protocol.fedcorr=3"], "protocol.fedcorr takes its values one by one"),
    "a key of the protocol that nothing asks for": (["+protocol.sce=3"], "+protocol.sce is not a key"),
    "an interpolation of nothing": (["method.T1=${nothing}"], "method.T1 takes nothing, which is not a key"),
    "an interpolation that another takes": (
        ["method=fedcorr", "method/local=[flr]", "method.stages.usual.rounds=${nothing}"],
        "method.stages.usual.rounds takes nothing, which is not a key",
    ),
    "a number for stages that a term looks at": (["method=flr", "method.stages=1"], "method.stages=1: must be"),
    "a number for one of them": (["method=flr", "method.stages.training=1"], "method.stages.training=1: must be"),
    "a number for a stage's terms": (
        ["method/local=[flr]", "method/stages=fedcorr_flr", "method.stages.finetune.local=1"],
        "method.stages.finetune.local=1: must be",
    ),
    "a rule that is none": (
        ["method.stages.finetune.correct.rule=x"],
        "method.stages.finetune.correct.rule=x: the corrector has top_losses, all_confident",
    ),
    "a part for a value": (["method.theta={_target_:os.system}"], "method.theta="),
    # short keys
    "a value in a sweep": (["-m", "method=fedprox", "method.mu=0.1,-1"], "job 1: method.mu=-1: must be greater"),
    "a part that one job lacks": (
        ["-m", "method=fedprox", "method/local=[cross_entropy],[cross_entropy,fedprox]", "method.mu=1"],
        "job 0: method.mu=1: it stands for method.local.fedprox.mu",
    ),
    # values of the protocol that nothing reads
    "another method's": (["method=fedavg", "+protocol.fedcorr.T1=3"], "protocol.fedcorr.T1=3: nothing in a run of"),
    "another loss term's": (["method=fedavg", "+protocol.reg_start_round=3"], "+protocol.reg_start_round is not a key"),
    "rounds of a method whose stages are set": (
        ["protocol.rounds=3", "method.T2=1", "method.T3=1"],
        "protocol.rounds=3: nothing in a run of method=fedcorr",
    ),
    "a value that was set beside it": (
        ["protocol=cifar10", "method=fedprox", "method.mu=1", "+protocol.fedprox.mu=3"],
        "protocol.fedprox.mu=3: nothing in a run of method=fedprox takes",
    ),
    # choices
    "an exchange twice": (
        ["method/exchange=[fedcorr_lid,fedcorr_lid]"],
        "method/exchange=[fedcorr_lid,fedcorr_lid]: method/exchange takes each",
    ),
    "a term twice": (["method=fedavg", "method/local=[cross_entropy,cross_entropy]"], "and cross_entropy is repeated"),
    # numbers
    "too many digits": ([f"seed={DIGITS}"], "a number may have at most 4300 digits"),
    "an epsilon beside which 1 + epsilon is 1": (["method=fedpeer", "method.epsilon=1e-17"], "method.epsilon=1e-17"),
    # Hydra's own keys
    "a folder of Hydra's": (["hydra.run.dir=/proc/x"], "hydra.run.dir=/proc/x: a run's folder is set by output"),
    "a folder in it": (["hydra.output_subdir=/proc/x"], "hydra.output_subdir=/proc/x: Hydra cannot do that"),
    "a logger of Hydra's": (["hydra.verbose=[1]"], "hydra.verbose=[1]: Hydra cannot do that"),
    "a plugin": (["-m", "hydra.sweeper._target_=x"], "hydra.sweeper._target_=x: Hydra cannot do that"),
    "a job's folder": (["-m", "hydra.sweep.subdir=/proc/x"], "hydra.sweep.subdir=/proc/x: Hydra cannot do that"),
    "a long name of a configuration": (["--config-name", LONG], "--config-name: Hydra cannot do that"),
    # paths
    **{
        f"a long {key}": ([f"{key}={LONG}"], f"{key}=xxx")
        for key in ("output", "output_root", "cache", "resume", "hydra.run.dir")
    },
    "a long file of labels": (["dataset=arrays", f"dataset.labels={LONG}"], "dataset.labels=xxx"),
    "a long root": (["dataset=cifar10", f"dataset.root={LONG}"], "dataset.root=xxx"),
    "a long name in a short path": ([f"cache=a/{'b' * 256}"], "must have at most 255 bytes between two slashes"),
    "long partition": (["partition=file", f"partition.path={LONG}"], "partition.path=xxx"),
    "a long path of noise": (["noise=matrix", f"noise.path={LONG}"], "noise.path=xxx"),
    "weights": (["dataset=image_folder", "model=resnet50", f"model.pretrained={LONG}"], "model.pretrained=xxx"),
    "a path with an end in it": (["output='a\0b'"], "output=a\\x00b: must have no NUL character"),
    # what would break a line, or steer a terminal
    "lines": (["noise.rho='a\nb'"], "noise.rho=a\\nb: must be a valid number"),
    "a number in quotes": (
        ["noise.rho='0.6'"],
        "noise.rho=0.6: must be a valid number; '0.6' is text: write it as a number, without quotes",
    ),
    "a number that is none in quotes": (["noise.rho='nan'"], "noise.rho=nan: must be a valid number\n"),
    "a whole number with decimals in quotes": (["seed='1.5'"], "seed=1.5: must be a valid integer\n"),
    "escapes": (["noise.rho='\x1b[31m'"], "noise.rho=\\x1b[31m: must be a valid number"),
}


def without(words: list[str]) -> list[str]:
    """A tiny run's words but for those whose key or group is among ``words``."""
    taken = {w.lstrip("+~").split("=")[0] for w in words}
    groups = {"model": "model.", "dataset": "dataset."}
    return [
        w for w in TINY if w.split("=")[0] not in taken and not any(g in taken and p in w for g, p in groups.items())
    ]


def refused(answer: Said) -> None:
    """Exit code 2, one line."""
    assert answer.code == 2, answer.err
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1, answer.err
    assert answer.err[:-1].isprintable()
    assert len(answer.err) < 1500


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_one_line_that_names_the_key(name: str, command: Command, tmp_path: Path) -> None:
    words, expected = REFUSED[name]
    flags = [word for word in words[:1] if word.startswith("-")]
    answer = command(*(words if flags[:1] == ["--config-name"] else [*flags, *without(words), *words[len(flags) :]]))
    refused(answer)
    assert expected in answer.err
    assert not list(tmp_path.glob("outputs/*"))


def test_the_configuration_is_shown_as_a_run_reads_it(command: Command) -> None:
    """Hydra by itself would show the part without the value of its short key."""
    words = ("method=fedprox", "method.mu=0.25")
    answer = command("--cfg", "job", "--resolve", "--package=method.local.fedprox", *words)
    assert answer.out.splitlines()[0] == "# @package method.local.fedprox"
    assert "mu: 0.25" in answer.out.splitlines()
    shown = OmegaConf.create(command("--cfg", "job", "--resolve", *words).out)
    assert shown == OmegaConf.create(compose.resolved(compose.load(words)))
    assert command("-c", "job", "-p", "method.mu", *words).out == "0.25\n"


def test_a_section_that_is_not_there_is_not_shown(command: Command) -> None:
    answer = command("--package", "nothing", "--cfg", "job")
    refused(answer)
    assert "nothing" in answer.err
    answer = command("--package", "nothing", "--cfg", "all")  # which Hydra answers itself
    assert (answer.code, answer.err.count("\n")) == (2, 1)


# -------------------------------------------------------------------------------------------------------- protocol


@pytest.mark.parametrize(
    ("method", "word"),
    [
        ("fedavg", "protocol.rounds=3"),
        ("fedavg", "protocol.lr=0.2"),
        ("fedavg", "protocol.fraction=0.5"),
        ("fedcorr", "+protocol.fedcorr.T1=1"),
        ("fedcorr", "+protocol.fedcorr={T1:1,T2:1,T3:1}"),
        ("fedcorr_released", "+protocol.fedcorr.T1=1"),
        ("flr", "+protocol.flr.lam=1"),
        ("fedavg", "protocol.name=mine"),
    ],
)
def test_a_value_of_the_protocol_that_something_reads_is_taken(method: str, word: str) -> None:
    words = [f"method={method}", word]
    check_read(compose.load(words), words)


def test_a_value_of_the_protocol_is_read_while_one_of_its_readers_is_left() -> None:
    words = ["method=fedavg", "method/local=[truncated_gce,entropy_minimization]", "+protocol.reg_start_round=3"]
    for over in ("seed=2", "method.local.truncated_gce.start=1"):
        words.append(over)
        check_read(compose.load(words), words)
    words.append("method.local.entropy_minimization.start=1")
    with pytest.raises(UserError, match=r"protocol.reg_start_round=3: nothing in a run of method=fedavg takes"):
        check_read(compose.load(words), words)


def test_a_sweep_over_methods_may_say_what_one_of_them_reads(command: Command) -> None:
    words = [*without([]), "protocol=cifar10", "train.epochs=1", "rounds=1", "+protocol.fedprox.mu=0.5"]
    assert command("-m", *words, "method=fedavg,fedprox").code == 0
    refused(command(*words, "method=fedavg"))


# --------------------------------------------------------------------------------------------------------- machine


def test_more_threads_than_the_machine_has_are_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    answer = command(*FEDAVG, "threads=3")
    refused(answer)
    assert answer.err == "error: threads=3: this machine has 2 cores\n"
    assert command(*FEDAVG, "threads=2", "max_rounds=1").code == 0
    torch.set_num_threads(1)
    swept = command("-m", *FEDAVG, "threads=2,3")
    refused(swept)
    assert swept.err == "error: job 1: threads=3: this machine has 2 cores; no job has begun\n"


# ----------------------------------------------------------------------------------------------------------- slips

SLIPS: dict[str, tuple[list[str], list[str]]] = {
    "the term alone": (
        ["method=fedavg", "method/local=[cross_entropy,feddyn]"],
        ["method/local/feddyn (FedDyn) is meant for method/server=feddyn, which stage training does not have"],
    ),
    "the server's step alone": (
        ["method=fedavg", "method/server=feddyn", "method/aggregator=uniform_mean"],
        ["method/server (FedDyn) is meant for method/local=[...,feddyn], which stage training does not have"],
    ),
    "a mean by samples": (
        ["method=feddyn", "method/aggregator=mean"],
        ["method/server (FedDyn) is meant for method/aggregator=uniform_mean, which stage training does not have"],
    ),
    "a corrector that no stage uses": (
        ["method=fedcorr", "method/stages=single"],
        ["method.corrector (FedCorr) corrects no label: no stage has the key correct"],
    ),
    "two slips of one part": (
        ["method=fedavg", "method/server=feddyn"],
        ["meant for method/local=[...,feddyn] and method/aggregator=uniform_mean, which"],
    ),
    "the whole of it": (["method=feddyn"], []),
    "with the median": (["method=feddyn", "method/aggregator=median"], []),
}


@pytest.mark.parametrize("name", SLIPS)
def test_half_a_combination_runs_with_a_line_of_warning(name: str, command: Command) -> None:
    words, expected = SLIPS[name]
    answer = command(*without([]), *words, "rounds=1")
    assert answer.code == 0
    found = [line for line in answer.err.splitlines() if line.startswith("warning: ")]
    assert len(found) == len(expected)
    for line, part in zip(found, expected, strict=True):
        assert part in line


# --------------------------------------------------------------------------------------------------- small commands


def test_the_card_of_a_federation_goes_to_a_folder(said: Commands, monkeypatch: Any, tmp_path: Path) -> None:  # noqa: F811
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_file").write_text("kept")
    for word in ("output=a_file", "output=a_file/below", "output_root=a_file", f"output={LONG}", f"cache={LONG}"):
        answer = said(card, *TINY, word)
        refused(Said(answer.code, answer.out, answer.err))
        assert answer.err.startswith(f"error: {word.split('=')[0]}=")
    assert (tmp_path / "a_file").read_text() == "kept"


def test_the_card_with_a_folder_of_ones_own(said: Commands, monkeypatch: Any, tmp_path: Path) -> None:  # noqa: F811
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "my conf" / "noise"
    place.mkdir(parents=True)
    (place / "mine.yaml").write_text("defaults: [symmetric@_here_, _self_]\neta: 0.25\n")
    words = [*TINY, "method=fedavg", "noise=mine", "output=card"]
    assert "--config-dir FOLDER adds files of your own" in said(card, *words).err
    answer = said(card, *words, "--config-dir", place.parent)
    assert answer.code == 0, answer.err
    assert said(card, *words[:-2], "noise=symmetric", "noise.eta=0.25", "output=same").code == 0
    assert (tmp_path / "card" / "card.json").read_text() == (tmp_path / "same" / "card.json").read_text()


@pytest.mark.parametrize("words", [("--cfg", "job"), ("seed=1", "-m")])
def test_the_card_takes_no_other_options(words: tuple[str, ...], said: Commands) -> None:  # noqa: F811
    answer = said(card, *words)
    refused(Said(answer.code, answer.out, answer.err))
    assert answer.err.endswith("; see flnl card --help\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["--foo"], "unrecognized arguments: --foo; see flnl list --help"), (["--mark"], "arguments: --mark")],
)
def test_the_list_refuses_unknown_options(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["flnl list", *words])
    with pytest.raises(SystemExit) as left:
        list_main()
    answer = capsys.readouterr()
    refused(Said(int(str(left.value.code)), answer.out, answer.err))
    assert expected in answer.err


def test_the_list_tells_how_long_methods_train_under_a_protocol(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = groups()
    known["method"] = {name: known["method"][name] for name in ("fedavg", "fedes", "joint_opt")}
    monkeypatch.setattr("flnl.commands.list.groups", lambda places: known)
    monkeypatch.setattr("sys.argv", ["flnl list", "protocol=digits"])
    list_main()
    assert capsys.readouterr().out.splitlines()[1:] == [
        "fedavg  56 rounds  560 trainings of 5 epochs",
        "fedes  pretrain 1 round, usual 54 rounds  560 trainings of 5 epochs",
        "joint_opt  warmup 4 rounds, usual 13 rounds  170 trainings of 16.5 epochs",
    ]
    for words, what in ((["protocol=digit"], "did you mean digits?"), (["protocol=digits", "noise"], "give it alone")):
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        monkeypatch.setattr("sys.argv", ["flnl list", *words])
        with pytest.raises(SystemExit):
            list_main()
        assert what in capsys.readouterr().err


def test_a_path_that_the_system_refuses_is_named_as_it_was_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ends(error: Exception, *words: str) -> tuple[object, str]:
        def fail() -> None:
            raise error

        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        monkeypatch.setattr("sys.argv", ["program", *words])
        with pytest.raises(SystemExit) as left:
            guarded(fail, name="flnl card", overrides=False)
        return left.value.code, capsys.readouterr().err

    assert ends(OSError(errno.ENAMETOOLONG, "too long", "a/b"), "x", "out=a") == (2, "error: out=a: too long\n")
    assert ends(OSError(errno.ENOTDIR, "no folder", "a"), "a") == (2, "error: a: no folder\n")
    assert ends(ValueError("embedded null byte"), "b\0") == (2, "error: b\\x00: embedded null byte\n")
    for word in ("~nobody-has-this-name/runs", "--out=~nobody-has-this-name/runs"):
        with pytest.raises(RuntimeError) as unknown:
            Path("~nobody-has-this-name/runs").expanduser()
        assert ends(unknown.value, "x", word) == (2, f"error: {word}: {unknown.value}\n")
    for error in (OSError(errno.ENOSPC, "full", "a"), OSError(errno.ENOENT, "gone", "ab"), OSError("?"), ValueError()):
        code, line = ends(error, "a")
        assert code == 1
        assert line.startswith("error: flnl card failed: ")
    assert ends(OSError(errno.ENOENT, "gone", "ab"), "a")[0] == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("compare", [LONG]),
        ("compare", ["run", "--csv", LONG, "--figure", "none"]),
        ("compare", ["run", "--figure", f"{LONG}/a.png"]),
        ("figures", [LONG]),
        ("predict", [LONG, "x"]),
        ("predict", ["run", LONG]),
        ("tables", ["plan", LONG]),
        ("tables", ["render", "fedcorr_2", f"out={LONG}"]),
        ("tables", ["plan", "fedcorr_2", "seeds=99999999999"]),
        ("tables", ["plan", "fedcorr_2", f"seeds={DIGITS}"]),
        ("tables", ["plan", "fedcorr_2", f"scale={LONG}"]),
        ("list", [LONG]),
        # a record without its configuration
        ("compare", ["run", "--figure", "none"]),
        ("figures", ["run"]),
    ],
)
def test_a_small_command_refuses_in_one_line(
    name: str,
    words: list[str],
    said: Commands,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    import importlib

    monkeypatch.chdir(tmp_path)
    damaged(tmp_path / "run")
    module = importlib.import_module(f"flnl.commands.{name}")
    answer = said(module, *words)
    refused(Said(answer.code, answer.out, answer.err))
    assert any((word.partition("=")[2] or word)[:9] in answer.err for word in words)


def damaged(folder: Path) -> bytes:
    """A record that has lost its configuration."""
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps({"key": "k", "status": "finished", "metrics": {"last": 0.5}}))
    return (folder / "result.json").read_bytes()


@pytest.mark.parametrize("words", [["resume=run"], ["output=run"], ["output=run", "resume=true"]])
def test_a_record_without_its_configuration_is_not_gone_on_with(
    words: list[str], command: Command, tmp_path: Path
) -> None:
    before = damaged(tmp_path / "run")
    answer = command(*FEDAVG, *words)
    refused(answer)
    assert words[0] in answer.err
    assert "result.json" in answer.err
    assert (tmp_path / "run" / "result.json").read_bytes() == before


# ------------------------------------------------------------------------------------------------------- the check


def test_a_slot_without_kinds_admits_what_can_be_called_so() -> None:
    class Called:
        def __call__(self, one: int, two: int) -> None: ...

    class Silent: ...

    assert Slot(called_with=(2, 3)).admits(Called)
    assert not Slot(called_with=(1, 3)).admits(Called)
    assert not Slot(called_with=(2,)).admits(Silent)
    assert Slot((Silent,), called_with=(2,)).admits(type("Below", (Silent,), {}))


def test_a_group_that_is_not_there_is_refused_by_the_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["list", "a\nb"])
    with pytest.raises(SystemExit) as left:
        list_main()
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("error: a\\nb is not a group")


@pytest.mark.parametrize("command", ["flnl", "flnl list", "flnl tables plan", "flnl compare runs", "flnl -m seed=1,2"])
def test_a_working_folder_that_is_gone_is_named(command: str, tmp_path: Path) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    flnl = Path(sys.executable).with_name("flnl")
    line = f"cd {shlex.quote(str(place))}; rmdir {shlex.quote(str(place))}; {flnl}{command.removeprefix('flnl')}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: the working folder no longer exists: go to one that does, as by cd\n"


ENDS = {
    "an exit": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "a good exit": ("raise SystemExit(0)", "SystemExit: 0"),
    "another": ("class Odd(BaseException): pass\nraise Odd('so')", "Odd: so"),
    "an error": ("1 / 0", "ZeroDivisionError: division by zero"),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_module_that_ends_while_it_is_imported_is_named(
    case: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network's, and that of a part which a file of one's own names."""
    code, reason = ENDS[case]
    (tmp_path / "ending_nets.py").write_text(code)
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "model" / "mine.yaml").write_text("_target_: ending_nets.Net\n")
    monkeypatch.syspath_prepend(tmp_path)
    for words in (["model=module", "model.path=ending_nets.Net"], ["--config-dir", "own", "model=mine"]):
        found = command(*words)
        assert found.code == 2, found
        assert found.err.count("\n") == 1
        assert "ending_nets cannot be imported (" in found.err
        assert reason in found.err


def test_a_network_that_exits_while_it_is_made_is_named(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving_nets.py").write_text("def net():\n    raise SystemExit\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = command("model=module", "model.path=leaving_nets.net", "debug=fast")
    assert (found.code, found.err.count("model.path=leaving_nets.net cannot be made of (): SystemExit")) == (2, 1), (
        found
    )


NESTED = '{"a":' * 900 + "1" + "}" * 900


def test_a_record_that_is_nested_too_deeply_is_damaged(command: Command, tmp_path: Path) -> None:
    """It could be parsed, but what works on values recursively could not."""
    config = '{"key": "a", "status": "finished", "metrics": {}, "config": %s}'
    for deep in (NESTED, "[" * 5000 + "]" * 5000):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / "result.json").write_text(config % deep)
        assert RunRecord.read(tmp_path / "run") is None
        found = command(*FEDAVG, "resume=run")
        assert (found.code, found.err.count("\n")) == (2, 1), found
        assert "resume=run: no run is recorded there (result.json is missing or unreadable)" in found.err
        (tmp_path / "tuned.json").write_text(deep)
        with pytest.raises(UserError, match=r"no file of flnl tune .it is nested more than 100 levels deep"):
            Tuned.load(tmp_path / "tuned.json")
        assert lines.parsed(deep.encode()) is None


def test_what_a_record_needs_is_not_too_deep() -> None:
    for depth in (1, DEPTH):
        assert parse_json("[" * depth + "1" + "]" * depth) is not None
    with pytest.raises(ValueError, match="nested"):
        parse_json("[" * (DEPTH + 1) + "1" + "]" * (DEPTH + 1))


@pytest.mark.parametrize(
    "words",
    [
        ("dataset=arrays", "dataset.file=/dev/zero"),
        ("noise=matrix", "noise.path=/dev/zero"),
    ],
)
def test_a_device_that_never_ends_is_refused(words: tuple[str, ...], command: Command) -> None:
    found = command("method=fedavg", *words)
    assert (found.code, found.err.count("\n")) == (2, 1), found
    assert "/dev/zero" in found.err


@pytest.mark.parametrize("read", [Tuned.load, ModelFile.load, lambda path: pretrained.read(str(path), "weights", "")])
def test_a_file_of_ours_is_no_device(read: Callable[[Path], object]) -> None:
    with pytest.raises(UserError):
        read(Path("/dev/zero"))
