"""What tests must know of FedEFC."""

from tests.entries import FEDAVG, NORMED, Entry, Known, of
from tests.methods.fedcorr.entry import BORDERS, THREE_STAGES, fedcorr

NOISE = ("noise=symmetric", "noise.eta=0.4")
SOON = ("method.monitor_after=0", "method.patience=1", "train.lr=1.0", "seed=3")
"""So large a rate that accuracy falls at once: in training after round 2, that of the received model after round 3."""
STOPS = ("method=fedefc", *SOON, *NOISE)
NEVER = "method.patience=99"
CORRECTS = ("method=fedefc", *SOON, *NOISE, "rounds=6")


def acting(terms: str = "fedefc") -> dict[str, str]:
    return {stage: f"{parts}, prestopping" for stage, parts in of(terms).items()}


KNOWN = Known(
    entries=(
        Entry("fedefc", (*STOPS, "rounds=5"), acting(), (1, 3)),
        Entry(
            "fedefc_with_batch_norm_on_unequal_clients",
            (
                *(*STOPS, "method.monitor=received", "method/local=[fedefc,fedprox]", *NORMED, "rounds=5"),
                *("partition=fedcorr", "partition.alpha=1.0"),
            ),
            acting("fedefc + fedprox"),
        ),
        Entry(
            "fedcorr_and_fedefc",
            (
                *("method=fedcorr", "method/local=[fedefc]", "method/exchange=[fedcorr_lid,fedefc_prestopping]"),
                *("method.exchange.prestopping.monitor_after=15", "method.exchange.prestopping.patience=1"),
                *("train.lr=1.0", *THREE_STAGES),
            ),
            {
                name: parts.replace("Replace, lid", "Replace, lid, prestopping")
                if "lid" in parts
                else parts.replace("Replace", "Replace, prestopping")
                for name, parts in fedcorr("fedefc").items()
            },
            BORDERS,
        ),
    ),
    golden={"fedefc": ("method=fedefc", "method.monitor_after=0", "method.patience=1", "rounds=8")},
    neutral={"fedefc_that_never_corrects": (("method=fedefc", NEVER, "rounds=4"), FEDAVG)},
    switches={CORRECTS: ("method.monitor_after=3", "method.patience=3", "method.monitor=received")},
    needed={
        "local/fedefc": ("method/exchange=[fedcorr_lid,fedefc_prestopping]",),
        "exchange/fedefc_prestopping": ("method/local=[fedefc]",),
    },
)
