"""What tests must know of FAIR."""

from tests.entries import CLEAN, NORMED, ONE_STAGE, Entry, Known, fedavg
from tests.methods.fedcorr.entry import BORDERS, FINETUNE, PREPROCESS, THREE_STAGES

SELECTED = "LearningQualityMean, Replace, learning_quality"
FAIR = (
    *("method=fair", "eval.benchmark=0.4", "rounds=9", "noise.rho=0.8", "partition=fedcorr"),
    *("partition.num_clients=12", "fraction=0.4", "train.lr=0.15"),
)

KNOWN = Known(
    entries=(
        Entry("fair", ("method=fair", *CLEAN), fedavg(rest=SELECTED, sampler="TopQuality")),
        Entry(
            "fair_without_exploration",
            ("method=fair", "method.exploration=0.0", "method.rho=0.3", "fraction=0.5", "partition=fedcorr", *CLEAN),
            fedavg(rest=SELECTED, sampler="TopQuality"),
        ),
        Entry(
            "fair_of_local_losses_with_batch_norm",
            (
                *("method=fair", "method.loss_on=local", "method.nonpositive=skip", "method.exploration=0.5"),
                *("fraction=0.4", "partition=fedcorr", *NORMED, *ONE_STAGE),
            ),
            fedavg(rest=SELECTED, sampler="TopQuality"),
        ),
        Entry(
            "fedcorr_and_fair",
            (
                *("method=fedcorr", "method/sampler=fair_top_quality", "method/aggregator=fair_learning_quality_mean"),
                *("method/exchange=[fedcorr_lid,fair_learning_quality]", "eval.benchmark=0.2", *THREE_STAGES),
            ),
            {
                "preprocess": PREPROCESS.replace("lid,", "lid, learning_quality,"),
                "finetune": FINETUNE.replace("Replace,", "Replace, learning_quality,"),
                "usual": "2 rounds: TopQuality, Mixup, cross_entropy, LearningQualityMean, Replace, learning_quality",
            },
            BORDERS,
        ),
    ),
    golden={"fair": ("method=fair", "eval.benchmark=0.2", "rounds=6")},
    alive={"fair": ("method=fair", "method/sampler=uniform", "eval.benchmark=0.2", "rounds=4")},
    switches={
        FAIR: (
            *("method.loss_on=local", "method.rho=0.01", "method.exploration=0.9", "method.nonpositive=skip"),
            *("method/sampler=uniform", "method/aggregator=mean"),
        )
    },
    needed={
        "sampler/fair_top_quality": ("method/exchange=[fedcorr_lid,fair_learning_quality]",),
        "aggregator/fair_learning_quality_mean": ("method/exchange=[fedcorr_lid,fair_learning_quality]",),
    },
)
