"""What tests must know of SCAFFOLD."""

from tests.entries import NORMED, ONE_STAGE, Entry, Known, fedavg
from tests.methods.fedcorr.entry import BORDERS, THREE_STAGES, fedcorr

REST = "DriftCorrection, Mean(uniform), Scaled, control_variates"
PLAIN = "train.momentum=0"
BY_SAMPLES = ("method/aggregator=mean", "method.exchange.control_variates.weights=samples")

KNOWN = Known(
    entries=(
        Entry("scaffold", ("method=scaffold", *ONE_STAGE), fedavg(rest=REST)),
        Entry(
            "scaffold_option_I_with_batch_norm",
            ("method=scaffold", "method.option=I", "method.server_lr=0.5", *NORMED, *ONE_STAGE),
            fedavg(rest=REST),
        ),
        Entry(
            "scaffold_with_momentum_by_samples",
            ("method=scaffold", "train.momentum=0.5", "train.lr_decay=0.9", *BY_SAMPLES, *ONE_STAGE),
            fedavg(rest="DriftCorrection, Mean(samples), Scaled, control_variates"),
        ),
        Entry(
            "fedcorr_and_scaffold",
            (
                *("method=fedcorr", "method/exchange=[fedcorr_lid,scaffold_control_variates]"),
                "method/gradient=scaffold_drift_correction",
                *("+method.stages.preprocess={silent:[control_variates]}", "method/aggregator=uniform_mean"),
                *("method.stages.finetune.silent=[lid,control_variates]", *THREE_STAGES),
            ),
            fedcorr(rest="DriftCorrection, Mean(uniform), Replace, control_variates"),
            BORDERS,
        ),
    ),
    golden={
        "scaffold": ("method=scaffold", PLAIN, "rounds=6"),
        "scaffold_option_I": ("method=scaffold", PLAIN, "method.option=I", "method.server_lr=0.5", "rounds=6"),
        "scaffold_with_momentum_by_samples": ("method=scaffold", *BY_SAMPLES, "rounds=6"),
    },
    neutral={
        "scaffold_of_one_round": (
            ("method=scaffold", "rounds=1"),
            ("method=fedavg", "method/aggregator=uniform_mean", "rounds=1", PLAIN),
        ),
    },
    alive={
        "scaffold": ("method=scaffold", "train.momentum=0.5", "method/aggregator=mean", "rounds=4"),
    },
    switches={
        ("method=scaffold", "rounds=3"): (
            *("method.option=I", "method.server_lr=0.5", "method.exchange.control_variates.weights=samples"),
        ),
        ("method=scaffold", "train.momentum=0.5", "rounds=3"): ("method.exchange.control_variates.normaliser=steps",),
    },
    needed={"gradient/scaffold_drift_correction": ("method/exchange=[fedcorr_lid,scaffold_control_variates]",)},
)
