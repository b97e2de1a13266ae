"""The rule by which an executor is chosen: what it looks at, what it says, what a run that goes on keeps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from flnl.config import compose
from flnl.config.check import check_config
from flnl.core.execution import described
from flnl.data.transforms import Transform
from flnl.engine.executors import auto, processes
from flnl.engine.executors.auto import Work, choose, multiply_adds
from flnl.engine.network import Network
from flnl.engine.placement import placement_for
from tests.properties.runs import Ran, assembled, run
from tests.registry import BY_NAME

MLP = Work("MLP", 4_810, 47_360, {"training": 10}, "cpu", 2, steps=350)
CNN = replace(MLP, model="CNN", parameters=6_090, multiply_adds=837_120)
LENET = replace(MLP, model="LeNet5", parameters=62_006, multiply_adds=6_512_640)
LARGE = replace(LENET, multiply_adds=50_000_001)
NO = "dropout draws clients' masks apart"
CASES: dict[str, tuple[Work, str, str]] = {
    "small": (MLP, "stacked", "short"),
    "longer rounds": (CNN, "divided in processes", "CNN's step is short and a round has many, so workers train stacks"),
    "many clients": (replace(MLP, cohorts={"training": 100}, steps=3500), "divided in processes", "short"),
    "longer rounds on one core": (replace(CNN, cores=1), "divided", "short"),
    "longer rounds beside other jobs": (replace(CNN, shared=True), "divided", "short"),
    "longer rounds that cannot be stacked": (replace(CNN, unstackable=NO), "processes", NO),
    "longer rounds of one block": (replace(CNN, cohorts={"training": 9}), "stacked", "short"),
    "longer rounds on a GPU": (replace(CNN, device="cuda"), "stacked", "one device"),
    "longer steps": (LENET, "small in processes", "LeNet5's step is longer, so workers train small stacks"),
    "longer steps on one core": (replace(LENET, cores=1), "small", "this process trains small stacks"),
    "longer steps beside other jobs": (replace(LENET, shared=True), "small", "this process trains small stacks"),
    "longer steps of few clients": (replace(LENET, cohorts={"training": 3}), "processes", "cohorts of 3"),
    "longer steps that cannot be stacked": (replace(LENET, unstackable=NO), "processes", NO),
    "larger batches": (replace(MLP, multiply_adds=2_500_001), "small in processes", "longer"),
    "large": (LARGE, "processes", "LeNet5's step is too long to stack on a CPU"),
    "many parameters": (replace(MLP, parameters=100_001), "processes", "too long"),
    "cannot be stacked": (replace(MLP, unstackable=NO), "processes", NO),
    "few clients": (replace(MLP, cohorts={"training": 3}), "processes", "cohorts of 3"),
    "one core": (replace(LARGE, cores=1), "sequential", "one core"),
    "one core, small": (replace(MLP, cores=1), "stacked", "short"),
    "one client": (replace(LARGE, cohorts={"training": 1}), "sequential", "one client"),
    "beside other jobs": (replace(LARGE, shared=True), "sequential", "jobs of the sweep"),
    "a chain first": (
        replace(LARGE, cohorts={"preprocess": 1, "usual": 10}),
        "processes",
        "preprocess runs one client at a time under any",
    ),
    "GPU": (replace(LENET, device="cuda"), "stacked", "one device"),
    "GPU, cannot be stacked": (replace(LENET, device="cuda", unstackable=NO), "sequential", NO),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rule(case: str) -> None:
    work, name, reason = CASES[case]
    assert choose(work)[0] == name
    assert reason in choose(work)[1]


ROUND = replace(MLP, multiply_adds=1_850_000, steps=100)  # 100 * (1.85 + 0.15) million
BORDERS: dict[str, tuple[Work, str, Work, str]] = {
    "parameters": (replace(MLP, parameters=100_000), "stacked", replace(MLP, parameters=100_001), "processes"),
    "multiply-adds of a short step": (
        replace(MLP, multiply_adds=2_500_000, steps=1),
        "stacked",
        replace(MLP, multiply_adds=2_500_001, steps=1),
        "small in processes",
    ),
    "multiply-adds of a longer step": (
        replace(LENET, multiply_adds=50_000_000),
        "small in processes",
        replace(LENET, multiply_adds=50_000_001),
        "processes",
    ),
    "cohort to stack": (replace(MLP, cohorts={"a": 3}), "processes", replace(MLP, cohorts={"a": 4}), "stacked"),
    "cohort to divide": (
        replace(ROUND, cohorts={"a": 9}),
        "stacked",
        replace(ROUND, cohorts={"a": 10}),
        "divided in processes",
    ),
    "multiply-adds of a round": (
        replace(MLP, multiply_adds=2_097_191, steps=89),  # 89 * (2.097191 + 0.15) million, one fewer
        "stacked",
        ROUND,
        "divided in processes",
    ),
    "cores to divide": (replace(ROUND, cores=1), "divided", replace(ROUND, cores=2), "divided in processes"),
    "cores": (replace(LARGE, cores=1), "sequential", replace(LARGE, cores=2), "processes"),
    "cohort": (replace(LARGE, cohorts={"a": 1}), "sequential", replace(LARGE, cohorts={"a": 2}), "processes"),
}
"""On either side of each of the rule's borders, by one."""


@pytest.mark.parametrize("border", BORDERS)
def test_the_rules_borders(border: str) -> None:
    below, one, above, other = BORDERS[border]
    assert (choose(below)[0], choose(above)[0]) == (one, other)


MODELS = {
    "mlp": ((1, 8, 8), 4_810, 64 * 64 + 64 * 10),
    "cnn": ((1, 8, 8), 6_090, 8 * 8 * 16 * 9 + 4 * 4 * 32 * 16 * 9 + 128 * 10),
    "lenet5": ((3, 32, 32), 62_006, 28 * 28 * 6 * 75 + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 840),
}


@pytest.mark.parametrize("name", MODELS)
def test_multiply_adds_are_counted(name: str) -> None:
    shape, parameters, expected = MODELS[name]
    module = compose.build(compose.load([f"model={name}"]).model)(shape, 10)
    transform = Transform(size=shape[1:], mean=(0.0,) * shape[0], std=(1.0,) * shape[0])
    assert multiply_adds(Network(module, transform, 10, placement_for("cpu", 32))) == expected
    assert sum(p.numel() for p in module.parameters()) == parameters
    small = parameters <= auto.STACKED_PARAMETERS and expected * 10 <= auto.STACKED_MULTIPLY_ADDS
    assert small == (name != "lenet5"), "ten in one stack, LeNet-5 is slower and the others faster"
    assert expected * 64 <= auto.SMALL_STACK_MULTIPLY_ADDS, "in small stacks all are faster, with batches of 64, too"


WORDS = [word for word in BY_NAME["fedavg"].words if not word.startswith("executor=")]


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "usable_cores", lambda: 2)
    monkeypatch.setattr(processes, "usable_cores", lambda: 2)
    monkeypatch.setattr(auto, "unstackable", lambda *given: NO)


DIGITS = {
    "fraction=0.25": "stacked",
    "model=mlp": "stacked",
    "model=cnn": "divided in processes",
    "train.batch_size=70": "small in processes",
}


@pytest.mark.parametrize("word", DIGITS)
def test_the_digits_that_workers_stack(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers stack the default network on ten clients a round, but not on five, nor the default MLP.

    Large batches are trained in small stacks. On one core the bits are the same.
    """
    executors, chosen = {}, list[str]()

    def noted(work: Work) -> tuple[auto.Choice, str]:
        chosen.append(choose(work)[0])
        return choose(work)

    monkeypatch.setattr(auto, "unstackable", lambda *given: None)
    monkeypatch.setattr(auto, "choose", noted)
    for cores in (2, 1):
        monkeypatch.setattr(auto, "usable_cores", lambda cores=cores: cores)
        with assembled(["method=fedavg", "wandb.mode=disabled", word], tmp_path / str(cores)) as parts:
            executors[cores] = described(parts.executor)
    assert chosen == [DIGITS[word], DIGITS[word].removesuffix(" in processes")]
    here = {name: value for name, value in executors[2].items() if name != "workers"}
    assert executors[1] == here.get("inner", here)


def test_the_steps_of_a_round_are_counted(tmp_path: Path) -> None:
    """Six clients a round, batches of 7, 2 epochs: 6 steps of 21 samples, 8 of 22; or as many as ``train.steps``.

    Their mean number of steps is rounded up: 7 of the first eight clients, 8 of the others.
    """
    for folder, more, expected in (("epochs", (), (6 * 7, 6 * 8)), ("steps", ("train.steps=9",), (6 * 9, 6 * 9))):
        with assembled(WORDS, tmp_path / folder, *more) as parts:
            cfg = compose.load([*WORDS, *more])
            for sizes, steps in zip(([21, 22] * 4, [21, *[22] * 7]), expected, strict=True):
                assert Work.of(cfg, parts.method, compose.training(cfg), parts.evaluator.network, sizes).steps == steps


PROCESSES = {"name": "processes", "workers": 2, "start": "fork", "inner": {"name": "sequential"}}


def executor_of(ran: Ran) -> Any:
    return ran.record["executor"]


def test_it_is_the_default_and_says_what_it_chose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(WORDS, tmp_path / "run")
    assert executor_of(found) == PROCESSES
    assert f"executor: processes, 2 workers: {NO}\n" in capsys.readouterr().err
    words = BY_NAME["fedcorr"].words
    with assembled([w for w in words if not w.startswith("executor=")], tmp_path / "fedcorr"):
        assert "; preprocess runs one client at a time under any\n" in capsys.readouterr().err


RESIDUAL = ("model=resnet18", "dataset.train_size=60", "dataset.test_size=20", "rounds=1")


@pytest.mark.parametrize(
    ("flags", "words", "advised"),
    [
        ("fpu amx_bf16 amx_tile", RESIDUAL, True),
        ("fpu avx512_bf16", RESIDUAL, False),  # was not measured
        ("fpu amx_bf16", (*RESIDUAL, "precision=bf16"), False),
        ("fpu amx_bf16", (*RESIDUAL, "executor=sequential"), False),  # it was chosen, and advises nothing
        ("fpu amx_bf16", ("model=cnn",), False),  # its steps are short
        ("fpu amx_bf16", ("model=mlp", "model.hidden=[8000]", "train.batch_size=128"), False),  # no convolutions
    ],
)
def test_bf16_is_advised_where_it_was_measured(
    flags: str,
    words: tuple[str, ...],
    advised: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    monkeypatch.setattr("flnl.console.cores.CPUINFO", tmp_path / "cpuinfo")
    with assembled(("method=fedavg", "dataset=digits", "executor=auto", *words), tmp_path / "run"):
        assert ("precision=bf16 has trained a residual network 1.9 times as fast" in capsys.readouterr().err) == advised


def test_debugging_stays_in_one_process(tmp_path: Path) -> None:
    assert executor_of(run(["debug=fast", "method=fedavg", "figures=false"], tmp_path / "run")) == {
        "name": "sequential"
    }


def test_a_run_that_goes_on_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the machine has by then, and whichever process saved last; unless another is named."""
    run(WORDS, tmp_path / "run", "max_rounds=1")
    monkeypatch.setattr(auto, "usable_cores", lambda: 1)
    monkeypatch.setattr(processes, "usable_cores", lambda: 1)
    capsys.readouterr()
    second = run(WORDS, tmp_path / "run", "max_rounds=2", "resume=true")
    said = capsys.readouterr().err
    assert executor_of(second) == PROCESSES
    assert "executor: processes, 2 workers: as the run began\n" in said
    assert "note:" not in said
    third = run(WORDS, tmp_path / "run", "max_rounds=3", "resume=true", "executor=sequential")
    said = capsys.readouterr().err
    assert executor_of(third) == {"name": "sequential"}
    assert "executor: sequential: as asked\n" in said
    assert "note:" not in said, "the bits are the same"
    fourth = run(WORDS, tmp_path / "run", "resume=true")
    assert executor_of(fourth) == {"name": "sequential"}
    assert fourth.record["status"] == "finished"
    unbroken = run(WORDS, tmp_path / "unbroken", "executor=sequential")
    assert fourth.lines == unbroken.lines


STACKED = {
    **{"name": "stacked", "stack": 20, "memory": 1.0, "graphs": "auto", "split": 1},
    "memory_format": "contiguous",
}
IN_WORKERS = {"name": "processes", "workers": 4, "start": "spawn", "inner": STACKED}
ON_RAY = {"name": "ray", "workers": 2, "num_cpus": 1, "num_gpus": 0, "address": "auto", "inner": STACKED}


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (PROCESSES, {"name": "sequential"}, []),
        ("processes", "sequential", []),
        ({"name": "processes", "workers": 2, "start": "fork"}, {**PROCESSES, "workers": 8, "start": "spawn"}, []),
        (PROCESSES, {"name": "sites", "allow": ["LabelCounts"]}, []),
        ({"name": "sites", "allow": []}, {"name": "sites", "allow": ["LabelCounts"]}, []),
        (STACKED, IN_WORKERS, []),
        (ON_RAY, IN_WORKERS, []),
        (ON_RAY, {**ON_RAY, "num_cpus": 2, "address": None}, []),
        ({"name": "stacked", "stack": 20, "memory": 1.0}, STACKED, []),
        ("stacked", STACKED, []),
        (STACKED, {**STACKED, "stack": 10}, ["executor's stack 20 then, 10 now"]),
        (IN_WORKERS, {**STACKED, "split": 2}, ["executor's split 1 then, 2 now"]),
        (
            STACKED,
            {**ON_RAY, "inner": {**STACKED, "memory": 2.0, "memory_format": "channels_last"}},
            ["executor's memory 1.0 then, 2.0 now", "executor's memory_format contiguous then, channels_last now"],
        ),
        (STACKED, {**STACKED, "graphs": "branches"}, ["executor's graphs stacks then, branches now"]),
        ({**STACKED, "graphs": "branches"}, {**STACKED, "graphs": "branches", "stack": 10, "memory": 2.0}, []),
        ("stacked", PROCESSES, ["executor stacked then, sequential now"]),
        (PROCESSES, IN_WORKERS, ["executor sequential then, stacked now"]),
    ],
)
def test_what_changes_last_bits_is_said(then: Any, now: Any, said: list[str]) -> None:
    """How clients are stacked; who runs them changes none. Early records lack values."""
    assert sorted(auto.changed(then, now)) == said


def test_clients_are_where_the_workers_have_gpus() -> None:
    assert auto.device_of_clients("sequential", "cpu") == auto.device_of_clients(ON_RAY, "cpu") == "cpu"
    assert auto.device_of_clients({**ON_RAY, "num_gpus": 0.5}, "cpu") == "cuda"
    assert auto.device_of_clients("sequential", "cuda:1") == auto.device_of_clients("sequential", "cuda:0") == "cuda"


def test_a_run_that_goes_on_in_other_stacks_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, "executor=stacked"]
    run(words, tmp_path / "run", "max_rounds=1")
    run(words, tmp_path / "run", "max_rounds=2", "resume=true", "executor.stack=5")
    assert "note: executor's stack 20 then, 5 now; results may differ" in capsys.readouterr().err


def test_workers_start_as_is_safe_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as when the run began: it forked on one thread, which hangs with more and is refused on a GPU."""
    assert executor_of(run(WORDS, tmp_path / "run", "max_rounds=1")) == PROCESSES
    monkeypatch.setattr(processes, "best_start", lambda: "spawn")
    for asked, start in (([], "spawn"), (["executor.processes.start=fork"], "fork")):
        with assembled(WORDS, tmp_path / "run", "resume=true", *asked) as parts:
            assert described(parts.executor) == {**PROCESSES, "start": start}


@pytest.mark.parametrize(("begun", "kept"), [("contiguous", "contiguous"), ("auto", "channels_last")])
def test_stacks_keep_the_layout_that_they_began_with(begun: str, kept: str, tmp_path: Path) -> None:
    words = [*WORDS, "executor=stacked"]
    run(words, tmp_path / "run", "max_rounds=1", f"executor.memory_format={begun}")
    assert executor_of(run(words, tmp_path / "run", "resume=true"))["memory_format"] == kept


def test_stacks_of_early_records_are_contiguous() -> None:
    node = {"_target_": "x", "memory_format": "auto"}
    assert auto._as_begun(node, {"name": "stacked", "stack": 20})["memory_format"] == "contiguous"
    for earlier in (None, "sequential", {"name": "sequential"}):
        assert auto._as_begun(node, earlier) == node


@pytest.mark.parametrize("inner", [None, "processes"])
@pytest.mark.parametrize(("graphs", "kept"), [("auto", "stacks"), ("branches", "branches"), (False, False)])
def test_graphs_are_those_of_the_record(graphs: Any, kept: Any, inner: str | None) -> None:
    """No record says auto of a GPU any more; in early ones it is a recorded stack."""
    record: dict[str, Any] = {**STACKED, "graphs": graphs}
    if inner:
        record = {**IN_WORKERS, "inner": record}
    assert auto.as_recorded(record, {"processes": {}}, "result.json").get("inner", {"graphs": kept})["graphs"] == kept
    node = auto._as_begun({"_target_": "x", "graphs": "auto", "memory_format": "auto"}, record)
    assert node["graphs"] == ("auto" if inner else kept)
    assert auto._node(auto._record(record)).get("inner", {"graphs": kept})["graphs"] == kept


@pytest.mark.parametrize("workers", [False, True])
def test_overrides_choose_the_executor_of_a_record(workers: bool) -> None:
    """All that last bits depend on: what workers ran, with its stacks, not that workers ran it."""
    stacked = {"name": "stacked", "stack": 25, "memory": 1.0, "graphs": "auto", "split": 2, "memory_format": "auto"}
    record = {"name": "processes", "workers": 3, "start": "fork", "inner": stacked} if workers else stacked
    chosen: Any = OmegaConf.to_container(compose.load(auto.overrides_of(record)).executor, resolve=True)
    inner = auto.as_recorded(stacked, {}, "result.json")
    assert {**inner, "_partial_": True} == chosen
    assert auto.overrides_of("sequential") == ["executor=sequential"]


def test_branches_on_a_cpu_are_said_to_be_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = run([*WORDS, "executor=stacked", "executor.graphs=branches"], tmp_path / "run", "max_rounds=1")
    assert executor_of(ran)["graphs"] == "auto"
    assert "executor.graphs=branches is for a GPU: nothing is recorded here" in capsys.readouterr().err


REASON = auto.unstackable


def test_a_run_says_at_its_start_that_a_stage_does_not_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the reason, before its first round, whichever stage it is."""
    monkeypatch.setattr(auto, "unstackable", REASON)
    words = [*BY_NAME["dividemix"].words, "executor=stacked"]
    with assembled(words, tmp_path / "run"):
        said = " ".join(capsys.readouterr().err.split())
    assert "clients run one by one: CoDivide has several phases in an epoch" in said
    with assembled(WORDS, tmp_path / "other", "executor=stacked"):
        assert "one by one" not in capsys.readouterr().err


def test_the_state_says_who_computed_it(tmp_path: Path) -> None:
    """A process that was killed before it saved anything leaves its name in the record, not in the checkpoint."""
    from flnl.run import checkpoint

    run(WORDS, tmp_path / "run", "max_rounds=1")
    found = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert found.executor == PROCESSES


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("executor.workers=0", r"executor\.workers=0: must be greater than or equal to 1"),
        ("executor.workers=1.5", r"executor\.workers=1\.5"),
        ("executor.start=forkserver", r"executor\.start=forkserver: must be 'auto', 'fork' or 'spawn'"),
    ],
)
def test_values_out_of_range_are_refused(word: str, said: str) -> None:
    from flnl.core.errors import UserError

    with pytest.raises(UserError, match=said):
        check_config(compose.load(["executor=processes", word]))


def test_jobs_that_run_at_once_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    for mode, launcher, shared in (
        ("MULTIRUN", "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher", True),
        ("MULTIRUN", "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher", True),
        ("MULTIRUN", "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher", False),
        ("MULTIRUN", "hydra._internal.core_plugins.basic_launcher.BasicLauncher", False),
        ("RUN", "hydra._internal.core_plugins.basic_launcher.BasicLauncher", False),
    ):
        monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
        chosen = OmegaConf.create({"mode": mode, "launcher": {"_target_": launcher}})
        with monkeypatch.context() as patch:
            patch.setattr(chosen, "mode", RunMode[mode])
            patch.setattr(HydraConfig, "get", lambda chosen=chosen: chosen)
            assert auto._beside_others() == shared
