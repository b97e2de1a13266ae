"""Every method and every combination of parts, once, in a setting that runs in a second.

An entry says how it is chosen on the command line and which parts must then act in each stage. What must hold for all
of them is in ``tests/properties``; a new method adds its line here.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

TINY = (
    "dataset.train_size=170",
    "dataset.test_size=50",
    "partition.num_clients=8",  # 21 or 22 samples each: with batches of 7, the last one may be of one sample
    "fraction=0.75",  # 6 clients: more than one block
    "model=mlp",
    "model.hidden=[8]",
    "train.batch_size=7",
    "train.epochs=2",
    "executor=sequential",  # the others are held against it in tests/engine/executors
    "wandb.mode=disabled",
    "figures=false",
)
"""A data set, a network and a protocol small enough for a run to take a second; for every entry."""

ONE_STAGE = ("rounds=5",)
THREE_STAGES = (
    "method.T1=2",
    "method.T2=2",
    "method.T3=2",
    "method.theta=0.15",  # so low that a hardly trained network changes labels in both stages
    "method.pi=1.0",
    "noise.rho=0.8",
    "fraction=0.4",
)
FADING = ("train.lr_decay=0.9", "method.server.evaluate=server")
NORMED = ("model=resnet8", "model.width=4", "model.blocks=[1]", "~model.hidden")


@dataclass(frozen=True)
class Entry:
    """One method or combination."""

    name: str
    overrides: tuple[str, ...]
    acting: Mapping[str, str]  # stage by stage, as ``tests.properties.test_parts`` puts it
    cuts: tuple[int, ...] = (1, 3)  # rounds after which a run is stopped and gone on with
    testing: bool = False  # has parts that only tests have, which the command line does not know

    @property
    def words(self) -> list[str]:
        """The overrides of a tiny run; what the entry says itself comes last."""
        own = {word.lstrip("+~").split("=")[0] for word in self.overrides if not word.startswith("~")}
        gone = {word[1:] for word in self.overrides if word.startswith("~")}
        kept = [word for word in TINY if word.split("=")[0] not in own | gone]
        return [*kept, *(word for word in self.overrides if not word.startswith("~"))]

    def __str__(self) -> str:
        return self.name


def _fedavg(
    batch: str = "Plain",
    terms: str = "cross_entropy",
    rest: str = "Mean(samples), Replace",
    sampler: str = "Uniform",
) -> dict[str, str]:
    return {"training": f"5 rounds: {sampler}, {batch}, {terms}, {rest}"}


def _of(terms: str) -> dict[str, str]:
    """FedAvg with another loss."""
    return _fedavg(terms=terms)


PREPROCESS = (
    "2 passes: OnePass, Mixup, cross_entropy + adaptive_proximal, Mean(samples), Replace, lid, top_losses at pass"
)
FINETUNE = "2 rounds: CleanOnly, Mixup, cross_entropy, Mean(samples), Replace, all_confident at end"


def _fedcorr(
    terms: str = "cross_entropy", rest: str = "Mean(samples), Replace", sampler: str = "Uniform"
) -> dict[str, str]:
    """FedCorr's stages: whatever is chosen acts in the last one only."""
    return {
        "preprocess": PREPROCESS,
        "finetune": FINETUNE,
        "usual": f"2 rounds: {sampler}, Mixup, {terms}, {rest}",
    }


CHAIN = (3, 8, 17)
"""Of 20 rounds: inside a pass, at its end where labels are corrected, inside the second stage."""
BORDERS = (16, 18)
"""Of 20 rounds: at the ends of the first two stages."""

TWO_STAGES = ("method.T_wu=1", "method.T=3", "method.zeta=0.2", "method.at_least=1", "noise.rho=0.8", "fraction=0.4")


def _feddiv(batch: str = "Reselection", rest: str = "noise_filter") -> dict[str, str]:
    """FedDiv's stages: whatever is chosen acts in the last one only."""
    return {
        "warmup": "1 passes: OnePass, Mixup, cross_entropy, Mean(samples), Replace",
        "usual": f"3 rounds: Uniform, {batch}, cross_entropy + prior, Mean(samples), Replace, {rest}",
    }


PRETRAINED = ("method.s1=2", "method.T=3", "noise.rho=0.8", "fraction=0.75")


def _fedes(
    rest: str = "SelectiveDecay, QualityMean(quality), Replace, quality",
    sampler: str = "Uniform",
    terms: str = "cross_entropy",
) -> dict[str, str]:
    """FedES's stages: whatever is chosen acts in the last one only."""
    return {
        "pretrain": "2 rounds: Uniform, Plain, cross_entropy, Mean(samples), Replace, quality",
        "usual": f"3 rounds: {sampler}, Plain, {terms}, {rest}",
    }


ASSESSED = (1, 2, 4)
"""Of 5 rounds: before clients are compared, just after, inside the second stage."""

WARMED = (4, 8, 10)
"""Of 11 rounds: inside the warm-up, at its end, inside the second stage."""

REGISTRY: tuple[Entry, ...] = (
    Entry("fedavg", ("method=fedavg", *ONE_STAGE), _fedavg()),
    Entry("fedprox", ("method=fedprox", "method.mu=0.1", *ONE_STAGE), _fedavg(terms="cross_entropy + fedprox")),
    Entry("fedcorr", ("method=fedcorr", *THREE_STAGES), _fedcorr(), CHAIN),
    Entry("fedcorr_released", ("method=fedcorr_released", *THREE_STAGES), _fedcorr(), BORDERS),
    Entry(
        "fedcorr_groups",
        ("method=fedcorr", "method.gamma1=0.3", *THREE_STAGES),
        _fedcorr(),
        (2, 4, 9),
    ),
    Entry(
        "fedcorr_parallel",
        ("method=fedcorr", "method.stage1=parallel_average", *THREE_STAGES),
        _fedcorr(),
        (1, 2, 4),
    ),
    Entry(
        "fedcorr_and_fedprox",
        ("method=fedcorr", "method/local=[cross_entropy,fedprox]", *THREE_STAGES),
        _fedcorr(terms="cross_entropy + fedprox"),
        BORDERS,
    ),
    Entry(
        "fedcorr_and_uniform_mean",
        ("method=fedcorr", "method/aggregator=uniform_mean", *THREE_STAGES),
        _fedcorr(rest="Mean(uniform), Replace"),
        BORDERS,
    ),
    Entry("fedavg_and_mixup", ("method=fedavg", "method/batch=mixup", *ONE_STAGE), _fedavg(batch="Mixup")),
    Entry(
        "fedprox_and_mixup",
        ("method=fedprox", "method.mu=0.1", "method/batch=mixup", "method/aggregator=uniform_mean", *ONE_STAGE),
        _fedavg(batch="Mixup", terms="cross_entropy + fedprox", rest="Mean(uniform), Replace"),
    ),
    Entry(
        "feddyn",
        ("method=feddyn", "method.feddyn_alpha=0.1", *ONE_STAGE),
        _fedavg(terms="cross_entropy + feddyn", rest="Mean(uniform), FedDyn"),
    ),
    Entry(
        "feddyn_with_batch_norm",
        ("method=feddyn", "method.local.feddyn.mean_samples=21.25", "method/batch=mixup", *NORMED, *ONE_STAGE, *FADING),
        _fedavg(batch="Mixup", terms="cross_entropy + feddyn", rest="Mean(uniform), FedDyn"),
    ),
    Entry(
        "fedcorr_and_feddyn",
        (
            "method=fedcorr",
            "method/local=[cross_entropy,feddyn]",
            "method/aggregator=uniform_mean",
            "method/server=feddyn",
            *THREE_STAGES,
        ),
        _fedcorr(terms="cross_entropy + feddyn", rest="Mean(uniform), FedDyn"),
        (16, 18, 19),
    ),
    Entry("median", ("method=median", *ONE_STAGE), _fedavg(rest="Median(uniform), Replace")),
    Entry(
        "weighted_median_with_batch_norm",
        ("method=median", "method.aggregator.weights=samples", "partition=fedcorr", *NORMED, *ONE_STAGE),
        _fedavg(rest="Median(samples), Replace"),
    ),
    Entry(
        "fedcorr_and_median",
        ("method=fedcorr", "method/aggregator=median", *THREE_STAGES),
        _fedcorr(rest="Median(uniform), Replace"),
        BORDERS,
    ),
    Entry(
        "power_of_choice",
        ("method=power_of_choice", "fraction=0.4", "method.candidates=6", *ONE_STAGE),
        _fedavg(sampler="PowerOfChoice", rest="Mean(uniform), Replace"),
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
        _fedavg(sampler="PowerOfChoice"),
    ),
    Entry(
        "fedcorr_and_power_of_choice",
        (
            "method=fedcorr",
            "method/sampler=power_of_choice",
            "method.sampler.d=5",
            "method/aggregator=uniform_mean",
            *THREE_STAGES,
        ),
        _fedcorr(sampler="PowerOfChoice", rest="Mean(uniform), Replace"),
        BORDERS,
    ),
    Entry("label_smoothing", ("method=fedavg", "method/local=[label_smoothing]", *ONE_STAGE), _of("label_smoothing")),
    Entry(
        "negative_label_smoothing",
        ("method=fedavg", "method/local=[negative_label_smoothing]", *ONE_STAGE),
        _of("negative_label_smoothing"),
    ),
    Entry(
        "entropy_minimization",
        (
            "method=fedavg",
            "method/local=[cross_entropy,entropy_minimization]",
            "method.local.entropy_minimization.start=2",
            *ONE_STAGE,
        ),
        _of("cross_entropy + entropy_minimization"),
    ),
    Entry(
        "temperature_scaling",
        ("method=fedavg", "method/local=[temperature_scaling]", *ONE_STAGE),
        _of("temperature_scaling"),
    ),
    Entry(
        "generalized_cross_entropy",
        ("method=fedavg", "method/local=[generalized_cross_entropy]", *ONE_STAGE),
        _of("generalized_cross_entropy"),
    ),
    Entry(
        "truncated_gce",
        ("method=fedavg", "method/local=[truncated_gce]", "method.local.truncated_gce.start=2", *ONE_STAGE),
        _of("truncated_gce"),
    ),
    Entry(
        "truncated_gce_by_visit",
        (
            "method=fedavg",
            "method/local=[truncated_gce_by_visit]",
            "method.local.truncated_gce_by_visit.start=1",
            *ONE_STAGE,
        ),
        _of("truncated_gce_by_visit"),
    ),
    Entry(
        "symmetric_cross_entropy",
        ("method=fedavg", "method/local=[symmetric_cross_entropy]", *ONE_STAGE),
        _of("symmetric_cross_entropy"),
    ),
    Entry(
        "fedcorr_and_much_else",
        (
            "method=fedcorr",
            "method/local=[generalized_cross_entropy,entropy_minimization,fedprox,feddyn]",
            "method.local.entropy_minimization.start=0",
            "method.local.entropy_minimization.weight=0.4",
            "method/sampler=power_of_choice",
            "method.sampler.d=5",
            "method/aggregator=median",
            "method/server=feddyn",
            *THREE_STAGES,
        ),
        _fedcorr(
            sampler="PowerOfChoice",
            terms="generalized_cross_entropy + entropy_minimization + fedprox + feddyn",
            rest="Median(uniform), FedDyn",
        ),
        (16, 18, 19),
    ),
    Entry("fedavg_with_batch_norm", ("method=fedavg", *NORMED, *ONE_STAGE), _fedavg()),
    Entry(
        "fedavg_with_dropout",
        ("method=fedavg", "model=cnn", "model.widths=[4,8]", "model.dropout=0.3", "~model.hidden", *ONE_STAGE),
        _fedavg(),
    ),
    Entry("fedcorr_with_batch_norm", ("method=fedcorr", *NORMED, *THREE_STAGES), _fedcorr(), CHAIN),
    Entry("fedcorr_with_dropout", ("method=fedcorr", "model.dropout=0.3", *THREE_STAGES), _fedcorr(), BORDERS),
    Entry(
        "fedavg_on_unequal_clients",
        ("method=fedavg", "partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2", *ONE_STAGE),
        _fedavg(),
    ),
    Entry(
        "fedcorr_on_unequal_clients",
        ("method=fedcorr", "partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2", *THREE_STAGES),
        _fedcorr(),
        BORDERS,
    ),
    Entry("feddiv", ("method=feddiv", "method.eta=1.0", *TWO_STAGES), _feddiv(), WARMED),
    Entry("feddiv_degraded", ("method=feddiv", "method.filter=degraded", *TWO_STAGES), _feddiv(), WARMED),
    Entry("feddiv_local", ("method=feddiv", "method.filter=local", *TWO_STAGES), _feddiv(), WARMED),
    Entry(
        "feddiv_withdrawn",
        (
            *("method=feddiv", "method.filter_init=blobs", "method.var_agg=squared_share", "method.guard=false"),
            *("method.sort_components=false", "method.loss=ce_of_softmax", "method.pcs=cached", "method.pcs_start=1"),
            *("method.bias_samples=confident", "method.inference_augment=true", "method.relabel_persist=true"),
            *TWO_STAGES,
        ),
        _feddiv(),
        WARMED,
    ),
    Entry("feddiv_with_batch_norm", ("method=feddiv", *NORMED, *TWO_STAGES), _feddiv(), WARMED),
    Entry(
        "feddiv_on_unequal_clients",
        (
            *("method=feddiv", "method.loss=ce", "method.loss_norm=none"),
            *("partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2", *TWO_STAGES),
        ),
        _feddiv(),
        WARMED,
    ),
    Entry("fedes", ("method=fedes", *PRETRAINED), _fedes(), ASSESSED),
    Entry(
        "fedes_released",
        (
            *("method=fedes", "method.quality=confidence", "method.mask=per_step", "method.mask_target=grad"),
            *("method.aggregation=samples", *PRETRAINED),
        ),
        _fedes("SelectiveDecay, QualityMean(samples), Replace, quality"),
        ASSESSED,
    ),
    Entry(
        "fedes_per_step",
        (
            *("method=fedes", "method.quality=emd", "method.emd=quantiles", "method.mask=per_step"),
            *("method.cop_norm=none", "method.restart=true"),
            *("train.momentum=0.9", "train.weight_decay=0.001", *PRETRAINED),
        ),
        _fedes(),
        ASSESSED,
    ),
    Entry(
        "fedes_client_selection",
        (
            *("method=fedes", "method/sampler=of_quality", "method.segd=false", "method.aggregation=samples"),
            *("method.emd=subset", "method.sign_stat=gmm1d", *PRETRAINED),
        ),
        _fedes("SelectiveDecay, QualityMean(samples), Replace, quality", "OfQuality"),
        ASSESSED,
    ),
    Entry(
        "fedes_of_relevances",
        ("method=fedes", "method.quality=sfedavg_phi", "eval.benchmark=0.2", *PRETRAINED),
        _fedes(),
        ASSESSED,
    ),
    Entry(
        "fedes_of_drops",
        (
            "method=fedes",
            "method.quality=fair_qhat",
            "method.cop_norm=none",
            "eval.benchmark=0.2",
            *NORMED,
            *PRETRAINED,
        ),
        _fedes(),
        ASSESSED,
    ),
    Entry("fedes_of_an_oracle", ("method=fedes", "method.quality=oracle", *PRETRAINED), _fedes(), ASSESSED),
    Entry("fedes_with_batch_norm", ("method=fedes", *NORMED, *PRETRAINED), _fedes(), ASSESSED),
    Entry(
        "fedprox_and_quality",
        (
            *("method=fedes", "method/local=[cross_entropy,fedprox]", "method.local.fedprox.mu=0.1"),
            *("method/aggregator=quality_mean", "method/gradient=selective_decay", "method/exchange=[quality]"),
            *PRETRAINED,
        ),
        _fedes(terms="cross_entropy + fedprox"),
        ASSESSED,
    ),
    Entry(
        "fedavg_and_reselection",
        (
            *("method=fedavg", "method/batch=reselection", "method/exchange=[noise_filter]"),
            *("method/local=[cross_entropy,prior]", *ONE_STAGE),
        ),
        _fedavg(batch="Reselection", terms="cross_entropy + prior", rest="Mean(samples), Replace, noise_filter"),
    ),
    Entry("fedavg_in_double", ("method=fedavg", "precision=64", *ONE_STAGE), _fedavg()),
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
        _fedavg("HalfTheSamples", "cross_entropy + pull + trailing, Scaled", "Mean(samples), Momentum"),
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
        _fedavg("TwoViews", "cross_entropy + agreement"),
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
        _fedavg("EasyThenHard", "cross_entropy + guesses"),
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
        _of("cross_entropy + peers"),
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
        _of("cross_entropy + peers"),
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
        _fedavg(terms="cross_entropy + centres + easy", rest="Mean(samples), Replace, eases"),
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
        _fedavg(rest="TrustedMean(samples), Replace, judge, spread"),
        testing=True,
    ),
    Entry(
        "fedcorr_and_parts_with_memory",
        (
            "method=fedcorr",
            "method.server._target_=tests.properties.parts.Momentum",
            "+method.server.beta=0.5",
            "+method.local.pull={_target_:tests.properties.parts.Pull,strength:0.1}",
            "method.gradient={_target_:tests.properties.parts.Scaled,by:0.5}",
            *THREE_STAGES,
        ),
        _fedcorr(terms="cross_entropy + pull, Scaled", rest="Mean(samples), Momentum"),
        CHAIN,
        testing=True,
    ),
)

FLR_WORDS = ("method=flr", "method.R_w=1", *ONE_STAGE)
"""One round of warm-up; from the third of the five rounds on the server's average has a memory."""
FLR_TERMS = "cross_entropy + flr"
FLR_PLUS = ("method=flr_plus", *THREE_STAGES)

REGISTRY += (
    Entry("flr", FLR_WORDS, _fedavg(terms=FLR_TERMS)),
    Entry("flr_elr", ("method=flr_elr", *FLR_WORDS[1:]), _fedavg(terms=FLR_TERMS)),
    Entry("flr_slr", ("method=flr_slr", *FLR_WORDS[1:]), _fedavg(terms=FLR_TERMS)),
    Entry("flr_er", ("method=flr_er", *FLR_WORDS[1:]), _fedavg(terms=FLR_TERMS)),
    Entry("elr", ("method=elr", *ONE_STAGE), _fedavg(terms="cross_entropy + elr")),
    Entry(
        "flr_once_a_round",
        (*FLR_WORDS, "method.server_pred=once", "method.warmup=server_reg", "method.R=3"),
        _fedavg(terms=FLR_TERMS),
    ),
    Entry(
        "flr_on_half_the_samples",
        (*FLR_WORDS, "method.batch._target_=tests.properties.parts.HalfTheSamples"),
        _fedavg(batch="HalfTheSamples", terms=FLR_TERMS),
        testing=True,
    ),
    Entry("flr_with_batch_norm", (*FLR_WORDS, *NORMED), _fedavg(terms=FLR_TERMS)),
    Entry("flr_and_mixup", (*FLR_WORDS, "method/batch=mixup"), _fedavg(batch="Mixup", terms=FLR_TERMS)),
    Entry(
        "flr_and_fedprox",
        ("method=fedprox", "method.mu=0.1", "method/local=[flr,fedprox]", "method.local.flr.R_w=1", *ONE_STAGE),
        _fedavg(terms=f"{FLR_TERMS} + fedprox"),
    ),
    Entry(
        "flr_plus",
        FLR_PLUS,
        {
            "preprocess": PREPROCESS,
            "finetune": FINETUNE.replace("cross_entropy", FLR_TERMS),
            "usual": f"2 rounds: Uniform, Mixup, {FLR_TERMS}, Mean(samples), Replace",
        },
        (8, 17, 19),
    ),
    Entry(
        "fedcorr_and_flr",
        ("method=fedcorr", "method/local=[flr]", *THREE_STAGES),
        _fedcorr(terms=FLR_TERMS),
        BORDERS,
    ),
)

PEER_REST = "Mean(samples), Scaled, label_sharing"
OPENSET = ("partition=openset", "noise=symmetric", "noise.eta=0.3", *ONE_STAGE)

REGISTRY += (
    Entry("fedpeer", ("method=fedpeer", *OPENSET), _fedavg(terms="fedpeer", rest=PEER_REST)),
    Entry("fedpeer_cores", ("method=fedpeer", "method.peer=cores", *OPENSET), _fedavg(terms="fedpeer", rest=PEER_REST)),
    Entry(
        "fedpeer_by_itself",
        ("method=fedpeer", "method.peer_dist=local", "method.ramp=true", "method.ramp_start=1", *OPENSET),
        _fedavg(terms="fedpeer", rest=PEER_REST),
    ),
    Entry(
        "fedpeer_and_mixup",
        ("method=fedpeer", "method/batch=mixup", "method.floor_terms=both", *NORMED, *ONE_STAGE),
        _fedavg(batch="Mixup", terms="fedpeer", rest=PEER_REST),
    ),
    Entry(
        "fedcorr_and_a_long_step",
        ("method=fedcorr", "method/server=scaled", "method.server.rate=1.2", *NORMED, *THREE_STAGES),
        _fedcorr(rest="Mean(samples), Scaled"),
        BORDERS,
    ),
    Entry(
        "fedpeer_in_half_steps",
        ("method=fedpeer", "method.alpha_g=0.5", *OPENSET),
        _fedavg(terms="fedpeer", rest=PEER_REST),
    ),
    Entry(
        "fedcorr_and_fedpeer",
        ("method=fedcorr", "method/local=[fedpeer]", "method/exchange=[lid,label_sharing]", *THREE_STAGES),
        {
            "preprocess": PREPROCESS.replace("lid,", "lid, label_sharing,"),
            "finetune": FINETUNE.replace("Replace,", "Replace, label_sharing,"),
            "usual": "2 rounds: Uniform, Mixup, fedpeer, Mean(samples), Replace, label_sharing",
        },
        (16, 18, 19),
    ),
)

TAUGHT = ("method.num_gradual=2", "noise=symmetric", "noise.eta=0.4", *ONE_STAGE)
TEACHING_REST = "Mean(samples), Replace, small_loss"

REGISTRY += (
    Entry("co_teaching", ("method=co_teaching", *TAUGHT), _fedavg(terms="co_teaching", rest=TEACHING_REST)),
    Entry(
        "co_teaching_as_released",
        ("method=co_teaching", "method.schedule=released", "method.exponent=2.0", "method.forget_rate=0.3", *ONE_STAGE),
        _fedavg(terms="co_teaching", rest=TEACHING_REST),
    ),
    Entry(
        "co_teaching_plus",
        ("method=co_teaching_plus", "method.disagree_from=2", *TAUGHT),
        _fedavg(terms="co_teaching", rest=TEACHING_REST),
    ),
    Entry(
        "co_teaching_plus_with_batch_norm",
        ("method=co_teaching_plus", "method.disagree_from=1", "method/batch=mixup", *NORMED, *TAUGHT),
        _fedavg(batch="Mixup", terms="co_teaching", rest=TEACHING_REST),
    ),
    Entry(
        "co_teaching_on_unequal_clients",
        ("method=co_teaching", "partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2", *TAUGHT),
        _fedavg(terms="co_teaching", rest=TEACHING_REST),
    ),
    Entry(
        "co_teaching_by_true_rates",
        ("method=co_teaching", "method/exchange=[small_loss,true_noise_rates]", *TAUGHT),
        _fedavg(terms="co_teaching", rest=f"{TEACHING_REST}, true_noise_rates"),
    ),
    Entry(
        "fedcorr_and_co_teaching",
        ("method=fedcorr", "method.networks=2", "method/local=[co_teaching]", *THREE_STAGES),
        _fedcorr(terms="co_teaching"),
        BORDERS,
    ),
)

AGREED = ("method=rofl", "method.num_gradual=2", "method.T_pl=2", "noise=symmetric", "noise.eta=0.4", *ONE_STAGE)
"""Labels are corrected from the third of five rounds on."""
CENTROIDS = "Mean(uniform), Replace, class_centroids"

REGISTRY += (
    Entry("rofl", AGREED, _fedavg(terms="rofl", rest=CENTROIDS)),
    Entry(
        "rofl_by_true_rates",
        (*AGREED, "method/exchange=[class_centroids,true_noise_rates]"),
        _fedavg(terms="rofl", rest=f"{CENTROIDS}, true_noise_rates"),
    ),
    Entry(
        "rofl_as_released_with_batch_norm",
        (
            *(*AGREED, "method.schedule=released", "method.cen_reduction=sum", "method.detach_features=true"),
            *("method.lambda_cen=1.0", "method/batch=mixup", "method/aggregator=mean", *NORMED),
        ),
        _fedavg("Mixup", "rofl", "Mean(samples), Replace, class_centroids"),
    ),
    Entry(
        "fedcorr_and_rofl",
        (
            *("method=fedcorr", "method/local=[rofl,fedprox]", "method/exchange=[lid,class_centroids]"),
            *("method.local.rofl.T_pl=19", "partition=fedcorr", "partition.alpha=1.0", *THREE_STAGES),
        ),
        {
            "preprocess": PREPROCESS.replace("lid,", "lid, class_centroids,"),
            "finetune": FINETUNE.replace("Replace,", "Replace, class_centroids,"),
            "usual": "2 rounds: Uniform, Mixup, rofl + fedprox, Mean(samples), Replace, class_centroids",
        },
        (16, 18, 19),
    ),
)

REWEIGHTED = "ResidualReweighting, Replace"

REGISTRY += (
    Entry("arfl", ("method=arfl", *ONE_STAGE), _fedavg(rest=REWEIGHTED)),
    Entry(
        "arfl_as_released_with_batch_norm",
        (
            *("method=arfl", "method.aggregator.distance_buffers=true", "method.delta=0.5", "partition=fedcorr"),
            *(*NORMED, *ONE_STAGE),
        ),
        _fedavg(rest=REWEIGHTED),
    ),
    Entry(
        "fedcorr_and_arfl",
        ("method=fedcorr", "method/aggregator=residual_reweighting", *THREE_STAGES),
        _fedcorr(rest=REWEIGHTED),
        BORDERS,
    ),
)

CLEAN = ("eval.benchmark=0.2", *ONE_STAGE)
RELEVANT_REST = "Mean(uniform), Replace, relevance"

REGISTRY += (
    Entry("s_fedavg", ("method=s_fedavg", *CLEAN), _fedavg(rest=RELEVANT_REST, sampler="ByRelevance")),
    Entry(
        "s_fedavg_by_orders_with_batch_norm",
        (
            *("method=s_fedavg", "method.temperature=0.01", "method.permutations=2", "fraction=0.9"),
            *("method/aggregator=mean", "method.exchange.relevance.weights=samples", *NORMED, *CLEAN),
        ),
        _fedavg(rest="Mean(samples), Replace, relevance", sampler="ByRelevance"),
    ),
    Entry(
        "fedprox_and_relevance",
        (
            *("method=fedprox", "method.mu=0.1", "method/sampler=by_relevance", "method/exchange=[relevance]"),
            *("fraction=0.4", *CLEAN),
        ),
        _fedavg(terms="cross_entropy + fedprox", rest="Mean(samples), Replace, relevance", sampler="ByRelevance"),
    ),
)

SELECTED = "LearningQualityMean, Replace, learning_quality"

REGISTRY += (
    Entry("fair", ("method=fair", *CLEAN), _fedavg(rest=SELECTED, sampler="TopQuality")),
    Entry(
        "fair_without_exploration",
        ("method=fair", "method.exploration=0.0", "method.rho=0.3", "fraction=0.5", "partition=fedcorr", *CLEAN),
        _fedavg(rest=SELECTED, sampler="TopQuality"),
    ),
    Entry(
        "fair_of_local_losses_with_batch_norm",
        (
            *("method=fair", "method.loss_on=local", "method.nonpositive=skip", "method.exploration=0.5"),
            *("fraction=0.4", "partition=fedcorr", *NORMED, *ONE_STAGE),
        ),
        _fedavg(rest=SELECTED, sampler="TopQuality"),
    ),
    Entry(
        "fedcorr_and_fair",
        (
            *("method=fedcorr", "method/sampler=top_quality", "method/aggregator=learning_quality_mean"),
            *("method/exchange=[lid,learning_quality]", "eval.benchmark=0.2", *THREE_STAGES),
        ),
        {
            "preprocess": PREPROCESS.replace("lid,", "lid, learning_quality,"),
            "finetune": FINETUNE.replace("Replace,", "Replace, learning_quality,"),
            "usual": "2 rounds: TopQuality, Mixup, cross_entropy, LearningQualityMean, Replace, learning_quality",
        },
        BORDERS,
    ),
)

CORRECTED = ("method.T_wu=2", "method.T=3", "noise=symmetric", "noise.eta=0.4")
"""Matrices are estimated after the second of five rounds."""
UNSURE = ("method=forward_correction", "method.threshold=0.15", *CORRECTED)
"""So low a threshold that a hardly trained network is confident."""


def _corrected(terms: str = "forward_correction", rest: str = "Mean(samples), Replace") -> dict[str, str]:
    """LC's stages: the chosen terms act in the last one only."""
    return {
        "warmup": f"2 rounds: Uniform, Plain, cross_entropy, {rest}, transition_matrix",
        "usual": f"3 rounds: Uniform, Plain, {terms}, {rest}, transition_matrix",
    }


REGISTRY += (
    Entry("forward_correction", UNSURE, _corrected(), ASSESSED),
    Entry("forward_correction_by_anchors", (*UNSURE, "method.estimator=anchor"), _corrected(), ASSESSED),
    Entry("reweighting_with_batch_norm", (*UNSURE, "method.form=reweight", *NORMED), _corrected(), ASSESSED),
    Entry(
        "forward_correction_and_fedprox",
        (
            *(*UNSURE, "method/local=[forward_correction,fedprox]", "method/aggregator=uniform_mean"),
            *("partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2"),
        ),
        _corrected("forward_correction + fedprox", "Mean(uniform), Replace"),
        ASSESSED,
    ),
    Entry(
        "fedcorr_and_forward_correction",
        (
            *("method=fedcorr", "method/local=[forward_correction]", "method/exchange=[lid,transition_matrix]"),
            *("method.exchange.transition_matrix.threshold=0.15", *THREE_STAGES),
        ),
        {
            "preprocess": PREPROCESS.replace("lid,", "lid, transition_matrix,"),
            "finetune": FINETUNE.replace("Replace,", "Replace, transition_matrix,"),
            "usual": "2 rounds: Uniform, Mixup, forward_correction, Mean(samples), Replace, transition_matrix",
        },
        (16, 18, 19),
    ),
)
REVISED = ("method=t_revision", "method.T_wu=1", "method.T_lc=2", "method.T=2", *CORRECTED[2:])


def _revised(rest: str = "Mean(samples), Replace") -> dict[str, str]:
    """T-revision's stages."""
    return {
        name: f"{length} rounds: Uniform, Plain, {term}, {rest}, transition_matrix"
        for name, length, term in (
            ("warmup", 1, "cross_entropy"),
            ("correct", 2, "forward_correction"),
            ("usual", 2, "t_revision"),
        )
    }


REGISTRY += (
    Entry("t_revision", REVISED, _revised(), (1, 3, 4)),
    Entry(
        "t_revision_by_reweighting",
        (*REVISED, "method.correction=reweight", "method.form=reweight", "method.slack_lr=0.001"),
        _revised(),
        (1, 3, 4),
    ),
    Entry(
        "t_revision_with_batch_norm",
        (*REVISED, "method.slack_lr=0.001", "method.estimator=confident", "method.threshold=0.15", *NORMED),
        _revised(),
        (1, 3, 4),
    ),
    Entry(
        "t_revision_on_unequal_clients",
        (
            *(*REVISED, "method.slack_lr=0.01", "partition=fedcorr", "partition.alpha=1.0", "method.slack_decay=0.1"),
            "train.keep_momentum=true",
        ),
        _revised(),
        (1, 3, 4),
    ),
    Entry(
        "fedcorr_and_t_revision",
        (
            *("method=fedcorr", "method/local=[t_revision]", "method/exchange=[lid,transition_matrix]"),
            *("method.local.t_revision.lr=0.001", *THREE_STAGES),
        ),
        {
            "preprocess": PREPROCESS.replace("lid,", "lid, transition_matrix,"),
            "finetune": FINETUNE.replace("Replace,", "Replace, transition_matrix,"),
            "usual": "2 rounds: Uniform, Mixup, t_revision, Mean(samples), Replace, transition_matrix",
        },
        (16, 18, 19),
    ),
)
SPLIT = ("method.s1=2", "method.T=3", "method.ramp_end=4", "noise.rho=0.8", "fraction=0.75")


def _fednoro(batch: str = "Plain", rest: str = "DistanceAware, Replace", terms: str = "") -> dict[str, str]:
    """FedNoRo's stages, which have the same parts."""
    return {
        name: f"{length} rounds: Uniform, {batch}, fednoro{terms}, {rest}, class_losses"
        for name, length in (("warmup", 2), ("usual", 3))
    }


REGISTRY += (
    Entry("fednoro", ("method=fednoro", *SPLIT), _fednoro(), ASSESSED),
    Entry(
        "fednoro_with_batch_norm",
        (
            *("method=fednoro", "method/aggregator=distance_aware", "method.distance_buffers=true"),
            *("method.inference_augment=true", *NORMED, *SPLIT),
        ),
        _fednoro(),
        ASSESSED,
    ),
    Entry(
        "fednoro_and_mixup",
        ("method=fednoro", "method/batch=mixup", "method/aggregator=mean", *SPLIT),
        _fednoro("Mixup", "Mean(samples), Replace"),
        ASSESSED,
    ),
    Entry(
        "fednoro_and_fedprox_on_unequal_clients",
        (
            *("method=fednoro", "method/local=[fednoro,fedprox]", "method.distance=flat_l2", *SPLIT),
            *("partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2"),
        ),
        _fednoro(terms=" + fedprox"),
        ASSESSED,
    ),
)
REGISTRY += (
    Entry("fedlsr", ("method=fedlsr", *ONE_STAGE), _of("fedlsr")),
    Entry(
        "fedlsr_as_released_with_batch_norm",
        (
            *("method=fedlsr", "method.variant=official_code", "method.plus=true", "method.view=mirror"),
            *("method/batch=mixup", *NORMED, *ONE_STAGE),
        ),
        _fedavg(batch="Mixup", terms="fedlsr"),
    ),
    Entry(
        "fedcorr_and_fedlsr", ("method=fedcorr", "method/local=[fedlsr]", *THREE_STAGES), _fedcorr("fedlsr"), BORDERS
    ),
)

CHOOSING = ("method.T_wu=2", "method.T=3", "noise.rho=0.8", "fraction=0.75")
NEAR = "Mean(samples), Replace, reliable_neighbours"
FEDRN = {
    "warmup": f"2 rounds: Uniform, Plain, cross_entropy, {NEAR}",
    "usual": f"3 rounds: Uniform, ReliableSamples, cross_entropy, {NEAR}",
}

REGISTRY += (
    Entry("fedrn", ("method=fedrn", *CHOOSING), FEDRN, ASSESSED),
    Entry(
        "fedrn_with_batch_norm_on_unequal_clients",
        (
            *("method=fedrn", "method/batch=reliable_samples", "method.neighbours=3", "method.alpha=0"),
            *(*NORMED, *CHOOSING),
            *("partition=fedcorr", "partition.alpha=1.0", "train.lr_decay=0.9"),
        ),
        FEDRN,
        ASSESSED,
    ),
    Entry(
        "fedavg_beside_reliable_neighbours",  # in stacks: clients choose samples, but train on all
        (
            *("method=fedavg", "method/exchange=[reliable_neighbours]", *ONE_STAGE),
            "method.exchange.reliable_neighbours.stage=1",
        ),
        _fedavg(rest=NEAR),
    ),
)

RELABELLED = ("method=joint_opt", "method.T_wu=1", "method.T=3", "method.window=3", "method.epochs=2", "noise.rho=0.8")
"""Labels are updated from a client's third epoch on."""


def _joint_opt(final: int = 0, batch: str = "Plain", terms: str = "", rest: str = "Mean(samples)") -> dict[str, str]:
    """JointOpt's stages: the chosen terms act in the second one only."""
    return {
        name: f"{length} rounds: Uniform, {batch}, {term}, {rest}, Replace, soft_labels"
        for name, length, term in (
            ("warmup", 1, "cross_entropy"),
            ("usual", 3, f"joint_opt{terms}"),
            ("final", final, "joint_opt"),
        )
    }


REGISTRY += (
    Entry("joint_opt", RELABELLED, _joint_opt(), (1, 2, 3)),
    Entry(
        "joint_opt_with_another_network_on_the_final_labels",
        (*RELABELLED, "method.T_final=2", "method.final_milestones=[1]", "train.keep_momentum=true"),
        _joint_opt(2),
        (1, 3, 4, 5),
    ),
    Entry(
        "joint_opt_and_mixup_with_batch_norm",
        (
            *(*RELABELLED, "method/batch=mixup", "method/local=[joint_opt,fedprox]", "method.incomplete=average"),
            *("method.update_from=1", "method/aggregator=uniform_mean", *NORMED),
        ),
        _joint_opt(0, "Mixup", " + fedprox", "Mean(uniform)"),
        (1, 2, 3),
    ),
    Entry(
        "joint_opt_on_unequal_clients",
        (*RELABELLED, "method.prior=labels", "partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2"),
        _joint_opt(),
        (1, 2, 3),
    ),
    Entry(
        "fedcorr_and_joint_opt",
        (
            *("method=fedcorr", "method/local=[joint_opt]", "method/exchange=[lid,soft_labels]"),
            *("method.local.joint_opt.window=2", *THREE_STAGES),
        ),
        {
            "preprocess": PREPROCESS.replace("lid,", "lid, soft_labels,"),
            "finetune": FINETUNE.replace("Replace,", "Replace, soft_labels,"),
            "usual": "2 rounds: Uniform, Mixup, joint_opt, Mean(samples), Replace, soft_labels",
        },
        (16, 18, 19),
    ),
)

DIVIDED = (
    "method=dividemix",
    "method/batch=co_divide",
    "method/local=[mixmatch]",
    "method.T_wu=2",
    "method.T=3",
    "noise.rho=0.8",
)


def _dividemix(rest: str = "Mean(samples)") -> dict[str, str]:
    return {
        "warmup": f"2 rounds: Uniform, Plain, warm_up, {rest}, Replace",
        "usual": f"3 rounds: Uniform, CoDivide, mixmatch, {rest}, Replace, division",
    }


REGISTRY += (
    Entry("dividemix", DIVIDED, _dividemix(), ASSESSED),
    Entry(
        "dividemix_with_batch_norm_on_unequal_clients",
        (
            *(*DIVIDED, "method.refit=epoch", "method.history=2", "method.penalty=true", "method.prior=labels"),
            *("method.clock=rounds", "method.epochs=3", "train.keep_momentum=true", *NORMED),
            *("partition=fedcorr", "partition.alpha=1.0", "method/aggregator=uniform_mean"),
        ),
        _dividemix("Mean(uniform)"),
        ASSESSED,
    ),
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
