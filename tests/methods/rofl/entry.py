"""What tests must know of RoFL."""

from tests.entries import DROPOUT, NORMED, ONE_STAGE, UNIFORM, Entry, Known, fedavg
from tests.methods.fedcorr.entry import FINETUNE, PREPROCESS, THREE_STAGES

AGREED = ("method=rofl", "method.num_gradual=2", "method.T_pl=2", "noise=symmetric", "noise.eta=0.4", *ONE_STAGE)
"""Labels are corrected from the third of five rounds on."""
CENTROIDS = "Mean(uniform), Replace, class_centroids"
ROFL_NEUTRAL = ("method.forget_rate=0", "method.lambda_cen=0", "method.lambda_e=0", "method.T_pl=4", "rounds=4")
ROFL = (
    *("method=rofl", "method.num_gradual=2", "method.T_pl=2", "rounds=4", "noise=symmetric", "noise.eta=0.4"),
    *("partition=fedcorr", "train.lr=0.1"),
)

KNOWN = Known(
    entries=(
        Entry("rofl", AGREED, fedavg(terms="rofl", rest=CENTROIDS)),
        Entry(
            "rofl_by_true_rates",
            (*AGREED, "method/exchange=[rofl_class_centroids,true_noise_rates]"),
            fedavg(terms="rofl", rest=f"{CENTROIDS}, true_noise_rates"),
        ),
        Entry(
            "rofl_as_released_with_batch_norm",
            (
                *(*AGREED, "method.schedule=released", "method.cen_reduction=sum", "method.detach_features=true"),
                *("method.lambda_cen=1.0", "method/batch=mixup", "method/aggregator=mean", *NORMED),
            ),
            fedavg("Mixup", "rofl", "Mean(samples), Replace, class_centroids"),
        ),
        Entry(
            "fedcorr_and_rofl",
            (
                *(
                    "method=fedcorr",
                    "method/local=[rofl,fedprox]",
                    "method/exchange=[fedcorr_lid,rofl_class_centroids]",
                ),
                *("method.local.rofl.T_pl=19", "partition=fedcorr", "partition.alpha=1.0", *THREE_STAGES),
            ),
            {
                "preprocess": PREPROCESS.replace("lid,", "lid, class_centroids,"),
                "finetune": FINETUNE.replace("Replace,", "Replace, class_centroids,"),
                "usual": "2 rounds: Uniform, Mixup, rofl + fedprox, Mean(samples), Replace, class_centroids",
            },
            (16, 18, 19),
        ),
    ),
    golden={"rofl": ("method=rofl", "method.num_gradual=3", "method.T_pl=3", "rounds=6")},
    neutral={
        "rofl": (("method=rofl", *ROFL_NEUTRAL), UNIFORM),
        "rofl_with_batch_norm": (("method=rofl", *ROFL_NEUTRAL, *NORMED), (*UNIFORM, *NORMED)),
        "rofl_with_dropout": (("method=rofl", *ROFL_NEUTRAL, *DROPOUT), (*UNIFORM, *DROPOUT)),
        "rofl_and_mixup": (("method=rofl", "method/batch=mixup", *ROFL_NEUTRAL), (*UNIFORM, "method/batch=mixup")),
    },
    alive={"rofl": ("method=rofl", *ROFL_NEUTRAL[1:], "method/aggregator=mean", "method.forget_rate=0.2")},
    switches={
        ROFL: (
            *("method.forget_rate=0.1", "method.num_gradual=4", "method.schedule=released", "method.T_pl=3"),
            *(
                "method.lambda_cen=0.5",
                "method.lambda_e=0.1",
                "method.cen_reduction=sum",
                "method.detach_features=true",
            ),
            "method/aggregator=mean",
        )
    },
    needed={"local/rofl": ("method/exchange=[fedcorr_lid,rofl_class_centroids]",)},
)
