"""Every method and every combination of parts, once, in a setting that runs in a second.

An entry says how it is chosen on the command line and which parts must then act in each stage. What must hold for all
of them is in ``tests/properties``. Those of a method with parts of its own are in ``tests/methods/NAME/entry.py``.
"""

import re
from collections.abc import Collection
from typing import Any

import pytest

from tests.entries import NORMED, ONE_STAGE, TINY, Entry, fedavg, of, of_methods

__all__ = ["BY_NAME", "COVERING", "NORMED", "ONE_STAGE", "REGISTRY", "REPRESENTATIVES", "TINY", "Entry", "others_slow"]

REGISTRY: tuple[Entry, ...] = (
    Entry("fedavg", ("method=fedavg", *ONE_STAGE), fedavg()),
    Entry("fedprox", ("method=fedprox", "method.mu=0.1", *ONE_STAGE), fedavg(terms="cross_entropy + fedprox")),
    Entry("fedavg_and_mixup", ("method=fedavg", "method/batch=mixup", *ONE_STAGE), fedavg(batch="Mixup")),
    Entry(
        "fedprox_and_mixup",
        ("method=fedprox", "method.mu=0.1", "method/batch=mixup", "method/aggregator=uniform_mean", *ONE_STAGE),
        fedavg(batch="Mixup", terms="cross_entropy + fedprox", rest="Mean(uniform), Replace"),
    ),
    Entry("median", ("method=median", *ONE_STAGE), fedavg(rest="Median(uniform), Replace")),
    Entry(
        "weighted_median_with_batch_norm",
        ("method=median", "method.aggregator.weights=samples", "partition=fedcorr", *NORMED, *ONE_STAGE),
        fedavg(rest="Median(samples), Replace"),
    ),
    Entry("trimmed_mean", ("method=trimmed_mean", *ONE_STAGE), fedavg(rest="TrimmedMean, Replace")),
    Entry("krum", ("method=krum", *ONE_STAGE), fedavg(rest="Krum(uniform), Replace")),
    Entry(
        "multi_krum_with_batch_norm",
        ("method=multi_krum", "method.aggregator.weights=samples", "partition=fedcorr", *NORMED, *ONE_STAGE),
        fedavg(rest="Krum(samples), Replace"),
    ),
    Entry("rfa", ("method=rfa", *ONE_STAGE), fedavg(rest="GeometricMedian(samples), Replace")),
    Entry(
        "rfa_by_tensor_with_batch_norm",
        (
            *("method=rfa", "method.aggregator.over=tensor", "method.aggregator.start=median"),
            *("method.aggregator.iterations=10", "partition=fedcorr", *NORMED, *ONE_STAGE),
        ),
        fedavg(rest="GeometricMedian(samples), Replace"),
    ),
    Entry("fedavgm", ("method=fedavgm", *ONE_STAGE), fedavg(rest="Mean(samples), Momentum")),
    Entry("fedadam", ("method=fedadam", *ONE_STAGE), fedavg(rest="Mean(samples), Adaptive")),
    Entry(
        "fedyogi_of_the_median_with_batch_norm",
        ("method=fedyogi", "method/aggregator=median", "partition=fedcorr", *NORMED, *ONE_STAGE),
        fedavg(rest="Median(uniform), Adaptive"),
    ),
    Entry("fedadagrad", ("method=fedadagrad", *ONE_STAGE), fedavg(rest="Mean(samples), Adaptive")),
    Entry(
        "power_of_choice",
        ("method=power_of_choice", "fraction=0.4", "method.candidates=6", *ONE_STAGE),
        fedavg(sampler="PowerOfChoice", rest="Mean(uniform), Replace"),
    ),
    Entry(
        "power_of_choice_by_batches",
        (
            "method=power_of_choice",
            "fraction=0.4",
            "method.candidates=6",
            "method.sampler.batch=5",
            "method.sampler.draw=uniform",
            "method.sampler.first_round=uniform",
            "method/aggregator=mean",
            *ONE_STAGE,
        ),
        fedavg(sampler="PowerOfChoice"),
    ),
    Entry("soft_labels", ("method=fedavg", "method/local=[soft_labels]", *ONE_STAGE), of("soft_labels")),
    Entry("label_smoothing", ("method=fedavg", "method/local=[label_smoothing]", *ONE_STAGE), of("label_smoothing")),
    Entry(
        "negative_label_smoothing",
        ("method=fedavg", "method/local=[negative_label_smoothing]", *ONE_STAGE),
        of("negative_label_smoothing"),
    ),
    Entry(
        "entropy_minimization",
        (
            "method=fedavg",
            "method/local=[cross_entropy,entropy_minimization]",
            "method.local.entropy_minimization.start=2",
            *ONE_STAGE,
        ),
        of("cross_entropy + entropy_minimization"),
    ),
    Entry(
        "decorrelation",
        ("method=fedavg", "method/local=[cross_entropy,decorrelation]", *ONE_STAGE),
        of("cross_entropy + decorrelation"),
    ),
    Entry(
        "temperature_scaling",
        ("method=fedavg", "method/local=[temperature_scaling]", *ONE_STAGE),
        of("temperature_scaling"),
    ),
    Entry(
        "generalized_cross_entropy",
        ("method=fedavg", "method/local=[generalized_cross_entropy]", *ONE_STAGE),
        of("generalized_cross_entropy"),
    ),
    Entry(
        "truncated_gce",
        ("method=fedavg", "method/local=[truncated_gce]", "method.local.truncated_gce.start=2", *ONE_STAGE),
        of("truncated_gce"),
    ),
    Entry(
        "truncated_gce_by_visit",
        (
            "method=fedavg",
            "method/local=[truncated_gce_by_visit]",
            "method.local.truncated_gce_by_visit.start=1",
            *ONE_STAGE,
        ),
        of("truncated_gce_by_visit"),
    ),
    Entry("apl", ("method=apl", *ONE_STAGE), of("nce + reverse_cross_entropy")),
    Entry("nfl_and_mae", ("method=fedavg", "method/local=[nfl,mae]", *ONE_STAGE), of("nfl + mae")),
    Entry(
        "ngce_and_mixup",
        ("method=fedavg", "method/local=[ngce]", "method/batch=mixup", *ONE_STAGE),
        fedavg(batch="Mixup", terms="ngce"),
    ),
    Entry("focal", ("method=fedavg", "method/local=[focal]", *ONE_STAGE), of("focal")),
    Entry(
        "symmetric_cross_entropy",
        ("method=fedavg", "method/local=[symmetric_cross_entropy]", *ONE_STAGE),
        of("symmetric_cross_entropy"),
    ),
    Entry("fedavg_with_batch_norm", ("method=fedavg", *NORMED, *ONE_STAGE), fedavg()),
    Entry(
        "fedavg_with_dropout",
        ("method=fedavg", "model=cnn", "model.widths=[4,8]", "model.dropout=0.3", "~model.hidden", *ONE_STAGE),
        fedavg(),
    ),
    Entry(
        "fedavg_on_unequal_clients",
        ("method=fedavg", "partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2", *ONE_STAGE),
        fedavg(),
    ),
    Entry("fedavg_in_double", ("method=fedavg", "precision=64", *ONE_STAGE), fedavg()),
    Entry(
        "parts_with_memory",
        (
            "method=fedavg",
            "method.server._target_=tests.properties.parts.Momentum",
            "+method.server.beta=0.5",
            "+method.local.pull={_target_:tests.properties.parts.Pull,strength:0.1}",
            "+method.local.trailing={_target_:tests.properties.parts.Trailing,strength:0.1,decay:0.75}",
            "method.gradient={_target_:tests.properties.parts.Scaled,by:0.5}",
            "method.batch._target_=tests.properties.parts.HalfTheSamples",
            *ONE_STAGE,
        ),
        fedavg("HalfTheSamples", "cross_entropy + pull + trailing, Scaled", "Mean(samples), Momentum"),
        testing=True,
    ),
    Entry(
        "two_views",
        (
            "method=fedavg",
            "method.batch._target_=tests.properties.parts.TwoViews",
            "+method.local.agreement={_target_:tests.properties.parts.Agreement,strength:0.5}",
            *ONE_STAGE,
        ),
        fedavg("TwoViews", "cross_entropy + agreement"),
        testing=True,
    ),
    Entry(
        "phases_with_a_second_pool",
        (
            "method=fedavg",
            "method.batch._target_=tests.properties.parts.EasyThenHard",
            "+method.local.guesses={_target_:tests.properties.parts.Guesses}",
            *("partition=fedcorr", "partition.alpha=1.0"),
            *ONE_STAGE,
        ),
        fedavg("EasyThenHard", "cross_entropy + guesses"),
        testing=True,
    ),
    Entry(
        "pair_of_networks",
        (
            "method=fedavg",
            "method.networks=2",
            "+method.local.peers={_target_:tests.properties.parts.PeerNetworks,again:true}",
            *ONE_STAGE,
        ),
        of("cross_entropy + peers"),
        testing=True,
    ),
    Entry(
        "pair_with_batch_norm",
        (
            "method=fedavg",
            "method.networks=2",
            "+method.local.peers={_target_:tests.properties.parts.PeerNetworks,again:false}",
            *NORMED,
            *ONE_STAGE,
        ),
        of("cross_entropy + peers"),
        testing=True,
    ),
    Entry(
        "features_at_both_ends",
        (
            "method=fedavg",
            "+method.local.centres={_target_:tests.properties.parts.ClassCentres,strength:0.1}",
            "+method.exchange.eases={_target_:tests.properties.parts.Eases}",
            "+method.local.easy={_target_:tests.properties.parts.ByEasiness,strength:0.1}",
            *ONE_STAGE,
        ),
        fedavg(terms="cross_entropy + centres + easy", rest="Mean(samples), Replace, eases"),
        testing=True,
    ),
    Entry(
        "judged",
        (
            "method=fedavg",
            "+method.exchange.judge={_target_:tests.properties.parts.Judge}",
            "+method.exchange.spread={_target_:tests.properties.parts.Spread}",
            "method.aggregator._target_=tests.properties.parts.TrustedMean",
            *ONE_STAGE,
        ),
        fedavg(rest="TrustedMean(samples), Replace, judge, spread"),
        testing=True,
    ),
    *(entry for known in of_methods().values() for entry in known.entries),
)

BY_NAME = {entry.name: entry for entry in REGISTRY}

REPRESENTATIVES = (
    "fedcorr_and_much_else",
    "fedcorr_with_batch_norm",
    "feddyn_with_batch_norm",
    "feddiv",
    "fedes_per_step",
    "flr_plus",
    "fedpeer_and_mixup",
    "parts_with_memory",
)
"""Entries with, between them, all kinds of stages and parts, and networks with and without batch norm."""


def _brings(entry: Entry) -> set[str]:
    """What an entry can be the first to bring: its method, parts, network, partition and precision."""
    chosen = {word for word in entry.overrides if word.split("=")[0] in ("method", "model", "partition", "precision")}
    parts = (re.findall(r"[a-zA-Z]\w*(?:\(\w+\))?", stage.partition(": ")[2]) for stage in entry.acting.values())
    return chosen.union(*parts)


def _covering() -> frozenset[str]:
    """The representatives, and entries that bring what no entry before them brings."""
    names = set(REPRESENTATIVES)
    brought = set().union(*(_brings(BY_NAME[name]) for name in REPRESENTATIVES))
    for entry in REGISTRY:
        if not _brings(entry) <= brought:
            names.add(entry.name)
            brought |= _brings(entry)
    return frozenset(names)


COVERING = _covering()
"""Entries that have, between them, every method, part, network, partition and precision of the registry."""


def others_slow(fast: Collection[str] = REPRESENTATIVES) -> list[Any]:
    """The registry as parameters of a test that is fast for some entries alone."""
    return [e if e.name in fast else pytest.param(e, marks=pytest.mark.slow) for e in REGISTRY]
