"""FedNoisy's and FNBench's settings as tables: what their scripts set, and that they are made where they are named."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from flnl.config import compose
from flnl.config.folders import CONF
from flnl.instruments.tables import load
from flnl.instruments.tables.table import Number
from tests.instruments.tables.conftest import Tables

PEERS = {
    one["id"]: one for one in yaml.safe_load((Path(__file__).parent / "peer_tables.yaml").read_text("utf-8"))["tables"]
}
OF_IMAGES = {"FedLSR", "FedRN"}
"""Methods that cannot be asked for texts, which the program asks all the same."""

PARTITIONS = {
    "IID": {"partition=iid_uniform"},
    "Dirichlet": {"partition=dirichlet", "partition.alpha={}"},
    "given labels": {"partition=labels_per_client", "partition.labels={}", "partition.by=given"},
    "given Dirichlet": {"partition=dirichlet", "partition.alpha={}", "partition.by=given"},
    "labels": {"partition=labels_per_client", "partition.labels={}"},
    "sizes Dirichlet": {"partition=quantity_skew", "partition.alpha={}"},
    "shard": {"partition=shards", "partition.shards={}"},
}
NOISES = {
    "clean": {"noise=symmetric", "noise.eta=0.0", "noise.count=exact"},
    "globalized sym 0.4": {"noise=symmetric", "noise.eta=0.4", "noise.count=exact"},
    "globalized asym 0.4": {"noise=pair", "noise.eta=0.4", "noise.count=exact"},
    "localized sym U(0.3,0.5)": {"noise=localized", "noise.kind=symmetric", "noise.low=0.3", "noise.high=0.5"},
    "localized asym U(0.3,0.5)": {
        *("noise=localized", "noise.kind=asymmetric", "noise.map=pair"),
        *("noise.low=0.3", "noise.high=0.5"),
    },
    "symmetric 0-0.4": {"noise=group_ramp", "noise.groups=[[symmetric,null,0.0,0.4]]"},
    "symmetric 0-0.8": {"noise=group_ramp", "noise.groups=[[symmetric,null,0.0,0.8]]"},
    "pairflip 0-0.4": {"noise=group_ramp", "noise.groups=[[pairflip,null,0.0,0.4]]"},
    "": set[str](),
    "mixed 0-0.4": {"noise=group_ramp", "noise.groups=[[symmetric,null,0.0,0.4],[pairflip,null,0.0,0.4]]"},
}


def expected(label: str) -> set[str]:
    """The overrides of a column's label, such as "Dirichlet 0.5 · symmetric 0-0.4"; without noise, it is the data's."""
    dealt, _, noise = label.partition(" · ")
    name = "labels" if "labels" in dealt else re.sub(r" [\d.]+$", "", dealt)
    name = name if noise or f"given {name}" not in PARTITIONS else f"given {name}"
    (value,) = re.findall(r"[\d.]+", dealt) or [""]
    return {one.format(value) for one in PARTITIONS[name]} | NOISES[noise]


def test_there_are_the_tables_of_the_scripts() -> None:
    ours = [name for name in load.names() if load.table(name).paper in ("FedNoisy", "FNBench")]
    assert sorted(ours) == sorted(PEERS)
    assert all(load.table(name).by_name for name in ours)
    assert load.names().index("fednoisy_cifar10") > load.names().index("fedes_5")


@pytest.mark.parametrize("name", PEERS)
def test_rows_columns_and_cells_are_theirs(name: str) -> None:
    table, said = load.table(name), PEERS[name]
    assert table.paper == said["paper"]
    assert [column.label for column in table.columns] == said["columns"]
    skipped = OF_IMAGES if name == "fnbench_agnews" else set()
    assert [row.label for row in table.rows] == [method for method in said["methods"] if method not in skipped]
    printed = said.get("cells") or [[None] * len(table.columns)] * len(table.rows)
    assert [list(row) for row in table.cells] == [[cell and Number(*cell) for cell in row] for row in printed]
    experiment = said["dataset"].lower().replace("-", "")
    if "cells" not in said:
        assert table.metric.key == "mean_last_10"
        assert all(expected(column.label) <= {*column.overrides} for column in table.columns)
        own = [one for column in table.columns for one in column.overrides if one.startswith(("noise", "partition"))]
        assert len(own) == sum(len(expected(column.label)) for column in table.columns), "and nothing else"
    assert all(f"experiment={said['paper'].lower()}/{experiment}" in column.overrides for column in table.columns)


MODELS = {
    "fednoisy/mnist": ("LeNet5", 44_426),
    "fednoisy/svhn": ("VGG16Cifar", 15_245_130),
    "fednoisy/cifar10": ("VGG16Cifar", 15_245_130),
    "fednoisy/clothing1m": ("ResNet50", 23_536_718),
    "fednoisy/webvision": ("InceptionResNetV2", 54_383_314),
    "fnbench/cifar10": ("ResNet", 11_173_962),
    "fnbench/cifar100": ("ResNet", 21_328_292),
    "fnbench/agnews": ("FastText", 24_595_204),
    "fnbench/clothing1m": ("ResNet50", 23_536_718),
}
"""Their parameters are counted in tests/models."""

THEIRS = {  # clients, fraction, rounds, epochs, batch, lr, momentum, weight decay
    "fednoisy/clothing1m": (10, 1.0, 150, 5, 32, 0.01, 0.9, 0.0005),
    "fednoisy/webvision": (10, 1.0, 180, 5, 64, 0.01, 0.9, 0.0005),
    "fednoisy/": (10, 1.0, 500, 5, 128, 0.01, 0.9, 0.0005),
    "fnbench/cifar": (100, 0.1, 120, 5, 64, 0.01, 0.9, 0.0005),
    "fnbench/agnews": (100, 0.1, 60, 5, 64, 0.01, 0.9, 0.0005),
    "fnbench/clothing1m": (100, 0.05, 40, 5, 64, 0.01, 0.9, 0.0005),
}
OF_METHODS: dict[tuple[str, str], dict[str, Any]] = {
    ("fednoisy", "co_teaching"): {"num_gradual": 25, "forget_rate": 0.4, "exponent": 1.0},
    ("fednoisy", "m_dyr_soft_to_hard"): {"T_wu": 175, "guided": 8, "cooling": 150, "alpha": 32},
    ("fednoisy", "fednoro"): {"s1": 50, "ramp_end": 250, "distillation": 0.8},
    ("fnbench", "co_teaching_plus"): {"num_gradual": 24, "disagree_from": 10},
    ("fnbench", "selfie"): {"warmup": 24, "length": 15, "epsilon": 0.05},
    ("fnbench", "joint_opt"): {"T_wu": 24, "T": 96, "epochs": 5, "alpha": 1.2, "beta": 0.8},
    ("fnbench", "dividemix"): {"T_wu": 24, "T": 96, "alpha": 4.0, "lambda_u": 25.0, "temperature": 0.5},
    ("fnbench", "rofl"): {"num_gradual": 24, "T_pl": 10, "lambda_e": 0.8},
    ("fnbench", "fedlsr"): {"gamma": 0.4, "warmup": 0.2, "view": "colour"},
    ("fnbench", "fedrn"): {"T_wu": 24, "alpha": 0.6},
    ("fnbench", "fednoro"): {"s1": 20, "ramp_end": 120, "distillation": 0.8},
    ("fnbench", "fedelc"): {"s1": 20, "alpha": 0.5, "beta": 0.2, "scale": 10.0, "label_lr": 1000.0},
    ("fnbench", "maskedoptim"): {"s1": 30, "beta": 0.1},
}


@pytest.mark.parametrize("experiment", MODELS)
def test_an_experiment_has_the_numbers_of_the_scripts(experiment: str) -> None:
    found = compose.resolved(compose.load([f"experiment={experiment}", "method=fedavg"]))
    train = found["train"]
    assert next(values for begin, values in THEIRS.items() if experiment.startswith(begin)) == (
        *(found["partition"]["num_clients"], found["fraction"], found["rounds"], train["epochs"]),
        *(train[key] for key in ("batch_size", "lr", "momentum", "weight_decay")),
    )
    assert found["model"]["_target_"].endswith(f".{MODELS[experiment][0]}")
    assert (CONF / "table" / f"{experiment.replace('/', '_')}.yaml").is_file()


def test_fednoisys_images_are_prepared_as_by_its_program() -> None:
    clothing, web = (
        compose.resolved(compose.load([f"experiment=fednoisy/{name}", "method=fedavg"]))
        for name in ("clothing1m", "webvision")
    )
    assert {key: clothing["dataset"][key] for key in ("train_size", "train_sample", "normalize")} == {
        **{"train_size": None, "train_sample": 64_000},
        "normalize": "own",
    }
    assert clothing["model"]["pretrained"] == "imagenet"
    assert {key: web["dataset"][key] for key in ("classes", "image_size", "crop_from")} == {
        **{"classes": 50, "image_size": 299},
        "crop_from": 320,
    }


@pytest.mark.parametrize(("protocol", "method"), OF_METHODS)
def test_a_method_has_the_numbers_of_the_scripts(protocol: str, method: str) -> None:
    words = ["noise=symmetric", "noise.eta=0.4", f"protocol={protocol}", f"method={method}"]
    found = compose.resolved(compose.load(words))["method"]
    assert {key: found[key] for key in OF_METHODS[protocol, method]} == OF_METHODS[protocol, method]


def test_a_table_is_made_where_it_is_named(command: Tables, tmp_path: Path) -> None:
    file = tmp_path / "table" / "mine.yaml"
    plain = 'title: Mine\nmetric: {name: accuracy, unit: "%", key: last}\ncolumns: [{label: all}]\n'
    file.write_text(f"{plain}by_name: true\nrows: [{{label: FedAvg, overrides: [method=fedavg]}}]\n")
    for other in (tmp_path / "table").glob("*.yaml"):
        if other.name != "mine.yaml":
            other.unlink()
    (tmp_path / "table" / "usual.yaml").write_text(f"{plain}rows: [{{label: FedProx, overrides: [method=fedprox]}}]\n")
    listed = command("list").out.splitlines()
    assert [line.split()[0] for line in listed] == ["mine", "usual"]
    assert ["if it is named" in line for line in listed] == [True, False]
    assert "scale=small: 1 of 1 cells can run" in command("plan", "scale=small").out
    said = command("run", "mine", "scale=small", "--", "hydra/launcher=basic")
    assert said.code == 0, said.err
    command("run", "usual", "scale=small", "--", "hydra/launcher=basic")
    command("render", "scale=small")
    assert not (tmp_path / "results/small/mine.md").exists()
    command("render", "mine", "scale=small")
    index = tmp_path / "results/small/README.md"
    assert "(mine.md)" in index.read_text()
    command("render", "scale=small")
    assert "(mine.md)" in index.read_text(), "what was rendered stays"
