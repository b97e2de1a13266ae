"""What tests must know of FedNova."""

from tests.entries import FEDAVG, NORMED, ONE_STAGE, Entry, Known, fedavg
from tests.methods.fedcorr.entry import BORDERS, FINETUNE, PREPROCESS, THREE_STAGES

NOVA = "NormalisedMean, Replace, step_lengths"
UNEQUAL = ("method=fednova", "partition=fedcorr", "rounds=4")

KNOWN = Known(
    entries=(
        Entry("fednova", ("method=fednova", "partition=fedcorr", *ONE_STAGE), fedavg(rest=NOVA)),
        Entry(
            "fednova_and_fedprox_with_batch_norm",
            (
                *("method=fednova", "method/local=[cross_entropy,fedprox]", "method.local.fedprox.mu=0.1"),
                *("method.exchange.step_lengths.mu=0.1", "train.momentum=0", "method.aggregator.tau_eff=steps"),
                *(*NORMED, *ONE_STAGE),
            ),
            fedavg(terms="cross_entropy + fedprox", rest=NOVA),
        ),
        Entry(
            "fedcorr_and_fednova",
            (
                *("method=fedcorr", "method/aggregator=fednova", "method/exchange=[fedcorr_lid,fednova_steps]"),
                *THREE_STAGES,
            ),
            {
                "preprocess": PREPROCESS.replace("lid,", "lid, step_lengths,"),
                "finetune": FINETUNE.replace("Replace,", "Replace, step_lengths,"),
                "usual": "2 rounds: Uniform, Mixup, cross_entropy, NormalisedMean, Replace, step_lengths",
            },
            BORDERS,
        ),
    ),
    golden={"fednova": ("method=fednova", "rounds=6")},
    neutral={
        "fednova_of_clients_with_equal_steps": (
            ("method=fednova", "dataset.train_size=160", "rounds=4"),
            (*FEDAVG, "dataset.train_size=160"),
        )
    },
    alive={"fednova": UNEQUAL},
    switches={UNEQUAL: ("method.aggregator.tau_eff=steps", "method/aggregator=mean")},
    needed={"aggregator/fednova": ("method/exchange=[fedcorr_lid,fednova_steps]",)},
)
