"""Every YAML composes and passes the check of its keys and values; nothing in it is read by nobody."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf, open_dict

from flnl.config import compose, schema
from flnl.config.check import check_config
from flnl.config.folders import CONF
from flnl.core.errors import UserError
from flnl.core.method import assemble
from tests.entries import of_methods

FILES = sorted(CONF.rglob("*.yaml"))
METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
LISTS = ("local", "exchange")


def name(path: Path) -> str:
    return str(path.relative_to(CONF).with_suffix(""))


def choice(path: Path) -> list[str]:
    """The overrides that select a file."""
    group, _, option = name(path).rpartition("/")
    if group == "method/local":  # a term by itself may learn from no labels
        return ["method=fedcorr", f"{group}=[cross_entropy,{option}]"]
    if group == "method/exchange":  # FedCorr cannot do without its own
        return ["method=fedcorr", f"{group}=[{','.join(dict.fromkeys(('fedcorr_lid', option)))}]"]
    if group == "method/stages" and option in METHODS:  # they take their lengths from their method
        return [f"method={option}"]
    if group.startswith("method/"):
        return ["method=fedcorr", f"{group}=[{option}]" if group.split("/")[1] in LISTS else f"{group}={option}"]
    return [f"{group}={option}"]


NEEDED = {
    "noise/matrix": ["noise.path=T.npy"],
    "model/module": ["model.path=torchvision.models.MobileNetV2"],
    "model/torchvision": ["model.name=resnet18"],
    "method/corrector/none": ["method=fedavg"],  # FedCorr cannot do without its own
    "executor/inner/sequential": ["executor=processes"],
    "executor/inner/stacked": ["executor=processes"],
    **{f"method/{part}": words for known in of_methods().values() for part, words in known.needed.items()},
}
SELECTABLE = [
    path
    for path in FILES
    if name(path) not in ("config", "method/parts/default")
    and path.parent.name not in schema.NO_GROUPS
    and not name(path).startswith("experiment/")  # they are in tests/conf/test_experiments.py
]


@pytest.mark.parametrize("path", SELECTABLE, ids=name)
def test_every_file_composes_and_its_values_are_in_range(path: Path) -> None:
    cfg = compose.load([*choice(path), *NEEDED.get(name(path), [])])
    check_config(cfg)
    group = name(path).split("/")[0]
    if group in ("partition", "noise"):
        compose.build(cfg[group])
    if group in ("method", "protocol"):
        assemble(compose.build(cfg.method))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_file_starts_with_one_line_that_says_what_it_is(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith(("# @package", "# formerly: "))]
    assert re.match(r"# \S", lines[0])
    assert not lines[1].startswith("#")


def test_a_variant_is_like_a_method() -> None:
    """Whose section of a protocol holds for it."""
    for method in METHODS:
        written: Any = OmegaConf.load(CONF / "method" / f"{method}.yaml")
        assert written.name == method
        assert written.get("like", method) in METHODS


SHARED = {"name", "num_clients", "fraction", "rounds", "lr", "momentum", "weight_decay", "batch_size", "epochs"}


def test_a_protocol_has_what_all_methods_share_and_names_none() -> None:
    for path in sorted((CONF / "protocol").glob("*.yaml")):
        protocol: Any = OmegaConf.to_container(OmegaConf.load(path))
        assert (protocol["name"], {*protocol}) == (path.stem, SHARED)


def test_every_setting_of_a_method_is_of_a_protocol_and_read_by_somebody() -> None:
    asked = {key for path in FILES for key in re.findall(r"\$\{protocol:(\w+)", path.read_text())}
    for method in METHODS:
        written: Any = OmegaConf.to_container(OmegaConf.load(CONF / "method" / f"{method}.yaml"))
        rows = written.get("settings", {})
        alone = rows.pop("centralized", {})
        for name, row in [*rows.items(), *alone.items()]:
            assert name == "default" or any(fnmatchcase(one, name) for one in PROTOCOLS), f"{method}: {name}"
            assert {*row} <= asked, f"{method}: {name}"


def test_methods_and_stages_choose_parts_and_copy_none() -> None:
    """A part's file alone has its class and values, so that a new field of a part is written in one place."""
    chosen = [path for path in FILES if name(path).startswith("method/stages/") or path.parent.name == "method"]
    assert [name(path) for path in chosen if "_target_" in path.read_text()] == []


def test_every_pattern_in_a_part_is_of_a_protocol() -> None:
    for path in FILES:
        for rows in re.findall(r"\$\{protocol:[^}]*?,\{([^}]*)\}", path.read_text()):
            for row in rows.split(","):
                assert any(fnmatchcase(one, row.split(":")[0]) for one in PROTOCOLS), f"{name(path)}: {row}"


PROTOCOLS = sorted(path.stem for path in (CONF / "protocol").glob("*.yaml"))


@pytest.mark.parametrize("number", range(len(PROTOCOLS)), ids=PROTOCOLS)
def test_a_protocol_changes_itself_alone(number: int) -> None:
    """Each with one method; so what it does to another method is known without composing them together."""
    protocol, method = PROTOCOLS[number], METHODS[number % len(METHODS)]
    both: Any = OmegaConf.to_container(compose.load([f"method={method}", f"protocol={protocol}"]))
    alone: Any = OmegaConf.to_container(compose.load([f"method={method}"]))
    assert both.pop("protocol") == OmegaConf.to_container(OmegaConf.load(CONF / "protocol" / f"{protocol}.yaml"))
    del alone["protocol"]
    assert both == alone


@pytest.mark.parametrize("method", METHODS)
def test_what_a_protocol_says_of_a_method_reaches_it(method: str) -> None:
    cfg = compose.load([f"method={method}"])
    for protocol in PROTOCOLS:
        with open_dict(cfg):
            cfg.protocol = OmegaConf.load(CONF / "protocol" / f"{protocol}.yaml")
        rows = cfg.method.get("settings", {})
        own = rows.get(protocol, {})
        for_all = {key: value for key, value in rows.get("default", {}).items() if not isinstance(value, str)}
        says = {**cfg.protocol, **for_all, **own}
        for key in ("lr", "momentum", "weight_decay", "batch_size", "epochs"):
            assert cfg.train[key] == says[key], (protocol, key)
        assert cfg.rounds == says["rounds"], protocol
        assert cfg.partition.num_clients == says["num_clients"], protocol
        numbers = {key: value for key, value in own.items() if key in cfg.method and not isinstance(value, str)}
        assert {key: cfg.method[key] for key in numbers} == numbers, protocol


def test_the_warm_up_of_flr_plus_is_fedcorrs_first_stage() -> None:
    cfg = compose.load(["method=flr_plus"])
    for protocol in PROTOCOLS:
        with open_dict(cfg):
            cfg.protocol = OmegaConf.load(CONF / "protocol" / f"{protocol}.yaml")
        assert cfg.method.R_w == 0, protocol


def test_a_methods_section_may_have_another_for_centralized_training() -> None:
    words = ["method=fedprox", "protocol=cifar10", "+protocol.fedprox.centralized={mu: 0.5, epochs: 1}"]
    inside, alone = compose.load(words), compose.load([*words, "centralized=true"])
    assert [(c.method.mu, c.train.epochs, c.train.lr) for c in (inside, alone)] == [(1.0, 5, 0.01), (0.5, 1, 0.01)]
    wrong = [*words[:2], "+protocol.fedprox.centralized.mu=-1.0"]
    check_config(compose.load(wrong))
    with pytest.raises(UserError, match=r"^protocol\.fedprox\.centralized\.mu=-1\.0: must be"):
        check_config(compose.load([*wrong, "centralized=true"]))
    with pytest.raises(UserError, match=r"protocol\.fedprox\.centralized=3: must have the values of a method"):
        compose.resolved(compose.load([*words[:2], "+protocol.fedprox.centralized=3", "centralized=true"]))


def test_a_proximal_term_in_another_method_takes_what_it_has_by_protocol() -> None:
    words = ["dataset=cifar10", "method=flr", "method/local=[flr,fedprox]"]
    assert compose.load(words).method.local.fedprox.mu == 1.0
    assert compose.load([*words, "protocol=flr_cifar100"]).method.local.fedprox.mu == 0.001
    assert compose.load([*words, "protocol=digits"]).method.local.fedprox.mu == 0.01  # by default


@pytest.mark.parametrize("path", sorted((CONF / "dataset").glob("*.yaml")), ids=name)
def test_every_data_set_brings_a_protocol_and_a_model_that_can_be_replaced(path: Path) -> None:
    """As overrides, which the command line overrules; that the files exist is seen where each is composed."""
    brought = [entry for entry in OmegaConf.load(path).defaults if entry != "_self_"]
    assert [[*entry] for entry in brought] == [["override /protocol"], ["override /model"]]


@pytest.mark.parametrize("dataset", ["digits", "cifar100"])
def test_the_protocol_and_the_model_of_a_data_set_can_be_replaced(dataset: str) -> None:
    cfg = compose.load([f"dataset={dataset}", "protocol=svhn", "model=mlp"])
    assert (cfg.dataset.name, cfg.protocol.name) == (dataset, "svhn")
    assert cfg.model._target_.endswith("MLP")


KEYS = {
    (): (
        "seed data_seed max_rounds resume output device precision threads executor model checkpoint.every eval.every "
        "train.lr train.momentum train.weight_decay train.batch_size train.epochs rounds fraction on_nonfinite "
        "partition.num_clients noise.rho noise.tau wandb.mode"
    ),
    ("dataset=cifar10",): "dataset.root dataset.download dataset.mirror dataset.verify",
    ("dataset=mnist",): "dataset.root dataset.download dataset.mirror dataset.verify",
    ("dataset=svhn",): "dataset.root dataset.download dataset.mirror dataset.verify",
    ("partition=fedcorr",): "partition.p partition.alpha partition.num_clients",
    ("partition=dirichlet",): "partition.alpha partition.num_clients",
    ("noise=fedes",): "noise.mu noise.sigma",
    ("noise=symmetric",): "noise.eta",
    ("noise=flr",): "noise.rho noise.tau",
    ("dataset=cifar10", "noise=human"): "noise.source",
}
"""Names that people have in their scripts; ``executor`` and ``model`` are groups."""


@pytest.mark.parametrize("chosen", KEYS)
def test_names_that_scripts_rely_on_exist(chosen: tuple[str, ...]) -> None:
    found = set(sections(compose.resolved(compose.load(chosen))))
    assert set(KEYS[chosen].split()) <= found


@pytest.mark.parametrize("method", METHODS)
def test_debugging_takes_a_round_a_stage_and_sends_nothing(method: str) -> None:
    """A stage that a new method brings is short, too, and the file's values outside of its groups count."""
    plain = compose.resolved(compose.load([f"method={method}", "debug=fast"]))
    stages = [stage for stage in plain["method"]["stages"].values() if stage]
    lengths = [stage.get("rounds", stage.get("passes")) for stage in stages]
    assert 1 in lengths
    assert {*lengths} <= {0, 1}
    assert (plain["rounds"], plain["wandb"]["mode"]) == (1, "disabled")


def sections(node: Any, prefix: str = "") -> Iterator[str]:
    """Every dotted key, those of mappings included."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield f"{prefix}{key}"
            yield from sections(value, f"{prefix}{key}.")


def test_a_key_that_no_part_has_is_refused_in_every_group() -> None:
    for group in ("dataset", "partition", "noise", "model", "executor", "method.sampler", "method.batch", "train"):
        cfg = compose.load([f"+{group}.nobody_reads_this=1"])
        with pytest.raises(UserError, match=rf"{group}\.nobody_reads_this"):
            check_config(cfg)
