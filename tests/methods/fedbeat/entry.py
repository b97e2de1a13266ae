"""What tests must know of FedBeat."""

from tests.entries import NORMED, UNIFORM, Entry, Known

SURE = "method.tau=0.15"
"""So low that a hardly trained ensemble is sure of many samples."""
LENGTHS = ("method.T_wu=2", "method.T_t=2", "method.T=2", "method.members=3", SURE, "train.lr=0.2", "noise.rho=0.8")
RUN = ("method=fedbeat", *LENGTHS)


def stages() -> dict[str, str]:
    """FedBeat's stages."""
    return {
        "warmup": "2 rounds: Uniform, Plain, cross_entropy, Mean(uniform), Replace, ensemble",
        "correct": "2 rounds: Uniform, DistilledSamples, fedbeat_transition, Mean(used), HoldClassifier, "
        "ensemble, shared_layers",
        "usual": "2 rounds: Uniform, Plain, fedbeat, Mean(uniform), Replace, ensemble, shared_layers",
    }


KNOWN = Known(
    entries=(
        Entry("fedbeat", RUN, stages(), (1, 2, 3, 4)),
        Entry(
            "fedbeat_as_released_with_batch_norm_on_unequal_clients",
            (
                *("method=fedbeat", "method.last_batch_only=true", "partition=fedcorr", "partition.alpha=1.0"),
                *(*LENGTHS, *NORMED),
            ),
            stages(),
            (2, 4),
        ),
    ),
    golden={"fedbeat": ("method=fedbeat", *LENGTHS)},
    neutral={"fedbeat": (("method=fedbeat", "method.T_wu=4", "method.T_t=0", "method.T=0"), UNIFORM)},
    alive={"fedbeat": RUN},
    switches={
        RUN: (
            *("method.T_t=1", "method.members=1", "method.tau=0.3", "method.scale=0.9", "method.lr_transition=0.01"),
            *("method.last_batch_only=true", "method/aggregator=mean"),
        ),
        (*RUN, *NORMED, "method.scale=1"): ("method.sample_buffers=true",),
    },
    needed={
        "local/fedbeat": ("method=fedbeat",),
        "local/fedbeat_transition": ("method=fedbeat", "method/local=[fedbeat_transition]"),
        "batch/fedbeat_distilled": ("method/exchange=[fedcorr_lid,fedbeat_ensemble]",),
        "exchange/fedbeat_ensemble": ("method=fedbeat", "method/exchange=[fedbeat_ensemble,shared_layers]"),
        "server/fedbeat_hold_classifier": ("method=fedbeat",),
    },
)
