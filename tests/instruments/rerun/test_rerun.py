"""``flnl rerun``: a run is repeated from its folder, anywhere, and its bits are compared."""

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flnl import __main__ as program
from flnl.core.state import PASSES
from flnl.engine.model_file import ModelFile
from flnl.instruments.rerun.comparison import bits_agree
from flnl.record import lines
from flnl.record.run import RESULT
from tests.cli.conftest import Said
from tests.properties.runs import run
from tests.registry import BY_NAME, TINY

FEDAVG = [*TINY, "method=fedavg", "rounds=3", "noise.rho=0.8", "threads=1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, which no test changes."""
    return run(FEDAVG, tmp_path_factory.mktemp("made") / "run").folder


@pytest.fixture
def theirs(made: Path, tmp_path: Path) -> Path:
    """A copy of it, as a colleague has it."""
    return shutil.copytree(made, tmp_path / "theirs")


Command = Callable[..., Said]


def test_a_run_that_counted_no_passes_can_be_the_same(theirs: Path, command: Command) -> None:
    """An early version made it; passes of a run that has counted them are compared."""
    record = json.loads((theirs / RESULT).read_text())
    assert command("rerun", theirs, "output=first").code == 0
    wrong = {**record, "training_passes": record["training_passes"] + 1}
    (theirs / RESULT).write_text(json.dumps(wrong))
    assert "training_passes" in (said := command("rerun", theirs, "output=second")).out
    assert said.code == 1
    rows = [json.loads(line) for line in (theirs / lines.METRICS).read_text().splitlines()]
    (theirs / lines.METRICS).unlink()
    written = lines.Lines(theirs / lines.METRICS)
    for row in rows:
        written.write({key: value for key, value in row.items() if key not in PASSES})
    written.sync()
    early = {key: value for key, value in record.items() if key not in PASSES}
    early["lines"] |= lines.described((written,))
    (theirs / RESULT).write_text(json.dumps(early))
    assert command("rerun", theirs, "output=third").code == 0


def test_what_another_version_records_besides_is_no_difference(theirs: Path, command: Command) -> None:
    record = json.loads((theirs / RESULT).read_text())
    rows = [json.loads(line) for line in (theirs / lines.METRICS).read_text().splitlines()]
    (theirs / lines.METRICS).unlink()
    written = lines.Lines(theirs / lines.METRICS)
    for row in rows:
        written.write({key: value for key, value in row.items() if key != "accuracy_worst_client"})
    written.sync()
    record["lines"] |= lines.described((written,))
    del record["metrics"]["worst_client_mean_last_10"]
    (theirs / RESULT).write_text(json.dumps(record))
    assert "accuracy_worst_client None then" in (said := command("rerun", theirs, "output=first")).out
    assert said.code == 1, "the same version records the same"
    (theirs / RESULT).write_text(json.dumps({**record, "commit": "another"}))
    assert command("rerun", theirs, "output=second").code == 0


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """``flnl`` with these words, in this process and a folder of its own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def said(*words: object) -> Said:
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        monkeypatch.setattr(sys, "argv", ["flnl", *map(str, words)])
        out, err, code = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                program.main()
            except SystemExit as left:
                code = left.code if isinstance(left.code, int) else int(left.code is not None)
        return Said(code, out.getvalue(), err.getvalue())

    return said


def part(said: Said, name: str) -> str:
    """What is said of a part."""
    return next(line.removeprefix(name).strip() for line in said.out.splitlines() if line.startswith(f"{name} "))


def edit(folder: Path, change: Callable[[Any], object]) -> None:
    """Change a run's record."""
    record = json.loads((folder / RESULT).read_text())
    change(record)
    (folder / RESULT).write_text(json.dumps(record))


@pytest.mark.parametrize("name", ["fedcorr", "co_teaching"])
def test_a_moved_run_is_repeated_to_the_bit(name: str, command: Command, tmp_path: Path) -> None:
    made = run(BY_NAME[name].words, tmp_path / "first")
    moved = made.folder.rename(tmp_path / "moved")
    said = command("rerun", moved, "output=again")
    assert said.code == 0, said.err + said.out
    assert said.out.splitlines()[-1] == f"the bits of {moved} and again agree"
    for what in ("parameters", "metrics.jsonl", "corrections.jsonl", "labels.csv", "final numbers"):
        assert part(said, what).startswith("the same: "), said.out
    assert part(said, "metrics.jsonl") == f"the same: {len((moved / 'metrics.jsonl').read_text().splitlines())} lines"
    again = json.loads(Path("again", RESULT).read_text())
    for key in ("key", "identity", "federation", "given", "given_origin", "upper_bound"):
        assert again.get(key) == made.record.get(key), key
    assert ("given" in again) == (name == "co_teaching")
    assert (moved / "model.pt").read_bytes() == Path("again", "model.pt").read_bytes()


def test_where_the_arithmetic_is_another_the_bits_are_too(command: Command, theirs: Path) -> None:
    said = command("rerun", theirs, "output=again", "precision=64", "memory_format=channels_last")
    assert said.code == 1, said.err + said.out
    assert part(said, "parameters").startswith("different: 4 of 4 tensors of model.pt")
    assert part(said, "metrics.jsonl").startswith("different: first in round 1, line 1: ")
    assert "note: precision 32 then, 64 now" in said.out.splitlines()
    assert "note: memory_format contiguous then, channels_last now" in said.out.splitlines()
    assert said.out.splitlines()[-1] == f"the bits of {theirs} and again do not agree"


def test_what_differs_in_the_surroundings_is_said_also_where_the_bits_agree(command: Command, theirs: Path) -> None:
    def older(record: Any) -> None:
        record["versions"]["numpy"] = "1.0"
        record["machine"] = "a machine \x1b[2J, AVX2"
        record["earlier"] = [{**record, "threads": 2}]

    edit(theirs, older)
    said = command("rerun", theirs, "output=again")
    assert said.code == 0, said.err + said.out
    assert f"note: numpy 1.0 then, {np.__version__} now" in said.out
    assert "note: machine a machine \\x1b[2J, AVX2 then, " in said.out
    assert "note: before the run was resumed: threads 2 then, 1 now" in said.out


def test_a_changed_file_of_the_run_differs(command: Command, theirs: Path) -> None:
    labels = theirs / "labels.csv"
    text = labels.read_text()
    labels.write_text(text.replace("\n0,", "\n1,", 1))
    assert labels.read_text() != text
    said = command("rerun", theirs, "output=again")
    assert said.code == 1, said.err
    assert part(said, "labels.csv").startswith(f"different: {labels} is not what the run wrote")
    assert part(said, "parameters").startswith("the same: ")


def test_a_bit_of_the_parameters_is_a_difference(command: Command, theirs: Path) -> None:
    """Of a value, and of the sign of a zero."""
    model = ModelFile.load(theirs)
    names = list(model.weights)
    weights = {name: tensor.clone() for name, tensor in model.weights.items()}
    weights[names[1]].view(-1)[0] = torch.nextafter(weights[names[1]].view(-1)[0], torch.tensor(9.0))
    replace(model, weights=weights).save(theirs / "model.pt")
    said = command("rerun", theirs, "output=again")
    assert said.code == 1, said.err
    assert part(said, "parameters") == f"different: 1 of 4 tensors of model.pt, the first is {names[1]}"
    assert part(said, "metrics.jsonl").startswith("the same")
    zero = torch.zeros(2)
    assert bits_agree(zero, zero.clone())
    assert not bits_agree(zero, -zero)
    assert bits_agree(zero / 0, zero / 0)
    assert not bits_agree(zero, zero.double())
    assert not bits_agree(zero, None)


def test_the_first_round_that_differs_is_named(command: Command, theirs: Path) -> None:
    rows = [json.loads(line) for line in (theirs / "metrics.jsonl").read_text().splitlines()]
    number = next(i for i, row in enumerate(rows) if row["kind"] == "round" and row["round"] == 2)
    rows[number]["cohort"] = [0]
    (theirs / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    edit(theirs, lambda record: record.pop("lines"))  # as early versions wrote no checksums
    said = command("rerun", theirs, "output=again")
    assert said.code == 1, said.err
    assert part(said, "metrics.jsonl").startswith(f"different: first in round 2, line {number + 1}: cohort [0] then, [")
    assert "note: nothing that the record tells of the surroundings differs" in said.out.splitlines()


def test_a_run_with_faulty_and_shifted_clients_is_repeated(command: Command, tmp_path: Path) -> None:
    """From its record alone, like every other."""
    here = run([*TINY, "method=fedavg", "rounds=1", "fault.share=0.5", "shift.level=0.5"], tmp_path / "run").folder
    assert command("rerun", here, f"output={tmp_path / 'again'}").code == 0


def test_what_is_gone_from_the_run_is_no_agreement(command: Command, theirs: Path) -> None:
    """Only what neither of both has left need not be compared."""
    shutil.rmtree(theirs / "checkpoints")
    for name in ("model.pt", "metrics.jsonl", "labels.csv"):
        (theirs / name).unlink()
    said = command("rerun", theirs, "output=again")
    assert said.code == 1, said.err
    assert (
        f"note: no longer in {theirs}, so that nobody knows whether they agree: parameters, metrics.jsonl" in said.out
    )
    assert said.out.endswith(" agree as far as they are there\n")


def test_what_only_one_of_both_was_to_leave_is_not_gone(command: Command, tmp_path: Path) -> None:
    """Such as the products of a repetition, where the run was to have none."""
    made = run([*FEDAVG, "products=false"], tmp_path / "run")
    said = command("rerun", made.folder, "output=again", "products=true")
    assert said.code == 0, said.out
    assert part(said, "labels.csv").startswith("not compared")
    assert said.out.endswith(" agree\n")


@pytest.mark.parametrize(
    "words", [["resume=true"], ["output={run}", "resume=true"], ["resume={run}"], ["output=7"]], ids=" ".join
)
def test_a_run_is_not_compared_with_itself(words: list[str], command: Command, made: Path) -> None:
    """By its key, ``resume=true`` finds the run that is to be repeated."""
    said = command("rerun", made, f"output_root={made.parent}", *(word.format(run=made) for word in words))
    assert (said.code, said.out) == (2, ""), said.err
    assert "FOLDER" in said.err or words == ["output=7"]


def test_an_interrupted_repetition_goes_on(command: Command, made: Path) -> None:
    """As the command says that it prints; the folder of a repetition is another one than the run's."""
    run([*FEDAVG, "max_rounds=1"], Path("again"))
    assert command("rerun", made, "resume=again").code == 0
    assert command("rerun", made, "output=again", "resume=true").code == 0, "finished earlier"


def test_without_products_the_last_checkpoint_counts(command: Command, tmp_path: Path) -> None:
    made = run([*FEDAVG, "products=false"], tmp_path / "run")
    said = command("rerun", made.folder, "output=again")
    assert said.code == 0, said.err
    assert part(said, "parameters").startswith("the same: 4 tensors of the last checkpoint")
    assert part(said, "labels.csv").startswith("not compared: there is no ")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["train.lr=0.2"], "train.lr=0.2: the run has 0.05, and what a run is cannot be changed: leave it out"),
        (["seed=2"], "seed=2: what a run is cannot be changed: leave it out"),
        (["method=fedprox"], "method=fedprox: what a run is cannot be changed; "),
        (["max_rounds=2"], "max_rounds=2: what a run is cannot be changed: leave it out"),
        (["thread=2"], "thread is not a key of the configuration; did you mean threads?"),
        (["dataset.root=x"], "dataset.root=x: the run of "),
        (["threads=0"], "threads=0: must be greater than or equal to 1"),
        (["threads=1,2"], "threads=1,2: "),
        (["another"], "'another' is no override: write key=value"),
        (["--what"], "unrecognized arguments: --what"),
    ],
)
def test_what_the_run_is_stays(words: list[str], fault: str, command: Command, made: Path) -> None:
    said = command("rerun", made, "output=again", *words)
    assert (said.code, said.out) == (2, ""), said.err
    assert said.err.startswith(f"error: {fault}")
    assert said.err.count("\n") == 1
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            {"status": "interrupted", "rounds": 2},
            "the run is not finished (interrupted after round 2); finish it first",
        ),
        (
            {"key_format": 3, "commit": "abc"},
            "its record has keys of format 3, and this version repeats runs of format",
        ),
    ],
)
def test_a_run_that_cannot_be_repeated(change: Any, fault: str, command: Command, theirs: Path) -> None:
    edit(theirs, lambda record: record.update(change))
    said = command("rerun", theirs)
    assert (said.code, said.out) == (2, ""), said.err
    assert said.err.startswith(f"error: {theirs}: {fault}")
    assert said.err.count("\n") == 1


def test_folders_without_a_run(command: Command, theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    theirs.rename(sweep / "0")
    for folder, fault in (
        (tmp_path / "none", f"there is no folder {tmp_path / 'none'}; name the folder of a finished run"),
        (tmp_path / "empty", f"{tmp_path / 'empty'}: no run is recorded there"),
        (sweep, f"{sweep} holds several runs, and one is repeated at a time: name its folder, such as {sweep / '0'}"),
    ):
        said = command("rerun", folder)
        assert (said.code, said.out, said.err.count("\n")) == (2, "", 1), said.err
        assert said.err.startswith(f"error: {fault}")


def harm(mark: Path) -> dict[str, Any]:
    """A node that would make a file if it were built."""
    return {"_target_": "os.mkdir", "path": str(mark), "_args_": [str(mark)]}


@pytest.mark.parametrize(
    "key", ["model", "dataset", "partition", "noise", "method", "sampler", "optimizer", "executor"]
)
def test_a_senders_record_runs_no_code(key: str, command: Command, theirs: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    node = harm(mark)

    def attack(record: Any) -> None:
        config = record["config"]
        match key:
            case "sampler":
                config["method"]["sampler"] = node
            case "optimizer":
                config["train"]["optimizer"] = node
            case "executor":
                record["executor"] = {"name": "os.mkdir", "path": str(mark)}
            case _:
                config[key] = node

    edit(theirs, attack)
    said = command("rerun", theirs)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1), said.err
    assert not mark.exists()
    assert not list(Path().iterdir())


@pytest.mark.parametrize("key", ["device", "output", "cache", "logger", "protocol"])
def test_a_senders_record_reads_no_environment_and_chooses_no_place(
    key: str, command: Command, theirs: Path, tmp_path: Path
) -> None:
    """Interpolations would be resolved; where to write, and what else to build, is the reader's."""
    mark = tmp_path / "mark"
    said_by: Any = {
        "device": "${oc.env:HOME}",
        "output": str(mark),
        "cache": str(mark),
        "logger": {"evil": harm(mark)},
        "protocol": {"name": "${oc.env:HOME}"},
    }[key]
    edit(theirs, lambda record: record["config"].update({key: said_by}))
    said = command("rerun", theirs, "output=again")
    assert (said.code == 2) is (key == "device"), said.err
    assert not mark.exists()
    if key != "device":
        assert str(Path.home()) not in json.dumps(json.loads(Path("again", RESULT).read_text())["config"]["protocol"])


def test_a_class_that_is_not_here_is_named(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rerun_nets.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Sequential):\n"
        "    def __init__(self, shape, num_classes, width=4):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(shape[1] * shape[2], num_classes))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [word for word in FEDAVG if not word.startswith("model.hidden")]
    words += ["~model.hidden", "~model.dropout", "model._target_=rerun_nets.Net", "+model._partial_=true"]
    made = run(words, tmp_path / "run")
    sys.modules.pop("rerun_nets")
    refused = command("rerun", made.folder)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "names 'rerun_nets.Net', which no configuration file of that group has" in refused.err
    assert "rerun_nets" not in sys.modules
    (tmp_path / "presets" / "model").mkdir(parents=True)
    (tmp_path / "presets" / "model" / "lab.yaml").write_text("_target_: rerun_nets.Net\n_partial_: true\n")
    said = command("rerun", made.folder, "output=again", "--config-dir", tmp_path / "presets")
    assert said.code == 0, said.err + said.out


def images(root: Path, seed: int = 0) -> None:
    """Twelve training and six test images of two classes."""
    pixels = np.random.default_rng(seed)
    for split, count in (("train", 6), ("test", 3)):
        for name in ("cat", "dog"):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                values = pixels.integers(0, 256, (8, 8, 3), np.uint8)
                Image.fromarray(values).save(root / split / name / f"{i}.png")


OWN = (
    *("dataset=image_folder", "dataset.image_size=8", "model=mlp", "model.hidden=[4]", "partition=iid_uniform"),
    *("partition.num_clients=2", "method=fedavg", "rounds=1", "fraction=1.0", "train.batch_size=4", "train.epochs=1"),
    *("executor=sequential", "logger=csv", "figures=false"),
)


def test_data_are_found_elsewhere_and_must_be_the_runs(command: Command, tmp_path: Path) -> None:
    images(tmp_path / "data")
    made = run([*OWN, f"dataset.root={tmp_path / 'data'}"], tmp_path / "run")
    (tmp_path / "data").rename(tmp_path / "moved")
    lost = command("rerun", made.folder)
    assert (lost.code, lost.out, lost.err.count("\n")) == (2, "", 1), lost.err
    assert "dataset.root" in lost.err
    assert str(tmp_path / "data") in lost.err
    said = command("rerun", made.folder, "output=again", f"dataset.root={tmp_path / 'moved'}")
    assert said.code == 0, said.err + said.out
    assert part(said, "parameters").startswith("the same")
    images(tmp_path / "others", seed=1)
    other = command("rerun", made.folder, f"dataset.root={tmp_path / 'others'}")
    assert (other.code, other.out, other.err.count("\n")) == (2, "", 1), other.err
    assert "the federation drawn now differs from the run's" in other.err
    assert f"the data files of dataset.root={tmp_path / 'others'} are others than those of " in other.err
    assert sorted(path.name for path in Path().iterdir()) == ["again"]
    record = json.loads((made.folder / RESULT).read_text())
    of_then = {**record["identity"], "dataset.root": str(tmp_path / "data")}
    edit(made.folder, lambda held: held.update(key_format=4, key="0" * 64, identity=of_then))
    (made.folder / "model.pt").unlink()  # has another key
    of_fourth = command("rerun", made.folder, "output=fourth", f"dataset.root={tmp_path / 'moved'}")
    assert of_fourth.code == 0, of_fourth.err + of_fourth.out


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was started elsewhere, and names its images, clients and noise by relative paths."""
    there = tmp_path / "there"
    images(there / "data")
    (there / "clients.csv").write_text("client\n" + "\n".join("01" * 6) + "\n")
    np.save(there / "T.npy", np.array([[0.8, 0.2], [0.3, 0.7]]))
    monkeypatch.chdir(there)
    words = [word for word in OWN if not word.startswith(("partition", "rounds="))]
    words += ["dataset.root=data", "partition=file", "partition.path=clients.csv", "noise=matrix", "noise.path=T.npy"]
    return run([*words, "rounds=2"], there / "run").folder


def test_relative_paths_are_found_from_any_folder(started: Path, command: Command, tmp_path: Path) -> None:
    again = command("rerun", started, "output=again")
    assert again.code == 0, again.err + again.out
    audit = command("audit", started, "--out", "audit", "--corrections", "suggested")
    assert audit.code == 0, audit.err
    assert list(Path("audit").glob("**/*.html"))
    figures = command("figures", started, "--tsne")
    assert figures.code == 0, figures.err
    assert (started / "figures" / "features.png").exists()
    assert "cwd" not in " ".join(json.loads((started / RESULT).read_text())["identity"])


def test_data_that_have_moved_are_named_and_looked_at(started: Path, command: Command, tmp_path: Path) -> None:
    home = started.parent
    for name in ("data", "clients.csv", "T.npy"):
        (home / name).rename(tmp_path / name)
    for words in (("rerun", started), ("audit", started, "--out", "audit")):
        lost = command(*words)
        assert (lost.code, lost.out, lost.err.count("\n")) == (2, "", 1), lost.err
        assert "(if it lies elsewhere here, add " in lost.err
    here = ("dataset.root=../data", f"partition.path={tmp_path / 'clients.csv'}", f"noise.path='{tmp_path / 'T.npy'}'")
    audit = command("audit", started, "--out", "audit", *here, "--quiet")
    assert audit.code == 0, audit.err
    assert str(tmp_path) not in Path("audit", "audit.json").read_text()
    figures = command("figures", "--tsne", started, *here)
    assert figures.code == 0, figures.err
    assert (started / "figures" / "features.png").exists()
    assert command("rerun", started, "output=again", *here).code == 0
    images(tmp_path / "others", seed=1)
    other = command("audit", started, "--out", "other", *here[1:], f"dataset.root={tmp_path / 'others'}")
    assert other.code == 2
    assert "the federation drawn now differs from the run's" in other.err


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (
            ("train.lr=1",),
            "train.lr=1: should say where the run's data lie here, as in dataset.root=FOLDER; there are ",
        ),
        (("dataset.root=",), "dataset.root=: should say where the run's data lie here"),
        (("dataset.root=data",), "dataset.root=data: the run of "),
        (("other",), "other: should say where"),
    ],
)
def test_only_places_can_be_told_to_an_audit(words: tuple[str, ...], fault: str, command: Command, made: Path) -> None:
    said = command("audit", made, "--out", "audit", *words)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1), said.err
    assert said.err.startswith(f"error: {fault}")


def test_places_for_figures_need_features(command: Command, made: Path) -> None:
    assert command("figures", made, "dataset.root=data").code == 2
    assert command("figures", "--tsne", "dataset.root=data").code == 2
