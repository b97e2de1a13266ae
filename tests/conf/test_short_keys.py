"""Short keys: each stands for one value of one part, wherever it is set; what no part reads is refused."""

import copy
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from hydra import compose as composed_by_hydra
from hydra import initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from flnl.config import compose
from flnl.config.check import check_config
from flnl.config.folders import CONF
from flnl.config.identity import flatten, run_key
from flnl.config.schema import STAGE_VALUES
from flnl.config.short_keys import connect, declared
from flnl.config.typed_values import field_types, value_faults
from flnl.config.written import node_at, text_at, texts
from flnl.core.errors import UserError
from flnl.core.importing import located
from flnl.core.method import assemble
from flnl.core.training import Training

METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))


@cache
def composed(method: str) -> DictConfig:
    """The configuration of a method before short keys are connected; many tests take copies of it."""
    return compose.composed([f"method={method}", "partition=fedcorr"])


def with_values(method: str, **values: Any) -> DictConfig:
    """The configuration of a method with values set as on the command line."""
    cfg = copy.deepcopy(composed(method))
    for key, value in values.items():
        OmegaConf.update(cfg, key, value, merge=False)
    connect(cfg, [f"{key}={value}" for key, value in values.items()])
    return cfg


def hint_of(plain: dict[str, Any], key: str) -> Any:
    """The annotation of the field that a part's value becomes."""
    *path, leaf = key.split(".")
    node: Any = plain
    for name in path:
        node = node[name]
    if path[-1] == "train":
        return field_types(Training)[leaf]
    kind = located(node.get("_target_"))
    return STAGE_VALUES[leaf] if kind is None else field_types(kind)[leaf]


def literals(hint: Any) -> Iterator[Any]:
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    elif get_origin(hint) in (Union, UnionType):
        for one in get_args(hint):
            yield from literals(one)
    elif get_origin(hint) is Annotated:
        yield from literals(get_args(hint)[0])


def another(value: Any, hint: Any) -> Any:
    """An admissible value of a field besides the one that it has."""
    for candidate in (*literals(hint), not value if isinstance(value, bool) else 3, 5, 0.25, 0.75, [1], None):
        if candidate != value and not list(value_faults("", candidate, hint)):
            return candidate
    raise AssertionError(f"no other value of {hint}")


def dependent(cfg: DictConfig, *keys: str) -> set[str]:
    """The keys whose interpolations name one of these, or name such a key, or a section that it lies in."""
    found = set(keys)
    written = list(texts(cfg))
    while more := {
        key for key, text in written if key not in found and any(f"{{{k}}}" in text or f":{k}," in text for k in found)
    }:
        found |= more
    sections = [(key, text[2:-1]) for key, text in written if text.startswith("${") and text.endswith("}")]
    return found | {
        key + k.removeprefix(section) for key, section in sections for k in found if k.startswith(f"{section}.")
    }


def method_of(cfg: DictConfig) -> dict[str, Any]:
    """The resolved method, by dotted keys."""
    return {f"method.{k}": v for k, v in flatten(OmegaConf.to_container(cfg.method, resolve=True))}


def of_its_own(method: str) -> dict[str, str]:
    """The short keys of a method that no method before it in the alphabet has with the same value of the same part."""

    def values(cfg: DictConfig) -> dict[str, tuple[Any, ...]]:
        nodes = {n: (t, node_at(cfg, f"method.{n}"), node_at(cfg, t)) for n, t in declared(cfg).items()}
        return {n: (t, *(node and node._value() for node in pair)) for n, (t, *pair) in nodes.items()}

    others = [values(composed(other)) for other in METHODS[: METHODS.index(method)]]
    ours = values(composed(method))
    return {name: ours[name][0] for name in ours if all(other.get(name) != ours[name] for other in others)}


@pytest.mark.parametrize("method", METHODS)
def test_a_short_key_sets_its_part_and_nothing_else(method: str) -> None:
    """Whether the short keys or the parts' own are set, the method is the same."""
    cfg = with_values(method)
    plain, before = compose.resolved(cfg), method_of(cfg)
    own = of_its_own(method)
    values = {name: another(before[target], hint_of(plain, target)) for name, target in own.items()}
    for name, target in own.items():
        key = f"method.{name}"
        after = method_of(with_values(method, **{key: values[name]}))
        changed = {k for k in before.keys() | after.keys() if before.get(k, "absent") != after.get(k, "absent")}
        assert after[target] == after[key] == values[name]
        assert changed <= dependent(cfg, key, target), key
    ours = with_values(method, **{f"method.{name}": value for name, value in values.items()})
    theirs = with_values(method, **{own[name]: value for name, value in values.items()})
    assert method_of(ours) == method_of(theirs)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_outside_of_a_method_follows_it(method: str) -> None:
    """But what takes the protocol's value of the method by name, which no short key changes."""
    assert [key for key, text in texts(with_values(method)) if not key.startswith("method.") and "method" in text] == []


def test_other_values_follow_only_where_a_file_says_so() -> None:
    """Parts of one method that must agree refer to one of them."""
    following = {}
    for method in ("fedcorr", "feddiv", "fedes"):
        cfg = with_values(method)
        for name, target in declared(cfg).items():
            others = {k for k in dependent(cfg, target) if not k.startswith("method.short.")}
            if others - {target, f"method.{name}"}:
                following[method, name] = sorted(k.removeprefix("method.") for k in others - {target, f"method.{name}"})
    agreed = ("loss", "norm", "threshold", "guard", "guard_above", "pcs", "xi", "inference_augment")
    names = {"norm": "loss_norm"}
    assert following == {
        ("fedcorr", "loss"): ["corrector.loss"],
        ("fedcorr", "gmm_tol"): ["corrector.gmm_tol"],
        ("fedcorr", "inference_augment"): ["corrector.inference_augment"],
        ("fedcorr", "kappa"): ["stages.finetune.sampler.kappa"],
        ("feddiv", "mixup_alpha"): ["stages.warmup.batch.alpha"],
        ("fedes", "cop_params"): ["gradient.scope"],
        **{("feddiv", names.get(key, key)): [f"batch.{key}"] for key in agreed},
    }


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_sets_a_short_key_does_not_repeat_the_default(method: str) -> None:
    cfg = composed(method)
    for name, target in declared(cfg).items():
        if text_at(cfg, f"method.{name}") != f"${{{target}}}":
            ours, parts = (node_at(cfg, key)._value() for key in (f"method.{name}", target))  # type: ignore[union-attr]
            assert ours != parts, f"{name} stands in conf/method/{method}.yaml and in its part's file"


def test_the_same_value_by_either_key_is_the_same_run() -> None:
    short = compose.load(["method=fedprox", "method.mu=0.5"])
    assert run_key(compose.resolved(short)) == run_key(
        compose.resolved(compose.load(["method=fedprox", "method.local.fedprox.mu=0.5"]))
    )
    assert assemble(compose.build(short.method)).stages[0].local["fedprox"].mu == 0.5  # type: ignore[attr-defined]
    assert text_at(short, "method.local.fedprox.mu") == "${method.mu}"
    before = copy.deepcopy(short)
    connect(short, ["method=fedprox", "method.mu=0.5"])
    assert short == before


def test_a_value_set_in_a_program_reaches_its_part() -> None:
    """As in a notebook: composed, changed, run."""
    cfg = compose.load(["method=fedprox"])
    cfg.method.mu = 0.5
    connect(cfg)
    assert cfg.method.local.fedprox.mu == 0.5


def test_the_loss_of_fedcorr_is_not_that_of_another_methods_part() -> None:
    words = ["method=fedcorr", "method/exchange=[fedcorr_lid,feddiv_noise_filter]", "method/batch=feddiv_reselection"]
    others = ["method.exchange.noise_filter.loss=ce"]
    plain = compose.resolved(
        compose.load([*words, *others, "method.loss=ce_of_softmax", "method.inference_augment=true"])
    )
    method = plain["method"]
    for part in (method["exchange"]["lid"], method["corrector"]):
        assert (part["loss"], part["inference_augment"]) == ("ce_of_softmax", True)
    for part in (method["exchange"]["noise_filter"], method["batch"]):
        assert (part["loss"], part["inference_augment"]) == ("ce", False)


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ["method=fedprox", "method/local=[cross_entropy]", "method.mu=0.5"],
            "method.mu=0.5: it stands for method.local.fedprox.mu, which is not there; add fedprox to method/local",
        ),
        (
            ["method/batch=plain", "method.mixup=false"],
            "method.mixup=false: it stands for method.batch.enabled, which this choice of method/batch does not have",
        ),
        (
            ["method=fedprox", "method.mu=0.5", "method.local.fedprox.mu=0.3"],
            "method.mu=0.5 and method.local.fedprox.mu=0.3 set the same value",
        ),
        (
            ["method=fedprox", "method.mu=0.5", "+method.local.fedprox={mu: 0.3}"],
            "method.mu=0.5 and +method.local.fedprox={mu: 0.3} set the same value",
        ),
        (["method=fedprox", "method.short.mu=0.5"], "method.short.mu=0.5: must refer to a value of a part"),
        (["method=fedprox", "method.short=null"], "method.short must have a line for each"),
        (["method=fedprox", "+method.short.strength=${method.local.fedprox.mu}"], "has the short key mu already"),
    ],
)
def test_words_about_short_keys_that_are_refused(words: list[str], why: str) -> None:
    with pytest.raises(UserError, match=re.escape(why)):
        compose.load(words)


def test_the_same_value_twice_is_no_contradiction() -> None:
    assert compose.load(["method=fedprox", "method.mu=0.5", "method.local.fedprox.mu=0.5"]).method.mu == 0.5


def test_what_a_file_sets_is_left_out_where_its_part_is_not_chosen() -> None:
    cfg = compose.load(["method=fedcorr_released", "method/batch=plain"])
    check_config(cfg)
    assert {"mixup", "mixup_alpha", "mixup_stages"}.isdisjoint(compose.resolved(cfg)["method"])


def test_a_word_about_a_parts_own_key_stands_against_a_file() -> None:
    for word in ("method.batch.stages=[1]", "method.batch={stages: [1]}"):
        method = compose.resolved(compose.load(["method=fedcorr", word]))["method"]
        assert method["batch"]["stages"] == method["mixup_stages"] == [1]


# ------------------------------------------------------------------------------------------------ methods of one's own


def mine(folder: Path, method: str, *words: str, experiment: str = "mu: 0.7") -> DictConfig:
    """The configuration with a method of one's own, from a folder on the search path.

    ``experiment=tried`` sets the values ``experiment`` of the method.
    """
    (folder / "method").mkdir(exist_ok=True)
    (folder / "method" / "mine.yaml").write_text(method)
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / "experiment" / "tried.yaml").write_text(f"# @package _global_\nmethod:\n  {experiment}\n")
    words = ("method=mine", *words, f"hydra.searchpath=[file://{folder}]")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = composed_by_hydra("config", overrides=list(words))
    connect(cfg, words)
    check_config(cfg)
    return cfg


VARIANT = "defaults: [fedprox@_here_, _self_]\nname: mine\nlike: fedprox\n"


@pytest.mark.parametrize("values", ["mu: 0.5\n", "local: {fedprox: {mu: 0.5}}\n"])
def test_a_variant_sets_short_keys_or_the_parts_own(values: str, tmp_path: Path) -> None:
    method = compose.resolved(mine(tmp_path, VARIANT + values))["method"]
    assert method["mu"] == method["local"]["fedprox"]["mu"] == 0.5


def test_an_experiment_and_the_command_line_set_them_after_the_method(tmp_path: Path) -> None:
    assert mine(tmp_path, VARIANT + "mu: 0.5\n", "experiment=tried").method.local.fedprox.mu == 0.7
    assert mine(tmp_path, VARIANT, "experiment=tried", "method.mu=0.9").method.local.fedprox.mu == 0.9
    own = mine(tmp_path, VARIANT, "experiment=tried", "method.local.fedprox.mu=0.8").method
    assert own.mu == own.local.fedprox.mu == 0.8


OWN, SHORT = "local: {fedprox: {mu: 0.6}}\n", "mu: 0.5\n"
DECLARES = """defaults: [parts/default@_here_, override local: [cross_entropy, fedprox], _self_]
name: mine
like: fedprox
short: &short
  mu: ${method.local.fedprox.mu}
<<: *short
"""


@pytest.mark.parametrize(
    ("method", "experiment", "mu"),
    [
        (VARIANT + SHORT, OWN, 0.6),
        (VARIANT + OWN, SHORT, 0.5),
        (VARIANT + SHORT, "local: {fedprox: {mu: 0.01}}", 0.01),  # the part's default again
        (DECLARES + SHORT, OWN, 0.6),
    ],
)
def test_the_file_that_is_composed_last_counts(method: str, experiment: str, mu: float, tmp_path: Path) -> None:
    """By whichever key it sets the value."""
    cfg = mine(tmp_path, method, "experiment=tried", experiment=experiment.strip())
    assert cfg.method.mu == cfg.method.local.fedprox.mu == mu
    connect(cfg, ["method=mine", "experiment=tried", f"hydra.searchpath=[file://{tmp_path}]"])
    assert cfg.method.mu == cfg.method.local.fedprox.mu == mu


def test_a_file_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    both = "method/mine.yaml: method.mu=0.5 and method.local.fedprox.mu=0.6 set the same value; leave one of them out"
    with pytest.raises(UserError, match=re.escape(both)):
        mine(tmp_path, VARIANT + SHORT + OWN)
    assert mine(tmp_path, VARIANT + SHORT + OWN.replace("0.6", "0.5")).method.mu == 0.5
    later = mine(tmp_path, VARIANT + SHORT + OWN, "experiment=tried").method
    assert later.mu == later.local.fedprox.mu == 0.7


def test_a_method_declares_short_keys_of_its_own(tmp_path: Path) -> None:
    declares = "short: &short\n  momentum: ${method.local.flr.gamma}\n<<: *short\n"
    chooses = "defaults: [parts/default@_here_, override local: [flr], _self_]\nname: mine\n"
    assert mine(tmp_path, chooses + declares, "method.momentum=0.1").method.local.flr.gamma == 0.1
    assert mine(tmp_path, chooses + declares).method.momentum == 0.5
    assert mine(tmp_path, chooses + declares.replace("<<: *short\n", "")).method.momentum == 0.5


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ("muu: 0.5\n", "method.muu: no part of method=mine reads it; did you mean mu?"),
        ("stage: {}\n", "method.stage: no part of method=mine reads it; did you mean stages?"),
        ("other: ${method.local.fedprox.mu}\n", "method.other: no part of method=mine reads it"),
    ],
)
def test_a_key_that_no_part_reads_is_refused(values: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(why)):
        mine(tmp_path, VARIANT + values)


def test_an_experiment_with_a_key_that_no_part_reads_is_refused(tmp_path: Path) -> None:
    plain = "defaults: [parts/default@_here_, _self_]\nname: mine\n"
    with pytest.raises(UserError, match=re.escape("method.mu: no part of method=mine reads it")):
        mine(tmp_path, plain, "experiment=tried")


def test_a_key_that_parts_refer_to_is_read(tmp_path: Path) -> None:
    shared = "shared: 0.25\nlocal: {fedprox: {mu: '${method.shared}'}}\n"
    assert mine(tmp_path, VARIANT + shared).method.mu == 0.25
