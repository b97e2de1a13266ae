"""What tests must know of LC and T-revision."""

from tests.entries import ASSESSED, DROPOUT, FEDAVG, HALVES, NORMED, Entry, Known
from tests.methods.fedcorr.entry import FINETUNE, PREPROCESS, THREE_STAGES

CORRECTED = ("method.T_wu=2", "method.T=3", "noise=symmetric", "noise.eta=0.4")
"""Matrices are estimated after the second of five rounds."""
UNSURE = ("method=forward_correction", "method.threshold=0.15", *CORRECTED)
"""So low a threshold that a hardly trained network is confident."""


def corrected(terms: str = "forward_correction", rest: str = "Mean(samples), Replace") -> dict[str, str]:
    """LC's stages: the chosen terms act in the last one only."""
    return {
        "warmup": f"2 rounds: Uniform, Plain, cross_entropy, {rest}, transition_matrix",
        "usual": f"3 rounds: Uniform, Plain, {terms}, {rest}, transition_matrix",
    }


REVISED = ("method=t_revision", "method.T_wu=1", "method.T_lc=2", "method.T=2", *CORRECTED[2:])


def revised(rest: str = "Mean(samples), Replace") -> dict[str, str]:
    """T-revision's stages."""
    return {
        name: f"{length} rounds: Uniform, Plain, {term}, {rest}, transition_matrix"
        for name, length, term in (
            ("warmup", 1, "cross_entropy"),
            ("correct", 2, "forward_correction"),
            ("usual", 2, "t_revision"),
        )
    }


NEUTRAL = ("method.T_wu=2", "method.T_lc=2", "method.T=0")
LC = ("method=forward_correction", "method.threshold=0.15", *HALVES, "noise=symmetric", "noise.eta=0.4")
TR = ("method=t_revision", "method.T_wu=2", "method.T_lc=1", "method.T=3", "method.slack_lr=0.01", *LC[4:])

KNOWN = Known(
    entries=(
        Entry("forward_correction", UNSURE, corrected(), ASSESSED),
        Entry("forward_correction_by_anchors", (*UNSURE, "method.estimator=anchor"), corrected(), ASSESSED),
        Entry("reweighting_with_batch_norm", (*UNSURE, "method.form=reweight", *NORMED), corrected(), ASSESSED),
        Entry(
            "forward_correction_and_fedprox",
            (
                *(*UNSURE, "method/local=[forward_correction,fedprox]", "method/aggregator=uniform_mean"),
                *("partition=fedcorr", "partition.alpha=1.0", "eval.validation=0.2"),
            ),
            corrected("forward_correction + fedprox", "Mean(uniform), Replace"),
            ASSESSED,
        ),
        Entry(
            "fedcorr_and_forward_correction",
            (
                *(
                    "method=fedcorr",
                    "method/local=[forward_correction]",
                    "method/exchange=[fedcorr_lid,loss_correction_transition_matrix]",
                ),
                *("method.exchange.transition_matrix.threshold=0.15", *THREE_STAGES),
            ),
            {
                "preprocess": PREPROCESS.replace("lid,", "lid, transition_matrix,"),
                "finetune": FINETUNE.replace("Replace,", "Replace, transition_matrix,"),
                "usual": "2 rounds: Uniform, Mixup, forward_correction, Mean(samples), Replace, transition_matrix",
            },
            (16, 18, 19),
        ),
        Entry("t_revision", REVISED, revised(), (1, 3, 4)),
        Entry("t_revision_xia", ("method=t_revision_xia", *REVISED[1:]), revised(), (1, 3, 4)),
        Entry(
            "forward_correction_patrini",
            ("method=forward_correction_patrini", *CORRECTED),
            corrected(),
            ASSESSED,
        ),
        Entry(
            "t_revision_by_reweighting",
            (*REVISED, "method.correction=reweight", "method.form=reweight", "method.slack_lr=0.001"),
            revised(),
            (1, 3, 4),
        ),
        Entry(
            "t_revision_with_batch_norm",
            (*REVISED, "method.slack_lr=0.001", "method.estimator=confident", "method.threshold=0.15", *NORMED),
            revised(),
            (1, 3, 4),
        ),
        Entry(
            "t_revision_on_unequal_clients",
            (
                *(
                    *REVISED,
                    "method.slack_lr=0.01",
                    "partition=fedcorr",
                    "partition.alpha=1.0",
                    "method.slack_decay=0.1",
                ),
                "train.keep_momentum=true",
            ),
            revised(),
            (1, 3, 4),
        ),
        Entry(
            "fedcorr_and_t_revision",
            (
                *(
                    "method=fedcorr",
                    "method/local=[t_revision]",
                    "method/exchange=[fedcorr_lid,loss_correction_transition_matrix]",
                ),
                *("method.local.t_revision.lr=0.001", *THREE_STAGES),
            ),
            {
                "preprocess": PREPROCESS.replace("lid,", "lid, transition_matrix,"),
                "finetune": FINETUNE.replace("Replace,", "Replace, transition_matrix,"),
                "usual": "2 rounds: Uniform, Mixup, t_revision, Mean(samples), Replace, transition_matrix",
            },
            (16, 18, 19),
        ),
    ),
    golden={
        "forward_correction": ("method=forward_correction", "method.T_wu=3", "method.T=3", "method.threshold=0.3"),
        "t_revision": ("method=t_revision", "method.T_wu=1", "method.T_lc=2", "method.T=3", "method.slack_lr=0.001"),
    },
    neutral={
        "forward_correction_of_nobody_sure": (("method=forward_correction", "method.threshold=1", *HALVES), FEDAVG),
        "forward_correction_with_dropout": (
            ("method=forward_correction", "method.threshold=1", *HALVES, *DROPOUT),
            (*FEDAVG, *DROPOUT),
        ),
        "forward_correction_that_never_begins": (
            ("method=forward_correction", "method.threshold=0.15", "method.T_wu=4", "method.T=0"),
            FEDAVG,
        ),
        "t_revision_that_revises_nothing": (
            ("method=t_revision", "method.estimator=confident", "method.threshold=0.15", *NEUTRAL),
            ("method=forward_correction", "method.threshold=0.15", *HALVES),
        ),
        "t_revision_that_never_leaves_its_warm_up": (
            ("method=t_revision", "method.T_wu=4", "method.T_lc=0", "method.T=0"),
            FEDAVG,
        ),
    },
    alive={"forward_correction": ("method=forward_correction", "method.threshold=0.15", *HALVES)},
    switches={
        LC: (
            *("method.threshold=0.3", "method.min_count=4", "method.form=reweight", "method.estimator=anchor"),
            "method.restart=true",
            "method.estimator=anchor method.percentile=20",
            "method.estimator=anchor method.percentile=null",
        ),
        TR: (
            *("method.correction=reweight", "method.form=reweight", "method.slack_lr=0.1", "method.slack_decay=1"),
            *("method.estimator=confident method.threshold=0.15", "method.percentile=50", "method.percentile=null"),
        ),
    },
    needed={
        "local/forward_correction": ("method/exchange=[fedcorr_lid,loss_correction_transition_matrix]",),
        "local/t_revision": ("method/exchange=[fedcorr_lid,loss_correction_transition_matrix]",),
    },
)
