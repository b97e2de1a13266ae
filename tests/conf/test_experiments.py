"""An experiment gives data, model and protocol to any method, and leaks nothing into the method itself."""

import copy
from functools import cache
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf, open_dict

from flnl.config import compose, given
from flnl.config.check import check_config
from flnl.config.folders import CONF
from flnl.config.protocol import SETTINGS
from flnl.config.short_keys import DECLARATIONS
from flnl.core.errors import UserError
from flnl.core.method import assemble

EXPERIMENTS = sorted(
    str(path.relative_to(CONF / "experiment").with_suffix("")) for path in (CONF / "experiment").rglob("*.yaml")
)
METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))


@cache
def composed(*words: str) -> DictConfig:
    """The composed configuration; many tests look at the same, so none may change it."""
    return compose.load(words)


def raw(*words: str) -> Any:
    """As ``composed``, with interpolations as they are written."""
    return OmegaConf.to_container(composed(*words), resolve=False)


def plain(*words: str) -> dict[str, Any]:
    """As ``composed``, resolved."""
    return compose.resolved(composed(*words))


def test_there_are_experiments() -> None:
    assert {"fedcorr/cifar10_iid", "fedcorr/cifar10_noniid", "fedcorr/cifar100_iid", "fedcorr/clothing1m"} <= set(
        EXPERIMENTS
    )


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_says_nothing_of_methods(experiment: str) -> None:
    written: Any = OmegaConf.to_container(OmegaConf.load(CONF / "experiment" / f"{experiment}.yaml"))
    entries = [entry for entry in written.pop("defaults") if entry != "_self_"]
    groups = {key.removeprefix("override ").strip("/") for entry in entries if isinstance(entry, dict) for key in entry}
    based = [entry.removeprefix("/experiment/") for entry in entries if isinstance(entry, str)]
    assert {*based} <= {*EXPERIMENTS}  # which are tested here as well
    known = {"dataset", "partition", "noise", "protocol", "model"}
    assert groups <= known if based else groups == known
    assert set(written) <= known | {"eval", "precision"}


GROUPS = ("dataset", "partition", "noise", "protocol", "model")
"""What an experiment chooses."""

PAIRS = [(experiment, METHODS[number % len(METHODS)]) for number, experiment in enumerate(EXPERIMENTS)]
"""Every experiment once and every method at least twice."""


def grafted(experiment: str, method: str, *words: str) -> DictConfig:
    """The groups that an experiment chooses, and all else of a method's composition without it.

    That composing both gives the same is ``test_an_experiment_changes_its_groups_alone``.
    """
    cfg = copy.deepcopy(composed(f"method={method}", *words))
    graft(cfg, experiment)
    return cfg


def graft(cfg: DictConfig, experiment: str, *pinned: str) -> None:
    """Replace the groups that an experiment chooses, those that are ``pinned`` by their defaults."""
    chosen, default = composed(f"experiment={experiment}"), composed()
    with open_dict(cfg):
        for group in GROUPS:
            cfg[group] = copy.deepcopy((default if group in pinned else chosen)[group])


@cache
def differing(*groups: str) -> list[str]:
    """An experiment for each combination of contents that these groups have in experiments, one with noise if any is.

    A method that is given the noise rate does not run on labels of which none is stated.
    """
    noisy_last = sorted(EXPERIMENTS, key=lambda experiment: "/clean/" not in experiment)
    found = {repr([raw(f"experiment={e}")[group] for group in groups]): e for e in noisy_last}
    return list(found.values())


@cache
def meeting(*groups: str) -> list[str]:
    """Experiments in which, between them, each of these groups has every content that it has in experiments."""
    met: set[tuple[str, str]] = set()
    found = []
    for experiment in EXPERIMENTS:
        contents = {(group, repr(raw(f"experiment={experiment}")[group])) for group in groups}
        if not contents <= met:
            found.append(experiment)
            met |= contents
    return found


def within(experiment: str, method: str, *words: str) -> dict[str, Any]:
    """A method in an experiment, resolved."""
    return compose.resolved(grafted(experiment, method, *words))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_value_of_an_experiment_is_in_range(experiment: str) -> None:
    check_config(composed(f"experiment={experiment}"))


@pytest.mark.parametrize(("experiment", "method"), PAIRS)
def test_an_experiment_changes_its_groups_alone(experiment: str, method: str) -> None:
    both, alone = raw(f"experiment={experiment}", f"method={method}"), raw(f"method={method}")
    assert {k: v for k, v in both.items() if k not in GROUPS} == {k: v for k, v in alone.items() if k not in GROUPS}
    assert both == OmegaConf.to_container(grafted(experiment, method), resolve=False)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_in_an_experiment(method: str) -> None:
    """Protocol and partition are all of an experiment that a method sees, as the next test shows.

    Experiments in which the method and its training have the same values are tried once.
    """
    cfg = copy.deepcopy(composed(f"method={method}"))
    tried = set()
    for experiment in differing("protocol", "partition"):
        graft(cfg, experiment)
        sections = [OmegaConf.to_container(cfg[key], resolve=True) for key in ("method", "train")]
        values = repr((sections, cfg.rounds, cfg.fraction))
        if values in tried:
            continue
        tried.add(values)
        try:
            check_config(cfg)
            assemble(compose.build(cfg.method))
        except UserError as error:
            pytest.fail(f"experiment={experiment}: {error}")


@pytest.mark.parametrize("method", METHODS)
def test_only_protocol_partition_and_noise_rate_of_an_experiment_reach_a_method(method: str) -> None:
    without = plain(f"method={method}")
    cfg = copy.deepcopy(composed(f"method={method}"))
    for experiment in meeting("dataset", "noise", "model"):
        graft(cfg, experiment, "protocol", "partition")
        for key in given.takers(cfg):  # the rate of the method's own noise, from then on
            OmegaConf.update(cfg, key, OmegaConf.select(composed(f"method={method}"), key))
        found: dict[str, Any] = {k: OmegaConf.to_container(cfg[k], resolve=True) for k in ("method", "train")}
        for name in (DECLARATIONS, SETTINGS):
            found["method"].pop(name, None)
        assert found["method"] == without["method"], experiment
        assert found["train"] == without["train"], experiment


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_another_method_in_an_experiment_has_its_data_and_its_own_protocol(experiment: str) -> None:
    ours, theirs = (grafted(experiment, method) for method in METHODS[:2])
    for group in GROUPS:
        assert OmegaConf.to_container(ours[group], resolve=True) == OmegaConf.to_container(theirs[group], resolve=True)


def test_the_command_line_overrules_an_experiment() -> None:
    found = plain("experiment=fedcorr/cifar10_noniid", "noise.rho=0.2", "partition.alpha=3.0", "model=cnn")
    assert (found["noise"]["rho"], found["partition"]["alpha"]) == (0.2, 3.0)
    assert found["model"]["_target_"].endswith("CNN")


PAPER = {
    # FedCorr, Tables 1, 4, 5, 7 and App. B: clients, fraction, lr, batch, epochs, T1, T2, T3, theta, pi
    "fedcorr/cifar10_iid": (100, 0.1, 0.03, 10, 5, 5, 500, 450, 0.5, 0.5),
    "fedcorr/cifar10_noniid": (100, 0.1, 0.03, 10, 5, 5, 500, 450, 0.5, 0.5),
    "fedcorr/cifar100_iid": (50, 0.1, 0.01, 10, 5, 10, 450, 450, 0.5, 0.5),
    "fedcorr/cifar100_noniid": (50, 0.1, 0.01, 10, 5, 10, 450, 450, 0.5, 0.5),
    "fedcorr/clothing1m": (500, 0.02, 0.001, 16, 5, 2, 50, 50, 0.9, 0.8),
}


@pytest.mark.parametrize("experiment", PAPER)
def test_fedcorr_has_the_papers_numbers(experiment: str) -> None:
    found = within(experiment, "fedcorr")
    method, train = found["method"], found["train"]
    assert PAPER[experiment] == (
        found["partition"]["num_clients"],
        found["fraction"],
        *(train[k] for k in ("lr", "batch_size", "epochs")),
        *(method[k] for k in ("T1", "T2", "T3", "theta", "pi")),
    )
    assert (train["momentum"], method["beta"], method["kappa"], method["mixup_alpha"], method["k_lid"]) == (
        *(0.5, 5.0, 0.1, 1.0),
        20,
    )


FLR_PAPER = {
    # FLR, Tables 4 and 5 and App. E.5: clients, fraction, lr, lambda, FedCorr's T2 and T3, lambda with FedCorr
    "flr/cifar10_iid": (100, 0.1, 0.03, 2.0, 300, 300, 3.0),
    "flr/cifar10_iid_asymmetric": (100, 0.1, 0.03, 3.0, 300, 300, 3.0),
    "flr/cifar10_noniid": (100, 0.1, 0.03, 2.0, 300, 300, 3.0),
    "flr/cifar10n": (100, 0.1, 0.03, 2.0, 300, 300, 3.0),
    "flr/cifar100_iid": (50, 0.1, 0.01, 2.5, 300, 400, 5.0),
    "flr/cifar100_iid_asymmetric": (50, 0.1, 0.01, 5.0, 300, 400, 5.0),
    "flr/clothing1m": (500, 0.02, 0.003, 2.0, 50, 50, 3.0),
}


@pytest.mark.parametrize("experiment", FLR_PAPER)
def test_flr_has_the_papers_numbers(experiment: str) -> None:
    found = within(experiment, "flr")
    plus = within(experiment, "fedcorr", "method/local=[flr]", "method/stages=fedcorr_flr")["method"]
    term = plus["local"]["flr"]
    own = found["method"]
    assert FLR_PAPER[experiment] == (
        *(found["partition"]["num_clients"], found["fraction"], found["train"]["lr"], own["lam"]),
        *(plus["T2"], plus["T3"], term["lam"]),
    )
    assert (own["alpha"], own["beta"], own["gamma"], own["R_w"]) == (0.9, 0.7, 0.5, 50)
    assert (term["alpha"], term["beta"], term["gamma"], term["R_w"], term["first_stage"]) == (0.9, 0.7, 0.5, 0, 2)
    assert found["rounds"] == (200 if "clothing1m" in experiment else 300)
    assert grafted(experiment, "fedprox").method.mu == 0.001


@pytest.mark.parametrize("experiment", [e for e in EXPERIMENTS if e.startswith("fedpeer/")])
def test_fedpeer_has_the_papers_numbers(experiment: str) -> None:
    """Sec. 5.1 and 5.2: uniform allocation for symmetric noise, non-uniform for all other."""
    found = within(experiment, "fedpeer")
    train, dealt = found["train"], found["partition"]
    assert (found["rounds"], found["fraction"], train["lr"], train["batch_size"], train["epochs"]) == (
        *(300, 0.1, 0.01, 32),
        5,
    )
    epsilon = next(e for name, e in (("cifar100", 5.98), ("cifar10", 3.58), ("clothing1m", 3.95)) if name in experiment)
    assert found["method"]["epsilon"] == epsilon
    assert (dealt["allocation"] == "uniform") == experiment.endswith("symmetric")
    assert dealt["by"] == "given"


TWO_STAGES = {
    # FedDiv, Tables 1 to 7: clients, fraction, lr, batch, epochs, momentum, T_wu, T, eta
    "feddiv/cifar10_iid": (100, 0.1, 0.03, 10, 5, 0.5, 5, 950, 0.0),
    "feddiv/cifar10_noniid": (100, 0.1, 0.03, 10, 5, 0.5, 5, 950, 1.0),
    "feddiv/cifar100_iid": (50, 0.1, 0.01, 10, 5, 0.5, 10, 900, 0.0),
    "feddiv/cifar100_noniid": (50, 0.1, 0.01, 10, 5, 0.5, 10, 900, 1.0),
    "feddiv/clothing1m": (500, 0.02, 0.001, 16, 5, 0.5, 2, 100, 1.0),
    # FedES, Sec. 5.2: the same, with s1 and T, and weight decay
    "fedes/cifar10_iid": (20, 1.0, 0.01, 128, 10, 0.9, 10, 190, 0.0005),
    "fedes/cifar10_noniid": (20, 1.0, 0.01, 128, 10, 0.9, 10, 190, 0.0005),
    "fedes/cifar100_iid": (20, 1.0, 0.01, 128, 10, 0.9, 10, 190, 0.0005),
    "fedes/cifar100_noniid": (20, 1.0, 0.01, 128, 10, 0.9, 10, 190, 0.0005),
    "fedes/clothing1m": (20, 1.0, 0.001, 32, 5, 0.9, 10, 190, 0.0005),
}


@pytest.mark.parametrize("experiment", TWO_STAGES)
def test_feddiv_and_fedes_have_their_papers_numbers(experiment: str) -> None:
    method = experiment.split("/")[0]
    found = within(experiment, method)
    own, train = found["method"], found["train"]
    lengths = ("T_wu", "T") if method == "feddiv" else ("s1", "T")
    assert TWO_STAGES[experiment] == (
        found["partition"]["num_clients"],
        found["fraction"],
        *(train[k] for k in ("lr", "batch_size", "epochs", "momentum")),
        *(own[k] for k in lengths),
        own["eta"] if method == "feddiv" else train["weight_decay"],
    )
    if method == "feddiv":
        assert [own[k] for k in ("zeta", "delta", "threshold", "xi", "m", "mixup_alpha")] == [
            0.75,
            0.1,
            0.5,
            0.5,
            0.2,
            1,
        ]


PROTOCOLS = sorted(path.stem for path in (CONF / "protocol").glob("*.yaml"))


@pytest.mark.parametrize("method", ["feddiv", "fedes"])
def test_their_budget_is_that_of_federated_averaging(method: str) -> None:
    """FedDiv's first stage visits each client T_wu times, FedES's trains all of them s1 times."""
    found, fedavg = (copy.deepcopy(composed(f"method={m}")) for m in (method, "fedavg"))
    for protocol in PROTOCOLS:
        for cfg in (found, fedavg):
            cfg.protocol = OmegaConf.load(CONF / "protocol" / f"{protocol}.yaml")
        clients, own = fedavg.partition.num_clients, found.method
        cohort = int(fedavg.fraction * clients + 1e-9)
        ours = own["T_wu" if method == "feddiv" else "s1"] * clients + own.T * cohort
        assert ours == fedavg.rounds * cohort, protocol


@pytest.mark.parametrize("experiment", [e for e in EXPERIMENTS if not e.startswith("flr/")])
def test_federated_averaging_costs_as_many_trainings(experiment: str) -> None:
    """One round of the first stage trains each client once, one of the others a cohort."""
    fedcorr, fedavg = (grafted(experiment, method) for method in ("fedcorr", "fedavg"))
    clients, own = fedavg.partition.num_clients, fedcorr.method
    if clients is None:  # as many as there are writers: the protocol knows another number
        pytest.skip("the number of clients is the data's")
    cohort = int(fedavg.fraction * clients + 1e-9)
    assert fedavg.rounds * cohort == own.T1 * clients + (own.T2 + own.T3) * cohort


def test_the_file_of_an_experiment_names_its_tables() -> None:
    for experiment in EXPERIMENTS:
        lines = (CONF / "experiment" / f"{experiment}.yaml").read_text().splitlines()
        if not experiment.startswith("benchmark/"):
            where = "docs/comparison.md" if experiment.startswith("comparison/") else "Table"
            assert where in lines[1], experiment


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("partition=iid_uniform", 0.0),
        ("partition=iid_class", 0.0),
        ("partition=quantity_skew", 0.0),
        ("partition=dirichlet", 1.0),
        ("partition=fedcorr", 1.0),
        ("partition=dirichlet centralized=true", 0.0),  # one client has everything
        ("partition._target_=tests.conf.test_experiments.Own", 0.0),
        ("partition._target_=tests.conf.test_experiments.Shuffled", 1.0),
    ],
)
def test_a_default_follows_whether_clients_have_the_same_classes(words: str, expected: float) -> None:
    """FedDiv's prior (its implementation details); a partition of one's own says what it is."""
    config = compose.resolved(compose.load(["method=feddiv", *words.split()]))
    assert config["method"]["eta"] == expected


class Own:
    alike = True


class Shuffled:
    """Says nothing of its classes."""
