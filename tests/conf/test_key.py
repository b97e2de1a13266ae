"""The run's key: what makes a run what it is, and nothing of how it is run or where it writes.

That another process has the same key is in ``tests/cli/test_record.py``, where a run is repeated from the command line.
"""

import copy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from annotated_types import Ge

from flnl.config import compose, identity, schema
from flnl.config.short_keys import declared
from flnl.core.method import assemble
from flnl.core.ranges import Neutral
from flnl.record.run import RunRecord


def key(*words: str) -> str:
    return identity.run_key(compose.resolved(compose.load(words)))


@pytest.fixture(scope="module")
def default() -> str:
    return key()


EXCLUDED = (
    "output=/somewhere/else",
    "output_root=elsewhere",
    "cache=/somewhere",
    "device=cpu",
    "device=cuda",
    "device=cuda:1",
    "threads=2",
    "checkpoint.every=3",
    "checkpoint.keep=5",
    "max_rounds=7",
    "resume=true",
    "resume=/some/run",
    "products=false",
    "figures=false",
    "wandb.mode=disabled",
    "wandb.project=other",
    "wandb.tags=[a,b]",
    "executor=sequential",
    "executor=processes",
    "executor=ray",
    "eval.memorization=true",
    "audit.record=false",
    "audit.window=0.25",
)
SAME = (
    "seed=1",
    "data_seed=1",
    "noise.rho=0.60",
    "dataset=digits",
    "method=fedcorr",
    "partition.num_clients=20",
    "train.lr=5e-2",
    "method.T1=8",
    "eval.validation=0",
    "method.beta=5",
)
"""The defaults, said aloud or written in another way."""
INCLUDED = (
    "eval.benchmark=0.2",
    "seed=2",
    "data_seed=2",
    "noise.rho=0.5",
    "noise.tau=0.4",
    "noise=none",
    "noise=flr",
    "partition=iid_class",
    "partition.num_clients=10",
    "model=mlp",
    "model.dropout=0.1",
    "method=fedavg",
    "method=fedcorr_released",
    "method.theta=0.6",
    "method.T3=21",
    "method.mixup=false",
    "method/aggregator=uniform_mean",
    "method/aggregator=median",
    "method/sampler=power_of_choice",
    "method/server=scaled",
    "method/local=[label_smoothing]",
    "method/local=[cross_entropy,fedprox]",
    "train.lr=0.06",
    "train.epochs=4",
    "train.momentum=0.4",
    "fraction=0.4",
    "precision=64",
    "precision=bf16",
    "eval.every=3",
    "eval.validation=0.1",
    "on_nonfinite=stop",
    "dataset.train_size=1000",
    "dataset.test_size=100",
)


@pytest.mark.parametrize("word", [*EXCLUDED, *SAME])
def test_the_key_stays(word: str, default: str) -> None:
    assert key(word) == default


def test_the_key_changes_with_whatever_changes_the_numbers(default: str) -> None:
    keys = {word: key(word) for word in INCLUDED}
    assert default not in keys.values()
    assert len(set(keys.values())) == len(keys)


SECTIONS = ("protocol", "executor", "logger", "wandb", "audit", "checkpoint")
"""Whose values may all differ between runs that are the same."""
KEYS = frozenset(
    (
        *(
            "max_rounds",
            "resume",
            "output",
            "output_root",
            "cache",
            "device",
            "threads",
            "reproducible",
            "memory_format",
        ),
        *("client_memory", "products", "figures", "eval.memorization", "eval.cohort", "dataset.download"),
        *("dataset.mirror", "dataset.timeout", "dataset.threads", "dataset.in_memory", "dataset.memory_limit"),
        *("dataset.fingerprint", "dataset.cache", "dataset.noise_rate"),
        *("dataset.root", "dataset.file", "noise.root"),
    )
)
"""The keys that may, one by one. Every other key counts."""
ANY_DATA = ("method=fedavg", "model=mlp", "partition=dirichlet", "noise=localized", "executor=sequential")
WALKED: tuple[tuple[str, ...], ...] = (
    ("dataset=digits", "method=t_revision", "train/optimizer=adam", "model=resnet8"),
    ("dataset=cifar10", "method=fedavg", "noise=instance", "partition=quantity_skew"),
    ("dataset=cifar10", "dataset.verify=false", "noise=human", "method=fedes", "model=lenet5"),
    ("dataset=arrays", *ANY_DATA),
    ("dataset=image_folder", "dataset.root=/a", *ANY_DATA),
    ("dataset=clothing1m", "dataset.root=/a", *ANY_DATA),
)


def leaves(node: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(node, dict) or not node:
        yield place, node
        return
    for name, value in node.items():
        yield from leaves(value, (*place, name))


def another(value: Any) -> Any:
    """A value of the same kind, and another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    return [*value, 1] if isinstance(value, list) else 1


def with_another(plain: dict[str, Any], place: Sequence[str], value: Any) -> dict[str, Any]:
    first, *rest = place
    return plain | {first: with_another(plain[first], rest, value) if rest else another(value)}


@pytest.mark.parametrize("words", WALKED, ids=lambda words: " ".join(words))
def test_every_key_that_is_not_excepted_counts(words: tuple[str, ...]) -> None:
    """A key more among the exceptions would have a run taken for another one, and gone on with."""
    cfg = compose.load(words)
    plain = compose.resolved(cfg)
    short = {f"method.{name}" for name in ("like", *declared(cfg))}  # count where they are read
    default, same = identity.run_key(plain), set[str]()
    for at, value in leaves(plain):
        name = ".".join(at)
        if identity.run_key(with_another(plain, at, value)) == default and at[0] not in SECTIONS:
            same.add(name)
    every = {".".join(at) for at, _ in leaves(plain)}
    assert same == (KEYS | short) & every
    assert len(every - same) > 50


@pytest.mark.parametrize("word", ["dataset.download=false", "dataset.mirror=/a/folder", "dataset.timeout=5"])
def test_how_data_are_fetched_is_not_in_the_key(word: str) -> None:
    assert key("dataset=cifar10", word) == key("dataset=cifar10")


def test_the_order_of_overrides_does_not_matter() -> None:
    words = ["noise.rho=0.4", "method=fedprox", "seed=3", "model=mlp"]
    assert key(*words) == key(*reversed(words))


def test_whole_numbers_have_one_form(default: str) -> None:
    assert key("noise.rho=1") == key("noise.rho=1.0") != default
    assert key("fraction=1") == key("fraction=1.0")


def test_the_folder_of_the_federations_is_not_in_the_key(monkeypatch: pytest.MonkeyPatch, default: str) -> None:
    monkeypatch.setenv("FLNL_CACHE", "/another/place")
    assert key() == default


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        (["noise.rho=0.4"], ["noise.rho=0.6"], {"noise.rho"}),
        (["seed=2"], ["seed=1"], {"seed", "data_seed"}),
        (["noise.rho=1"], ["noise.rho=1.0"], set()),
        (["threads=2", "output=a", "max_rounds=3"], [], set()),
        (["train.lr=0.1", "train.epochs=2"], [], {"train.lr", "train.epochs"}),
    ],
)
def test_differences_name_the_keys_that_differ(one: Sequence[str], other: Sequence[str], named: set[str]) -> None:
    ours, theirs = (compose.resolved(compose.load(words)) for words in (one, other))
    assert set(identity.differences(ours, theirs)) == named


def test_a_record_of_the_first_format_has_its_key_worked_out_again() -> None:
    """From its configuration, which may lack fields that came later and may name classes where they were then."""
    plain = compose.resolved(compose.load(["method=fedes"]))
    older = copy.deepcopy(plain)
    del older["eval"]["benchmark"]
    for later in ("train_sample", "test_writers", "groups"):
        del older["dataset"][later]
    older["model"]["_target_"] = "flnl.elsewhere.long_ago.CNN"
    assert RunRecord.of({"key": "of the first format", "config": older}).run_key == identity.run_key(plain)
    older["model"]["_target_"] = "lab.nets.CNN"
    assert RunRecord.of({"key": "of the first format", "config": older}).run_key != identity.run_key(plain)
    written = {"key": "as written", "key_format": identity.FORMAT, "config": {}}
    assert RunRecord.of(written).run_key == "as written"


def of_stages(*names: str) -> dict[str, Any]:
    """A configuration whose stages follow each other like this; all are alike but for their names."""
    plain = compose.resolved(compose.load(["method=fedavg"]))
    return {**plain, "method": {**plain["method"], "stages": {name: {"rounds": 2} for name in names}}}


def test_the_order_of_stages_is_in_the_key() -> None:
    one, other = of_stages("slow", "fast"), of_stages("fast", "slow")
    assert identity.run_key(one) != identity.run_key(other)
    assert identity.differences(one, other) == {"method.stages": (["slow", "fast"], ["fast", "slow"])}
    assert identity.run_key(of_stages("usual", "warmup")) != identity.run_key(of_stages("warmup", "usual"))


@pytest.mark.parametrize("method", compose.options("method"))
def test_methods_keep_the_keys_that_they_had_without_an_order(method: str) -> None:
    plain = compose.resolved(compose.load([f"method={method}", "noise=symmetric"]))
    assert "method.stages" not in identity.identity(plain)


def test_a_record_of_the_third_format_has_the_order_of_its_stages_added() -> None:
    plain = of_stages("slow", "fast")
    without = {key: value for key, value in identity.identity(plain).items() if key != "method.stages"}
    record = {"key": "of the third format", "key_format": 3, "identity": without, "config": plain}
    assert RunRecord.of(record).run_key == identity.run_key(plain)


CIFAR = ("dataset=cifar10", "model=lenet5", "noise=human")


HERE: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("dataset=image_folder", "noise=none"), ("dataset.root=/b",)),
    (("dataset=image_folder", "noise=none", "dataset.labels=l.csv"), ("dataset.labels=/b/l.csv",)),
    (("dataset=arrays", "noise=none"), ("dataset.root=relative", "dataset.file=other.npz")),
    (("dataset=clothing1m", "noise=none"), ("dataset.root=/b",)),
    ((*CIFAR, "dataset.verify=false"), ("dataset.root=/b",)),
    (CIFAR, ("noise.root=/b",)),
    (("dataset=mnist", "noise=matrix", "noise.path=T.npy"), ("noise.path=/b/T.npy",)),
    (("dataset=mnist", "partition=file", "partition.path=c.csv"), ("partition.path=/b/c.csv",)),
)


@pytest.mark.parametrize(("words", "elsewhere"), HERE, ids=lambda words: " ".join(words))
def test_a_run_is_the_same_wherever_its_data_lie(words: tuple[str, ...], elsewhere: tuple[str, ...]) -> None:
    """The folder that a table or ``flnl tune`` names after it is not: two data sets of one table may differ in it."""
    plain, other = (compose.resolved(compose.load(one)) for one in (words, (*words, *elsewhere)))
    assert identity.run_key(plain) == identity.run_key(other)
    assert identity.placed_key(plain) != identity.placed_key(other)
    assert identity.differences(plain, other) == {}


def test_that_there_is_no_file_counts() -> None:
    labelled = ("dataset=image_folder", "noise=none", "dataset.labels=l.csv")
    assert key(*labelled) != key(*labelled[:2])
    assert key("dataset=mnist", "noise=none", "partition=file") != key(
        "dataset=mnist", "noise=none", "partition=file", "partition.path=c.csv"
    )


def test_published_files_need_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """So folders of runs, and the records of this project, are named by their keys."""
    here = key(*CIFAR)
    monkeypatch.setenv("FLNL_DATA", "elsewhere")
    plain = compose.resolved(compose.load((*CIFAR, "dataset.root=elsewhere")))
    assert identity.placed_key(plain) == identity.run_key(plain) == here
    assert identity.places(plain) == {}
    assert key("dataset=cifar100", *CIFAR[1:], "noise.source=fine") != here


FOURTH = {
    ("dataset=image_folder", "dataset.root=/a"): "7c4ce614ae4574a76af48a602057533ecf836ad636b241e6bf9161d0df686eda",
    (
        "dataset=arrays",
        "dataset.root=/a",
        "dataset.labels=l.csv",
        "dataset.truth=none",
    ): "7e2fe953109406e8a899eabb86e442aad2c55594b59b8bbf24c1cb3c5b9ac0f3",
}
"""Keys of the fourth format, which had where data lie."""


@pytest.mark.parametrize("words", FOURTH, ids=lambda words: words[0])
def test_a_record_of_the_fourth_format_has_its_key_worked_out_again(words: tuple[str, ...]) -> None:
    plain = compose.resolved(compose.load((*words, "noise=none", "method=fedavg")))
    older = {**identity.identity(plain), **identity.places(plain)}
    record = {"key": FOURTH[words], "key_format": 4, "identity": older, "config": plain}
    assert RunRecord.of(record).run_key == identity.run_key(plain)
    assert RunRecord.of(record).defining == identity.identity(plain)
    assert identity.placed_key(plain) == FOURTH[words], "its folder is found"
    assert RunRecord.of({**record, "identity": {**older, "seed": 2}}).run_key != identity.run_key(plain)


def test_contents_tell_runs_apart_or_else_the_place_does() -> None:
    words = ("dataset=arrays", "dataset.root=/a", "partition=file", "partition.path=c.csv", "noise=none")
    config = compose.resolved(compose.load(words))

    def told(raw: dict[str, Any]) -> dict[str, str]:
        return RunRecord.of(raw).told_by

    assert told({"config": config, "data": "aa", "contents": {"partition": "bb", "noise": "cc"}}) == {
        "dataset.contents": "aa",
        "partition.contents": "bb",
    }
    assert told({"config": config, "data": "aa"}) == {"dataset.contents": "aa", "partition.path": "c.csv"}
    file = {"dataset.root": "/a", "dataset.file": "arrays.npz"}
    assert told({"config": config, "data": ""}) == {**file, "partition.path": "c.csv"}
    assert told({"config": compose.resolved(compose.load(("dataset=mnist",))), "data": "aa"}) == {}


def test_a_record_of_the_second_format_has_its_key_worked_out_again() -> None:
    """From the identity that it holds, which has the folder of published files."""
    plain = compose.resolved(compose.load(CIFAR))
    older = {**identity.identity(plain), "dataset.root": "/where/it/was", "noise.root": "/where/it/was"}
    record = {"key": "of the second format", "key_format": 2, "identity": older, "config": plain}
    assert RunRecord.of(record).run_key == identity.run_key(plain)
    assert RunRecord.of({**record, "identity": {**older, "seed": 2}}).run_key != identity.run_key(plain)


def test_a_record_imports_nothing_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostile_module.py").write_text("class Net: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plain = compose.resolved(compose.load())
    plain["model"]["_target_"] = "hostile_module.Net"
    assert RunRecord.of({"key": "old", "config": plain}).run_key
    assert "hostile_module" not in sys.modules
    identity.run_key(plain)  # of what was typed
    assert sys.modules.pop("hostile_module")


@dataclass(frozen=True)
class Before:
    """A part as runs were made with it."""

    width: int


@dataclass(frozen=True)
class After:
    """The same part later, with a field more, in another module and under another name of its file."""

    width: int
    depth: Annotated[int, Ge(0), Neutral(0)]
    inner: Annotated[Any, Neutral({"_target_": "SGD", "nesterov": False})]


def test_a_part_that_moves_and_gets_a_field_keeps_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stored name is the same; the new field counts as soon as it does something."""
    classes = {"flnl.models.old.Net": Before, "flnl.nets.new.Net": After}
    monkeypatch.setattr(identity, "located", lambda path: classes.get(path))
    plain = {"seed": 1, "model": {"_target_": "flnl.models.old.Net", "_partial_": True, "width": 8}}
    sgd = {"_target_": "flnl.optimisers.SGD", "nesterov": False}
    moved = {**plain["model"], "_target_": "flnl.nets.new.Net", "depth": 0, "inner": sgd}  # type: ignore[dict-item]
    key = identity.run_key(plain)
    assert identity.run_key({**plain, "model": moved}) == key
    for change in ({"depth": 1}, {"depth": False}, {"inner": {**sgd, "nesterov": True}}, {"width": 9}):
        assert identity.run_key({**plain, "model": {**moved, **change}}) != key


def test_a_class_of_ones_own_has_a_key_of_its_own() -> None:
    """Also one that lies in a package called ``src``, as many people's own does, under the name of one of ours."""
    plain = compose.resolved(compose.load(["model=mlp"]))
    paths = ("flnl.models.mlp.MLP", "src.nets.MLP", "lab.nets.MLP", "nets.MLP")
    keys = {identity.run_key({**plain, "model": {**plain["model"], "_target_": path}}) for path in paths}
    assert len(keys) == len(paths)


def test_methods_are_built_from_what_the_key_reads() -> None:
    """The key leaves out the other keys of ``method``: nothing may be built from them."""

    class Watched(dict[str, Any]):
        read: ClassVar[set[str]] = set()

        def __getitem__(self, key: str) -> Any:
            self.read.add(key)
            return super().__getitem__(key)

    for method in ("fedcorr", "feddiv", "fedes", "flr"):
        assemble(Watched(compose.build(compose.load([f"method={method}"]).method)))
    assert set(schema.METHOD) == Watched.read


def test_a_short_name_counts_where_it_is_read() -> None:
    """``method.beta`` is a name for a value of FedCorr's proximal term, which alone enters the key."""
    values = identity.identity(compose.resolved(compose.load(["method.beta=3"])))
    assert "method.beta" not in values
    assert values["method.stages.preprocess.local.adaptive_proximal.beta"] == 3


def test_a_key_that_one_side_lacks_is_a_difference() -> None:
    """As after an update that adds a key whose default is null: the keys of the runs differ, so must the list."""
    ours = compose.resolved(compose.load())
    theirs = {**ours, "train": {k: v for k, v in ours["train"].items() if k != "momentum"}}
    assert set(identity.differences(ours, theirs)) == {"train.momentum"}
    added = {**ours, "train": {**ours["train"], "new": None}}
    assert identity.run_key(ours) != identity.run_key(added)
    assert set(identity.differences(ours, added)) == {"train.new"}
